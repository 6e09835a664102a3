//! Elements of any type: one, a slice or a buffer of them, and an operand with its shape.

use std::fmt;
use std::ops::Range;

use half::slice::HalfFloatSliceExt;

use crate::{Bool, DType, Error, Kind, QuantFormat, Result, Shape, TensorType, bf16, dtype_table, f16};

/// A Rust type that a tensor can have elements of.
pub trait Element: bytemuck::Pod + PartialEq + fmt::Debug + Send + Sync {
    /// The element type.
    const DTYPE: DType;

    /// The value as f32: exact except for integers beyond 2²⁴, which are rounded to nearest. True is 1.
    fn load(self) -> f32;

    /// The nearest element: floats round to nearest, ties to even; integers truncate and saturate, and NaN gives 0;
    /// booleans are true for every nonzero value, NaN included.
    fn store(value: f32) -> Self;

    /// The value as an integer; floats truncate and saturate, true is 1.
    fn load_integer(self) -> i64;

    /// The element nearest to an integer: integers saturate, floats round through f32.
    fn store_integer(value: i64) -> Self;

    /// Elements as data.
    fn data(elements: &[Self]) -> Data<'_>;

    /// Elements as data to be written.
    fn data_mut(elements: &mut [Self]) -> DataMut<'_>;

    /// Elements as a buffer.
    fn buffer(elements: Vec<Self>) -> Buffer;

    /// The elements of a buffer.
    ///
    /// # Errors
    /// The buffer, if its elements have another type.
    fn elements(buffer: Buffer) -> Result<Vec<Self>, Buffer>;
}

/// Defines how a type is loaded and stored: the casts of [`Element`].
macro_rules! conversions {
    (f32) => {
        conversions!(through |x: f32| x, |x: f32| x);
    };
    (f16) => {
        conversions!(through |x: f16| x.to_f32(), |x: f32| f16::from_f32(x));
    };
    (bf16) => {
        conversions!(through |x: bf16| x.to_f32(), |x: f32| bf16::from_f32(x));
    };
    (Bool) => {
        #[inline(always)]
        fn load(self) -> f32 {
            f32::from(u8::from(bool::from(self)))
        }
        #[inline(always)]
        fn store(value: f32) -> Self {
            (value != 0.0).into()
        }
        #[inline(always)]
        fn load_integer(self) -> i64 {
            bool::from(self).into()
        }
        #[inline(always)]
        fn store_integer(value: i64) -> Self {
            (value != 0).into()
        }
    };
    ($integer:ident) => {
        #[inline(always)]
        fn load(self) -> f32 {
            self as f32
        }
        #[inline(always)]
        fn store(value: f32) -> Self {
            value as Self
        }
        #[inline(always)]
        fn load_integer(self) -> i64 {
            self.into()
        }
        #[inline(always)]
        fn store_integer(value: i64) -> Self {
            value.clamp($integer::MIN.into(), $integer::MAX.into()) as Self
        }
    };
    (through $load:expr, $store:expr) => {
        #[inline(always)]
        fn load(self) -> f32 {
            ($load)(self)
        }
        #[inline(always)]
        fn store(value: f32) -> Self {
            ($store)(value)
        }
        #[inline(always)]
        fn load_integer(self) -> i64 {
            self.load() as i64
        }
        #[inline(always)]
        fn store_integer(value: i64) -> Self {
            Self::store(value as f32)
        }
    };
}

/// Implements [`Element`] for each row of [`dtype_table!`](crate::dtype_table), and what a [`DType`] says about its elements.
macro_rules! elements {
    ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
        impl DType {
            /// Whether an element can be exactly this number; of floats, whether one can be near it.
            pub fn holds(self, value: f32) -> bool {
                match self {
                    $(Self::$variant => {
                        let stored = $element::store(value);
                        matches!(Kind::$kind, Kind::Float) || stored.load_integer() as f64 == f64::from(value)
                    })*
                    Self::Blocks(_) => false,
                }
            }

            /// A word of memory that is full of elements nearest to a number; of blocks, of its integer.
            pub fn word_of(self, value: f32) -> u32 {
                match self {
                    $(Self::$variant => {
                        let element = $element::store(value);
                        let bytes: [u8; 4] = std::array::from_fn(|i| bytemuck::bytes_of(&element)[i % size_of::<$element>()]);
                        u32::from_ne_bytes(bytes)
                    })*
                    Self::Blocks(_) => value as u32,
                }
            }
        }

        $(impl Element for $element {
            const DTYPE: DType = DType::$variant;

            conversions!($element);

            fn data(elements: &[Self]) -> Data<'_> {
                Data::$variant(elements)
            }

            fn data_mut(elements: &mut [Self]) -> DataMut<'_> {
                DataMut::$variant(elements)
            }

            fn buffer(elements: Vec<Self>) -> Buffer {
                Buffer::$variant(elements)
            }

            fn elements(buffer: Buffer) -> Result<Vec<Self>, Buffer> {
                match buffer {
                    Buffer::$variant(elements) => Ok(elements),
                    other => Err(other),
                }
            }
        })*
    };
}
dtype_table!(elements);

