//! Attention of a few queries at a time over keys and values as they are stored: what reads a cache of keys, and what knows
//! masks, positions, lengths, windows, caps, slopes and sinks.
//!
//! A block has up to eight queries that share a head of keys, and goes through keys in steps. Of a step it takes the scores, each
//! key read by as many lanes as have 16 bytes of it; then a warp for each query makes weights of them, relative to the greatest
//! so far; then the values are added up, each thread some elements of every few values. Where there are few queries, several
//! blocks take the steps in turns; [`ScanCombine`] adds up what they leave.

use kiln_ir::op::{Attention, AttentionExtents, AttentionOperands};
use kiln_ir::{DType, Error, QuantFormat, Result, Shape};

use super::combine::FlashCombine;
use super::scan_combine::ScanCombine;
use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::half::unpack;
use crate::kernels::math::{self, F32, maximum};
use crate::kernels::team::{self, WARP};
use crate::{
    Argument, Builder, Byte, F16, Global, Kernel, Launch, Pointer, PtxKernel, PtxType, Shared, Target, Value, Variable,
};

/// Threads of a block.
const BLOCK: u32 = 128;
/// Warps of a block.
const WARPS: u32 = BLOCK / WARP;
/// Keys of a step, at most and at least.
const KEYS: [u32; 2] = [128, 32];
/// Maximum queries of a block.
const MOST_QUERIES: u32 = 8;
/// Maximum registers of a thread for elements of queries, and for sums of weighted values.
const REGISTERS: u32 = 64;
/// Keys or values that a lane reads at once.
const AT_ONCE: u32 = 4;
/// Maximum queries or keys.
const MOST: u64 = 1 << 31;
/// Maximum entries of a mask.
const MOST_ENTRIES: u64 = u32::MAX as u64;
/// Maximum number of parts.
const MOST_PARTS: usize = 1024;
/// Approximate number of resident blocks per multiprocessor.
const RESIDENT: usize = 4;
/// 2²³: its lower bits plus a smaller integer represent 2²³ plus that integer.
const LIFTED: u32 = 0x4b00_0000;

type Word<'k> = Value<'k, u32>;

/// The storage of keys or values.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Stored {
    F32,
    F16,
    Bf16,
    Q8_0,
}

impl Stored {
    /// The storage of rows of `width` elements of this type, if they are read directly.
    fn of(dtype: DType, width: usize) -> Option<Self> {
        match dtype {
            DType::F32 => Some(Self::F32),
            DType::F16 if width.is_multiple_of(8) => Some(Self::F16),
            DType::Bf16 if width.is_multiple_of(8) => Some(Self::Bf16),
            DType::Blocks(QuantFormat::Q8_0) => Some(Self::Q8_0),
            _ => None,
        }
    }

    fn word(self) -> &'static str {
        match self {
            Self::F32 => "f32",
            Self::F16 => "f16",
            Self::Bf16 => "bf16",
            Self::Q8_0 => "q8_0",
        }
    }
}

/// Rows of keys or of values, and the elements of a lane: pieces of a few neighbours, at distances that all lanes of a
/// row cover together.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Rows {
    stored: Stored,
    width: u32,
}

impl Rows {
    /// Elements of a piece.
    fn piece(self) -> u32 {
        match self.stored {
            Stored::F32 if !self.width.is_multiple_of(4) => 1,
            Stored::F32 => 4,
            _ => 8,
        }
    }

    /// Pieces of a row.
    fn pieces(self) -> u32 {
        self.width / self.piece()
    }

    /// Number of lanes that share a row.
    fn lanes(self) -> u32 {
        self.pieces().next_power_of_two().min(WARP)
    }

    /// Pieces of a row per lane.
    fn each(self) -> u32 {
        self.pieces().div_ceil(self.lanes())
    }

    /// Elements of a row per lane.
    fn elements(self) -> u32 {
        self.each() * self.piece()
    }

    /// Bytes of a row.
    fn bytes(self) -> u32 {
        match self.stored {
            Stored::F32 => 4 * self.width,
            Stored::F16 | Stored::Bf16 => 2 * self.width,
            Stored::Q8_0 => self.width / 32 * 34,
        }
    }

