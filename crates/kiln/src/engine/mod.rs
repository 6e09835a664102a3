//! The engine: holds the placements of the machine, and runs each operation on one of them.

mod absences;
mod budget;
mod builder;
#[cfg(not(browser_gpu))]
mod calibration;
#[cfg(not(target_arch = "wasm32"))]
mod hybrid;
mod profile;

use std::path::{Path, PathBuf};
#[cfg(not(browser_gpu))]
use std::sync::Once;

pub(crate) use budget::Budgeted;
pub use budget::{Budget, DeviceMemory};
pub use builder::EngineBuilder;
use kiln_ir::graph::{Graph, Step};
use kiln_ir::op::{Call, Custom, Op};
use kiln_ir::{DataMut, Error, Operand, Precision, Result, TensorType};
#[cfg(not(browser_gpu))]
use kiln_ir::{Operations, op::Quantize};

use kiln_route::{Backend, Decision, Explanation, Machine, Place, Problem, Residency, Router};
#[cfg(not(target_arch = "wasm32"))]
use kiln_route::{Profile, ProfileProblem};
use kiln_simd::Simd;
pub use profile::ProfileStatus;
use web_time::Instant;

use crate::Absent;
use crate::gpus::{Gpu, KINDS, Opening};
#[cfg(not(browser_gpu))]
use crate::gpus::{WAITING, wait};

/// Runs operations where they are predicted to run fastest. They are the methods of [`Operations`]; in a browser with WebGPU,
/// where nothing can block, `run_async` runs any of them.
///
/// Making an engine is cheap: it inspects the processor and reads at most one small file. Threads start with the first
/// operation that uses them. Threads can share an engine.
#[derive(Debug)]
pub struct Engine {
    pub(crate) router: Router,
    /// The CPU placements, in the order of the router's first placements.
    pub(crate) cpu: Vec<Simd>,
    /// The GPUs of the placements after those.
    pub(crate) gpus: Vec<Gpu>,
    /// The GPU backends that a calibration may search for devices.
    pub(crate) find_gpus: Vec<Backend>,
    /// GPUs that the last calibration excluded.
    pub(crate) left_out: Vec<Absent>,
    /// Why a browser has no GPU, if one was requested.
    #[cfg(browser_gpu)]
    pub(crate) gpu_problem: Option<Error>,
    /// How devices are opened, and where they keep their compiled code.
    pub(crate) opening: Opening,
    pub(crate) machine: Machine,
    pub(crate) profile_path: Option<PathBuf>,
    /// Whether this is the file of the user's cache directory, which other engines use, too.
    pub(crate) is_shared: bool,
    pub(crate) status: ProfileStatus,
    pub(crate) refine: bool,
    pub(crate) keeps_observed: bool,
    pub(crate) budgeted: Budgeted,
}

/// A router that sends everything to the placement of this name.
///
/// # Errors
/// [`Error::Unavailable`] if no placement has this name.
pub(crate) fn forced(router: Router, name: &str) -> Result<Router> {
    let Some(index) = router.places().iter().position(|place| place.name == name) else {
        let names: Vec<&str> = router.places().iter().map(|place| place.name.as_str()).collect();
        return Err(Error::Unavailable {
            what: format!("placement {name:?}"),
            reason: format!("expected one of: {}", names.join(", ")),
        });
    };
    router.with_force(index)
}

/// The router with its observation settings. Observations in a profile are relative to its predictions; a new profile
/// starts without observations.
pub(crate) fn refining(router: Router, refine: bool, keeps_observed: bool) -> Router {
    match (keeps_observed, refine) {
        (true, _) if cfg!(not(target_arch = "wasm32")) => router.with_kept_history(),
        (_, true) => router.with_history(),
        (_, false) => router,
    }
}

impl Engine {
    /// Makes an engine with everything that the machine has, and with the profile of an earlier calibration if one was stored.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the environment variable `KILN_ISA` names an instruction set that is unknown or that
    /// the machine lacks.
    #[cfg(not(browser_gpu))]
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// The placements where operations can run, in the order of tables.
    pub fn places(&self) -> &[Place] {
        self.router.places()
    }

    /// The machine, as profiles name it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// The router, which decides where operations run.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The source of the profile that the router decides by.
    pub fn profile_status(&self) -> &ProfileStatus {
        &self.status
    }

