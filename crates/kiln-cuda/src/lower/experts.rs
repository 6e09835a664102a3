//! Products of rows with the matrices of the experts that are chosen for them.

use kiln_ir::op::{MatmulByExpert, Operation};
use kiln_ir::{DType, Result, Shape, TensorType};
use kiln_ptx::PtxType;
use kiln_ptx::kernels::experts::{ExpertGemm, GroupByExpert};
use kiln_ptx::kernels::quant;

use super::scatter::reported;
use super::{HALVES, Launches, Lower, Lowering, Value, cast, halves};
use crate::CudaDevice;

impl Lower<CudaDevice> for MatmulByExpert {
    const READS: &'static [DType] = HALVES;
    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let [x, weights, indices] = [inputs[0], inputs[1], inputs[2]];
        let e = self.extents(&x.ty.shape, &weights.ty.shape, &indices.ty.shape)?;
        reported(plan, self.name(), e.experts, indices)?;
        // Without experts every index is invalid.
        if outputs[0].ty.shape.is_empty() || e.experts == 0 {
            return Ok(());
        }
        let x = cast::widened(plan, x)?;
        let tiles = e.tiles();
        let (mut chosen, mut slots) = (indices.at, indices.at);
        if tiles.are_grouped() {
            let mut scratch = |n: usize| Ok::<_, kiln_ir::Error>(plan.scratch(TensorType::u32(Shape::new(&[n])?)).at);
            (slots, chosen) = (scratch(GroupByExpert::slots(tiles))?, scratch(tiles.count)?);
            plan.run(GroupByExpert, GroupByExpert.launch(&e, tiles)?, &[indices.at, slots, chosen]);
        }
        let buffers = [x.at, weights.at, outputs[0].at, chosen, slots];
        let DType::Blocks(format) = weights.ty.dtype else {
            let ty = halves(&[weights.ty]).unwrap_or(PtxType::F32);
            let kernel = ExpertGemm::new(ty, e.k, tiles);
            plan.run(kernel, kernel.launch(&e, tiles)?, &buffers);
            return Ok(());
        };
        match quant::WarpQuantMatmul::by_expert(format, tiles, plan.target.target) {
            Some(kernel) => {
                let launch = kernel.launch_by_expert(&e, tiles, plan.target.multiprocessors)?;
                plan.run(kernel, launch, &buffers);
            }
            None => {
                let kernel = quant::QuantMatmul::by_expert(format, tiles);
                plan.run(kernel, kernel.launch_by_expert(&e, tiles)?, &buffers);
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kiln_device::Plan;
    use kiln_ir::QuantFormat;
    use kiln_ir::op::Op;
    use kiln_ptx::Target;

    use super::*;
    use crate::plan::Hardware;
    use kiln_ir::Precision;

    /// The kernels of two products for each of some rows, after the kernel that checks the indices.
    fn kernels(target: Target, weights: DType, rows: usize) -> Vec<String> {
        let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
        let ty = |dtype, dims: &[usize]| TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap();
        let types = [ty(DType::F32, &[rows, 256]), ty(weights, &[8, 96, 256]), ty(DType::U32, &[rows, 2])];
        let (_, plan) = Plan::<CudaDevice>::of_operation(&Op::from(MatmulByExpert), &types, &hardware).unwrap();
        let mut kernels: Vec<String> = plan.steps.iter().map(|step| step.code.kernel().name()).collect();
        assert_eq!(kernels.remove(0), "gather_nothing");
        kernels
    }

    #[test]
    fn products_of_an_expert_are_brought_together_where_they_are_many() {
        let blocks = DType::Blocks(QuantFormat::Q4K);
        assert_eq!(kernels(Target::Sm90a, blocks, 4), ["warp_quant_matmul_q4_K_1_by_expert"]);
        assert_eq!(kernels(Target::Sm90a, blocks, 5), ["group_by_expert", "warp_quant_matmul_q4_K_8_by_expert"]);
        assert_eq!(kernels(Target::Sm75, blocks, 1), ["quant_matmul_q4_K_1_by_expert_1"]);
        assert_eq!(kernels(Target::Sm80, DType::Bf16, 1), ["expert_gemm_bf16_1_8"]);
        assert_eq!(kernels(Target::Sm75, DType::F32, 9), ["group_by_expert", "expert_gemm_f32_8_8"]);
    }
}
