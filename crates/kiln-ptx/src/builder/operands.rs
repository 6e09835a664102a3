//! Operands of the rows of the table beside scalars: addresses, lists of registers, and constants that are part of the
//! instruction.

use std::marker::PhantomData;

use super::value::{Value, Variable};
use super::{Global, Pointer, Shared, SharedCluster, Space};
use crate::Builder;
use crate::ptx_type::{Class, PtxType};
use crate::text::Line;
use crate::types::{Operand, Scalar, Sealed};

macro_rules! addresses {
    ($($(#[doc = $doc:literal])* $name:ident $space:ident;)*) => {
        $($(#[doc = $doc])*
        #[derive(Debug, Clone, Copy)]
        pub struct $name;

        impl<T> Operand<$name> for Pointer<'_, $space, T> {
            #[inline(always)]
            fn write(self, line: &mut Line<'_>) {
                self.address_in(line);
            }
        })*
    };
}
addresses! {
    /// An address in the shared memory of the block.
    SharedAt Shared;
    /// An address in the shared memory of a block of the cluster.
    ClusterAt SharedCluster;
    /// An address in global memory.
    GlobalAt Global;
}

impl<S: Space, T> Sealed for Pointer<'_, S, T> {}

/// `N` registers of `T` beside one another.
#[derive(Debug, Clone, Copy)]
pub struct Registers<T, const N: usize>(PhantomData<T>);

macro_rules! registers {
    ($($name:ident $ty:ident $n:literal;)*) => {
        $(#[doc = concat!("`", stringify!($n), "` registers of `", stringify!($ty), "`.")]
        pub type $name = Registers<$ty, $n>;)*
    };
}
registers! {
    B32x1 u32 1;
    B32x2 u32 2;
    B32x4 u32 4;
    S32x4 i32 4;
    F32x4 f32 4;
    F32x8 f32 8;
    F32x16 f32 16;
    F32x32 f32 32;
    F32x64 f32 64;
    F32x88 f32 88;
    F32x128 f32 128;
}

/// Registers beside one another: what a thread holds of a matrix.
pub struct Fragment<'k, T, const N: usize> {
    pub(super) builder: &'k Builder,
    pub(super) first: u32,
    pub(super) scalar: PhantomData<T>,
}

impl<T, const N: usize> Clone for Fragment<'_, T, N> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T, const N: usize> Copy for Fragment<'_, T, N> {}
impl<T, const N: usize> Sealed for Fragment<'_, T, N> {}

impl<'k, T: Scalar, const N: usize> Fragment<'k, T, N> {
    /// The register of this number.
    pub fn get(self, number: usize) -> Value<'k, T> {
        assert!(number < N, "register {number} of a fragment of {N}");
        Value { builder: self.builder, number: self.first + number as u32, scalar: PhantomData }
    }

    /// `M` of the registers, from `from` on.
    pub fn part<const M: usize>(self, from: usize) -> Fragment<'k, T, M> {
        assert!(from + M <= N, "registers {from} to {} of a fragment of {N}", from + M);
        Fragment { builder: self.builder, first: self.first + from as u32, scalar: PhantomData }
    }
}

impl<T: Scalar, const N: usize> Operand<Registers<T, N>> for Fragment<'_, T, N> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        line.registers(T::TYPE.class(), self.first..self.first + N as u32);
    }
}

macro_rules! lists {
    ($($registers:ident $n:literal;)*) => {
        $(impl<T: Scalar> Operand<$registers<T, $n>> for [Value<'_, T>; $n] {
            #[inline(always)]
            fn write(self, line: &mut Line<'_>) {
                line.registers(T::TYPE.class(), self.into_iter().map(|value| value.number));
            }
        }

        impl<T: Scalar> Operand<$registers<T, $n>> for [Variable<'_, T>; $n] {
            #[inline(always)]
            fn write(self, line: &mut Line<'_>) {
                self.map(|variable| variable.0).write(line);
            }
        })*
    };
}
impl<T, const N: usize> Sealed for [Value<'_, T>; N] {}
impl<T, const N: usize> Sealed for [Variable<'_, T>; N] {}
// Small fragments need not be consecutive.
lists! {
    Registers 1;
    Registers 2;
    Registers 4;
}

/// A parameter of a kernel that describes a tensor of three dimensions.
#[derive(Clone, Copy)]
pub struct TensorParameter<'k>(pub(super) Value<'k, u64>);

/// The description of a tensor.
#[derive(Debug, Clone, Copy)]
pub struct MapAt;

impl Sealed for TensorParameter<'_> {}
impl Operand<MapAt> for TensorParameter<'_> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        line.address(Class::Wide, self.0.number, 0);
    }
}

impl<'k> TensorParameter<'k> {
    /// The box that begins at these coordinates, the innermost first. They are signed: a box may begin outside.
    pub fn at(self, coordinates: [Value<'k, u32>; 3]) -> TensorBox<'k> {
        TensorBox(self, coordinates)
    }
}

/// A place in a tensor.
#[derive(Clone, Copy)]
pub struct TensorBox<'k>(TensorParameter<'k>, [Value<'k, u32>; 3]);

/// A place in a tensor.
#[derive(Debug, Clone, Copy)]
pub struct TensorAt;

impl Sealed for TensorBox<'_> {}
impl Operand<TensorAt> for TensorBox<'_> {
    #[inline(always)]
    fn write(self, line: &mut Line<'_>) {
        line.put("[");
        line.register(Class::Wide, self.0.0.number);
        line.put(", ");
        line.registers(Class::Word, self.1.into_iter().map(|coordinate| coordinate.number));
        line.put("]");
    }
}

macro_rules! constants {
    ($($(#[doc = $doc:literal])* $name:ident($field:ty) = $ty:ident $bits:expr;)*) => {
        $($(#[doc = $doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub struct $name(pub $field);

        impl Sealed for $name {}
        impl Operand<$name> for $name {
            #[inline(always)]
            fn write(self, line: &mut Line<'_>) {
                let bits: fn($field) -> u64 = $bits;
                line.constant(PtxType::$ty, bits(self.0));
            }
        })*
    };
}
constants! {
    /// Maximum number of groups that may still be in flight.
    Groups(u32) = U32 u64::from;
    /// Registers of a thread: a multiple of 8 from 24 to 256.
    RegisterCount(u32) = U32 u64::from;
    /// Blocks of a cluster, as bits.
    Blocks(u16) = U32 u64::from;
    /// 1 or 0.
    Flag(bool) = U32 u64::from;
    /// -1 if true, else 1.
    Sign(bool) = S32 |minus| if minus { -1i64 as u64 } else { 1 };
    /// 4 bytes.
    Four(()) = U32 |()| 4;
    /// 16 bytes.
    Sixteen(()) = U32 |()| 16;
}
