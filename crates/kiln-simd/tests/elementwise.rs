//! Element-wise operations beyond the conformance suite: a sweep over the f32 numbers, and that a value depends on
//! nothing but its operands.

use kiln_ir::op::reference::{Random, SPECIAL, error_of};
use kiln_ir::op::{Bound, Elementwise, ElementwiseKind, Op, Operation};
use kiln_ir::{DataMut, Operand};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support;

const PARAMS: [f32; 2] = [-0.75, 1.5];

fn run(simd: &Simd, op: Elementwise, operands: &[Operand<'_>], out: &mut [f32]) {
    simd.run_into(&Op::from(op), operands, &mut [DataMut::F32(out)]).unwrap();
}

#[test]
fn functions_of_one_operand_keep_their_bound_all_over_the_numbers() {
    // Odd, because an even stride sees half of the mantissas.
    let stride = (4999 * support::step() as u64) | 1;
    let xs: Vec<f32> = (0..(1u64 << 32) / stride).map(|i| f32::from_bits((i * stride) as u32)).chain(SPECIAL).collect();
    let mut got = vec![0.0; xs.len()];
    for kind in ElementwiseKind::ALL.iter().filter(|kind| kind.arity() == 1) {
        let op = kind.with_params(PARAMS);
        let bound = op.contract().bound;
        let allowed = match bound {
            Bound::Exact => 0.0,
            Bound::Ulp(n) | Bound::Magnitude(n) => n,
        };
        let mut exact = Vec::with_capacity(xs.len());
        kind.exact(xs.len(), |_, i| f64::from(xs[i]), PARAMS, |value, _| exact.push(value));
        for isa in Isa::available() {
            run(&Simd::with_isa(isa).unwrap(), op, &[Operand::vector(&xs)], &mut got);
            for ((&x, &exact), &got) in xs.iter().zip(&exact).zip(&got) {
                let error = error_of(bound, got, exact, exact.abs());
                assert!(error.is_some_and(|e| e <= allowed), "{kind:?} on {isa} of {x:e}: {got:e}, exact {exact:e}");
                // A result that rounds to zero keeps the sign of the exact one.
                let zeros = got == 0.0 && exact as f32 == 0.0;
                assert!(!zeros || got.is_sign_negative() == exact.is_sign_negative(), "{kind:?} on {isa} of {x:e}");
            }
        }
    }
}

#[test]
fn every_nan_gives_nan() {
    let nans: Vec<f32> =
        (0..23).flat_map(|i| [0x7f80_0000 | 1 << i, 0xffc0_0000 | 1 << i]).map(f32::from_bits).collect();
    // With 2 as the other operand, because 1 to the power of NaN is 1.
    let numbers = vec![2.0; nans.len()];
    for &kind in ElementwiseKind::ALL {
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            for position in 0..kind.arity() {
                let mut operands = vec![Operand::vector(&numbers); kind.arity()];
                operands[position] = Operand::vector(&nans);
                let mut out = vec![0.0; nans.len()];
                run(&simd, kind.with_params(PARAMS), &operands, &mut out);
                assert!(out.iter().all(|x| x.is_nan()), "{kind:?} on {isa}, operand {position}: {out:?}");
            }
        }
    }
}

#[test]
fn lengths_must_agree() {
    let simd = Simd::new().unwrap();
    assert!(simd.add(&[1.0], &[1.0, 2.0, 3.0]).is_err());
    assert!(simd.add_into(&[1.0; 3], &[1.0; 3], &mut [0.0; 2]).is_err());
    assert_eq!(simd.clip(&[-2.0, 0.5, 7.0], -1.0, 1.0).unwrap(), [-1.0, 0.5, 1.0]);
}

