//! Arrays of values that are to stay in registers.
//!
//! Those of the standard library pass through several functions for each closure: to inline them took a tenth of the time
//! in which this crate is compiled, and a few were not inlined, with the registers and instruction set of the kernel lost in
//! the call. Those here are one function, which always is.

/// `[f(0), f(1), ..]`
#[inline(always)]
pub(crate) fn from_fn<T: Copy, const N: usize>(mut f: impl FnMut(usize) -> T) -> [T; N] {
    const { assert!(N > 0) };
    let mut values = [f(0); N];
    for i in 1..N {
        values[i] = f(i);
    }
    values
}

/// Methods of arrays that this crate needs.
pub(crate) trait Each<T, const N: usize> {
    /// `[f(self[0]), f(self[1]), ..]`
    fn each<U: Copy>(self, f: impl FnMut(T) -> U) -> [U; N];
}

impl<T: Copy, const N: usize> Each<T, N> for [T; N] {
    #[inline(always)]
    fn each<U: Copy>(self, mut f: impl FnMut(T) -> U) -> [U; N] {
        from_fn(|i| f(self[i]))
    }
}
