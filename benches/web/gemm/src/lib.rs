//! `gemm::gemm` on row-major f32 matrices, for JavaScript: one thread, as the module has.

use std::cell::RefCell;

thread_local! {
    static MATRICES: RefCell<[Vec<f32>; 3]> = const { RefCell::new([Vec::new(), Vec::new(), Vec::new()]) };
}

/// Makes three matrices of `n * n`, and gives the place of one of them: 0 and 1 are multiplied, 2 is the result.
#[unsafe(no_mangle)]
pub extern "C" fn matrix(which: usize, n: usize) -> *mut f32 {
    MATRICES.with_borrow_mut(|matrices| {
        matrices[which].resize(n * n, 0.0);
        matrices[which].as_mut_ptr()
    })
}

/// Multiplies them.
#[unsafe(no_mangle)]
pub extern "C" fn multiply(n: usize) {
    MATRICES.with_borrow_mut(|[a, b, c]| {
        assert!([&a, &b, &c].iter().all(|matrix| matrix.len() == n * n));
        let (row, column) = (n as isize, 1);
        // SAFETY: each matrix has n * n elements.
        unsafe {
            gemm::gemm(
                n,
                n,
                n,
                c.as_mut_ptr(),
                column,
                row,
                false,
                a.as_ptr(),
                column,
                row,
                b.as_ptr(),
                column,
                row,
                0.0,
                1.0,
                false,
                false,
                false,
                gemm::Parallelism::None,
            );
        }
    });
}
