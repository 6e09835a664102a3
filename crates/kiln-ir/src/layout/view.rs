//! Views: the positions of a tensor's elements in memory.

use std::fmt;
use std::marker::PhantomData;
use std::ops::Range;

use crate::{Error, Result, Shape};

/// The order of the elements of a tensor in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum MemoryLayout {
    /// The last dimension varies fastest.
    #[default]
    RowMajor,
    /// The first dimension varies fastest.
    ColumnMajor,
    /// The last two dimensions are divided into tiles. Each tile is row-major and stored whole, edge tiles included;
    /// the tiles follow one another row by row.
    Tiled {
        /// Rows and columns of a tile.
        tile_size: [usize; 2],
    },
}

/// The offset of an index along one dimension: `i / tile * tile_stride + i % tile * stride`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Step {
    stride: usize,
    tile: usize,
    tile_stride: usize,
}

impl Step {
    /// A dimension that is not cut into tiles.
    const fn plain(stride: usize) -> Self {
        Self { stride, tile: usize::MAX, tile_stride: 0 }
    }

    fn at(&self, i: usize) -> usize {
        i / self.tile * self.tile_stride + i % self.tile * self.stride
    }

    /// The greatest offset of any of `n >= 1` indices; `None` if it is not addressable.
    fn reach(&self, n: usize) -> Option<usize> {
        let last = n - 1;
        let (tile, rest) = (last / self.tile, last % self.tile);
        let end = |tile: usize, i: usize| tile.checked_mul(self.tile_stride)?.checked_add(i.checked_mul(self.stride)?);
        // The last index may have a smaller offset than the end of the whole tile before its own.
        let before = if tile == 0 { 0 } else { end(tile - 1, self.tile - 1)? };
        Some(end(tile, rest)?.max(before))
    }
}

/// Extents, strides and an offset, which map an index to an element of a buffer of `T`. It holds no data.
///
/// Dimensions beyond [`TensorView::ndim`] have extent 1. Every index of a view is inside of the address
/// space.
pub struct TensorView<T> {
    shape: [usize; 4],
    steps: [Step; 4],
    offset: usize,
    layout: MemoryLayout,
    ndim: usize,
    element: PhantomData<fn() -> T>,
}

