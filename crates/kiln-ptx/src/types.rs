//! Rust types for the types of PTX, and the values that represent them in a kernel.

use std::marker::PhantomData;

use crate::Builder;
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

/// What can stand where an instruction takes a `T`: for a scalar a [`Value`], a [`Variable`] or a Rust constant.
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

/// What an instruction computed. It is written once and lives as long as its kernel is built.
pub struct Value<'k, T> {
    pub(crate) builder: &'k Builder,
    pub(crate) number: u32,
    pub(crate) scalar: PhantomData<T>,
}

/// A value that changes: what a loop carries from turn to turn. As an operand it is read when the instruction runs.
pub struct Variable<'k, T>(pub(crate) Value<'k, T>);

impl<T> Clone for Value<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Value<'_, T> {}

impl<T> Clone for Variable<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Variable<'_, T> {}

impl<T> Sealed for Value<'_, T> {}
impl<T> Sealed for Variable<'_, T> {}

impl<T: Scalar> Operand<T> for Value<'_, T> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        line.register(T::TYPE.class(), self.number);
    }
}

impl<T: Scalar> Operand<T> for Variable<'_, T> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        self.0.write(line);
    }
}

impl<'k, T: Scalar> Variable<'k, T> {
    /// What it holds now, and goes on to hold when the variable is set again.
    pub fn get(self) -> Value<'k, T> {
        let builder = self.0.builder;
        let value = builder.fresh();
        builder.copy(value, self);
        value
    }

    /// Gives it a new value.
    pub fn set(self, value: impl Operand<T>) {
        self.0.builder.copy(self.0, value);
    }
}
