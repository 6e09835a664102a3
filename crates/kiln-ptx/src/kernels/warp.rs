//! Shared parts of kernels whose warps multiply on tensor cores by `mma.sync`: products of fragments, and copies of rows into
//! shared memory.

use crate::builder::operands::{B32x2, B32x4, F32x4, Sixteen};
use crate::types::Operand;
use crate::{Bf16, Builder, F16, Global, Panels, Pointer, PtxType, Shared, Value};

/// Bytes of a copy.
const PIECE: u32 = 16;
/// Pieces of a row of a panel.
const PIECES: u32 = 8;

/// `d = a b + c`, 16 by 8, 32 bytes deep: for f16, for bf16, or for f32 in TF32.
pub(super) fn multiply(
    k: &Builder,
    ty: PtxType,
    d: impl Operand<F32x4>,
    a: impl Operand<B32x4>,
    b: impl Operand<B32x2>,
    c: impl Operand<F32x4>,
) {
    match ty {
        PtxType::F16 => k.mma_m16n8k16::<F16>(d, a, b, c),
        PtxType::F32 => k.mma_m16n8k8::<f32>(d, a, b, c),
        _ => k.mma_m16n8k16::<Bf16>(d, a, b, c),
    }
}

/// Copies of consecutive rows of global memory to [`Panels`] by the threads of a block, a piece of 16 bytes at a time.
pub(super) struct RowCopies<'k> {
    k: &'k Builder,
    parts: Vec<Part<'k>>,
    /// Distance between rows in bytes.
    pitch: u32,
    panels: Panels,
}

/// Panels with equal numbers of pieces per row.
struct Part<'k> {
    panels: std::ops::Range<u32>,
    /// The first row from which the thread copies a piece, the distance to its next row, and the number of its rows.
    row: Value<'k, u32>,
    step: u32,
    turns: u32,
    /// Words before the first piece.
    words: Value<'k, u32>,
    /// The index of the piece in a row.
    piece: Value<'k, u32>,
}

/// The bytes to copy for each piece of a thread: 16 or 0.
pub(super) struct Present<'k>(Vec<Vec<Value<'k, u32>>>);

impl<'k> RowCopies<'k> {
    /// For `rows` rows of `pitch` bytes each and this many threads. The panels may be wider than the rows.
    ///
    /// # Panics
    /// If the number of pieces of a row in its last panel is not a power of two, or if threads would be idle.
    pub(super) fn new(thread: Value<'k, u32>, threads: u32, rows: u32, pitch: u32, panels: Panels) -> Self {
        let k = thread.builder;
        let (whole, rest) = (pitch / PIECE / PIECES, pitch / PIECE % PIECES);
        let part = |panels: std::ops::Range<u32>, pieces: u32| {
            assert!(pieces.is_power_of_two() && pitch.is_multiple_of(PIECE), "rows of {pitch} bytes");
            let step = threads / pieces;
            // A thread keeps to one column of a panel, whose swizzle repeats after 8 rows.
            assert!(step.is_multiple_of(8) && rows.is_multiple_of(step), "{rows} rows by {threads} threads");
            let (row, piece) = (thread >> pieces.ilog2(), thread & (pieces - 1));
            let words = k.mad(row, pitch / 4, piece * (PIECE / 4));
            Part { panels, row, step, turns: rows / step, words, piece }
        };
        let mut parts = Vec::new();
        if whole > 0 {
            parts.push(part(0..whole, PIECES));
        }
        if rest > 0 {
            parts.push(part(whole..whole + 1, rest));
        }
        Self { k, parts, pitch, panels }
    }

    /// The presence of this many rows, which may exceed the number of places or be negative.
    pub(super) fn present(&self, rows: Value<'k, u32>) -> Present<'k> {
        let k = self.k;
        let of_part = |part: &Part<'k>| {
            let left = k.bits_s32(rows - part.row);
            let turns = 0..part.turns;
            turns.map(|turn| k.selp(PIECE, 0u32, k.gt(left, (turn * part.step) as i32))).collect()
        };
        Present(self.parts.iter().map(of_part).collect())
    }

    /// Starts copying the pieces that are present, with zeros for others.
    pub(super) fn begin(&self, to: Pointer<'k, Shared, u32>, from: Pointer<'k, Global, u32>, present: &Present<'k>) {
        let k = self.k;
        for (part, present) in self.parts.iter().zip(&present.0) {
            let to = self.panels.piece(k, to, part.row, part.piece);
            let from = from.index(part.words);
            for (turn, &present) in (0..).zip(present) {
                let rows = turn * part.step;
                for panel in part.panels.clone() {
                    let to = to.bytes((panel * self.panels.panel_bytes() + rows * self.panels.row_bytes()) as i32);
                    let from = from.bytes((rows * self.pitch + panel * PIECES * PIECE) as i32);
                    k.cp_async(to, from, Sixteen(()), present);
                }
            }
        }
    }
}
