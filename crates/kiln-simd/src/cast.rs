//! Casts between element types: through f32, or through i64 between integers, a few elements at a time.

use std::sync::{Mutex, PoisonError};

use kiln_ir::op::Cast;
use kiln_ir::{DType, Data, DataMut, Element, Kind, Operand, Result, dtype_table, zeros};

use crate::Isa;
use crate::simd::{Execute, Simd};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain, narrow_to_halves, widen_halves};

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
struct ToF32<'a>(Data<'a>, &'a mut [f32]);

impl PlainKernel for ToF32<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        match self.0 {
            // They are whole blocks, and have as many elements as the slice.
            Data::Blocks(format, blocks) => drop(format.decode_inlined(blocks, self.1)),
            floats => kiln_ir::widen(floats, self.1),
        }
    }
}

/// Casts floats or blocks to f32; both have the same number of elements.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn to_f32(isa: Isa, from: Data<'_>, to: &mut [f32]) {
    // SAFETY: the caller's contract.
    unsafe {
        match from {
            Data::F16(halves) => widen_halves(isa, halves, to),
            from => dispatch_plain(isa, ToF32(from, to)),
        }
    }
}

/// Elements that a thread casts at once, in some ten microseconds.
const SHARE: usize = 65_536;

/// Casts floats to f32; both have the same number of elements.
pub(crate) fn widen(simd: &Simd, floats: Data<'_>, to: &mut [f32], threads: usize) {
    let (n, size) = (to.len(), floats.dtype().size());
    let out = Shared::new(to.as_mut_ptr());
    threads::for_each(n.div_ceil(SHARE), threads, |part| {
        let (from, to) = (part * SHARE, n.min((part + 1) * SHARE));
        // SAFETY: the slice has n elements, and parts do not overlap.
        let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(from), to - from) };
        // SAFETY: a `Simd` exists only for an available instruction set.
        unsafe { to_f32(simd.isa(), floats.part(from * size..to * size), out) };
    });
}

/// Floats as f32: unchanged, or cast into `wide`.
pub(crate) fn as_f32<'a>(simd: &Simd, floats: Data<'a>, wide: &'a mut Vec<f32>) -> Result<&'a [f32]> {
    if floats.dtype() == DType::F32 {
        return Ok(floats.f32());
    }
    let n = floats.bytes() / floats.dtype().size();
    if wide.len() < n {
        *wide = zeros(n)?;
    }
    widen(simd, floats, &mut wide[..n], simd.threads());
    Ok(&wide[..n])
}

/// Casts all elements; both have the same number.
fn cast(simd: &Simd, from: Data<'_>, to: DataMut<'_>) {
    let isa = simd.isa();
    // SAFETY: a `Simd` exists only for an available instruction set.
    unsafe {
        match (from, to) {
            (Data::F16(from), DataMut::F32(to)) => widen_halves(isa, from, to),
            (Data::F32(from), DataMut::F16(to)) => narrow_to_halves(isa, from, to),
            (from, to) => dispatch_plain(isa, Elements(from, to)),
        }
    }
}

impl Execute for Cast {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (from, to) = (inputs[0].data(), outputs[0].reborrow());
        let n = inputs[0].shape().numel();
        if n <= SHARE || simd.threads() == 1 {
            cast(simd, from, to);
            return Ok(());
        }
        let (read, written) = (from.dtype().size(), to.dtype().size());
        let (mut parts, mut rest) = (Vec::with_capacity(n.div_ceil(SHARE)), to);
        for first in (0..n).step_by(SHARE) {
            let (part, others) = rest.split_at(SHARE.min(n - first) * written);
            parts.push(Mutex::new(Some(part)));
            rest = others;
        }
        threads::for_each(parts.len(), simd.threads(), |i| {
            // Each part is taken once.
            let part = parts[i].lock().unwrap_or_else(PoisonError::into_inner).take();
            if let Some(to) = part {
                let from = from.part(i * SHARE * read..n.min((i + 1) * SHARE) * read);
                cast(simd, from, to);
            }
        });
        Ok(())
    }
}
