//! The weights of an encoder, read from a file by name.

use kiln::Tensor;

use super::Config;
use crate::architecture::projection::Projection;
use crate::tensor_source::Source;
use crate::{Error, Result};

/// The weights of an encoder. Matrices are `[outputs, inputs]`, as in files.
#[derive(Debug)]
pub(crate) struct Weights {
    /// Rows for tokens, positions, and token types; the row of the first type is added to every token.
    pub(super) tokens: Tensor,
    pub(super) positions: Tensor,
    pub(super) types: Tensor,
    pub(super) norm: LayerNorm,
    pub(super) layers: Vec<Layer>,
}

/// The scale and offset of a layer normalisation.
#[derive(Debug)]
pub(super) struct LayerNorm {
    pub(super) weight: Tensor,
    pub(super) bias: Tensor,
}

#[derive(Debug)]
pub(super) struct Layer {
    pub(super) q: Projection,
    pub(super) k: Projection,
    pub(super) v: Projection,
    pub(super) output: Projection,
    /// Applied to the sum of attention's input and output.
    pub(super) attention_norm: LayerNorm,
    pub(super) up: Projection,
    pub(super) down: Projection,
    /// Applied to the sum of the feed-forward network's input and output.
    pub(super) ffn_norm: LayerNorm,
}

impl Weights {
    /// Reads the weights and checks their shapes against the configuration.
    ///
    /// # Errors
    /// [`Error::File`] for a missing tensor or one of a type without kernels, [`Error::Model`] for a tensor of another
    /// shape, and for unused tensors.
    pub(crate) fn load(source: &Source, config: &Config) -> Result<Self> {
        let Config { vocabulary, positions, width, .. } = *config;
        // Texts of one part have the first type, whatever the number of types.
        let types = source.rows("token_types.weight").unwrap_or(1);
        if types == 0 {
            return Err(Error::model("weights", "token_types.weight has no row, at least one is expected"));
        }
        let weights = Self {
            tokens: source.tensor("token_embd.weight", &[vocabulary, width])?,
            positions: source.tensor("position_embd.weight", &[positions, width])?,
            types: source.rows_of("token_types.weight", &[types, width], 0..1)?,
            norm: LayerNorm::load(source, "token_embd_norm", width)?,
            layers: (0..config.layers).map(|i| Layer::load(source, config, i)).collect::<Result<_>>()?,
        };
        // An unused weight would silently change the results.
        match source.unread() {
            None => Ok(weights),
            Some(name) => Err(Error::model("weights", format!("nothing is computed with the tensor {name} yet"))),
        }
    }
}

impl LayerNorm {
    fn load(source: &Source, name: &str, width: usize) -> Result<Self> {
        let part = |part: &str| source.tensor(&format!("{name}.{part}"), &[width]);
        Ok(Self { weight: part("weight")?, bias: part("bias")? })
    }
}

impl Layer {
    fn load(source: &Source, config: &Config, i: usize) -> Result<Self> {
        let Config { width, ffn, .. } = *config;
        let projection = |part: &str, outputs: usize, inputs: usize| {
            let name = |kind: &str| format!("blk.{i}.{part}.{kind}");
            let weight = source.tensor(&name("weight"), &[outputs, inputs])?;
            let bias = source.tensor(&name("bias"), &[outputs])?;
            Ok::<_, Error>(Projection { weight, bias: Some(bias), low_rank: None, is_divided: false })
        };
        let norm = |part: &str| LayerNorm::load(source, &format!("blk.{i}.{part}"), width);
        Ok(Self {
            q: projection("attn_q", width, width)?,
            k: projection("attn_k", width, width)?,
            v: projection("attn_v", width, width)?,
            output: projection("attn_output", width, width)?,
            attention_norm: norm("attn_output_norm")?,
            up: projection("ffn_up", ffn, width)?,
            down: projection("ffn_down", width, ffn)?,
            ffn_norm: norm("layer_output_norm")?,
        })
    }
}
