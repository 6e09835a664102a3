//! Attention of the tokens of a graph to cached keys and values.

use kiln::graph::TensorId;
use kiln::op::{Attention, AttentionOperands};
use kiln::{Batch, DType, Record, State};

use crate::Result;
use crate::config::Config;

/// Minimum number of tokens for which queries are rounded to the type of a 16-bit cache.
const MANY: usize = 64;

/// The kind of heads that a tensor holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Heads {
    Queries,
    Keys,
}

/// The operands of attention.
#[derive(Debug, Clone, Copy)]
pub(super) struct Attended {
    pub(super) q: TensorId,
    pub(super) k: TensorId,
    pub(super) v: TensorId,
    /// A logit of each query head that takes part in the softmax without a value.
    pub(super) sinks: Option<TensorId>,
}

/// The relation between the tokens of a graph.
#[derive(Debug, Clone, Copy)]
pub(super) enum Cached {
    /// Consecutive tokens of one sequence.
    Following(Following),
    /// The last token of each of several sequences.
    Each(Each),
}

/// Zeros for the keys and values of each layer, `[kv_heads, context, size]`. They take no memory before they are used.
///
/// # Errors
/// [`Error::Kiln`](crate::Error::Kiln) for an unsupported cache type.
pub(crate) fn caches(config: &Config, dtype: DType, context: usize) -> Result<Vec<[State; 2]>> {
    let cache = |size: usize| State::zeros(dtype, &[config.kv_heads, context, size]);
    config.layers.iter().map(|_| Ok([cache(config.head)?, cache(config.value_head)?])).collect()
}

/// The inputs for tokens of one sequence. Its caches are `[kv_heads, context, size]`.
#[derive(Debug, Clone, Copy)]
pub(super) struct Following {
    pub(super) positions: TensorId,
    /// The rows of the caches to which keys and values are written.
    pub(super) written: TensorId,
    /// The number of valid rows of the caches.
    pub(super) length: TensorId,
}

/// The inputs for tokens of several sequences. Their caches are `[slots * kv_heads * context, size]`: a sequence has a slot.
///
/// Rotations and writes treat the heads of all rows as one matrix, so positions are repeated for each head and nothing
/// is permuted. The batch dimension of attention is the slots; a slot without a row has no keys and costs next to
/// nothing.
#[derive(Debug, Clone, Copy)]
pub(super) struct Each {
    pub(super) slots: usize,
    /// The positions of rows, repeated for each query head, `[rows * heads]`, and for each key head, `[rows *
    /// kv_heads]`.
    pub(super) of_queries: TensorId,
    pub(super) of_keys: TensorId,
    /// The rows of the caches to which keys and values are written, `[rows * kv_heads]`.
    pub(super) written: TensorId,
    /// The position of the row of each slot, `[slots, 1]`, and its number of keys, `[slots]`.
    pub(super) positions: TensorId,
    pub(super) lengths: TensorId,
    /// The mapping between rows and slots, if there are fewer rows than slots. Otherwise row i belongs to slot i.
    pub(super) routes: Option<Routes>,
}

/// The mapping between rows and slots.
#[derive(Debug, Clone, Copy)]
pub(super) struct Routes {
    pub(super) to_slots: TensorId,
    pub(super) to_rows: TensorId,
}

impl Cached {
    /// The heads of projected rows `[rows, heads * size]`: `[heads, rows, size]`, or, for several sequences, `[rows *
    /// heads, size]`.
    pub(super) fn heads(
        &self,
        batch: &mut Batch<'_>,
        x: TensorId,
        [rows, heads, size]: [usize; 3],
    ) -> Result<TensorId> {
        Ok(match self {
            Self::Following(_) => {
                let x = batch.reshape(x, &[rows, heads, size])?;
                batch.permute(x, &[1, 0, 2])?
            }
            Self::Each(_) => batch.reshape(x, &[rows * heads, size])?,
        })
    }

    /// The positions of such heads.
    pub(super) fn positions(&self, of: Heads) -> TensorId {
        match (self, of) {
            (Self::Following(following), _) => following.positions,
            (Self::Each(each), Heads::Queries) => each.of_queries,
            (Self::Each(each), Heads::Keys) => each.of_keys,
        }
    }

    /// Adds keys and values to the caches, and returns the result of attention: `[rows, heads * value_head]`.
    pub(super) fn attention(
        &self,
        batch: &mut Batch<'_>,
        Attended { q, k, v, sinks }: Attended,
        caches: &[State; 2],
        op: Attention,
        rows: usize,
        config: &Config,
    ) -> Result<TensorId> {
        let [keys, values] = [0, 1].map(|i| batch.state(&caches[i]));
        let operands = AttentionOperands { sinks, ..AttentionOperands::default() };
        match self {
            Self::Following(Following { positions, written, length }) => {
                // Tensor cores need queries of the type of the keys. With a 16-bit cache, rounding many queries costs
                // no more accuracy than rounding the cache did; for few queries the scores cost nothing compared with
                // reading the cache.
                let narrow = matches!(caches[0].dtype(), DType::F16 | DType::Bf16) && rows >= MANY;
                let q = if narrow { batch.cast(q, caches[0].dtype())? } else { q };
                let keys = batch.write_rows(keys, k, *written)?;
                let values = batch.write_rows(values, v, *written)?;
                let of = AttentionOperands { positions: Some(*positions), lengths: Some(*length), ..operands };
                let out = batch.attention_with(q, keys, values, of, op)?;
                let out = batch.permute(out, &[1, 0, 2])?;
                Ok(batch.reshape(out, &[rows, config.heads * config.value_head])?)
            }
            Self::Each(each) => {
                let Config { heads, kv_heads, head, value_head, .. } = *config;
                let keys = batch.write_rows(keys, k, each.written)?;
                let values = batch.write_rows(values, v, each.written)?;
                let context = caches[0].shape().rows() / (each.slots * kv_heads);
                let keys = batch.reshape(keys, &[each.slots, kv_heads, context, head])?;
                let values = batch.reshape(values, &[each.slots, kv_heads, context, value_head])?;
                let mut q = batch.reshape(q, &[rows, heads * head])?;
                if let Some(routes) = each.routes {
                    q = batch.gather(q, routes.to_slots)?;
                }
                let q = batch.reshape(q, &[each.slots, heads, 1, head])?;
                let of = AttentionOperands { positions: Some(each.positions), lengths: Some(each.lengths), ..operands };
                let out = batch.attention_with(q, keys, values, of, op)?;
                let out = batch.reshape(out, &[each.slots, heads * value_head])?;
                Ok(match each.routes {
                    Some(routes) => batch.gather(out, routes.to_rows)?,
                    None => out,
                })
            }
        }
    }
}