impl<T> TensorView<T> {
    /// A row-major view from the start of a buffer. Trailing extents of 1 do not count as dimensions.
    ///
    /// # Errors
    /// [`Error::Overflow`] when the elements cannot be addressed.
    pub fn new(shape: [usize; 4]) -> Result<Self> {
        let ndim = shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1);
        Self::of(shape, ndim)
    }

    fn of(shape: [usize; 4], ndim: usize) -> Result<Self> {
        Shape::new(&shape)?;
        let steps = steps(MemoryLayout::RowMajor, &shape, ndim)?;
        Ok(Self { shape, steps, offset: 0, layout: MemoryLayout::RowMajor, ndim, element: PhantomData })
    }

    /// A vector.
    ///
    /// # Errors
    /// The errors of [`TensorView::new`].
    pub fn new_1d(len: usize) -> Result<Self> {
        Self::of([len, 1, 1, 1], 1)
    }

    /// A row-major matrix.
    ///
    /// # Errors
    /// The errors of [`TensorView::new`].
    pub fn new_2d(rows: usize, columns: usize) -> Result<Self> {
        Self::of([rows, columns, 1, 1], 2)
    }

    /// A row-major tensor of three dimensions.
    ///
    /// # Errors
    /// The errors of [`TensorView::new`].
    pub fn new_3d(d0: usize, d1: usize, d2: usize) -> Result<Self> {
        Self::of([d0, d1, d2, 1], 3)
    }

    /// A row-major tensor of four dimensions.
    ///
    /// # Errors
    /// The errors of [`TensorView::new`].
    pub fn new_4d(d0: usize, d1: usize, d2: usize, d3: usize) -> Result<Self> {
        Self::of([d0, d1, d2, d3], 4)
    }

    /// A view with strides of the caller, in elements. They may overlap (0 repeats an element); the layout is the one
    /// that they agree with, if any.
    ///
    /// # Errors
    /// [`Error::Overflow`] when an element cannot be addressed.
    pub fn with_strides(shape: [usize; 4], strides: [usize; 4]) -> Result<Self> {
        let view = Self { steps: strides.map(Step::plain), ..Self::new(shape)? };
        view.checked()
    }

    /// Refuses a view that reaches beyond the address space, and names its layout.
    fn checked(mut self) -> Result<Self> {
        if !self.is_empty() {
            let reach = |end: usize, d: usize| end.checked_add(self.steps[d].reach(self.shape[d])?);
            let last = (0..4).try_fold(self.offset, reach);
            if last.is_none_or(|last| last > isize::MAX as usize) {
                return Err(Error::Overflow { what: "view", extents: self.shape.to_vec() });
            }
        }
        if !matches!(self.layout, MemoryLayout::Tiled { .. }) {
            for layout in [MemoryLayout::ColumnMajor, MemoryLayout::RowMajor] {
                if self.agrees_with(layout) {
                    self.layout = layout;
                }
            }
        }
        Ok(self)
    }

    fn agrees_with(&self, layout: MemoryLayout) -> bool {
        let Ok(expected) = steps(layout, &self.shape, self.ndim) else { return false };
        // The stride along an extent of one has no effect.
        (0..4).all(|d| self.shape[d] == 1 || self.steps[d] == expected[d])
    }

    /// The extents; 1 beyond [`TensorView::ndim`].
    pub fn shape(&self) -> &[usize; 4] {
        &self.shape
    }

    /// Elements from one index to the next along each dimension; inside of a tile where the layout is tiled.
    pub fn strides(&self) -> [usize; 4] {
        self.steps.map(|s| s.stride)
    }

    /// The position of the element of index 0 in the buffer.
    pub fn offset(&self) -> usize {
        self.offset
    }

    /// The order of the elements. A view that agrees with no layout, such as a strided slice, keeps that of its origin.
    pub fn layout(&self) -> MemoryLayout {
        self.layout
    }

    /// Number of dimensions, at least 1.
    pub fn ndim(&self) -> usize {
        self.ndim
    }

    /// Number of elements.
    pub fn numel(&self) -> usize {
        self.shape.iter().product()
    }

    /// Whether the view has no elements.
    pub fn is_empty(&self) -> bool {
        self.shape.contains(&0)
    }

    /// Whether the elements follow one another in the order of the layout, without a gap.
    pub fn is_contiguous(&self) -> bool {
        let whole_tiles = |[rows, columns]: [usize; 2]| {
            let d = self.ndim.saturating_sub(2);
            self.shape[d].is_multiple_of(rows) && self.shape[d + 1].is_multiple_of(columns)
        };
        self.is_empty()
            || self.agrees_with(self.layout)
                && !matches!(self.layout, MemoryLayout::Tiled { tile_size } if !whole_tiles(tile_size))
    }

    /// The extent of a dimension below four.
    pub fn dim(&self, dim: usize) -> Option<usize> {
        self.shape.get(dim).copied()
    }

    /// The stride of a dimension below four, in elements; inside of a tile where the layout is tiled.
    pub fn stride(&self, dim: usize) -> Option<usize> {
        self.steps.get(dim).map(|s| s.stride)
    }

    /// Elements from the first of the view to one past its last in memory: what a buffer must hold from
    /// [`TensorView::offset`] on.
    pub fn span(&self) -> usize {
        if self.is_empty() {
            return 0;
        }
        let reach = |d: usize| self.steps[d].reach(self.shape[d]).unwrap_or(usize::MAX);
        1 + (0..4).map(reach).fold(0, usize::saturating_add)
    }

    /// Indices `range` of the first dimension.
    ///
    /// # Errors
    /// The errors of [`TensorView::slice_dim`].
    pub fn slice(&self, range: Range<usize>) -> Result<Self> {
        self.slice_dim(0, range)
    }

    /// Indices `range` of dimension `dim`.
    ///
    /// # Errors
    /// [`Error::View`] when there is no such dimension, when the range ends before it starts or beyond the extent, and
    /// when it starts inside of a tile of a tiled layout.
    pub fn slice_dim(&self, dim: usize, range: Range<usize>) -> Result<Self> {
        let refuse = |reason: String| Err(Error::View { what: "slice", reason });
        let Some(&extent) = self.shape.get(dim) else {
            return refuse(format!("dimension {dim} does not exist; the dimensions are 0..4"));
        };
        if range.start > range.end || range.end > extent {
            return refuse(format!("{range:?} of dimension {dim} is not inside of 0..{extent}"));
        }
        let mut view = *self;
        view.shape[dim] = range.end - range.start;
        if !range.is_empty() {
            let tile = self.steps[dim].tile;
            if tile != usize::MAX && !range.start.is_multiple_of(tile) {
                return refuse(format!("{range:?} of dimension {dim} starts inside of a tile of {tile}"));
            }
            // The strides and offset of a view without elements are arbitrary.
            if !self.is_empty() {
                view.offset += self.steps[dim].at(range.start);
            }
        }
        view.checked()
    }

    /// The view with two dimensions exchanged. Nothing moves: a row-major matrix becomes a column-major one.
    ///
    /// # Errors
    /// [`Error::View`] when there is no such dimension.
    pub fn transpose(&self, dim0: usize, dim1: usize) -> Result<Self> {
        if dim0.max(dim1) >= 4 {
            return Err(Error::View {
                what: "transpose",
                reason: format!("dimension {} does not exist; the dimensions are 0..4", dim0.max(dim1)),
            });
        }
        let mut view = *self;
        view.shape.swap(dim0, dim1);
        view.steps.swap(dim0, dim1);
        view.ndim = view.ndim.max(view.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1));
        view.checked()
    }

    /// Every `step`-th index of a range of dimension `dim`.
    ///
    /// # Errors
    /// The errors of [`TensorView::slice_dim`]; [`Error::Parameter`] for a step of zero, [`Error::View`] for one above 1 along a dimension
    /// that a tiled layout cuts.
    pub fn slice_step(&self, dim: usize, range: Range<usize>, step: usize) -> Result<Self> {
        if step == 0 {
            return Err(Error::Parameter { op: "slice", reason: "the step is 0; it must be at least 1".into() });
        }
        let mut view = self.slice_dim(dim, range)?;
        if step == 1 {
            return Ok(view);
        }
        if view.steps[dim].tile != usize::MAX {
            let reason = format!("dimension {dim} is cut into tiles, so its step must be 1, not {step}");
            return Err(Error::View { what: "slice", reason });
        }
        view.shape[dim] = view.shape[dim].div_ceil(step);
        if view.shape[dim] > 1 {
            // The strides of a view without elements are arbitrary.
            view.steps[dim].stride = view.steps[dim].stride.saturating_mul(step);
        }
        view.checked()
    }

    /// The view with its dimensions in another order: dimension `d` of the result is dimension `axes[d]`. Nothing moves.
    ///
    /// # Errors
    /// [`Error::Parameter`] when the axes are not each of `0..4` once.
    pub fn permute(&self, axes: [usize; 4]) -> Result<Self> {
        if !(0..4).all(|axis| axes.contains(&axis)) {
            let reason = format!("{axes:?} is not a permutation; each of 0..4 must occur once");
            return Err(Error::Parameter { op: "permute", reason });
        }
        let mut view = *self;
        view.shape = axes.map(|axis| self.shape[axis]);
        view.steps = axes.map(|axis| self.steps[axis]);
        view.ndim = view.ndim.max(view.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1));
        view.checked()
    }

    /// The view repeated along dimensions of extent 1 to fill a shape, dimension by dimension. Nothing moves: the stride along
    /// what repeats is 0.
    ///
    /// # Errors
    /// [`Error::View`] when another extent would change, [`Error::Overflow`] when the elements cannot be counted.
    pub fn broadcast_to(&self, shape: [usize; 4]) -> Result<Self> {
        Shape::new(&shape)?;
        let mut view = *self;
        for (d, &extent) in shape.iter().enumerate() {
            if self.shape[d] == extent {
                continue;
            }
            if self.shape[d] != 1 {
                let reason = format!("{:?} does not broadcast to {shape:?}: extents are equal or 1", self.shape);
                return Err(Error::View { what: "broadcast_to", reason });
            }
            (view.shape[d], view.steps[d]) = (extent, Step::plain(0));
        }
        view.ndim = view.ndim.max(view.shape.iter().rposition(|&n| n != 1).map_or(1, |last| last + 1));
        view.checked()
    }

    /// The same elements, in the order of the layout, under other extents, from the same offset. `None` when their
    /// number differs, when the view has gaps, and for a tiled layout.
    pub fn reshape(&self, shape: [usize; 4]) -> Option<Self> {
        let fresh = Self::new(shape).ok()?;
        if fresh.numel() != self.numel() || !self.is_contiguous() || matches!(self.layout, MemoryLayout::Tiled { .. }) {
            return None;
        }
        let steps = steps(self.layout, &shape, fresh.ndim).ok()?;
        Some(Self { steps, offset: self.offset, layout: self.layout, ..fresh })
    }

    /// The view without its dimensions of extent 1.
    #[must_use]
    pub fn squeeze(&self) -> Self {
        let (mut shape, mut steps, mut ndim) = ([1; 4], [Step::plain(1); 4], 0);
        for d in 0..4 {
            if self.shape[d] != 1 {
                (shape[ndim], steps[ndim]) = (self.shape[d], self.steps[d]);
                ndim += 1;
            }
        }
        Self { shape, steps, ndim: ndim.max(1), ..*self }
    }

    /// The view with a new dimension of extent 1 before `dim`; `None` when `dim` is beyond [`TensorView::ndim`] or
    /// there are four dimensions already.
    pub fn unsqueeze(&self, dim: usize) -> Option<Self> {
        if dim > self.ndim || self.ndim >= 4 {
            return None;
        }
        let mut view = *self;
        view.shape.copy_within(dim..3, dim + 1);
        view.steps.copy_within(dim..3, dim + 1);
        view.shape[dim] = 1;
        view.steps[dim] = Step::plain(1);
        view.ndim += 1;
        Some(view)
    }

    /// A view of the same extents, from the same offset, of memory in another layout: the strides become those of the
    /// layout.
    ///
    /// # Errors
    /// [`Error::View`] when this view has gaps (then it is a part of a tensor whose extents it does not know), or the
    /// tiles are empty or cut fewer than two dimensions; [`Error::Overflow`] when whole tiles cannot be addressed.
    pub fn with_layout(self, layout: MemoryLayout) -> Result<Self> {
        if !self.is_contiguous() && !self.agrees_with(self.layout) {
            return Err(Error::View { what: "layout", reason: format!("the view of {:?} has gaps", self.shape) });
        }
        let steps = steps(layout, &self.shape, self.ndim)?;
        // A shape may agree with both linear layouts: the result has the requested one.
        Ok(Self { layout, ..Self { steps, layout, ..self }.checked()? })
    }

    /// The position in the buffer of the element of an index; `None` for an index outside of the extents.
    pub fn linear_index(&self, index: [usize; 4]) -> Option<usize> {
        let inside = index.iter().zip(&self.shape).all(|(i, n)| i < n);
        inside.then(|| self.offset + (0..4).map(|d| self.steps[d].at(index[d])).sum::<usize>())
    }
}

