//! Sine and cosine. An angle is `n π/2 + r` with `r` in ±π/4; `n` modulo 4 says which of the two functions of `r` it is, and of
//! which sign.
//!
//! Up to a [`limit`] the multiple of π/2 is subtracted in parts (Cody and Waite 1980), so that nothing cancels that was rounded. Beyond
//! it the angle is multiplied by the bits of 2/π that matter to it (Payne and Hanek 1983), lane by lane in integers.

use std::f32::consts::FRAC_2_PI;

use super::polynomial;
use crate::vector::{Lanewise, ROUNDER};

/// π/2 as a sum. With a fused multiply-add, parts are whole f32; otherwise the first three have 12 bits, so that their
/// products with `n` are exact.
const HALF_PI: [f32; 3] = [1.570_796_4, -4.371_139e-8, -1.715_124_5e-15];
const HALF_PI_BY_12_BITS: [f32; 4] = [1.570_800_8, -4.453_584_6e-6, -8.706_138e-10, 6.223_372e-14];

/// The largest angle that is reduced by parts: `n` has 16 bits, or 12.
const fn limit<V: Lanewise>() -> f32 {
    if V::FUSED { 100_000.0 } else { 6400.0 }
}

/// An angle after reduction.
struct Turned<V> {
    n: V,
    r: V,
    /// A correction to be added to `r`.
    low: V,
}

#[inline(always)]
fn turned<V: Lanewise>(x: V) -> Turned<V> {
    let rounder = x.of(ROUNDER);
    let n = x.mul_add(x.of(FRAC_2_PI), rounder) - rounder;
    let parts: &[f32] = if const { V::FUSED } { &HALF_PI } else { &HALF_PI_BY_12_BITS };
    let (mut r, mut low) = (x, x.of(0.0));
    for &part in parts {
        let next = (-n).mul_add(x.of(part), r);
        // The rounding error of the difference, for parts whose product with `n` is exact. Without fused multiply-add
        // only the last two round.
        if const { !V::FUSED } {
            low = low + (-n).mul_add(x.of(part), r - next);
        }
        r = next;
    }
    let large = x.of(const { limit::<V>() }).lt(x.abs());
    if !V::any(large) {
        return Turned { n, r, low };
    }
    let (all_n, all_r) = x.each(turned_exactly);
    Turned { n: V::select(large, all_n, n), r: V::select(large, all_r, r), low: V::select(large, x.of(0.0), low) }
}

/// The bits of 1 / 2π below the point, after 32 zeros.
const INVERSE: [u32; 9] =
    [0, 0x28be_60db, 0x9391_054a, 0x7f09_d5f4, 0x7d4d_3770, 0x36d8_a566, 0x4f10_e410, 0x7f94_58ea, 0xf7ae_f158];

/// `n` modulo 4 and `r` of an angle that is at least 1; 0 and the angle for other finite ones; NaN for an infinite one.
fn turned_exactly(x: f32) -> (f32, f32) {
    let exponent = x.to_bits() >> 23 & 255;
    if !x.is_finite() || exponent < 127 {
        return (0.0, if x.is_infinite() { f32::NAN } else { x });
    }
    // x is m 2^(s - 31), with 32 bits in m; only the 96 bits of 1 / 2π from bit s on matter: those above give whole
    // turns.
    let (m, s) = (u64::from(x.to_bits() << 8 | 1 << 31), exponent - 126);
    let word = |i: usize| {
        let pair = u64::from(INVERSE[i]) << 32 | u64::from(INVERSE[i + 1]);
        pair << (s % 32) >> 32
    };
    let at = (s / 32) as usize;
    let turns = (m.wrapping_mul(word(at)) << 32).wrapping_add(m * word(at + 1)).wrapping_add((m * word(at + 2)) >> 32);
    // The first two bits count quarters of a turn, the others are a fraction of a quarter, as a signed number.
    let n = turns.wrapping_add(1 << 61) >> 62;
    let r = (turns << 2).cast_signed() as f64 * (std::f64::consts::FRAC_PI_2 / 18_446_744_073_709_551_616.0);
    let (n, r) = (n as f32, r as f32);
    if x < 0.0 { (-n, -r) } else { (n, r) }
}

/// `sin(n π/2 + r + low)`
#[inline(always)]
fn sine<V: Lanewise>(n: V, r: V, low: V) -> V {
    // Fits of the Cephes library and of N. Juffa.
    let square = r * r;
    let p = polynomial(square, [-0.166_666_55, 0.008_332_161, -0.000_195_152_96]);
    let sine = r + (r * square).mul_add(p, low);
    let p = polynomial(square, [0.041_666_657, -0.001_388_773, 2.446_770_7e-5]);
    let cosine = square.mul_add(r.of(-0.5), r.of(1.0)) + (square * square).mul_add(p, -(r * low));
    // n modulo 4, in -2..=2.
    let rounder = r.of(ROUNDER);
    let quarter = n - r.of(4.0) * (n.mul_add(r.of(0.25), rounder) - rounder);
    let (zero, sign) = (r.of(0.0), r.of(-0.0));
    let sign = V::select(quarter.lt(zero), sign, V::select(r.of(1.5).lt(quarter), sign, zero));
    V::select(quarter.abs().eq(r.of(1.0)), cosine, sine).xor(sign)
}

/// `sin x`
#[inline(always)]
pub(crate) fn sin<V: Lanewise>(x: V) -> V {
    let Turned { n, r, low } = turned(x);
    // The polynomial loses the sign of -0.
    V::select(x.eq(x.of(0.0)), x, sine(n, r, low))
}

/// `cos x`
#[inline(always)]
pub(crate) fn cos<V: Lanewise>(x: V) -> V {
    let Turned { n, r, low } = turned(x);
    sine(n + x.of(1.0), r, low)
}