/// Defines the enums of elements, with a variant for each row of [`dtype_table!`](crate::dtype_table).
macro_rules! data {
    ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
        /// Borrowed elements of one of the types that a tensor may have.
        #[derive(Debug, Clone, Copy)]
        pub enum Data<'a> {
            $($(#[$doc])* $variant(&'a [$element]),)*
            /// Quantised blocks.
            Blocks(QuantFormat, &'a [u8]),
        }

        /// Elements that an operation writes.
        #[derive(Debug)]
        pub enum DataMut<'a> {
            $($(#[$doc])* $variant(&'a mut [$element]),)*
            /// Quantised blocks.
            Blocks(QuantFormat, &'a mut [u8]),
        }

        /// Owned elements.
        #[derive(Debug, Clone, PartialEq)]
        pub enum Buffer {
            $($(#[$doc])* $variant(Vec<$element>),)*
            /// Quantised blocks.
            Blocks(QuantFormat, Vec<u8>),
        }

        impl<'a> Data<'a> {
            /// The element type.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)*
                    Self::Blocks(format, _) => DType::Blocks(*format),
                }
            }

            /// Bytes of the data.
            pub fn bytes(&self) -> usize {
                match self {
                    $(Self::$variant(d) => size_of_val(*d),)*
                    Self::Blocks(_, d) => d.len(),
                }
            }

            /// The elements as bytes in the order of the machine, which is how devices store them.
            pub fn as_bytes(&self) -> &'a [u8] {
                match *self {
                    $(Self::$variant(d) => bytemuck::cast_slice(d),)*
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
                    $(DType::$variant => Self::$variant(bytemuck::try_cast_slice(bytes).map_err(refused)?),)*
                    DType::Blocks(format) => Self::Blocks(format, bytes),
                })
            }

            /// Data of a type without elements.
            fn empty(dtype: DType) -> Self {
                match dtype {
                    $(DType::$variant => Self::$variant(&[]),)*
                    DType::Blocks(format) => Self::Blocks(format, &[]),
                }
            }

            /// The elements that a range of bytes holds. Its ends are multiples of the size of an element.
            #[must_use]
            pub fn part(self, range: Range<usize>) -> Self {
                match self {
                    $(Self::$variant(d) => {
                        let size = size_of::<$element>();
                        Self::$variant(&d[range.start / size..range.end / size])
                    })*
                    Self::Blocks(format, d) => Self::Blocks(format, &d[range]),
                }
            }

            /// A copy.
            ///
            /// # Errors
            /// [`Error::OutOfMemory`].
            pub fn to_buffer(&self) -> Result<Buffer> {
                Ok(match *self {
                    $(Self::$variant(d) => Buffer::$variant(copied(d)?),)*
                    Self::Blocks(format, d) => Buffer::Blocks(format, copied(d)?),
                })
            }

            /// An element as f32, as [`Element::load`] gives it; NaN for blocks.
            pub fn load(&self, at: usize) -> f32 {
                match *self {
                    $(Self::$variant(d) => d[at].load(),)*
                    Self::Blocks(..) => f32::NAN,
                }
            }

            $(#[doc = concat!("The ", stringify!($name), " elements; empty when the data are of another type.")]
            ///
            /// Backends call this after [`Operand::new`] and the shape rule of the operation have checked the types.
            pub fn $name(&self) -> &'a [$element] {
                if let Self::$variant(d) = self { d } else { &[] }
            })*

            /// The packed blocks; empty when the data are of another type.
            pub fn blocks(&self) -> &'a [u8] {
                if let Self::Blocks(_, d) = self { d } else { &[] }
            }
        }

        impl<'a> DataMut<'a> {
            /// The element type.
            pub fn dtype(&self) -> DType {
                match self {
                    $(Self::$variant(_) => DType::$variant,)*
                    Self::Blocks(format, _) => DType::Blocks(*format),
                }
            }

            /// Bytes of the data.
            pub fn bytes(&self) -> usize {
                match self {
                    $(Self::$variant(d) => size_of_val(*d),)*
                    Self::Blocks(_, d) => d.len(),
                }
            }

            /// The elements as bytes in the order of the machine.
            pub fn as_bytes(&mut self) -> &mut [u8] {
                match self {
                    $(Self::$variant(d) => bytemuck::cast_slice_mut(d),)*
                    Self::Blocks(_, d) => d,
                }
            }

            /// The same memory for a shorter time.
            pub fn reborrow(&mut self) -> DataMut<'_> {
                match self {
                    $(Self::$variant(d) => DataMut::$variant(d),)*
                    Self::Blocks(format, d) => DataMut::Blocks(*format, d),
                }
            }

            /// The elements before byte `byte`, and those from it on. It is a multiple of the size of an element.
            #[must_use]
            pub fn split_at(self, byte: usize) -> (Self, Self) {
                match self {
                    $(Self::$variant(d) => {
                        let (before, after) = d.split_at_mut(byte / size_of::<$element>());
                        (Self::$variant(before), Self::$variant(after))
                    })*
                    Self::Blocks(format, d) => {
                        let (before, after) = d.split_at_mut(byte);
                        (Self::Blocks(format, before), Self::Blocks(format, after))
                    }
                }
            }

            /// Writes one number everywhere, as [`Element::store`] does; blocks are left as they are.
            pub fn fill(&mut self, value: f32) {
                match self {
                    $(Self::$variant(d) => d.fill($element::store(value)),)*
                    Self::Blocks(..) => {}
                }
            }

            $(#[doc = concat!("The ", stringify!($name), " elements; empty when the data are of another type.")]
            pub fn $name(&mut self) -> &mut [$element] {
                if let Self::$variant(d) = self { d } else { &mut [] }
            })*

            /// The packed blocks; empty when the data are of another type.
            pub fn blocks(&mut self) -> &mut [u8] {
                if let Self::Blocks(_, d) = self { d } else { &mut [] }
            }
        }

        impl Buffer {
            /// Zeroed elements that take this many bytes.
            ///
            /// # Errors
            /// The errors of [`Buffer::zeros`].
            pub fn with_bytes(dtype: DType, bytes: usize) -> Result<Self> {
                Ok(match dtype {
                    $(DType::$variant => Self::$variant(zeros(bytes / dtype.size())?),)*
                    DType::Blocks(format) => Self::Blocks(format, zeros(bytes)?),
                })
            }

            /// The elements, borrowed.
            pub fn as_data(&self) -> Data<'_> {
                match self {
                    $(Self::$variant(d) => Data::$variant(d),)*
                    Self::Blocks(format, d) => Data::Blocks(*format, d),
                }
            }

            /// The elements, borrowed for writing.
            pub fn as_mut(&mut self) -> DataMut<'_> {
                match self {
                    $(Self::$variant(d) => DataMut::$variant(d),)*
                    Self::Blocks(format, d) => DataMut::Blocks(*format, d),
                }
            }
        }
    };
}
dtype_table!(data);

