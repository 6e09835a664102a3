//! Memory that kernels need for a moment, from the [`Workspace`] of the thread.

use crate::gemm::Workspace;

/// Calls `f` with `n` floats of unspecified value. A call inside of `f` gets memory of its own.
pub(crate) fn with<R>(n: usize, f: impl FnOnce(&mut [f32]) -> R) -> R {
    slices([n], |[slice]| f(&mut slice[..n]))
}

/// Calls `f` with a slice for each length, each starting at a cache line and longer than asked for by sixteen floats at
/// least, so that a vector may reach beyond its end. The values are unspecified.
pub(crate) fn slices<const N: usize, R>(lengths: [usize; N], f: impl FnOnce([&mut [f32]; N]) -> R) -> R {
    let lengths = lengths.map(|n| (n.div_ceil(16) + 1) * 16);
    let mut memory = Workspace::take(lengths.iter().sum());
    let mut at = memory.as_mut_ptr();
    f(lengths.map(|n| {
        // SAFETY: the lengths sum up to what was taken, which is initialised and borrowed until `f` returns.
        let slice = unsafe { std::slice::from_raw_parts_mut(at, n) };
        at = at.wrapping_add(n);
        slice
    }))
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn nested_slices_do_not_overlap() {
        super::slices([3, 20], |[a, b]| {
            a.fill(1.0);
            b.fill(2.0);
            super::with(50, |c| c.fill(3.0));
            assert!(a.len() >= 19 && b.len() >= 36);
            assert!(a.iter().all(|&v| v == 1.0) && b.iter().all(|&v| v == 2.0));
            assert_eq!(a.as_ptr() as usize % 64, 0);
            assert_eq!(b.as_ptr() as usize % 64, 0);
        });
    }
}
