//! The engine: what the machine has, and where each operation goes.

use std::path::{Path, PathBuf};

use kiln_ir::graph::{Fused, Graph};
use kiln_ir::op::{Op, types_of};
use kiln_ir::{DataMut, Error, Operand, Operations, Result, TensorType};
use kiln_route::{Backend, Decision, Explanation, Machine, Place, Problem, Profile, ProfileProblem, Residency, Router};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use kiln_route::{MAX_MEMORIES, MAX_PLACES};
use kiln_simd::{Isa, Simd};
use web_time::Instant;

use crate::batch::Holder;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use crate::calibrate::grid::{self, Probe};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use crate::calibrate::{self, CalibrationReport, Effort, Progress};
use crate::gpus::{self, Asked, Gpu};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use crate::gpus::{WAITING, wait};
use crate::{Absent, Batch, machine};

/// Runs operations where they are predicted to run fastest. They are the methods of [`Operations`]; in a browser with WebGPU,
/// where nothing can wait, `run_async` runs any of them.
///
/// Making one costs little: it looks at the processor and reads at most one small file. Threads start with the first
/// operation that uses them. An engine is shared freely between threads.
#[derive(Debug)]
pub struct Engine {
    pub(crate) router: Router,
    /// What runs at the first places of the router, in the same order.
    pub(crate) cpu: Vec<Simd>,
    /// What runs at the places after those.
    pub(crate) gpus: Vec<Gpu>,
    /// The kinds of GPU that a calibration may look for.
    pub(crate) find_gpus: Vec<Backend>,
    /// GPUs that the last calibration left out.
    pub(crate) left_out: Vec<Absent>,
    /// Why a browser has no GPU, where one was looked for.
    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    pub(crate) gpu_problem: Option<Error>,
    /// Where devices keep their compiled code, if anywhere.
    pub(crate) code_folder: Option<PathBuf>,
    pub(crate) machine: Machine,
    pub(crate) profile_path: Option<PathBuf>,
    pub(crate) status: ProfileStatus,
    pub(crate) refine: bool,
}

/// Where the constants of an engine come from.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum ProfileStatus {
    /// Measured on this machine earlier, and read from this file.
    Loaded(PathBuf),
    /// Measured on this machine earlier, and kept by the program.
    Kept,
    /// Measured by a calibration of this engine.
    Calibrated,
    /// Built in: the engine was made without a profile, or given one.
    BuiltIn,
    /// Built in: the profile could not be used. The next calibration makes another.
    Ignored(ProfileProblem),
}

impl std::fmt::Display for ProfileStatus {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Loaded(path) => write!(f, "measured on this machine earlier, {}", path.display()),
            Self::Kept => f.write_str("measured on this machine earlier, kept by the program"),
            Self::Calibrated => f.write_str("measured by this program"),
            Self::BuiltIn => f.write_str("built-in constants, or those that the program gave"),
            Self::Ignored(problem) => write!(f, "built-in constants until this machine is calibrated: {problem}"),
        }
    }
}

/// Where an engine keeps its profile.
#[derive(Debug, Clone)]
enum ProfileSource {
    UserCache,
    File(PathBuf),
    Given(Box<Profile>),
    Text(String),
    None,
}

impl ProfileSource {
    /// The folder that holds the profile, and what else is kept of this machine.
    fn folder(&self) -> Option<PathBuf> {
        match self {
            Self::UserCache => cache_folder(),
            Self::File(path) => path.parent().map(Path::to_owned),
            Self::Given(_) | Self::Text(_) | Self::None => None,
        }
    }
}

/// Settings of an [`Engine`].
#[derive(Debug, Clone)]
#[must_use]
pub struct EngineBuilder {
    isa: Option<Isa>,
    threads: Option<usize>,
    backends: Option<Vec<Backend>>,
    pub(crate) gpus: Vec<Asked>,
    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    pub(crate) software: bool,
    profile: ProfileSource,
    force: Option<String>,
    refine: bool,
}

impl EngineBuilder {
    /// Only this instruction set. Without it every one that the machine has is a place, or only the one that the
    /// environment variable `KILN_ISA` names.
    pub fn instruction_set(self, isa: Isa) -> Self {
        Self { isa: Some(isa), ..self }
    }

    /// At most this many threads.
    pub fn threads(self, threads: usize) -> Self {
        Self { threads: Some(threads), ..self }
    }

