//! The element types of tensors: one row each.

use std::fmt;

use crate::{QuantFormat, bf16, f16};

/// Calls a macro with the table of element types: documentation, variant of [`DType`] (and of [`Data`](crate::Data),
/// [`DataMut`](crate::DataMut) and [`Buffer`](crate::Buffer)), Rust type, name of its accessors, kind.
///
/// A new element type needs a row here, an [`Element`](crate::Element) in Rust, and a row in each backend's table of loads and stores.
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

/// The kind of the elements of a type.
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

            /// The kind of its elements.
            pub const fn kind(self) -> Kind {
                match self {
                    $(Self::$variant => Kind::$kind,)*
                    Self::Blocks(_) => Kind::Blocks,
                }
            }
        }
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
}
