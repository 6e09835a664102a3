//! Models of threads, which `tests/` checks with loom. They are no tests of kiln-simd itself: emulated processors and Miri, which run those,
//! would compile loom for nothing, because it simulates the memory of processors and finds the same on every machine.
#![forbid(unsafe_code)]
