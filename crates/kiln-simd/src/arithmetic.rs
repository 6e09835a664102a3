//! Functions of pairs of integers.

use kiln_ir::op::{Arithmetic, IntegerFunction};
use kiln_ir::{Data, DataMut, Operand, Result};

use crate::compare::{Beside, fill, for_parts};
use crate::simd::{Execute, Simd};
use crate::threads::Shared;
use crate::vector::{PlainKernel, dispatch_plain};

/// An integer whose sums, differences and products wrap around.
trait Integer: Copy + Ord + Send + Sync {
    fn plus(self, b: Self) -> Self;
    fn minus(self, b: Self) -> Self;
    fn times(self, b: Self) -> Self;
}

macro_rules! integers {
    ($($variant:ident $ty:ty;)*) => {
        $(impl Integer for $ty {
            #[inline(always)]
            fn plus(self, b: Self) -> Self {
                self.wrapping_add(b)
            }
            #[inline(always)]
            fn minus(self, b: Self) -> Self {
                self.wrapping_sub(b)
            }
            #[inline(always)]
            fn times(self, b: Self) -> Self {
                self.wrapping_mul(b)
            }
        })*

        impl Execute for Arithmetic {
            fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
                match (inputs[0].data(), inputs[1].data(), &mut outputs[0]) {
                    $((Data::$variant(a), Data::$variant(b), DataMut::$variant(out)) => {
                        run(simd, self.function, [a, b], out);
                    })*
                    // The shape rule has checked that all operands have one of these types.
                    _ => {}
                }
                Ok(())
            }
        }
    };
}
integers! {
    I32 i32;
    U32 u32;
    I8 i8;
    U8 u8;
}

struct Computing<'a, T> {
    function: IntegerFunction,
    a: Beside<'a, T>,
    b: Beside<'a, T>,
    out: &'a mut [T],
}

impl<T: Integer> PlainKernel for Computing<'_, T> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { function, a, b, out } = self;
        // One loop for each function, so that no element needs a branch.
        match function {
            IntegerFunction::Add => fill(a, b, out, T::plus),
            IntegerFunction::Sub => fill(a, b, out, T::minus),
            IntegerFunction::Mul => fill(a, b, out, T::times),
            IntegerFunction::Min => fill(a, b, out, T::min),
            IntegerFunction::Max => fill(a, b, out, T::max),
        }
    }
}

fn run<T: Integer>(simd: &Simd, function: IntegerFunction, [a, b]: [&[T]; 2], out: &mut [T]) {
    let n = out.len();
    let out = Shared::new(out.as_mut_ptr());
    for_parts(simd, n, &[a.len(), b.len()], |range| {
        // SAFETY: parts are inside 0..n and do not overlap.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(range.start), range.len()) };
        let [a, b] = [a, b].map(|operand| Beside::of(operand, &range));
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(simd.isa(), Computing { function, a, b, out }) };
    });
}