    /// This adapter is a place, too; may be called for several. Without it the GPUs that a calibration of this machine has
    /// measured are places. Nothing is opened before an operation is sent there. A browser has one adapter, which is opened
    /// with the engine.
    #[cfg(any(all(feature = "gpu", not(target_arch = "wasm32")), all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub fn adapter(mut self, choice: kiln_wgpu::AdapterChoice) -> Self {
        self.gpus.push(Asked::Adapter(choice));
        self
    }

    /// The device of CUDA with this number is a place, too; may be called for several. Without it, and without
    /// an adapter, the GPUs that a calibration of this machine has measured are places. Nothing is opened before an
    /// operation is sent there.
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    pub fn cuda_device(mut self, ordinal: u32) -> Self {
        self.gpus.push(Asked::Cuda(ordinal));
        self
    }

    /// The adapter of the browser is a place even where it is software, which the router then measures like any other.
    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    pub fn allow_software(self, allowed: bool) -> Self {
        Self { software: allowed, ..self }
    }

    /// Only these kinds of execution. The CPU is always one of them, as what remains when a GPU fails.
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

    /// Decides by a profile that the program has kept: what [`Profile::to_json`] gave. One that is damaged or of another
    /// machine is none, and [`Engine::profile_status`] says why.
    pub fn kept_profile(self, json: impl Into<String>) -> Self {
        Self { profile: ProfileSource::Text(json.into()), ..self }
    }

    /// Decides by built-in constants, and reads and writes no file.
    pub fn without_profile(self) -> Self {
        Self { profile: ProfileSource::None, ..self }
    }

    /// Sends everything to the place of this name, such as `avx2 x1`; [`Engine::places`] lists them.
    pub fn force(self, place: impl Into<String>) -> Self {
        Self { force: Some(place.into()), ..self }
    }

    /// Lets the time of every operation refine the predictions. Off by default: equal calls then run at equal places, and
    /// no clock is read.
    pub fn refine(self, refine: bool) -> Self {
        Self { refine, ..self }
    }

    /// Makes the engine.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when an instruction set, a kind of execution or a forced place is not there;
    /// [`Error::Parameter`] for no threads.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub fn build(self) -> Result<Engine> {
        let code_folder = self.profile.folder();
        let asked = self.gpus.iter().filter(|asked| self.allows(asked.kind()));
        let asked = asked.map(|asked| Gpu::chosen(asked, code_folder.as_deref())).collect::<Result<Vec<_>>>()?;
        self.with_gpus(asked)
    }

    /// Whether this kind of execution may be among the places.
    pub(crate) fn allows(&self, backend: Backend) -> bool {
        self.backends.as_ref().is_none_or(|allowed| allowed.contains(&backend))
    }

    /// The engine with the GPUs that were asked for.
    pub(crate) fn with_gpus(self, asked: Vec<Gpu>) -> Result<Engine> {
        // Also checks KILN_ISA, which has to be sound even where the builder overrules it.
        let preferred = Simd::new()?;
        if self.threads == Some(0) {
            return Err(Error::Parameter { op: "engine", reason: "threads is 0, at least 1 is needed".into() });
        }
        let from_environment = std::env::var_os("KILN_ISA").map(|_| preferred.isa());
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
                reason: "scalar code or SIMD has to be among them: it is what remains when a GPU fails".into(),
            });
        };
        let machine = machine::identify(best, preferred.threads());
        let threads = self.threads.unwrap_or(usize::MAX).min(preferred.threads());
        let cpu = machine::places(&isas, threads)?;
        // The file in the cache is for engines without limits, too: one that may use less of the machine reads it only.
        let whole = machine::places(&machine::instruction_sets(best), preferred.threads())?;
        let limited = whole.iter().any(|whole| !cpu.iter().any(|c| c.place.name == whole.place.name));
        let code_folder = self.profile.folder();
        let find_gpus = match asked.is_empty() {
            true => gpus::KINDS.iter().copied().filter(|&kind| self.allows(kind)).collect(),
            false => Vec::new(),
        };
        let (path, loaded) = load(self.profile, &machine, limited);
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
        let simds: Vec<Simd> = simds.map(|c| c.simd).collect();
        let gpus: Vec<Gpu> = match asked.is_empty() {
            false => asked,
            true => {
                let places = profile.places()[simds.len()..].iter();
                places.filter_map(|place| Gpu::of_place(place, code_folder.as_deref())).collect()
            }
        };
        let mut router = Router::new(profile);
        if let Some(name) = &self.force {
            router = forced(router, name)?;
        }
        if self.refine {
            router = router.with_history();
        }
        let refine = self.refine;
        Ok(Engine {
            router,
            cpu: simds,
            gpus,
            find_gpus,
            left_out: Vec::new(),
            #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
            gpu_problem: None,
            code_folder,
            machine,
            profile_path: path,
            status,
            refine,
        })
    }
}

