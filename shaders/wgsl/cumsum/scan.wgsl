// Shared parts of the kernels of cumulative sums. Integers of either sign are words: their sums have the same bits.

#if STORED == f32
alias Item = f32;
#else
alias Item = u32;
#endif

// Elements of an invocation, and of a workgroup at a time.
const EACH: u32 = 8u;
const TILE: u32 = EACH * ${WORKGROUP}u;

var<workgroup> sums: array<Item, 2u * ${WORKGROUP}u>;
