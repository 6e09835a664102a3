//! Elements of x as 16-bit integers with the upper and lower bytes apart, for products of bytes.
//!
//! `x ≈ unit · integer`, where 32 elements share the unit `max |x| / 32 639`. That is within half a unit, which the contract of
//! products with weights in blocks allows.

use super::Word;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Builder, Value};

/// Elements that share a unit.
pub(super) const GROUP: u32 = 32;
/// Elements of a vector.
pub(super) const VECTOR: u32 = 4;
/// The largest integer for which both bytes fit a signed byte.
const LARGEST: f32 = 32_639.0;
/// Added to a number, it leaves the nearest integer in the lowest bits.
const ROUNDS: f32 = 12_582_912.0;
/// Units exist for zero, and for largest magnitudes from 2⁻⁹⁰ to 2¹²⁶, so that neither a unit nor its inverse is
/// subnormal.
const LEAST: u32 = (127 - 90) << 23;
const MOST: u32 = (127 + 126) << 23;

/// The rounded elements of a group in a lane.
pub(super) struct Rounded<'k> {
    k: &'k Builder,
    /// Integers plus [`ROUNDS`].
    integers: Vec<[F32<'k>; VECTOR as usize]>,
    masks: Vec<u32>,
    /// The factor of the integers; NaN if elements are not finite, or tiny, and have no integers.
    pub(super) unit: F32<'k>,
}

impl<'k> Rounded<'k> {
    /// Rounds vectors of a group; the other vectors are in lanes whose number differs from this one's by sums of
    /// `masks`. `None` for no vectors.
    pub(super) fn new(k: &'k Builder, x: &[[F32<'k>; VECTOR as usize]], masks: &[u32]) -> Option<Self> {
        let magnitudes = x.iter().flatten().map(|&x| k.bits_u32(x) & 0x7fff_ffffu32).collect();
        let mut most = team::tree(magnitudes, |a, b| k.max(a, b))?;
        for &mask in masks {
            most = k.max(most, k.shfl_bfly(most, mask, WARP - 1, u32::MAX));
        }
        let zeros = k.eq(most, 0);
        let fits = k.or(zeros, k.le(most - LEAST, MOST - LEAST));
        let greatest = k.bits_f32(most);
        let over = k.selp(0.0f32, k.rcp_approx(greatest) * LARGEST, zeros);
        let rounds = k.constant::<f32>(ROUNDS);
        let integers = x.iter().map(|x| x.map(|x| k.fma(x, over, rounds))).collect();
        let unit = k.selp(greatest * (1.0 / LARGEST), f32::NAN, fits);
        Some(Self { k, integers, masks: masks.to_vec(), unit })
    }

    /// One byte of each integer: those that `pair` selects from `bits`.
    fn bytes(&self, bits: impl Fn(Word<'k>) -> Word<'k>, pair: u32) -> Vec<Word<'k>> {
        let k = self.k;
        let packed = |integers: &[F32<'k>; VECTOR as usize]| {
            let [a, b, c, d] = integers.map(|integer| bits(k.bits_u32(integer)));
            k.prmt(k.prmt(a, b, pair), k.prmt(c, d, pair), 0x5410u32)
        };
        self.integers.iter().map(packed).collect()
    }

    /// The upper bytes of each vector. The lower bytes are signed.
    pub(super) fn upper(&self) -> Vec<Word<'k>> {
        self.bytes(|bits| bits + 128u32, 0x0051)
    }

    /// The lower bytes of each vector.
    pub(super) fn lower(&self) -> Vec<Word<'k>> {
        self.bytes(|bits| bits, 0x0040)
    }

    /// The sum of the integers of the group.
    pub(super) fn sum(&self) -> F32<'k> {
        let k = self.k;
        let integers = self.integers.iter().flatten().map(|&x| x - ROUNDS).collect();
        let own: Value<'k, f32> = team::tree(integers, |a, b| a + b).unwrap_or_else(|| k.constant(0.0));
        self.masks.iter().fold(own, |sum, &mask| sum + k.shfl_bfly(sum, mask, WARP - 1, u32::MAX))
    }
}
