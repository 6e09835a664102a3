use half::slice::HalfFloatSliceExt;

use crate::{DType, Error, QuantFormat, Result, Shape, TensorType, f16};

/// Borrowed elements of one of the types that a tensor may have.
#[derive(Debug, Clone, Copy)]
pub enum Data<'a> {
    /// f32 elements.
    F32(&'a [f32]),
    /// f16 elements.
    F16(&'a [f16]),
    /// Indices.
    U32(&'a [u32]),
    /// Quantised blocks.
    Blocks(QuantFormat, &'a [u8]),
}

/// Elements that an operation writes.
#[derive(Debug)]
pub enum DataMut<'a> {
    /// f32 elements.
    F32(&'a mut [f32]),
    /// f16 elements.
    F16(&'a mut [f16]),
    /// Indices.
    U32(&'a mut [u32]),
    /// Quantised blocks.
    Blocks(QuantFormat, &'a mut [u8]),
}

/// Owned elements.
#[derive(Debug, Clone, PartialEq)]
pub enum Buffer {
    /// f32 elements.
    F32(Vec<f32>),
    /// f16 elements.
    F16(Vec<f16>),
    /// Indices.
    U32(Vec<u32>),
    /// Quantised blocks.
    Blocks(QuantFormat, Vec<u8>),
}

/// Writes the f32 that f16 elements stand for, as many as both slices have; nothing is rounded.
pub fn widen(from: &[f16], to: &mut [f32]) {
    let n = from.len().min(to.len());
    from[..n].convert_to_f32_slice(&mut to[..n]);
}

/// Writes the f16 nearest to f32 elements, the even one of two equally near, as many as both slices have. From 65 520 on
/// that is an infinity.
pub fn narrow(from: &[f32], to: &mut [f16]) {
    let n = from.len().min(to.len());
    to[..n].convert_from_f32_slice(&from[..n]);
}

impl<'a> Data<'a> {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::U32(_) => DType::U32,
            Self::Blocks(format, _) => DType::Blocks(*format),
        }
    }

    /// Bytes of the data.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(d) => size_of_val(*d),
            Self::F16(d) => size_of_val(*d),
            Self::U32(d) => size_of_val(*d),
            Self::Blocks(_, d) => d.len(),
        }
    }

    /// The elements as bytes in the order of the machine, which is how devices store them.
    pub fn as_bytes(&self) -> &'a [u8] {
        match *self {
            Self::F32(d) => bytemuck::cast_slice(d),
            Self::F16(d) => bytemuck::cast_slice(d),
            Self::U32(d) => bytemuck::cast_slice(d),
            Self::Blocks(_, d) => d,
        }
    }

    /// Bytes in the order of the machine as elements of a type.
    ///
    /// # Errors
    /// [`Error::View`] for bytes that are not whole elements, or that begin where such an element cannot.
    pub fn from_bytes(dtype: DType, bytes: &'a [u8]) -> Result<Self> {
        let refused = |why: bytemuck::PodCastError| Error::View {
            what: "bytes as elements",
            reason: format!("{} bytes at {:?} are not whole {dtype} elements: {why}", bytes.len(), bytes.as_ptr()),
        };
        Ok(match dtype {
            DType::F32 => Self::F32(bytemuck::try_cast_slice(bytes).map_err(refused)?),
            DType::F16 => Self::F16(bytemuck::try_cast_slice(bytes).map_err(refused)?),
            DType::U32 => Self::U32(bytemuck::try_cast_slice(bytes).map_err(refused)?),
            DType::Blocks(format) => Self::Blocks(format, bytes),
        })
    }

    /// A copy.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`].
    pub fn to_buffer(&self) -> Result<Buffer> {
        Ok(match *self {
            Self::F32(d) => Buffer::F32(copied(d)?),
            Self::F16(d) => Buffer::F16(copied(d)?),
            Self::U32(d) => Buffer::U32(copied(d)?),
            Self::Blocks(format, d) => Buffer::Blocks(format, copied(d)?),
        })
    }

    /// The f32 elements; empty when the data are of another type.
    ///
    /// Backends call this after [`Operand::new`] and the shape rule of the operation have checked the types.
    pub fn f32(&self) -> &'a [f32] {
        if let Self::F32(d) = self { d } else { &[] }
    }

    /// The f16 elements; empty when the data are of another type.
    pub fn f16(&self) -> &'a [f16] {
        if let Self::F16(d) = self { d } else { &[] }
    }

    /// The indices; empty when the data are of another type.
    pub fn u32(&self) -> &'a [u32] {
        if let Self::U32(d) = self { d } else { &[] }
    }

    /// The packed blocks; empty when the data are of another type.
    pub fn blocks(&self) -> &'a [u8] {
        if let Self::Blocks(_, d) = self { d } else { &[] }
    }
}

