//! The weights of a decoder, read from a file by name.

use kiln::Tensor;

use super::feed_forward::{FeedForward, Gated};
use super::projection::{Parts, Projection};
use super::rope::Rotary;
use super::{HeadNorms, Norms};
use crate::config::Config;
use crate::tensor_source::Source;
use crate::{Error, Result};

/// The weights of a model. Matrices are `[outputs, inputs]`, as in files.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(super) embedding: Tensor,
    pub(super) layers: Vec<Layer>,
    pub(super) norm: Tensor,
    pub(super) head: Tensor,
    /// Where the rows of the head are divided over a group: which logits each device computes, a tensor of parts
    /// `[devices, vocabulary / devices]` that is true in one row.
    pub(super) owned_logits: Option<Tensor>,
    /// Whether the head is the embedding.
    pub(super) is_tied: bool,
    /// The rotations of [`Config::rotations`].
    pub(super) rotations: Vec<Rotary>,
}

/// The work of one token, which limits the number of tokens per second that a device can compute.
#[cfg(not(target_arch = "wasm32"))]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct TokenWork {
    /// Bytes that the generation of a token reads: the weights of all layers and of the logits. A mixture of experts counts with
    /// the experts that a token uses. Keys, values and the token's row of the embedding are not counted.
    pub bytes: u64,
    /// Floating-point operations of a token of a prompt: two for each element of the matrices of layers. Attention, which depends on
    /// the context, and the logits, which only the last token needs, are not counted.
    pub flops: u64,
}

#[derive(Debug, Clone)]
pub(super) struct Layer {
    /// Norms of attention's input and output.
    pub(super) attention_norm: Option<Tensor>,
    pub(super) attention_post_norm: Option<Tensor>,
    pub(super) q: Projection,
    pub(super) k: Projection,
    pub(super) v: Projection,
    /// Norms of queries and of keys.
    pub(super) q_norm: Option<Tensor>,
    pub(super) k_norm: Option<Tensor>,
    pub(super) output: Projection,
    /// A logit of each query head.
    pub(super) sinks: Option<Tensor>,
    /// Norms of the feed-forward network's input and output.
    pub(super) ffn_norm: Option<Tensor>,
    pub(super) ffn_post_norm: Option<Tensor>,
    pub(super) ffn: FeedForward,
}

impl Weights {
    /// Reads the weights and checks their shapes against the configuration.
    ///
    /// # Errors
    /// [`Error::File`] for a missing tensor or one of a type without kernels, [`Error::Model`] for a tensor of another
    /// shape, and for unused tensors.
    pub(crate) fn load(source: &Source, config: &Config) -> Result<Self> {
        let Config { vocabulary, width, rotated, .. } = *config;
        let embedding = source.tensor("token_embd.weight", &[vocabulary, width])?;
        let style = config.architecture.rope;
        // The factors of a file apply to layers without a window, which come first.
        let rotations = config.rotations.iter().enumerate();
        let rotations = rotations.map(|(i, rotation)| Rotary::load(source, rotation, style, rotated, i == 0));
        // Small models use the embedding again as the head. Then two devices may need it, so the copy on the host
        // stays; it shares the bytes of its file.
        let (embedding, head) = match source.find("output.weight", &[vocabulary, width])? {
            Some(head) => (embedding, Some(head)),
            None if source.is_of_program() => (embedding, None),
            None => (embedding.keep_on_host()?, None),
        };
        let weights = Self {
            is_tied: head.is_none(),
            owned_logits: None,
            layers: (0..config.layers.len()).map(|i| Layer::load(source, config, i)).collect::<Result<_>>()?,
            norm: source.tensor("output_norm.weight", &[width])?,
            head: head.unwrap_or_else(|| embedding.clone()),
            embedding,
            rotations: rotations.collect::<Result<_>>()?,
        };
        // An unused bias or norm would silently change the results.
        match source.unread() {
            None => Ok(weights),
            Some(name) => Err(Error::model("weights", format!("nothing is computed with the tensor {name} yet"))),
        }
    }
}