/// The steps of a layout.
fn steps(layout: MemoryLayout, shape: &[usize; 4], ndim: usize) -> Result<[Step; 4]> {
    let overflow = || Error::Overflow { what: "view", extents: shape.to_vec() };
    let mut steps = [Step::plain(1); 4];
    let mut stride = 1usize;
    match layout {
        MemoryLayout::RowMajor => {
            for d in (0..ndim).rev() {
                steps[d] = Step::plain(stride);
                stride *= shape[d].max(1);
            }
        }
        MemoryLayout::ColumnMajor => {
            for d in 0..ndim {
                steps[d] = Step::plain(stride);
                stride *= shape[d].max(1);
            }
        }
        MemoryLayout::Tiled { tile_size: [rows, columns] } => {
            if ndim < 2 || rows == 0 || columns == 0 {
                let reason = format!("tiles of {rows} by {columns} cannot cut {:?}", &shape[..ndim]);
                return Err(Error::View { what: "layout", reason });
            }
            let tile = rows.checked_mul(columns).ok_or_else(overflow)?;
            let across = shape[ndim - 1].div_ceil(columns).checked_mul(tile).ok_or_else(overflow)?;
            steps[ndim - 1] = Step { stride: 1, tile: columns, tile_stride: tile };
            steps[ndim - 2] = Step { stride: columns, tile: rows, tile_stride: across };
            stride = across.checked_mul(shape[ndim - 2].div_ceil(rows)).ok_or_else(overflow)?;
            for d in (0..ndim - 2).rev() {
                steps[d] = Step::plain(stride);
                stride = stride.checked_mul(shape[d].max(1)).ok_or_else(overflow)?;
            }
        }
    }
    Ok(steps)
}

