use super::super::{Contract, Operation, Outputs, Param};
use super::{CONTRACT, Dim, Layout, Movement, StridedCopy, no_axis, one, whole_rows};
use crate::{Error, MAX_RANK, Result, Shape, TensorType};

/// A tensor with one value added around it: this many entries before it and after it along each dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pad {
    before: [usize; MAX_RANK],
    after: [usize; MAX_RANK],
    value: Param,
}

impl Pad {
    /// `(before, after)` of each dimension, outermost first; dimensions beyond the list are not padded.
    ///
    /// # Errors
    /// [`Error::Shape`] for more dimensions than a tensor has.
    pub fn new(widths: &[(usize, usize)], value: f32) -> Result<Self> {
        if widths.len() > MAX_RANK {
            let reason = format!("{} dimensions are padded, a tensor has at most {MAX_RANK}", widths.len());
            return Err(Error::Shape { op: "pad", reason });
        }
        let mut pad = Self { before: [0; MAX_RANK], after: [0; MAX_RANK], value: value.into() };
        for (d, &(before, after)) in widths.iter().enumerate() {
            (pad.before[d], pad.after[d]) = (before, after);
        }
        Ok(pad)
    }

    /// The value that is added.
    pub fn value(&self) -> f32 {
        self.value.get()
    }
}

impl Movement for Pad {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        let out = self.infer(inputs)?[0];
        let (x, y) = (Layout::of(&inputs[0]), Layout::of(&out));
        if inputs[0].shape.is_empty() {
            return Ok(StridedCopy::whole(&inputs[0]));
        }
        let strides = x.strides().iter().zip(y.strides());
        let dims = x.extents().iter().zip(strides).map(|(&extent, (&from, &to))| Dim { extent, from, to });
        let first = self.before.iter().zip(y.strides()).map(|(before, stride)| before * stride).sum();
        Ok(StridedCopy::new(x.unit, dims, [0, first]))
    }

    fn fill(&self) -> Option<f32> {
        let none = self.before.iter().chain(&self.after).all(|&n| n == 0);
        (!none).then(|| self.value())
    }
}

impl Operation for Pad {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "pad"
    }

    fn formula(&self) -> &'static str {
        "y = x, and a value around it"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let x = one(op, inputs)?;
        let rank = x.shape.rank();
        if let Some(axis) = (rank..MAX_RANK).find(|&d| (self.before[d], self.after[d]) != (0, 0)) {
            return Err(no_axis(op, &x, axis));
        }
        whole_rows(op, &x, false)?;
        let value = self.value();
        if !x.dtype.holds(value) {
            return Err(Error::Parameter {
                op,
                reason: format!("the value {value} is not a number that elements of {} can have", x.dtype),
            });
        }
        let mut dims = [0; MAX_RANK];
        for (d, &extent) in x.shape.dims().iter().enumerate() {
            let sum = extent.checked_add(self.before[d]).and_then(|n| n.checked_add(self.after[d]));
            dims[d] = sum.ok_or_else(|| Error::Overflow { what: "pad", extents: x.shape.dims().to_vec() })?;
        }
        Ok(TensorType { dtype: x.dtype, shape: Shape::new(&dims[..rank])? }.into())
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
        let x = inputs[0].ty();
        let Ok(out) = self.infer(&[x]) else { return Vec::new() };
        super::moved(inputs, &out[0], self.value(), |index| {
            let inside = |(d, &i): (usize, &usize)| i.checked_sub(self.before[d]).filter(|&i| i < x.shape.dims()[d]);
            let at: Option<Vec<usize>> = index.iter().enumerate().map(inside).collect();
            at.map(|at| (0, at))
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        let mut samples = super::Samples::new(54);
        let mut cases = Vec::new();
        type Widths<'a> = &'a [(usize, usize)];
        let shapes: [(&[usize], Widths<'_>); 14] = [
            (&[], &[]),
            (&[5], &[(0, 0)]),
            (&[5], &[(2, 3)]),
            (&[0], &[(2, 1)]),
            (&[0], &[]),
            (&[4, 0], &[(1, 1)]),
            (&[4, 6], &[(1, 0), (0, 2)]),
            (&[4, 7], &[(0, 0), (1, 0)]),
            (&[3, 4, 5], &[(0, 0), (1, 2), (3, 1)]),
            (&[2, 3, 4, 6], &[(0, 0), (0, 0), (2, 2), (2, 2)]),
            (&[2, 1, 2, 3, 2, 3], &[(1, 0), (0, 1), (1, 1), (0, 0), (2, 0), (0, 3)]),
            (&[1, 2, 1, 2, 1, 3], &[(0, 0), (0, 0), (0, 0), (0, 0), (0, 0), (1, 1)]),
            (&[40, 31], &[(1, 1), (0, 1)]),
            (&[500, 600], &[(2, 1), (3, 3)]),
        ];
        for (dims, widths) in shapes {
            for value in [0.0, 3.0] {
                let Ok(op) = Self::new(widths, value) else { continue };
                cases.push(Case::new(op, vec![samples.floats(dims)]));
                if dims.iter().product::<usize>() < 10_000 {
                    cases.push(Case::new(op, vec![samples.words(dims)]));
                    cases.push(Case::new(op, vec![samples.bytes(dims)]));
                    cases.push(Case::new(op, vec![samples.halves(dims)]));
                }
            }
        }
        for value in [-0.0, f32::NEG_INFINITY, f32::NAN, 0.1, 1e-40] {
            if let Ok(op) = Self::new(&[(1, 2), (2, 1)], value) {
                cases.push(Case::new(op, vec![samples.floats(&[9, 8])]));
                cases.push(Case::new(op, vec![samples.halves(&[3, 3])]));
            }
        }
        cases
    }
}
