//! The projections of a layer: matrices with biases and adapters, read by their names.

use std::ops::Range;

use kiln::Tensor;
use kiln::graph::TensorId;

use crate::Result;
use crate::tensor_source::Source;

/// A matrix, and the bias that is added to its product.
#[derive(Debug, Clone)]
pub(super) struct Projection {
    pub(super) weight: Tensor,
    pub(super) bias: Option<Tensor>,
    /// The update of adapters, in the graph of a session that has adapters.
    pub(super) low_rank: Option<LowRank>,
    /// Whether each device of a group multiplies some of the inputs, so that the products are summed over the devices.
    pub(super) is_divided: bool,
}

/// `((x Aᵀ) ∘ s) Bᵀ` for the adapters of a session: A `[rank, inputs]` and B `[outputs, rank]` join those of all
/// adapters.
#[derive(Debug, Clone)]
pub(super) struct LowRank {
    pub(super) a: Tensor,
    pub(super) b: Tensor,
    /// s `[rank]`, an input of the graph: 0 for inactive adapters.
    pub(super) scales: TensorId,
}

impl Projection {
    /// Its tensors, except those of adapters.
    pub(super) fn tensors(&self) -> impl Iterator<Item = &Tensor> {
        let Self { weight, bias, low_rank: _, is_divided: _ } = self;
        std::iter::once(weight).chain(bias)
    }
}

/// A matrix of every expert, and the biases that are added to their products.
#[derive(Debug, Clone)]
pub(super) struct Matrices {
    /// `[experts, outputs, inputs]`.
    pub(super) weight: Tensor,
    /// `[experts, outputs]`.
    pub(super) bias: Option<Tensor>,
}

/// The tensors of a layer, by the part of their names after the layer's number.
pub(super) struct Parts<'s> {
    pub(super) source: &'s Source,
    pub(super) layer: usize,
}

impl Parts<'_> {
    pub(super) fn name(&self, part: &str) -> String {
        format!("blk.{}.{part}", self.layer)
    }

    /// Whether there is a matrix.
    pub(super) fn has(&self, part: &str) -> bool {
        self.source.has(&self.name(&format!("{part}.weight")))
    }

    /// The rows of a matrix, if it exists.
    pub(super) fn rows(&self, part: &str) -> Option<usize> {
        self.source.rows(&self.name(&format!("{part}.weight")))
    }

    /// Some of `all` rows of a matrix. Projections that a file stacks in one matrix are split here without a copy: each
    /// shares its rows of the file. One product with a split result would save two product launches on a GPU, but add
    /// three launches that copy the parts, and its graph would differ from that of files with separate matrices.
    pub(super) fn cut(&self, part: &str, rows: Range<usize>, all: usize, inputs: usize) -> Result<Projection> {
        let (weight, bias) = (self.name(&format!("{part}.weight")), self.name(&format!("{part}.bias")));
        let weight = self.source.rows_of(&weight, &[all, inputs], rows.clone())?;
        let bias = self.source.has(&bias).then(|| self.source.rows_of(&bias, &[all], rows)).transpose()?;
        Ok(Projection { weight, bias, low_rank: None, is_divided: false })
    }

    pub(super) fn projection(&self, part: &str, outputs: usize, inputs: usize) -> Result<Projection> {
        self.cut(part, 0..outputs, outputs, inputs)
    }

    /// The matrices of all experts, `[experts, outputs, inputs]`: one tensor (`ffn_up_exps`), or, in most folders and in
    /// older files, one for each expert (`ffn_up.7`), which are copied into one.
    pub(super) fn experts(&self, part: &str, dims: [usize; 3]) -> Result<Matrices> {
        let whole = format!("{part}_exps");
        let apart = self.source.is_folder() || self.has(&format!("{part}.0"));
        let weight = if !apart || self.has(&whole) {
            self.source.tensor(&self.name(&format!("{whole}.weight")), &dims)?
        } else {
            let names = (0..dims[0]).map(|expert| self.name(&format!("{part}.{expert}.weight")));
            self.source.stacked(names, dims)?
        };
        let bias = self.source.find(&self.name(&format!("{whole}.bias")), &dims[..2])?;
        Ok(Matrices { weight, bias })
    }
}