    /// The elements of lane `sub` in the row that begins at byte `first` of `data`; zeros for missing rows or elements.
    fn load<'k>(
        self,
        k: &'k Builder,
        data: Pointer<'k, Global, u32>,
        first: Value<'k, u64>,
        sub: Word<'k>,
        there: Value<'k, bool>,
    ) -> Vec<F32<'k>> {
        let piece = |c: u32| {
            let number = sub + c * self.lanes();
            (number, k.and(there, k.lt(number, self.pieces())))
        };
        let pieces = (0..self.each()).map(piece);
        match self.stored {
            Stored::F32 => {
                let row = data.cast::<Byte>().index_wide(first).cast::<f32>();
                let load = |(number, there)| match self.piece() {
                    1 => vec![k.ld_if(there, row.index(number), 0.0)],
                    _ => k.ld_v_if::<_, _, 4>(there, row.index(number * 4u32), 0.0).to_vec(),
                };
                pieces.flat_map(load).collect()
            }
            Stored::F16 | Stored::Bf16 => {
                let row = data.cast::<Byte>().index_wide(first).cast::<u32>();
                let load = |(number, there): (Word<'k>, _)| k.ld_v_if::<_, _, 4>(there, row.index(number * 4u32), 0u32);
                let words: Vec<Word<'k>> = pieces.flat_map(load).collect();
                let ty = if self.stored == Stored::F16 { PtxType::F16 } else { PtxType::Bf16 };
                words.into_iter().flat_map(|word| unpack(k, ty, word)).collect()
            }
            Stored::Q8_0 => pieces.flat_map(|(number, there)| of_block(k, data, first, number, there)).collect(),
        }
    }
}

/// The `number`th eight elements of a row of Q8_0 blocks. Blocks have 34 bytes and begin at the lower or the upper half
/// of a word, with the scale.
fn of_block<'k>(
    k: &'k Builder,
    data: Pointer<'k, Global, u32>,
    row: Value<'k, u64>,
    number: Word<'k>,
    there: Value<'k, bool>,
) -> Vec<F32<'k>> {
    let block = k.mad_wide(number >> 2, 34, row);
    let upper = k.ne(k.cvt_u32(block) & 2u32, 0);
    let scale = k.ld_if(there, data.index_wide(block >> 2), 0u32);
    let scale = k.halves::<F16>(k.selp(scale >> 16, scale, upper))[0];
    let scale = k.cvt_f32(scale);
    // After the scale: in the upper half of a word if the block begins in the lower one.
    let first = data.index_wide((block + 2u64) >> 2).index((number & 3u32) * 2u32);
    let [a, b] = [0, 1].map(|i| k.ld_if(there, first.offset(i), 0u32));
    let c = k.ld_if(k.and(there, k.not(upper)), first.offset(2), 0u32);
    let selector = k.selp(0x3210u32, 0x5432, upper);
    // Inverting the sign bit adds 128 to each byte.
    let words = [k.prmt(a, b, selector), k.prmt(b, c, selector)].map(|word| word ^ 0x8080_8080u32);
    let lifted = f32::from_bits(LIFTED) + 128.0;
    let integer = |word: Word<'k>, i: u32| k.bits_f32(k.prmt(word, LIFTED, 0x7650 | i)) - lifted;
    words.into_iter().flat_map(|word| (0..4).map(move |i| scale * integer(word, i))).collect()
}

/// The entries of the mask, which are added to scores.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MaskKind {
    Missing,
    Floats,
    Booleans,
}

/// Attention of queries of f32 over keys and values as they are stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ScanAttention {
    keys: Rows,
    values: Rows,
    /// Queries of a block.
    queries: u32,
    /// Keys of a step.
    step: u32,
    target: Target,
}

/// The launches of an attention over keys and values as they are stored.
#[derive(Debug, Clone, PartialEq)]
pub struct ScanPlan {
    /// The first launch. Buffers: queries, keys, values, scratch; then positions, lengths, slopes, mask and the report of
    /// lengths; any buffer may take the place of an operand that is missing.
    pub attention: (ScanAttention, Launch),
    /// The launch that adds up parts. Buffers: scratch, result, sinks.
    pub combine: (ScanCombine, Launch),
    /// Bytes of scratch.
    pub scratch: usize,
}

impl ScanAttention {
    /// Whether keys or values of this type, in rows of `width` elements, are read as they are.
    pub fn reads(dtype: DType, width: usize) -> bool {
        Stored::of(dtype, width).is_some()
    }

