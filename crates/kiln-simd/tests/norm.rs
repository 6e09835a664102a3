//! Normalisation of rows that are made to round badly, on every instruction set.

use kiln_ir::op::LayerNorm;
use kiln_ir::op::reference::{self, Case, Input, Random};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Holds a row to the contract, with γ = 1 and β = 0, for which an error of the row has nothing to hide behind.
fn assert_kept(what: &str, row: Vec<f32>) {
    let n = row.len();
    let inputs = [(row, vec![1, n]), (vec![1.0; n], vec![n]), (vec![0.0; n], vec![n])];
    let case = Case::new(LayerNorm::new(1e-12), inputs.map(|(data, shape)| Input::f32(data, &shape)).to_vec());
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        if let Err(why) = reference::conform(&case, |op, inputs| simd.run(op, inputs)) {
            panic!("{what}, {n} columns, on {isa}: {why}");
        }
    }
}

/// Short rows, whole blocks of sums, ends of every kind, several parts of a long row.
const COLUMNS: [usize; 6] = [2, 16, 100, 1000, 4096, 40_000];

#[test]
fn an_offset_costs_nothing() {
    let mut random = Random::new(71);
    for n in COLUMNS {
        for offset in [1.3, 1e3, 1.4e6, 2.3e7, -1.5e9] {
            // The distance between adjacent numbers there.
            let step = reference::ulp(f64::from(offset)) as f32;
            let units = random.uniforms(n, 0.0, 8.0);
            let fine = units.iter().map(|units| offset + units.floor() * step).collect();
            assert_kept(&format!("a few units around {offset}"), fine);
            assert_kept(&format!("one around {offset}"), random.uniforms(n, offset, offset + 1.0));
        }
    }
}

#[test]
fn signs_that_alternate_and_rows_of_one_value() {
    let mut random = Random::new(72);
    for n in COLUMNS {
        for size in [1.3, 1e3, 1.4e6, 2.3e7] {
            let signed = random.uniforms(n, size, size + 1.0);
            let alternating = signed.iter().enumerate().map(|(i, &x)| if i % 2 == 0 { x } else { -x }).collect();
            assert_kept(&format!("±{size} in turn"), alternating);
            let mut row = vec![size; n];
            assert_kept(&format!("{size} alone"), row.clone());
            row[n / 2] *= 1.7;
            assert_kept(&format!("{size} and one of another value"), row);
        }
    }
}

/// The center that differences are taken from is the mean of the first elements: here the others are around a number that
/// is nearly as far from it as they are spread, which is as far as it is let stand.
#[test]
fn a_center_beside_the_row() {
    let mut random = Random::new(73);
    for n in COLUMNS {
        for distance in [0.5, 0.7, 0.9, 0.99, 1.01, 3.0] {
            let spread = random.uniforms(n, -1e-3, 1e-3);
            let row = spread.iter().enumerate().map(|(i, &spread)| match i {
                0..16 => 0.0,
                _ if i % 2 == 0 => distance + 1.0 + spread,
                _ => distance - 1.0 + spread,
            });
            assert_kept(&format!("{distance} beside the center"), row.collect());
        }
    }
}

/// A large difference, then those whose squares are each a little more than half a unit of the sum so far: all
/// additions round up.
#[test]
fn roundings_of_one_direction() {
    for n in COLUMNS {
        for lanes in [1, 4, 8, 16] {
            for (large, small) in [(1.0, 2.444e-4), (1.0, 3.456e-4), (1.2, 2.444e-4), (1.0, 8.94e-8)] {
                for sign in [1.0, -1.0] {
                    let row = (0..n).map(|i| {
                        // Four vectors side by side, eight steps per running sum, four such sums per block.
                        let x = if i / (4 * lanes) % 8 == 0 { large } else { small };
                        if i / (32 * lanes) % 2 == 0 { x } else { sign * x }
                    });
                    assert_kept(&format!("{large} before {small} on {lanes} lanes, sign {sign}"), row.collect());
                }
            }
        }
    }
}

/// One row checks its products with gamma by itself, many rows have the range of gamma: the bits are the same.
#[test]
fn a_row_alone_has_the_bits_that_it_has_among_others() {
    const ROWS: usize = 9;
    let mut random = Random::new(72);
    for n in [1, 5, 16, 77, 300, 1030] {
        let gammas = |low: f32, high: f32, others: &[f32]| {
            let mut gammas = Random::new(n as u64).uniforms(n, low, high);
            gammas.iter_mut().skip(n / 2).zip(others).for_each(|(gamma, &other)| *gamma = other);
            gammas
        };
        let x =
            [(1.0, 2.0), (1e15, 2e15), (1e-12, 2e-12)].map(|(low, high)| random.uniforms(3 * n, low, high)).concat();
        for gamma in [
            gammas(-2.0, 2.0, &[]),
            gammas(0.5, 2.0, &[0.0]),
            gammas(1e-25, 2e-25, &[0.0]),
            gammas(1e27, 2e27, &[]),
            gammas(1e-25, 2e-25, &[1.0, f32::NAN]),
            gammas(1.0, 2.0, &[1e-25, f32::NAN, f32::INFINITY]),
        ] {
            for isa in Isa::available() {
                let simd = Simd::with_isa(isa).unwrap();
                let together = simd.rms_norm(&x, &gamma, 1e-30).unwrap();
                for (row, expected) in x.chunks_exact(n).zip(together.chunks_exact(n)) {
                    let alone = simd.rms_norm(row, &gamma, 1e-30).unwrap();
                    let bits =
                        |row: &[f32]| row.iter().map(|x| if x.is_nan() { 0 } else { x.to_bits() }).collect::<Vec<_>>();
                    assert_eq!(bits(&alone), bits(expected), "{isa}, {n} columns, x {}, gamma {}", row[0], gamma[0]);
                }
                assert_eq!(x.len(), ROWS * n);
            }
        }
    }
}