/// The profile, or why built-in constants have to do; and the file to write a new one to.
fn load(
    source: ProfileSource,
    machine: &Machine,
    limited: bool,
) -> (Option<PathBuf>, Result<(Profile, ProfileStatus), ProfileStatus>) {
    let (path, written) = match source {
        ProfileSource::None => return (None, Err(ProfileStatus::BuiltIn)),
        ProfileSource::Given(profile) => return (None, Ok((*profile, ProfileStatus::BuiltIn))),
        ProfileSource::Text(text) => {
            let profile = Profile::from_json(&text, machine).map(|profile| (profile, ProfileStatus::Kept));
            return (None, profile.map_err(ProfileStatus::Ignored));
        }
        ProfileSource::File(path) => (path, true),
        ProfileSource::UserCache => match user_cache(machine) {
            Some(path) => (path, !limited),
            None => return (None, Err(ProfileStatus::BuiltIn)),
        },
    };
    let loaded = Profile::load(&path, machine)
        .map(|profile| (profile, ProfileStatus::Loaded(path.clone())))
        .map_err(ProfileStatus::Ignored);
    (written.then_some(path), loaded)
}

/// The places that an engine is to have.
struct Wanted<'a> {
    cpu: &'a [machine::CpuPlace],
    /// GPUs that were asked for.
    gpus: &'a [Gpu],
    /// The kinds of others that are welcome where the profile knows them.
    other_gpus: &'a [Backend],
}

impl Wanted<'_> {
    fn names(&self) -> impl Iterator<Item = &str> {
        self.cpu.iter().map(|c| c.place.name.as_str()).chain(self.gpus.iter().map(Gpu::name))
    }
}

/// What a profile says of these places. One from a file has to know all of them: an engine does not do without half of
/// its machine because another one that was limited measured less.
fn fitting(profile: Profile, wanted: &Wanted<'_>, status: &ProfileStatus) -> Result<Profile, ProfileStatus> {
    let profile = with_fewer_threads(profile, wanted.cpu)?;
    let known = |name: &str| profile.places().iter().any(|place| place.name == name);
    let all = matches!(status, ProfileStatus::Loaded(_) | ProfileStatus::Kept) || !wanted.gpus.is_empty();
    let missing = wanted.names().find(|name| !known(name));
    match missing {
        Some(place) if all || !wanted.cpu.iter().any(|c| known(&c.place.name)) => {
            return Err(ProfileStatus::Ignored(ProfileProblem::Incomplete { place: place.to_owned() }));
        }
        _ => {}
    }
    let other = |place: &Place| wanted.other_gpus.contains(&place.backend);
    let kept = profile.restricted(|place| other(place) || wanted.names().any(|name| name == place.name));
    let kept = kept.map_err(ProfileStatus::Ignored)?;
    let gpus = kept.places().iter().skip_while(|place| !place.backend.is_gpu());
    let order = gpus.clone().map(|place| place.name.as_str());
    if gpus.clone().any(|place| !place.backend.is_gpu())
        || !order.clone().take(wanted.gpus.len()).eq(wanted.gpus.iter().map(Gpu::name))
    {
        let reason = "GPUs do not stand behind the places of the CPU, in the order in which they are asked for";
        return Err(ProfileStatus::Ignored(ProfileProblem::Corrupt(reason.into())));
    }
    Ok(kept)
}

/// The profile with the places of the CPU whose number of threads lies between two that it knows of the same instruction set: an
/// engine may be limited to any number, and a calibration measures powers of two.
fn with_fewer_threads(mut profile: Profile, cpu: &[machine::CpuPlace]) -> Result<Profile, ProfileStatus> {
    for machine::CpuPlace { place, simd } in cpu {
        let among =
            |threads: usize| profile.places().iter().any(|known| known.name == machine::name(simd.isa(), threads));
        if among(place.threads) {
            continue;
        }
        let fewer = (1..place.threads).rev().find(|&threads| among(threads));
        let more = profile.places().iter().map(|known| known.threads).filter(|&n| n > place.threads && among(n)).min();
        if let Some((fewer, more)) = fewer.zip(more) {
            let [fewer, more] = [fewer, more].map(|threads| machine::name(simd.isa(), threads));
            profile = profile.with_place_between(place.clone(), &fewer, &more).map_err(ProfileStatus::Ignored)?;
        }
    }
    Ok(profile)
}

