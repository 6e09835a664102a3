//! Rows that threads hold in registers between them: memory is read once, whatever is computed of a row.
//!
//! A row is held by a warp, by a block or, from `sm_90` on, by a cluster of blocks, whose threads tell one another through
//! shared memory what each block found. They wait for that at a barrier of the cluster, or at one in shared memory that counts
//! what has come and orders nothing else.
//!
//! On Hopper bulk copies bring long rows to shared memory, to each warp its part. A cluster has so much of a multiprocessor
//! that the memory would idle while a row is worked on: its blocks stay, and as soon as a warp has taken its part of a row, a copy
//! brings its part of the next one. What is read once for all rows, blocks that stay keep in registers.

mod share;

use kiln_ir::{Error, Result};
pub(super) use share::{Absent, Share};

use super::math::F32;
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Builder, Global, Pointer, Value};

/// Minimum threads of a block.
const BLOCK: u32 = 256;
/// Threads of a block if two blocks must fit a multiprocessor.
const LARGE: u32 = 512;
/// Threads of a block that streams a row several times.
pub(super) const STREAMING: u32 = 256;
/// Elements that each of them loads at once.
const AT_ONCE: u32 = 8;
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

/// How threads process rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Walk {
    /// They hold them in registers.
    Held(Hold),
    /// A block streams a row several times.
    Streamed,
}

impl Walk {
    /// For rows of this many columns: the first of these that can hold one.
    pub(super) fn of(columns: usize, holds: &[&[Hold]]) -> Self {
        let hold = holds.iter().copied().flatten().find(|hold| hold.takes(columns));
        hold.map_or(Self::Streamed, |&hold| Self::Held(hold))
    }

    /// Each of these.
    pub(super) fn held(holds: &[Hold]) -> impl Iterator<Item = Self> {
        holds.iter().copied().map(Self::Held)
    }

    /// Blocks and columns for this many rows of this many columns.
    pub(super) fn extents(self, rows: usize, columns: usize) -> Result<[u32; 2]> {
        let (most, blocks) = match self {
            Self::Held(hold) => (hold.columns() as u64, hold.blocks(rows)?),
            Self::Streamed => (MOST_STREAMED, extent("rows", rows, MAX_GRID_X)?),
        };
        if let Self::Held(hold) = self
            && hold.is_brought()
            && !columns.is_multiple_of(VECTOR as usize)
        {
            let reason = format!("{columns} columns are no whole vectors of {VECTOR}");
            return Err(Error::Parameter { op: "rows", reason });
        }
        let columns = extent("columns", columns, most)?;
        Ok([if columns == 0 { 0 } else { blocks }, columns])
    }

    /// Threads of a block.
    pub(super) fn block(self) -> u32 {
        match self {
            Self::Held(hold) => hold.block(),
            Self::Streamed => STREAMING,
        }
    }

    /// Its suffix in kernel names.
    pub(super) fn suffix(self) -> String {
        match self {
            Self::Held(hold) => hold.suffix(),
            Self::Streamed => "streamed".to_owned(),
        }
    }
}

/// An element of a streamed row.
pub(super) struct Element<'k> {
    pub(super) column: Value<'k, u32>,
    pub(super) there: Value<'k, bool>,
    pub(super) x: F32<'k>,
}

/// Streams a row of `n` elements. A thread loads some at once, and `absent` beyond the end.
pub(super) fn stream<'k>(
    k: &'k Builder,
    x: Pointer<'k, Global, f32>,
    thread: Value<'k, u32>,
    n: Value<'k, u32>,
    absent: f32,
    take: impl FnOnce(&[Element<'k>]),
) {
    k.for_(thread, n, STREAMING * AT_ONCE, |first| {
        let at = x.index(first);
        let element = |e: u32| {
            let column = first + e * STREAMING;
            let there = k.lt(column, n);
            Element { column, there, x: k.ld_if(there, at.offset((e * STREAMING) as i32), absent) }
        };
        take(&(0..AT_ONCE).map(element).collect::<Vec<_>>());
    });
}
