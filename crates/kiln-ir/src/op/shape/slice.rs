use std::ops::Range;

use super::super::{Contract, Operation, Outputs};
use super::{CONTRACT, Dim, Layout, Movement, StridedCopy, no_axis, one, whole_rows};
use crate::{Error, MAX_RANK, Result, Shape, TensorType};

/// A part of a tensor: along each dimension the indices of a range, every one or every `step`-th of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Slice {
    cuts: [Cut; MAX_RANK],
    /// The dimension whose range must end at the dimension's end.
    last: Option<u8>,
}

/// The range along one dimension.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Cut {
    start: usize,
    /// One past the last index; `usize::MAX` means the extent.
    end: usize,
    step: usize,
}

impl Cut {
    const WHOLE: Self = Self { start: 0, end: usize::MAX, step: 1 };
}

impl Slice {
    /// The whole tensor, to be cut by [`Slice::cut`].
    pub const WHOLE: Self = Self { cuts: [Cut::WHOLE; MAX_RANK], last: None };

    /// Every `step`-th index of a range along one dimension, all indices along the others. A range that ends at
    /// `usize::MAX` ends where the dimension does.
    ///
    /// # Errors
    /// The errors of [`Slice::cut`].
    pub fn along(axis: usize, range: Range<usize>, step: usize) -> Result<Self> {
        Self::WHOLE.cut(axis, range, step)
    }

    /// This slice, cut along another dimension too.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a step of zero, [`Error::View`] for a dimension that no tensor has and for a range that ends
    /// before it starts.
    pub fn cut(mut self, axis: usize, range: Range<usize>, step: usize) -> Result<Self> {
        let (start, end) = (range.start, range.end);
        if step == 0 {
            return Err(Error::Parameter { op: "slice", reason: "the step is 0; it must be at least 1".into() });
        }
        if start > end {
            return Err(Error::View { what: "slice", reason: format!("{range:?} ends before it starts") });
        }
        let Some(cut) = self.cuts.get_mut(axis) else {
            let reason = format!("dimension {axis} does not exist; a tensor has at most {MAX_RANK}");
            return Err(Error::View { what: "slice", reason });
        };
        *cut = Cut { start, end, step };
        Ok(self)
    }

    /// Consecutive parts of a dimension with these lengths. The last one has to end where the dimension does.
    ///
    /// # Errors
    /// [`Error::Parameter`] when no length is given, [`Error::View`] for a dimension that no tensor has and for parts that no
    /// tensor is as long as.
    pub fn parts(axis: usize, lengths: &[usize]) -> Result<Vec<Self>> {
        if lengths.is_empty() {
            return Err(Error::Parameter { op: "split", reason: "no lengths are given, at least 1 is needed".into() });
        }
        let mut start = 0usize;
        let mut parts = Vec::with_capacity(lengths.len());
        for (i, &length) in lengths.iter().enumerate() {
            let end = start.checked_add(length).filter(|&end| end < usize::MAX).ok_or_else(|| Error::View {
                what: "split",
                reason: format!("parts of {lengths:?} are longer together than any dimension"),
            })?;
            let mut part = Self::along(axis, start..end, 1)?;
            part.last = (i + 1 == lengths.len()).then_some(axis as u8);
            parts.push(part);
            start = end;
        }
        Ok(parts)
    }

    /// For each dimension the first index, the number of indices and the step.
    fn taken(&self, x: &TensorType) -> Result<[(usize, usize, usize); MAX_RANK]> {
        let (op, dims) = (self.name(), x.shape.dims());
        let mut taken = [(0, 1, 1); MAX_RANK];
        for (axis, cut) in self.cuts.iter().enumerate() {
            let Some(&extent) = dims.get(axis) else {
                if *cut != Cut::WHOLE {
                    return Err(no_axis(op, x, axis));
                }
                continue;
            };
            let end = if cut.end == usize::MAX { extent } else { cut.end };
            let refuse = |why: &str| {
                let reason = format!("{}..{end} along dimension {axis} of {} {why} {extent}", cut.start, x.shape);
                Err(Error::View { what: op, reason })
            };
            if end > extent || cut.start > end {
                return refuse("is not inside of 0..");
            }
            if self.last == Some(axis as u8) && end != extent {
                return refuse("is the last part and ends before");
            }
            taken[axis] = (cut.start, (end - cut.start).div_ceil(cut.step), cut.step);
        }
        Ok(taken)
    }
}

impl Movement for Slice {
    fn copy(&self, inputs: &[TensorType], _: usize) -> Result<StridedCopy> {
        let out = self.infer(inputs)?[0];
        let taken = self.taken(&inputs[0])?;
        let (x, y) = (Layout::of(&inputs[0]), Layout::of(&out));
        // An empty result needs no valid indices.
        if out.shape.is_empty() {
            return Ok(StridedCopy::whole(&out));
        }
        // Rows of blocks are copied whole, counted in units.
        let dims = (0..y.extents().len()).map(|d| Dim {
            extent: y.extents()[d],
            from: if y.extents()[d] > 1 { x.strides()[d] * taken[d].2 } else { 0 },
            to: y.strides()[d],
        });
        let first = taken.iter().zip(x.strides()).map(|((start, ..), stride)| start * stride).sum();
        Ok(StridedCopy::new(x.unit, dims, [first, 0]))
    }
}

impl Operation for Slice {
    const AS_STORED: bool = true;

