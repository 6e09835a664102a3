//! The numbers that describe a model, read from its metadata and checked.

use kiln::op::{Rope, RopeStyle};
use kiln_gguf::{Metadata, Model};

use crate::architecture::Architecture;
use crate::{Error, Result};

/// Layers at most: more than any model has, so that a hostile file cannot ask for memory without end.
const MOST_LAYERS: usize = 512;

/// What describes a model beside its weights.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Config {
    pub(crate) layers: usize,
    /// Elements of the row of a token.
    pub(crate) width: usize,
    /// Elements between the two products of the feed-forward network.
    pub(crate) ffn: usize,
    /// Heads of queries, and of keys and values.
    pub(crate) heads: usize,
    pub(crate) kv_heads: usize,
    /// Elements of a query or key, and of a value.
    pub(crate) head: usize,
    pub(crate) value_head: usize,
    pub(crate) vocabulary: usize,
    /// Tokens that the model was made for.
    pub(crate) context: usize,
    pub(crate) eps: f32,
    pub(crate) rope: RopeStyle,
    /// The base of the frequencies.
    pub(crate) theta: f32,
    /// How many elements of a query or key are rotated.
    pub(crate) rotated: usize,
    /// What the products of queries and keys are multiplied by.
    pub(crate) scale: f32,
}

/// Keys of one architecture.
struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'static str,
}

impl Keys<'_> {
    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    fn count(&self, name: &str) -> Result<usize> {
        Ok(self.metadata.get::<u32>(&self.key(name))? as usize)
    }

    fn find_count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.metadata.find::<u32>(&self.key(name))?.map(|n| n as usize))
    }

    fn find_number(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.metadata.find::<f32>(&self.key(name))?)
    }
}

impl Config {
    /// Reads what a file says of its model.
    ///
    /// # Errors
    /// [`Error::UnsupportedArchitecture`]; [`Error::File`] for missing keys and those of another type; [`Error::Model`] where numbers
    /// contradict one another.
    pub(crate) fn read(model: &Model) -> Result<Self> {
        let metadata = model.metadata();
        let name: &str = metadata.get("general.architecture")?;
        let architecture = Architecture::find(name).ok_or_else(|| Error::UnsupportedArchitecture {
            found: name.escape_debug().to_string(),
            supported: Architecture::names(),
        })?;
        let keys = Keys { metadata, architecture: architecture.name };
        let (width, heads) = (keys.count("embedding_length")?, keys.count("attention.head_count")?);
        let of_head = || width.checked_div(heads).unwrap_or(0);
        let head = keys.find_count("attention.key_length")?.unwrap_or_else(of_head);
        let embedding = model.tensor("token_embd.weight")?;
        let config = Self {
            layers: keys.count("block_count")?,
            width,
            ffn: keys.count("feed_forward_length")?,
            heads,
            kv_heads: keys.find_count("attention.head_count_kv")?.unwrap_or(heads),
            head,
            value_head: keys.find_count("attention.value_length")?.unwrap_or_else(of_head),
            vocabulary: embedding.info().extents().get(1).map_or(0, |&rows| rows as usize),
            context: keys.count("context_length")?,
            eps: keys.find_number("attention.layer_norm_rms_epsilon")?.unwrap_or(1e-5),
            rope: architecture.rope,
            theta: keys.find_number("rope.freq_base")?.unwrap_or(10_000.0),
            rotated: keys.find_count("rope.dimension_count")?.unwrap_or(head),
            scale: keys.find_number("attention.scale")?.unwrap_or_else(|| 1.0 / (head.max(1) as f32).sqrt()),
        };
        config.refuse_what_is_not_computed(&keys)?;
        config.check(architecture.name)?;
        Ok(config)
    }

    /// Refuses what would change results and is not computed, rather than ignore it.
    fn refuse_what_is_not_computed(&self, keys: &Keys<'_>) -> Result<()> {
        let scaling = keys.metadata.find::<&str>(&keys.key("rope.scaling.type"))?;
        if let Some(scaling) = scaling.filter(|&scaling| scaling != "none") {
            let reason = format!("scaled positions ({}) are not supported yet", scaling.escape_debug());
            return Err(Error::model(keys.architecture, reason));
        }
        if keys.find_count("expert_count")?.is_some_and(|experts| experts > 0) {
            return Err(Error::model(keys.architecture, "mixtures of experts are not supported yet"));
        }
        if keys.find_count("attention.sliding_window")?.is_some_and(|window| window > 0 && window < self.context) {
            return Err(Error::model(keys.architecture, "sliding windows are not supported yet"));
        }
        Ok(())
    }

    fn check(&self, architecture: &'static str) -> Result<()> {
        let refused = |reason: String| Err(Error::model(architecture, reason));
        let counts = [
            ("layers", self.layers),
            ("embedding_length", self.width),
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
        if self.layers > MOST_LAYERS {
            return refused(format!("{} layers; at most {MOST_LAYERS} are expected", self.layers));
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
        for (what, number) in [("the norm's epsilon", self.eps), ("rope.freq_base", self.theta)] {
            if !number.is_finite() || number <= 0.0 {
                return refused(format!("{what} is {number}, which is not a positive number"));
            }
        }
        if !self.scale.is_finite() {
            return refused(format!("attention.scale is {}", self.scale));
        }
        Ok(())
    }
}
