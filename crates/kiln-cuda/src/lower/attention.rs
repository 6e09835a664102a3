//! Attention.

use kiln_core::op::Attention;
use kiln_core::{DType, Error, Result, TensorType};
use kiln_ptx::PtxType;
use kiln_ptx::kernels::attention::{self, FlashPlan};

use super::{Lower, Lowering, Value, convert};
use crate::plan::Hardware;

/// Attention of f16 on tensor cores, where the device has any and its kernels take the extents and the scale.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit one another.
pub(crate) fn on_tensor_cores(hardware: Hardware, op: &Attention, inputs: &[TensorType]) -> Result<Option<FlashPlan>> {
    let extents = op.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape)?;
    if !hardware.has_tensor_cores() || inputs.iter().any(|input| input.dtype != DType::F16) {
        return Ok(None);
    }
    let types = [PtxType::F16, PtxType::F32];
    match attention::plan(types, &extents, op.causal, op.scale(extents.d), hardware.multiprocessors) {
        Ok(plan) => Ok(Some(plan)),
        Err(Error::Parameter { .. } | Error::Shape { .. } | Error::Limit { .. }) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Lower for Attention {
    const HALVES: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let out = outputs[0].at;
        if let Some(FlashPlan { attention: (kernel, launch), combine }) = on_tensor_cores(plan.hardware, self, &types)?
        {
            let [q, k, v] = [0, 1, 2].map(|i: usize| inputs[i].at);
            match combine {
                None => plan.run(kernel, launch, &[q, k, v, out]),
                Some((combine, adding, bytes)) => {
                    let parts = plan.scratch(bytes);
                    plan.run(kernel, launch, &[q, k, v, parts]);
                    plan.run(combine, adding, &[parts, out]);
                }
            }
            return Ok(());
        }
        let wide = inputs.iter().map(|&input| convert::widened(plan, input)).collect::<Result<Vec<_>>>()?;
        let extents = self.extents(&types[0].shape, &types[1].shape, &types[2].shape)?;
        let kernel = attention::Attention::new(extents.d, self.causal, plan.hardware.target);
        let launch = kernel.launch(&extents, self.scale(extents.d))?;
        plan.run(kernel, launch, &[wide[0].at, wide[1].at, wide[2].at, out]);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use kiln_core::Shape;
    use kiln_core::op::{Op, Param};
    use kiln_ptx::Target;

    use super::*;
    use crate::options::InputPrecision;
    use crate::plan::Plan;

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
        let (_, plan) = Plan::of_operation(&Op::from(Attention { causal: true, scale }), &types, hardware).unwrap();
        let is_tile = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let name = |name: String| name.split('_').take_while(|word| !is_tile(word)).collect::<Vec<_>>().join("_");
        let names = plan.dispatches.iter().map(|dispatch| name(dispatch.code.kernel().name())).collect();
        (names, plan.scratch.iter().sum::<u64>() as usize)
    }

    #[test]
    fn halves_go_to_tensor_cores() {
        for target in [Target::Sm80, Target::Sm90a, Target::Sm120] {
            let (names, scratch) = planned(target, DType::F16, [32, 512, 512, 64], None);
            assert_eq!((&*names.join(" "), scratch), ("flash_attention_causal_f16_f32", 0), "{target}");
        }
        let widened = ["convert_f16_f32", "convert_f16_f32", "convert_f16_f32", "attention_causal_rows64"];
        assert_eq!(planned(Target::Sm75, DType::F16, [32, 512, 512, 64], None).0, widened);
        // Rows that no kernel is for, and scales that turn the order of scores around.
        assert_eq!(planned(Target::Sm80, DType::F16, [32, 512, 512, 40], None).0, widened);
        assert_eq!(planned(Target::Sm80, DType::F16, [32, 512, 512, 64], Some(Param::from(-0.5))).0, widened);
        // One of them is f32.
        let names = planned(Target::Sm80, DType::F32, [32, 512, 512, 64], None).0;
        assert_eq!(names, ["convert_f16_f32", "attention_causal_rows64"]);
    }

    #[test]
    fn few_queries_take_parts_of_many_keys() {
        let (names, scratch) = planned(Target::Sm80, DType::F16, [8, 1, 8192, 128], None);
        assert_eq!(names, ["flash_attention_causal_f16_parts", "flash_combine_f32"]);
        // Of each of the 8 rows a sum of 128 elements and two words, of 32 parts.
        assert_eq!(scratch, 32 * 8 * (128 + 2) * 4);
    }
}