    fn name(&self) -> &'static str {
        "slice"
    }

    fn formula(&self) -> &'static str {
        "yᵢ = xₖ, k = start + i step"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let x = one(op, inputs)?;
        let taken = self.taken(&x)?;
        let rank = x.shape.rank();
        whole_rows(op, &x, rank == 0 || taken[rank - 1].1 == x.shape.columns())?;
        let dims: Vec<usize> = taken[..rank].iter().map(|&(_, count, _)| count).collect();
        Ok(TensorType { dtype: x.dtype, shape: Shape::new(&dims)? }.into())
    }

    fn renames(&self, inputs: &[TensorType]) -> bool {
        self.is_whole(inputs)
    }

    fn flops(&self, _: &[TensorType], _: &[TensorType]) -> u64 {
        0
    }

    fn bytes_read(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        outputs[0].bytes() as u64
    }

    fn contract(&self) -> Contract {
        CONTRACT
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::super::reference::Expected> {
        let x = inputs[0].ty();
        let (Ok(out), Ok(taken)) = (self.infer(&[x]), self.taken(&x)) else { return Vec::new() };
        super::moved(inputs, &out[0], 0.0, |index| {
            Some((0, index.iter().zip(&taken).map(|(i, (start, _, step))| start + i * step).collect()))
        })
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::super::reference::Case> {
        use super::super::reference::Case;
        type Cuts<'a> = &'a [(usize, Range<usize>, usize)];
        const END: usize = usize::MAX;
        let mut samples = super::Samples::new(52);
        let mut cases = Vec::new();
        let shapes: [(&[usize], Cuts<'_>); 19] = [
            (&[], &[]),
            (&[7], &[(0, 0..7, 1)]),
            (&[7], &[(0, 2..6, 1)]),
            (&[7], &[(0, 6..7, 9)]),
            (&[7], &[(0, 7..7, 1)]),
            (&[0], &[(0, 0..0, 3)]),
            (&[100], &[(0, 1..END, 3)]),
            (&[9, 10], &[(0, 3..8, 1)]),
            (&[9, 10], &[(1, 2..6, 1)]),
            (&[9, 11], &[(0, 1..9, 2), (1, 3..11, 4)]),
            (&[5, 0, 3], &[(0, 1..4, 1)]),
            (&[3, 4, 5], &[(1, 1..4, 2)]),
            (&[3, 4, 5, 6], &[(0, 1..2, 1), (2, 0..END, 3), (3, 1..5, 1)]),
            (&[2, 3, 2, 3, 2, 7], &[(5, 1..7, 2), (3, 1..3, 1), (1, 0..END, 2)]),
            (&[2, 3, 2, 3, 2, 4], &[(0, 1..2, 1), (5, 0..4, 1)]),
            (&[3, 40, 64], &[(1, 8..24, 1)]),
            (&[12, 64], &[(1, 16..48, 1)]),
            (&[700, 521], &[(1, 0..520, 1), (0, 1..699, 1)]),
            (&[600, 700], &[(1, 1..END, 2)]),
        ];
        for (dims, cuts) in shapes {
            let op = cuts.iter().try_fold(Self::WHOLE, |op, (axis, range, step)| op.cut(*axis, range.clone(), *step));
            let Ok(op) = op else { continue };
            cases.push(Case::new(op, vec![samples.floats(dims)]));
            if dims.iter().product::<usize>() < 10_000 {
                cases.push(Case::new(op, vec![samples.words(dims)]));
                cases.push(Case::new(op, vec![samples.halves(dims)]));
                cases.push(Case::new(op, vec![samples.bytes(dims)]));
            }
        }
        if let Ok(op) = Self::along(0, 1..5, 2) {
            cases.extend(crate::QuantFormat::ALL.map(|format| Case::new(op, vec![samples.blocks(format, &[5, 3], 1)])));
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn ranges_are_checked() {
        let x = TensorType::f32(Shape::new(&[4, 6]).unwrap());
        let infer = |op: Slice| op.infer(&[x]).map(|out| out[0].shape.dims().to_vec());
        assert_eq!(infer(Slice::along(1, 1..6, 2).unwrap()).unwrap(), [4, 3]);
        assert_eq!(infer(Slice::along(0, 4..4, 7).unwrap()).unwrap(), [0, 6]);
        assert!(matches!(Slice::along(0, 0..1, 0), Err(Error::Parameter { .. })));
        assert!(matches!(Slice::along(0, 2..1, 1), Err(Error::View { .. })));
        assert!(matches!(Slice::along(6, 0..1, 1), Err(Error::View { .. })));
        assert!(matches!(infer(Slice::along(2, 0..1, 1).unwrap()), Err(Error::View { .. })));
        assert!(matches!(infer(Slice::along(1, 0..7, 1).unwrap()), Err(Error::View { .. })));
        assert!(matches!(infer(Slice::along(1, 7..usize::MAX, 1).unwrap()), Err(Error::View { .. })));
        let largest = Slice::along(1, 0..6, usize::MAX).unwrap();
        assert_eq!(infer(largest).unwrap(), [4, 1]);
        assert_eq!(largest.copy(&[x], 0).unwrap().len(), 4);
    }

    #[test]
    fn parts_fill_their_dimension() {
        let x = TensorType::f32(Shape::new(&[2, 6]).unwrap());
        let widths = |lengths: &[usize]| -> Result<Vec<usize>> {
            Slice::parts(1, lengths)?.iter().map(|part| Ok(part.infer(&[x])?[0].shape.columns())).collect()
        };
        assert_eq!(widths(&[1, 0, 5]).unwrap(), [1, 0, 5]);
        for wrong in [&[1, 4][..], &[3, 4], &[7], &[usize::MAX, 2], &[usize::MAX]] {
            assert!(matches!(widths(wrong), Err(Error::View { .. })), "{wrong:?}");
        }
        assert!(matches!(widths(&[]), Err(Error::Parameter { .. })));
    }
}
