use std::fmt;
use std::ops::Range;

use crate::{DType, Error, QuantFormat, Result};

/// The greatest number of dimensions of a tensor.
pub const MAX_RANK: usize = 6;

/// The extents of a tensor, row-major: the last dimension is contiguous. Rank 0 is a scalar of one element.
///
/// A `Shape` that exists is sound: the number of elements, and of bytes at 8 bytes an element, fits an `isize`.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Shape {
    rank: u8,
    dims: [usize; MAX_RANK],
}

impl Shape {
    /// The shape of one element.
    pub const SCALAR: Self = Self { rank: 0, dims: [1; MAX_RANK] };

    /// # Errors
    /// [`Error::Shape`] above [`MAX_RANK`] dimensions, [`Error::Overflow`] when the elements cannot be addressed.
    pub fn new(dims: &[usize]) -> Result<Self> {
        if dims.len() > MAX_RANK {
            return Err(Error::Shape {
                op: "shape",
                reason: format!("{dims:?} has {} dimensions, at most {MAX_RANK} are supported", dims.len()),
            });
        }
        // Zero extents must not hide an overflow of the others: [usize::MAX, usize::MAX, 0] is refused too.
        let fits = dims.iter().try_fold(1usize, |n, &d| n.checked_mul(d.max(1)));
        if fits.is_none_or(|n| n > isize::MAX as usize / 8) {
            return Err(Error::Overflow { what: "shape", extents: dims.to_vec() });
        }
        let mut shape = Self { rank: dims.len() as u8, ..Self::SCALAR };
        shape.dims[..dims.len()].copy_from_slice(dims);
        Ok(shape)
    }

    /// A vector of `n` elements. The length of a slice that exists cannot overflow.
    pub fn of_slice<T>(slice: &[T]) -> Self {
        let mut shape = Self { rank: 1, ..Self::SCALAR };
        shape.dims[0] = slice.len();
        shape
    }

    /// The extents, outermost first.
    pub fn dims(&self) -> &[usize] {
        &self.dims[..self.rank as usize]
    }

    /// Number of dimensions.
    pub fn rank(&self) -> usize {
        self.rank as usize
    }

    /// Number of elements; 1 for a scalar.
    pub fn numel(&self) -> usize {
        self.dims().iter().product()
    }

    /// Whether the shape has no elements.
    pub fn is_empty(&self) -> bool {
        self.numel() == 0
    }

    /// The last extent: the length of a row; 1 for a scalar.
    pub fn columns(&self) -> usize {
        self.dims().last().copied().unwrap_or(1)
    }

    /// The number of rows: the product of all extents but the last.
    pub fn rows(&self) -> usize {
        self.dims().split_last().map_or(1, |(_, outer)| outer.iter().product())
    }

    /// Whether the extents of `self` are the last ones of `other`, so that `self` repeats along the outer dimensions.
    pub fn is_suffix_of(&self, other: &Self) -> bool {
        other.dims().ends_with(self.dims())
    }

    /// This shape without dimension `axis`.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such dimension.
    pub fn without(&self, axis: usize) -> Result<Self> {
        if axis >= self.rank() {
            return Err(Error::Shape { op: "axis", reason: format!("{self} has no dimension {axis}") });
        }
        let kept: Vec<usize> = self.dims().iter().enumerate().filter(|&(d, _)| d != axis).map(|(_, &n)| n).collect();
        Self::new(&kept)
    }

    /// The three extents around `axis`: everything outside of it, itself, everything inside of it.
    ///
    /// # Errors
    /// [`Error::Shape`] when there is no such dimension.
    pub fn split_at_axis(&self, axis: usize) -> Result<(usize, usize, usize)> {
        if axis >= self.rank() {
            return Err(Error::Shape { op: "axis", reason: format!("{self} has no dimension {axis}") });
        }
        let d = self.dims();
        Ok((d[..axis].iter().product(), d[axis], d[axis + 1..].iter().product()))
    }
}

impl Error {
    /// An [`Error::Shape`] that names two shapes which do not agree, and the shapes that would.
    pub fn mismatch(op: &'static str, what: &str, a: &Shape, b: &Shape, allowed: &str) -> Self {
        Self::Shape { op, reason: format!("{what}: {a} and {b} do not agree: {allowed}") }
    }
}

impl fmt::Display for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.dims())
    }
}

