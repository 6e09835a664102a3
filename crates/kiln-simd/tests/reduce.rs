//! Promises of reductions and operations on rows beyond their contract: bits, threads, errors.

use kiln_ir::op::reference::{Case, Input, Random, conform};
use kiln_ir::op::{Dot, Op, Reduce, Reduction};
use kiln_ir::{Buffer, Error, Operand};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::step;

/// Sums over one leaf of the tree, one past it, a few leaves, one past a thread's part, many parts.
const LENGTHS: [usize; 12] = [1, 17, 100, 1000, 4095, 4096, 4097, 20_000, 131_073, 300_001, 1_000_000, 3_333_333];

fn simds() -> Vec<Simd> {
    let mut all: Vec<Simd> = Isa::available().map(|isa| Simd::with_isa(isa).unwrap().with_threads(1)).collect();
    all.extend([2, 3, 7].map(|threads| Simd::new().unwrap().with_threads(threads)));
    all
}

/// All reductions; in a sample each input takes others.
fn reductions(number: usize) -> impl Iterator<Item = Reduction> {
    let step = step().min(Reduction::ALL.len());
    Reduction::ALL.iter().copied().skip(number % step).step_by(step)
}

/// The bits of every result, so that a NaN equals itself and the zeros differ.
fn bits(results: &[Buffer]) -> Vec<u32> {
    let bytes = results.iter().flat_map(|result| result.as_data().as_bytes().as_chunks().0);
    bytes.map(|&word| u32::from_ne_bytes(word)).collect()
}

fn assert_same_everywhere(op: &Op, inputs: &[Operand<'_>], what: &str) {
    let expected = bits(&simds()[0].run(op, inputs).unwrap());
    for simd in &simds()[1..] {
        assert_eq!(bits(&simd.run(op, inputs).unwrap()), expected, "{what} with {simd:?}");
    }
}

#[test]
fn reductions_have_the_same_bits_on_every_instruction_set_and_any_number_of_threads() {
    let mut random = Random::new(1);
    // A sample leaves out the longest.
    let most = if step() == 1 { usize::MAX } else { 300_001 };
    for (number, n) in LENGTHS.into_iter().enumerate().filter(|&(_, n)| n <= most) {
        let (mut a, b) = (random.uniforms(n, -1.0, 3.0), random.uniforms(n, 0.5, 2.0));
        for _ in 0..2 {
            for reduction in reductions(number) {
                assert_same_everywhere(&Reduce::all(reduction).into(), &[Operand::vector(&a)], reduction.name());
            }
            assert_same_everywhere(&Dot.into(), &[Operand::vector(&a), Operand::vector(&b)], "dot");
            // Again with NaN of either sign from arithmetic, and with zeros of either sign.
            a[n / 2] = f32::INFINITY;
            a[n / 3] = f32::NEG_INFINITY;
            a[n - 1] = -0.0;
        }
        let small = vec![1e-30; n.min(10_000)];
        assert_same_everywhere(&Reduce::all(Reduction::NormL2).into(), &[Operand::vector(&small)], "small norm");
    }
}

#[test]
fn reductions_along_an_axis_have_the_same_bits_everywhere() {
    let mut random = Random::new(2);
    let shapes = [[3, 5, 7], [2, 1000, 130], [1, 70, 5001], [700, 9, 64], [40, 1, 9000], [2, 300_000, 1]];
    for (number, dims) in shapes.into_iter().enumerate() {
        let data = random.uniforms(dims.iter().product(), -1.0, 1.0);
        for reduction in reductions(number) {
            for axis in 0..3 {
                let op = Reduce::along(reduction, axis).into();
                assert_same_everywhere(&op, &[Operand::f32(&data, &dims).unwrap()], reduction.name());
            }
        }
    }
}

#[test]
fn a_row_sums_as_a_slice() {
    let x = Random::new(3).uniforms(5 * 3000, -1.0, 1.0);
    let simd = Simd::new().unwrap();
    let rows = simd.sum_axis(&x, &[5, 3000], 1).unwrap();
    for (row, sum) in x.chunks(3000).zip(rows) {
        assert_eq!(simd.sum(row).unwrap().to_bits(), sum.to_bits());
    }
}

#[test]
fn a_million_terms_sum_within_1e_7_of_their_magnitudes() {
    let mut random = Random::new(4);
    for (lo, hi) in [(0.0, 1.0), (-1.0, 1.0), (1e6, 1e6 + 1.0)] {
        let (x, y) = (random.uniforms(1_000_000, lo, hi), random.uniforms(1_000_000, 0.0, 1.0));
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            let check = |got: f32, terms: &dyn Fn(usize) -> f64, what: &str| {
                let (exact, magnitude) = (0..x.len()).map(terms).fold((0.0, 0.0), |(s, m), t| (s + t, m + f64::abs(t)));
                let error = (f64::from(got) - exact).abs() / magnitude;
                assert!(error <= 1e-7, "{what} on {isa}: {error:e}");
            };
            check(simd.sum(&x).unwrap(), &|i| f64::from(x[i]), "sum");
            check(simd.norm_l1(&x).unwrap(), &|i| f64::from(x[i]).abs(), "norm_l1");
            check(simd.dot(&x, &y).unwrap(), &|i| f64::from(x[i]) * f64::from(y[i]), "dot");
            // A column is a sum as well.
            check(simd.sum_axis(&x, &[1_000_000, 1], 0).unwrap()[0], &|i| f64::from(x[i]), "column");
        }
    }
}

