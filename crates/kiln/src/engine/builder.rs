//! The builder of engines.

use std::path::PathBuf;

use kiln_ir::{Error, Precision, Result};
use kiln_route::{Backend, Profile, ProfileProblem, Router};
use kiln_simd::{Isa, Simd};

use super::profile::{ProfileSource, Wanted, assumed, fitting, load};
use super::{Budget, Budgeted, Engine, ProfileStatus, forced, refining};
use crate::gpus::{self, Asked, Gpu, Opening};
use crate::machine;

/// Settings of an [`Engine`].
#[derive(Debug, Clone)]
#[must_use]
pub struct EngineBuilder {
    isa: Option<Isa>,
    threads: Option<usize>,
    backends: Option<Vec<Backend>>,
    pub(crate) gpus: Vec<Asked>,
    #[cfg(browser_gpu)]
    pub(crate) software: bool,
    profile: ProfileSource,
    force: Option<String>,
    refine: bool,
    keeps_observed: bool,
    times_kernels: bool,
    precision: Precision,
    pub(crate) budget: Budget,
}

impl EngineBuilder {
    /// Uses only this instruction set. Otherwise each instruction set of the machine is a placement, or only the one that the
    /// environment variable `KILN_ISA` names.
    pub fn instruction_set(self, isa: Isa) -> Self {
        Self { isa: Some(isa), ..self }
    }

    /// Uses at most this many threads.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// Adds this adapter as a placement; may be called for several. Otherwise the GPUs that a calibration of this machine has
    /// measured are placements. An adapter is opened by the first operation that is sent to it. A browser has one adapter, which is
    /// opened with the engine.
    #[cfg(any(native_gpu, browser_gpu))]
    pub fn adapter(mut self, choice: kiln_wgpu::AdapterChoice) -> Self {
        self.gpus.push(Asked::Adapter(choice));
        self
    }

    /// Adds these adapters as one placement, a group: each adapter runs every step, on its own part of tensors
    /// [of parts](crate::Tensor::from_parts), and on the whole of other tensors. Sums over the adapters go through the host. The
    /// adapters must be alike.
    #[cfg(native_gpu)]
    pub fn adapter_group(mut self, choices: &[kiln_wgpu::AdapterChoice]) -> Self {
        self.gpus.push(Asked::Adapters(choices.to_vec()));
        self
    }

    /// Adds the CUDA device with this ordinal as a placement; may be called for several. Without it, and without
    /// an adapter, the GPUs that a calibration of this machine has measured are placements. A device is opened by the first
    /// operation that is sent to it.
    #[cfg(native_cuda)]
    pub fn cuda_device(mut self, ordinal: u32) -> Self {
        self.gpus.push(Asked::Cuda(vec![ordinal]));
        self
    }

    /// Adds the CUDA devices with these ordinals as one placement, a group: each device runs every step, on its own part of tensors
    /// [of parts](crate::Tensor::from_parts), and on the whole of other tensors. The devices must be alike. A single ordinal adds that
    /// device.
    #[cfg(native_cuda)]
    pub fn cuda_group(mut self, ordinals: &[u32]) -> Self {
        self.gpus.push(Asked::Cuda(ordinals.to_vec()));
        self
    }

    /// Sets whether the adapter of the browser is a placement even if it is software. It is then measured like any other.
    #[cfg(browser_gpu)]
    pub fn allow_software(self, allowed: bool) -> Self {
        Self { software: allowed, ..self }
    }

    /// Uses only these backends. Scalar code or SIMD must be among them, because they run the work when a GPU fails.
    pub fn backends(self, backends: &[Backend]) -> Self {
        Self { backends: Some(backends.to_vec()), ..self }
    }

    /// Keeps the profile in this file instead of the user's cache directory, and the compiled code of GPUs beside it.
    pub fn profile_file(self, path: impl Into<PathBuf>) -> Self {
        Self { profile: ProfileSource::File(path.into()), ..self }
    }

    /// Decides by this profile, and reads and writes no file.
    pub fn profile(self, profile: Profile) -> Self {
        Self { profile: ProfileSource::Given(Box::new(profile)), ..self }
    }

    /// Decides by a profile that the program has kept: the output of [`Profile::to_json`]. A damaged or foreign profile is
    /// ignored; [`Engine::profile_status`] says why.
    pub fn kept_profile(self, json: impl Into<String>) -> Self {
        Self { profile: ProfileSource::Text(json.into()), ..self }
    }

    /// Decides by built-in constants, and reads and writes no file.
    pub fn without_profile(self) -> Self {
        Self { profile: ProfileSource::None, ..self }
    }

    /// Sends everything to the placement with this name, such as `avx2 x1`; [`Engine::places`] lists them.
    pub fn force(self, place: impl Into<String>) -> Self {
        Self { force: Some(place.into()), ..self }
    }

    /// Lets the times of calls from the host, and of steps of batches on the CPU, refine the predictions. Off by default: equal calls
    /// then run on equal placements, and no clock is read.
    pub fn refine(self, refine: bool) -> Self {
        Self { refine, ..self }
    }

