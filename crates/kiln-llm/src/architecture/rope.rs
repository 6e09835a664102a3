//! The rotations of queries and keys: their settings from the keys of a file, and the factors that divide their angles.

use std::f64::consts::PI;

use kiln::Tensor;
use kiln::op::{Rope, RopeStyle};

use crate::keys::Keys;
use crate::tensor_source::Source;
use crate::{Error, Result};

/// A rotation by position: pair i of n elements at position p is rotated by the angle `p θ^(-2i/n) / fᵢ`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Rotation {
    /// θ.
    pub(crate) theta: f32,
    pub(crate) scaling: Scaling,
    /// The factor of sines and cosines.
    pub(crate) magnitude: f32,
    /// The original context in tokens, before the model was extended to longer ones.
    pub(crate) original: usize,
}

/// The factors f of a rotation.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) enum Scaling {
    /// The tensor `rope_freqs`, or `rope_factors_short` and `rope_factors_long`; 1 if the file has neither.
    Tensors,
    /// The tensors `rope_factors_short` and `rope_factors_long`, which the file must have.
    LongRope,
    /// One factor for all pairs.
    Linear { factor: f32 },
    /// 1 for pairs that turn more than `fast` times in the original context, `factor` for those that turn less than
    /// `slow` times, and a mixture for pairs between them: a ramp, whose ends are rounded to whole pairs if `is_whole`.
    /// `mix` is 1 in most models; 0 makes it linear.
    Yarn { factor: f32, fast: f32, slow: f32, mix: f32, is_whole: bool },
}

impl Rotation {
    /// Reads the rotation of layers without a window. `is_whole`: whether the ramp of YaRN ends at whole pairs in files
    /// without the key.
    ///
    /// # Errors
    /// [`Error::Model`] for an unsupported kind of scaling, and for invalid numbers; [`Error::File`] for values of
    /// another type.
    pub(crate) fn read(keys: &Keys<'_>, context: usize, is_whole: bool) -> Result<Self> {
        let refused = |reason: String| Err(keys.refused(reason));
        let theta = keys.positive("rope.freq_base")?.unwrap_or(10_000.0);
        let original = keys.find_count("rope.scaling.original_context_length")?.unwrap_or(context);
        if original == 0 {
            return refused("rope.scaling.original_context_length is zero".to_owned());
        }
        // Files of 2023 have the second name. Zero means no factor.
        let factor = match keys.find_number("rope.scaling.factor")? {
            None => keys.find_number("rope.scale_linear")?,
            factor => factor,
        };
        let factor = factor.filter(|&factor| factor != 0.0);
        if let Some(factor) = factor.filter(|factor| !(factor.is_normal() && *factor > 0.0)) {
            return refused(format!("rope.scaling.factor is {factor}, which is not a positive number"));
        }
        let magnitude = keys.positive("rope.scaling.attn_factor")?.unwrap_or(1.0);
        let rotation = |scaling, magnitude| Ok(Self { theta, scaling, magnitude, original });
        match keys.find_text("rope.scaling.type")?.unwrap_or("linear") {
            "none" => rotation(Scaling::Tensors, magnitude),
            "linear" => {
                let linear = |factor| Scaling::Linear { factor };
                rotation(factor.filter(|&factor| factor != 1.0).map_or(Scaling::Tensors, linear), magnitude)
            }
            "longrope" if factor.is_none_or(|factor| factor == 1.0) => rotation(Scaling::LongRope, magnitude),
            "longrope" => {
                refused("positions scaled by the factors of longrope and by another are not supported".to_owned())
            }
            "yarn" => {
                let factor = factor.unwrap_or(1.0);
                let fast = keys.positive("rope.scaling.yarn_beta_fast")?.unwrap_or(32.0);
                let slow = keys.positive("rope.scaling.yarn_beta_slow")?.unwrap_or(1.0);
                let mix = keys.find_number("rope.scaling.yarn_ext_factor")?.unwrap_or(1.0);
                if !(0.0..=1.0).contains(&mix) {
                    return refused(format!("rope.scaling.yarn_ext_factor is {mix}, which is not between 0 and 1"));
                }
                let is_whole = keys.find_truth("rope.scaling.yarn_truncate")?.unwrap_or(is_whole);
                if theta <= 1.0 {
                    return refused(format!("rope.freq_base is {theta}, and yarn needs one above 1"));
                }
                let grown = |by: f32| if factor > 1.0 { 0.1 * by * factor.ln() + 1.0 } else { 1.0 };
                // Converters write this for a model that states its magnitude, or that keeps that of its original
                // context.
                let own = keys.positive("rope.scaling.yarn_attn_factor")?;
                let all = keys.find_number("rope.scaling.yarn_log_multiplier")?.unwrap_or(0.0);
                if !(all.is_finite() && all >= 0.0) {
                    return refused(format!(
                        "rope.scaling.yarn_log_multiplier is {all}, which is negative or not finite"
                    ));
                }
                let yarn = own.unwrap_or_else(|| grown(1.0) / grown(all));
                rotation(Scaling::Yarn { factor, fast, slow, mix, is_whole }, magnitude * yarn)
            }
            other => refused(format!("positions scaled by {} are not supported", other.escape_debug())),
        }
    }

