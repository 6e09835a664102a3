//! Engines of web pages: asynchronous, measured within a second, with profiles that the page keeps.
//!
//! Without the feature `gpu-wasm` these functions never wait; they exist so that a page is written once for both builds.

use std::sync::Arc;
use std::time::Duration;

use kiln_ir::op::{Call, Op, OwnedCall};
use kiln_ir::{AsyncOperations, Buffer, DataMut, Error, Operand, Result};
#[cfg(browser_gpu)]
use kiln_route::{Backend, Explanation, Problem};
use kiln_route::{Place, Profile, Router};
#[cfg(browser_gpu)]
use kiln_wgpu::AdapterChoice;

use crate::batch::Holder;
use crate::calibrate::brief;
use crate::engine::{Budgeted, forced, refining};
#[cfg(browser_gpu)]
use crate::gpus::{Asked, Gpu};
use crate::{Batch, Engine, EngineBuilder, ProfileStatus};

impl EngineBuilder {
    /// Makes the engine, and opens the GPU of the browser. Without one the engine uses the CPU only, and
    /// [`Engine::gpu_problem`] says why.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if an instruction set, a backend, a forced placement or a requested adapter is unavailable;
    /// [`Error::Driver`] if the adapter cannot be opened; [`Error::Parameter`] for zero threads.
    #[cfg(browser_gpu)]
    pub async fn build_async(self) -> Result<Engine> {
        if !self.allows(Backend::Gpu) {
            return self.with_gpus(Vec::new());
        }
        let welcome = if self.software { AdapterChoice::Any } else { AdapterChoice::Best };
        let asked = self.gpus.first().map(|Asked::Adapter(choice)| choice.clone());
        match Gpu::opened(asked.as_ref().unwrap_or(&welcome)).await {
            Ok(gpu) => self.with_gpus(vec![gpu]),
            Err(problem) if asked.is_none() => {
                tracing::warn!("the engine uses the CPU only: {problem}");
                Ok(Engine { gpu_problem: Some(problem), ..self.with_gpus(Vec::new())? })
            }
            Err(problem) => Err(problem),
        }
    }

    /// Makes the engine.
    ///
    /// # Errors
    /// The errors of [`EngineBuilder::build`].
    #[cfg(not(browser_gpu))]
    pub async fn build_async(self) -> Result<Engine> {
        self.build()
    }
}

impl Engine {
    /// Makes an engine with everything that the browser has.
    ///
    /// # Errors
    /// The errors of [`EngineBuilder::build_async`].
    pub async fn new_async() -> Result<Self> {
        Self::builder().build_async().await
    }

    /// The GPU among the placements, or an empty list: for tensors that stay in its memory and batches of one device.
    ///
    /// # Errors
    /// Never fails.
    #[cfg(browser_gpu)]
    pub async fn gpu_devices_async(&self) -> Result<Vec<kiln_wgpu::GpuDevice>> {
        let mut devices = Vec::with_capacity(self.gpus.len());
        for gpu in &self.gpus {
            devices.push(gpu.device().await?);
        }
        Ok(devices)
    }

    /// The reason why the engine has no GPU, if it looked for one.
    #[cfg(browser_gpu)]
    pub fn gpu_problem(&self) -> Option<&Error> {
        self.gpu_problem.as_ref()
    }

    /// `None`, because a build without WebGPU does not look for a GPU.
    #[cfg(not(browser_gpu))]
    pub fn gpu_problem(&self) -> Option<&Error> {
        None
    }