/// Results larger than the caches are written past them.
#[test]
#[cfg(target_arch = "x86_64")] // the other instruction sets have no such stores
fn results_past_the_caches_have_the_same_bits() {
    const SHORT: usize = 1000;
    // Results of this many elements are assumed to exceed the caches.
    let n = (8 << 20) + 5;
    let x: Vec<f32> = (0..n).map(|i| (i % 977) as f32 * 0.37 - 30.0).collect();
    let mut out = vec![9.0; n + 1];
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        for (from, offset) in [(0, 0), (1, 1), (2, 0)] {
            let (a, b) = (&x[from..], &x[..n - from]);
            let out = &mut out[offset..offset + n - from];
            simd.mul_into(a, b, out).unwrap();
            for ((a, b), out) in a.chunks(SHORT).zip(b.chunks(SHORT)).zip(out.chunks(SHORT)) {
                assert_eq!(simd.mul(a, b).unwrap(), out, "mul on {isa}, from {from} to {offset}");
            }
            // Quotients are computed four vectors at a time in short results, tanh two.
            simd.div_into(a, b, out).unwrap();
            for ((a, b), out) in a.chunks(SHORT).zip(b.chunks(SHORT)).zip(out.chunks(SHORT)) {
                assert_eq!(simd.div(a, b).unwrap(), out, "div on {isa}, from {from} to {offset}");
            }
            simd.tanh_into(a, out).unwrap();
            for (a, out) in a.chunks(SHORT).zip(out.chunks(SHORT)) {
                assert_eq!(simd.tanh(a).unwrap(), out, "tanh on {isa}, from {from} to {offset}");
            }
        }
    }
}

#[test]
fn limits_and_signs_of_zero() {
    let simd = Simd::new().unwrap();
    let one = |op: Elementwise, x: f32| {
        let mut out = [f32::NAN];
        run(&simd, op, &[Operand::vector(&[x])], &mut out);
        out[0].to_bits()
    };
    let negative_zero = (-0.0f32).to_bits();
    let weighted = [
        Elementwise::swish(),
        Elementwise::gelu(),
        Elementwise::gelu_tanh(),
        Elementwise::hard_swish(),
        Elementwise::mish(),
    ];
    for op in weighted {
        assert_eq!(one(op, f32::NEG_INFINITY), negative_zero, "{op:?}");
        assert_eq!(one(op, f32::INFINITY), f32::INFINITY.to_bits(), "{op:?}");
        assert_eq!(one(op, f32::MAX), f32::MAX.to_bits(), "{op:?}");
        assert_eq!(one(op, f32::MIN), negative_zero, "{op:?}");
        assert_eq!(one(op, -0.0), negative_zero, "{op:?}");
        assert_eq!(one(op, 0.0), 0, "{op:?}");
    }
    assert_eq!(one(Elementwise::tanh(), -0.0), negative_zero);
    assert_eq!(one(Elementwise::elu(1.0), -0.0), negative_zero);
    assert_eq!(one(Elementwise::relu(), -0.0), 0);
    assert_eq!(one(Elementwise::ln(), -0.0), f32::NEG_INFINITY.to_bits());
    assert_eq!(one(Elementwise::rsqrt(), -0.0), f32::NEG_INFINITY.to_bits());
    assert_eq!(one(Elementwise::exp(), f32::NEG_INFINITY), 0);
    assert_eq!(one(Elementwise::sigmoid(), f32::INFINITY), 1.0f32.to_bits());
}

#[test]
fn lerp_does_not_overflow_on_its_way() {
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        assert_eq!(simd.lerp(&[f32::MIN, -3e38], &[f32::MAX, 3e38], 0.5).unwrap(), [0.0, 0.0], "{isa}");
        assert_eq!(simd.lerp(&[f32::MAX], &[f32::INFINITY], -0.75).unwrap(), [f32::NEG_INFINITY], "{isa}");
        let [x] = simd.lerp(&[-2e38], &[2.5e38], 0.9).unwrap()[..] else { panic!() };
        assert!((f64::from(x) / 2.05e38 - 1.0).abs() < 1e-6, "{isa}: {x:e}");
    }
}

