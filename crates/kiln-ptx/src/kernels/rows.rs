//! Rows that threads hold in registers between them: memory is read once, whatever is computed of a row.
//!
//! A row is held by a warp, by a block or, from `sm_90` on, by a cluster of blocks, whose threads exchange the results of each
//! block through shared memory. They wait for these at a barrier of the cluster, or at one in shared memory that counts
//! arrived bytes and orders nothing else.
//!
//! On Hopper bulk copies load long rows into shared memory, for each warp its part. A cluster occupies so much of a
//! multiprocessor that the memory would idle while a row is computed. So its blocks are persistent, and as soon as a warp has
//! read its part of a row, a copy loads its part of the next one. They keep data that all rows share in registers.
//!
//! Longer rows are cut into parts, each of a block, and read twice: a first launch writes the state of every part, such as its sum,
//! and a second one combines the states of the row and computes the results of the part. The parts depend on the length
//! of the row alone, so the results do, too.

mod share;

use kiln_ir::Result;
pub(super) use share::{Absent, Share};

use super::math::F32;
use super::team::{self, Exchange};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Global, Launch, Pointer, Value};

/// Minimum threads of a block.
const BLOCK: u32 = 256;
/// Threads of a block if two blocks must fit a multiprocessor.
const LARGE: u32 = 512;
/// Threads of a block that processes a part of a row.
const STREAMING: u32 = 256;
/// Elements that each of them loads at once.
const AT_ONCE: u32 = 8;
/// Elements of the shortest parts: four loads by each thread.
const PART: usize = (4 * STREAMING * AT_ONCE) as usize;
/// Maximum parts of a row: each block of the second launch reads all states of its row.
const MOST_PARTS: usize = 1024;
/// Maximum elements of such a row, so that the end of the last thread's share fits 32 bits.
const MOST_STREAMED: u64 = (u32::MAX - STREAMING * AT_ONCE) as u64;

/// Alignment, in elements, of rows that asynchronous copies load: 16 bytes.
const VECTOR: u32 = 4;

/// The threads that hold a row, and how much each holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    /// Blocks that share a row.
    cluster: u32,
    /// Whether its blocks wait at barriers that count arrived bytes, instead of those of the cluster.
    counts: bool,
    /// Threads of a block that share a row: a warp, or all.
    team: u32,
    /// Elements of a row per thread.
    elements: u32,
    /// Number of rows per thread.
    rows: u32,
    /// Resident blocks per multiprocessor whose rows are loaded by asynchronous copies; 0 if threads load them.
    brought: u32,
}

impl Hold {
    /// Teams of this many threads, which hold this many elements each.
    pub(super) const fn by(team: u32, elements: u32) -> Self {
        Self { cluster: 1, counts: false, team, elements, rows: 1, brought: 0 }
    }

    /// Shared by this many blocks.
    pub(super) const fn in_clusters(self, cluster: u32) -> Self {
        Self { cluster, ..self }
    }

    /// Blocks of a cluster wait for one another's results at barriers that count arrived bytes. Measured on an H200:
    /// for two exchanges per row that is faster than a barrier of the cluster, by 2 to 9 %; for one exchange it is
    /// slower, by up to 8 %.
    pub(super) const fn counting(self) -> Self {
        Self { counts: true, ..self }
    }

    /// Holds this many rows at once, for operands that are read once for all of them.
    pub(super) const fn of_rows(self, rows: u32) -> Self {
        Self { rows, ..self }
    }

    /// Loads rows of whole vectors by asynchronous copies, with this many blocks per multiprocessor. Blocks that wait
    /// for others use counting barriers. Measured on an H200, for rows of 32 768 to 131 072 elements: 3 to 29 % faster.
    pub(super) const fn brought(self, blocks: u32) -> Self {
        Self { brought: blocks, counts: true, ..self }
    }

    const fn is_brought(self) -> bool {
        self.brought > 0
    }

    /// Whether the kernel is persistent, so that its blocks process further rows. Measured on an H200: 6 to 53 % faster
    /// for clusters; single blocks are slower by 1 to 14 % then, because another one runs beside them anyway or begins
    /// as soon as one ends.
    const fn stays(self) -> bool {
        self.is_brought() && self.is_cluster()
    }