/// The file in the user's cache directory; its name tells machines apart that share a home directory.
#[cfg(not(target_arch = "wasm32"))]
fn user_cache(machine: &Machine) -> Option<PathBuf> {
    // FNV-1a: stable between versions of the compiler, which the hasher of the standard library is not.
    let hash = machine
        .to_string()
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |h, b| (h ^ u64::from(b)).wrapping_mul(0x100_0000_01b3));
    Some(cache_folder()?.join(format!("profile-{}-{hash:016x}.json", machine.instruction_set)))
}

/// kiln's folder in the user's cache directory.
#[cfg(not(target_arch = "wasm32"))]
fn cache_folder() -> Option<PathBuf> {
    directories::ProjectDirs::from("", "", "kiln").map(|directories| directories.cache_dir().to_owned())
}

/// A page has no files: its profile is given to the builder.
#[cfg(target_arch = "wasm32")]
fn user_cache(_: &Machine) -> Option<PathBuf> {
    cache_folder()
}

#[cfg(target_arch = "wasm32")]
fn cache_folder() -> Option<PathBuf> {
    None
}

fn assumed(machine: &Machine, cpu: &[machine::CpuPlace], gpus: &[Gpu]) -> Result<Profile> {
    let mut places: Vec<Place> = cpu.iter().map(|c| c.place.clone()).collect();
    let mut links = Vec::new();
    for (position, gpu) in gpus.iter().enumerate() {
        let (place, link) = gpus::assumed(gpu, position);
        links.push((place.memory, link));
        places.push(place);
    }
    let profile = Profile::new(machine.clone(), places).and_then(|profile| gpus::linked(profile, links));
    profile.map_err(|problem| Error::Unavailable { what: "the built-in profile".into(), reason: problem.to_string() })
}

pub(crate) fn forced(router: Router, name: &str) -> Result<Router> {
    let Some(index) = router.places().iter().position(|place| place.name == name) else {
        let names: Vec<&str> = router.places().iter().map(|place| place.name.as_str()).collect();
        return Err(Error::Unavailable {
            what: format!("place {name:?}"),
            reason: format!("the places are {}", names.join(", ")),
        });
    };
    router.with_force(index)
}

