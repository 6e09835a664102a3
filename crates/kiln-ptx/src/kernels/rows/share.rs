//! A thread's share of rows, and its exchanges with the other threads that hold them.

use std::cell::Cell;
use std::ops::Range;

use super::{AT_ONCE, Hold, LARGE, VECTOR};
use crate::kernels::math::F32;
use crate::kernels::team::{self, Exchange, WARP};
use crate::{Builder, Global, Pointer, Shared, Target, Value, Variable};

/// Phases of an exchange that may be in progress at once: a block that enters the next one knows that all have entered
/// this one, not that they have read its results.
const PHASES: u32 = 2;
/// Distance between the consecutive parts of a row in a warp, in elements.
const PART: u32 = WARP * VECTOR;

/// Alignment of the destinations of copies in shared memory. Measured on an H200: with 16 bytes long rows of softmax
/// take 5 to 6 % longer.
const LINE: u32 = 128;

/// The share of a thread in the rows of its team.
pub(in crate::kernels) struct Share<'k> {
    k: &'k Builder,
    hold: Hold,
    /// The position in the block, or in the warp if that is the team.
    thread: Value<'k, u32>,
    cluster: Option<Cluster<'k>>,
    /// The position of the team, or of the cluster if there is one, in the grid.
    team: Value<'k, u32>,
    /// The first column, the number of columns, and the number of rows.
    column: Value<'k, u32>,
    n: Value<'k, u32>,
    rows: Value<'k, u32>,
    /// Exchanges so far, in persistent blocks.
    exchanges: Option<Variable<'k, u32>>,
}

/// The exchange of results between the blocks of a cluster.
struct Cluster<'k> {
    /// The position of this block.
    rank: Value<'k, u32>,
    barriers: Option<Barriers<'k>>,
}

/// Barriers in shared memory that count arrived bytes, one for each of the phases that may be in progress.
struct Barriers<'k> {
    first: Pointer<'k, Shared, u64>,
    /// Number of exchanges in the code so far, for blocks that execute each only once.
    used: Cell<u32>,
}

impl<'k> Barriers<'k> {
    /// Initialises them for all threads that pass a barrier of the cluster afterwards.
    fn new(k: &'k Builder, thread: Value<'k, u32>) -> Self {
        let first = k.shared(PHASES);
        k.if_(k.eq(thread, 0), || {
            (0..PHASES as i32).for_each(|number| k.mbarrier_init(first.offset(number), 1u32));
            k.fence_mbarrier_init::<u32>();
        });
        Self { first, used: Default::default() }
    }

    /// The next barrier if none is used twice.
    fn next(&self) -> Pointer<'k, Shared, u64> {
        let number = self.used.replace(self.used.get() + 1);
        assert!(number < PHASES, "a row has barriers for {PHASES} exchanges");
        self.first.offset(number as i32)
    }
}

/// Elements that a thread holds of a row.
pub(in crate::kernels) type Elements<'k> = Vec<F32<'k>>;

/// The value of missing elements.
#[derive(Debug, Clone, Copy)]
pub(in crate::kernels) enum Absent {
    /// A number.
    Number(f32),
    /// The first element of the row.
    First,
}

/// The elements of the thread's rows.
pub(in crate::kernels) struct Held<'k> {
    /// The elements of each row.
    pub(in crate::kernels) elements: Vec<Elements<'k>>,
    /// For each row the value of missing elements.
    pub(in crate::kernels) absent: Vec<F32<'k>>,
    of_rows: Vec<OfRow<'k>>,
}

/// The number of a row, and its columns: 0 for a missing row.
#[derive(Clone, Copy)]
struct OfRow<'k> {
    row: Value<'k, u32>,
    n: Value<'k, u32>,
    /// The position of the thread's first element, if it is stored: with copies the register is needed otherwise.
    at: Option<Value<'k, u64>>,
}

