//! Models of threads, which `tests/` checks with loom. They are not tests of kiln-simd, which also run under Miri and on emulated
//! processors: compiling loom there would be wasted, because it simulates the memory of processors, with the same result everywhere.
#![forbid(unsafe_code)]