/// Writes the f32 that elements represent, as [`Element::load`] gives them, as many as both slices have; of blocks none.
///
/// It is inlined into its caller, so that a caller compiled for an instruction set gets it in that.
#[inline(always)]
pub fn widen(from: Data<'_>, to: &mut [f32]) {
    macro_rules! load {
        ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
            match from {
                // Casts many elements at a time with the machine's instructions.
                Data::F16(from) => {
                    let n = from.len().min(to.len());
                    from[..n].convert_to_f32_slice(&mut to[..n]);
                }
                $(Data::$variant(from) => from.iter().zip(to).for_each(|(&from, to)| *to = from.load()),)*
                Data::Blocks(..) => {}
            }
        };
    }
    #[allow(unreachable_patterns, reason = "the row of f16, which has a way of its own")]
    {
        dtype_table!(load);
    }
}

/// Writes the elements nearest to f32, as [`Element::store`] gives them, as many as both slices have; of blocks none.
///
/// It is inlined as [`widen`] is.
#[inline(always)]
pub fn narrow(from: &[f32], to: DataMut<'_>) {
    macro_rules! store {
        ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
            match to {
                // Casts many elements at a time with the machine's instructions.
                DataMut::F16(to) => {
                    let n = from.len().min(to.len());
                    to[..n].convert_from_f32_slice(&from[..n]);
                }
                $(DataMut::$variant(to) => from.iter().zip(to).for_each(|(&from, to)| *to = Element::store(from)),)*
                DataMut::Blocks(..) => {}
            }
        };
    }
    #[allow(unreachable_patterns, reason = "the row of f16, which has a way of its own")]
    {
        dtype_table!(store);
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
}

