//! Attention.

use kiln_ir::op::Attention;
use kiln_ir::{DType, Result, TensorType};
use kiln_ptx::kernels::attention::{self, FlashPlan, WarpGroupAttention};
use kiln_ptx::{Launch, PtxType};

use super::{HALVES, Launches, Lower, Lowering, Value, accepted, cast, halves};
use crate::CudaDevice;
use crate::plan::Hardware;
use kiln_device::Location;

/// Attention of f16 on tensor cores.
pub(crate) enum OnTensorCores {
    WarpGroups(WarpGroupAttention, Launch),
    Warps(FlashPlan),
}

/// How attention of f16 runs on tensor cores, where the device has any and its kernels take the extents and the scale.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit one another.
pub(crate) fn on_tensor_cores(
    hardware: Hardware,
    op: &Attention,
    inputs: &[TensorType],
) -> Result<Option<OnTensorCores>> {
    let extents = op.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape)?;
    let Some(halves) = halves(inputs).filter(|_| hardware.has_tensor_cores()) else { return Ok(None) };
    let (types, multiprocessors) = ([halves, PtxType::F32], hardware.multiprocessors);
    let scale = op.scale(extents.d);
    let warp_groups = || -> Result<Option<OnTensorCores>> {
        let kernel = WarpGroupAttention::new(types, extents.d, op.causal)?;
        // Where its tiles leave more than half of a device idle, smaller ones of parts of the keys are better.
        if 2 * kernel.tiles(&extents) < multiprocessors as usize {
            return Ok(None);
        }
        let launch = kernel.launch(&extents, scale, multiprocessors)?;
        Ok(Some(OnTensorCores::WarpGroups(kernel, launch)))
    };
    if hardware.has_warp_groups()
        && let Some(found) = accepted(warp_groups())?.flatten()
    {
        return Ok(Some(found));
    }
    let warps = attention::plan(types, &extents, op.causal, scale, multiprocessors);
    Ok(accepted(warps)?.map(OnTensorCores::Warps))
}

impl Lower<CudaDevice> for Attention {
    const READS: &'static [DType] = HALVES;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let out = outputs[0].at;
        let [q, k, v] = [0, 1, 2].map(|i: usize| inputs[i].at);
        match on_tensor_cores(*plan.target, self, &types)? {
            Some(OnTensorCores::WarpGroups(kernel, launch)) => plan.run(kernel, launch, &[q, k, v, out]),
            Some(OnTensorCores::Warps(FlashPlan { attention: (kernel, launch), combine: None })) => {
                plan.run(kernel, launch, &[q, k, v, out]);
            }
            Some(OnTensorCores::Warps(FlashPlan { attention: (kernel, launch), combine: Some(combine) })) => {
                let (combine, adding, bytes) = combine;
                let parts = plan.scratch_bytes(bytes);
                plan.run(kernel, launch, &[q, k, v, parts]);
                plan.run(combine, adding, &[parts, out]);
            }
            None => lower_f32(self, plan, inputs, out)?,
        }
        Ok(())
    }
}

