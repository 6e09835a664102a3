//! Element-wise functions and their chains: each a kernel made on demand.

use kiln_ir::graph::{Fetch, Fused, FusionLimits, Source};
use kiln_ir::op::Elementwise;
use kiln_ir::{DType, Result};
use kiln_shaders::elementwise::{Call, Chain, Read};

use super::pieces::pieces;
use super::{Dispatches, Lower, Lowering, Value, quant};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Word};

/// The limits of a fused chain on a device.
pub(crate) fn fusion_limits(limits: &wgpu::Limits) -> FusionLimits {
    let buffers = limits.max_storage_buffers_per_shader_stage as usize;
    let outputs = (buffers / 4).max(1);
    FusionLimits {
        inputs: buffers.saturating_sub(outputs).max(1),
        outputs,
        instructions: 64,
        addends: true,
        norms: Some(quant::NORMS),
        gates: quant::GATED_ROWS,
        round: 4,
        mixed_formats: true,
    }
}

impl Lower<GpuDevice> for Elementwise {
    const READS: &'static [DType] = &[DType::F16, DType::Bf16];

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
    let read = |input: &Value| {
        let fetch = Fetch::of(input.ty.shape.numel(), n);
        Read { fetch, stored: input.ty.dtype }
    };
    let reads: Vec<Read> = inputs.iter().map(read).collect();
    let sizes: Vec<usize> = reads.iter().map(|read| read.stored.size()).chain([4]).collect();
    let chain = Chain { inputs: reads, calls, outputs: written };
    for piece in pieces(&plan.target.limits, n, &sizes) {
        let slice = |value: &Value, whole: bool| match whole {
            true => piece.of(*value, value.ty.dtype.size()),
            false => (*value).into(),
        };
        let vectors = piece.len.div_ceil(4);
        let mut words: Vec<Word> = vec![vectors.into()];
        let repeated = inputs.iter().zip(&chain.inputs).filter(|(_, read)| read.fetch.takes_length());
        for (input, _) in repeated {
            let length = input.ty.shape.numel();
            words.extend([length, piece.start % length].map(Word::from));
        }
        for (call, values) in chain.calls.iter().zip(params) {
            words.extend(values.iter().take(call.kind.param_names().len()).map(|&value| Word::from(value)));
        }
        let read = inputs.iter().zip(&chain.inputs).map(|(input, read)| slice(input, read.fetch == Fetch::Whole));
        let buffers = read.chain(outputs.iter().map(|output| slice(output, true))).collect();
        plan.dispatch(Code::Chain(chain.clone()), buffers, &words, Grid::invocations(vectors));
    }
}