impl DataMut<'_> {
    /// The element type.
    pub fn dtype(&self) -> DType {
        match self {
            Self::F32(_) => DType::F32,
            Self::F16(_) => DType::F16,
            Self::U32(_) => DType::U32,
            Self::Blocks(format, _) => DType::Blocks(*format),
        }
    }

    /// Bytes of the data.
    pub fn bytes(&self) -> usize {
        match self {
            Self::F32(d) => size_of_val(*d),
            Self::F16(d) => size_of_val(*d),
            Self::U32(d) => size_of_val(*d),
            Self::Blocks(_, d) => d.len(),
        }
    }

    /// The elements as bytes in the order of the machine.
    pub fn as_bytes(&mut self) -> &mut [u8] {
        match self {
            Self::F32(d) => bytemuck::cast_slice_mut(d),
            Self::F16(d) => bytemuck::cast_slice_mut(d),
            Self::U32(d) => bytemuck::cast_slice_mut(d),
            Self::Blocks(_, d) => d,
        }
    }

    /// The f32 elements; empty when the data are of another type.
    pub fn f32(&mut self) -> &mut [f32] {
        if let Self::F32(d) = self { d } else { &mut [] }
    }

    /// The f16 elements; empty when the data are of another type.
    pub fn f16(&mut self) -> &mut [f16] {
        if let Self::F16(d) = self { d } else { &mut [] }
    }

    /// The indices; empty when the data are of another type.
    pub fn u32(&mut self) -> &mut [u32] {
        if let Self::U32(d) = self { d } else { &mut [] }
    }

    /// The packed blocks; empty when the data are of another type.
    pub fn blocks(&mut self) -> &mut [u8] {
        if let Self::Blocks(_, d) = self { d } else { &mut [] }
    }
}

impl Buffer {
    /// Zeroed elements for a tensor of this type.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`] where the machine has no room for them.
    pub fn zeros(ty: &TensorType) -> Result<Self> {
        Self::with_bytes(ty.dtype, ty.bytes())
    }

    /// Zeroed elements that take this many bytes.
    ///
    /// # Errors
    /// As [`Buffer::zeros`].
    pub fn with_bytes(dtype: DType, bytes: usize) -> Result<Self> {
        Ok(match dtype {
            DType::F32 => Self::F32(zeros(bytes / dtype.size())?),
            DType::F16 => Self::F16(zeros(bytes / dtype.size())?),
            DType::U32 => Self::U32(zeros(bytes / dtype.size())?),
            DType::Blocks(format) => Self::Blocks(format, zeros(bytes)?),
        })
    }

    /// The elements, borrowed.
    pub fn as_data(&self) -> Data<'_> {
        match self {
            Self::F32(d) => Data::F32(d),
            Self::F16(d) => Data::F16(d),
            Self::U32(d) => Data::U32(d),
            Self::Blocks(format, d) => Data::Blocks(*format, d),
        }
    }

    /// The elements, borrowed for writing.
    pub fn as_mut(&mut self) -> DataMut<'_> {
        match self {
            Self::F32(d) => DataMut::F32(d),
            Self::F16(d) => DataMut::F16(d),
            Self::U32(d) => DataMut::U32(d),
            Self::Blocks(format, d) => DataMut::Blocks(*format, d),
        }
    }
}