/// An operand that repeats gives what the operand written out gives, in every position.
#[test]
fn repeated_operands_are_as_if_written_out() {
    let mut random = Random::new(5);
    for (outer, middle, inner) in
        [(1, 1, 1), (2, 1, 3), (700, 1, 3), (5, 7, 3), (3, 2, 1023), (4, 1, 1024), (3, 1, 1025), (2, 2, 3000)]
    {
        let whole = random.uniforms(outer * middle * inner, -4.0, 4.0);
        let plane = random.uniforms(middle * inner, -4.0, 4.0);
        let row = random.uniforms(inner, -4.0, 4.0);
        let written = |x: &[f32]| x.iter().copied().cycle().take(whole.len()).collect::<Vec<f32>>();
        let dims: [&[usize]; 3] = [&[outer, middle, inner], &[middle, inner], &[inner]];
        let data = [&whole, &plane, &row];
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            for kind in [ElementwiseKind::Sub, ElementwiseKind::Fma] {
                for order in [[0, 1, 2], [2, 0, 1], [1, 2, 0]] {
                    let order: Vec<usize> = order.into_iter().filter(|&i| i < 2 || kind.arity() == 3).collect();
                    let short: Vec<_> = order.iter().map(|&i| Operand::f32(data[i], dims[i]).unwrap()).collect();
                    let long: Vec<_> = order.iter().map(|&i| written(data[i])).collect();
                    let long: Vec<_> = long.iter().map(|x| Operand::f32(x, dims[0]).unwrap()).collect();
                    let (mut a, mut b) = (vec![0.0; whole.len()], vec![0.0; whole.len()]);
                    run(&simd, kind.with_params(PARAMS), &short, &mut a);
                    run(&simd, kind.with_params(PARAMS), &long, &mut b);
                    assert_eq!(a, b, "{kind:?} on {isa}: {outer} {middle} {inner}");
                }
            }
        }
    }
}

#[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
mod properties {
    use super::*;
    use proptest::prelude::*;

    /// Bits that compare equal for equal results: one pattern for every NaN.
    fn bits(x: f32) -> u32 {
        if x.is_nan() { u32::MAX } else { x.to_bits() }
    }

    proptest! {
        /// A value depends neither on its place nor on the number of elements nor on the alignment of the slices.
        #[test]
        fn a_value_depends_on_its_operands_alone(
            values in proptest::collection::vec(any::<[f32; 3]>(), 1..150),
            offsets in [0usize..17, 0..17, 0..17, 0..17],
            kind in proptest::sample::select(ElementwiseKind::ALL),
            params in any::<[f32; 2]>(),
        ) {
            let op = kind.with_params(params);
            let n = values.len();
            let columns: Vec<Vec<f32>> = (0..3)
                .map(|o| std::iter::repeat_n(0.0, offsets[o]).chain(values.iter().map(|v| v[o])).collect())
                .collect();
            for isa in Isa::available() {
                let simd = Simd::with_isa(isa).unwrap();
                let operands: Vec<_> = (0..kind.arity()).map(|o| Operand::vector(&columns[o][offsets[o]..])).collect();
                let mut out = vec![7.0f32; offsets[3] + n + 5];
                run(&simd, op, &operands, &mut out[offsets[3]..offsets[3] + n]);
                prop_assert!(out[..offsets[3]].iter().chain(&out[offsets[3] + n..]).all(|&x| x == 7.0), "wrote beyond");
                for (i, value) in values.iter().enumerate() {
                    let alone: Vec<_> = (0..kind.arity()).map(|o| Operand::vector(&value[o..=o])).collect();
                    let mut one = [0.0];
                    run(&simd, op, &alone, &mut one);
                    prop_assert_eq!(bits(out[offsets[3] + i]), bits(one[0]), "{:?} on {} at {}", kind, isa, i);
                }
            }
        }
    }
}