    /// A kernel for keys and values of these types, on a device with this number of multiprocessors.
    ///
    /// # Errors
    /// [`Error::Parameter`] for types that it does not read, [`Error::Limit`] for rows of more than 2048 elements, or of
    /// more than 256 elements whose number is not a multiple of four.
    pub fn new(extents: &AttentionExtents, [k, v]: [DType; 2], target: Target, multiprocessors: u32) -> Result<Self> {
        let rows = |dtype, width: usize| -> Result<Rows> {
            let stored = Stored::of(dtype, width).ok_or_else(|| Error::Parameter {
                op: "attention",
                reason: format!("the kernel does not read keys or values of {dtype} in rows of {width} elements"),
            })?;
            let rows = Rows { stored, width: extent("elements of a row", width, 1 << 16)? };
            if rows.elements() > REGISTERS {
                let limit = u64::from(REGISTERS * WARP);
                return Err(Error::Limit {
                    what: "elements of a row",
                    device: "a kernel".into(),
                    asked: width as u64,
                    limit,
                });
            }
            Ok(rows)
        };
        let (keys, values) = (rows(k, extents.d)?, rows(v, extents.dv)?);
        let most = REGISTERS / keys.elements().max(values.elements()).max(1);
        let rows = extents.group.saturating_mul(extents.s);
        let wanted = rows.clamp(1, MOST_QUERIES as usize) as u32;
        // The largest power of two that fits the registers.
        let mut queries = wanted.next_power_of_two().min(1 << most.ilog2());
        // A block with fewer queries takes less time. Each block reads the keys, but from the second-level cache if all
        // blocks run at once.
        let units = extents.batch.saturating_mul(extents.kv_heads);
        let steps = |keys: u32| units.saturating_mul(extents.t.div_ceil(keys as usize));
        let [mut step, least] = KEYS;
        let blocks = |queries: u32, step: u32| steps(step).saturating_mul(rows.div_ceil(queries as usize));
        while queries > 1 && blocks(queries / 2, step) <= 2 * multiprocessors as usize {
            queries /= 2;
        }
        // So does one with fewer keys: it reads them one after the other.
        while step > least && 2 * blocks(queries, step) <= RESIDENT * multiprocessors as usize {
            step /= 2;
        }
        Ok(Self { keys, values, queries, step, target })
    }

    /// Plans the launches of `op` on a device with this number of multiprocessors; `mask` is the type of entries and the shape of
    /// a mask.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond 2³¹ queries or keys, and for masks of 2³² entries.
    pub fn plan(
        self,
        op: &Attention,
        extents: &AttentionExtents,
        mask: Option<(DType, Shape)>,
        counts: &AttentionOperands<usize>,
        multiprocessors: u32,
    ) -> Result<ScanPlan> {
        let AttentionExtents { batch, kv_heads, group, s, t, dv, .. } = *extents;
        let units = batch.saturating_mul(kv_heads);
        let rows = group.saturating_mul(s);
        let total = extent("queries", units.saturating_mul(rows), MOST)?;
        let chunks = rows.div_ceil(self.queries as usize);
        let blocks = extent("blocks", units.saturating_mul(chunks), MAX_GRID_X)?;
        let steps = t.div_ceil(self.step as usize).max(1);
        let wanted = (RESIDENT * multiprocessors as usize).div_ceil(blocks.max(1) as usize);
        let parts = wanted.clamp(1, MOST_PARTS).min(steps) as u32;
        let (kind, strides) = match mask {
            None => (MaskKind::Missing, [0; 4]),
            Some((dtype, shape)) => {
                extent("entries of a mask", shape.numel(), MOST_ENTRIES)?;
                let kind = if dtype == DType::Bool { MaskKind::Booleans } else { MaskKind::Floats };
                (kind, extents.mask_strides(&shape))
            }
        };
        let count = |count: Option<usize>| extent("positions or lengths", count.unwrap_or(0), MOST);
        let words = [
            total,
            extent("queries", s, MOST)?,
            extent("keys", t, MOST)?,
            extent("queries", rows, MOST)?,
            extent("blocks", chunks, MOST)?,
            extent("heads", kv_heads, MOST)?,
            op.causal.into(),
            op.window.unwrap_or(u32::MAX),
            count(counts.positions)?,
            count(counts.lengths)?,
            count(counts.slopes)?,
            kind as u32,
            strides[0] as u32,
            strides[1] as u32,
            strides[2] as u32,
            strides[3] as u32,
        ];
        let numbers = [op.scale(extents.d), op.soft_cap.map_or(0.0, |cap| cap.get())];
        let arguments = (0..9).map(Argument::Buffer);
        let arguments = arguments.chain(words.map(Argument::U32)).chain(numbers.map(Argument::F32)).collect();
        let sinks = count(counts.sinks)?;
        Ok(ScanPlan {
            attention: (self, Launch { grid: [blocks, parts, 1], arguments }),
            combine: (ScanCombine::new(self.target), ScanCombine::launch(total, parts, extents, sinks)?),
            scratch: FlashCombine::scratch_bytes(total as usize, extent("elements of a row", dv, MOST)?, parts)?,
        })
    }

