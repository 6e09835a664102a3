//! Strided copies: the common form of all operations that only move elements.

use std::ops::Range;

use crate::{DType, MAX_RANK, TensorType};

/// One dimension of a [`StridedCopy`]: the number of steps, and their lengths in the source and in the destination.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dim {
    /// Number of steps.
    pub extent: usize,
    /// Units from one step to the next in the source; 0 repeats the same ones.
    pub from: usize,
    /// Units from one step to the next in the destination.
    pub to: usize,
}

/// A copy of units of memory from one strided arrangement to another: `out[to + Σ iₔ toₔ] = x[from + Σ iₔ fromₔ]`.
///
/// A unit is an element, or two bytes of the blocks of a quantised format. Every unit of the destination is written at most
/// once. Dimensions come outermost first, as they do in the destination; those of extent 1 are left out and neighbours that
/// follow one another on both sides are merged, so that a copy of contiguous memory has one dimension and the copy of a
/// single unit has rank 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct StridedCopy {
    unit: usize,
    rank: usize,
    dims: [Dim; MAX_RANK],
    first: [usize; 2],
}

impl StridedCopy {
    const NONE: Dim = Dim { extent: 1, from: 0, to: 0 };

    /// A copy of units of this many bytes, from the unit `first[0]` to the unit `first[1]`.
    pub(super) fn new(unit: usize, dims: impl IntoIterator<Item = Dim>, first: [usize; 2]) -> Self {
        let mut copy = Self { unit, rank: 0, dims: [Self::NONE; MAX_RANK], first };
        for dim in dims {
            if dim.extent == 0 {
                let nothing = Dim { extent: 0, from: 1, to: 1 };
                return Self { unit, rank: 1, dims: [nothing; MAX_RANK], first: [0; 2] };
            }
            if dim.extent == 1 {
                continue;
            }
            match copy.rank.checked_sub(1).and_then(|last| copy.dims.get_mut(last)) {
                Some(outer) if outer.from == dim.extent * dim.from && outer.to == dim.extent * dim.to => {
                    *outer = Dim { extent: outer.extent * dim.extent, ..dim };
                }
                _ => {
                    copy.dims[copy.rank] = dim;
                    copy.rank += 1;
                }
            }
        }
        copy
    }

    /// A copy of a whole tensor.
    pub(super) fn whole(ty: &TensorType) -> Self {
        let layout = Layout::of(ty);
        Self::new(layout.unit, [Dim { extent: layout.numel(), from: 1, to: 1 }], [0; 2])
    }

    /// Bytes of a unit.
    pub fn unit(&self) -> usize {
        self.unit
    }

    /// The dimensions, outermost first.
    pub fn dims(&self) -> &[Dim] {
        &self.dims[..self.rank]
    }

    /// The first unit that is read, and the first that is written.
    pub fn first(&self) -> [usize; 2] {
        self.first
    }

    /// Units that are written.
    pub fn len(&self) -> usize {
        self.dims().iter().map(|dim| dim.extent).product()
    }

    /// Whether nothing is copied.
    pub fn is_empty(&self) -> bool {
        self.dims().iter().any(|dim| dim.extent == 0)
    }

    /// One past the last unit that is read, and that is written.
    pub fn ends(&self) -> [usize; 2] {
        if self.is_empty() {
            return [0; 2];
        }
        let last = |first: usize, stride: fn(&Dim) -> usize| {
            first + self.dims().iter().map(|dim| (dim.extent - 1) * stride(dim)).sum::<usize>() + 1
        };
        [last(self.first[0], |dim| dim.from), last(self.first[1], |dim| dim.to)]
    }

    /// Units that follow one another on both sides: the longest piece that one `memcpy` moves.
    pub fn run(&self) -> usize {
        match self.dims().last() {
            Some(Dim { extent, from: 1, to: 1 }) => *extent,
            _ => 1,
        }
    }

    /// The same copy in the largest units of at most `most` bytes, a multiple of its own by a power of two.
    #[must_use]
    pub fn widened(&self, most: usize) -> Self {
        let mut copy = *self;
        while 2 * copy.unit <= most && copy.run() > 1 {
            let (inner, outer) = (copy.run(), copy.rank - 1);
            let even = inner.is_multiple_of(2)
                && copy.first.iter().all(|n| n.is_multiple_of(2))
                && copy.dims[..outer].iter().all(|dim| dim.from.is_multiple_of(2) && dim.to.is_multiple_of(2));
            if !even {
                break;
            }
            copy.unit *= 2;
            copy.first = copy.first.map(|n| n / 2);
            for dim in &mut copy.dims[..outer] {
                (dim.from, dim.to) = (dim.from / 2, dim.to / 2);
            }
            copy.dims[outer].extent /= 2;
            if copy.dims[outer].extent == 1 {
                copy.rank -= 1;
            }
        }
        copy
    }

