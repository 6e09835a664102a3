//! Sine and cosine. An angle is `n π/2 + r` with `r` in ±π/4; `n` modulo 4 says which of the two functions of `r` it is, and of
//! which sign.
//!
//! Up to [`LIMIT`] the multiple of π/2 is subtracted in parts (Cody and Waite 1980), so that nothing cancels that was rounded. Beyond
//! it the angle is multiplied by the bits of 2/π that matter to it (Payne and Hanek 1983), in integers.

use super::{F32, ROUNDER, fma, polynomial};
use crate::Value;

/// π/2 as a sum.
const HALF_PI: [f32; 3] = [1.570_796_4, -4.371_139e-8, -1.715_124_5e-15];

/// The largest angle that is reduced by parts: `n` has 16 bits.
const LIMIT: f32 = 100_000.0;

/// The bits of 1 / 2π below the point, after 32 zeros.
const INVERSE: [u32; 8] =
    [0, 0x28be_60db, 0x9391_054a, 0x7f09_d5f4, 0x7d4d_3770, 0x36d8_a566, 0x4f10_e410, 0x7f94_58ea];

/// `n`, modulo 4, and `r`.
fn turned(x: F32<'_>) -> (Value<'_, u32>, F32<'_>) {
    let k = x.builder;
    let shifted = fma(x, std::f32::consts::FRAC_2_PI, ROUNDER);
    let whole = shifted - ROUNDER;
    let n = k.variable(k.bits_u32(shifted));
    let r = k.variable(HALF_PI.iter().fold(x, |r, &part| fma(whole, -part, r)));
    let a = k.abs(x);
    k.if_(k.and(k.gt(a, LIMIT), k.lt(a, f32::INFINITY)), || {
        let (exact_n, exact_r) = turned_exactly(x);
        n.set(exact_n);
        r.set(exact_r);
    });
    (n.get(), r.get())
}

/// `n`, modulo 4, and `r` of a finite angle that is beyond [`LIMIT`].
fn turned_exactly(x: F32<'_>) -> (Value<'_, u32>, F32<'_>) {
    let k = x.builder;
    let bits = k.bits_u32(x);
    // x is m 2^(s - 31), with 32 bits in m; only the 96 bits of 1 / 2π from bit s on matter: those above give whole
    // turns.
    let m = k.or(bits << 8, 1 << 31);
    let s = k.and(bits >> 23, 255) - 126;
    let (at, shift) = (s >> 5, k.and(s, 31));
    let words: [Value<'_, u32>; 4] = std::array::from_fn(|word| {
        let first = k.constant(INVERSE[word]);
        (1..5).fold(first, |found, i| k.selp(INVERSE[i + word], found, k.eq(at, i as u32)))
    });
    let window = |word: usize| {
        let pair = k.or(k.cvt_u64(words[word]) << 32, k.cvt_u64(words[word + 1]));
        k.cvt_u32((pair << shift) >> 32)
    };
    let turns = (k.mul_wide(m, window(0)) << 32) + k.mul_wide(m, window(1)) + (k.mul_wide(m, window(2)) >> 32);
    // The first two bits count quarters of a turn, the others are a fraction of a quarter, as a signed number.
    let n = k.cvt_u32((turns + (1u64 << 61)) >> 62);
    let part = turns << 2;
    let negative = k.ge(part, 1u64 << 63);
    let size = k.cvt_rn_f64(k.selp(k.sub(0u64, part), part, negative));
    let r = k.cvt_rn_f32(size * (std::f64::consts::FRAC_PI_2 / 18_446_744_073_709_551_616.0));
    let below = k.lt(x, 0.0);
    (k.selp(k.sub(0u32, n), n, below), k.selp(-r, r, k.xor(negative, below)))
}

/// `sin(n π/2 + r)`
fn sine<'k>(n: Value<'k, u32>, r: F32<'k>) -> F32<'k> {
    let k = r.builder;
    let square = r * r;
    let p = polynomial(square, [-0.166_666_55, 0.008_332_161, -0.000_195_152_96]);
    let sine = fma(r * square, p, r);
    let p = polynomial(square, [0.041_666_657, -0.001_388_773, 2.446_770_7e-5]);
    let cosine = fma(square * square, p, fma(square, -0.5, 1.0));
    let y = k.selp(cosine, sine, k.eq(k.and(n, 1), 1));
    k.bits_f32(k.xor(k.bits_u32(y), k.and(n, 2) << 30))
}

/// `sin x`
pub(in crate::kernels) fn sin(x: F32<'_>) -> F32<'_> {
    let (n, r) = turned(x);
    // The polynomial loses the sign of -0.
    x.builder.selp(x, sine(n, r), x.builder.eq(x, 0.0))
}

/// `cos x`
pub(in crate::kernels) fn cos(x: F32<'_>) -> F32<'_> {
    let (n, r) = turned(x);
    sine(n + 1, r)
}