    /// Some of the kernels: every way to store keys and values, and each number of queries, though not each with each.
    pub fn some(target: Target) -> Vec<Self> {
        use Stored::{Bf16, F16, F32, Q8_0};
        let of = |stored: [Stored; 2], [d, dv]: [u32; 2], queries, step| {
            let [keys, values] = [(stored[0], d), (stored[1], dv)].map(|(stored, width)| Rows { stored, width });
            Self { keys, values, queries, step, target }
        };
        vec![
            of([F32, F32], [128, 128], 8, 128),
            of([F32, F32], [33, 5], 2, 32),
            of([F16, F16], [128, 128], 4, 32),
            of([Bf16, Bf16], [64, 80], 1, 64),
            of([Q8_0, Q8_0], [128, 128], 4, 128),
            of([Q8_0, F16], [96, 64], 2, 64),
            of([F32, F32], [0, 4], 1, 32),
        ]
    }

    fn write(&self, k: &Builder) {
        // As many as launches rely on. Without a number ptxas may spill to reach more.
        k.resident_blocks(RESIDENT as u32);
        let [q, keys, values, out] = ["q", "k", "v", "out"].map(|name| k.buffer::<u32>(name));
        let [positions, lengths, slopes, mask] =
            ["positions", "lengths", "slopes", "mask"].map(|name| k.buffer::<u32>(name));
        let report = k.buffer::<u64>("report");
        let [total, s, t, rows, chunks, heads] =
            ["total", "s", "t", "rows", "chunks", "kv_heads"].map(|name| k.parameter::<u32>(name));
        let [causal, window, positions_given, lengths_given, slopes_given] =
            ["causal", "window", "positions_given", "lengths_given", "slopes_given"]
                .map(|name| k.parameter::<u32>(name));
        let mask_kind = k.parameter::<u32>("mask_kind");
        let strides = [0, 1, 2, 3].map(|dim: usize| k.parameter::<u32>(("mask_stride", dim)));
        let [scale, cap] = ["scale", "cap"].map(|name| k.parameter::<f32>(name));
        let (thread, lane, warp) = (k.tid_x(), k.tid_x() % WARP, k.tid_x() / WARP);
        let (unit, first_row) = (k.ctaid_x() / chunks, k.ctaid_x() % chunks * self.queries);
        let sequence = unit / heads;

        let length = k.variable(t);
        k.if_(k.gt(lengths_given, 0), || {
            let at = k.min(sequence, lengths_given - 1u32);
            let given = k.ld(lengths.index(at));
            k.if_(k.and(k.gt(given, t), k.eq(thread, 0)), || k.red_min(report, k.join(given, at)));
            length.set(k.min(given, t));
        });
        let shared = Queries::new(k, [self.queries, self.step]);
        k.if_(k.lt(thread, self.queries), || {
            let row = first_row + thread;
            let (i, head) = (row % s, unit % heads * (rows / s) + row / s);
            // One past the query's position, which is negative if the sequence has fewer keys than queries.
            let position = k.variable(length.get() + i - s);
            let after = k.variable(k.max(length.get() + i + 1u32, s) - s);
            k.if_(k.and(k.gt(positions_given, 0), k.lt(row, rows)), || {
                let at = k.ld(positions.index((sequence * s + i) % positions_given));
                position.set(at);
                after.set(k.max(at, at + 1u32));
            });
            let end = k.selp(k.min(after, length), length, k.ne(causal, 0));
            // Without a window the first key is 0; a missing query sees none.
            let begin = k.min(after.get() - k.min(after, window), end);
            let end = k.selp(end, begin, k.lt(row, rows));
            let entry = k.mad(sequence, strides[0], k.mad(head, strides[1], i * strides[2]));
            k.st_v(shared.sights.index(thread * 4u32), [begin, end, position.get(), entry]);
            let slope = k.ld_if(k.and(k.gt(slopes_given, 0), k.lt(row, rows)), slopes.index(head), 0u32);
            k.st(shared.slopes.index(thread), k.bits_f32(slope));
        });
        k.bar_sync(0u32);
        // The range of keys that any of the queries sees.
        let (begin, end) = (k.variable(u32::MAX), k.variable(0u32));
        for query in 0..self.queries {
            let [first, past] = k.ld_v::<_, _, 2>(shared.sights.offset(4 * query as i32));
            let sees = k.lt(first, past);
            begin.set(k.min(begin, k.selp(first, u32::MAX, sees)));
            end.set(k.max(end, k.selp(past, 0, sees)));
        }
        // Parts take steps in turns, so that they have equal work even if few keys are visible.
        let (part, parts) = (k.ctaid_y(), k.nctaid_y());
        let ahead = k.max(begin.get() / self.step, part) - part;
        let start = (part + (ahead + parts - 1u32) / parts * parts) * self.step;
        let end = end.get();

        let offsets = [self.keys, self.values].map(|of| k.mul_wide(unit, t) * u64::from(of.bytes()));
        let key_sub = lane % self.keys.lanes();
        let elements = self.load_queries(k, q, k.mul_wide(unit, rows), first_row, rows, key_sub);
        let sums: Vec<Vec<Variable<'_, f32>>> =
            (0..self.queries).map(|_| (0..self.values.elements()).map(|_| k.variable(0.0f32)).collect()).collect();
        // Each warp computes the weights of every fourth query.
        let states: Vec<_> = (0..self.queries).step_by(WARPS as usize).map(|first| (first, State::new(k))).collect();
        k.for_(start, end, parts * self.step, |base| {
            let count = k.min(end - base, self.step);
            self.score(k, keys, offsets[0], &elements, base, count, &shared);
            k.bar_sync(0u32);
            for (first, state) in &states {
                let query = warp + *first;
                k.if_(k.lt(query, self.queries), || {
                    let entries = Entries { mask, kind: mask_kind, stride: strides[3] };
                    self.weigh(k, query, lane, base, count, [scale, cap], &entries, state, &shared);
                });
            }
            k.bar_sync(0u32);
            self.add_values(k, values, offsets[1], base, count, &sums, &shared);
            k.bar_sync(0u32);
        });

        // For each part the sums of all queries, then for each part their reference scores and the totals of the
        // weights, which are negative for a query that sees no key.
        let row = k.mad_wide(k.ctaid_y(), total, k.cvt_u64(k.mad(unit, rows, first_row)));
        let weights = k.mul_wide(parts, total) * u64::from(self.values.width);
        let out = out.cast::<f32>();
        self.store_sums(k, out.index_wide(row * u64::from(self.values.width)), &sums, rows - first_row);
        for (first, state) in &states {
            let query = warp + *first;
            let there = k.and(k.lt(query, self.queries), k.lt(first_row + query, rows));
            k.if_(k.and(there, k.eq(lane, 0)), || {
                let weights = out.index_wide(weights + (row + k.cvt_u64(query)) * 2u64);
                let total = k.selp(state.total.get(), -1.0, k.ne(state.seen, 0));
                // With an odd number of sums they are not aligned as a pair.
                k.st(weights, state.greatest);
                k.st(weights.offset(1), total);
            });
        }
    }