impl fmt::Debug for Shape {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl<const N: usize> TryFrom<[usize; N]> for Shape {
    type Error = Error;
    fn try_from(dims: [usize; N]) -> Result<Self> {
        Self::new(&dims)
    }
}

impl TryFrom<&[usize]> for Shape {
    type Error = Error;
    fn try_from(dims: &[usize]) -> Result<Self> {
        Self::new(dims)
    }
}

/// Shape and element type.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TensorType {
    /// The element type.
    pub dtype: DType,
    /// The extents, in elements (not in blocks).
    pub shape: Shape,
}

impl TensorType {
    /// A tensor of f32.
    pub const fn f32(shape: Shape) -> Self {
        Self { dtype: DType::F32, shape }
    }

    /// A tensor of f16.
    pub const fn f16(shape: Shape) -> Self {
        Self { dtype: DType::F16, shape }
    }

    /// A tensor of indices.
    pub const fn u32(shape: Shape) -> Self {
        Self { dtype: DType::U32, shape }
    }

    /// A quantised tensor, packed along its last dimension.
    ///
    /// # Errors
    /// [`Error::Format`] when a row is not a whole number of blocks.
    pub fn blocks(format: QuantFormat, shape: Shape) -> Result<Self> {
        if !shape.columns().is_multiple_of(format.block_len()) {
            return Err(Error::Format {
                format: format.name(),
                reason: format!("rows of {} are not whole blocks of {}", shape.columns(), format.block_len()),
            });
        }
        Ok(Self { dtype: DType::Blocks(format), shape })
    }

    /// A tensor of such elements.
    ///
    /// # Errors
    /// The errors of [`TensorType::blocks`].
    pub fn of(dtype: DType, shape: Shape) -> Result<Self> {
        match dtype {
            DType::Blocks(format) => Self::blocks(format, shape),
            dtype => Ok(Self { dtype, shape }),
        }
    }

    /// The same elements with other extents.
    ///
    /// # Errors
    /// [`Error::Shape`] when the number of elements differs; the errors of [`TensorType::of`] and [`Shape::new`].
    pub fn reshaped(&self, dims: &[usize]) -> Result<Self> {
        let shape = Shape::new(dims)?;
        let ty = Self::of(self.dtype, shape)?;
        if shape.numel() != self.shape.numel() {
            let allowed = format!("they have {} and {} elements", self.shape.numel(), shape.numel());
            return Err(Error::mismatch("reshape", "extents", &self.shape, &shape, &allowed));
        }
        Ok(ty)
    }

    /// The entries `range` along the first axis: the byte where they begin, and their type.
    ///
    /// # Errors
    /// [`Error::View`] when the range is not within the first extent, or the tensor has no extent; the errors of
    /// [`TensorType::of`] when blocks would be cut.
    pub fn entries(&self, range: Range<usize>) -> Result<(u64, Self)> {
        let outside = |reason: String| Error::View { what: "slice", reason };
        let mut dims = self.shape.dims().to_vec();
        let extent = *dims.first().ok_or_else(|| outside("a scalar has no first axis".into()))?;
        if range.start > range.end || range.end > extent {
            return Err(outside(format!("{range:?} is not within the first extent, {extent}")));
        }
        let mut of = |entries: usize| {
            dims[0] = entries;
            Self::of(self.dtype, Shape::new(&dims)?)
        };
        Ok((of(range.start)?.bytes() as u64, of(range.len())?))
    }

    /// The type that all parts of a tensor of parts have.
    ///
    /// # Errors
    /// [`Error::Arity`] without a part; [`Error::Type`] and [`Error::Shape`] where they differ.
    pub fn of_parts(parts: impl IntoIterator<Item = Self>) -> Result<Self> {
        let op = "parts of a tensor";
        let mut parts = parts.into_iter();
        let first = parts.next().ok_or(Error::Arity { op, expected: 1, found: 0 })?;
        for (index, part) in parts.enumerate().map(|(index, part)| (index + 1, part)) {
            if part.dtype != first.dtype {
                return Err(Error::Type { op, index, expected: first.dtype, found: part.dtype });
            }
            if part.shape != first.shape {
                return Err(Error::Shape {
                    op,
                    reason: format!("part {index} is {}, the first {}", part.shape, first.shape),
                });
            }
        }
        Ok(first)
    }

    /// Bytes of the packed data.
    pub fn bytes(&self) -> usize {
        match self.dtype {
            DType::Blocks(format) => self.shape.numel() / format.block_len() * format.block_bytes(),
            dtype => self.shape.numel() * dtype.size(),
        }
    }
}