impl Engine {
    /// An engine with everything that the machine has, and the profile of an earlier calibration if there is one.
    ///
    /// # Errors
    /// [`Error::Unavailable`] when the environment variable `KILN_ISA` names an instruction set that is unknown or that
    /// the machine lacks.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub fn new() -> Result<Self> {
        Self::builder().build()
    }

    /// An engine with settings.
    pub fn builder() -> EngineBuilder {
        EngineBuilder {
            isa: None,
            threads: None,
            backends: None,
            gpus: Vec::new(),
            #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
            software: false,
            profile: ProfileSource::UserCache,
            force: None,
            refine: false,
        }
    }

    /// Where operations can run, in the order of their names in tables.
    pub fn places(&self) -> &[Place] {
        self.router.places()
    }

    /// The machine, as profiles name it.
    pub fn machine(&self) -> &Machine {
        &self.machine
    }

    /// What decides.
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Where the constants that decide come from.
    pub fn profile_status(&self) -> &ProfileStatus {
        &self.status
    }

    /// The file that a calibration writes, if any.
    pub fn profile_file(&self) -> Option<&Path> {
        self.profile_path.as_deref()
    }

    /// The places on the CPU.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub(crate) fn cpu_places(&self) -> &[Place] {
        &self.router.places()[..self.cpu.len()]
    }

    /// Operands on the host, and the places of GPUs that are gone barred.
    pub(crate) fn on_host(&self) -> Residency {
        let places = self.cpu.len()..self.router.places().len();
        let gone = places.filter(|place| self.gpus.get(place - self.cpu.len()).is_none_or(Gpu::is_gone));
        gone.fold(Residency::host(), Residency::barred)
    }

    /// Operands on the host, for work that only the CPU can take.
    pub(crate) fn on_cpu(&self) -> Residency {
        (self.cpu.len()..self.router.places().len()).fold(Residency::host(), Residency::barred)
    }

    /// The GPU that was chosen, if it was one, and its position.
    pub(crate) fn gpu(&self, decision: &Decision<'_>) -> Option<(usize, &Gpu)> {
        let position = decision.index().checked_sub(self.cpu.len())?;
        Some((position, self.gpus.get(position)?))
    }

    /// What runs at a place: an instruction set and a number of threads.
    pub(crate) fn simd(&self, decision: &Decision<'_>) -> Result<&Simd> {
        self.cpu.get(decision.index()).ok_or_else(|| Error::Unavailable {
            what: format!("place {}", decision.place()),
            reason: "no backend of this build runs there".into(),
        })
    }

    /// The adapters among the places, each opened if it was not: for tensors that stay there and batches of one device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for one that is not there any more.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub fn gpu_devices(&self) -> Result<Vec<kiln_wgpu::GpuDevice>> {
        self.gpus.iter().filter_map(Gpu::device_of::<kiln_wgpu::GpuDevice>).collect()
    }

    /// The devices of CUDA among the places, each opened if it was not: for tensors that stay there and batches of one
    /// device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] for one that is not there any more.
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    pub fn cuda_devices(&self) -> Result<Vec<kiln_cuda::CudaDevice>> {
        self.gpus.iter().filter_map(Gpu::device_of::<kiln_cuda::CudaDevice>).collect()
    }

    /// The predicted time of an operation on each place, and why the chosen one is chosen; displays as a table.
    ///
    /// # Errors
    /// What the shape rule of the operation says.
    pub fn explain(&self, op: impl Into<Op>, inputs: &[TensorType]) -> Result<Explanation> {
        let op = op.into();
        let problem = Problem::new(&op, inputs)?;
        let decision = self.router.decide(&problem, &self.on_host());
        Ok(Explanation::operation(&op, inputs, &problem, &decision))
    }

    /// Measures this machine, decides by the result from now on, and keeps it in the user's cache directory. Takes about a
    /// quarter of a minute with [`Effort::Quick`], during which the machine should have nothing else to do.
    ///
    /// Every GPU that is no software is measured and becomes a place, or those that the engine was asked for. One that fails is
    /// left out: the report names it, and [`Engine::absent`] does. That there is no GPU at all is told once through `tracing`.
    ///
    /// An engine that was limited to some of the threads, instruction sets or backends measures what it may use and does
    /// not write to the user's cache directory, whose profile is for engines without limits, too.
    ///
    /// # Errors
    /// Errors of the operations measured, of which there should be none; [`Error::Unavailable`] where the GPU that everything
    /// is sent to fails. The engine is as it was then. A file that cannot be written is none: the report tells.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub fn calibrate(&mut self, effort: Effort, progress: &mut dyn FnMut(Progress<'_>)) -> Result<CalibrationReport> {
        self.calibrate_by(grid::calibration()?, effort, progress)
    }

    /// As [`Engine::calibrate`], by these problems.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub(crate) fn calibrate_by(
        &mut self,
        probes: Vec<Probe>,
        effort: Effort,
        progress: &mut dyn FnMut(Progress<'_>),
    ) -> Result<CalibrationReport> {
        let found = self.further_gpus();
        let mut all: Vec<&Gpu> = self.gpus.iter().chain(&found).collect();
        if !found.is_empty() {
            all.sort_by_key(|gpu| gpu.kind());
        }
        let room = (MAX_MEMORIES - 1).min(MAX_PLACES.saturating_sub(self.cpu.len()));
        if all.len() > room {
            tracing::warn!("of {} GPUs {room} become places: a profile has room for no more", all.len());
            let kinds: Vec<Backend> = all.iter().map(|gpu| gpu.kind()).collect();
            let mut kept = gpus::fitting(&kinds, room).into_iter();
            all.retain(|_| kept.next().unwrap_or(false));
        }
        let (profile, mut report) = calibrate::full::run(self, &all, probes, effort, progress)?;
        if let Some(path) = &self.profile_path {
            report.saved = Some(profile.save(path).map(|()| path.clone()).map_err(|e| e.to_string()));
            if let Some(Err(reason)) = &report.saved {
                tracing::warn!("the profile could not be written to {}: {reason}", path.display());
            }
        }
        let mut router = Router::new(profile);
        if let Some(place) = self.router.forced() {
            router = forced(router, &self.places()[place].name)?;
        }
        if self.refine {
            router = router.with_history();
        }
        let mut gpus: Vec<Gpu> = std::mem::take(&mut self.gpus).into_iter().chain(found).collect();
        let mut behind = |place: &Place| {
            let position = gpus.iter().position(|gpu| gpu.name() == place.name)?;
            Some(gpus.swap_remove(position))
        };
        self.gpus = router.places()[self.cpu.len()..].iter().filter_map(&mut behind).collect();
        self.left_out.clone_from(&report.left_out);
        self.router = router;
        self.status = ProfileStatus::Calibrated;
        Ok(report)
    }

    /// GPUs of this machine that are no places yet, where the engine was not asked for certain ones.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    fn further_gpus(&self) -> Vec<Gpu> {
        let folder = self.code_folder.as_deref();
        let found = self.find_gpus.iter().flat_map(|&kind| Gpu::hardware(kind, folder).unwrap_or_default());
        found.filter(|gpu| !self.gpus.iter().any(|known| known.name() == gpu.name())).collect()
    }

    /// An empty batch, to record operations that run together.
    pub fn batch(&self) -> Batch<'_> {
        Batch::new(Holder::Borrowed(self))
    }

    /// Runs a step of a batch that no GPU took as a whole.
    pub(crate) fn run_step(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        if let [only] = &self.cpu[..] {
            return only.run_into(op, inputs, outputs);
        }
        let problem = Problem::new(op, &types_of(inputs))?;
        self.run_on_cpu(&problem, &self.router.decide(&problem, &self.on_cpu()), op, inputs, outputs)
    }

    /// Runs an operation at the place of the CPU that was chosen.
    pub(crate) fn run_on_cpu(
        &self,
        problem: &Problem,
        decision: &Decision<'_>,
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &mut [DataMut<'_>],
    ) -> Result<()> {
        let simd = self.simd(decision)?;
        if !self.refine {
            return simd.run_into(op, inputs, outputs);
        }
        let start = Instant::now();
        let result = simd.run_into(op, inputs, outputs);
        if result.is_ok() {
            self.router.observe(problem, decision.index(), start.elapsed().as_secs_f64());
        }
        result
    }

    /// Runs a fused step of a schedule.
    pub(crate) fn run_fused(
        &self,
        fused: &Fused,
        graph: &Graph,
        inputs: &[&[f32]],
        outputs: &mut [&mut [f32]],
    ) -> Result<()> {
        let problem = Problem::fused(fused, graph)?;
        let decision = self.router.decide(&problem, &self.on_cpu());
        self.simd(&decision)?.run_fused(fused, inputs, outputs)
    }
}

