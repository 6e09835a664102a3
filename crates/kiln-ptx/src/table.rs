//! The instructions of PTX that kernels are written in: one table, from which come the methods of the builder, their
//! documentation, what they ask of version and target, and the tests.

use crate::text::Mnemonic;
use crate::types::{Operand, Scalar, Value};
use crate::{Builder, Gate, Target};

/// The table of instructions; calls `$callback!` with its rows.
///
/// A row is: the trait of the types that the instruction exists for, the method, its operands, its result or `()`, and for
/// each least version of PTX and least target the types with the name of the instruction; `T` stands for the type.
#[macro_export]
macro_rules! instruction_table {
    ($callback:path) => {
        $callback! {
            /// `a + b`; rounded to nearest, or wrapping.
            Add add(a: T, b: T) -> T
                { 6.0 Sm70: f32 "add.rn.f32", f64 "add.rn.f64", u32 "add.u32", i32 "add.s32", u64 "add.u64" }
            /// `a - b`; rounded to nearest, or wrapping.
            Sub sub(a: T, b: T) -> T
                { 6.0 Sm70: f32 "sub.rn.f32", f64 "sub.rn.f64", u32 "sub.u32", i32 "sub.s32", u64 "sub.u64" }
            /// `a * b`; rounded to nearest, or the lower half.
            Mul mul(a: T, b: T) -> T
                { 6.0 Sm70: f32 "mul.rn.f32", f64 "mul.rn.f64", u32 "mul.lo.u32", i32 "mul.lo.s32", u64 "mul.lo.u64" }
            /// `a * b` in twice the bits.
            MulWide mul_wide(a: T, b: T) -> u64 { 6.0 Sm70: u32 "mul.wide.u32" }
            /// `a * b + c`, the lower half.
            Mad mad(a: T, b: T, c: T) -> T { 6.0 Sm70: u32 "mad.lo.u32", i32 "mad.lo.s32", u64 "mad.lo.u64" }
            /// `a * b + c`, product and sum in twice the bits.
            MadWide mad_wide(a: T, b: T, c: u64) -> u64 { 6.0 Sm70: u32 "mad.wide.u32" }
            /// `a * b + c`, rounded once.
            Fma fma(a: T, b: T, c: T) -> T { 6.0 Sm70: f32 "fma.rn.f32", f64 "fma.rn.f64" }
            /// `a / b`; rounded to nearest, or towards zero. What an integer divided by zero gives is not defined.
            Div div(a: T, b: T) -> T
                { 6.0 Sm70: f32 "div.rn.f32", f64 "div.rn.f64", u32 "div.u32", i32 "div.s32", u64 "div.u64" }
            /// The remainder of `a / b`, with the sign of `a`. What a division by zero gives is not defined.
            Rem rem(a: T, b: T) -> T { 6.0 Sm70: u32 "rem.u32", i32 "rem.s32", u64 "rem.u64" }
            /// `-a`
            Neg neg(a: T) -> T { 6.0 Sm70: f32 "neg.f32", f64 "neg.f64", i32 "neg.s32" }
            /// `|a|`
            Abs abs(a: T) -> T { 6.0 Sm70: f32 "abs.f32", f64 "abs.f64", i32 "abs.s32" }
            /// The lesser; of a number and NaN the number; -0 is less than +0.
            Min min(a: T, b: T) -> T
                { 6.0 Sm70: f32 "min.f32", f64 "min.f64", u32 "min.u32", i32 "min.s32", u64 "min.u64" }
            /// The greater; of a number and NaN the number; -0 is less than +0.
            Max max(a: T, b: T) -> T
                { 6.0 Sm70: f32 "max.f32", f64 "max.f64", u32 "max.u32", i32 "max.s32", u64 "max.u64" }
            /// The lesser, NaN if either is; -0 is less than +0.
            MinNan min_nan(a: T, b: T) -> T { 7.0 Sm80: f32 "min.NaN.f32" }
            /// The greater, NaN if either is; -0 is less than +0.
            MaxNan max_nan(a: T, b: T) -> T { 7.0 Sm80: f32 "max.NaN.f32" }
            /// `√a`, rounded to nearest.
            Sqrt sqrt(a: T) -> T { 6.0 Sm70: f32 "sqrt.rn.f32", f64 "sqrt.rn.f64" }
            /// `1 / a`, rounded to nearest.
            Rcp rcp(a: T) -> T { 6.0 Sm70: f32 "rcp.rn.f32", f64 "rcp.rn.f64" }
            /// `b` with the sign of `a`.
            Copysign copysign(a: T, b: T) -> T { 6.0 Sm70: f32 "copysign.f32", f64 "copysign.f64" }
            /// `a & b`
            And and(a: T, b: T) -> T { 6.0 Sm70: bool "and.pred", u32 "and.b32", u64 "and.b64" }
            /// `a | b`
            Or or(a: T, b: T) -> T { 6.0 Sm70: bool "or.pred", u32 "or.b32", u64 "or.b64" }
            /// `a ^ b`
            Xor xor(a: T, b: T) -> T { 6.0 Sm70: bool "xor.pred", u32 "xor.b32", u64 "xor.b64" }
            /// `!a`
            Not not(a: T) -> T { 6.0 Sm70: bool "not.pred", u32 "not.b32", u64 "not.b64" }
            /// `a << b`, 0 from the number of bits on.
            Shl shl(a: T, b: u32) -> T { 6.0 Sm70: u32 "shl.b32", i32 "shl.b32", u64 "shl.b64" }
            /// `a >> b`; a signed integer keeps its sign. From the number of bits on 0, or the sign.
            Shr shr(a: T, b: u32) -> T { 6.0 Sm70: u32 "shr.u32", i32 "shr.s32", u64 "shr.u64" }
            /// `a < b`
            Lt lt(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.lt.f32", f64 "setp.lt.f64", u32 "setp.lt.u32", i32 "setp.lt.s32", u64 "setp.lt.u64" }
            /// `a <= b`
            Le le(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.le.f32", f64 "setp.le.f64", u32 "setp.le.u32", i32 "setp.le.s32", u64 "setp.le.u64" }
            /// `a > b`
            Gt gt(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.gt.f32", f64 "setp.gt.f64", u32 "setp.gt.u32", i32 "setp.gt.s32", u64 "setp.gt.u64" }
            /// `a >= b`
            Ge ge(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.ge.f32", f64 "setp.ge.f64", u32 "setp.ge.u32", i32 "setp.ge.s32", u64 "setp.ge.u64" }
            /// `a == b`
            Eq eq(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.eq.f32", f64 "setp.eq.f64", u32 "setp.eq.u32", i32 "setp.eq.s32", u64 "setp.eq.u64" }
            /// `a != b`; false where either is NaN.
            Ne ne(a: T, b: T) -> bool { 6.0 Sm70:
                f32 "setp.ne.f32", f64 "setp.ne.f64", u32 "setp.ne.u32", i32 "setp.ne.s32", u64 "setp.ne.u64" }
            /// Whether either is NaN.
            Nan nan(a: T, b: T) -> bool { 6.0 Sm70: f32 "setp.nan.f32", f64 "setp.nan.f64" }
            /// `a` where `c`, else `b`.
            Selp selp(a: T, b: T, c: bool) -> T { 6.0 Sm70:
                f32 "selp.f32", f64 "selp.f64", u32 "selp.u32", i32 "selp.s32", u64 "selp.u64" }
            /// As `u32`: the lower half.
            CvtU32 cvt_u32(a: T) -> u32 { 6.0 Sm70: u64 "cvt.u32.u64" }
            /// As `u64`, exactly.
            CvtU64 cvt_u64(a: T) -> u64 { 6.0 Sm70: u32 "cvt.u64.u32" }
            /// The nearest integer, of two the even one; NaN gives 0, what is beyond gives the end of the range.
            CvtRniS32 cvt_rni_s32(a: T) -> i32 { 6.0 Sm70: f32 "cvt.rni.s32.f32" }
            /// As `f32`, rounded to nearest.
            CvtRnF32 cvt_rn_f32(a: T) -> f32
                { 6.0 Sm70: u32 "cvt.rn.f32.u32", i32 "cvt.rn.f32.s32", f64 "cvt.rn.f32.f64" }
            /// As `f64`, rounded to nearest.
            CvtRnF64 cvt_rn_f64(a: T) -> f64 { 6.0 Sm70: u32 "cvt.rn.f64.u32", u64 "cvt.rn.f64.u64" }
            /// As `f64`, exactly.
            CvtF64 cvt_f64(a: T) -> f64 { 6.0 Sm70: f32 "cvt.f64.f32" }
            /// The bits as `u32`.
            BitsU32 bits_u32(a: T) -> u32 { 6.0 Sm70: f32 "mov.b32", i32 "mov.b32" }
            /// The bits as `i32`.
            BitsS32 bits_s32(a: T) -> i32 { 6.0 Sm70: f32 "mov.b32", u32 "mov.b32" }
            /// The bits as `u64`.
            BitsU64 bits_u64(a: T) -> u64 { 6.0 Sm70: f64 "mov.b64" }
            /// The number with these bits.
            BitsF32 bits_f32(a: T) -> f32 { 6.0 Sm70: u32 "mov.b32", i32 "mov.b32" }
            /// The number with these bits.
            BitsF64 bits_f64(a: T) -> f64 { 6.0 Sm70: u64 "mov.b64" }
            /// `a` of the lane whose number differs from this one's by `b`, bit for bit; `c` bounds the exchange (31: the
            /// whole warp), `members` are the lanes that take part.
            ShflBfly shfl_bfly(a: T, b: u32, c: u32, members: u32) -> T
                { 6.0 Sm70: f32 "shfl.sync.bfly.b32", u32 "shfl.sync.bfly.b32" }
            /// Waits until every thread of the block has come here; what they wrote before is then seen by all.
            BarSync bar_sync(barrier: T) -> () { 6.0 Sm70: u32 "bar.sync" }
        }
    };
}

/// The table of special registers; calls `$callback!` with its rows: method and register.
#[macro_export]
macro_rules! special_register_table {
    ($callback:path) => {
        $callback! {
            /// Position of the thread in its block, x.
            tid_x "%tid.x"
            /// Position of the thread in its block, y.
            tid_y "%tid.y"
            /// Position of the block in the grid, x.
            ctaid_x "%ctaid.x"
            /// Position of the block in the grid, y.
            ctaid_y "%ctaid.y"
            /// Position of the block in the grid, z.
            ctaid_z "%ctaid.z"
        }
    };
}

/// One instruction for one type.
#[derive(Debug)]
#[doc(hidden)]
pub struct Row {
    pub(crate) mnemonic: Mnemonic,
    pub(crate) gate: Gate,
}

macro_rules! define {
    ($($(#[doc = $doc:literal])* $family:ident $method:ident ($($x:ident: $operand:ident),*) -> $result:tt
        { $($version:literal $target:ident: $($ty:ident $name:literal),*);* })*) => {
        $(
            #[doc = concat!("The types of [`Builder::", stringify!($method), "`].")]
            pub trait $family: Scalar {
                #[doc(hidden)]
                const ROW: Row;
            }
            $($(impl $family for $ty {
                const ROW: Row = Row { mnemonic: Mnemonic::new($name), gate: Gate::new($version, Target::$target) };
            })*)*
        )*

        /// The instructions, named as in the PTX ISA, without what their operands say.
        impl Builder {
            $(
                $(#[doc = $doc])*
                #[doc = ""]
                #[doc = concat!($($("`", $name, "`, ",)* "PTX ", stringify!($version), ", `", stringify!($target), "`",)*)]
                #[inline]
                pub fn $method<T: $family>(&self, $($x: impl Operand<$operand>),*) -> define!(@type $result) {
                    define!(@body $result, self, &const { T::ROW }, [$($x.raw()),*])
                }
            )*
        }
    };
    (@type ()) => { () };
    (@type $result:ident) => { Value<'_, $result> };
    (@body (), $self:ident, $row:expr, $operands:expr) => { $self.instruction($row, None, &$operands) };
    (@body $result:ident, $self:ident, $row:expr, $operands:expr) => {{
        let value = $self.fresh::<$result>();
        $self.instruction($row, Some(value.raw()), &$operands);
        value
    }};
}
instruction_table!(define);

macro_rules! define_special {
    ($($(#[doc = $doc:literal])* $method:ident $name:literal)*) => {
        /// What a thread knows of itself.
        impl Builder {
            $($(#[doc = $doc])*
            pub fn $method(&self) -> Value<'_, u32> {
                self.special($name)
            })*
        }
    };
}
special_register_table!(define_special);

macro_rules! operators {
    ($($operator:ident $function:ident $family:ident $method:ident: $($constant:ty),*;)*) => {
        $(
            impl<'k, T: $family, B: Operand<T>> std::ops::$operator<B> for Value<'k, T> {
                type Output = Value<'k, T>;
                #[inline]
                fn $function(self, other: B) -> Value<'k, T> {
                    self.builder.$method(self, other)
                }
            }
            $(impl<'k> std::ops::$operator<Value<'k, $constant>> for $constant {
                type Output = Value<'k, $constant>;
                #[inline]
                fn $function(self, other: Value<'k, $constant>) -> Value<'k, $constant> {
                    other.builder.$method(self, other)
                }
            })*
        )*
    };
}
operators! {
    Add add Add add: f32, f64, u32, i32, u64;
    Sub sub Sub sub: f32, f64, u32, i32, u64;
    Mul mul Mul mul: f32, f64, u32, i32, u64;
    Div div Div div: f32, f64, u32, i32, u64;
    Rem rem Rem rem: u32, i32, u64;
    BitAnd bitand And and: u32, u64;
    BitOr bitor Or or: u32, u64;
    BitXor bitxor Xor xor: u32, u64;
}

macro_rules! unary_operators {
    ($($operator:ident $function:ident $family:ident $method:ident;)*) => {
        $(impl<'k, T: $family> std::ops::$operator for Value<'k, T> {
            type Output = Value<'k, T>;
            #[inline]
            fn $function(self) -> Value<'k, T> {
                self.builder.$method(self)
            }
        })*
    };
}
unary_operators! {
    Neg neg Neg neg;
    Not not Not not;
}

impl<'k, T: Shl, B: Operand<u32>> std::ops::Shl<B> for Value<'k, T> {
    type Output = Value<'k, T>;
    fn shl(self, places: B) -> Value<'k, T> {
        self.builder.shl(self, places)
    }
}

impl<'k, T: Shr, B: Operand<u32>> std::ops::Shr<B> for Value<'k, T> {
    type Output = Value<'k, T>;
    fn shr(self, places: B) -> Value<'k, T> {
        self.builder.shr(self, places)
    }
}
