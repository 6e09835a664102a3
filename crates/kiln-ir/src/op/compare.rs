use super::{Bound, Contract, Operation, Outputs};
use crate::named::words;
use crate::{DType, Error, Kind, Result, Shape, TensorType};

/// A comparison of two elements.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Comparison {
    /// Equal.
    Eq,
    /// Not equal.
    Ne,
    /// Less.
    Lt,
    /// Less or equal.
    Le,
    /// Greater.
    Gt,
    /// Greater or equal.
    Ge,
}

impl Comparison {
    /// Every comparison.
    pub const ALL: &[Self] = &[Self::Eq, Self::Ne, Self::Lt, Self::Le, Self::Gt, Self::Ge];

    /// Its name, as methods of comparison have it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Eq => "eq",
            Self::Ne => "ne",
            Self::Lt => "lt",
            Self::Le => "le",
            Self::Gt => "gt",
            Self::Ge => "ge",
        }
    }

    /// Whether it holds. NaN is not equal to anything, and neither less nor greater.
    #[inline(always)]
    pub fn holds<T: PartialOrd>(self, a: T, b: T) -> bool {
        match self {
            Self::Eq => a == b,
            Self::Ne => a != b,
            Self::Lt => a < b,
            Self::Le => a <= b,
            Self::Gt => a > b,
            Self::Ge => a >= b,
        }
    }
}

words!(Comparison);

/// Whether a comparison holds for each pair of elements: booleans.
///
/// Operands: two tensors of floats, or two of the same other type. They have the shape of the result, or one that repeats along its
/// outer dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Compare {
    /// The comparison.
    pub comparison: Comparison,
}

impl Compare {
    /// The type of elements of a word that are ordered as those of a type: itself, but for types of a byte. Kernels that compare
    /// words have their operands cast to it.
    pub fn in_words(dtype: DType) -> DType {
        match dtype {
            DType::I8 => DType::I32,
            DType::U8 | DType::Bool => DType::U32,
            other => other,
        }
    }
}

/// Elements of one tensor where a condition holds, and of another elsewhere.
///
/// Operands: the condition, booleans, and two tensors of floats, of i32 or of u32. They have the shape of the result, or one that
/// repeats along its outer dimensions.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Select;

/// The shape to which all others are repeated along its outer dimensions.
pub(super) fn repeated_shape(op: &'static str, inputs: &[TensorType]) -> Result<Shape> {
    let mut out = inputs[0].shape;
    for input in &inputs[1..] {
        if out.is_suffix_of(&input.shape) {
            out = input.shape;
        } else if !input.shape.is_suffix_of(&out) {
            let allowed = "one shape must be the end of the other, as [3] is of [2, 3]; broadcast_to makes it so where an \
                           extent is 1";
            return Err(Error::mismatch(op, "operands", &out, &input.shape, allowed));
        }
    }
    Ok(out)
}

impl Operation for Compare {
    fn name(&self) -> &'static str {
        "compare"
    }

    fn formula(&self) -> &'static str {
        "whether a = b, a ≠ b, a < b, a ≤ b, a > b or a ≥ b"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [a, b] = inputs else { return Err(Error::Arity { op, expected: 2, found: inputs.len() }) };
        let floats = a.dtype.is_float() && b.dtype.is_float();
        match a.dtype.kind() {
            Kind::Blocks => return Err(Error::Type { op, index: 0, expected: DType::F32, found: a.dtype }),
            _ if !floats && a.dtype != b.dtype => {
                return Err(Error::Type { op, index: 1, expected: a.dtype, found: b.dtype });
            }
            _ => {}
        }
        Ok(TensorType { dtype: DType::Bool, shape: repeated_shape(op, inputs)? }.into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "IEEE 754: NaN is not equal to anything, and neither less nor greater; -0 = +0",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let types = super::types_of(inputs);
        let n = self.infer(&types).map_or(0, |out| out[0].shape.numel());
        let number = |o: usize, i: usize| super::cast::number(&inputs[o].data(), i % inputs[o].shape().numel());
        let holds = (0..n).map(|i| self.comparison.holds(number(0, i), number(1, i)).into());
        vec![super::reference::Expected::Exact(crate::Buffer::Bool(holds.collect()))]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(61);
        let mut cases = Vec::new();
        for &comparison in Comparison::ALL {
            let op = Self { comparison };
            // Every pair of special values, and numbers that are often equal.
            let n = SPECIAL.len();
            let walk = |stride: usize| (0..n * n).map(|i| SPECIAL[(i / stride) % n]).collect::<Vec<f32>>();
            cases.push(Case::new(op, [1, n].map(|stride| Input::f32(walk(stride), &[n * n])).to_vec()));
            for (a, b) in shapes() {
                let mut few = |dims: &[usize]| {
                    let x = random.uniforms(dims.iter().product(), -3.0, 3.0).into_iter().map(f32::round).collect();
                    Input::f32(x, dims)
                };
                cases.push(Case::new(op, vec![few(a), few(b)]));
            }
            for &dtype in DType::ALL.iter().filter(|dtype| !dtype.is_float()) {
                let mut any = |dims: &[usize]| Input::any(dtype, dims, &mut random);
                cases.push(Case::new(op, vec![any(&[5, 70]), any(&[70])]));
            }
        }
        cases
    }
}

