use super::TensorId;
use super::fuse::Fused;
use crate::op::{Elementwise, Op, RmsNorm};

/// A step that a backend runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// An operation.
    Run {
        /// The operation.
        op: Op,
        /// The norm of the rows of a product that is computed in the same step, if [`FusionLimits::norms`](super::FusionLimits::norms) allows that.
        norm: Option<RmsNorm>,
        /// The gate that takes two products which are computed in the same step, if [`FusionLimits::gates`](super::FusionLimits::gates)
        /// allows that.
        gate: Option<Elementwise>,
        /// The operands. Those of a product are followed by the weights of the second product if the step includes a gate, and by gamma if
        /// it includes a norm (the norm's operand is then the first), or by the addend if
        /// [`FusionLimits::addends`](super::FusionLimits::addends) allows one.
        inputs: Vec<TensorId>,
        /// The results.
        outputs: Vec<TensorId>,
    },
    /// A fused element-wise chain.
    Fused(Fused),
}

impl Step {
    /// Tensors that the step reads.
    pub fn inputs(&self) -> &[TensorId] {
        match self {
            Self::Run { inputs, .. } => inputs,
            Self::Fused(fused) => &fused.inputs,
        }
    }

    /// Tensors that the step writes.
    pub fn outputs(&self) -> impl Iterator<Item = TensorId> + '_ {
        let (run, fused): (&[TensorId], &[(TensorId, usize)]) = match self {
            Self::Run { outputs, .. } => (outputs, &[]),
            Self::Fused(fused) => (&[], &fused.outputs),
        };
        run.iter().copied().chain(fused.iter().map(|&(id, _)| id))
    }
}
