//! The normalisations of rows, of groups of channels, and of channels.

use kiln_ir::op::{BatchNorm, GroupNorm, LayerNorm, RmsNorm, channels_of};
use kiln_ir::{Result, Shape, TensorType};

use super::pieces::pieces;
use super::rows::Kernels;
use super::shape::fill;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// The values eps, large_eps, small_eps and small_back of the sources: eps for unscaled rows, for rows whose elements
/// are scaled by 2^-90, and for those scaled by 2^90; results of the latter are scaled back if eps would overflow.
fn scales(eps: f32) -> [Word; 4] {
    let square = f64::powi(2.0, 180);
    let large = (f64::from(eps) / square) as f32;
    let (small, back) =
        if eps < f32::powi(2.0, -60) { ((f64::from(eps) * square) as f32, 1.0) } else { (eps, f32::powi(2.0, -90)) };
    [eps, large, small, back].map(Into::into)
}

fn norm(plan: &mut Lowering<'_>, layer: bool, eps: f32, inputs: &[Value], out: &Value) -> Result<()> {
    let operands: Vec<Slice> = inputs[1..].iter().map(|&operand| operand.into()).collect();
    let kernels = Kernels {
        whole: if layer { kiln_shaders::LAYER_NORM } else { kiln_shaders::RMS_NORM },
        parts: kiln_shaders::NORM_PARTS,
        join: kiln_shaders::NORM_JOIN,
        apply: if layer { kiln_shaders::LAYER_NORM_APPLY } else { kiln_shaders::RMS_NORM_APPLY },
        constant: ("LAYER", layer),
        words: 4,
        operands: &operands,
        params: &scales(eps),
        measured: true,
    };
    kernels.lower(plan, &inputs[0], out)
}

impl Lower<GpuDevice> for LayerNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        norm(plan, true, self.eps.get(), inputs, &outputs[0])
    }
}

impl Lower<GpuDevice> for RmsNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        norm(plan, false, self.eps.get(), inputs, &outputs[0])
    }
}

impl Lower<GpuDevice> for GroupNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let [outer, channels, plane] = channels_of(&inputs[0].ty);
        // Groups are rows, which are normalised first; then each channel is scaled and shifted.
        let (rows, row) = (outer * self.groups, channels / self.groups * plane);
        let x = Value { ty: TensorType::f32(Shape::new(&[rows, row])?), ..inputs[0] };
        let normal = plan.scratch(x.ty);
        let vector = TensorType::f32(Shape::new(&[row])?);
        let [scale, shift] = [1.0, 0.0].map(|value| {
            let filled = plan.scratch(vector);
            fill(plan, value, filled);
            filled
        });
        norm(plan, true, self.eps.get(), &[x, scale, shift], &normal)?;
        let [gamma, beta] = [inputs[1], inputs[2]];
        // Without statistics the placeholders are not read.
        per_channel(plan, false, 0.0, [normal, gamma, beta, gamma, beta, outputs[0]], [outer, channels, plane]);
        Ok(())
    }
}

impl Lower<GpuDevice> for BatchNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let [x, gamma, beta, mean, variance] = [0, 1, 2, 3, 4].map(|i: usize| inputs[i]);
        let buffers = [x, gamma, beta, mean, variance, outputs[0]];
        per_channel(plan, true, self.eps.get(), buffers, channels_of(&inputs[0].ty));
        Ok(())
    }
}

/// Scales and shifts every channel.
fn per_channel(
    plan: &mut Lowering<'_>,
    statistics: bool,
    eps: f32,
    [x, gamma, beta, mean, variance, out]: [Value; 6],
    [outer, channels, plane]: [usize; 3],
) {
    for piece in pieces(&plan.target.limits, outer * channels * plane, &[4]) {
        let vectors = piece.len.div_ceil(4);
        let code = Code::Kernel(kiln_shaders::CHANNELS, vec![("STATISTICS", statistics.into())]);
        let buffers = vec![piece.of(x, 4), gamma.into(), beta.into(), mean.into(), variance.into(), piece.of(out, 4)];
        let extents = [vectors, piece.start, plane, channels].map(Word::from);
        let words: Vec<Word> = extents.into_iter().chain([eps.into()]).collect();
        plan.dispatch(code, buffers, &words, Grid::invocations(vectors));
    }
}
