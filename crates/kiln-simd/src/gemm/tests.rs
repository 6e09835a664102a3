use kiln_core::Operations;
use kiln_core::op::reference::Random;
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use super::*;
use crate::Isa;

fn product(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f64> {
    let element = |i: usize, j: usize| (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j])).sum();
    (0..m * n).map(|e| element(e / n, e % n)).collect()
}

#[test]
fn every_tile_is_right() {
    let mut random = Random::new(21);
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        let shape = tile::TileSet::of(isa).shape;
        for m in 1..=2 * shape.rows {
            for n in 2..=2 * shape.columns() + 1 {
                for k in [1, 2, 3, 7] {
                    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
                    let got = simd.matmul(&a, &b, m, k, n).unwrap();
                    for (got, want) in got.iter().zip(product(&a, &b, m, k, n)) {
                        assert!((f64::from(*got) - want).abs() < 1e-5, "{isa} {m} {k} {n}: {got} {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_element_has_the_same_bits_in_every_product_that_holds_it() {
    let mut random = Random::new(22);
    let (m, k, n) = (90, 701, 120);
    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        let whole = simd.matmul(&a, &b, m, k, n).unwrap();
        for rows in [1, 2, 5, 14, 16, 17, 33] {
            assert_eq!(simd.matmul(&a[..rows * k], &b, rows, k, n).unwrap(), whole[..rows * n], "{isa}, {rows} rows");
        }
        for columns in [33, 64, 96, 97] {
            let part: Vec<f32> = b.chunks(n).flat_map(|row| &row[..columns]).copied().collect();
            let want: Vec<f32> = whole.chunks(n).flat_map(|row| &row[..columns]).copied().collect();
            assert_eq!(simd.matmul(&a, &part, m, k, columns).unwrap(), want, "{isa}, {columns} columns");
        }
        let packed = simd.pack_b(&b, k, n, false).unwrap();
        let mut turned = vec![0.0; k * n];
        (0..k * n).for_each(|e| turned[e % n * k + e / n] = b[e]);
        let turned = simd.pack_b(&turned, k, n, true).unwrap();
        for rows in [0, 1, 3, 15, 90] {
            for packed in [&packed, &turned] {
                let got = simd.matmul_packed(&a[..rows * k], packed, rows).unwrap();
                assert_eq!(got, whole[..rows * n], "{isa}, {rows} rows, packed");
            }
        }
    }
}

#[test]
fn few_columns_of_many_rows_are_right() {
    let mut random = Random::new(23);
    for (m, k, n) in [(17, 4500, 33), (40, 700, 2), (31, 321, 96)] {
        let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
        for isa in Isa::available() {
            let got = Simd::with_isa(isa).unwrap().matmul(&a, &b, m, k, n).unwrap();
            for (got, want) in got.iter().zip(product(&a, &b, m, k, n)) {
                assert!((f64::from(*got) - want).abs() < 1e-6 * k as f64, "{isa} {m} {k} {n}: {got} {want}");
            }
        }
    }
}

#[test]
fn wrong_extents_are_errors() {
    let simd = Simd::new().unwrap();
    assert!(simd.matmul(&[0.0; 6], &[0.0; 6], 2, 3, 3).is_err());
    assert!(simd.matmul_into(&[0.0; 6], &[0.0; 6], 2, 3, 2, &mut [0.0; 5]).is_err());
    assert!(matches!(simd.matmul(&[], &[], usize::MAX, 2, 2), Err(Error::Overflow { .. })));
    assert!(matches!(simd.matmul(&[], &[], usize::MAX >> 8, 0, usize::MAX >> 8), Err(Error::Overflow { .. })));
    assert!(simd.matvec(&[0.0; 6], &[0.0; 2], 2, 3).is_err());
    assert!(simd.pack_b(&[0.0; 5], 2, 3, false).is_err());
    let packed = simd.pack_b(&[0.0; 6], 2, 3, false).unwrap();
    assert!(simd.matmul_packed(&[0.0; 3], &packed, 2).is_err());
    let scalar = Simd::with_isa(Isa::Scalar).unwrap();
    if simd.isa() != Isa::Scalar {
        assert!(scalar.matmul_packed(&[0.0; 4], &packed, 2).is_err());
    }
    assert!(simd.matmul(&[], &[], 0, 0, 0).unwrap().is_empty());
    assert_eq!(simd.matmul(&[], &[], 2, 0, 2).unwrap(), [0.0; 4]);
    assert_eq!(simd.matvec(&[], &[], 2, 0).unwrap(), [0.0; 2]);
}
