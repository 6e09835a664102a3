//! Rings of stages in shared memory that some threads fill and others empty.

use super::value::{Value, Variable};
use super::{Builder, Pointer, Shared, SharedCluster};
use crate::types::Operand;

/// Bytes of a barrier.
const BARRIER: u32 = 8;

/// A ring of stages, each with a barrier that says when it is full and one that says when it is empty.
#[derive(Clone, Copy)]
pub struct Pipeline<'k> {
    full: Pointer<'k, Shared, u64>,
    empty: Pointer<'k, Shared, u64>,
    stages: u32,
}

/// The position of a thread in a ring: the stage, and the parity of the phase that it waits for there.
struct Turn<'k> {
    stage: Variable<'k, u32>,
    parity: Variable<'k, u32>,
}

/// The side of a ring that fills it.
pub struct Producer<'k> {
    pipeline: Pipeline<'k>,
    turn: Turn<'k>,
}

/// The side of a ring that empties it.
pub struct Consumer<'k> {
    pipeline: Pipeline<'k>,
    turn: Turn<'k>,
}

impl Builder {
    /// A ring of this many stages. Its barriers are not initialised yet.
    pub fn pipeline(&self, stages: u32) -> Pipeline<'_> {
        Pipeline { full: self.shared(stages), empty: self.shared(stages), stages }
    }
}

impl<'k> Pipeline<'k> {
    /// Initialises the barriers, by one thread, before a barrier of the block or the cluster: how often consumers release
    /// a stage before it is empty. A producer fills it once.
    pub fn initialise(&self, k: &'k Builder, releases: u32) {
        for stage in 0..self.stages as i32 {
            k.mbarrier_init(self.full.offset(stage), 1u32);
            k.mbarrier_init(self.empty.offset(stage), releases);
        }
        k.fence_mbarrier_init::<u32>();
    }

    /// The ring of one stage of this one alone.
    pub fn of_stage(self, stage: Value<'k, u32>) -> Self {
        Self { full: self.full.index(stage), empty: self.empty.index(stage), stages: 1 }
    }

    /// At the first stage, to fill it.
    pub fn producer(self, k: &'k Builder) -> Producer<'k> {
        // The phase before the first counts as complete, because every stage is empty at first.
        Producer { pipeline: self, turn: Turn { stage: k.variable(0u32), parity: k.variable(1u32) } }
    }

    /// At the first stage, to empty it.
    pub fn consumer(self, k: &'k Builder) -> Consumer<'k> {
        Consumer { pipeline: self, turn: Turn { stage: k.variable(0u32), parity: k.variable(0u32) } }
    }

    /// The barrier of the first stage in the block with this rank, on which blocks of the cluster report an empty stage.
    pub fn empty_of_block(&self, rank: Value<'k, u32>) -> Pointer<'k, SharedCluster, u64> {
        self.empty.of_block(rank)
    }
}

impl<'k> Turn<'k> {
    fn wait(&self, k: &'k Builder, barriers: Pointer<'k, Shared, u64>) -> Pointer<'k, Shared, u64> {
        let barrier = barriers.index(self.stage);
        k.until(|| k.mbarrier_try_wait_parity(barrier, self.parity));
        barrier
    }

    fn advance(&self, k: &'k Builder, stages: u32) {
        let next = k.add(self.stage, 1u32);
        let wraps = k.eq(next, stages);
        self.parity.set(k.xor(self.parity, k.selp(1u32, 0u32, wraps)));
        self.stage.set(k.selp(0u32, next, wraps));
    }
}

impl<'k> Producer<'k> {
    /// Waits until the stage is empty, and has its barrier wait for this many bytes. Returns the stage, and the barrier that
    /// copies are to count on. By one thread.
    pub fn acquire(&self, k: &'k Builder, bytes: impl Operand<u32>) -> (Value<'k, u32>, Pointer<'k, Shared, u64>) {
        self.turn.wait(k, self.pipeline.empty);
        let full = self.pipeline.full.index(self.turn.stage);
        k.mbarrier_arrive_expect_tx(full, bytes);
        (self.turn.stage.get(), full)
    }

    /// On to the next stage.
    pub fn advance(&self, k: &'k Builder) {
        self.turn.advance(k, self.pipeline.stages);
    }
}

impl<'k> Consumer<'k> {
    /// Waits until the stage is full, and returns its number.
    pub fn acquire(&self, k: &'k Builder) -> Value<'k, u32> {
        self.turn.wait(k, self.pipeline.full);
        self.turn.stage.get()
    }

    /// Says that a stage is empty again.
    pub fn release(&self, k: &'k Builder, stage: Value<'k, u32>) {
        k.mbarrier_arrive::<u32>(self.pipeline.empty.index(stage));
    }

    /// Says to a block of the cluster that a stage is empty again.
    pub fn release_of_block(&self, k: &'k Builder, empty: Pointer<'k, SharedCluster, u64>, stage: Value<'k, u32>) {
        k.mbarrier_arrive_cluster::<u32>(empty.byte_index(stage * BARRIER));
    }

    /// On to the next stage.
    pub fn advance(&self, k: &'k Builder) {
        self.turn.advance(k, self.pipeline.stages);
    }
}