/// A vector of `n` zeros.
///
/// # Errors
/// [`Error::OutOfMemory`] where `vec!` would end the process: an inner extent of zero lets small operands ask for any
/// result.
pub fn zeros<T: bytemuck::Zeroable + Clone>(n: usize) -> Result<Vec<T>> {
    /// Bytes below which the reservation is skipped: a running machine does not refuse them, but the 4 GB of
    /// WebAssembly are soon exhausted.
    const SMALL: usize = if cfg!(target_arch = "wasm32") { 1 << 16 } else { 1 << 26 };
    let bytes = n.saturating_mul(size_of::<T>());
    if bytes > SMALL {
        // Reserved and released at once to detect a lack of memory. `vec!` below then takes fresh pages, which the
        // system has zeroed already; filling the reserved memory would touch every page.
        reserve(&mut Vec::<T>::new(), n)?;
    }
    Ok(vec![T::zeroed(); n])
}

/// Makes room for this many more elements.
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
    /// The errors of [`Operand::new`] and [`Shape::new`].
    pub fn f32(data: &'a [f32], dims: &[usize]) -> Result<Self> {
        Self::new(Data::F32(data), Shape::new(dims)?)
    }

    /// A tensor of elements of any Rust type that there are tensors of.
    ///
    /// # Errors
    /// The errors of [`Operand::new`] and [`Shape::new`].
    pub fn elements<T: Element>(data: &'a [T], dims: &[usize]) -> Result<Self> {
        Self::new(T::data(data), Shape::new(dims)?)
    }

    /// A quantised tensor of `dims` elements.
    ///
    /// # Errors
    /// The errors of [`Operand::new`] and [`Shape::new`].
    pub fn blocks(data: &'a [u8], dims: &[usize], format: QuantFormat) -> Result<Self> {
        Self::new(Data::Blocks(format, data), Shape::new(dims)?)
    }

    /// An operand without elements. An operation that updates ([`UPDATES`](crate::op::Operation::UPDATES)) is given its first operand
    /// so, and finds the elements in its output.
    pub fn of_type(ty: TensorType) -> Self {
        Self { data: Data::empty(ty.dtype), ty }
    }

    /// Whether the elements are there.
    #[inline]
    pub(crate) fn has_elements(&self) -> bool {
        self.data.bytes() > 0 || self.ty.shape.is_empty()
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

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn integers_saturate_and_truncate() {
        assert_eq!([-1.5, 300.0, f32::NAN, f32::NEG_INFINITY].map(u8::store), [0, 255, 0, 0]);
        assert_eq!([-1.5, 300.0, f32::NAN, f32::NEG_INFINITY].map(i8::store), [-1, 127, 0, -128]);
        assert_eq!([-1, 1 << 40, 7].map(u32::store_integer), [0, u32::MAX, 7]);
        assert_eq!([3e9, -3e9].map(i32::store), [i32::MAX, i32::MIN]);
    }

    #[test]
    fn every_byte_but_zero_is_true() {
        let bytes = [0u8, 1, 2, 255];
        let truths: &[Bool] = bytemuck::cast_slice(&bytes);
        assert_eq!(truths, [false, true, true, true].map(Bool::from));
        assert_eq!(truths.iter().map(|t| t.load()).collect::<Vec<_>>(), [0.0, 1.0, 1.0, 1.0]);
        assert_eq!([0.0, -0.0, f32::NAN, 1e-45].map(Bool::store), [false, false, true, true].map(Bool::from));
    }

    #[test]
    fn bf16_is_the_upper_half_rounded_to_even() {
        for (x, bits) in [(1.0, 0x3f80), (1.003_906_3, 0x3f80), (1.003_906_5, 0x3f81), (1.011_718_8, 0x3f82)] {
            assert_eq!(bf16::store(x).to_bits(), bits, "{x}");
        }
        assert!(bf16::store(f32::NAN).load().is_nan());
        assert_eq!(bf16::store(f32::MAX).load(), f32::INFINITY);
    }
}