    /// Whether it holds rows of this many columns.
    fn takes(self, columns: usize) -> bool {
        columns <= self.columns() && (!self.is_brought() || columns.is_multiple_of(VECTOR as usize))
    }

    pub(super) const fn is_cluster(self) -> bool {
        self.cluster > 1
    }

    /// Maximum columns.
    const fn columns(self) -> usize {
        (self.cluster * self.team * self.elements) as usize
    }

    /// Threads of a block.
    pub(super) const fn block(self) -> u32 {
        if self.team < BLOCK { BLOCK } else { self.team }
    }

    /// Blocks for this many rows.
    fn blocks(self, rows: usize) -> Result<u32> {
        let of_block = self.block() / self.team * self.rows;
        let most = MAX_GRID_X / u64::from(self.cluster);
        Ok(extent("rows", rows, most)?.div_ceil(of_block) * self.cluster)
    }

    /// Its suffix in kernel names.
    fn suffix(self) -> String {
        let Self { cluster, team, elements, rows, .. } = self;
        let of_rows = if rows > 1 { format!("x{rows}") } else { String::new() };
        let of_cluster = if cluster > 1 { format!("_cluster{cluster}") } else { String::new() };
        let brought = if self.is_brought() { "_brought" } else { "" };
        format!("rows{team}x{elements}{of_rows}{of_cluster}{brought}")
    }
}

/// The work of threads on rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Walk {
    /// They hold them in registers.
    Held(Hold),
    /// A block reads a part of a row and writes its state.
    States,
    /// A block combines the states of a row and writes the results of a part of it.
    Results,
}

/// The launches that compute rows, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct RowsPlan<K> {
    /// Kernels and their launches.
    pub steps: Vec<(K, Launch)>,
    /// Bytes of scratch memory, the buffer after the result.
    pub scratch: usize,
}

impl Walk {
    /// The launches for `rows` rows of `columns` elements, held by the first of `holds` that can hold one, or else in parts with
    /// `states` numbers of f64 as their state. `operands` buffers, the input first and the result last, precede the scratch
    /// memory; `more` arguments follow the extents.
    pub(super) fn plan<K>(
        [rows, columns]: [usize; 2],
        holds: &[&[Hold]],
        states: usize,
        operands: usize,
        more: &[Argument],
        kernel: impl Fn(Self) -> K,
    ) -> Result<RowsPlan<K>> {
        let step = |walk: Self, blocks: u32, buffers: Vec<usize>, extents: Vec<u32>| {
            let buffers = buffers.into_iter().map(Argument::Buffer);
            let extents = extents.into_iter().map(Argument::U32);
            let arguments = buffers.chain(extents).chain(more.iter().copied()).collect();
            (kernel(walk), Launch { grid: [blocks, 1, 1], arguments })
        };
        if let Some(&hold) = holds.iter().copied().flatten().find(|hold| hold.takes(columns)) {
            let blocks = if columns == 0 { 0 } else { hold.blocks(rows)? };
            let steps =
                vec![step(Self::Held(hold), blocks, (0..operands).collect(), vec![rows as u32, columns as u32])];
            return Ok(RowsPlan { steps, scratch: 0 });
        }
        let n = extent("columns", columns, MOST_STREAMED)?;
        let length = columns.div_ceil(MOST_PARTS).next_multiple_of((STREAMING * AT_ONCE) as usize).max(PART);
        let parts = columns.div_ceil(length);
        let blocks = extent("parts of rows", rows.saturating_mul(parts), MAX_GRID_X)?;
        let extents = vec![n, length as u32, parts as u32];
        let steps = vec![
            step(Self::States, blocks, vec![0, operands], extents.clone()),
            step(Self::Results, blocks, (0..=operands).collect(), extents),
        ];
        Ok(RowsPlan { steps, scratch: blocks as usize * states * size_of::<f64>() })
    }

    /// Each of these.
    pub(super) fn held(holds: &[Hold]) -> impl Iterator<Item = Self> {
        holds.iter().copied().map(Self::Held)
    }

    /// Threads of a block.
    pub(super) fn block(self) -> u32 {
        match self {
            Self::Held(hold) => hold.block(),
            Self::States | Self::Results => STREAMING,
        }
    }