/// A vector of `n` zeros.
///
/// # Errors
/// [`Error::OutOfMemory`] where `vec!` would end the process: an inner extent of zero lets small operands ask for any
/// result.
pub fn zeros<T: bytemuck::Zeroable + Clone>(n: usize) -> Result<Vec<T>> {
    /// Less than this is not refused by a machine that still runs; the 4 GB of WebAssembly are soon full.
    const SMALL: usize = if cfg!(target_arch = "wasm32") { 1 << 16 } else { 1 << 26 };
    let bytes = n.saturating_mul(size_of::<T>());
    if bytes > SMALL {
        // Asked for and given back at once: `vec!` below then takes fresh pages that the system has zeroed already, where
        // filling this memory would touch them all.
        reserve(&mut Vec::<T>::new(), n)?;
    }
    Ok(vec![T::zeroed(); n])
}

/// Makes room for so many more elements.
///
/// # Errors
/// [`Error::OutOfMemory`].
pub fn reserve<T>(vec: &mut Vec<T>, additional: usize) -> Result<()> {
    let bytes = additional.saturating_mul(size_of::<T>());
    vec.try_reserve_exact(additional).map_err(|_| Error::OutOfMemory { bytes })
}

fn copied<T: Copy>(slice: &[T]) -> Result<Vec<T>> {
    let mut copy = Vec::new();
    reserve(&mut copy, slice.len())?;
    copy.extend_from_slice(slice);
    Ok(copy)
}

/// Elements with a shape they were checked against.
#[derive(Debug, Clone, Copy)]
pub struct Operand<'a> {
    data: Data<'a>,
    ty: TensorType,
}

impl<'a> Operand<'a> {
    /// # Errors
    /// [`Error::Length`] when the data do not fill the shape, [`Error::Format`] when a row is not whole blocks.
    pub fn new(data: Data<'a>, shape: Shape) -> Result<Self> {
        let ty = match data.dtype() {
            DType::Blocks(format) => TensorType::blocks(format, shape)?,
            dtype => TensorType { dtype, shape },
        };
        if data.bytes() != ty.bytes() {
            let (expected, found) = (ty.bytes() / ty.dtype.size(), data.bytes() / ty.dtype.size());
            return Err(Error::Length { op: "operand", operand: "data", expected, found });
        }
        Ok(Self { data, ty })
    }

    /// A vector of f32.
    pub fn vector(data: &'a [f32]) -> Self {
        Self { data: Data::F32(data), ty: TensorType::f32(Shape::of_slice(data)) }
    }

    /// A tensor of f32.
    ///
    /// # Errors
    /// As [`Operand::new`] and [`Shape::new`].
    pub fn f32(data: &'a [f32], dims: &[usize]) -> Result<Self> {
        Self::new(Data::F32(data), Shape::new(dims)?)
    }

    /// A tensor of f16.
    ///
    /// # Errors
    /// As [`Operand::new`] and [`Shape::new`].
    pub fn f16(data: &'a [f16], dims: &[usize]) -> Result<Self> {
        Self::new(Data::F16(data), Shape::new(dims)?)
    }

    /// A tensor of indices.
    ///
    /// # Errors
    /// As [`Operand::new`] and [`Shape::new`].
    pub fn u32(data: &'a [u32], dims: &[usize]) -> Result<Self> {
        Self::new(Data::U32(data), Shape::new(dims)?)
    }

    /// A quantised tensor of `dims` elements.
    ///
    /// # Errors
    /// As [`Operand::new`] and [`Shape::new`].
    pub fn blocks(data: &'a [u8], dims: &[usize], format: QuantFormat) -> Result<Self> {
        Self::new(Data::Blocks(format, data), Shape::new(dims)?)
    }

    /// The elements.
    pub fn data(&self) -> Data<'a> {
        self.data
    }

    /// Shape and element type.
    pub fn ty(&self) -> TensorType {
        self.ty
    }

    /// The shape.
    pub fn shape(&self) -> Shape {
        self.ty.shape
    }
}
