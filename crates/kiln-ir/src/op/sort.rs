use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Kind, Result, TensorType};

/// The elements along a dimension in order, with their indices.
///
/// The operand has elements of any type but blocks. Results: the elements, of the same type, and their indices, u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Sort {
    /// The dimension.
    pub axis: usize,
    /// Whether the greatest elements come first.
    pub descending: bool,
}

impl Sort {
    /// The extents of an operand: outer dimensions, elements of a row, inner dimensions.
    ///
    /// # Errors
    /// [`Error::View`] when there is no such dimension.
    pub fn extents(&self, x: &TensorType) -> Result<[usize; 3]> {
        super::cumsum::along(self.name(), x, self.axis)
    }
}

impl Operation for Sort {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "sort"
    }

    fn formula(&self) -> &'static str {
        "the xᵢ in ascending or descending order, and their i"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [x] = inputs else { return Err(Error::Arity { op, expected: 1, found: inputs.len() }) };
        if x.dtype.kind() == Kind::Blocks {
            return Err(Error::Type { op, index: 0, expected: DType::F32, found: x.dtype });
        }
        let [_, n, _] = self.extents(x)?;
        if u32::try_from(n).is_err() {
            return Err(Error::Shape { op, reason: format!("{n} positions are too many for indices of u32") });
        }
        Ok(Outputs::pair(*x, TensorType::u32(x.shape)))
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        let n = self.extents(&inputs[0]).map_or(0, |[_, n, _]| n);
        super::product(&[inputs[0].shape.numel(), n.max(2).ilog2() as usize])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "NaN comes last in either order; -0 equals +0; of equals the lower index comes first, in either order",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        use crate::Buffer;
        use std::cmp::Ordering;
        let (ty, x) = (inputs[0].ty(), inputs[0].data());
        let Ok([outer, n, inner]) = self.extents(&ty) else { return Vec::new() };
        let mut values = Buffer::zeros(&ty).expect("a case fits memory");
        let mut indices = vec![0u32; ty.shape.numel()];
        let size = ty.dtype.size();
        for row in 0..outer * inner {
            let at = |i: usize| (row / inner * n + i) * inner + row % inner;
            let number = |i: usize| super::cast::number(&x, at(i));
            let mut order: Vec<usize> = (0..n).collect();
            // Stable, so equals stay in the order of their indices.
            order.sort_by(|&a, &b| match (number(a), number(b)) {
                (a, b) if a.is_nan() || b.is_nan() => a.is_nan().cmp(&b.is_nan()),
                (a, b) if self.descending => b.partial_cmp(&a).unwrap_or(Ordering::Equal),
                (a, b) => a.partial_cmp(&b).unwrap_or(Ordering::Equal),
            });
            for (rank, i) in order.into_iter().enumerate() {
                let (to, from) = (at(rank) * size, at(i) * size);
                values.as_mut().as_bytes()[to..to + size].copy_from_slice(&x.as_bytes()[from..from + size]);
                indices[at(rank)] = i as u32;
            }
        }
        vec![Expected::Exact(values), Expected::Exact(Buffer::U32(indices))]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(79);
        let mut cases = Vec::new();
        let shapes: [(&[usize], usize); 14] = [
            (&[0], 0),
            (&[1], 0),
            (&[2], 0),
            (&[3, 0], 1),
            (&[0, 3], 1),
            (&[5, 33], 1),
            (&[5, 33], 0),
            (&[2, 3, 4], 1),
            (&[7, 1], 0),
            (&[2, 2048], 1),
            (&[2, 2049], 1),
            (&[3000, 3], 0),
            (&[2, 7001], 1),
            (&[20_000], 0),
        ];
        for (dims, axis) in shapes {
            let n = dims.iter().product();
            for descending in [false, true] {
                // Many equal values, and all different values.
                let coarse: Vec<f32> = (0..n).map(|_| random.below(9) as f32 - 4.0).collect();
                for data in [coarse, random.uniforms(n, -1.0, 1.0)] {
                    cases.push(Case::new(Self { axis, descending }, vec![Input::f32(data, dims)]));
                }
            }
        }
        let special: Vec<f32> = SPECIAL.into_iter().cycle().take(3 * SPECIAL.len() + 1).collect();
        for descending in [false, true] {
            let op = Self { axis: 0, descending };
            cases.push(Case::new(op, vec![Input::f32(special.clone(), &[special.len()])]));
            for value in [f32::NEG_INFINITY, f32::NAN, -0.0] {
                cases.push(Case::new(op, vec![Input::f32(vec![value; 90], &[90])]));
            }
            for &dtype in DType::ALL {
                cases.push(Case::new(op, vec![Input::any(dtype, &[301], &mut random)]));
                cases.push(Case::new(op, vec![Input::any(dtype, &[40, 7], &mut random)]));
                cases.push(Case::new(Self { axis: 1, descending }, vec![Input::any(dtype, &[2, 3003], &mut random)]));
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
    fn types_and_dimensions_that_do_not_fit_are_refused() {
        let ty = |dtype: DType, dims: &[usize]| TensorType { dtype, shape: Shape::new(dims).unwrap() };
        let op = Sort { axis: 1, descending: false };
        let out = op.infer(&[ty(DType::I8, &[2, 3])]).unwrap();
        assert_eq!(*out, [ty(DType::I8, &[2, 3]), ty(DType::U32, &[2, 3])]);
        assert!(matches!(op.infer(&[ty(DType::F32, &[3])]), Err(Error::View { .. })));
        assert!(matches!(op.infer(&[]), Err(Error::Arity { .. })));
        let blocks = ty(DType::Blocks(crate::QuantFormat::Q8_0), &[2, 32]);
        assert!(matches!(op.infer(&[blocks]), Err(Error::Type { index: 0, .. })));
        // With 32-bit addresses no dimension is too long.
        if let Ok(long) = usize::try_from(1u64 << 33) {
            assert!(matches!(op.infer(&[ty(DType::U8, &[1, long])]), Err(Error::Shape { .. })));
        }
    }
}
