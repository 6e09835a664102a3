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

/// Threads of a block at least.
const BLOCK: u32 = 256;
/// Threads of a block when a multiprocessor is to hold two blocks.
const LARGE: u32 = 512;
/// Threads of a block that reads a row again and again.
pub(super) const STREAMING: u32 = 256;
/// Elements that each of them has under way at once.
const AT_ONCE: u32 = 8;
/// Elements of such a row at most: 32 bits count what the last threads would read, too.
const MOST_STREAMED: u64 = (u32::MAX - STREAMING * AT_ONCE) as u64;

/// Elements of a row whose copies run by themselves: it begins at a multiple of 16 bytes.
const VECTOR: u32 = 4;

/// Who holds rows, and how much of them.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Hold {
    /// Blocks that share a row.
    cluster: u32,
    /// Its blocks wait at barriers that count what has come, instead of those of the cluster.
    counts: bool,
    /// Threads of a block that share a row: a warp, or all.
    team: u32,
    /// Elements of a row that a thread holds.
    elements: u32,
    /// Rows that a thread holds them of.
    rows: u32,
    /// Blocks that a multiprocessor holds of those that copies bring their rows to; 0 where threads load them.
    brought: u32,
}

impl Hold {
    /// By teams of this many threads, which hold this many elements each.
    pub(super) const fn by(team: u32, elements: u32) -> Self {
        Self { cluster: 1, counts: false, team, elements, rows: 1, brought: 0 }
    }

    /// By this many blocks.
    pub(super) const fn in_clusters(self, cluster: u32) -> Self {
        Self { cluster, ..self }
    }

    /// Where blocks of a cluster wait for what others found at barriers that count it. Measured on an H200: twice a row that is
    /// faster than a barrier of the cluster, by 2 to 9 %; once a row it is slower, by up to 8 %.
    pub(super) const fn counting(self) -> Self {
        Self { counts: true, ..self }
    }

    /// This many rows at once, for what is read once for all of them.
    pub(super) const fn of_rows(self, rows: u32) -> Self {
        Self { rows, ..self }
    }

    /// Brought by copies, for rows of whole vectors, to this many blocks on a multiprocessor. Who waits for what other blocks found
    /// waits at barriers that count it. Measured on an H200, of rows of 32 768 to 131 072 elements: 3 to 29 % faster.
    pub(super) const fn brought(self, blocks: u32) -> Self {
        Self { brought: blocks, counts: true, ..self }
    }

    const fn is_brought(self) -> bool {
        self.brought > 0
    }

    /// Whether blocks go on to further rows. Measured on an H200: 6 to 53 % faster where they are clusters; blocks alone are
    /// slower by 1 to 14 % then, because another one runs beside them anyway or begins as soon as one ends.
    const fn stays(self) -> bool {
        self.is_brought() && self.is_cluster()
    }

    /// Whether rows of this many columns are held.
    fn takes(self, columns: usize) -> bool {
        columns <= self.columns() && (!self.is_brought() || columns.is_multiple_of(VECTOR as usize))
    }

    pub(super) const fn is_cluster(self) -> bool {
        self.cluster > 1
    }

    /// Columns at most.
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

    /// What a name says of it.
    fn suffix(self) -> String {
        let Self { cluster, team, elements, rows, .. } = self;
        let of_rows = if rows > 1 { format!("x{rows}") } else { String::new() };
        let of_cluster = if cluster > 1 { format!("_cluster{cluster}") } else { String::new() };
        let brought = if self.is_brought() { "_brought" } else { "" };
        format!("rows{team}x{elements}{of_rows}{of_cluster}{brought}")
    }
}

/// How threads go through rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Walk {
    /// They hold them.
    Held(Hold),
    /// A block reads a row again and again.
    Streamed,
}

impl Walk {
    /// Of rows of this many columns: by the first who can hold one.
    pub(super) fn of(columns: usize, holds: &[&[Hold]]) -> Self {
        let hold = holds.iter().copied().flatten().find(|hold| hold.takes(columns));
        hold.map_or(Self::Streamed, |&hold| Self::Held(hold))
    }

    /// By each of those who hold rows.
    pub(super) fn held(holds: &[Hold]) -> impl Iterator<Item = Self> {
        holds.iter().copied().map(Self::Held)
    }

    /// Blocks, and columns, of this many rows of this many columns.
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

    /// What a name says of it.
    pub(super) fn suffix(self) -> String {
        match self {
            Self::Held(hold) => hold.suffix(),
            Self::Streamed => "streamed".to_owned(),
        }
    }
}

/// An element of a row that is read again and again.
pub(super) struct Element<'k> {
    pub(super) column: Value<'k, u32>,
    pub(super) there: Value<'k, bool>,
    pub(super) x: F32<'k>,
}

/// Goes through a row of `n` elements. A thread takes some at once, and `absent` beyond the end.
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
