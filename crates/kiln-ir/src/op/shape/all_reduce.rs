use super::{CONTRACT, Movement, Operation, StridedCopy};
use crate::op::{Contract, Outputs, expect_types};
use crate::{DType, Result, TensorType};

/// The sum over the devices of a group: each holds an operand of its own, and all get the same sum, added in the order of the
/// devices.
///
/// A graph that runs on a single device has nothing to add: the result is the operand. Operands of f16 and bf16 are added as f32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AllReduce;

impl Movement for AllReduce {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        self.infer(inputs)?;
        Ok(StridedCopy::whole(&inputs[0]))
    }
}

impl Operation for AllReduce {
    fn name(&self) -> &'static str {
        "all_reduce"
    }

    fn formula(&self) -> &'static str {
        "y = Σ x of each device of a group"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        expect_types(self.name(), inputs, &[DType::F32])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract {
            special: "on one device every bit is kept; in a group IEEE 754 sums in the order of the devices",
            ..CONTRACT
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<crate::op::reference::Expected> {
        let values: Vec<f64> = inputs[0].data().f32().iter().copied().map(f64::from).collect();
        vec![crate::op::reference::Expected::F32 { magnitudes: vec![0.0; values.len()], values }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<crate::op::reference::Case> {
        use crate::op::reference::Case;
        let mut samples = super::Samples::new(57);
        let shapes: [&[usize]; 6] = [&[], &[0, 5], &[7], &[2, 3, 4], &[600, 601], &[1, 2, 3, 5, 3, 1]];
        shapes.iter().map(|dims| Case::new(Self, vec![samples.floats(dims)])).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Error, Shape};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn floats_are_added_as_f32() {
        let ty = |dtype: DType| TensorType { dtype, shape: Shape::new(&[2, 3]).unwrap() };
        for float in [DType::F32, DType::F16, DType::Bf16] {
            assert_eq!(AllReduce.infer(&[ty(float)]).unwrap()[0], ty(DType::F32));
        }
        assert!(matches!(AllReduce.infer(&[ty(DType::U32)]), Err(Error::Type { op: "all_reduce", index: 0, .. })));
        assert!(matches!(AllReduce.infer(&[ty(DType::F32); 2]), Err(Error::Arity { expected: 1, found: 2, .. })));
    }
}
