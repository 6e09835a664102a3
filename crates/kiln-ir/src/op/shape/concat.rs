use super::super::call::MAX_OPERANDS;
use super::super::{Contract, Operation, Outputs};
use super::{CONTRACT, Dim, Layout, Movement, StridedCopy, no_axis, whole_rows};
use crate::{Error, Result, Shape, TensorType};

/// Tensors one after another along a dimension. They agree in all others and in their element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Concat {
    /// The dimension.
    pub axis: usize,
}

impl Concat {
    /// The greatest number of operands.
    pub const MOST: usize = MAX_OPERANDS;
}

impl Movement for Concat {
    fn copy(&self, inputs: &[TensorType], index: usize) -> Result<StridedCopy> {
        let out = self.infer(inputs)?[0];
        let Some(part) = inputs.get(index) else {
            return Err(Error::Arity { op: self.name(), expected: inputs.len(), found: index + 1 });
        };
        let (x, y) = (Layout::of(part), Layout::of(&out));
        let before: usize = inputs[..index].iter().map(|ty| Layout::of(ty).extents()[self.axis]).sum();
        let strides = x.strides().iter().zip(y.strides());
        let dims = x.extents().iter().zip(strides).map(|(&extent, (&from, &to))| Dim { extent, from, to });
        Ok(StridedCopy::new(x.unit, dims, [0, before * y.strides()[self.axis]]))
    }
}

impl Operation for Concat {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "concat"
    }

    fn formula(&self) -> &'static str {
        "y = x₀, x₁, … one after another along a dimension"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let Some((first, others)) = inputs.split_first() else {
            return Err(Error::Arity { op, expected: 1, found: 0 });
        };
        if inputs.len() > Self::MOST {
            return Err(Error::Arity { op, expected: Self::MOST, found: inputs.len() });
        }
        let axis = self.axis;
        if axis >= first.shape.rank() {
            return Err(no_axis(op, first, axis));
        }
        let mut dims = first.shape.dims().to_vec();
        for (i, other) in others.iter().enumerate() {
            if other.dtype != first.dtype {
                return Err(Error::Type { op, index: i + 1, expected: first.dtype, found: other.dtype });
            }
            let alike = other.shape.rank() == dims.len()
                && (0..dims.len()).all(|d| d == axis || other.shape.dims()[d] == dims[d]);
            if !alike {
                let reason = format!(
                    "{} and operand {}, {}, differ in another dimension than {axis}",
                    first.shape,
                    i + 1,
                    other.shape
                );
                return Err(Error::Shape { op, reason });
            }
            let sum = dims[axis].checked_add(other.shape.dims()[axis]);
            dims[axis] = sum.ok_or_else(|| Error::Overflow { what: "concat", extents: dims.clone() })?;
        }
        // Rows of blocks may be stacked, but not joined: a row is packed as a whole.
        whole_rows(op, first, inputs.len() == 1 || axis + 1 < dims.len())?;
        Ok(TensorType { dtype: first.dtype, shape: Shape::new(&dims)? }.into())
    }

    fn renames(&self, inputs: &[TensorType]) -> bool {
        self.is_whole(inputs)
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn contract(&self) -> Contract {
        CONTRACT
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::super::reference::Expected> {
        let types: Vec<TensorType> = inputs.iter().map(crate::Operand::ty).collect();
        let Ok(out) = self.infer(&types) else { return Vec::new() };
        super::moved(inputs, &out[0], 0.0, |index| {
            let mut at = index.to_vec();
            for (operand, ty) in types.iter().enumerate() {
                let extent = ty.shape.dims()[self.axis];
                if at[self.axis] < extent {
                    return Some((operand, at));
                }
                at[self.axis] -= extent;
            }
            None
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        let mut samples = super::Samples::new(55);
        let mut cases = Vec::new();
        let shapes: [(usize, &[&[usize]]); 14] = [
            (0, &[&[5]]),
            (0, &[&[5], &[1], &[0], &[7]]),
            (0, &[&[1], &[1], &[1], &[1], &[1], &[1], &[1], &[1]]),
            (0, &[&[0], &[0]]),
            (0, &[&[3, 4], &[2, 4]]),
            (1, &[&[3, 4], &[3, 2]]),
            (1, &[&[3, 3], &[3, 1], &[3, 2]]),
            (1, &[&[0, 3], &[0, 5]]),
            (1, &[&[2, 3, 4], &[2, 1, 4], &[2, 0, 4]]),
            (2, &[&[2, 3, 8], &[2, 3, 16]]),
            (0, &[&[2, 3, 4, 5], &[1, 3, 4, 5]]),
            (3, &[&[2, 1, 3, 2, 2, 3], &[2, 1, 3, 4, 2, 3]]),
            (5, &[&[2, 3, 2, 1, 2, 3], &[2, 3, 2, 1, 2, 4]]),
            (1, &[&[300, 500], &[300, 501]]),
        ];
        for (axis, parts) in shapes {
            let op = Self { axis };
            cases.push(Case::new(op, parts.iter().map(|dims| samples.floats(dims)).collect()));
            if parts.iter().map(|dims| dims.iter().product::<usize>()).sum::<usize>() < 10_000 {
                cases.push(Case::new(op, parts.iter().map(|dims| samples.words(dims)).collect()));
                cases.push(Case::new(op, parts.iter().map(|dims| samples.halves(dims)).collect()));
                cases.push(Case::new(op, parts.iter().map(|dims| samples.bytes(dims)).collect()));
            }
        }
        for format in crate::QuantFormat::ALL {
            let parts = [1, 3].map(|rows| samples.blocks(format, &[2, rows], 1)).to_vec();
            cases.push(Case::new(Self { axis: 1 }, parts));
        }
        cases
    }
}
