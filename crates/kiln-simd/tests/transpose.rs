//! The transpose beyond the conformance suite.

use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn results_do_not_depend_on_where_they_lie_nor_on_how_they_are_written() {
    // Short rows, rows of whole vectors, other rows; the last two are written past the caches, if they can be.
    for (rows, columns) in [(100, 40), (256, 33), (131, 150), (4096, 2050), (2047, 4100)] {
        let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let simd = Simd::with_isa(isa).unwrap().with_threads(threads);
                let mut memory = vec![-1.0; rows * columns + 2];
                let last = memory.len() - 1;
                simd.transpose_into(&x, rows, columns, &mut memory[1..last]).unwrap();
                assert_eq!((memory[0], memory[last]), (-1.0, -1.0));
                let is = |(at, v): (usize, &f32)| *v == x[at % rows * columns + at / rows];
                assert!(memory[1..last].iter().enumerate().all(is), "{isa} {rows} * {columns}");
            }
        }
    }
}