impl<T> Clone for TensorView<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for TensorView<T> {}

impl<T> PartialEq for TensorView<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.shape, self.steps, self.offset, self.layout, self.ndim)
            == (other.shape, other.steps, other.offset, other.layout, other.ndim)
    }
}

impl<T> Eq for TensorView<T> {}

impl<T> fmt::Debug for TensorView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TensorView")
            .field("shape", &&self.shape[..self.ndim])
            .field("strides", &&self.strides()[..self.ndim])
            .field("offset", &self.offset)
            .field("layout", &self.layout)
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    type View = TensorView<f32>;

    /// The positions of all elements, last dimension fastest.
    fn places(view: &View) -> Vec<usize> {
        let [a, b, c, d] = *view.shape();
        let mut all = Vec::new();
        for i in 0..a * b * c * d {
            all.push(view.linear_index([i / (b * c * d), i / (c * d) % b, i / d % c, i % d]).unwrap());
        }
        all
    }

    #[test]
    fn the_layout_decides_the_strides() {
        let view = View::new_2d(3, 5).unwrap();
        assert_eq!((view.strides()[..2].to_vec(), view.ndim(), view.numel()), (vec![5, 1], 2, 15));
        let columns = view.with_layout(MemoryLayout::ColumnMajor).unwrap();
        assert_eq!(columns.strides()[..2], [1, 3]);
        assert_eq!(columns.linear_index([2, 4, 0, 0]), Some(14));
        assert_eq!(columns.linear_index([1, 0, 0, 0]), Some(1));
        let tiled = view.with_layout(MemoryLayout::Tiled { tile_size: [2, 2] }).unwrap();
        // Tiles of four in rows of three tiles: element (2, 3) is the second of tile (1, 1).
        assert_eq!(tiled.linear_index([2, 3, 0, 0]), Some(4 * 4 + 1));
        assert_eq!(tiled.linear_index([1, 4, 0, 0]), Some(2 * 4 + 2));
        assert_eq!(tiled.span(), 5 * 4 + 1);
        assert!(!tiled.is_contiguous() && columns.is_contiguous());
        assert_eq!(tiled.with_layout(MemoryLayout::RowMajor).unwrap(), view);
        assert!(View::new_1d(4).unwrap().with_layout(MemoryLayout::Tiled { tile_size: [2, 2] }).is_err());
        assert!(view.with_layout(MemoryLayout::Tiled { tile_size: [0, 2] }).is_err());
    }

    #[test]
    fn reshape_keeps_the_offset() {
        let part = View::new_1d(12).unwrap().slice(4..8).unwrap();
        let square = part.reshape([2, 2, 1, 1]).unwrap();
        assert_eq!((square.offset(), places(&square)), (4, vec![4, 5, 6, 7]));
        assert!(part.reshape([3, 1, 1, 1]).is_none());
        let gaps = View::new_2d(4, 4).unwrap().slice_dim(1, 0..2).unwrap();
        assert!(!gaps.is_contiguous() && gaps.reshape([8, 1, 1, 1]).is_none());
        assert!(gaps.with_layout(MemoryLayout::ColumnMajor).is_err());
    }

    #[test]
    #[allow(clippy::reversed_empty_ranges)]
    fn slices_are_checked() {
        let view = View::new_1d(10).unwrap();
        assert!(matches!(view.slice(8..3), Err(Error::View { .. })));
        assert!(matches!(view.slice(0..11), Err(Error::View { .. })));
        assert!(matches!(view.slice_dim(4, 0..1), Err(Error::View { .. })));
        assert_eq!(view.slice(10..10).unwrap().numel(), 0);
        assert!(view.slice(5..5).unwrap().is_empty());
        let tiled = View::new_2d(8, 8).unwrap().with_layout(MemoryLayout::Tiled { tile_size: [4, 2] }).unwrap();
        assert!(tiled.slice(1..4).is_err());
        let part = tiled.slice(4..8).unwrap().slice_dim(1, 2..5).unwrap();
        assert_eq!(part.linear_index([1, 2, 0, 0]), tiled.linear_index([5, 4, 0, 0]));
    }

    #[test]
    fn transposing_moves_nothing() {
        let view = View::new_3d(2, 3, 4).unwrap();
        let turned = view.transpose(0, 2).unwrap();
        assert_eq!(turned.shape(), &[4, 3, 2, 1]);
        assert_eq!(turned.layout(), MemoryLayout::ColumnMajor);
        assert_eq!(turned.linear_index([3, 1, 1, 0]), view.linear_index([1, 1, 3, 0]));
        assert_eq!(turned.transpose(0, 2).unwrap(), view);
        assert!(view.transpose(0, 4).is_err());
        assert_eq!(View::new_1d(7).unwrap().transpose(0, 3).unwrap().ndim(), 4);
        let tiled = View::new_2d(6, 4).unwrap().with_layout(MemoryLayout::Tiled { tile_size: [3, 2] }).unwrap();
        assert_eq!(tiled.transpose(0, 1).unwrap().linear_index([3, 4, 0, 0]), tiled.linear_index([4, 3, 0, 0]));
    }

    #[test]
    fn dimensions_are_permuted_stepped_over_and_repeated() {
        let view = View::new_3d(2, 3, 4).unwrap();
        let turned = view.permute([2, 0, 1, 3]).unwrap();
        assert_eq!((turned.shape(), turned.strides()[..3].to_vec()), (&[4, 2, 3, 1], vec![1, 12, 4]));
        assert_eq!(turned.linear_index([3, 1, 2, 0]), view.linear_index([1, 2, 3, 0]));
        assert_eq!(view.permute([0, 1, 2, 3]).unwrap(), view);
        for wrong in [[0, 1, 2, 2], [0, 1, 2, 4], [usize::MAX, 1, 2, 3]] {
            assert!(matches!(view.permute(wrong), Err(Error::Parameter { .. })), "{wrong:?}");
        }
        let odd = view.slice_step(2, 1..4, 2).unwrap();
        assert_eq!((odd.shape(), places(&odd)[..4].to_vec()), (&[2, 3, 2, 1], vec![1, 3, 5, 7]));
        assert_eq!(view.slice_step(2, 1..4, usize::MAX).unwrap().shape(), &[2, 3, 1, 1]);
        assert_eq!(view.slice_step(1, 1..1, 5).unwrap().numel(), 0);
        assert!(matches!(view.slice_step(2, 0..4, 0), Err(Error::Parameter { .. })));
        assert!(matches!(view.slice_step(2, 0..5, 2), Err(Error::View { .. })));
        let tiled = View::new_2d(8, 8).unwrap().with_layout(MemoryLayout::Tiled { tile_size: [4, 2] }).unwrap();
        assert!(matches!(tiled.slice_step(0, 0..8, 2), Err(Error::View { .. })));
        let rows = View::new_2d(1, 3).unwrap().broadcast_to([2, 3, 2, 1]).unwrap();
        assert_eq!((rows.ndim(), places(&rows)), (3, vec![0, 0, 1, 1, 2, 2, 0, 0, 1, 1, 2, 2]));
        assert_eq!(View::new_2d(1, 3).unwrap().broadcast_to([0, 3, 1, 1]).unwrap().numel(), 0);
        assert!(matches!(view.broadcast_to([2, 4, 4, 1]), Err(Error::View { .. })));
        assert!(matches!(view.broadcast_to([2, 3, 4, usize::MAX]), Err(Error::Overflow { .. })));
    }

    #[test]
    fn extents_of_one_come_and_go() {
        let view = View::new_3d(1, 5, 0).unwrap().squeeze();
        assert_eq!((view.shape(), view.ndim()), (&[5, 0, 1, 1], 2));
        assert_eq!(View::new([1; 4]).unwrap().squeeze().ndim(), 1);
        let view = View::new_2d(3, 4).unwrap();
        let more = view.unsqueeze(1).unwrap();
        assert_eq!((more.shape(), more.ndim()), (&[3, 1, 4, 1], 3));
        assert_eq!(places(&more), places(&view));
        assert_eq!(more.squeeze(), view);
        assert!(view.unsqueeze(3).is_none() && View::new_4d(1, 1, 1, 1).unwrap().unsqueeze(0).is_none());
    }

    #[test]
    fn what_cannot_be_addressed_is_refused() {
        assert!(matches!(View::new_2d(usize::MAX, 2), Err(Error::Overflow { .. })));
        assert!(View::with_strides([2, 2, 1, 1], [usize::MAX, 1, 1, 1]).is_err());
        assert!(View::with_strides([1, 2, 1, 1], [usize::MAX, 1, 1, 1]).is_ok());
        // Without elements, strides and slices are arbitrary.
        let empty = View::with_strides([5, 0, 1, 1], [usize::MAX, 1, 1, 1]).unwrap();
        assert_eq!(empty.slice(3..4).unwrap().shape(), &[1, 0, 1, 1]);
        let huge = MemoryLayout::Tiled { tile_size: [usize::MAX / 2, usize::MAX / 2] };
        assert!(View::new_2d(2, 2).unwrap().with_layout(huge).is_err());
        let repeated = View::with_strides([3, 2, 1, 1], [0, 1, 1, 1]).unwrap();
        assert_eq!((places(&repeated), repeated.span()), (vec![0, 1, 0, 1, 0, 1], 2));
        assert_eq!(View::new_1d(3).unwrap().linear_index([3, 0, 0, 0]), None);
        assert_eq!(
            (repeated.dim(1), repeated.dim(4), repeated.stride(0), repeated.stride(4)),
            (Some(2), None, Some(0), None)
        );
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn every_layout_is_a_bijection(
                shape in prop::array::uniform4(1usize..6), tile in prop::array::uniform2(1usize..5),
            ) {
                let view = View::new_4d(shape[0], shape[1], shape[2], shape[3]).unwrap();
                let tiled = MemoryLayout::Tiled { tile_size: tile };
                for layout in [MemoryLayout::RowMajor, MemoryLayout::ColumnMajor, tiled] {
                    let view = view.with_layout(layout).unwrap();
                    let mut all = places(&view);
                    all.sort_unstable();
                    all.dedup();
                    prop_assert_eq!(all.len(), view.numel());
                    prop_assert_eq!(all[all.len() - 1] + 1, view.span());
                    // Whole tiles are stored, so a tiled view may have gaps between its elements.
                    prop_assert!(!view.is_contiguous() || view.span() == view.numel());
                    prop_assert!(view.is_contiguous() || matches!(layout, MemoryLayout::Tiled { .. }), "{layout:?}");
                }
            }

            #[test]
            fn slices_of_slices_are_slices(
                n in 1usize..40, a in 0usize..40, b in 0usize..40, c in 0usize..40, d in 0usize..40,
            ) {
                let view = View::new_2d(3, n).unwrap();
                if let Ok(outer) = view.slice_dim(1, a..b) {
                    prop_assert!(a <= b && b <= n);
                    if let Ok(inner) = outer.slice_dim(1, c..d) {
                        prop_assert!(d <= b - a);
                        let direct = view.slice_dim(1, a + c..a + d).unwrap();
                        prop_assert_eq!(places(&inner), places(&direct));
                    }
                }
            }
        }
    }
}
