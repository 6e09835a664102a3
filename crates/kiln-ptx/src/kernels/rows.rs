//! Rows that threads hold in registers between them: memory is read once, whatever is computed of a row.
//!
//! A row is held by a warp, by a block or, from `sm_90` on, by a cluster of blocks, whose threads tell one another through
//! shared memory what each block found. They wait for that at a barrier of the cluster, or at one in shared memory that counts
//! what has come and orders nothing else.

use std::cell::Cell;
use std::ops::Range;

use kiln_core::Result;

use super::math::F32;
use super::team::{self, Exchange, WARP};
use crate::kernel::{MAX_GRID_X, extent};
use crate::{Builder, Global, Pointer, Shared, Value};

/// Threads of a block at least.
const BLOCK: u32 = 256;
/// Threads of a block that reads a row again and again.
pub(super) const STREAMING: u32 = 256;
/// Elements that each of them has under way at once.
const AT_ONCE: u32 = 8;
/// Elements of such a row at most: 32 bits count what the last threads would read, too.
const MOST_STREAMED: u64 = (u32::MAX - STREAMING * AT_ONCE) as u64;

/// What blocks of a cluster tell one another of a row, at most.
const EXCHANGES: u32 = 2;

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
}

impl Hold {
    /// By teams of so many threads, which hold so many elements each.
    pub(super) const fn by(team: u32, elements: u32) -> Self {
        Self { cluster: 1, counts: false, team, elements, rows: 1 }
    }

    /// By so many blocks.
    pub(super) const fn in_clusters(self, cluster: u32) -> Self {
        Self { cluster, ..self }
    }

    /// Where blocks of a cluster wait for what others found at barriers that count it. Measured on an H200: twice a row that is
    /// faster than a barrier of the cluster, by 2 to 9 %; once a row it is slower, by up to 8 %.
    pub(super) const fn counting(self) -> Self {
        Self { counts: true, ..self }
    }

    /// So many rows at once, for what is read once for all of them.
    pub(super) const fn of_rows(self, rows: u32) -> Self {
        Self { rows, ..self }
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

    /// Blocks for so many rows.
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
        format!("rows{team}x{elements}{of_rows}{of_cluster}")
    }

    /// The share of a thread in `rows` rows of `n` columns.
    pub(super) fn share<'k>(self, k: &'k Builder, rows: Value<'k, u32>, n: Value<'k, u32>) -> Share<'k> {
        let ([team, thread], cluster) = if self.is_cluster() {
            k.cluster(self.cluster);
            let thread = k.tid_x();
            let barriers = self.counts.then(|| Barriers::new(k, thread));
            // Who writes to another block waits until that one has begun.
            k.barrier_cluster_arrive::<u32>();
            let cluster = Cluster { rank: k.cluster_ctarank(), barriers };
            ([k.ctaid_x() >> self.cluster.ilog2(), thread], Some(cluster))
        } else {
            (team::place(k, self.block(), self.team), None)
        };
        let column = match &cluster {
            Some(cluster) => k.mad(cluster.rank, self.team * self.elements, thread),
            None => thread,
        };
        let of_rows = (0..self.rows).map(|row| {
            let row = team * self.rows + row;
            // Of a row that is not there nothing is read, and its threads go along.
            (k.mad_wide(row, n, k.cvt_u64(column)), k.selp(n, 0, k.lt(row, rows)))
        });
        Share { k, hold: self, thread, cluster, column, n, of_rows: of_rows.collect() }
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
    /// Of rows of so many columns: by the first who can hold one.
    pub(super) fn of(columns: usize, holds: &[&[Hold]]) -> Self {
        let hold = holds.iter().copied().flatten().find(|hold| columns <= hold.columns());
        hold.map_or(Self::Streamed, |&hold| Self::Held(hold))
    }

    /// By each of those who hold rows.
    pub(super) fn held(holds: &[Hold]) -> impl Iterator<Item = Self> {
        holds.iter().copied().map(Self::Held)
    }

    /// Blocks, and columns, of so many rows of so many columns.
    pub(super) fn extents(self, rows: usize, columns: usize) -> Result<[u32; 2]> {
        let (most, blocks) = match self {
            Self::Held(hold) => (hold.columns() as u64, hold.blocks(rows)?),
            Self::Streamed => (MOST_STREAMED, extent("rows", rows, MAX_GRID_X)?),
        };
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

/// What a thread has of the rows of its team.
pub(super) struct Share<'k> {
    k: &'k Builder,
    hold: Hold,
    /// The position in the block, or in the warp where that is the team.
    thread: Value<'k, u32>,
    cluster: Option<Cluster<'k>>,
    /// The first column, how many there are, and for each row where that is and how many there are of it.
    column: Value<'k, u32>,
    n: Value<'k, u32>,
    of_rows: Vec<(Value<'k, u64>, Value<'k, u32>)>,
}

