//! The normalisations of rows, of groups of channels, and of channels.

use kiln_ir::op::{BatchNorm, GroupNorm, LayerNorm, RmsNorm, channels_of};
use kiln_ir::{Result, Shape, TensorType};
use kiln_ptx::kernels::channels::Channels;
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::shape;

use super::rows::run;
use super::{Launches, Lower, Lowering, Value};
use crate::CudaDevice;

impl Lower<CudaDevice> for LayerNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let x = inputs[0].ty.shape;
        let rows = Norm::layer(x.rows(), x.columns(), self.eps.get(), plan.target.target)?;
        run(plan, rows, inputs, &outputs[0]);
        Ok(())
    }
}

impl Lower<CudaDevice> for RmsNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let x = inputs[0].ty.shape;
        let rows = Norm::rms(x.rows(), x.columns(), self.eps.get(), plan.target.target)?;
        run(plan, rows, inputs, &outputs[0]);
        Ok(())
    }
}

impl Lower<CudaDevice> for GroupNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let extents = channels_of(&inputs[0].ty);
        let [outer, channels, plane] = extents;
        // Groups are rows, which are normalised first; then each channel is scaled and shifted.
        let (rows, row) = (outer * self.groups, channels / self.groups * plane);
        let x = Value { ty: TensorType::f32(Shape::new(&[rows, row])?), ..inputs[0] };
        let normal = plan.scratch(x.ty);
        let vector = TensorType::f32(Shape::new(&[row])?);
        let [scale, shift] = [0, 1].map(|_| plan.scratch(vector));
        for (filled, value) in [(scale, 1.0f32), (shift, 0.0)] {
            plan.run(shape::Fill, shape::Fill.launch(value.to_bits(), row)?, &[filled.at]);
        }
        let normed = Norm::layer(rows, row, self.eps.get(), plan.target.target)?;
        run(plan, normed, &[x, scale, shift], &normal);
        let kernel = Channels::new(false);
        let buffers = [normal.at, inputs[1].at, inputs[2].at, outputs[0].at];
        plan.run(kernel, kernel.launch(extents, 0.0)?, &buffers);
        Ok(())
    }
}

impl Lower<CudaDevice> for BatchNorm {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = Channels::new(true);
        let launch = kernel.launch(channels_of(&inputs[0].ty), self.eps.get())?;
        let buffers: Vec<_> = inputs.iter().chain(outputs).map(|value| value.at).collect();
        plan.run(kernel, launch, &buffers);
        Ok(())
    }
}
