//! Scalar types, and the values that represent them in a kernel.

use std::marker::PhantomData;

use crate::Builder;
use crate::text::Line;

/// A scalar type of PTX.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum PtxType {
    /// True or false.
    Pred,
    /// A byte of memory; a word in a register.
    U8,
    /// IEEE 754 half precision.
    F16,
    /// The upper half of an f32: 8 bits of significand.
    Bf16,
    /// An unsigned integer of 32 bits.
    U32,
    /// A signed integer of 32 bits.
    S32,
    /// An unsigned integer of 64 bits.
    U64,
    /// IEEE 754 single precision.
    F32,
    /// IEEE 754 double precision.
    F64,
}

impl PtxType {
    /// The suffix of loads and declarations in PTX, which do not distinguish types of 16 bits.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Pred => "pred",
            Self::U8 => "u8",
            Self::F16 | Self::Bf16 => "b16",
            Self::U32 => "u32",
            Self::S32 => "s32",
            Self::U64 => "u64",
            Self::F32 => "f32",
            Self::F64 => "f64",
        }
    }

    /// Its name in kernel names.
    pub(crate) const fn word(self) -> &'static str {
        match self {
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            other => other.name(),
        }
    }

    /// Bytes in memory. A predicate is never there.
    pub const fn bytes(self) -> u32 {
        match self {
            Self::Pred => 0,
            Self::U8 => 1,
            Self::F16 | Self::Bf16 => 2,
            Self::U32 | Self::S32 | Self::F32 => 4,
            Self::U64 | Self::F64 => 8,
        }
    }

    pub(crate) const fn class(self) -> Class {
        match self {
            Self::Pred => Class::Predicate,
            Self::F16 | Self::Bf16 => Class::Half,
            Self::U8 | Self::U32 | Self::S32 => Class::Word,
            Self::U64 => Class::Wide,
            Self::F32 => Class::Single,
            Self::F64 => Class::Double,
        }
    }
}

/// The kinds of registers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Class {
    Predicate,
    Word,
    Wide,
    Single,
    Double,
    Half,
}

impl Class {
    /// Every class.
    pub(crate) const ALL: [Self; 6] = [Self::Predicate, Self::Word, Self::Wide, Self::Single, Self::Double, Self::Half];

    /// The type of its declaration.
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Predicate => "pred",
            Self::Word => "b32",
            Self::Wide => "b64",
            Self::Single => "f32",
            Self::Double => "f64",
            Self::Half => "b16",
        }
    }

    /// The name of its registers, without their number.
    pub(crate) const fn prefix(self) -> &'static str {
        match self {
            Self::Predicate => "%p",
            Self::Word => "%r",
            Self::Wide => "%rd",
            Self::Single => "%f",
            Self::Double => "%fd",
            Self::Half => "%h",
        }
    }
}

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
