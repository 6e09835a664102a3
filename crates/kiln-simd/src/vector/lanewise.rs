//! Arithmetic lane by lane for formulas, on one vector or on two at once.

use std::ops::{Add, Div, Mul, Neg, Sub};

use super::{MAX_LANES, Vector};

/// Generates [`Lanewise`] from its methods in [`Vector`], and implements it for vectors and for pairs.
macro_rules! lanewise {
    (numbers { $($(#[doc = $doc:literal])* $name:ident($($b:ident),*);)* }
     comparisons { $($(#[doc = $compare_doc:literal])* $compare:ident;)* }) => {
        /// The methods of [`Vector`] that treat every lane alike and do not access memory.
        pub(crate) trait Lanewise:
            Copy + Add<Output = Self> + Sub<Output = Self> + Mul<Output = Self> + Div<Output = Self> + Neg<Output = Self>
        {
            /// [`Vector::FUSED`] of the vector.
            const FUSED: bool;
            /// [`Vector::TABLES`] of the vector.
            const TABLES: bool;
            /// A truth value for each lane.
            type Mask: Copy;
            /// A constant, given an existing value.
            fn of(self, x: f32) -> Self;
            /// Calls [`Vector::mantissa_exponent`].
            fn mantissa_exponent(self) -> (Self, Self);
            /// Calls [`Vector::lookup`].
            fn lookup(self, table: &[f32; 16]) -> Self;
            /// Lane by lane `mask ? yes : no`.
            fn select(mask: Self::Mask, yes: Self, no: Self) -> Self;
            /// Whether the mask holds for any lane.
            fn any(mask: Self::Mask) -> bool;
            /// Calls a function of one number with two results for each lane.
            fn each(self, function: fn(f32) -> (f32, f32)) -> (Self, Self);
            $($(#[doc = $doc])* fn $name(self, $($b: Self),*) -> Self;)*
            $($(#[doc = $compare_doc])* fn $compare(self, b: Self) -> Self::Mask;)*
        }

        impl<V: Vector> Lanewise for V {
            const FUSED: bool = V::FUSED;
            const TABLES: bool = V::TABLES;
            type Mask = V::Mask;
            #[inline(always)]
            fn of(self, x: f32) -> Self {
                Vector::of(self, x)
            }
            #[inline(always)]
            fn mantissa_exponent(self) -> (Self, Self) {
                Vector::mantissa_exponent(self)
            }
            #[inline(always)]
            fn lookup(self, table: &[f32; 16]) -> Self {
                Vector::lookup(self, table)
            }
            #[inline(always)]
            fn select(mask: V::Mask, yes: Self, no: Self) -> Self {
                <V as Vector>::select(mask, yes, no)
            }
            #[inline(always)]
            fn any(mask: V::Mask) -> bool {
                V::bits(mask) != 0
            }
            #[inline(always)]
            fn each(self, function: fn(f32) -> (f32, f32)) -> (Self, Self) {
                let (mut first, mut second) = (self.lanes(), [0.0; MAX_LANES]);
                for (a, b) in first.iter_mut().zip(&mut second).take(V::LANES) {
                    (*a, *b) = function(*a);
                }
                (V::from_lanes(first, self), V::from_lanes(second, self))
            }
            $(#[inline(always)] fn $name(self, $($b: Self),*) -> Self { Vector::$name(self, $($b),*) })*
            $(#[inline(always)] fn $compare(self, b: Self) -> V::Mask { Vector::$compare(self, b) })*
        }

        impl<V: Vector> Lanewise for Pair<V> {
            const FUSED: bool = V::FUSED;
            const TABLES: bool = V::TABLES;
            type Mask = (V::Mask, V::Mask);
            #[inline(always)]
            fn of(self, x: f32) -> Self {
                Self(self.0.of(x), self.1.of(x))
            }
            #[inline(always)]
            fn mantissa_exponent(self) -> (Self, Self) {
                let ((m, k), (n, l)) = (self.0.mantissa_exponent(), self.1.mantissa_exponent());
                (Self(m, n), Self(k, l))
            }
            #[inline(always)]
            fn lookup(self, table: &[f32; 16]) -> Self {
                Self(self.0.lookup(table), self.1.lookup(table))
            }
            #[inline(always)]
            fn select(mask: Self::Mask, yes: Self, no: Self) -> Self {
                Self(<V as Vector>::select(mask.0, yes.0, no.0), <V as Vector>::select(mask.1, yes.1, no.1))
            }
            #[inline(always)]
            fn any(mask: Self::Mask) -> bool {
                <V as Lanewise>::any(mask.0) || <V as Lanewise>::any(mask.1)
            }
            #[inline(always)]
            fn each(self, function: fn(f32) -> (f32, f32)) -> (Self, Self) {
                let ((a, b), (c, d)) = (self.0.each(function), self.1.each(function));
                (Self(a, c), Self(b, d))
            }
            $(#[inline(always)] fn $name(self, $($b: Self),*) -> Self {
                Self(Vector::$name(self.0, $($b.0),*), Vector::$name(self.1, $($b.1),*))
            })*
            $(#[inline(always)] fn $compare(self, b: Self) -> Self::Mask {
                (Vector::$compare(self.0, b.0), Vector::$compare(self.1, b.1))
            })*
        }
    };
}

lanewise! {
    numbers {
        /// Calls [`Vector::mul_add`].
        mul_add(b, c);
        /// Calls [`Vector::fma`].
        fma(b, c);
        /// Square root.
        sqrt();
        /// Calls [`Vector::reciprocal_sqrt`].
        reciprocal_sqrt();
        /// Calls [`Vector::lesser`].
        lesser(b);
        /// Calls [`Vector::greater`].
        greater(b);
        /// Calls [`Vector::minimum`].
        minimum(b);
        /// Calls [`Vector::maximum`].
        maximum(b);
        /// Calls [`Vector::scale_pow2`].
        scale_pow2(n);
        /// Calls [`Vector::shift_exponent`].
        shift_exponent(shifted);
        /// Calls [`Vector::limited`].
        limited(limit);
        /// Calls [`Vector::quarter_of_octave`].
        quarter_of_octave();
        /// Absolute value; clears the sign of NaN too.
        abs();
        /// Bitwise and.
        and(b);
        /// Bitwise or.
        or(b);
        /// Bitwise exclusive or.
        xor(b);
    }
    comparisons {
        /// `self < b`; false if either is NaN.
        lt;
        /// `self <= b`; false if either is NaN.
        le;
        /// `self == b`; false if either is NaN.
        eq;
    }
}

/// Two vectors; each operation is applied to both before the next.
///
/// A long formula is one chain of dependent operations. Processors fill the gaps with later instructions, but only from
/// the next formula or two; two interleaved chains do not depend on that.
#[derive(Clone, Copy)]
pub(crate) struct Pair<V>(pub(crate) V, pub(crate) V);

macro_rules! operators {
    ($($trait:ident $method:ident),*) => {
        $(impl<V: Vector> $trait for Pair<V> {
            type Output = Self;
            #[inline(always)]
            fn $method(self, b: Self) -> Self {
                Self(self.0.$method(b.0), self.1.$method(b.1))
            }
        })*
    };
}
operators!(Add add, Sub sub, Mul mul, Div div);

impl<V: Vector> Neg for Pair<V> {
    type Output = Self;
    #[inline(always)]
    fn neg(self) -> Self {
        Self(-self.0, -self.1)
    }
}
