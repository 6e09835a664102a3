//! Operations on tensors of a device, made ready once and run again and again.

use std::collections::HashMap;

use kiln_ir::op::{Op, Outputs};
use kiln_ir::{Result, TensorType};

use crate::blocking_and_async;
use crate::driver::{Driver, RegionOf};
use crate::executable::Executable;
use crate::plan::Plan;
use crate::profile::Profile;
use crate::tensor::Tensor;
use crate::waiting::Waiting;

/// An operation on tensors of a device, its kernels compiled and its memory allocated.
#[derive(Debug)]
pub struct Prepared<D: Driver> {
    device: D,
    executable: Executable<D>,
    outputs: Outputs,
}

impl<D: Driver> Prepared<D> {
    /// Makes an operation on tensors of a device ready.
    ///
    /// # Errors
    /// The errors of the shape rule; [`kiln_ir::Error::Unavailable`] for a tensor of another device; the errors of compilation
    /// and of allocation.
    pub async fn new(device: &D, op: &Op, inputs: &[&Tensor<D>]) -> Result<Self> {
        device.check_alive()?;
        inputs.iter().try_for_each(|input| input.check_on(device))?;
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty()).collect();
        let outputs = op.infer(&types)?;
        let (ids, plan) = Plan::of_operation(op, &types, device.target())?;
        let regions = inputs.iter().map(|input| input.region().clone());
        let given: HashMap<_, RegionOf<D>> = ids.into_iter().zip(regions).collect();
        let executable = Executable::new(device, plan, &given).await?;
        Ok(Self { device: device.clone(), executable, outputs })
    }

    /// Its results, valid once it has run. They change when it runs again.
    pub fn results(&self) -> Vec<Tensor<D>> {
        let results = self.executable.results().iter().zip(self.outputs.iter());
        results.map(|(region, &ty)| Tensor::from_region(self.device.clone(), region.clone(), ty)).collect()
    }

    /// Runs it once more, for callers that say who drives the device.
    ///
    /// # Errors
    /// The errors of [`Prepared::run_async`].
    pub async fn run_waiting(&mut self, waiting: Waiting) -> Result<()> {
        self.executable.run(Vec::new(), waiting).await
    }

    blocking_and_async! {
        /// Runs it once more, over the results of the last time. It does not wait for the device, unless its data can be at
        /// fault; `finish` of the device does.
        ///
        /// # Errors
        /// [`kiln_ir::Error::Index`] for an index outside of its table; [`kiln_ir::Error::OutOfMemory`],
        /// [`kiln_ir::Error::DeviceLost`].
        pub fn run, run_async(&mut self, waiting) -> Result<()> {
            self.run_waiting(waiting).await
        }

        /// Runs it this many times in one go, for measurements that have to outlast a coarse clock. Neither waits for the device
        /// nor reports faults of the data.
        ///
        /// # Errors
        /// [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`].
        pub fn repeat, repeat_async(&mut self, _waiting, times: usize) -> Result<()> {
            self.executable.repeat(times).await
        }

        /// The time of each of its kernels in the last run, on a device that was opened to time them.
        ///
        /// # Errors
        /// [`kiln_ir::Error::Unavailable`] on another device, [`kiln_ir::Error::Parameter`] before its first run,
        /// [`kiln_ir::Error::DeviceLost`].
        pub fn profile, profile_async(&self, waiting) -> Result<Profile> {
            self.executable.profile(waiting).await
        }
    }
}

/// Plans operations on operands of these types, one after the other.
pub(crate) fn plans<D: Driver>(
    device: &D,
    operations: &[(Op, &[TensorType])],
) -> impl Iterator<Item = Result<Plan<D>>> {
    operations.iter().map(|(op, types)| Ok(Plan::of_operation(op, types, device.target())?.1))
}

/// Compiles the kernels of plans, all at once.
pub(crate) async fn compile_ahead<D: Driver>(device: &D, plans: impl Iterator<Item = Result<Plan<D>>>) -> Result<()> {
    device.check_alive()?;
    let mut steps = Vec::new();
    for plan in plans {
        steps.extend(plan?.steps);
    }
    device.compile(&steps).await
}
