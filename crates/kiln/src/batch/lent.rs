//! Plans and runners that executions take out of their batch.

use kiln_device::waiting::Waiting;
use kiln_ir::Result;

use super::Batch;
use super::batch_plan::BatchPlan;
use crate::gpus::{Fault, Runner};

/// A part of a batch that an execution uses together with the batch. Dropping it returns it: when the execution ends, and when the
/// caller drops its future before.
pub(super) struct Lent<'b, 'e, T: Lend> {
    batch: &'b mut Batch<'e>,
    part: Option<T>,
}

/// A part of a batch that can be lent.
pub(super) trait Lend {
    /// Returns it to the batch.
    fn put_back(self, batch: &mut Batch<'_>);
}

impl Lend for BatchPlan {
    fn put_back(mut self, batch: &mut Batch<'_>) {
        batch.release(std::mem::take(&mut self.released));
        batch.plans.push(self);
    }
}

/// The runner of one GPU.
pub(super) struct LentRunner {
    position: usize,
    pub(super) runner: Box<dyn Runner>,
}

impl Lend for LentRunner {
    fn put_back(self, batch: &mut Batch<'_>) {
        batch.runners.insert(self.position, self.runner);
    }
}

impl<'b, 'e, T: Lend> Lent<'b, 'e, T> {
    pub(super) fn new(batch: &'b mut Batch<'e>, part: T) -> Self {
        Self { batch, part: Some(part) }
    }

    pub(super) fn split(&mut self) -> (&mut Batch<'e>, &mut T) {
        (self.batch, self.part.as_mut().expect("only dropping takes it"))
    }
}

impl<'b, 'e> Lent<'b, 'e, LentRunner> {
    /// The runner of a GPU, which is created if it is missing.
    pub(super) async fn runner(batch: &'b mut Batch<'e>, position: usize, waiting: Waiting) -> Result<Self, Fault> {
        let runner = match batch.runners.remove(&position) {
            Some(runner) => runner,
            None => {
                let gpu = batch.engine.gpus[position].clone();
                gpu.runner(waiting).await.map_err(Fault::of(&gpu))?
            }
        };
        Ok(Self::new(batch, LentRunner { position, runner }))
    }
}

impl<T: Lend> Drop for Lent<'_, '_, T> {
    fn drop(&mut self) {
        if let Some(part) = self.part.take() {
            part.put_back(self.batch);
        }
    }
}
