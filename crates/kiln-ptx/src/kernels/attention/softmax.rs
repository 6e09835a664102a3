//! The softmax of rows whose scores come a few at a time (Milakov and Gimelshein 2018, arXiv 1805.02867).

use kiln_ir::{Error, Result};

use crate::kernels::math::F32;
use crate::kernels::team::{WARP, tree};
use crate::{Builder, PtxType, Value, Variable};

/// Weights in f16 are scaled by 2¹⁵, so that weights below 2⁻¹⁴ of the greatest keep their bits.
const RAISED: f32 = 15.0;

/// Greatest scores, in units of ln 2, from which rounding one would affect weights, or make them vanish: it is then
/// subtracted from the others before they are scaled, which takes an additional instruction for each.
const LARGE: f32 = (1 << 20) as f32;

/// The softmax state of the four lanes that share a row.
pub(super) struct OnlineSoftmax<'k> {
    /// The greatest score.
    greatest: Variable<'k, f32>,
    /// The sum of this lane's weights relative to it.
    total: Variable<'k, f32>,
}

impl<'k> OnlineSoftmax<'k> {
    pub(super) fn new(k: &'k Builder) -> Self {
        Self { greatest: k.variable(f32::NEG_INFINITY), total: k.variable(0.0f32) }
    }

    /// Resets the state.
    pub(super) fn clear(&self) {
        self.greatest.set(f32::NEG_INFINITY);
        self.total.set(0.0);
    }

    /// The weights of further scores, to be rounded to `ty`, and the factor of all earlier sums. `scale` is in units of
    /// ln 2.
    pub(super) fn weigh(
        &self,
        k: &'k Builder,
        scores: &[F32<'k>],
        scale: F32<'k>,
        ty: PtxType,
    ) -> (Vec<F32<'k>>, F32<'k>) {
        let before = self.greatest.get();
        let greatest = tree(scores.to_vec(), |a, b| k.max(a, b)).map_or(before, |greatest| k.max(before, greatest));
        let greatest = quad(k, greatest, |a, b| k.max(a, b));
        self.greatest.set(greatest);
        // If all scores are -∞, nothing is subtracted: the weights are 0.
        let origin = k.selp(0.0, greatest, k.eq(greatest, f32::NEG_INFINITY));
        let kept = k.ex2((before - origin) * scale);
        let product = origin * scale;
        let scores: Vec<Variable<'k, f32>> = scores.iter().map(|&score| k.variable(score)).collect();
        let base = k.variable(-product);
        k.if_(k.ge(k.abs(product), LARGE), || {
            scores.iter().for_each(|score| score.set(k.sub(*score, origin)));
            base.set(0.0);
        });
        let base = if ty == PtxType::F16 { base.get() + RAISED } else { base.get() };
        let weights: Vec<_> = scores.iter().map(|&score| k.ex2(k.fma(score, scale, base))).collect();
        if let Some(total) = tree(weights.clone(), |a, b| a + b) {
            self.total.set(k.fma(self.total, kept, total));
        }
        (weights, kept)
    }

    /// The greatest score of the row.
    pub(super) fn greatest(&self) -> Value<'k, f32> {
        self.greatest.get()
    }

    /// The sum of the weights of the row.
    pub(super) fn total(&self, k: &'k Builder) -> F32<'k> {
        quad(k, self.total.get(), |a, b| a + b)
    }
}

/// The factor of scores whose weights are powers of two.
///
/// # Errors
/// [`Error::Parameter`] for a scale that reverses the order of scores, or is not finite.
pub(super) fn base_2(scale: f32) -> Result<f32> {
    let factor = scale * std::f32::consts::LOG2_E;
    if factor.is_finite() && factor > 0.0 {
        return Ok(factor);
    }
    Err(Error::Parameter { op: "attention", reason: format!("the scale must be finite and above 0, not {scale}") })
}

/// Combines a value of the four lanes that share a row.
fn quad<'k>(k: &'k Builder, value: F32<'k>, combine: impl Fn(F32<'k>, F32<'k>) -> F32<'k>) -> F32<'k> {
    [1u32, 2].into_iter().fold(value, |value, lanes| combine(value, k.shfl_bfly(value, lanes, WARP - 1, u32::MAX)))
}
