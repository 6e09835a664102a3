//! Element-wise functions and their chains: each a kernel made on demand.

use kiln_core::Result;
use kiln_core::graph::{Fetch, Fused, FusionLimits, Source};
use kiln_core::op::Elementwise;
use kiln_shaders::elementwise::{Call, Chain};

use super::pieces::{Piece, pieces};
use super::{Lower, Lowering, Value};
use crate::plan::{Code, Grid, Location, Word};

/// How large a fused chain may become on a device.
pub(crate) fn fusion_limits(limits: &wgpu::Limits) -> FusionLimits {
    let buffers = limits.max_storage_buffers_per_shader_stage as usize;
    let outputs = (buffers / 4).max(1);
    FusionLimits { inputs: buffers.saturating_sub(outputs).max(1), outputs, instructions: 64 }
}

impl Lower for Elementwise {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let operands = (0..inputs.len()).map(Source::Input).collect();
        let calls = vec![Call { kind: self.kind(), operands }];
        run(plan, calls, &[self.params()], inputs, outputs, vec![0]);
        Ok(())
    }
}

/// Adds the dispatches of a fused chain.
pub(crate) fn lower_fused(fused: &Fused, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) {
    if fused.shape.is_empty() {
        return;
    }
    let instructions = fused.instructions.iter();
    let calls = instructions.clone().map(|i| Call { kind: i.kind, operands: i.operands.clone() }).collect();
    let params: Vec<[f32; 2]> = instructions.map(|i| i.params).collect();
    let written = fused.outputs.iter().map(|&(_, instruction)| instruction).collect();
    run(plan, calls, &params, inputs, outputs, written);
}

fn run(
    plan: &mut Lowering<'_>,
    calls: Vec<Call>,
    params: &[[f32; 2]],
    inputs: &[Value],
    outputs: &[Value],
    written: Vec<usize>,
) {
    let n = outputs[0].ty.shape.numel();
    let fetch = |input: &Value| Fetch::of(input.ty.shape.numel(), n);
    let fetches: Vec<Fetch> = inputs.iter().map(fetch).collect();
    let repeats = fetches.iter().any(|fetch| fetch.takes_length());
    let chain = Chain { inputs: fetches, calls, outputs: written };
    // An input that is read again and again would have to begin in the middle of itself.
    let pieces = if repeats { vec![Piece::whole(n)] } else { pieces(plan.limits, n, &[4]) };
    for piece in pieces {
        let slice = |at: Location, whole: bool| if whole { piece.of(at, 4) } else { at.into() };
        let vectors = piece.len.div_ceil(4);
        let mut words: Vec<Word> = vec![vectors.into()];
        let repeated = inputs.iter().zip(&chain.inputs).filter(|(_, fetch)| fetch.takes_length());
        words.extend(repeated.map(|(input, _)| Word::from(input.ty.shape.numel())));
        for (call, values) in chain.calls.iter().zip(params) {
            words.extend(values.iter().take(call.kind.param_names().len()).map(|&value| Word::from(value)));
        }
        let read = inputs.iter().zip(&chain.inputs).map(|(input, &fetch)| slice(input.at, fetch == Fetch::Whole));
        let buffers = read.chain(outputs.iter().map(|output| slice(output.at, true))).collect();
        plan.dispatch(Code::Chain(chain.clone()), buffers, &words, Grid::invocations(vectors));
    }
}
