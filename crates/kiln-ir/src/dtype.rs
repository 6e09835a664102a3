//! The element types of tensors: one row each.

use std::fmt;

use crate::{Buffer, Data, DataMut, QuantFormat, bf16, f16};

/// Calls a macro with the table of element types: documentation, variant of [`DType`] (and of [`Data`], [`DataMut`] and
/// [`Buffer`]), Rust type, name of its accessors, kind.
///
/// A new element type needs a row here, an [`Element`] in Rust, and a row in each backend's table of loads and stores.
#[macro_export]
macro_rules! dtype_table {
    ($table:ident) => {
        $table! {
            /// IEEE 754 binary32: the type in which every operation computes.
            F32 f32 f32 Float;
            /// IEEE 754 binary16, for storage only: all arithmetic on it is that of f32. Every operation that takes f32
            /// takes it, and [`Cast`](crate::op::Cast) produces it.
            F16 f16 f16 Float;
            /// The upper half of an f32, with 8 bits of significand. For storage only, like [`DType::F16`].
            Bf16 bf16 bf16 Float;
            /// Signed integers of 32 bits.
            I32 i32 i32 Integer;
            /// Unsigned integers of 32 bits. Also the type of indices: results of argmax and top-k, an input of gather.
            U32 u32 u32 Integer;
            /// Signed integers of 8 bits.
            I8 i8 i8 Integer;
            /// Unsigned integers of 8 bits.
            U8 u8 u8 Integer;
            /// True or false, one byte each.
            Bool Bool bool Truth;
        }
    };
}

/// What the elements of a type are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Real numbers.
    Float,
    /// Integers.
    Integer,
    /// True or false.
    Truth,
    /// Blocks that encode real numbers.
    Blocks,
}

/// True or false in a byte: 0 is false, every other byte is true. What is made from a `bool` is 0 or 1.
#[derive(Debug, Clone, Copy, Default, bytemuck::Pod, bytemuck::Zeroable)]
#[repr(transparent)]
pub struct Bool(u8);

impl From<bool> for Bool {
    fn from(truth: bool) -> Self {
        Self(truth.into())
    }
}

impl From<Bool> for bool {
    fn from(truth: Bool) -> Self {
        truth.0 != 0
    }
}

impl PartialEq for Bool {
    fn eq(&self, other: &Self) -> bool {
        bool::from(*self) == bool::from(*other)
    }
}

impl PartialOrd for Bool {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        bool::from(*self).partial_cmp(&bool::from(*other))
    }
}

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

macro_rules! types {
    ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
        /// The element type of a tensor.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum DType {
            $($(#[$doc])* $variant,)*
            /// Blocks of a quantised format, packed along the last dimension.
            Blocks(QuantFormat),
        }

        impl DType {
            /// Every type of single elements: all but blocks.
            pub const ALL: &'static [Self] = &[$(Self::$variant),*];

            /// Bytes of what a slice of such data counts: an element, or one byte of blocks.
            pub const fn size(self) -> usize {
                match self {
                    $(Self::$variant => size_of::<$element>(),)*
                    Self::Blocks(_) => 1,
                }
            }

            /// Its name: that of the Rust type, or of the format.
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => stringify!($name),)*
                    Self::Blocks(format) => format.name(),
                }
            }

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

            /// What its elements are.
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$variant => Kind::$kind,)*
                    Self::Blocks(_) => Kind::Blocks,
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
dtype_table!(types);

impl DType {
    /// Whether its elements are real numbers, which every operation takes where it takes f32.
    pub const fn is_float(self) -> bool {
        matches!(self.kind(), Kind::Float)
    }

    /// The type of this name, as [`DType::name`] gives it.
    pub fn from_name(name: &str) -> Option<Self> {
        let blocks = QuantFormat::ALL.into_iter().map(Self::Blocks);
        Self::ALL.iter().copied().chain(blocks).find(|dtype| dtype.name() == name)
    }
}

impl fmt::Display for DType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn names_are_distinct_and_found() {
        for &dtype in DType::ALL {
            assert_eq!(DType::from_name(dtype.name()), Some(dtype));
        }
        assert_eq!(DType::from_name("q4_K"), Some(DType::Blocks(QuantFormat::Q4K)));
        assert_eq!(DType::from_name("f8"), None);
    }

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
