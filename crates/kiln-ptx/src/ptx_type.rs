//! The scalar types of PTX, and the kinds of registers that hold them.

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