#[test]
fn the_bound_of_sums_is_attained_and_not_exceeded() {
    // A 1, and before every addition that it passes through one u, which is lost: ties round to the even 1.
    const U: f32 = 1.0 / (1 << 24) as f32;
    for n in [2048, 100_000, 1 << 20] {
        let mut x = vec![0.0; n];
        let leaves = (0..).map(|level| 2048 << level).take_while(|&at| at < n);
        let places = (1..16).map(|row| 128 * row).chain((0..7).map(|bit| 1 << bit)).chain(leaves);
        places.for_each(|at| x[at] = U);
        x[0] = 1.0;
        let lost = x.iter().filter(|&&v| v == U).count() as f64;
        for isa in Isa::available() {
            let case = Case::new(Reduce::all(Reduction::Sum), vec![Input::f32(x.clone(), &[n])]);
            let simd = Simd::with_isa(isa).unwrap();
            let accuracy = conform(&case, |op, inputs| simd.run(op, inputs)).unwrap();
            assert!(accuracy.worst > lost - 0.1, "{} of {lost} on {isa}", accuracy.worst);
        }
    }
}

#[test]
fn results_do_not_depend_on_where_a_slice_lies() {
    let mut random = Random::new(6);
    // Less than a vector, one leaf and a few, at every offset in a cache line.
    for n in [1, 9, 40, 130, 2047, 2048, 2100, 9000] {
        let (x, y) = (random.uniforms(n, -1.0, 3.0), random.uniforms(n, 0.5, 2.0));
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            let run = |x: &[f32], y: &[f32]| {
                let of = |reduction| simd.run(&Reduce::all(reduction).into(), &[Operand::vector(x)]).unwrap();
                let all: Vec<u32> = Reduction::ALL.iter().flat_map(|&reduction| bits(&of(reduction))).collect();
                (all, simd.dot(x, y).unwrap().to_bits())
            };
            let expected = run(&x, &y);
            for shift in 0..17 {
                let moved = |v: &[f32]| [&vec![f32::NAN; shift], v].concat();
                let (x, y) = (moved(&x), moved(&y));
                assert_eq!(run(&x[shift..], &y[shift..]), expected, "{n} elements, {shift} on, {isa}");
            }
        }
    }
}