    /// The profile with the observations so far, for a program that keeps it ([`EngineBuilder::kept_profile`]). Without
    /// [`EngineBuilder::refine_across_runs`], and if built-in constants decide, it is the profile as it was read or measured.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn observed_profile(&self) -> Profile {
        let profile = self.router.profile().clone();
        if !self.keeps_observed || !self.is_measured() {
            return profile;
        }
        let with = profile.clone().with_observed(self.router.observed());
        with.unwrap_or(profile)
    }

    /// Writes the observations so far into the profile in [`Engine::profile_file`], for engines that are built later with
    /// [`EngineBuilder::refine_across_runs`]; the last process to write wins. Placements of the profile that this engine does
    /// not have keep their observations. Returns the file; `None` if nothing is written: without that option, without a
    /// file, and if the file no longer holds the profile by which this engine decides.
    ///
    /// # Errors
    /// The errors of [`Profile::save`].
    #[cfg(not(target_arch = "wasm32"))]
    pub fn save_observed(&self) -> std::io::Result<Option<&Path>> {
        let Some(path) = self.profile_path.as_deref().filter(|_| self.keeps_observed && self.is_measured()) else {
            return Ok(None);
        };
        let unusable = |problem: ProfileProblem| std::io::Error::other(problem.to_string());
        let Ok(file) = Profile::load(path, &self.machine) else { return Ok(None) };
        let is_ours = |name: &str| self.places().iter().any(|place| place.name == name);
        let found = file.clone().restricted(|place| is_ours(&place.name)).and_then(|own| own.with_observed(Vec::new()));
        let own = self.router.profile().clone().with_observed(Vec::new()).map_err(unusable)?;
        if found != Ok(own) {
            return Ok(None);
        }
        let others = file.observed().iter().filter(|entry| !is_ours(&entry.place)).cloned();
        let observed = self.router.observed().into_iter().chain(others).collect();
        file.with_observed(observed).map_err(unusable)?.save(path)?;
        Ok(Some(path))
    }

    /// Whether the profile in use was measured on this machine.
    #[cfg(not(target_arch = "wasm32"))]
    fn is_measured(&self) -> bool {
        matches!(self.status, ProfileStatus::Loaded(_) | ProfileStatus::Kept | ProfileStatus::Calibrated)
    }

    /// The file that a calibration writes, if any.
    pub fn profile_file(&self) -> Option<&Path> {
        // A build without some GPU backends would remove their GPUs from the profile of builds that have them.
        let has_all = self.find_gpus.len() == KINDS.len();
        self.profile_path.as_deref().filter(|_| has_all || !self.is_shared)
    }

    /// The CPU placements.
    #[cfg(not(browser_gpu))]
    pub(crate) fn cpu_places(&self) -> &[Place] {
        &self.router.places()[..self.cpu.len()]
    }

    /// The precision with which products may read their operands.
    pub(crate) fn precision(&self) -> Precision {
        self.cpu.first().map_or(Precision::Contract, Simd::precision)
    }

    /// Operands on the host, with the placements of lost GPUs excluded.
    pub(crate) fn on_host(&self) -> Residency {
        let places = self.cpu.len()..self.router.places().len();
        let gone = places.filter(|place| self.gpus.get(place - self.cpu.len()).is_none_or(Gpu::is_gone));
        gone.fold(Residency::host(), Residency::barred)
    }

    /// Excludes the placements without a kernel for this operation; only custom operations can lack one.
    pub(crate) fn able(&self, residency: Residency, op: &Op) -> Residency {
        match op {
            Op::Custom(custom) => self.able_of(residency, custom),
            _ => residency,
        }
    }

    /// The same for a custom operation.
    pub(crate) fn able_of(&self, residency: Residency, custom: &Custom) -> Residency {
        (0..self.places().len()).filter(|&place| self.lacks(custom, place)).fold(residency, Residency::barred)
    }

    /// Whether a placement has no kernel for a custom operation.
    pub(crate) fn lacks(&self, custom: &Custom, place: usize) -> bool {
        match place.checked_sub(self.cpu.len()) {
            None => custom.cpu().is_none(),
            Some(position) => self.gpus.get(position).is_none_or(|gpu| !gpu.has_kernel(custom)),
        }
    }

    /// Decides where a problem runs. `op` names it in errors.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if every placement is excluded and none is forced.
    pub(crate) fn decide(&self, problem: &Problem, residency: &Residency, op: &'static str) -> Result<Decision<'_>> {
        let decision = self.router.decide(problem, residency);
        match decision.seconds() == f64::INFINITY && self.router.forced().is_none() {
            true => Err(Error::Unsupported { op, backend: "any placement of the engine" }),
            false => Ok(decision),
        }
    }

    /// Operands on the host, for work that only the CPU can do.
    pub(crate) fn on_cpu(&self) -> Residency {
        (self.cpu.len()..self.router.places().len()).fold(Residency::host(), Residency::barred)
    }

    /// The chosen GPU and its position; `None` if a CPU placement was chosen.
    pub(crate) fn gpu(&self, decision: &Decision<'_>) -> Option<(usize, &Gpu)> {
        let position = self.gpu_position(decision.index())?;
        Some((position, self.gpus.get(position)?))
    }

    /// The position of a GPU, from the position of its placement.
    pub(crate) fn gpu_position(&self, place: usize) -> Option<usize> {
        place.checked_sub(self.cpu.len()).filter(|&position| position < self.gpus.len())
    }

    /// The CPU handle of the chosen placement: an instruction set and a number of threads.
    pub(crate) fn simd(&self, decision: &Decision<'_>) -> Result<&Simd> {
        self.cpu.get(decision.index()).ok_or_else(|| Error::Unavailable {
            what: format!("placement {}", decision.place()),
            reason: "this build does not include its backend".into(),
        })
    }

    /// The number of devices of the placement with this name: several if it is a group. Each of them holds its own part of tensors
    /// [of parts](crate::Tensor::from_parts).
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no placement has this name.
    pub fn devices_of(&self, place: &str) -> Result<usize> {
        Ok(self.device_named(place)?.map_or(1, |position| self.gpus[position].devices()))
    }

    /// Opens and returns the adapters among the placements: for tensors that stay in their memory and batches of one device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for an adapter that was removed.
    #[cfg(native_gpu)]
    pub fn gpu_devices(&self) -> Result<Vec<kiln_wgpu::GpuDevice>> {
        self.gpus.iter().filter_map(Gpu::device_of::<kiln_wgpu::GpuDevice>).collect()
    }

    /// Opens and returns the CUDA devices among the placements: for tensors that stay in their memory and batches of one device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for a device that was removed.
    #[cfg(native_cuda)]
    pub fn cuda_devices(&self) -> Result<Vec<kiln_cuda::CudaDevice>> {
        self.gpus.iter().filter_map(Gpu::device_of::<kiln_cuda::CudaDevice>).collect()
    }

    /// Returns the predicted time of an operation on each placement, and the reason for the choice; displays as a table.
    ///
    /// # Errors
    /// The errors of the operation's shape rule; [`Error::Unsupported`] for a custom operation without a kernel here.
    pub fn explain(&self, op: impl Into<Op>, inputs: &[TensorType]) -> Result<Explanation> {
        let op = op.into();
        let problem = Problem::new(&op, inputs)?;
        let outputs = op.infer(inputs)?;
        let able = self.able(self.on_host(), &op);
        let residency = self.within_budget_of(able, inputs.iter().chain(outputs.iter()));
        let decision = self.decide(&problem, &residency, op.name())?;
        let explanation = Explanation::operation(&op, inputs, &problem, &decision);
        #[cfg(not(target_arch = "wasm32"))]
        if let Some(hybrid) = self.hybrid(&op, inputs, &decision) {
            let (segments, why) = self.explained(&hybrid);
            return Ok(explanation.shared(segments, why));
        }
        Ok(explanation)
    }

    /// The CPU placement of a step of a batch.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a step of another graph.
    pub(crate) fn place_on_cpu(&self, step: &Step, graph: &Graph) -> Result<usize> {
        if self.cpu.len() == 1 {
            return Ok(0);
        }
        let problem = match step {
            Step::Run { op, inputs, .. } => {
                Problem::new(op, &inputs.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<_>>>()?)?
            }
            Step::Fused(fused) => Problem::fused(fused, graph)?,
        };
        Ok(self.best_on_cpu(&problem))
    }

    /// The CPU placement that is predicted to be fastest, or the forced one. Parts of a batch may run on the CPU
    /// although a GPU is forced for everything else.
    fn best_on_cpu(&self, problem: &Problem) -> usize {
        let decision = self.router.decide(problem, &self.on_cpu());
        if decision.index() < self.cpu.len() { decision.index() } else { decision.unforced().min(self.cpu.len() - 1) }
    }

    /// Runs an operation of a batch on a CPU placement.
    pub(crate) fn run_step(
        &self,
        place: usize,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &mut [DataMut<'_>],
    ) -> Result<()> {
        Call::with(op, inputs, |call| {
            if !self.refine {
                return self.cpu[place].run_call(call, outputs);
            }
            let problem = Problem::of_call(call);
            self.run_observed(&problem, self.best_on_cpu(&problem), call, outputs)
        })
    }

    /// Runs an operation where it is predicted to run fastest: on one placement, or on the CPU and a GPU at once.
    #[cfg(not(browser_gpu))]
    fn run_fastest(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        let problem = Problem::of_call(call);
        let op = call.op();
        let able = self.able(self.on_host(), op);
        let mut residency = self.within_budget_of(able, call.types().iter().chain(call.outputs().iter()));
        let mut failed = None;
        let decision = loop {
            let decision = match self.decide(&problem, &residency, op.name()) {
                Ok(decision) => decision,
                Err(lacking) => return Err(failed.unwrap_or(lacking)),
            };
            let explained = || Explanation::operation(op, call.types(), &problem, &decision);
            #[cfg(not(target_arch = "wasm32"))]
            if failed.is_none()
                && let Some(hybrid) = self.hybrid(op, call.types(), &decision)
            {
                let plan = || {
                    let (segments, why) = self.explained(&hybrid);
                    explained().shared(segments, why).to_string()
                };
                self.budgeted.check(hybrid.longest(), || explained().question, plan);
                return self.run_hybrid(&hybrid, call, outputs);
            }
            self.budgeted.check(decision.seconds(), || explained().question, || explained().to_string());
            let Some((_, gpu)) = self.gpu(&decision) else { break decision };
            let start = self.refine.then(Instant::now);
            match wait(gpu.run_call(call, outputs, WAITING)) {
                // If a placement is forced, its error is returned.
                Err(error) if self.router.forced().is_none() && gpu.failed(&error) => {
                    residency = residency.barred(decision.index());
                    failed = Some(error);
                }
                done => {
                    if let (Some(start), Ok(())) = (start, &done) {
                        self.router.observe(&problem, &residency, decision.index(), start.elapsed().as_secs_f64());
                    }
                    return done;
                }
            }
        };
        self.run_on_cpu(&problem, &decision, call, outputs)
    }

    /// Runs an operation on the chosen CPU placement.
    pub(crate) fn run_on_cpu(
        &self,
        problem: &Problem,
        decision: &Decision<'_>,
        call: &Call<'_>,
        outputs: &mut [DataMut<'_>],
    ) -> Result<()> {
        let simd = self.simd(decision)?;
        if !self.refine {
            return simd.run_call(call, outputs);
        }
        self.run_observed(problem, decision.index(), call, outputs)
    }

    /// Runs an operation on a CPU placement and records its time.
    fn run_observed(
        &self,
        problem: &Problem,
        place: usize,
        call: &Call<'_>,
        outputs: &mut [DataMut<'_>],
    ) -> Result<()> {
        let start = Instant::now();
        let result = self.cpu[place].run_call(call, outputs);
        if result.is_ok() {
            self.router.observe(problem, &self.on_cpu(), place, start.elapsed().as_secs_f64());
        }
        result
    }
}

#[cfg(not(browser_gpu))]
impl Operations for Engine {
    /// Runs the operation where it is predicted to run fastest.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        match (&self.cpu[..], &self.gpus[..]) {
            ([only], []) => only.run_into(op, inputs, outputs)?,
            _ => Call::with(op, inputs, |call| self.run_fastest(call, outputs))?,
        }
        report_saturation(op, outputs);
        Ok(())
    }

    fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        match (&self.cpu[..], &self.gpus[..]) {
            ([only], []) => only.run_call(call, outputs)?,
            _ => self.run_fastest(call, outputs)?,
        }
        report_saturation(call.op(), outputs);
        Ok(())
    }
}

/// Logs, once in a process, that elements that were quantised were beyond what the format can express.
#[cfg(not(browser_gpu))]
fn report_saturation(op: &Op, outputs: &[DataMut<'_>]) {
    static LOGGED: Once = Once::new();
    let Op::Quantize(Quantize { format }) = op else { return };
    if LOGGED.is_completed() {
        return;
    }
    let Some(DataMut::Blocks(_, blocks)) = outputs.first() else { return };
    match format.saturated_blocks(blocks) {
        0 => {}
        count => LOGGED.call_once(|| {
            let name = format.name();
            tracing::warn!(
                "{count} blocks of {name} have elements too large for its f16 scales, which were reduced; this is logged once"
            );
        }),
    }
}
