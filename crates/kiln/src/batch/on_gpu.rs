//! Runs plans as a whole on a GPU.

use std::collections::HashMap;

use kiln_device::waiting::{Arriving, Waiting};
use kiln_ir::graph::TensorId;
use kiln_ir::{Buffer, Operand, Result};

use super::host_plan::HostPlan;
use super::lent::{Lent, LentRunner};
use super::{Batch, Input, Target};
use crate::gpus::{Fault, Runner};
use crate::state::Taken;

#[doc(hidden)]
impl Batch<'_> {
    /// Computes the wanted tensors on one GPU, and begins to read them: the future that it returns waits for them, and not for later
    /// executions. The result `feed[0]`, which must be wanted, is written to the memory of the input `feed[1]` of the same type, where
    /// the next such call finds it. `None` if nothing was computed: the batch runs on the CPU or on several devices, or the GPU cannot, or
    /// times kernels.
    /// After an error, here or in the future, the caller executes the batch, which also recovers from errors of devices. It first
    /// sets the input again, because a copy that the batch keeps on the host is older than that of the GPU.
    pub async fn begin_waiting(
        &mut self,
        wanted: &[TensorId],
        feed: [TensorId; 2],
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Buffer>>>> {
        let plan = self.plan(wanted)?;
        self.results = None;
        let mut lent = Lent::new(self, plan);
        let (batch, plan) = lent.split();
        match batch.target(plan, &[])? {
            Target::Gpu(position) => batch.begin_on(position, &plan.whole, feed, waiting).await.map_err(Fault::error),
            Target::Cpu | Target::Parts => Ok(None),
        }
    }
}

impl Batch<'_> {
    /// Brings the inputs and states of a plan to a GPU, and binds them.
    async fn prepare_on(
        &mut self,
        position: usize,
        plan: &HostPlan,
        runner: &mut dyn Runner,
        waiting: Waiting,
    ) -> Result<HashMap<TensorId, Taken>, Fault> {
        self.send(position, &plan.inputs, runner, waiting).await?;
        let gpu = self.engine.gpus[position].clone();
        let mut states = self.take_states(&plan.inputs)?;
        for (&id, state) in &mut states {
            runner.bind_state(id, &state.on_gpu(&gpu, waiting).await?).map_err(Fault::of(&gpu))?;
        }
        Ok(states)
    }

    /// Drops the copies on the host of inputs that a GPU has.
    fn drop_on_host(&mut self, ids: &[TensorId]) {
        if self.keep_on_host {
            return;
        }
        for id in ids {
            if let Some(Input::Owned { host, .. }) = self.inputs.get_mut(id) {
                *host = None;
            }
        }
    }

    /// [`Batch::begin_waiting`] on a GPU.
    async fn begin_on(
        &mut self,
        position: usize,
        plan: &HostPlan,
        feed: [TensorId; 2],
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Buffer>>>, Fault> {
        let mut lent = Lent::runner(self, position, waiting).await?;
        let (batch, LentRunner { runner, .. }) = lent.split();
        let _states = batch.prepare_on(position, plan, &mut **runner, waiting).await?;
        let begun = runner.begin(&batch.graph, &plan.wanted, feed, waiting).await;
        let begun = begun.map_err(Fault::of(&batch.engine.gpus[position]))?;
        batch.drop_on_host(&plan.inputs);
        Ok(begun)
    }

    /// Runs a plan as a whole on a GPU.
    pub(super) async fn compute_on(
        &mut self,
        position: usize,
        plan: &HostPlan,
        read: bool,
        waiting: Waiting,
    ) -> Result<Option<Vec<Buffer>>, Fault> {
        let mut lent = Lent::runner(self, position, waiting).await?;
        let (batch, LentRunner { runner, .. }) = lent.split();
        let _states = batch.prepare_on(position, plan, &mut **runner, waiting).await?;
        let done = match read {
            true => runner.run(&batch.graph, &plan.wanted, waiting).await.map(Some),
            false => runner.execute(&batch.graph, &plan.wanted, waiting).await.map(|()| None),
        };
        let read = done.map_err(Fault::of(&batch.engine.gpus[position]))?;
        batch.drop_on_host(&plan.inputs);
        Ok(read)
    }

    /// Uploads the inputs that a GPU lacks or that were replaced since.
    pub(super) async fn send(
        &mut self,
        position: usize,
        ids: &[TensorId],
        runner: &mut dyn Runner,
        waiting: Waiting,
    ) -> Result<(), Fault> {
        let gpu = self.engine.gpus[position].clone();
        let missing = |id: TensorId| match self.inputs.get(&id) {
            Some(Input::Owned { gpus, .. }) => !gpus.contains(&position),
            _ => false,
        };
        let missing: Vec<TensorId> = ids.iter().copied().filter(|&id| missing(id)).collect();
        self.bring_to_host(&missing, waiting).await?;
        for &id in ids {
            if let Some(Input::Imported(tensor)) = self.inputs.get(&id)
                && !runner.has(id)
            {
                runner.import(id, &tensor.on_gpu(&gpu, waiting).await?).map_err(Fault::of(&gpu))?;
            }
        }
        let mut replaced = Vec::new();
        for &id in &missing {
            let Some(Input::Owned { host: Some(host), .. }) = self.inputs.get(&id) else { continue };
            let data = host.as_data();
            match runner.has(id) {
                true => replaced.push((id, data)),
                false => {
                    let operand = Operand::new(data, self.graph.ty(id)?.shape)?;
                    runner.upload(id, &operand).await.map_err(Fault::of(&gpu))?;
                }
            }
        }
        if !replaced.is_empty() {
            runner.set_all(&self.graph, &replaced).await.map_err(Fault::of(&gpu))?;
        }
        for id in missing {
            if let Some(Input::Owned { gpus, .. }) = self.inputs.get_mut(&id) {
                gpus.insert(position);
            }
        }
        Ok(())
    }
}