#[test]
fn positions_are_the_first_across_blocks_and_threads() {
    for simd in simds() {
        let mut x = vec![-1.0f32; 1_000_000];
        for at in [999_999, 700_001, 300_000, 4096, 4095, 5, 0] {
            x[at] = 2.0;
            assert_eq!(simd.argmax(&x).unwrap() as usize, at, "{simd:?}");
        }
        for at in [999_999, 400_000, 131_072, 131_071, 3] {
            x[at] = f32::NAN;
            assert_eq!(simd.argmax(&x).unwrap() as usize, at, "{simd:?}");
            assert_eq!(simd.argmin(&x).unwrap() as usize, at, "{simd:?}");
            assert!(simd.max_element(&x).unwrap().is_nan() && simd.min_element(&x).unwrap().is_nan(), "{simd:?}");
        }
        assert_eq!(simd.argmin(&[f32::INFINITY; 9000]).unwrap(), 0);
        let mut zeros = vec![0.0f32; 400_000];
        assert_eq!(simd.min_element(&zeros).unwrap().to_bits(), 0);
        zeros[399_000] = -0.0;
        assert_eq!(simd.min_element(&zeros).unwrap().to_bits(), 1 << 31);
        assert_eq!(simd.max_element(&zeros).unwrap().to_bits(), 0);
    }
}

#[test]
fn rows_do_not_depend_on_the_number_of_threads() {
    let x = Random::new(5).uniforms(600_000, -9.0, 9.0);
    let simd = Simd::new().unwrap();
    for columns in [10, 1000, 3000, 200_000, 600_000] {
        let gamma = vec![1.5; columns];
        let run = |threads| {
            let simd = simd.with_threads(threads);
            [
                simd.softmax(&x, columns).unwrap(),
                simd.log_softmax(&x, columns).unwrap(),
                simd.layer_norm(&x, &gamma, &gamma, 1e-5).unwrap(),
                simd.rms_norm(&x, &gamma, 1e-5).unwrap(),
                simd.top_k(&x, columns, 7).unwrap().0,
            ]
        };
        let one = run(1);
        for threads in [2, 3, 7] {
            assert_eq!(run(threads), one, "{columns} columns, {threads} threads");
        }
    }
}

#[test]
fn long_rows_of_every_kind_are_normalised_by_any_number_of_threads() {
    let n = 200_001;
    let spread = Random::new(6).uniforms(n, -1.0, 1.0);
    let mut broken = spread.clone();
    broken[150_000] = f32::NAN;
    let far: Vec<f32> = spread.iter().enumerate().map(|(i, v)| if i < 64 { -1e6 } else { 1e4 + v }).collect();
    let scaled = |factor: f32| spread.iter().map(|v| v * factor).collect::<Vec<f32>>();
    let rows = [far, scaled(1e30), scaled(1e-30), scaled(0.0), vec![3.0; n], broken];
    let (gamma, simd) = (vec![1.0; n], Simd::new().unwrap());
    for (i, x) in rows.iter().enumerate() {
        let run = |threads| {
            let simd = simd.with_threads(threads);
            let (layer, rms) = (simd.layer_norm(x, &gamma, &gamma, 0.0), simd.rms_norm(x, &gamma, 0.0));
            [layer.unwrap(), rms.unwrap()].map(|v| bits(&[Buffer::F32(v)]))
        };
        let one = run(1);
        assert_eq!(run(2), one, "row {i}");
        assert_eq!(run(3), one, "row {i}");
    }
}

