//! Quotients and square roots are the correctly rounded ones, bit for bit what scalar division and `f32::sqrt` give: in
//! the hardest cases, and where operands or results are zeros, subnormal, infinite or NaN.

use kiln_ir::op::Elementwise;
use kiln_ir::op::reference::hard::{SIGNIFICANDS, hard_quotients, hard_squares};
use kiln_ir::op::reference::{Random, SPECIAL};
use kiln_ir::{Element, bf16, f16};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Kernels may treat several vectors at once, each in its own way: every operand is tried in each of this many places.
const GROUP: usize = 64;
/// Lanes of the longest vector.
const LANES: usize = 16;

/// Bits that compare equal for equal results: one pattern for every NaN.
fn bits(x: f32) -> u32 {
    if x.is_nan() { u32::MAX } else { x.to_bits() }
}

fn assert_same(op: Elementwise, simd: &Simd, operands: &[&[f32]], got: &[f32], want: impl Fn(usize) -> f32) {
    for (i, &got) in got.iter().enumerate() {
        let want = want(i);
        let operands = || operands.iter().map(|x| x[i]).collect::<Vec<_>>();
        assert!(bits(got) == bits(want), "{op:?} of {:?} on {}: {got:e}, not {want:e}", operands(), simd.isa());
    }
}

/// Compares the quotients of `a` and `b`, the reciprocals of `b` and the roots of `a`, on every instruction set.
fn compare(a: &[f32], b: &[f32]) {
    let mut got = vec![0.0; a.len()];
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        simd.div_into(a, b, &mut got).unwrap();
        assert_same(Elementwise::div(), &simd, &[a, b], &got, |i| a[i] / b[i]);
        simd.recip_into(b, &mut got).unwrap();
        assert_same(Elementwise::recip(), &simd, &[b], &got, |i| 1.0 / b[i]);
        simd.sqrt_into(a, &mut got).unwrap();
        assert_same(Elementwise::sqrt(), &simd, &[a], &got, |i| a[i].sqrt());
    }
}

#[test]
fn hardest_quotients_and_roots() {
    let (mut a, mut b) = (Vec::new(), Vec::new());
    let last = SIGNIFICANDS.end - 500..SIGNIFICANDS.end;
    for divisor in SIGNIFICANDS.step_by(2003).chain(last) {
        hard_quotients(divisor, 9, |x, y| {
            a.push(x);
            b.push(y);
        });
    }
    let squares = hard_squares(4000);
    b.extend(squares.iter().map(|_| 3.0));
    a.extend(squares);
    assert!(a.len() > 20_000, "{}", a.len());
    for shift in (0..GROUP).step_by(LANES) {
        // Powers of two change no rounding, only the algorithm that may be used.
        let scale = [1.0, 2.0f32.powi(-40), 2.0f32.powi(36), -4.0][shift / LANES];
        let moved = |x: &[f32], scale: f32| [&vec![1.5; shift][..], x].concat().iter().map(|x| x * scale).collect();
        let (a, b): (Vec<f32>, Vec<f32>) = (moved(&a, scale.abs()), moved(&b, scale.signum()));
        compare(&a, &b);
    }
}

#[test]
fn quotients_and_roots_of_every_magnitude() {
    let mut random = Random::new(11);
    // Every sixth exponent, the extreme ones, and those around which a kernel may change its algorithm.
    let borders = [1, 2, 75, 76, 77, 101, 103, 202, 203, 204, 253, 254, 255];
    let exponents: Vec<u32> = (0..256).step_by(6).chain(borders).collect();
    let (mut a, mut b) = (Vec::new(), Vec::new());
    for &of_a in &exponents {
        for &of_b in &exponents {
            for _ in 0..GROUP {
                let [x, y] = [of_a, of_b].map(|e| f32::from_bits(random.bits() as u32 & 0x807f_ffff | e << 23));
                // Roots of negative numbers are NaN and would hide their neighbours.
                a.push(if of_b % 4 == 0 { x } else { x.abs() });
                b.push(y);
            }
        }
    }
    compare(&a, &b);
}

#[test]
fn one_special_value_among_others() {
    let mut random = Random::new(12);
    for special in SPECIAL {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        for place in 0..GROUP {
            for is_dividend in [true, false] {
                let start = a.len();
                a.extend(random.uniforms(GROUP, 0.5, 6.0));
                b.extend(random.uniforms(GROUP, -6.0, -0.5));
                if is_dividend { a[start + place] = special } else { b[start + place] = special }
            }
        }
        compare(&a, &b);
    }
}

#[test]
fn threads_that_share_a_cast_give_what_one_gives() {
    let x = Random::new(17).uniforms(3 * 65_536 + 11, -300.0, 300.0);
    let simd = Simd::new().unwrap();
    fn same<T: Element + PartialEq, U: Element + PartialEq>(simd: &Simd, x: &[T]) -> Vec<U> {
        let one = simd.with_threads(1).cast::<T, U>(x).unwrap();
        assert!(simd.with_threads(3).cast::<T, U>(x).unwrap() == one, "{} to {}", T::DTYPE, U::DTYPE);
        one
    }
    let halves: Vec<f16> = same(&simd, &x);
    let bytes: Vec<i8> = same(&simd, &halves);
    let floats: Vec<f32> = same::<i8, bf16>(&simd, &bytes).iter().map(|x| x.to_f32()).collect();
    // To integers towards zero, and to the nearest that there is.
    let expected: Vec<f32> = halves.iter().map(|x| x.to_f32().trunc().clamp(-128.0, 127.0)).collect();
    assert!(floats == expected);
}