    /// The units that are read, and those that are written, as ranges that hold all of them; both are empty for an empty copy.
    pub fn windows(&self) -> [Range<usize>; 2] {
        let [read, written] = self.ends();
        if self.is_empty() { [0..0, 0..0] } else { [self.first[0]..read, self.first[1]..written] }
    }

    /// Both halves of the copy, cut along the dimension that reaches farthest; `None` for a single unit.
    pub fn halves(&self) -> Option<[Self; 2]> {
        let far = |&d: &usize| (self.dims[d].extent - 1) * self.dims[d].from.max(self.dims[d].to);
        let d = (0..self.rank).filter(|&d| self.dims[d].extent > 1).max_by_key(far)?;
        let Dim { extent, from, to } = self.dims[d];
        let half = extent / 2;
        let part = |start: usize, extent: usize| {
            let mut dims = self.dims;
            dims[d].extent = extent;
            let first = [self.first[0] + start * from, self.first[1] + start * to];
            Self::new(self.unit, dims[..self.rank].iter().copied(), first)
        };
        Some([part(0, half), part(half, extent - half)])
    }

    /// The number of matrices, their rows and their columns, where the copy turns a stack of matrices that fills both sides,
    /// as [`crate::op::Transpose`] does.
    pub fn as_transpose(&self) -> Option<[usize; 3]> {
        let (matrices, columns, rows) = match *self.dims() {
            [columns, rows] => (1, columns, rows),
            [stack, columns, rows] => {
                let size = rows.extent.checked_mul(columns.extent)?;
                (stack.from == size && stack.to == size).then_some((stack.extent, columns, rows))?
            }
            _ => return None,
        };
        let turns = columns == Dim { extent: columns.extent, from: 1, to: rows.extent }
            && rows == Dim { extent: rows.extent, from: columns.extent, to: 1 };
        (turns && self.first == [0; 2]).then_some([matrices, rows.extent, columns.extent])
    }
}

/// The extents and strides of a contiguous tensor, in units.
#[derive(Debug, Clone, Copy)]
pub(super) struct Layout {
    /// Bytes of a unit.
    pub(super) unit: usize,
    rank: usize,
    extents: [usize; MAX_RANK],
    strides: [usize; MAX_RANK],
}

impl Layout {
    /// The last dimension of a quantised tensor counts pairs of bytes, or bytes if blocks have an odd number of them.
    pub(super) fn of(ty: &TensorType) -> Self {
        let rank = ty.shape.rank();
        let mut extents = [1; MAX_RANK];
        extents[..rank].copy_from_slice(ty.shape.dims());
        let mut unit = ty.dtype.size();
        if let (DType::Blocks(format), Some(last)) = (ty.dtype, rank.checked_sub(1)) {
            unit = if format.block_bytes().is_multiple_of(2) { 2 } else { 1 };
            extents[last] = extents[last] / format.block_len() * (format.block_bytes() / unit);
        }
        let mut strides = [1; MAX_RANK];
        for d in (1..rank).rev() {
            strides[d - 1] = strides[d] * extents[d];
        }
        Self { unit, rank, extents, strides }
    }

    pub(super) fn extents(&self) -> &[usize] {
        &self.extents[..self.rank]
    }

    pub(super) fn strides(&self) -> &[usize] {
        &self.strides[..self.rank]
    }

