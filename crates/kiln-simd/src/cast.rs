//! Between the types of elements: through f32, or through i64 between integers, a few at a time.

use kiln_ir::op::Cast;
use kiln_ir::{Data, DataMut, Element, Kind, Operand, Result, dtype_table};

use crate::simd::{Execute, Simd};
use crate::vector::{PlainKernel, dispatch_plain};

/// Number of elements that are cast through f32 or i64 at once.
const AT_ONCE: usize = 256;

/// Casts all elements; both slices have the same length.
struct Elements<'a, 'b>(Data<'a>, DataMut<'b>);

impl PlainKernel for Elements<'_, '_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self(from, mut to) = self;
        let is_integer = |kind| matches!(kind, Kind::Integer | Kind::Truth);
        let integers = is_integer(from.dtype().kind()) && is_integer(to.dtype().kind());
        match (from, &mut to) {
            (Data::F32(from), _) => kiln_ir::narrow(from, to),
            (from, DataMut::F32(to)) => kiln_ir::widen(from, to),
            (from, _) if integers => by_parts(from, to, [0i64; AT_ONCE], load_integers, store_integers),
            (from, _) => by_parts(from, to, [0f32; AT_ONCE], kiln_ir::widen, kiln_ir::narrow),
        }
    }
}

/// Loads and stores a few elements at a time until all are cast.
#[inline(always)]
fn by_parts<T>(
    from: Data<'_>,
    mut to: DataMut<'_>,
    mut some: [T; AT_ONCE],
    load: impl Fn(Data<'_>, &mut [T]),
    store: impl Fn(&[T], DataMut<'_>),
) {
    let (read, written) = (from.dtype().size(), to.dtype().size());
    let n = from.bytes() / read;
    for first in (0..n).step_by(AT_ONCE) {
        let some = &mut some[..AT_ONCE.min(n - first)];
        load(from.part(first * read..(first + some.len()) * read), some);
        store(some, to.reborrow().split_at(first * written).1);
    }
}

#[inline(always)]
fn load_integers(from: Data<'_>, to: &mut [i64]) {
    macro_rules! load {
        ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
            match from {
                $(Data::$variant(from) => from.iter().zip(to).for_each(|(from, to)| *to = from.load_integer()),)*
                Data::Blocks(..) => {}
            }
        };
    }
    dtype_table!(load);
}

#[inline(always)]
fn store_integers(from: &[i64], to: DataMut<'_>) {
    macro_rules! store {
        ($($(#[$doc:meta])* $variant:ident $element:ident $name:ident $kind:ident;)*) => {
            match to {
                $(DataMut::$variant(to) => {
                    from.iter().zip(to).for_each(|(&from, to)| *to = Element::store_integer(from));
                })*
                DataMut::Blocks(..) => {}
            }
        };
    }
    dtype_table!(store);
}

/// Casts floats or blocks to f32; both have the same number of elements.
pub(crate) struct ToF32<'a>(pub(crate) Data<'a>, pub(crate) &'a mut [f32]);

impl PlainKernel for ToF32<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.0 {
            // They are whole blocks, and have as many elements as the slice.
            Data::Blocks(format, blocks) => drop(format.decode(blocks, self.1)),
            floats => kiln_ir::widen(floats, self.1),
        }
    }
}

impl Execute for Cast {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { dispatch_plain(simd.isa(), Elements(inputs[0].data(), outputs[0].reborrow())) };
        Ok(())
    }
}