    /// The elements of each query that this lane multiplies with the keys.
    fn load_queries<'k>(
        &self,
        k: &'k Builder,
        q: Pointer<'k, Global, u32>,
        of_unit: Value<'k, u64>,
        first_row: Word<'k>,
        rows: Word<'k>,
        sub: Word<'k>,
    ) -> Vec<Vec<F32<'k>>> {
        let (width, piece, lanes) = (self.keys.width, self.keys.piece(), self.keys.lanes());
        let load = |query: u32| {
            let row = first_row + query;
            let there = k.lt(row, rows);
            let at = q.cast::<f32>().index_wide((of_unit + k.cvt_u64(row)) * u64::from(width));
            let of_piece = |c: u32| {
                let first = (sub + c * lanes) * piece;
                let there = k.and(there, k.lt(first, width));
                let at = at.index(first);
                match piece {
                    1 => vec![k.ld_if(there, at, 0.0)],
                    _ => {
                        (0..piece / 4).flat_map(|i| k.ld_v_if::<_, _, 4>(there, at.offset(4 * i as i32), 0.0)).collect()
                    }
                }
            };
            (0..self.keys.each()).flat_map(of_piece).collect()
        };
        (0..self.queries).map(load).collect()
    }

    /// The unscaled products of a step.
    fn score<'k>(
        &self,
        k: &'k Builder,
        data: Pointer<'k, Global, u32>,
        of_unit: Value<'k, u64>,
        elements: &[Vec<F32<'k>>],
        base: Word<'k>,
        count: Word<'k>,
        shared: &Queries<'k>,
    ) {
        let lanes = self.keys.lanes();
        let (sub, group) = (k.tid_x() % lanes, k.tid_x() / lanes);
        let apart = BLOCK / lanes;
        let at_once = AT_ONCE.min((self.step / apart).max(1));
        // All lanes of a warp run the same number of iterations, because their sums are combined.
        k.for_(0u32, count, apart * at_once, |first| {
            let read = |i: u32| {
                let j = first + group + i * apart;
                let there = k.lt(j, count);
                let row = k.mad_wide(base + j, self.keys.bytes(), of_unit);
                self.keys.load(k, data, row, sub, there)
            };
            let read: Vec<_> = (0..at_once).map(read).collect();
            let mut products = Vec::new();
            for key in read {
                for elements in elements {
                    let mut product = k.constant(0.0f32);
                    for (&element, &key) in elements.iter().zip(&key) {
                        product = k.fma(element, key, product);
                    }
                    products.push(product);
                }
            }
            let (number, products) = shared_out(k, sub, lanes, products);
            let whole = lanes.min(at_once * self.queries);
            for (i, product) in (0..).zip(products) {
                let number = number + i;
                let j = first + group + number / self.queries * apart;
                // Lanes that differ in the last bits have equal sums.
                let mine = k.and(k.eq(sub & (lanes / whole - 1), 0), k.lt(j, count));
                k.st_if(mine, shared.scores.index(k.mad(number % self.queries, self.step, j)), product);
            }
        });
    }

    /// One step of the online softmax of a query, by a warp: scores become weights, or -1 for keys that it does not
    /// see.
    fn weigh<'k>(
        &self,
        k: &'k Builder,
        query: Word<'k>,
        lane: Word<'k>,
        base: Word<'k>,
        count: Word<'k>,
        [scale, cap]: [F32<'k>; 2],
        entries: &Entries<'k>,
        state: &State<'k>,
        shared: &Queries<'k>,
    ) {
        let [begin, end, position, entry] = k.ld_v::<_, _, 4>(shared.sights.index(query * 4u32));
        let slope = k.ld(shared.slopes.index(query));
        let row = shared.scores.index(query * self.step).index(lane);
        let mut scores = Vec::new();
        for i in 0..self.step / WARP {
            let (j, score) = (lane + i * WARP, k.variable(0.0f32));
            let key = base + j;
            let sees = k.variable(0u32);
            k.if_(k.and(k.lt(j, count), k.and(k.le(begin, key), k.lt(key, end))), || {
                sees.set(1u32);
                score.set(k.ld(row.offset((i * WARP) as i32)) * scale);
                k.if_(k.gt(cap, 0.0), || score.set(math::tanh(score.get() / cap) * cap));
                score.set(k.fma(slope, k.cvt_rn_f32(k.bits_s32(key - position)), score));
                k.if_(k.ne(entries.kind, MaskKind::Missing as u32), || {
                    let added = entries.load(k, k.mad(key, entries.stride, entry));
                    sees.set(k.selp(0u32, 1, k.eq(added, f32::NEG_INFINITY)));
                    score.set(score.get() + added);
                });
            });
            scores.push((score, k.ne(sees, 0), k.lt(j, count)));
        }
        let lowest = k.constant(f32::NEG_INFINITY);
        let seen: Vec<F32<'k>> = scores.iter().map(|&(score, sees, _)| k.selp(score, lowest, sees)).collect();
        let before = state.greatest.get();
        let greatest = team::tree(seen, |a, b| maximum(self.target, a, b)).unwrap_or(lowest);
        let greatest = team::butterfly(greatest, WARP, |a, b| maximum(self.target, a, b));
        let now = maximum(self.target, before, greatest);
        // If all scores are -∞, nothing is subtracted: the weights are 0, and so is their sum.
        let origin = k.selp(0.0, now, k.eq(now, f32::NEG_INFINITY));
        let kept = math::exp(before - origin);
        let mut weights = Vec::new();
        let (any, holes) = (k.variable(0u32), k.variable(0u32));
        for (i, &(score, sees, there)) in (0..).zip(&scores) {
            let weight = math::exp(score.get() - origin);
            k.st(row.offset((i * WARP) as i32), k.selp(weight, -1.0, sees));
            weights.push(k.selp(weight, 0.0, sees));
            any.set(k.selp(1u32, any, sees));
            holes.set(k.selp(1u32, holes, k.and(there, k.not(sees))));
        }
        let sum = team::tree(weights, |a, b| a + b).unwrap_or(k.constant(0.0f32));
        let sum = team::butterfly(sum, WARP, |a, b| a + b);
        let together = |word: Variable<'k, u32>| {
            [16, 8, 4, 2, 1]
                .into_iter()
                .fold(word.get(), |word, mask: u32| word | k.shfl_bfly(word, mask, WARP - 1, u32::MAX))
        };
        let (any, holes) = (together(any), together(holes));
        state.greatest.set(now);
        state.total.set(k.fma(state.total, kept, sum));
        state.seen.set(state.seen.get() | any);
        k.if_(k.eq(lane, 0), || {
            k.st(shared.kept.index(query), kept);
            k.st(shared.holes.index(query), holes);
        });
    }

    /// Adds the weighted values of a step.
    fn add_values<'k>(
        &self,
        k: &'k Builder,
        data: Pointer<'k, Global, u32>,
        of_unit: Value<'k, u64>,
        base: Word<'k>,
        count: Word<'k>,
        sums: &[Vec<Variable<'k, f32>>],
        shared: &Queries<'k>,
    ) {
        let lanes = self.values.lanes();
        let (sub, group) = (k.tid_x() % lanes, k.tid_x() / lanes);
        let apart = BLOCK / lanes;
        let at_once = AT_ONCE.min((self.step / apart).max(1));
        let mut holes = k.constant(0u32);
        for (query, sums) in (0..).zip(sums) {
            let kept = k.ld(shared.kept.offset(query));
            sums.iter().for_each(|sum| sum.set(sum.get() * kept));
            holes = holes | k.ld(shared.holes.offset(query));
        }
        let add = |guarded: bool| {
            k.for_(group, count, apart * at_once, |first| {
                let read = |i: u32| {
                    let j = first + i * apart;
                    let there = k.lt(j, count);
                    let row = k.mad_wide(base + j, self.values.bytes(), of_unit);
                    (j, there, self.values.load(k, data, row, sub, there))
                };
                let read: Vec<_> = (0..at_once).map(read).collect();
                for (j, there, value) in read {
                    for (query, sums) in (0..).zip(sums) {
                        let weight = k.ld_if(there, shared.scores.offset((query * self.step) as i32).index(j), 0.0);
                        // A key that a query does not see must not affect it, not even as zero times infinity.
                        let hidden = k.lt(weight, 0.0);
                        for (sum, &value) in sums.iter().zip(&value) {
                            let added = k.fma(weight, value, *sum);
                            sum.set(if guarded { k.selp(sum.get(), added, hidden) } else { added });
                        }
                    }
                }
            });
        };
        k.if_else(k.ne(holes, 0), || add(true), || add(false));
    }

    /// Combines the sums of the threads with the same elements, and writes them.
    fn store_sums<'k>(
        &self,
        k: &'k Builder,
        out: Pointer<'k, Global, f32>,
        sums: &[Vec<Variable<'k, f32>>],
        left: Word<'k>,
    ) {
        let (width, lanes, piece) = (self.values.width, self.values.lanes(), self.values.piece());
        let (thread, lane, warp) = (k.tid_x(), k.tid_x() % WARP, k.tid_x() / WARP);
        let of_warps = k.shared::<f32>(WARPS * self.queries * width);
        for (query, sums) in (0..).zip(sums) {
            for (element, sum) in (0..).zip(sums) {
                let mut all = sum.get();
                let mut mask = lanes;
                while mask < WARP {
                    all = all + k.shfl_bfly(all, mask, WARP - 1, u32::MAX);
                    mask *= 2;
                }
                let number = (lane + element / piece * lanes) * piece + element % piece;
                let mine = k.and(k.lt(lane, lanes), k.lt(number, width));
                k.st_if(
                    mine,
                    of_warps.index(k.mad(warp, self.queries * width, number)).offset((query * width) as i32),
                    all,
                );
            }
        }
        k.bar_sync(0u32);
        for first in (0..self.queries * width).step_by(BLOCK as usize) {
            let at = thread + first;
            k.if_(k.and(k.lt(at, self.queries * width), k.lt(at / width, left)), || {
                let of_warp = |warp: u32| k.ld(of_warps.index(at).offset((warp * self.queries * width) as i32));
                let sum = team::tree((0..WARPS).map(of_warp).collect(), |a, b| a + b);
                if let Some(sum) = sum {
                    k.st(out.index(at), sum);
                }
            });
        }
    }
}

