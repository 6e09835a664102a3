//! The configuration of a model, read from its metadata and checked.

use kiln::op::Rope;
use kiln_gguf::Metadata;

use crate::architecture::{Architecture, Caps, Mixture, Rotation, WindowRope, Windows};
use crate::keys::Keys;
use crate::{Error, Result};

/// Maximum number of layers: more than any model has, so that a malicious file cannot request unlimited memory.
pub(crate) const MOST_LAYERS: usize = 512;

/// Maximum number of experts of a layer, for the same reason.
const MOST_EXPERTS: usize = 4096;

/// Maximum number of rows of a layer's matrix, for the same reason.
pub(crate) const MOST_ROWS: usize = 1 << 28;

/// The configuration of a model.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Config {
    pub(crate) architecture: Architecture,
    pub(crate) layers: Vec<LayerKind>,
    /// Elements of a token's row.
    pub(crate) width: usize,
    /// Elements between the two products of the feed-forward network.
    pub(crate) ffn: usize,
    /// The experts of feed-forward networks that are mixtures.
    pub(crate) experts: Option<Experts>,
    /// Heads of queries, and of keys and values.
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a query or key, and of a value.
    pub(crate) head: usize,
    pub(crate) value_head: usize,
    pub(crate) vocabulary: usize,
    /// The context length of the model in tokens.
    pub(crate) context: usize,
    pub(crate) eps: f32,
    /// Number of rotated elements of a query or key.
    pub(crate) rotated: usize,
    /// The rotations of queries and keys: for layers without a window and, if different, for those with one.
    pub(crate) rotations: Vec<Rotation>,
    pub(crate) scales: Scales,
    pub(crate) caps: Caps,
}

/// Experts, and how they are selected.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Experts {
    pub(crate) count: usize,
    /// Number of experts that are selected for a token.
    pub(crate) used: usize,
    /// Elements between the two products of an expert.
    pub(crate) ffn: usize,
    /// Whether the weights of the selected experts are normalised to the sum 1.
    pub(crate) normalised: bool,
    /// The factor of their weights.
    pub(crate) scale: f32,
}

impl Experts {
    /// Reads the keys about experts, if the file has any. `ffn`: the elements between the products of a network.
    fn read(keys: &Keys<'_>, architecture: &Architecture, ffn: usize) -> Result<Option<Self>> {
        let count = keys.find_count("expert_count")?.unwrap_or(0);
        match (architecture.mixture, count) {
            (Mixture::Never | Mixture::Counted, 0) => return Ok(None),
            (Mixture::Never, _) => return Err(keys.refused("mixtures of experts are not supported".into())),
            (Mixture::Always, 0) => return Err(keys.refused("expert_count is missing or zero".into())),
            _ => {}
        }
        let of_all = |name: &str, usual: &[usize], what: &str| match keys.find_count(name)? {
            Some(found) if !usual.contains(&found) => {
                Err(keys.refused(format!("{name} is {found}: {what} not supported")))
            }
            _ => Ok(()),
        };
        of_all("expert_shared_count", &[0], "experts that every token has are")?;
        of_all("expert_shared_feed_forward_length", &[0], "experts that every token has are")?;
        of_all("expert_group_count", &[0, 1], "groups of experts are")?;
        of_all("leading_dense_block_count", &[0], "layers without experts beside others are")?;
        of_all("interleave_moe_layer_step", &[0, 1], "layers without experts beside others are")?;
        // 1 is softmax.
        of_all("expert_gating_func", &[0, 1], "experts that are not chosen by the softmax of their scores are")?;
        let used = keys.count("expert_used_count")?;
        if used == 0 || used > count || count > MOST_EXPERTS {
            return Err(keys.refused(format!(
                "{used} of {count} experts are used; 1 to all of {MOST_EXPERTS} at most are expected"
            )));
        }
        Ok(Some(Self {
            count,
            used,
            ffn: keys.find_count("expert_feed_forward_length")?.unwrap_or(ffn),
            normalised: keys.find_truth("expert_weights_norm")?.unwrap_or(true),
            scale: keys.positive("expert_weights_scale")?.unwrap_or(1.0),
        }))
    }
}