/// The shared memory that receives a warp's parts of rows. The first lane starts the copies, from the position of its own
/// elements.
struct Stage<'k> {
    /// The first element of the thread.
    at: Pointer<'k, Shared, f32>,
    /// The barrier that counts the bytes.
    barrier: Pointer<'k, Shared, u64>,
    /// Bytes of a row, in the first lane.
    bytes: Value<'k, u32>,
    is_first_lane: Value<'k, bool>,
}

impl Hold {
    /// The share of a thread in `rows` rows of `n` columns.
    pub(in crate::kernels) fn share<'k>(
        self,
        k: &'k Builder,
        target: Target,
        rows: Value<'k, u32>,
        n: Value<'k, u32>,
    ) -> Share<'k> {
        if self.block() == LARGE {
            // For two blocks the assembler would spill a register of each thread before `sm_80`.
            k.resident_blocks(if target < Target::Sm80 { 1 } else { 2 });
        }
        let ([team, thread], cluster) = if self.is_cluster() {
            k.cluster(self.cluster);
            let thread = k.tid_x();
            let barriers = self.counts.then(|| Barriers::new(k, thread));
            // A block may write to another only after that one has begun.
            k.barrier_cluster_arrive::<u32>();
            let cluster = Cluster { rank: k.cluster_ctarank(), barriers };
            ([k.ctaid_x() >> self.cluster.ilog2(), thread], Some(cluster))
        } else {
            (team::place(k, self.block(), self.team), None)
        };
        let column = match &cluster {
            _ if self.is_brought() => {
                let lane = (thread & (WARP - 1)) * VECTOR;
                k.mad(self.number_of_warp(k, thread, cluster.as_ref()), self.elements * WARP, lane)
            }
            Some(cluster) => k.mad(cluster.rank, self.team * self.elements, thread),
            None => thread,
        };
        let exchanges = self.stays().then(|| k.variable(0u32));
        Share { k, hold: self, thread, cluster, team, column, n, rows, exchanges }
    }

    /// The number of a warp among those that hold a row. Blocks alternate, so that all have some of the last columns.
    fn number_of_warp<'k>(
        self,
        k: &'k Builder,
        thread: Value<'k, u32>,
        cluster: Option<&Cluster<'k>>,
    ) -> Value<'k, u32> {
        let warp = thread >> WARP.ilog2();
        cluster.map_or(warp, |cluster| k.mad(warp, self.cluster, cluster.rank))
    }
}

impl<'k> Share<'k> {
    /// Whether the kernel is persistent.
    pub(in crate::kernels) fn stays(&self) -> bool {
        self.hold.stays()
    }

    /// Number of adjacent elements.
    fn width(&self) -> u32 {
        if self.hold.is_brought() { VECTOR } else { 1 }
    }

    /// The offset of an element from the first of the thread.
    fn offset(&self, element: u32) -> i32 {
        let step = if self.hold.is_brought() { PART } else { self.hold.team };
        (element / self.width() * step + element % self.width()) as i32
    }

    /// The offsets of the groups of adjacent elements, and whether they are inside this many columns.
    fn there(&self, n: Value<'k, u32>, elements: Range<usize>) -> impl Iterator<Item = (i32, Value<'k, bool>)> {
        let (k, column) = (self.k, self.column);
        let firsts = elements.step_by(self.width() as usize).map(|element| self.offset(element as u32));
        firsts.map(move |at| (at, k.lt(column + at as u32, n)))
    }

    /// The indices of all elements.
    fn all(&self) -> Range<usize> {
        0..self.hold.elements as usize
    }

