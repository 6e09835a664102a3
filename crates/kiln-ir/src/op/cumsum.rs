use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, TensorType};

/// Prefix sums along a dimension: each includes its own element.
///
/// The result is f32 of floats, and of the type of the operand of i32 and u32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Cumsum {
    /// The dimension.
    pub axis: usize,
}

/// The extents of an operation along a dimension: the number of rows, the elements of one row, and the distance between
/// neighbours of a row.
///
/// # Errors
/// [`Error::View`] when there is no such dimension.
pub(super) fn along(op: &'static str, ty: &TensorType, axis: usize) -> Result<[usize; 3]> {
    let dims = ty.shape.dims();
    let Some(&n) = dims.get(axis) else {
        let reason = format!("{} has no dimension {axis}; its dimensions are 0..{}", ty.shape, dims.len());
        return Err(Error::View { what: op, reason });
    };
    // If one extent is zero, the others may have any size.
    let product = |dims: &[usize]| dims.iter().fold(1usize, |product, &extent| product.saturating_mul(extent));
    Ok([product(&dims[..axis]), n, product(&dims[axis + 1..])])
}

impl Cumsum {
    /// Elements that a workgroup of a GPU sums at a time.
    pub const TILE: usize = 2048;

    /// The extents of an operand: outer dimensions, elements of a row, inner dimensions.
    ///
    /// # Errors
    /// [`Error::View`] when there is no such dimension.
    pub fn extents(&self, x: &TensorType) -> Result<[usize; 3]> {
        along(self.name(), x, self.axis)
    }
}

impl Operation for Cumsum {
    fn name(&self) -> &'static str {
        "cumsum"
    }

    fn formula(&self) -> &'static str {
        "yᵢ = Σ xⱼ, j ≤ i"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let [x] = inputs else { return Err(Error::Arity { op, expected: 1, found: inputs.len() }) };
        let dtype = match x.dtype {
            DType::I32 | DType::U32 => x.dtype,
            float if float.is_float() => DType::F32,
            found => return Err(Error::Type { op, index: 0, expected: DType::F32, found }),
        };
        self.extents(x)?;
        Ok(TensorType { dtype, shape: x.shape }.into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Magnitude(96.0),
            special: "IEEE 754: ±∞ after an infinity, NaN after a NaN or after infinities of both signs; the bound is \
                      for 65 536 elements, in general 64 + n / 2048; integers are exact and wrap around",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        // In a tile an element passes through at most 7 sums with its own 8 neighbours, 8 that join those of 256
        // invocations, and two with the preceding total: 17, and one more for each preceding tile of its part. If rows
        // are divided into P parts, each with 1 / P of the tiles, the total of a part passes through 15 and one for
        // each of its tiles, and through 17 where the totals are summed. That is 50 and twice the tiles of a part:
        // below the bound for any P from 2 on. The CPU sums in f64 and rounds once.
        let n = self.extents(&inputs[0]).map_or(0, |[_, n, _]| n);
        Bound::Magnitude(64.0 + (n / Self::TILE) as f64)
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        use super::reference::Expected;
        use crate::{Buffer, Data};
        let Ok([outer, n, inner]) = self.extents(&inputs[0].ty()) else { return Vec::new() };
        // The positions of each row's elements, in order.
        let rows = (0..outer * inner).map(|row| {
            let first = row / inner * n * inner + row % inner;
            (0..n).map(move |i| first + i * inner)
        });
        vec![match inputs[0].data() {
            Data::I32(x) => {
                let mut y = vec![0i32; x.len()];
                for row in rows {
                    let mut sum = 0i32;
                    for at in row {
                        sum = sum.wrapping_add(x[at]);
                        y[at] = sum;
                    }
                }
                Expected::Exact(Buffer::I32(y))
            }
            Data::U32(x) => {
                let mut y = vec![0u32; x.len()];
                for row in rows {
                    let mut sum = 0u32;
                    for at in row {
                        sum = sum.wrapping_add(x[at]);
                        y[at] = sum;
                    }
                }
                Expected::Exact(Buffer::U32(y))
            }
            data => {
                let x = data.f32();
                let (mut values, mut magnitudes) = (vec![0.0; x.len()], vec![0.0; x.len()]);
                for row in rows {
                    let (mut sum, mut magnitude) = (0.0, 0.0);
                    for at in row {
                        sum += f64::from(x[at]);
                        magnitude += f64::from(x[at].abs());
                        (values[at], magnitudes[at]) = (sum, magnitude);
                    }
                }
                Expected::F32 { values, magnitudes }
            }
        }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(73);
        let mut cases = Vec::new();
        let shapes: [(&[usize], usize); 13] = [
            (&[0], 0),
            (&[1], 0),
            (&[3, 0], 1),
            (&[0, 3], 1),
            (&[7], 0),
            (&[5, 33], 1),
            (&[5, 33], 0),
            (&[2, 3, 4], 1),
            (&[3, 2048], 1),
            (&[2, 2049], 1),
            (&[300, 70], 0),
            (&[70_001], 0),
            (&[3, 9000], 1),
        ];
        for (dims, axis) in shapes {
            let n = dims.iter().product();
            for (lo, hi) in [(-1.0, 1.0), (0.0, 1.0)] {
                cases.push(Case::new(Self { axis }, vec![Input::f32(random.uniforms(n, lo, hi), dims)]));
            }
            if n < 20_000 {
                let op = Self { axis };
                cases.extend([DType::I32, DType::U32].map(|ty| Case::new(op, vec![Input::any(ty, dims, &mut random)])));
            }
        }
        // Infinities and NaN persist from their position on.
        for special in
            [&[(900, f32::INFINITY)][..], &[(5, f32::NEG_INFINITY), (3000, f32::INFINITY)], &[(77, f32::NAN)]]
        {
            let mut x = random.uniforms(5000, -1.0, 1.0);
            special.iter().for_each(|&(at, value)| x[at] = value);
            cases.push(Case::new(Self { axis: 0 }, vec![Input::f32(x, &[5000])]));
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
        assert_eq!(Cumsum { axis: 1 }.infer(&[ty(DType::F16, &[2, 3])]).unwrap()[0], ty(DType::F32, &[2, 3]));
        assert_eq!(Cumsum { axis: 0 }.infer(&[ty(DType::I32, &[2, 3])]).unwrap()[0], ty(DType::I32, &[2, 3]));
        assert!(matches!(Cumsum { axis: 2 }.infer(&[ty(DType::F32, &[2, 3])]), Err(Error::View { .. })));
        assert!(matches!(Cumsum { axis: 0 }.infer(&[ty(DType::F32, &[])]), Err(Error::View { .. })));
        assert!(matches!(Cumsum { axis: 0 }.infer(&[ty(DType::I8, &[3])]), Err(Error::Type { index: 0, .. })));
        assert!(matches!(Cumsum { axis: 0 }.infer(&[]), Err(Error::Arity { .. })));
    }
}