#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
impl Operations for Engine {
    /// As [`Operations::run_into`], where it is predicted to run fastest.
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        if let ([only], []) = (&self.cpu[..], &self.gpus[..]) {
            return only.run_into(op, inputs, outputs);
        }
        let problem = Problem::new(op, &types_of(inputs))?;
        let mut residency = self.on_host();
        let decision = loop {
            let decision = self.router.decide(&problem, &residency);
            let Some((_, gpu)) = self.gpu(&decision) else { break decision };
            match wait(gpu.run_into(op, inputs, outputs, WAITING)) {
                // Where a place is forced its error is the answer.
                Err(error) if self.router.forced().is_none() && gpu.failed(&error) => {
                    residency = residency.barred(decision.index());
                }
                // Its time is not observed: most of it may be the way there and back.
                done => return done,
            }
        };
        self.run_on_cpu(&problem, &decision, op, inputs, outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn a_number_of_threads_that_was_not_measured_lies_between_those_that_were() {
        let of_threads = |threads: usize| machine::places(&Isa::available().collect::<Vec<_>>(), threads).unwrap();
        let names = |places: Vec<Place>| places.into_iter().map(|place| place.name).collect::<Vec<_>>();
        let whole: Vec<Place> = of_threads(4).into_iter().map(|cpu| cpu.place).collect();
        let profile = Profile::new(machine::identify(Isa::best(), 4), whole.clone()).unwrap();
        let limited = with_fewer_threads(profile.clone(), &of_threads(3)).unwrap();
        let mut expected = names(whole);
        expected.insert(expected.len() - 1, machine::name(Isa::best(), 3));
        assert_eq!(names(limited.places().to_vec()), expected);
        // What was measured stays as it is, and what lies beyond it is not made up.
        assert_eq!(with_fewer_threads(profile.clone(), &of_threads(2)).unwrap(), profile);
        assert_eq!(with_fewer_threads(profile.clone(), &of_threads(8)).unwrap(), profile);
    }
}
