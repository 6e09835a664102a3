use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// The transpose of a matrix, or of each of a stack of them: the last two dimensions change places.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Transpose;

impl Transpose {
    /// The number of matrices, their rows and their columns.
    ///
    /// # Errors
    /// [`Error::Shape`] when there are fewer than two dimensions.
    pub fn extents(&self, x: &Shape) -> Result<(usize, usize, usize)> {
        let [outer @ .., rows, columns] = x.dims() else {
            return Err(Error::Shape { op: "transpose", reason: format!("{x} is not a matrix") });
        };
        Ok((outer.iter().product(), *rows, *columns))
    }
}

impl Operation for Transpose {
    fn name(&self) -> &'static str {
        "transpose"
    }

    fn formula(&self) -> &'static str {
        "yⱼᵢ = xᵢⱼ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("transpose", inputs, &[DType::F32])?;
        self.extents(&inputs[0].shape)?;
        let mut dims = inputs[0].shape.dims().to_vec();
        let rank = dims.len();
        dims.swap(rank - 2, rank - 1);
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "every bit is kept" }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let x = inputs[0].data().f32();
        let Ok((outer, rows, columns)) = self.extents(&inputs[0].shape()) else { return Vec::new() };
        let mut values = Vec::with_capacity(x.len());
        for o in 0..outer {
            for j in 0..columns {
                values.extend((0..rows).map(|i| f64::from(x[(o * rows + i) * columns + j])));
            }
        }
        let magnitudes = values.iter().map(|v| v.abs()).collect();
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(11);
        let mut cases = vec![Case::new(Self, vec![Input::f32(SPECIAL.to_vec(), &[8, 5])])];
        let extents = [0, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 33, 65, 130];
        for rows in extents {
            for columns in extents {
                cases.push(Case::new(
                    Self,
                    vec![Input::f32(random.uniforms(rows * columns, -1.0, 1.0), &[rows, columns])],
                ));
            }
        }
        for dims in [&[3, 4, 5][..], &[2, 1, 17, 19], &[0, 3, 4], &[1, 1027], &[1027, 1], &[1024, 1024], &[517, 1031]] {
            cases.push(Case::new(Self, vec![Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims)]));
        }
        cases
    }
}