    fn numel(&self) -> usize {
        self.extents().iter().product()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{QuantFormat, Shape};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn dim(extent: usize, from: usize, to: usize) -> Dim {
        Dim { extent, from, to }
    }

    #[test]
    fn neighbours_that_follow_one_another_are_merged() {
        let copy = StridedCopy::new(4, [dim(2, 60, 12), dim(1, 9, 9), dim(3, 20, 4), dim(4, 1, 1)], [3, 5]);
        assert_eq!(copy.dims(), [dim(6, 20, 4), dim(4, 1, 1)]);
        assert_eq!((copy.len(), copy.run(), copy.ends()), (24, 4, [3 + 5 * 20 + 4, 5 + 24]));
        let whole = StridedCopy::new(4, [dim(2, 12, 12), dim(3, 4, 4), dim(4, 1, 1)], [0; 2]);
        assert_eq!(whole.dims(), [dim(24, 1, 1)]);
        assert_eq!(StridedCopy::new(4, [dim(1, 7, 7)], [0; 2]).dims(), []);
        // Repeated dimensions merge too.
        assert_eq!(StridedCopy::new(4, [dim(2, 0, 3), dim(3, 0, 1)], [0; 2]).dims(), [dim(6, 0, 1)]);
        let nothing = StridedCopy::new(4, [dim(2, 0, 0), dim(0, 1, 1)], [9; 2]);
        assert!(nothing.is_empty() && nothing.ends() == [0; 2]);
    }

    #[test]
    fn units_grow_where_all_that_is_named_is_even() {
        let copy = StridedCopy::new(2, [dim(3, 8, 16), dim(4, 1, 1)], [4, 8]);
        let wide = copy.widened(4);
        assert_eq!((wide.unit(), wide.dims(), wide.first()), (4, &[dim(3, 4, 8), dim(2, 1, 1)][..], [2, 4]));
        let wide = copy.widened(16);
        assert_eq!((wide.unit(), wide.dims(), wide.first()), (8, &[dim(3, 2, 4)][..], [1, 2]));
        for odd in [
            StridedCopy::new(2, [dim(3, 8, 16), dim(4, 1, 1)], [1, 0]),
            StridedCopy::new(2, [dim(3, 8, 15), dim(4, 1, 1)], [0; 2]),
            StridedCopy::new(2, [dim(3, 8, 16), dim(5, 1, 1)], [0; 2]),
            StridedCopy::new(2, [dim(4, 2, 1)], [0; 2]),
        ] {
            assert_eq!(odd.widened(16), odd);
        }
    }

    #[test]
    fn halves_are_the_whole() {
        let copy = StridedCopy::new(4, [dim(5, 1, 21), dim(7, 30, 3), dim(3, 7, 1)], [2, 4]);
        let pairs = |copy: &StridedCopy| {
            let mut at = vec![copy.first()];
            for dim in copy.dims() {
                let step = |[f, t]: [usize; 2]| (0..dim.extent).map(move |i| [f + i * dim.from, t + i * dim.to]);
                at = at.into_iter().flat_map(step).collect();
            }
            let [read, written] = copy.windows();
            assert!(at.iter().all(|[f, t]| read.contains(f) && written.contains(t)));
            at
        };
        let [first, second] = copy.halves().unwrap();
        let mut both = [pairs(&first), pairs(&second)].concat();
        let mut whole = pairs(&copy);
        both.sort_unstable();
        whole.sort_unstable();
        assert_eq!(both, whole);
        assert_eq!(first.dims()[1].extent + second.dims()[1].extent, 7);
        assert_eq!(StridedCopy::new(4, [], [3, 4]).halves(), None);
        assert_eq!(StridedCopy::new(4, [dim(0, 1, 1)], [3, 4]).halves(), None);
    }

    #[test]
    fn a_transpose_is_recognised() {
        let turned = StridedCopy::new(4, [dim(5, 21, 21), dim(7, 1, 3), dim(3, 7, 1)], [0; 2]);
        assert_eq!(turned.as_transpose(), Some([5, 3, 7]));
        assert_eq!(StridedCopy::new(4, [dim(7, 1, 3), dim(3, 7, 1)], [0; 2]).as_transpose(), Some([1, 3, 7]));
        assert_eq!(StridedCopy::new(4, [dim(7, 1, 3), dim(3, 8, 1)], [0; 2]).as_transpose(), None);
        assert_eq!(StridedCopy::new(4, [dim(7, 1, 3), dim(3, 7, 1)], [1, 0]).as_transpose(), None);
        assert_eq!(StridedCopy::new(4, [dim(21, 1, 1)], [0; 2]).as_transpose(), None);
    }

    #[test]
    fn blocks_are_pairs_of_bytes_or_bytes() {
        for format in QuantFormat::ALL {
            let shape = Shape::new(&[3, 2 * format.block_len()]).unwrap();
            let ty = TensorType::blocks(format, shape).unwrap();
            let copy = StridedCopy::whole(&ty);
            assert_eq!(copy.len() * copy.unit(), ty.bytes());
        }
    }
}
