//! Operands that repeat along outer dimensions: walked in runs in which each is flat or one element.

use std::mem::MaybeUninit;

use kiln_ir::op::ElementwiseKind;

use super::pass::{Call, Flat};
use crate::Isa;
use crate::threads::Shared;

/// Elements of the block in which a short row is repeated, so that runs are longer than rows.
const TILE: usize = 2048;

/// A function and the result that it fills.
pub(super) struct Pass {
    pub(super) isa: Isa,
    pub(super) kind: ElementwiseKind,
    pub(super) params: [f32; 2],
    pub(super) out: Shared<f32>,
    /// Elements of the whole result.
    pub(super) total: usize,
    pub(super) stream: bool,
}

/// An operand by its elements and the number of elements after which it repeats.
#[derive(Clone, Copy)]
struct Repeating {
    p: *const f32,
    period: usize,
}

impl Pass {
    /// Fills `n` elements of the result, beginning at `start`.
    ///
    /// # Safety
    /// `out` is writable for `total` f32 and nothing else accesses those of this range. The length of each operand is
    /// at least one and divides `total`. The instruction set is available.
    pub(super) unsafe fn run(&self, operands: &[&[f32]], start: usize, n: usize) {
        // At most two operands are shorter than the result, which has the shape of one of them.
        let mut tiles = [const { [const { MaybeUninit::<f32>::uninit() }; TILE] }; 2];
        let mut free = tiles.iter_mut();
        let mut repeating = [Repeating { p: std::ptr::null(), period: 1 }; 3];
        for (repeating, data) in repeating.iter_mut().zip(operands) {
            *repeating = Repeating { p: data.as_ptr(), period: data.len() };
            if data.len() > 1
                && data.len() < self.total
                && data.len() <= TILE / 2
                && let Some(tile) = free.next()
            {
                // Whole rows, but not more than are read.
                let rows = (TILE / data.len()).min(n.div_ceil(data.len()) + 1);
                for row in tile.chunks_exact_mut(data.len()).take(rows) {
                    // SAFETY: the row has the length of the data and does not overlap it.
                    unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), row.as_mut_ptr().cast(), data.len()) };
                }
                *repeating = Repeating { p: tile.as_ptr().cast(), period: rows * data.len() };
            }
        }
        let end = start + n;
        let mut at = start;
        while at < end {
            let mut run = end - at;
            let mut sources = [Flat::NONE; 3];
            for (source, operand) in sources.iter_mut().zip(repeating).take(operands.len()) {
                let offset = if at < operand.period { at } else { at % operand.period };
                let repeated = operand.period == 1;
                if !repeated {
                    run = run.min(operand.period - offset);
                }
                // SAFETY: offset < period, and the operand or its tile has that many elements.
                *source = Flat { p: unsafe { operand.p.add(offset) }, repeated };
            }
            // SAFETY: at + run <= end <= total.
            let out = unsafe { self.out.get().add(at) };
            let call = Call { sources, params: self.params, out, n: run, stream: self.stream };
            // SAFETY: sources have `run` elements from their offsets on, or are repeated; the remaining conditions are
            // the contract above.
            unsafe { call.dispatch(self.isa, self.kind) };
            at += run;
        }
    }
}