    /// [`EngineBuilder::refine`], starting from the observations in the profile, which [`Engine::save_observed`] writes and
    /// [`Engine::observed_profile`] returns. Off by default, because decisions then depend on the observations of earlier processes.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn refine_across_runs(self, keep: bool) -> Self {
        Self { keeps_observed: keep, ..self }
    }

    /// Lets GPUs time each kernel of the executions of batches, for [`Batch::profile`](crate::Batch::profile). Kernels then run one by
    /// one, which takes longer. A GPU without a clock is unavailable. Off by default.
    #[cfg(not(browser_gpu))]
    pub fn time_kernels(self, times: bool) -> Self {
        Self { times_kernels: times, ..self }
    }

    /// Sets the precision with which matrix products may read their operands. By default results keep the contract of each operation;
    /// lower precisions are faster where a device has units for them: with CUDA, and for quantised weights on GPUs through wgpu with
    /// cooperative matrices, and with `Int8` on CPUs.
    /// [`Precision`] has the bounds.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Limits the time and memory of each operation and each batch. By default neither is limited.
    pub fn budget(self, budget: Budget) -> Self {
        Self { budget, ..self }
    }

    /// Makes the engine.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if an instruction set, a backend or a forced placement is unavailable;
    /// [`Error::Parameter`] for zero threads.
    #[cfg(not(browser_gpu))]
    pub fn build(self) -> Result<Engine> {
        let opening = self.opening();
        let asked = self.gpus.iter().filter(|asked| self.allows(asked.kind()));
        let asked = asked.map(|asked| Gpu::chosen(asked, &opening)).collect::<Result<Vec<_>>>()?;
        self.with_gpus(asked)
    }

    fn opening(&self) -> Opening {
        Opening { code_folder: self.profile.folder(), times_kernels: self.times_kernels, precision: self.precision }
    }

    /// Whether placements of this backend are allowed.
    pub(crate) fn allows(&self, backend: Backend) -> bool {
        self.backends.as_ref().is_none_or(|allowed| allowed.contains(&backend))
    }

    /// Builds the engine with the GPUs that were requested.
    pub(crate) fn with_gpus(self, asked: Vec<Gpu>) -> Result<Engine> {
        // Also validates KILN_ISA, which must be valid even if the builder overrides it.
        let preferred = Simd::new()?;
        if self.threads == Some(0) {
            return Err(Error::Parameter { op: "engine", reason: "threads is 0, at least 1 is needed".into() });
        }
        let from_environment = Isa::named().map(|_| preferred.isa());
        let isas: Vec<Isa> = match self.isa.or(from_environment) {
            Some(isa) => vec![isa],
            None => Isa::available().collect(),
        };
        let isas: Vec<Isa> = isas
            .into_iter()
            .filter(|&isa| self.allows(if isa == Isa::Scalar { Backend::Scalar } else { Backend::Simd }))
            .collect();
        let Some(&best) = isas.last() else {
            return Err(Error::Unavailable {
                what: format!("backends {:?}", self.backends.unwrap_or_default()),
                reason: "none of them runs the instruction sets of the engine; add `Backend::Scalar` or `Backend::Simd`, which run \
                         the work when a GPU fails"
                    .into(),
            });
        };
        let machine = machine::identify(best, preferred.threads());
        let threads = self.threads.unwrap_or(usize::MAX).min(preferred.threads());
        let cpu = machine::places(&isas, threads)?;
        // The file in the cache serves engines without limits too: an engine that may use less of the machine only
        // reads it.
        let whole = machine::places(&machine::instruction_sets(best), preferred.threads())?;
        let limited = whole.iter().any(|whole| !cpu.iter().any(|c| c.place.name == whole.place.name));
        let opening = self.opening();
        let find_gpus: Vec<Backend> = match asked.is_empty() {
            true => gpus::KINDS.iter().copied().filter(|&kind| self.allows(kind)).collect(),
            false => Vec::new(),
        };
        let is_shared = matches!(self.profile, ProfileSource::UserCache);
        let (path, loaded) = load(self.profile, &machine, self.precision, limited);
        let wanted = Wanted { cpu: &cpu, gpus: &asked, other_gpus: &find_gpus };
        let (profile, status) =
            match loaded.and_then(|(profile, status)| Ok((fitting(profile, &wanted, &status)?, status))) {
                Ok((profile, status)) => (Some(profile), status),
                Err(status) => (None, status),
            };
        match &status {
            ProfileStatus::Ignored(problem @ ProfileProblem::Missing(_)) => tracing::debug!("{problem}"),
            ProfileStatus::Ignored(problem) => {
                tracing::warn!("{problem}; built-in constants decide until this machine is calibrated");
            }
            _ => {}
        }
        let profile = match profile {
            Some(profile) => profile,
            None => assumed(&machine, &cpu, &asked)?,
        };
        let simds = profile.places().iter().filter_map(|p| cpu.iter().find(|c| c.place.name == p.name));
        let simds: Vec<Simd> = simds.map(|c| c.simd.with_precision(self.precision)).collect();
        let gpus: Vec<Gpu> = match asked.is_empty() {
            false => asked,
            true => {
                let places = profile.places()[simds.len()..].iter();
                places.filter_map(|place| Gpu::of_place(place, &opening)).collect()
            }
        };
        let mut router = Router::new(profile).with_precision(self.precision);
        if let Some(name) = &self.force {
            router = forced(router, name)?;
        }
        let router = refining(router, self.refine, self.keeps_observed);
        let refine = router.refines();
        let budgeted = Budgeted::new(self.budget);
        Ok(Engine {
            router,
            cpu: simds,
            gpus,
            find_gpus,
            left_out: Vec::new(),
            #[cfg(browser_gpu)]
            gpu_problem: None,
            opening,
            machine,
            profile_path: path,
            is_shared,
            status,
            refine,
            keeps_observed: self.keeps_observed,
            budgeted,
        })
    }
}

impl Engine {
    /// Returns a builder, to make an engine with settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            isa: None,
            threads: None,
            backends: None,
            gpus: Vec::new(),
            #[cfg(browser_gpu)]
            software: false,
            profile: ProfileSource::UserCache,
            force: None,
            refine: false,
            keeps_observed: false,
            times_kernels: false,
            precision: Precision::Contract,
            budget: Budget::default(),
        }
    }
}
