//! Element-wise operations: one formula a row of the table in kiln-ir, and the loops that apply them.

use kiln_ir::op::{Elementwise, ElementwiseKind};
use kiln_ir::{Data, DataMut, Operand, Result, elementwise_table};

use std::marker::PhantomData;

use crate::Isa;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{Lanewise, dispatch};

mod formula;
mod pass;
mod repeat;

pub(crate) use pass::{Call, Flat};
use pass::{Formula, Run};
use repeat::Pass;

macro_rules! kernels {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        $($ignored:tt)*
    })*) => {
        $(
            struct $variant;
            impl Formula for $variant {
                const KIND: ElementwiseKind = ElementwiseKind::$variant;
                const ARITY: usize = <[&str]>::len(&[$(stringify!($x)),*]);
                const FLOPS: u64 = $flops;
                #[inline(always)]
                fn eval<V: Lanewise>(operands: [V; 3], params: [V; 2]) -> V {
                    let [$($x,)* ..] = operands;
                    #[allow(unused_variables)]
                    let [$($p,)* ..] = params;
                    formula::$name($($x,)* $($p),*)
                }
            }
        )*

        impl Call {
            /// # Safety
            /// The conditions of [`Run`] hold.
            pub(crate) unsafe fn dispatch(self, isa: Isa, kind: ElementwiseKind) {
                match kind {
                    // SAFETY: the caller's contract; a `Simd` exists only for an available instruction set.
                    $(ElementwiseKind::$variant => unsafe { dispatch(isa, Run::<$variant>(self, PhantomData)) },)*
                }
            }
        }
    };
}
elementwise_table!(kernels);

impl Execute for Elementwise {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let mut operands: [&[f32]; 3] = [&[]; 3];
        operands.iter_mut().enumerate().take(inputs.len()).for_each(|(i, data)| *data = f32s(inputs, i));
        run(simd, self, &operands[..inputs.len()], outputs[0].f32());
        Ok(())
    }
}

/// Runs the function if every operand has the shape of the result, and returns whether it did. This is the usual case,
/// for which the shape rule would take longer than the work on short slices.
pub(crate) fn run_alike(simd: &Simd, op: &Elementwise, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> bool {
    let [DataMut::F32(out)] = outputs else { return false };
    if inputs.len() != op.kind().arity() {
        return false;
    }
    let mut operands: [&[f32]; 3] = [&[]; 3];
    for (data, input) in operands.iter_mut().zip(inputs) {
        *data = input.data().f32();
        let alike = data.len() == out.len() && input.ty() == inputs[0].ty();
        if !alike || !matches!(input.data(), Data::F32(_)) {
            return false;
        }
    }
    run(simd, op, &operands[..inputs.len()], out);
    true
}

/// Runs the function if it takes these operands and all of them are as long as the result. Returns whether it did.
pub(crate) fn run_slices(simd: &Simd, op: &Elementwise, operands: &[&[f32]], out: &mut [f32]) -> bool {
    let alike = operands.len() == op.kind().arity() && operands.iter().all(|x| x.len() == out.len());
    if alike {
        run(simd, op, operands, out);
    }
    alike
}

/// Fills the result. The number of operands is that of the function; the length of each divides that of the result.
fn run(simd: &Simd, op: &Elementwise, operands: &[&[f32]], out: &mut [f32]) {
    let total = out.len();
    let stream = total >= STREAM;
    let part = part_len(op.kind().flops(), total, simd);
    if part >= total && operands.iter().all(|x| x.len() == total) {
        let mut sources = [Flat::NONE; 3];
        sources.iter_mut().zip(operands).for_each(|(s, x)| *s = Flat { p: x.as_ptr(), repeated: false });
        let call = Call { sources, params: op.params(), out: out.as_mut_ptr(), n: total, stream };
        // SAFETY: operands and output have `total` elements and are borrowed; a `Simd` exists only for an available
        // instruction set.
        unsafe { call.dispatch(simd.isa(), op.kind()) };
        return;
    }
    let out = Shared::new(out.as_mut_ptr());
    let pass = Pass { isa: simd.isa(), kind: op.kind(), params: op.params(), out, total, stream };
    threads::for_each(total.div_ceil(part), simd.threads(), |i| {
        // SAFETY: the output has `total` elements, parts do not overlap, and operands repeat evenly.
        unsafe { pass.run(operands, i * part, part.min(total - i * part)) };
    });
}

/// Minimum elements of a result for non-temporal stores: the result and the operands are then at least 64 MB. Server
/// processors report caches several times as large, but other tenants share them: on a Xeon that reports 300 MB, passes
/// over ten million elements that were not read just before become half faster.
const STREAM: usize = 8 << 20;

/// Elements of the parts of threads, for a function of this many floating-point operations per element: all elements if
/// one thread is faster.
pub(crate) fn part_len(flops: u64, n: usize, simd: &Simd) -> usize {
    // Waking a thread costs some microseconds, which is justified for tens of microseconds of work.
    let work = (n as u64).saturating_mul(flops.max(8) * 16 / simd.isa().lanes().min(16) as u64);
    if simd.threads() == 1 || work < PARALLEL {
        return n.max(1);
    }
    n.div_ceil(2 * simd.threads()).next_multiple_of(1024)
}

/// Floating-point operations, counted for 16 lanes, below which one thread is faster.
const PARALLEL: u64 = 1_600_000;