/// Reduces each of some values, a power of two of them, over the lanes that share a row, also a power of two: lane
/// `sub` gets the sums beginning with the returned number. At each step half of the lanes take half of the values, so
/// that few are exchanged.
fn shared_out<'k>(k: &'k Builder, sub: Word<'k>, lanes: u32, mut values: Vec<F32<'k>>) -> (Word<'k>, Vec<F32<'k>>) {
    let exchange = |value: F32<'k>, mask: u32| k.shfl_bfly(value, mask, WARP - 1, u32::MAX);
    let mut first = k.constant(0u32);
    let mut mask = lanes / 2;
    while mask > 0 {
        let half = values.len() / 2;
        if half == 0 {
            values = values.into_iter().map(|value| value + exchange(value, mask)).collect();
        } else {
            let upper = k.ne(sub & mask, 0);
            let of_half = |(&lower_half, &upper_half): (&F32<'k>, &F32<'k>)| {
                let (kept, given) = (k.selp(upper_half, lower_half, upper), k.selp(lower_half, upper_half, upper));
                kept + exchange(given, mask)
            };
            values = values[..half].iter().zip(&values[half..]).map(of_half).collect();
            first = k.selp(first + half as u32, first, upper);
        }
        mask /= 2;
    }
    (first, values)
}

