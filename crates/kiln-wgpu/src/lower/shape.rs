//! Operations that move elements: strided copies.

use kiln_ir::op::{
    AllReduce, BroadcastTo, Concat, Elementwise, Movement, Pad, Permute, Reshape, Slice as Cut, StridedCopy,
};
use kiln_ir::{Error, Result, TensorType};
use kiln_shaders::{FILL, STRIDED_COPY, STRIDED_COPY_PARTS};

use super::pieces::{fits, pieces};
use super::transpose::transpose;
use super::{Dispatches, Lower, Lowering, Value};
use crate::GpuDevice;
use crate::plan::{Code, Grid, Slice, Word};

/// Number of dimensions of the kernels.
const RANK: usize = 6;

/// Maximum dispatches of one copy, if bindings cannot hold all that it accesses.
const MOST: usize = 1024;

macro_rules! movements {
    ($($operation:ident),*) => {
        $(impl Lower<GpuDevice> for $operation {
            fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
                lower(plan, self, inputs, outputs[0])
            }
        })*
    };
}
movements!(BroadcastTo, Concat, Cut, Pad, Permute, Reshape);

/// A device that is in no group has nothing to add but the addend of [`FusionLimits::addends`](kiln_ir::graph::FusionLimits::addends).
impl Lower<GpuDevice> for AllReduce {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        match inputs {
            [_, _] => Elementwise::add().lower(plan, inputs, outputs),
            _ => lower(plan, self, inputs, outputs[0]),
        }
    }
}

/// Fills the output if operands do not cover all of it, and copies each operand to its position.
fn lower(plan: &mut Lowering<'_>, op: &impl Movement, inputs: &[Value], out: Value) -> Result<()> {
    if let Some(value) = op.fill() {
        fill(plan, value, out);
    }
    let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
    for (index, input) in inputs.iter().enumerate() {
        strided(plan, &op.copy(&types, index)?, *input, out)?;
    }
    Ok(())
}

/// Writes one value to all elements.
pub(super) fn fill(plan: &mut Lowering<'_>, value: f32, out: Value) {
    let word = out.ty.dtype.word_of(value);
    let vectors = out.ty.bytes().div_ceil(16);
    for piece in pieces(&plan.target.limits, vectors, &[16]) {
        let code = Code::Kernel(FILL, Vec::new());
        let params = [word.into(), Word::from(piece.len)];
        plan.dispatch(code, vec![piece.of(out, 16)], &params, Grid::invocations(piece.len));
    }
}

/// Copies the units of a plan from one value to another.
///
/// # Errors
/// [`Error::Limit`] if the accessed ranges exceed the bindings so far that it would take too many dispatches.
pub(super) fn strided(plan: &mut Lowering<'_>, copy: &StridedCopy, x: Value, out: Value) -> Result<()> {
    if copy.is_empty() {
        return Ok(());
    }
    if let (4, Some([matrices, rows, columns])) = (copy.unit(), copy.as_transpose()) {
        transpose(plan, x.into(), out.into(), matrices, rows, columns);
        return Ok(());
    }
    let held = [x, out].map(|value| value.ty.bytes());
    // Copies vectors if everything consists of whole vectors, else words.
    let wide = Some(copy.widened(16)).filter(|wide| wide.unit() == 16);
    let mut pending = vec![wide.unwrap_or_else(|| copy.widened(4))];
    let mut dispatches = 0;
    while let Some(copy) = pending.pop() {
        let Some(sides) = sides(&plan.target.limits, &copy, [x, out], held) else {
            match copy.halves() {
                Some([first, second]) if dispatches < MOST => pending.extend([second, first]),
                _ => return Err(too_large(plan, held)),
            }
            continue;
        };
        dispatches += 1;
        dispatch(plan, &copy, sides);
    }
    Ok(())
}

fn too_large(plan: &Lowering<'_>, held: [usize; 2]) -> Error {
    Error::Limit {
        what: "bytes that a strided copy reaches",
        device: "this GPU".into(),
        asked: held[0].max(held[1]) as u64,
        limit: plan.target.limits.max_storage_buffer_binding_size,
    }
}

/// The parts of both tensors that a copy accesses, and the positions of its first units in them. `None` if a binding
/// cannot hold one of them.
fn sides(
    limits: &wgpu::Limits,
    copy: &StridedCopy,
    values: [Value; 2],
    held: [usize; 2],
) -> Option<[(Slice, usize); 2]> {
    let alignment = limits.min_storage_buffer_offset_alignment.max(16) as usize;
    let windows = copy.windows();
    let side = |i: usize| {
        let whole = Slice::from(values[i]);
        if fits(limits, held[i]) {
            return Some((whole, windows[i].start));
        }
        let [start, end] = [windows[i].start, windows[i].end].map(|unit| unit * copy.unit());
        let from = start / alignment * alignment;
        let bytes = (end - from).next_multiple_of(16);
        fits(limits, bytes).then_some((whole.part(from, bytes), windows[i].start - from / copy.unit()))
    };
    Some([side(0)?, side(1)?])
}

fn dispatch(plan: &mut Lowering<'_>, copy: &StridedCopy, [(x, from), (out, to)]: [(Slice, usize); 2]) {
    let rank = copy.dims().len().max(1);
    let innermost = copy.dims().last().copied();
    // All units of a word at a time: a word begins at every written position, except for those inside it.
    let per = (4 / copy.unit()).max(1);
    let whole = per > 1
        && to.is_multiple_of(per)
        && innermost.is_some_and(|dim| dim.to == 1 && dim.extent.is_multiple_of(per))
        && copy.dims()[..rank - 1].iter().all(|dim| dim.to.is_multiple_of(per));
    let n = copy.len() / if whole { per } else { 1 };
    let mut params: Vec<Word> = [n, from, to].map(Word::from).to_vec();
    for d in 0..RANK {
        let dim = copy.dims().iter().rev().nth(d);
        let [extent, from, to] = dim.map_or([1, 0, 0], |dim| [dim.extent, dim.from, dim.to]).map(Word::from);
        // The remaining index is that of the outermost dimension, whose extent is not needed.
        params.extend(if d + 1 < RANK { vec![extent, from, to] } else { vec![from, to] });
    }
    let code = match copy.unit() {
        1 | 2 => {
            let constants = vec![("RANK", rank as u32), ("PER", per as u32), ("WHOLE", whole.into())];
            Code::Kernel(STRIDED_COPY_PARTS, constants)
        }
        unit => Code::Kernel(STRIDED_COPY, vec![("RANK", rank as u32), ("VECTORS", u32::from(unit == 16))]),
    };
    plan.dispatch(code, vec![x, out], &params, Grid::invocations(n));
}