    /// Runs any operation where it is predicted to run fastest, and returns its results.
    ///
    /// # Errors
    /// The errors of the shape rule; errors of the data, such as an index out of its table; [`Error::OutOfMemory`].
    pub async fn run_async(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<Vec<Buffer>> {
        let call = OwnedCall::new(op, inputs)?;
        let call = call.as_call();
        let mut results = call.outputs().iter().map(Buffer::zeros).collect::<Result<Vec<_>>>()?;
        let mut outputs: Vec<DataMut<'_>> = results.iter_mut().map(Buffer::as_mut).collect();
        self.run_call_async(&call, &mut outputs).await?;
        Ok(results)
    }

    /// Writes the results of [`Engine::run_async`] into slices of the caller.
    ///
    /// # Errors
    /// The errors of [`Engine::run_async`]; [`Error::Length`] and [`Error::Type`] for outputs that do not fit.
    pub async fn run_into_async(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let call = OwnedCall::new(op, inputs)?;
        self.run_call_async(&call.as_call(), outputs).await
    }

    #[cfg(browser_gpu)]
    async fn run_call_async(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        let (op, problem) = (call.op(), Problem::of_call(call));
        let able = self.able(self.on_host(), op);
        let mut residency = self.within_budget_of(able, call.types().iter().chain(call.outputs().iter()));
        let (mut recovered, mut failed) = (false, None);
        loop {
            let decision = match self.decide(&problem, &residency, op.name()) {
                Ok(decision) => decision,
                Err(lacking) => return Err(failed.unwrap_or(lacking)),
            };
            let explained = || Explanation::operation(op, call.types(), &problem, &decision);
            self.budgeted.check(decision.seconds(), || explained().question, || explained().to_string());
            let Some((_, gpu)) = self.gpu(&decision) else {
                return self.run_on_cpu(&problem, &decision, call, outputs);
            };
            let Err(error) = gpu.run_call(call, outputs, kiln_device::waiting::Waiting::Elsewhere).await else {
                return Ok(());
            };
            if !recovered && gpu.recovers(&error, kiln_device::waiting::Waiting::Elsewhere).await {
                recovered = true;
                continue;
            }
            // If a placement is forced, its error is returned.
            if self.router.forced().is_some() || !gpu.failed(&error) {
                return Err(error);
            }
            residency = residency.barred(decision.index());
            failed = Some(error);
        }
    }

    #[cfg(not(browser_gpu))]
    async fn run_call_async(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        kiln_ir::Operations::run_call(self, call, outputs)
    }

    /// Measures this machine as well as possible within this time, without blocking the page for long, and returns the profile:
    /// [`Engine::with_profile`] decides by it, and a page that keeps [`Profile::to_json`] need not measure again. Times that were
    /// not measured are predicted from bandwidths and peaks.
    ///
    /// # Errors
    /// Errors of the operations measured on the CPU. A GPU that fails is never chosen.
    pub async fn measure_async(&self, within: Duration) -> Result<Profile> {
        brief::measure(self, within).await
    }

    /// Returns an engine with the same placements that decides by another profile. It shares the GPU of this engine.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a profile of other placements.
    pub fn with_profile(&self, profile: Profile) -> Result<Self> {
        let names = |places: &[Place]| places.iter().map(|place| place.name.clone()).collect::<Vec<_>>();
        let (found, expected) = (names(profile.places()), names(self.places()));
        if found != expected {
            let reason = format!("expected times of the placements {expected:?}, found {found:?}");
            return Err(Error::Parameter { op: "profile", reason });
        }
        let router = match self.router.forced() {
            Some(place) => Router::new(profile).with_force(place)?,
            None => Router::new(profile),
        };
        Ok(self.routed(router, ProfileStatus::Kept))
    }

    /// Returns an engine with the same placements that sends everything to the placement with this name, or with `None` decides again. It
    /// shares the GPU of this engine.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no placement has this name.
    pub fn with_force(&self, place: Option<&str>) -> Result<Self> {
        let router = Router::new(self.router.profile().clone());
        let router = match place {
            Some(name) => forced(router, name)?,
            None => router,
        };
        Ok(self.routed(router, self.status.clone()))
    }

    fn routed(&self, router: Router, status: ProfileStatus) -> Self {
        Self {
            router: refining(router, self.refine, self.keeps_observed),
            cpu: self.cpu.clone(),
            #[cfg(browser_gpu)]
            gpus: self.gpus.clone(),
            #[cfg(not(browser_gpu))]
            gpus: Vec::new(),
            find_gpus: self.find_gpus.clone(),
            left_out: self.left_out.clone(),
            #[cfg(browser_gpu)]
            gpu_problem: self.gpu_problem.clone(),
            opening: self.opening.clone(),
            machine: self.machine.clone(),
            profile_path: self.profile_path.clone(),
            is_shared: self.is_shared,
            status,
            refine: self.refine,
            keeps_observed: self.keeps_observed,
            budgeted: Budgeted::new(self.budgeted.budget()),
        }
    }

    /// Returns an empty batch that keeps the engine alive, for owners that cannot borrow the engine.
    pub fn shared_batch(self: &Arc<Self>) -> Batch<'static> {
        Batch::new(Holder::Shared(self.clone()))
    }
}

impl AsyncOperations for Engine {
    async fn run_into_async(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        // The inherent method, not this one of the trait.
        Self::run_into_async(self, op, inputs, outputs).await
    }
}