/// How the blocks of a cluster tell one another what they found.
struct Cluster<'k> {
    /// The position of this block.
    rank: Value<'k, u32>,
    barriers: Option<Barriers<'k>>,
}

/// Barriers in shared memory, one for each exchange, which has but one phase.
struct Barriers<'k> {
    first: Pointer<'k, Shared, u64>,
    /// Exchanges so far.
    used: Cell<u32>,
}

impl<'k> Barriers<'k> {
    /// Initialised, for all who meet at a barrier of the cluster afterwards.
    fn new(k: &'k Builder, thread: Value<'k, u32>) -> Self {
        let first = k.shared(EXCHANGES);
        k.if_(k.eq(thread, 0), || {
            (0..EXCHANGES as i32).for_each(|number| k.mbarrier_init(first.offset(number), 1u32));
            k.fence_mbarrier_init::<u32>();
        });
        Self { first, used: Cell::new(0) }
    }

    fn next(&self) -> Pointer<'k, Shared, u64> {
        let number = self.used.replace(self.used.get() + 1);
        assert!(number < EXCHANGES, "a row has barriers for {EXCHANGES} exchanges");
        self.first.offset(number as i32)
    }
}

/// Elements that a thread holds of a row.
pub(super) type Elements<'k> = Vec<F32<'k>>;

impl<'k> Share<'k> {
    /// Whether each element is among so many columns.
    fn there(&self, n: Value<'k, u32>, elements: Range<usize>) -> impl Iterator<Item = (i32, Value<'k, bool>)> {
        let (k, column, team) = (self.k, self.column, self.hold.team);
        elements.map(move |e| e as u32 * team).map(move |at| (at as i32, k.lt(column + at, n)))
    }

    /// The numbers of all elements.
    fn all(&self) -> Range<usize> {
        0..self.hold.elements as usize
    }