/// The shared state of a block's queries, and the scores or weights of a step.
struct Queries<'k> {
    /// Four words each: the first key that it sees, one past the last, its position, the index of its mask entry for
    /// key 0.
    sights: Pointer<'k, Shared, u32>,
    slopes: Pointer<'k, Shared, f32>,
    /// The factors of earlier sums.
    kept: Pointer<'k, Shared, f32>,
    /// Whether it does not see some key of this step.
    holes: Pointer<'k, Shared, u32>,
    scores: Pointer<'k, Shared, f32>,
}

impl<'k> Queries<'k> {
    fn new(k: &'k Builder, [queries, step]: [u32; 2]) -> Self {
        let numbers = || k.shared::<f32>(queries);
        Self {
            sights: k.shared_bytes(16 * queries, 16),
            slopes: numbers(),
            kept: numbers(),
            holes: k.shared::<u32>(queries),
            scores: k.shared::<f32>(step * queries),
        }
    }
}

/// The state of a query in its warp.
struct State<'k> {
    /// The greatest score.
    greatest: Variable<'k, f32>,
    /// The total of the weights relative to it.
    total: Variable<'k, f32>,
    /// Whether it has seen a key.
    seen: Variable<'k, u32>,
}

impl<'k> State<'k> {
    fn new(k: &'k Builder) -> Self {
        Self { greatest: k.variable(f32::NEG_INFINITY), total: k.variable(0.0f32), seen: k.variable(0u32) }
    }
}

/// The entries of a mask.
struct Entries<'k> {
    mask: Pointer<'k, Global, u32>,
    kind: Word<'k>,
    /// Distance between keys.
    stride: Word<'k>,
}

impl<'k> Entries<'k> {
    /// The number that an entry adds to a score.
    fn load(&self, k: &'k Builder, at: Word<'k>) -> F32<'k> {
        let added = k.variable(0.0f32);
        k.if_else(
            k.eq(self.kind, MaskKind::Floats as u32),
            || added.set(k.bits_f32(k.ld(self.mask.index_wide(k.cvt_u64(at))))),
            || {
                let word = k.ld(self.mask.index_wide(k.cvt_u64(at >> 2)));
                let byte = word >> ((at & 3u32) * 8u32) & 0xffu32;
                added.set(k.selp(f32::NEG_INFINITY, 0.0, k.eq(byte, 0)));
            },
        );
        added.get()
    }
}

impl Kernel for ScanAttention {
    fn name(&self) -> String {
        let Self { keys, values, queries, step, .. } = self;
        let of = |rows: &Rows| format!("{}_{}", rows.stored.word(), rows.width);
        format!("attention_scan_{}_{}_queries{queries}_keys{step}", of(keys), of(values))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