/// Shapes of two operands: equal, repeated on either side, one element, empty.
#[cfg(feature = "reference")]
pub(super) fn shapes() -> [(&'static [usize], &'static [usize]); 8] {
    [
        (&[0], &[0]),
        (&[1], &[1]),
        (&[6], &[6]),
        (&[1027], &[]),
        (&[3, 5], &[5]),
        (&[64], &[2, 3, 64]),
        (&[], &[7]),
        (&[300, 401], &[300, 401]),
    ]
}

impl Operation for Select {
    fn name(&self) -> &'static str {
        "select"
    }

    fn formula(&self) -> &'static str {
        "a where the condition holds, else b"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [condition, a, b] = inputs else { return Err(Error::Arity { op, expected: 3, found: inputs.len() }) };
        if condition.dtype != DType::Bool {
            return Err(Error::Type { op, index: 0, expected: DType::Bool, found: condition.dtype });
        }
        let dtype = match (a.dtype, b.dtype) {
            (a, b) if a.is_float() && b.is_float() => DType::F32,
            (DType::I32 | DType::U32, b) if b == a.dtype => b,
            (DType::I32 | DType::U32, found) => return Err(Error::Type { op, index: 2, expected: a.dtype, found }),
            (a, found) if a.is_float() => return Err(Error::Type { op, index: 2, expected: DType::F32, found }),
            (found, _) => return Err(Error::Type { op, index: 1, expected: DType::F32, found }),
        };
        Ok(TensorType { dtype, shape: repeated_shape(op, inputs)? }.into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "bits are copied" }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        let types = super::types_of(inputs);
        let Ok(out) = self.infer(&types) else { return Vec::new() };
        let n = out[0].shape.numel();
        let at = |o: usize, i: usize| i % inputs[o].shape().numel();
        let chosen = |i: usize| if inputs[0].data().load(at(0, i)) != 0.0 { 1 } else { 2 };
        let places = (0..n).map(|i| (chosen(i), i));
        if out[0].dtype == DType::F32 {
            let values: Vec<f64> = places.map(|(o, i)| inputs[o].data().load(at(o, i)).into()).collect();
            return vec![Expected::F32 { magnitudes: vec![0.0; values.len()], values }];
        }
        let mut elements = crate::Buffer::zeros(&out[0]).expect("a case fits memory");
        let mut found = elements.as_mut();
        for (o, i) in places {
            let from = 4 * at(o, i);
            found.as_bytes()[4 * i..4 * i + 4].copy_from_slice(&inputs[o].data().as_bytes()[from..from + 4]);
        }
        vec![Expected::Exact(elements)]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(67);
        let mut cases = Vec::new();
        for (a, b) in shapes() {
            for condition in [a, b, &[]] {
                let all = if a.len() > b.len() { a } else { b };
                let mut number = |dims: &[usize]| Input::f32(random.uniforms(dims.iter().product(), -9.0, 9.0), dims);
                let (a, b) = (number(a), number(b));
                let condition = if all == [0] { all } else { condition };
                cases.push(Case::new(Self, vec![Input::any(DType::Bool, condition, &mut random), a, b]));
            }
        }
        let n = SPECIAL.len();
        let special = Input::f32(SPECIAL.to_vec(), &[n]);
        cases.push(Case::new(Self, vec![Input::any(DType::Bool, &[4, n], &mut random), special.clone(), special]));
        for dtype in [DType::I32, DType::U32] {
            let mut any = |dtype: DType, dims: &[usize]| Input::any(dtype, dims, &mut random);
            cases.push(Case::new(Self, vec![any(DType::Bool, &[7, 33]), any(dtype, &[33]), any(dtype, &[7, 33])]));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn ty(dtype: DType, dims: &[usize]) -> TensorType {
        TensorType { dtype, shape: Shape::new(dims).unwrap() }
    }

    #[test]
    fn types_and_shapes_that_do_not_fit_are_refused() {
        let op = Compare { comparison: Comparison::Lt };
        let (f, h, i, b) = (DType::F32, DType::F16, DType::I32, DType::Bool);
        assert_eq!(op.infer(&[ty(f, &[2, 3]), ty(h, &[3])]).unwrap()[0], ty(b, &[2, 3]));
        assert!(matches!(op.infer(&[ty(f, &[3]), ty(i, &[3])]), Err(Error::Type { index: 1, .. })));
        assert!(matches!(op.infer(&[ty(i, &[3]), ty(DType::U32, &[3])]), Err(Error::Type { index: 1, .. })));
        assert!(matches!(op.infer(&[ty(f, &[3]), ty(f, &[2])]), Err(Error::Shape { .. })));
        assert!(matches!(op.infer(&[ty(f, &[3])]), Err(Error::Arity { .. })));
        assert_eq!(Select.infer(&[ty(b, &[3]), ty(h, &[3]), ty(f, &[])]).unwrap()[0], ty(f, &[3]));
        assert_eq!(Select.infer(&[ty(b, &[2, 3]), ty(i, &[3]), ty(i, &[])]).unwrap()[0], ty(i, &[2, 3]));
        assert!(matches!(Select.infer(&[ty(f, &[3]), ty(f, &[3]), ty(f, &[3])]), Err(Error::Type { index: 0, .. })));
        assert!(matches!(Select.infer(&[ty(b, &[3]), ty(b, &[3]), ty(b, &[3])]), Err(Error::Type { index: 1, .. })));
        assert!(matches!(Select.infer(&[ty(b, &[3]), ty(f, &[3]), ty(i, &[3])]), Err(Error::Type { index: 2, .. })));
    }
}
