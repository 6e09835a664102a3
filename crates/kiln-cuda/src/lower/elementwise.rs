//! Element-wise functions and their chains: each a kernel made on demand.

use kiln_ir::Result;
use kiln_ir::graph::{Fetch, Fused};
use kiln_ir::op::Elementwise;
use kiln_ptx::kernels::elementwise::Chain;

use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for Elementwise {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let chain = Chain::of(self, &fetches(inputs, outputs), plan.target.target)?;
        run(plan, chain, &[self.params()], inputs, outputs)
    }
}

/// Adds the launch of a fused chain.
pub(crate) fn lower_fused(fused: &Fused, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
    if fused.shape.is_empty() {
        return Ok(());
    }
    let chain = Chain::fused(fused, &fetches(inputs, outputs), plan.target.target)?;
    let params: Vec<[f32; 2]> = fused.instructions.iter().map(|instruction| instruction.params).collect();
    run(plan, chain, &params, inputs, outputs)
}

fn fetches(inputs: &[Value], outputs: &[Value]) -> Vec<Fetch> {
    let n = outputs.first().map_or(0, |output| output.ty.shape.numel());
    inputs.iter().map(|input| Fetch::of(input.ty.shape.numel(), n)).collect()
}

fn run(plan: &mut Lowering<'_>, chain: Chain, params: &[[f32; 2]], inputs: &[Value], outputs: &[Value]) -> Result<()> {
    let n = outputs.first().map_or(0, |output| output.ty.shape.numel());
    let lengths: Vec<usize> = inputs.iter().map(|input| input.ty.shape.numel()).collect();
    let launch = chain.launch(n, &lengths, params)?;
    let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
    plan.run(chain, launch, &buffers);
    Ok(())
}