/// The tensors that a model holds in memory. Factors of rotations, which are as long as a head, are not counted.
impl Weights {
    /// The tensors of a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> Vec<&Tensor> {
        self.layers.get(layer).map_or_else(Vec::new, Layer::tensors)
    }

    /// The embedding of tokens.
    pub(crate) fn embedding(&self) -> &Tensor {
        &self.embedding
    }

    /// The final norm and the matrix of the logits.
    pub(crate) fn head(&self) -> [&Tensor; 2] {
        [&self.norm, &self.head]
    }

    /// The embedding and the head, each tensor once.
    pub(crate) fn ends(&self) -> Vec<&Tensor> {
        let own_head = (!self.is_tied).then_some(&self.head);
        [&self.embedding, &self.norm].into_iter().chain(own_head).collect()
    }

    /// All tensors, each once.
    pub(crate) fn all(&self) -> Vec<&Tensor> {
        self.layers.iter().flat_map(Layer::tensors).chain(self.ends()).collect()
    }

    /// The work of one token.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn token_work(&self) -> TokenWork {
        let layers = || self.layers.iter().flat_map(Layer::shares);
        let all = layers().chain(self.head().map(|tensor| (tensor, 1.0)));
        let matrices = layers().filter(|(tensor, _)| tensor.shape().rank() > 1);
        TokenWork {
            bytes: all.map(|(tensor, share)| tensor.ty().bytes() as f64 * share).sum::<f64>() as u64,
            flops: matrices.map(|(tensor, share)| 2.0 * tensor.shape().numel() as f64 * share).sum::<f64>() as u64,
        }
    }
}

impl Layer {
    /// Its tensors, except those of adapters.
    fn tensors(&self) -> Vec<&Tensor> {
        self.shares().into_iter().map(|(tensor, _)| tensor).collect()
    }

    /// The same, each with the share of its elements that one token is computed with.
    fn shares(&self) -> Vec<(&Tensor, f64)> {
        let Self { attention_norm, attention_post_norm, q, k, v, q_norm, k_norm, .. } = self;
        let Self { output, sinks, ffn_norm, ffn_post_norm, ffn, .. } = self;
        let vectors = [attention_norm, attention_post_norm, q_norm, k_norm, sinks, ffn_norm, ffn_post_norm];
        let projections = [q, k, v, output].into_iter().flat_map(Projection::tensors);
        let whole = vectors.into_iter().flatten().chain(projections).map(|tensor| (tensor, 1.0));
        whole.chain(ffn.shares()).collect()
    }

    /// The projections of [`ADAPTED`](super::modules::ADAPTED) that the layer has: a mixture of experts has no matrix that applies to every
    /// token.
    pub(super) fn adapted(&mut self) -> Vec<&mut Projection> {
        let Self { q, k, v, output, ffn, .. } = self;
        let mut adapted = vec![q, k, v, output];
        if let FeedForward::Gated(gated) = ffn {
            let Gated { gate, up, down } = &mut **gated;
            adapted.extend([gate, up, down]);
        }
        adapted
    }

    fn load(source: &Source, config: &Config, i: usize) -> Result<Self> {
        let Config { width, heads, kv_heads, head, value_head, architecture, .. } = *config;
        let parts = Parts { source, layer: i };
        let name = |part: &str| parts.name(part);
        let norm = |part: &str, there: bool| {
            there.then(|| source.tensor(&name(&format!("{part}.weight")), &[width])).transpose()
        };
        let before = architecture.norms != Norms::After;
        let after = architecture.norms != Norms::Before;
        let head_norm = |part: &str, heads: usize| {
            let name = name(&format!("{part}.weight"));
            match architecture.head_norms {
                None => source.find(&name, &[head]),
                Some(HeadNorms::Head) => source.tensor(&name, &[head]).map(Some),
                Some(HeadNorms::Row) => source.tensor(&name, &[heads * head]).map(Some),
            }
        };
        let [q_rows, k_rows, v_rows] = [heads * head, kv_heads * head, kv_heads * value_head];
        let [q, k, v] = match parts.has("attn_qkv") {
            true => {
                let (keys, all) = (q_rows + k_rows, q_rows + k_rows + v_rows);
                [0..q_rows, q_rows..keys, keys..all].map(|rows| parts.cut("attn_qkv", rows, all, width))
            }
            false => [("attn_q", q_rows), ("attn_k", k_rows), ("attn_v", v_rows)]
                .map(|(part, rows)| parts.projection(part, rows, width)),
        };
        Ok(Self {
            attention_norm: norm("attn_norm", before)?,
            attention_post_norm: norm("post_attention_norm", after)?,
            q: q?,
            k: k?,
            v: v?,
            q_norm: head_norm("attn_q_norm", heads)?,
            k_norm: head_norm("attn_k_norm", kv_heads)?,
            output: parts.projection("attn_output", width, heads * value_head)?,
            sinks: architecture.has_sinks.then(|| source.tensor(&name("attn_sinks.weight"), &[heads])).transpose()?,
            ffn_norm: norm(architecture.ffn_norm, before)?,
            ffn_post_norm: norm("post_ffw_norm", after)?,
            ffn: FeedForward::load(&parts, config)?,
        })
    }
}