    /// Whether there is each element of a row.
    pub(super) fn there_of_row(&self, row: usize) -> impl Iterator<Item = Value<'k, bool>> {
        self.there(self.of_rows[row].1, self.all()).map(|(_, there)| there)
    }

    /// The elements of each row, `absent` where there is none. Called once, before anything is combined.
    pub(super) fn load(&self, x: Pointer<'k, Global, f32>, absent: f32) -> Vec<Elements<'k>> {
        let k = self.k;
        let of_row = |&(first, n): &(Value<'k, u64>, Value<'k, u32>)| {
            let x = x.index_wide(first);
            self.there(n, self.all()).map(|(at, there)| k.ld_if(there, x.offset(at), absent)).collect()
        };
        let elements = self.of_rows.iter().map(of_row).collect();
        if self.hold.is_cluster() {
            k.barrier_cluster_wait::<u32>();
        }
        elements
    }

    /// The numbers of the elements of a thread, as many at once as are read of other vectors.
    pub(super) fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let elements = self.hold.elements as usize;
        (0..elements).step_by(AT_ONCE as usize).map(move |first| first..elements.min(first + AT_ONCE as usize))
    }

    /// The elements of a vector that belong to some columns of the thread.
    pub(super) fn of_columns(&self, vector: Pointer<'k, Global, f32>, elements: Range<usize>) -> Elements<'k> {
        let vector = vector.index(self.column);
        let there = self.there(self.n, elements);
        there.map(|(at, there)| self.k.ld_if(there, vector.offset(at), 0.0)).collect()
    }

    /// Writes some elements of a row.
    pub(super) fn store(
        &self,
        out: Pointer<'k, Global, f32>,
        row: usize,
        elements: Range<usize>,
        values: impl Iterator<Item = F32<'k>>,
    ) {
        let (first, n) = self.of_rows[row];
        let out = out.index_wide(first);
        let there = self.there(n, elements);
        there.zip(values).for_each(|((at, there), y)| self.k.st_if(there, out.offset(at), y));
    }

    /// Combines a value of each thread for each row by a tree; every thread gets the results. All threads come here.
    pub(super) fn combine<T: Exchange>(
        &self,
        values: Vec<Value<'k, T>>,
        combine: impl Fn(Value<'k, T>, Value<'k, T>) -> Value<'k, T>,
    ) -> Vec<Value<'k, T>> {
        let k = self.k;
        let Hold { cluster, team, .. } = self.hold;
        let values: Vec<_> = values.into_iter().map(|value| team::butterfly(value, WARP, &combine)).collect();
        if team == WARP {
            return values;
        }
        // A place for each warp that shares the rows, and one row's places after another's.
        let warps = team / WARP;
        let places = warps * cluster;
        let found = k.shared::<T>(places * self.hold.rows);
        let (lane, warp) = (self.thread & (WARP - 1), self.thread >> WARP.ilog2());
        let rows = (0..).map(|row: u32| (row * places) as i32);
        match &self.cluster {
            None => {
                let first = k.eq(lane, 0);
                values.iter().zip(rows.clone()).for_each(|(&v, row)| k.st_if(first, found.index(warp).offset(row), v));
                k.bar_sync(0u32);
            }
            Some(Cluster { rank, barriers }) => {
                let barrier = barriers.as_ref().map(Barriers::next);
                if let Some(barrier) = barrier {
                    let bytes = places * self.hold.rows * T::TYPE.bytes();
                    k.if_(k.eq(self.thread, 0), || k.mbarrier_arrive_expect_tx(barrier, bytes));
                }
                // A lane writes to each block.
                k.if_(k.lt(lane, cluster), || {
                    let at = found.index(k.mad(*rank, warps, warp)).of_block(lane);
                    let there = barrier.map(|barrier| barrier.of_block(lane));
                    values.iter().zip(rows.clone()).for_each(|(&value, row)| match there {
                        Some(barrier) => k.st_async(at.offset(row), value, barrier),
                        None => k.st(at.offset(row), value),
                    });
                });
                match barrier {
                    Some(barrier) => k.until(|| k.mbarrier_try_wait_parity(barrier, 0u32)),
                    None => {
                        k.barrier_cluster_arrive::<u32>();
                        k.barrier_cluster_wait::<u32>();
                    }
                }
            }
        }
        let lanes = places.min(WARP);
        let found = found.index(lane & (lanes - 1));
        let of_row = |row: i32| {
            let read: Vec<_> = (0..places / lanes).map(|i| k.ld(found.offset(row + (i * WARP) as i32))).collect();
            team::tree(read, &combine).map(|value| team::butterfly(value, lanes, &combine))
        };
        rows.take(values.len()).filter_map(of_row).collect()
    }
}

/// An element of a row that is read again and again.
pub(super) struct Element<'k> {
    pub(super) column: Value<'k, u32>,
    pub(super) there: Value<'k, bool>,
    pub(super) x: F32<'k>,
}

/// Goes through a row of `n` elements, of which a thread takes some at once, `absent` where there is none.
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
