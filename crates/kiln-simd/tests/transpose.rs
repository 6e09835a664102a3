//! The transpose beyond the conformance suite.

use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::sampled;

#[test]
fn results_do_not_depend_on_where_they_lie_nor_on_how_they_are_written() {
    // Short rows, rows of whole vectors, other rows; the last three are large enough for non-temporal stores, and only
    // the first of these has rows of whole lines.
    for (rows, columns) in sampled([
        (14, 90),
        (70, 6),
        (90, 70),
        (100, 40),
        (256, 33),
        (131, 150),
        (4096, 2050),
        (2047, 4100),
        (2056, 1600),
    ]) {
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

#[test]
fn narrow_matrices_are_woven_right_at_every_length_and_place() {
    let whole = if cfg!(miri) { 40 } else { 100 };
    let mut cases: Vec<(usize, usize)> = (1..=5).flat_map(|short| (1..whole).map(move |long| (short, long))).collect();
    // Several pieces and threads, and non-temporal stores.
    if !cfg!(miri) {
        cases.extend((1..=4).flat_map(|short| [(short, 200_001), (short, (4 << 20) / short / 64 * 64)]));
    }
    for (short, long) in sampled(cases) {
        let n = short * long;
        let x: Vec<f32> = (0..n).map(|i| i as f32).collect();
        for isa in Isa::available() {
            for (rows, columns) in [(short, long), (long, short)] {
                let at = long % 5;
                let mut memory = vec![-1.0; n + 6];
                let simd = Simd::with_isa(isa).unwrap().with_threads(2);
                simd.transpose_into(&x, rows, columns, &mut memory[at..at + n]).unwrap();
                let is = |(at, v): (usize, &f32)| *v == x[at % rows * columns + at / rows];
                assert!(memory[at..at + n].iter().enumerate().all(is), "{isa} {rows} * {columns}");
                assert!(memory[..at].iter().chain(&memory[at + n..]).all(|&v| v == -1.0), "{isa} {rows} * {columns}");
            }
        }
    }
}

#[test]
fn lengths_that_do_not_fit_are_errors() {
    let simd = Simd::new().unwrap();
    assert!(simd.transpose_into(&[0.0; 6], 2, 3, &mut [0.0; 5]).is_err());
    assert!(simd.transpose_into(&[0.0; 5], 2, 3, &mut [0.0; 5]).is_err());
    assert!(simd.transpose_into(&[0.0; 6], usize::MAX, 3, &mut [0.0; 6]).is_err());
    assert!(simd.transpose(&[], 0, 3).unwrap().is_empty());
}
