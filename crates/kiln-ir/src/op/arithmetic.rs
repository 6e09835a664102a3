use super::{Bound, Contract, Operation, Outputs};
use crate::named::words;
use crate::{DType, Error, Result, TensorType};

/// A function of two integers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IntegerFunction {
    /// Sum, which wraps around.
    Add,
    /// Difference, which wraps around.
    Sub,
    /// Product, which wraps around.
    Mul,
    /// Minimum.
    Min,
    /// Maximum.
    Max,
}

impl IntegerFunction {
    /// Every function.
    pub const ALL: &[Self] = &[Self::Add, Self::Sub, Self::Mul, Self::Min, Self::Max];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Add => "add",
            Self::Sub => "sub",
            Self::Mul => "mul",
            Self::Min => "min",
            Self::Max => "max",
        }
    }
}

words!(IntegerFunction);

/// A function of each pair of integers, of their type.
///
/// Operands: two tensors of one type of integers. They have the shape of the result, or one that repeats along its outer dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Arithmetic {
    /// The function.
    pub function: IntegerFunction,
}

impl Operation for Arithmetic {
    fn name(&self) -> &'static str {
        "arithmetic"
    }

    fn formula(&self) -> &'static str {
        "a + b, a - b, a * b, min(a, b) or max(a, b) of integers"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [a, b] = inputs else { return Err(Error::Arity { op, expected: 2, found: inputs.len() }) };
        if !matches!(a.dtype, DType::I32 | DType::U32 | DType::I8 | DType::U8) {
            return Err(Error::Type { op, index: 0, expected: DType::I32, found: a.dtype });
        }
        if b.dtype != a.dtype {
            return Err(Error::Type { op, index: 1, expected: a.dtype, found: b.dtype });
        }
        Ok(TensorType { dtype: a.dtype, shape: super::compare::repeated_shape(op, inputs)? }.into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "sums, differences and products wrap around" }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use crate::{Buffer, Data};
        let types = super::types_of(inputs);
        let n = self.infer(&types).map_or(0, |out| out[0].shape.numel());
        // By the definition: in integers that can represent every result, then modulo a power of two.
        let exact = |a: i128, b: i128| match self.function {
            IntegerFunction::Add => a + b,
            IntegerFunction::Sub => a - b,
            IntegerFunction::Mul => a * b,
            IntegerFunction::Min => a.min(b),
            IntegerFunction::Max => a.max(b),
        };
        macro_rules! of {
            ($($variant:ident $ty:ty),*) => {
                match (inputs[0].data(), inputs[1].data()) {
                    $((Data::$variant(a), Data::$variant(b)) => {
                        let of = |i: usize| exact(a[i % a.len()].into(), b[i % b.len()].into()) as $ty;
                        Buffer::$variant((0..n).map(of).collect())
                    })*
                    (a, _) => unreachable!("the shape rule refuses {}", a.dtype()),
                }
            };
        }
        vec![super::reference::Expected::Exact(of!(I32 i32, U32 u32, I8 i8, U8 u8))]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        use crate::Buffer;
        let mut random = Random::new(71);
        let mut cases = Vec::new();
        let ends = [i32::MIN, -2, -1, 0, 1, 2, 0x7fff, i32::MAX];
        for &function in IntegerFunction::ALL {
            let op = Self { function };
            let walk = |stride: usize| (0..64).map(|i| ends[(i / stride) % 8]).collect();
            cases.push(Case::new(op, [1, 8].map(|stride| Input::new(Buffer::I32(walk(stride)), &[64])).to_vec()));
            for dtype in [DType::I32, DType::U32, DType::I8, DType::U8] {
                for (a, b) in super::compare::shapes() {
                    let mut any = |dims: &[usize]| Input::any(dtype, dims, &mut random);
                    cases.push(Case::new(op, vec![any(a), any(b)]));
                }
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Shape;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn types_and_shapes_that_do_not_fit_are_refused() {
        let ty = |dtype: DType, dims: &[usize]| TensorType { dtype, shape: Shape::new(dims).unwrap() };
        let op = Arithmetic { function: IntegerFunction::Add };
        assert_eq!(op.infer(&[ty(DType::I8, &[2, 3]), ty(DType::I8, &[3])]).unwrap()[0], ty(DType::I8, &[2, 3]));
        for refused in [DType::F32, DType::F16, DType::Bool] {
            assert!(matches!(op.infer(&[ty(refused, &[3]), ty(refused, &[3])]), Err(Error::Type { index: 0, .. })));
        }
        assert!(matches!(op.infer(&[ty(DType::I32, &[3]), ty(DType::U32, &[3])]), Err(Error::Type { index: 1, .. })));
        assert!(matches!(op.infer(&[ty(DType::I32, &[3]), ty(DType::I32, &[2])]), Err(Error::Shape { .. })));
        assert!(matches!(op.infer(&[ty(DType::I32, &[3])]), Err(Error::Arity { .. })));
    }
}