    /// Its suffix in kernel names.
    pub(super) fn suffix(self) -> String {
        match self {
            Self::Held(hold) => hold.suffix(),
            Self::States => "into_states".to_owned(),
            Self::Results => "from_states".to_owned(),
        }
    }
}

/// A part of a row, that a block processes.
pub(super) struct Part<'k> {
    k: &'k Builder,
    /// Its row.
    row: Value<'k, u32>,
    /// The column of its first element.
    first: Value<'k, u32>,
    /// Elements before its first one, those of other rows included.
    before: Value<'k, u64>,
    /// Its elements.
    n: Value<'k, u32>,
    /// Parts of a row.
    parts: Value<'k, u32>,
    thread: Value<'k, u32>,
}

impl<'k> Part<'k> {
    /// The part of this block, of rows of `n` elements. Reads the parameters that follow those: `length` and `parts`.
    pub(super) fn of_block(k: &'k Builder, n: Value<'k, u32>) -> Self {
        let (length, parts) = (k.parameter::<u32>("length"), k.parameter::<u32>("parts"));
        let (block, thread) = (k.ctaid_x(), k.tid_x());
        let row = block / parts;
        let first = (block % parts) * length;
        let before = k.mul_wide(row, n) + k.cvt_u64(first);
        Self { k, row, first, before, n: k.min(n - first, length), parts, thread }
    }

    /// The beginning of the part in a matrix.
    pub(super) fn of_matrix(&self, matrix: Pointer<'k, Global, f32>) -> Pointer<'k, Global, f32> {
        matrix.index_wide(self.before)
    }

    /// The beginning of its row in a matrix.
    pub(super) fn of_row(&self, matrix: Pointer<'k, Global, f32>) -> Pointer<'k, Global, f32> {
        matrix.index_wide(self.before - self.k.cvt_u64(self.first))
    }

    /// The beginning of the part in a vector that all rows share.
    pub(super) fn of_vector(&self, vector: Pointer<'k, Global, f32>) -> Pointer<'k, Global, f32> {
        vector.index(self.first)
    }

    /// Streams it from where it begins; columns count from there. A thread loads some elements at once, zeros beyond the end.
    pub(super) fn stream(&self, from: Pointer<'k, Global, f32>, take: impl FnOnce(&[Element<'k>])) {
        let k = self.k;
        k.for_(self.thread, self.n, STREAMING * AT_ONCE, |first| {
            let at = from.index(first);
            let element = |e: u32| {
                let column = first + e * STREAMING;
                let there = k.lt(column, self.n);
                Element { column, there, x: k.ld_if(there, at.offset((e * STREAMING) as i32), 0.0) }
            };
            take(&(0..AT_ONCE).map(element).collect::<Vec<_>>());
        });
    }

    /// Combines one value of each thread of the block; every thread gets the result.
    pub(super) fn combine<T: Exchange>(
        &self,
        value: Value<'k, T>,
        combine: impl Fn(Value<'k, T>, Value<'k, T>) -> Value<'k, T>,
    ) -> Value<'k, T> {
        team::combine(self.k, STREAMING, self.thread, value, combine)
    }

    /// Writes the state of the part.
    pub(super) fn write(&self, states: Pointer<'k, Global, f64>, state: &[Value<'k, f64>]) {
        let k = self.k;
        let at = states.index(k.ctaid_x() * state.len() as u32);
        for (i, &value) in state.iter().enumerate() {
            k.st_if(k.eq(self.thread, 0), at.offset(i as i32), value);
        }
    }

    /// Passes the states of the row to `take`, by `N` numbers; each thread gets some of them.
    pub(super) fn states<const N: usize>(
        &self,
        states: Pointer<'k, Global, f64>,
        take: impl FnOnce([Value<'k, f64>; N]),
    ) {
        let k = self.k;
        let of_row = self.row * self.parts;
        k.for_(self.thread, self.parts, STREAMING, |part| {
            let at = states.index((of_row + part) * N as u32);
            take(std::array::from_fn(|i| k.ld(at.offset(i as i32))));
        });
    }
}

/// An element of a part that is streamed.
pub(super) struct Element<'k> {
    pub(super) column: Value<'k, u32>,
    pub(super) there: Value<'k, bool>,
    pub(super) x: F32<'k>,
}