/// The properties in which layers of a model differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LayerKind {
    /// Number of keys that a query sees: the last ones, including its own.
    pub(crate) window: Option<u32>,
    /// Index into [`Config::rotations`], if queries and keys are rotated.
    pub(crate) rotation: Option<usize>,
}

/// Scale factors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Scales {
    pub(crate) embedding: f32,
    /// For the products of queries and keys.
    pub(crate) scores: f32,
    /// For the outputs of attention and the feed-forward network before they are added.
    pub(crate) residual: f32,
    pub(crate) logits: f32,
}

impl Config {
    /// Reads the configuration of a model from its metadata and the number of rows of its embedding.
    ///
    /// # Errors
    /// [`Error::NotADecoder`] and [`Error::UnsupportedArchitecture`]; [`Error::File`] for missing keys and keys of
    /// another type; [`Error::Model`] for numbers that contradict one another or request unsupported features.
    pub(crate) fn read(metadata: Metadata<'_>, vocabulary: usize) -> Result<Self> {
        let name: &str = metadata.get("general.architecture")?;
        let architecture = Architecture::find(name)?;
        let keys = Keys::new(metadata, architecture.name);
        let (width, heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
        let of_head = || width.checked_div(heads).unwrap_or(0);
        let head = keys.find_count("attention.key_length")?.unwrap_or_else(of_head);
        let context = keys.count("context_length")?;
        let (layers, rotations) = Self::layers(&keys, &architecture, context)?;
        let scale_of = |n: usize| 1.0 / (n.max(1) as f32).sqrt();
        let wide = architecture.scaled_by_width == Some(layers.len());
        let scores = keys.find_number("attention.scale")?.unwrap_or(scale_of(if wide { of_head() } else { head }));
        let ffn = keys.count("feed_forward_length")?;
        let scaled_embedding = if architecture.scaled_embedding { (width as f32).sqrt() } else { 1.0 };
        let config = Self {
            architecture,
            layers,
            width,
            ffn,
            experts: Experts::read(&keys, &architecture, ffn)?,
            heads,
            kv_heads: keys.find_count("attention.head_count_kv")?.unwrap_or(heads),
            head,
            value_head: keys.find_count("attention.value_length")?.unwrap_or_else(of_head),
            vocabulary,
            context,
            eps: keys.positive("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            rotated: keys.find_count("rope.dimension_count")?.unwrap_or(head),
            rotations,
            scales: Scales {
                embedding: keys.positive("embedding_scale")?.unwrap_or(scaled_embedding),
                scores,
                residual: keys.positive("residual_scale")?.unwrap_or(1.0),
                // Files contain the reciprocal.
                logits: 1.0 / keys.positive("logit_scale")?.unwrap_or(1.0),
            },
            caps: Caps {
                scores: keys.cap("attn_logit_softcapping", architecture.caps.scores)?,
                logits: keys.cap("final_logit_softcapping", architecture.caps.logits)?,
            },
        };
        config.refuse_what_is_not_computed(&keys)?;
        config.check()?;
        Ok(config)
    }

    /// Which layers have a window, and the rotation of queries and keys in each.
    fn layers(keys: &Keys<'_>, architecture: &Architecture, context: usize) -> Result<(Vec<LayerKind>, Vec<Rotation>)> {
        let layers = keys.count("block_count")?;
        // Checked before memory is allocated.
        if layers == 0 || layers > MOST_LAYERS {
            return Err(keys.refused(format!("{layers} layers; 1 to {MOST_LAYERS} are expected")));
        }
        let Windows { keys: default, pattern, rope } = architecture.windows;
        let window = keys.find_count("attention.sliding_window")?.or(default).filter(|&window| window > 0);
        let windowed = match window {
            Some(_) => keys.windowed(layers, pattern)?,
            None => vec![false; layers],
        };
        let mut rotations = vec![Rotation::read(keys, context, architecture.has_whole_ramp)?];
        let base = rotations[0];
        let local = match rope {
            WindowRope::Same => match keys.positive("rope.freq_base_swa")? {
                Some(theta) if theta != base.theta => {
                    let reason =
                        format!("rope.freq_base_swa is {theta}, another base than that of layers without a window");
                    return Err(keys.refused(format!("{reason}, which is not supported")));
                }
                _ => 0,
            },
            WindowRope::Unscaled | WindowRope::Base(_) => {
                let theta = if let WindowRope::Base(theta) = rope { theta } else { base.theta };
                rotations.push(Rotation::read_unscaled(keys, theta, context)?);
                1
            }
        };
        let none_rotates = architecture.may_not_rotate && keys.find_truth("rope.scaling.finetuned")? == Some(false);
        let kind = |(i, windowed): (usize, bool)| {
            let rotates = !none_rotates && architecture.unrotated.is_none_or(|n| i % n != n - 1);
            LayerKind {
                window: window.filter(|_| windowed).and_then(|window| window.try_into().ok()),
                rotation: rotates.then_some(if windowed { local } else { 0 }),
            }
        };
        Ok((windowed.into_iter().enumerate().map(kind).collect(), rotations))
    }

    /// Refuses unsupported features that would change results, rather than ignore them.
    fn refuse_what_is_not_computed(&self, keys: &Keys<'_>) -> Result<()> {
        let other = |name: &str, than: usize| Ok::<_, Error>(keys.find_count(name)?.is_some_and(|n| n != than));
        let refused = if keys.find_truth("attention.causal")? == Some(false) {
            "attention to later tokens is"
        } else if other("attention.key_length_swa", self.head)?
            || other("attention.value_length_swa", self.value_head)?
            || other("rope.dimension_count_swa", self.rotated)?
        {
            "heads of another size in layers with a window are"
        } else if keys.cap("attention.clamp_kqv", None)?.is_some() {
            "clamped queries, keys and values (attention.clamp_kqv) are"
        } else {
            return Ok(());
        };
        Err(keys.refused(format!("{refused} not supported")))
    }

    fn check(&self) -> Result<()> {
        let refused = |reason: String| Err(Error::model(self.architecture.name, reason));
        let of_expert = self.experts.map_or(self.ffn, |experts| experts.ffn);
        let counts = [
            ("embedding_length", self.width),
            ("expert_feed_forward_length", of_expert),
            ("feed_forward_length", self.ffn),
            ("attention.head_count", self.heads),
            ("attention.head_count_kv", self.kv_heads),
            ("the size of a head", self.head),
            ("the size of a value", self.value_head),
            ("the vocabulary", self.vocabulary),
            ("context_length", self.context),
        ];
        if let Some((what, _)) = counts.iter().find(|&&(_, count)| count == 0) {
            return refused(format!("{what} is zero"));
        }
        // Sums and products of extents fit 32 bits too.
        let rows = self.heads.saturating_mul(self.head.max(self.value_head));
        if let Some(large) = [self.width, self.ffn, of_expert, rows].into_iter().find(|&extent| extent > MOST_ROWS) {
            return refused(format!("a matrix of {large} rows; at most {MOST_ROWS} are expected"));
        }
        if !self.heads.is_multiple_of(self.kv_heads) {
            return refused(format!("{} heads do not share {} heads of keys evenly", self.heads, self.kv_heads));
        }
        if self.rotated > self.head || !self.rotated.is_multiple_of(2) {
            return refused(format!("{} elements of a head of {} cannot be rotated in pairs", self.rotated, self.head));
        }
        if self.context > Rope::POSITIONS {
            return refused(format!("a context of {} tokens is beyond {}", self.context, Rope::POSITIONS));
        }
        if !self.scales.scores.is_finite() {
            return refused(format!("attention.scale is {}", self.scales.scores));
        }
        Ok(())
    }
}