    /// Reads the rotation of layers with a window that do not scale their angles.
    ///
    /// # Errors
    /// The errors of [`Rotation::read`].
    pub(crate) fn read_unscaled(keys: &Keys<'_>, theta: f32, original: usize) -> Result<Self> {
        let theta = keys.positive("rope.freq_base_swa")?.unwrap_or(theta);
        Ok(Self { theta, scaling: Scaling::Linear { factor: 1.0 }, magnitude: 1.0, original })
    }

    /// The factors of the pairs of n elements; `None` if they come from tensors or are all 1.
    fn factors(&self, n: usize) -> Option<Vec<f32>> {
        match self.scaling {
            Scaling::Tensors | Scaling::LongRope => None,
            Scaling::Linear { factor: 1.0 } => None,
            Scaling::Linear { factor } => Some(vec![factor; n / 2]),
            Scaling::Yarn { factor, fast, slow, mix, is_whole } => {
                // The pair that makes this many turns in the original context.
                let pair = |turns: f32| {
                    let radians = 2.0 * PI * f64::from(turns);
                    n as f64 * (self.original as f64 / radians).ln() / (2.0 * f64::from(self.theta).ln())
                };
                let (low, high) = (pair(fast), pair(slow));
                let (low, high) = if is_whole { (low.floor(), high.ceil()) } else { (low, high) };
                let (low, high) = (low.max(0.0), high.min(n as f64 - 1.0));
                let of = |i: usize| {
                    let past = (i as f64 - low) / (high - low).max(1e-3);
                    let kept = (1.0 - past.clamp(0.0, 1.0)) * f64::from(mix);
                    (1.0 / ((1.0 - kept) / f64::from(factor) + kept)) as f32
                };
                Some((0..n / 2).map(of).collect())
            }
        }
    }
}

/// A rotation as an operation, with the factors that divide its angles.
#[derive(Debug)]
pub(crate) struct Rotary {
    pub(crate) op: Rope,
    factors: Factors,
}

#[derive(Debug)]
enum Factors {
    None,
    All(Tensor),
    /// The second for contexts longer than the original one.
    ByContext {
        short: Tensor,
        long: Tensor,
        original: usize,
    },
}

impl Rotary {
    /// The rotation of `n` elements of each head. Uses the file's factors if `tensors` is set.
    ///
    /// # Errors
    /// [`Error::Model`] if the file has factors of two kinds, or factors of another shape.
    pub(crate) fn load(
        source: &Source,
        rotation: &Rotation,
        style: RopeStyle,
        n: usize,
        tensors: bool,
    ) -> Result<Self> {
        let Rotation { theta, magnitude, original, scaling } = *rotation;
        let op = Rope { theta: theta.into(), style, rotated: Some(n), magnitude: magnitude.into(), ..Rope::default() };
        let (short, long) = ("rope_factors_short.weight", "rope_factors_long.weight");
        let pairs = [n / 2];
        let by_context = tensors && (scaling == Scaling::LongRope || source.has(short) || source.has(long));
        let all = if tensors { source.find("rope_freqs.weight", &pairs)? } else { None };
        let factors = match (all, rotation.factors(n)) {
            (Some(_), Some(_)) => {
                return Err(Error::model(
                    "weights",
                    "rope_freqs.weight and rope.scaling both scale positions; one of them is expected",
                ));
            }
            (Some(_), None) | (None, Some(_)) if by_context => {
                return Err(Error::model("weights", format!("{long} is not the only source of factors")));
            }
            (Some(all), None) => Factors::All(all),
            (None, Some(computed)) => Factors::All(Tensor::from_vec(computed, &pairs)?),
            (None, None) if by_context => Factors::ByContext {
                short: source.tensor(short, &pairs)?,
                long: source.tensor(long, &pairs)?,
                original,
            },
            (None, None) => Factors::None,
        };
        Ok(Self { op, factors })
    }

    /// The factors for a context of this many tokens.
    pub(crate) fn factors(&self, context: usize) -> Option<&Tensor> {
        match &self.factors {
            Factors::None => None,
            Factors::All(factors) => Some(factors),
            Factors::ByContext { short, long, original } => Some(if context > *original { long } else { short }),
        }
    }
}