    /// Runs `body` for rows of the team after loading its elements: once, or repeatedly in persistent blocks. Called
    /// once.
    pub(in crate::kernels) fn each(&self, x: Pointer<'k, Global, f32>, absent: Absent, body: impl FnOnce(Held<'k>)) {
        if self.hold.is_brought() {
            return self.each_brought(x, absent, body);
        }
        let of_rows = self.of_rows(self.team);
        let absent = self.absent(x, self.team, absent);
        let of_row = |(of_row, &absent): (&OfRow<'k>, &F32<'k>)| {
            let x = x.index_wide(of_row.at.unwrap_or_else(|| self.first_of(of_row.row)));
            self.there(of_row.n, self.all()).map(|(at, there)| self.k.ld_if(there, x.offset(at), absent)).collect()
        };
        let elements = of_rows.iter().zip(&absent).map(of_row).collect();
        if self.hold.is_cluster() {
            self.k.barrier_cluster_wait::<u32>();
        }
        body(Held { elements, absent, of_rows });
    }

    /// The same for rows that asynchronous copies load.
    fn each_brought(&self, x: Pointer<'k, Global, f32>, absent: Absent, body: impl FnOnce(Held<'k>)) {
        let (k, hold) = (self.k, self.hold);
        k.resident_blocks(hold.brought);
        let stage = self.stage();
        self.bring(&stage, x, self.team);
        if hold.is_cluster() {
            k.barrier_cluster_wait::<u32>();
        }
        let absent_first = self.absent(x, self.team, absent);
        if !hold.stays() {
            return body(self.take(&stage, self.team, absent_first, k.constant(0u32)));
        }
        k.blocks_stay();
        let (teams, stride) = ((self.rows + (hold.rows - 1)) / hold.rows, k.nctaid_x() >> hold.cluster.ilog2());
        // The replacements for missing elements of the next rows are loaded as early as those rows.
        let absent_next = match absent {
            Absent::First => absent_first.into_iter().map(|absent| k.variable(absent)).collect(),
            Absent::Number(_) => Vec::new(),
        };
        let parity = k.variable(0u32);
        k.for_(self.team, teams, stride, |team| {
            let next = team + stride;
            let absent_here = match absent {
                Absent::First => absent_next.iter().map(|absent| k.constant(*absent)).collect(),
                Absent::Number(_) => self.absent(x, team, absent),
            };
            if let Absent::First = absent {
                absent_next.iter().zip(self.absent(x, next, absent)).for_each(|(to, absent)| to.set(absent));
            }
            let held = self.take(&stage, team, absent_here, parity.get());
            parity.set(k.xor(parity, 1u32));
            // Copies write through the async proxy, which a barrier does not order after the lanes' reads: each lane
            // needs a fence too.
            k.fence_proxy_async::<u32>();
            k.bar_warp_sync(u32::MAX);
            k.if_(k.lt(next, teams), || self.bring(&stage, x, next));
            body(held);
        });
    }

    /// Waits for the rows of a team, and loads this thread's elements.
    fn take(&self, stage: &Stage<'k>, team: Value<'k, u32>, absent: Vec<F32<'k>>, parity: Value<'k, u32>) -> Held<'k> {
        let k = self.k;
        let of_rows = self.of_rows(team);
        k.until(|| k.mbarrier_try_wait_parity(stage.barrier, parity));
        let of_row = |((row, of_row), &absent): ((usize, &OfRow<'k>), &F32<'k>)| {
            let x = stage.at.offset((row as u32 * self.hold.elements * WARP) as i32);
            let vectors = self.there(of_row.n, self.all());
            vectors.flat_map(|(at, there)| k.ld_v_if::<_, _, 4>(there, x.offset(at), absent)).collect()
        };
        let elements = of_rows.iter().enumerate().zip(&absent).map(of_row).collect();
        Held { elements, absent, of_rows }
    }

    /// The rows of a team.
    fn of_rows(&self, team: Value<'k, u32>) -> Vec<OfRow<'k>> {
        let k = self.k;
        let of_row = |row| {
            let row = team * self.hold.rows + row;
            // Nothing is read from a missing row, but its threads take part in the rest.
            let n = k.selp(self.n, 0, k.lt(row, self.rows));
            let at = (!self.hold.is_brought()).then(|| self.first_of(row));
            OfRow { row, n, at }
        };
        (0..self.hold.rows).map(of_row).collect()
    }

    /// The position of the thread's first element in a row.
    fn first_of(&self, row: Value<'k, u32>) -> Value<'k, u64> {
        self.k.mad_wide(row, self.n, self.k.cvt_u64(self.column))
    }

    /// The replacements for missing elements of a team's rows.
    fn absent(&self, x: Pointer<'k, Global, f32>, team: Value<'k, u32>, absent: Absent) -> Vec<F32<'k>> {
        let k = self.k;
        let of_row = |row| match absent {
            Absent::Number(number) => k.constant(number),
            Absent::First => {
                let row = team * self.hold.rows + row;
                k.ld_if(k.lt(row, self.rows), x.index_wide(k.mul_wide(row, self.n)), 0.0)
            }
        };
        (0..self.hold.rows).map(of_row).collect()
    }

    /// The stage for the rows of this warp.
    fn stage(&self) -> Stage<'k> {
        let (k, hold) = (self.k, self.hold);
        let of_warp = hold.elements * WARP;
        let (warp, lane) = (self.thread >> WARP.ilog2(), self.thread & (WARP - 1));
        let all = k.shared_bytes(hold.team * hold.elements * hold.rows * 4, LINE).cast::<f32>();
        let at = all.index(k.mad(warp, of_warp * hold.rows, lane * VECTOR));
        let barrier = k.shared::<u64>(hold.team / WARP).index(warp);
        let is_first_lane = k.eq(lane, 0);
        k.if_(is_first_lane, || {
            k.mbarrier_init(barrier, 1u32);
            k.fence_mbarrier_init::<u32>();
        });
        k.bar_warp_sync(u32::MAX);
        let columns = k.min(k.max(self.n, self.column) - self.column, of_warp);
        Stage { at, barrier, bytes: columns * 4, is_first_lane }
    }

    /// Starts copying this warp's parts of the rows of a team.
    fn bring(&self, stage: &Stage<'k>, x: Pointer<'k, Global, f32>, team: Value<'k, u32>) {
        let (k, hold) = (self.k, self.hold);
        k.if_(stage.is_first_lane, || {
            k.mbarrier_arrive_expect_tx(stage.barrier, stage.bytes * hold.rows);
            k.if_(k.gt(stage.bytes, 0), || {
                for number in 0..hold.rows {
                    let to = stage.at.offset((number * hold.elements * WARP) as i32);
                    // A missing row is replaced by the last one, which is not used.
                    let row = k.min(team * hold.rows + number, self.rows - 1);
                    k.cp_async_bulk_load(to, x.index_wide(self.first_of(row)), stage.bytes, stage.barrier);
                }
            });
        });
    }

    /// The elements of a vector for the columns of the thread, if it uses them for many rows.
    pub(in crate::kernels) fn kept(&self, vector: Pointer<'k, Global, f32>) -> Option<Elements<'k>> {
        self.hold.stays().then(|| self.of_columns(vector, self.all()))
    }

    /// The indices of the thread's elements, in groups of the size in which other vectors are read.
    pub(in crate::kernels) fn groups(&self) -> impl Iterator<Item = Range<usize>> {
        let elements = self.hold.elements as usize;
        (0..elements).step_by(AT_ONCE as usize).map(move |first| first..elements.min(first + AT_ONCE as usize))
    }

    /// The elements of a vector for some columns of the thread.
    pub(in crate::kernels) fn of_columns(
        &self,
        vector: Pointer<'k, Global, f32>,
        elements: Range<usize>,
    ) -> Elements<'k> {
        let (k, vector) = (self.k, vector.index(self.column));
        let there = self.there(self.n, elements);
        if self.hold.is_brought() {
            return there.flat_map(|(at, there)| k.ld_v_if::<_, _, 4>(there, vector.offset(at), 0.0)).collect();
        }
        there.map(|(at, there)| k.ld_if(there, vector.offset(at), 0.0)).collect()
    }

    /// Writes some elements of a row.
    pub(in crate::kernels) fn store(
        &self,
        out: Pointer<'k, Global, f32>,
        held: &Held<'k>,
        row: usize,
        elements: Range<usize>,
        values: impl Iterator<Item = F32<'k>>,
    ) {
        let OfRow { row, n, at } = held.of_rows[row];
        let out = out.index_wide(at.unwrap_or_else(|| self.first_of(row)));
        let values: Vec<_> = values.collect();
        for ((at, there), values) in self.there(n, elements).zip(values.chunks(self.width() as usize)) {
            match <[F32<'k>; VECTOR as usize]>::try_from(values) {
                Ok(vector) => self.k.st_v_if(there, out.offset(at), vector),
                Err(_) => self.k.st_if(there, out.offset(at), values[0]),
            }
        }
    }

    /// Combines values of all threads by a tree, one for each row or several for each; every thread gets the results.
    /// All threads must execute this.
    pub(in crate::kernels) fn combine<T: Exchange>(
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
        // One slot for each warp that shares the rows, and for each value.
        let warps = team / WARP;
        let places = warps * cluster;
        let of_phase = places * values.len() as u32;
        let found = k.shared::<T>(of_phase * if self.exchanges.is_some() { PHASES } else { 1 });
        let phase = self.exchanges.map(|exchanges| {
            let number = k.constant(exchanges);
            exchanges.set(number + 1u32);
            [number & 1, (number >> 1) & 1]
        });
        let found = phase.map_or(found, |[phase, _]| found.index(phase * of_phase));
        let (lane, warp) = (self.thread & (WARP - 1), self.thread >> WARP.ilog2());
        let at = (0..).map(|value: u32| (value * places) as i32);
        match &self.cluster {
            None => {
                let first = k.eq(lane, 0);
                values.iter().zip(at.clone()).for_each(|(&v, at)| k.st_if(first, found.index(warp).offset(at), v));
                k.bar_sync(0u32);
            }
            Some(Cluster { rank, barriers }) => {
                let barrier = barriers.as_ref().map(|barriers| match phase {
                    Some([phase, parity]) => (barriers.first.index(phase), parity),
                    None => (barriers.next(), k.constant(0u32)),
                });
                if let Some((barrier, _)) = barrier {
                    let bytes = of_phase * T::TYPE.bytes();
                    k.if_(k.eq(self.thread, 0), || k.mbarrier_arrive_expect_tx(barrier, bytes));
                }
                // One lane writes to each block.
                k.if_(k.lt(lane, cluster), || {
                    let to = found.index(k.mad(*rank, warps, warp)).of_block(lane);
                    let there = barrier.map(|(barrier, _)| barrier.of_block(lane));
                    values.iter().zip(at.clone()).for_each(|(&value, at)| match there {
                        Some(barrier) => k.st_async(to.offset(at), value, barrier),
                        None => k.st(to.offset(at), value),
                    });
                });
                match barrier {
                    Some((barrier, parity)) => k.until(|| k.mbarrier_try_wait_parity_cluster(barrier, parity)),
                    None => {
                        k.barrier_cluster_arrive::<u32>();
                        k.barrier_cluster_wait::<u32>();
                    }
                }
            }
        }
        let lanes = places.min(WARP);
        let found = found.index(lane & (lanes - 1));
        let of_value = |at: i32| {
            let read: Vec<_> = (0..places / lanes).map(|i| k.ld(found.offset(at + (i * WARP) as i32))).collect();
            team::tree(read, &combine).map(|value| team::butterfly(value, lanes, &combine))
        };
        at.take(values.len()).filter_map(of_value).collect()
    }
}