/// Attention on the units for f32.
fn lower_f32(op: &Attention, plan: &mut Lowering<'_>, inputs: &[Value], out: Location) -> Result<()> {
    let wide = inputs.iter().map(|&input| cast::widened(plan, input)).collect::<Result<Vec<_>>>()?;
    let extents = op.extents(&wide[0].ty.shape, &wide[1].ty.shape, &wide[2].ty.shape)?;
    let kernel = attention::Attention::new(extents.d, op.causal, plan.target.target);
    let planned = kernel.plan(&extents, op.scale(extents.d), plan.target.multiprocessors)?;
    let [q, k, v] = [0, 1, 2].map(|i: usize| wide[i].at);
    let (kernel, launch) = planned.attention;
    match planned.combine {
        None => plan.run(kernel, launch, &[q, k, v, out]),
        Some((combine, adding, bytes)) => {
            let parts = plan.scratch_bytes(bytes);
            plan.run(kernel, launch, &[q, k, v, parts]);
            plan.run(combine, adding, &[parts, out]);
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use kiln_ir::Shape;
    use kiln_ir::op::{Op, Param};
    use kiln_ptx::Target;

    use super::*;
    use crate::InputPrecision;
    use kiln_device::Plan;

    /// The kernels of causal attention of these heads, queries, keys and elements of a row, up to their tiles; and the bytes
    /// of scratch memory.
    fn planned(
        target: Target,
        dtype: DType,
        [heads, s, t, d]: [usize; 4],
        scale: Option<Param>,
    ) -> (Vec<String>, usize) {
        let hardware = Hardware { target, multiprocessors: 132, input_precision: InputPrecision::Ieee };
        let ty = |dtype, dims: [usize; 3]| TensorType::of(dtype, Shape::new(&dims).unwrap()).unwrap();
        let types = [ty(dtype, [heads, s, d]), ty(dtype, [2, t, d]), ty(DType::F16, [2, t, d])];
        let (_, plan) =
            Plan::<CudaDevice>::of_operation(&Op::from(Attention { causal: true, scale }), &types, &hardware).unwrap();
        let is_tile = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let name = |name: String| name.split('_').take_while(|word| !is_tile(word)).collect::<Vec<_>>().join("_");
        let names = plan.steps.iter().map(|dispatch| name(dispatch.code.kernel().name())).collect();
        (names, plan.scratch.iter().sum::<u64>() as usize)
    }

    #[test]
    fn halves_go_to_tensor_cores() {
        for target in [Target::Sm80, Target::Sm90, Target::Sm120] {
            let (names, scratch) = planned(target, DType::F16, [32, 512, 512, 64], None);
            assert_eq!((&*names.join(" "), scratch), ("flash_attention_causal_f16_f32", 0), "{target}");
        }
        let (names, scratch) = planned(Target::Sm90a, DType::F16, [32, 512, 512, 64], None);
        assert_eq!((&*names.join(" "), scratch), ("flash_attention_causal_f16_f32_groups", 0));
        let widened = ["cast_f16_f32", "cast_f16_f32", "cast_f16_f32", "attention_causal_rows64"];
        assert_eq!(planned(Target::Sm75, DType::F16, [32, 512, 512, 64], None).0, widened);
        // Rows that no kernel is for, and scales that turn the order of scores around.
        assert_eq!(planned(Target::Sm80, DType::F16, [32, 512, 512, 40], None).0, widened);
        assert_eq!(planned(Target::Sm80, DType::F16, [32, 512, 512, 64], Some(Param::from(-0.5))).0, widened);
        // One of them is f32.
        let names = planned(Target::Sm80, DType::F32, [32, 512, 512, 64], None).0;
        assert_eq!(names, ["cast_f16_f32", "attention_causal_rows64"]);
    }

    #[test]
    fn few_queries_of_f32_take_parts_of_many_keys() {
        let (names, scratch) = planned(Target::Sm80, DType::F32, [8, 1, 4096, 64], None);
        assert_eq!(names, ["cast_f16_f32", "attention_causal_rows64_parts", "flash_combine_f32"]);
        // Values in f32, and of each of the 8 rows sums and two words of 128 parts.
        assert_eq!(scratch, 2 * 4096 * 64 * 4 + 128 * 8 * (64 + 2) * 4);
        for few in [[8, 1, 20, 64], [64, 64, 4096, 64], [8, 1, 4096, 63], [8, 1, 4096, 300]] {
            let (names, _) = planned(Target::Sm80, DType::F32, few, None);
            assert_eq!(names.len(), 2, "{few:?} {names:?}");
        }
    }

    #[test]
    fn few_queries_take_parts_of_many_keys() {
        for target in [Target::Sm80, Target::Sm90a] {
            let (names, scratch) = planned(target, DType::F16, [8, 1, 8192, 128], None);
            assert_eq!(names, ["flash_attention_causal_f16_parts", "flash_combine_f32"]);
            // Of each of the 8 rows a sum of 128 elements and two words, of 32 parts.
            assert_eq!(scratch, 32 * 8 * (128 + 2) * 4);
        }
    }
}
