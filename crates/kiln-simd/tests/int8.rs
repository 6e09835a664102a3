//! Products with quantised weights at [`Precision::Int8`]; what cannot be rounded at the contract, too.

use kiln_ir::op::reference::Random;
use kiln_ir::{Precision, QuantFormat};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support;

/// The unit of f32.
const U: f64 = 1.0 / 16_777_216.0;

/// Weights of `n` rows.
fn weights(format: QuantFormat, n: usize, k: usize, random: &mut Random) -> Vec<u8> {
    Simd::new().unwrap().quantize(&random.uniforms(n * k, -1.0, 1.0), k, format).unwrap()
}

/// The products in f64 with the bound of the precision: each term with the largest |x| of its block of 32.
fn exact(format: QuantFormat, x: &[f32], w: &[u8], [m, n, k]: [usize; 3]) -> Vec<(f64, f64)> {
    let mut decoded = vec![0.0; n * k];
    format.decode(w, &mut decoded).unwrap();
    let largest = |x: &[f32]| x.iter().fold(0.0f32, |most, x| most.max(x.abs()));
    let tops: Vec<f32> = x.chunks(32).flat_map(|x| [largest(x); 32]).collect();
    let bound = f64::from(1u32 << 16) + 1024.0 + k as f64 / 8.0;
    let result = |e: usize| {
        let (x, tops) = (&x[e / n * k..][..k], &tops[e / n * k..][..k]);
        let w = &decoded[e % n * k..][..k];
        let sum = x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum();
        (sum, bound * U * tops.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w.abs())).sum::<f64>())
    };
    (0..m * n).map(result).collect()
}

fn sets() -> impl Iterator<Item = Simd> {
    Isa::available().map(|isa| Simd::with_isa(isa).unwrap().with_precision(Precision::Int8))
}

