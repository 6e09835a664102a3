//! Rust types for the types of PTX, and operands.

use crate::ptx_type::PtxType;
use crate::text::Line;

mod sealed {
    pub trait Sealed {}
}
pub(crate) use sealed::Sealed;

/// A number in IEEE 754 half precision, in memory or in a register.
#[derive(Debug, Clone, Copy)]
pub struct F16;

/// A bfloat16, the upper half of an `f32`, in memory or in a register.
#[derive(Debug, Clone, Copy)]
pub struct Bf16;

/// A byte in memory, and a word that holds it in a register.
#[derive(Debug, Clone, Copy)]
pub struct Byte;

/// A Rust type that represents a type of PTX: `bool` (a predicate), [`Byte`], [`F16`], [`Bf16`], `u32`, `i32`, `u64`, `f32`, `f64`.
pub trait Scalar: Copy + Sealed {
    /// The type of PTX.
    const TYPE: PtxType;
}

/// An operand of an instruction that takes a `T`: for a scalar a [`Value`](crate::Value), a [`Variable`](crate::Variable) or a Rust
/// constant.
pub trait Operand<T>: Copy + Sealed {
    #[doc(hidden)]
    fn write(self, line: &mut Line<'_>);

    /// The exponent of a constant that is an unsigned power of two.
    #[doc(hidden)]
    #[inline(always)]
    fn power_of_two(self) -> Option<u32> {
        None
    }
}

macro_rules! scalars {
    ($($rust:ty, $ptx:ident, $bits:expr $(, $power_of_two:expr)?;)*) => {
        $(impl Sealed for $rust {}
        impl Scalar for $rust {
            const TYPE: PtxType = PtxType::$ptx;
        }
        impl Operand<$rust> for $rust {
            #[inline(always)]
            fn write(self, line: &mut Line<'_>) {
                let bits: fn($rust) -> u64 = $bits;
                line.constant(PtxType::$ptx, bits(self));
            }
            $(#[inline(always)]
            fn power_of_two(self) -> Option<u32> {
                let power_of_two: fn($rust) -> Option<u32> = $power_of_two;
                power_of_two(self)
            })?
        })*
    };
}

scalars! {
    u32, U32, u64::from, |x| x.is_power_of_two().then(|| x.ilog2());
    i32, S32, |x| x as u64;
    u64, U64, |x| x, |x| x.is_power_of_two().then(|| x.ilog2());
    f32, F32, |x| u64::from(x.to_bits());
    f64, F64, f64::to_bits;
}

macro_rules! registers_only {
    ($($rust:ty, $ptx:ident;)*) => {
        $(impl Sealed for $rust {}
        impl Scalar for $rust {
            const TYPE: PtxType = PtxType::$ptx;
        })*
    };
}

// No instruction takes a constant of these types.
registers_only! {
    bool, Pred;
    Byte, U8;
    F16, F16;
    Bf16, Bf16;
}