#[test]
fn bad_input_is_one_clear_error() {
    let simd = Simd::new().unwrap();
    let x = [1.0f32; 6];
    assert!(matches!(simd.argmax(&[]), Err(Error::Shape { .. })));
    assert!(matches!(simd.argmin_axis(&[], &[3, 0], 1), Err(Error::Shape { .. })));
    assert!(matches!(simd.sum_axis(&x, &[2, 3], 2), Err(Error::Shape { .. })));
    assert!(matches!(simd.sum_axis(&x, &[2, 2], 0), Err(Error::Length { .. })));
    assert!(matches!(simd.sum_axis_into(&x, &[2, 3], 0, &mut [0.0; 2]), Err(Error::Length { .. })));
    assert!(matches!(simd.sum_axis(&x, &[usize::MAX, usize::MAX], 0), Err(Error::Overflow { .. })));
    assert!(matches!(simd.dot(&x, &x[1..]), Err(Error::Shape { .. })));
    assert!(matches!(simd.softmax(&x, 4), Err(Error::Shape { .. })));
    assert!(matches!(simd.softmax(&x, 0), Err(Error::Shape { .. })));
    assert!(matches!(simd.layer_norm(&x, &x[..3], &x[..2], 1e-5), Err(Error::Shape { .. })));
    assert!(matches!(simd.rms_norm(&x, &x, -1.0), Err(Error::Parameter { .. })));
    assert!(matches!(simd.rms_norm(&x, &x, f32::NAN), Err(Error::Parameter { .. })));
    assert!(matches!(simd.top_k(&x, 3, 4), Err(Error::Parameter { .. })));
    assert!(matches!(simd.top_k(&x, 3, usize::MAX), Err(Error::Parameter { .. })));
    let mut untouched = [7.0; 4];
    let found = simd.gather_into(&x, 2, &[2, 3], &mut untouched);
    assert_eq!(found, Err(Error::Index { op: "gather", position: 1, index: 3, bound: 3 }));
    assert_eq!(untouched, [7.0; 4]);
    assert!(simd.softmax(&[], 0).unwrap().is_empty());
    assert_eq!(simd.sum(&[]).unwrap(), 0.0);
    assert_eq!(simd.max_element(&[]).unwrap(), f32::NEG_INFINITY);
}

#[test]
fn small_answers() {
    let simd = Simd::new().unwrap();
    let x = [3.0, 1.0, 2.0, 9.0, 9.0, 4.0];
    assert_eq!(simd.sum_axis(&x, &[2, 3], 0).unwrap(), [12.0, 10.0, 6.0]);
    assert_eq!(simd.argmax_axis(&x, &[2, 3], 1).unwrap(), [0, 0]);
    assert_eq!(simd.argmax_axis(&x, &[2, 3], 0).unwrap(), [1, 1, 1]);
    assert_eq!(simd.norm_l2(&[3e30, 4e30]).unwrap(), 5e30);
    assert_eq!(simd.norm_l2(&[3e-40, 4e-40]).unwrap(), 5e-40);
    assert_eq!(simd.top_k(&x, 6, 3).unwrap(), (vec![9.0, 9.0, 4.0], vec![3, 4, 5]));
    assert_eq!(simd.gather(&x, 2, &[2, 0]).unwrap(), [9.0, 4.0, 3.0, 1.0]);
    assert_eq!(simd.softmax(&[0.0, 0.0, 1e4, -1e4], 2).unwrap(), [0.5, 0.5, 1.0, 0.0]);
}

#[test]
fn nothing_is_read_of_what_is_empty() {
    // There is no memory at the address. An access, even a masked one of no lane, would end the process under emulators
    // that perform it.
    for simd in simds() {
        for &reduction in Reduction::ALL {
            for (dims, axis) in
                [(&[3, 0][..], Some(1)), (&[0, 3], Some(0)), (&[2, 0, 5], Some(1)), (&[0], None), (&[0, 7], None)]
            {
                let op = Op::from(Reduce { reduction, axis });
                let result = simd.run(&op, &[Operand::f32(&[], dims).unwrap()]);
                match reduction {
                    Reduction::ArgMax | Reduction::ArgMin => assert!(matches!(result, Err(Error::Shape { .. }))),
                    _ => {
                        let expected: f32 = match reduction {
                            Reduction::Mean => f32::NAN,
                            Reduction::Max => f32::NEG_INFINITY,
                            Reduction::Min => f32::INFINITY,
                            Reduction::Prod => 1.0,
                            _ => 0.0,
                        };
                        let found = bits(&result.unwrap());
                        assert!(!found.is_empty());
                        assert!(found.iter().all(|&x| x == expected.to_bits()), "{} of {dims:?}", reduction.name());
                    }
                }
            }
        }
        assert_eq!(simd.sum(&[]).unwrap().to_bits(), 0);
        assert_eq!(simd.dot(&[], &[]).unwrap().to_bits(), 0);
        assert_eq!(simd.prod(&[]).unwrap(), 1.0);
    }
}