#[test]
fn products_are_within_the_bound_for_every_format_and_size() {
    let mut random = Random::new(31);
    for (number, format) in QuantFormat::ALL.into_iter().enumerate() {
        // Every tile of rows, panels that are not full, and rows of weights that are not whole chunks where blocks are small.
        let block = format.block_len();
        let sizes = [
            (1, 16, block),
            (11, 37, 9 * block),
            (47, 5, 256),
            (3, 65, 3 * 256),
            (16, 1, 2 * block),
            (33, 65, 3 * 256),
        ];
        // In a sample each format takes another size.
        let step = support::step().min(sizes.len());
        for (m, n, k) in sizes.into_iter().skip(number % step).step_by(step) {
            let w = weights(format, n, k, &mut random);
            let x = random.uniforms(m * k, -3.0, 3.0);
            let expected = exact(format, &x, &w, [m, n, k]);
            for simd in sets() {
                let got = simd.quant_matmul(&x, &w, m, k, n, format).unwrap();
                for (i, (got, (want, bound))) in got.iter().zip(&expected).enumerate() {
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= *bound, "{} {} {m}x{n}x{k} {i}: {got} {want}", simd.isa(), format.name());
                }
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_of_up_to_11_rows_and_for_any_number_of_threads() {
    let mut random = Random::new(35);
    for format in QuantFormat::ALL {
        let (m, n, k) = (11, 150, if support::step() == 1 { 4 * 256 } else { 2 * 256 });
        let (w, x) = (weights(format, n, k, &mut random), random.uniforms(m * k, -3.0, 3.0));
        for simd in sets() {
            let whole = simd.with_threads(1).quant_matmul(&x, &w, m, k, n, format).unwrap();
            assert_eq!(simd.with_threads(3).quant_matmul(&x, &w, m, k, n, format).unwrap(), whole, "{}", simd.isa());
            for rows in support::sampled([1, 2, 3, 4, 8]) {
                let got = simd.quant_matmul(&x[k..(1 + rows) * k], &w, rows, k, n, format).unwrap();
                assert_eq!(got, whole[n..(1 + rows) * n], "{} {} {rows}", simd.isa(), format.name());
            }
        }
    }
}

#[test]
fn a_row_has_the_same_bits_in_every_batch_of_at_least_32_rows_and_for_any_number_of_threads() {
    let mut random = Random::new(32);
    for format in QuantFormat::ALL {
        let (m, n, k) = (47, 150, if support::step() == 1 { 4 * 256 } else { 2 * 256 });
        let (w, x) = (weights(format, n, k, &mut random), random.uniforms(m * k, -3.0, 3.0));
        for simd in sets() {
            let whole = simd.with_threads(1).quant_matmul(&x, &w, m, k, n, format).unwrap();
            assert_eq!(simd.with_threads(3).quant_matmul(&x, &w, m, k, n, format).unwrap(), whole, "{}", simd.isa());
            for rows in support::sampled([32, 33, 35, 36]) {
                let got = simd.quant_matmul(&x[k..(1 + rows) * k], &w, rows, k, n, format).unwrap();
                assert_eq!(got, whole[n..(1 + rows) * n], "{} {} {rows}", simd.isa(), format.name());
            }
        }
    }
}

/// Rows of `k` elements rounded to 8 bits for each 32 neighbours.
fn rounded(x: &[f32]) -> Vec<f32> {
    let mut rounded = Vec::with_capacity(x.len());
    for block in x.chunks(32) {
        let largest = block.iter().fold(0.0f32, |most, x| most.max(x.abs()));
        rounded.extend(block.iter().map(|x| (x * (127.0 / largest)).round_ties_even() * (largest / 127.0)));
    }
    rounded
}

/// Whether products with `rows` rows round them. In WebAssembly, nothing asks for a precision.
fn rounds(simd: Simd, format: QuantFormat, rows: usize) -> bool {
    let has_panels = cfg!(target_arch = "x86_64") && !matches!(simd.isa().name(), "sse2" | "scalar");
    // These have scales for each 16 neighbours.
    let by_halves = matches!(format, QuantFormat::Q2K | QuantFormat::Q3K);
    !cfg!(target_arch = "wasm32") && (!by_halves || has_panels && rows >= 12)
}

#[test]
fn products_of_any_number_of_rows_are_those_of_the_rows_rounded_to_8_bits() {
    let mut random = Random::new(33);
    for format in QuantFormat::ALL {
        let (n, k) = (20, 512);
        for m in support::sampled([1, 2, 3, 4, 7, 11, 12, 33]) {
            let (w, x) = (weights(format, n, k, &mut random), random.uniforms(m * k, -3.0, 3.0));
            let [contract, int8] = [exact(format, &x, &w, [m, n, k]), exact(format, &rounded(&x), &w, [m, n, k])];
            let mut results: Vec<Vec<f32>> = Vec::new();
            for simd in sets() {
                let got = simd.quant_matmul(&x, &w, m, k, n, format).unwrap();
                let expected = if rounds(simd, format, m) { &int8 } else { &contract };
                for (i, (got, (want, bound))) in got.iter().zip(expected).enumerate() {
                    // The rounding to 8 bits makes up nearly all of the bound.
                    let error = (f64::from(*got) - want).abs();
                    assert!(error <= bound / 128.0, "{} {} {m} {i}: {got} {want}", simd.isa(), format.name());
                }
                if !results.contains(&got) {
                    results.push(got);
                }
            }
            // Many rows are added up in another order where instruction sets have panels for the format, few rows everywhere alike.
            assert!(results.len() <= if m < 12 { 1 } else { 2 }, "{} {m}", format.name());
        }
    }
}

#[test]
fn numbers_that_cannot_be_rounded_give_what_the_formula_gives() {
    for format in [QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0, QuantFormat::Q2K, QuantFormat::Mxfp4] {
        let (m, n, k) = (35, 3, 256);
        let mut random = Random::new(34);
        let w = weights(format, n, k, &mut random);
        let mut x = random.uniforms(m * k, -1.0, 1.0);
        x[3] = f32::NAN;
        x[k + 40] = f32::INFINITY;
        x[2 * k..3 * k].fill(0.0);
        x[3 * k..4 * k].iter_mut().for_each(|x| *x *= 1e-36);
        x[4 * k..5 * k].iter_mut().for_each(|x| *x *= 1e37);
        let expected = exact(format, &x, &w, [m, n, k]);
        for simd in sets().flat_map(|simd| [simd, simd.with_precision(Precision::Contract)]) {
            let got = simd.quant_matmul(&x, &w, m, k, n, format).unwrap();
            for (i, (got, (want, bound))) in got.iter().zip(&expected).enumerate() {
                let at = format!("{} {} {i}: {got} {want}", simd.isa(), format.name());
                match i / n {
                    0 => assert!(got.is_nan(), "{at}"),
                    1 => assert!(!got.is_finite(), "{at}"),
                    // A subnormal result rounds to a multiple of 2^-149.
                    _ => assert!((f64::from(*got) - want).abs() <= bound + 1e-45, "{at}"),
                }
            }
        }
    }
}
