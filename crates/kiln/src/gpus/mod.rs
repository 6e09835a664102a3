//! GPUs as placements of an engine. They are found, measured, used and excluded in the same way for every backend.
// A build without GPU backends has no GPUs.
#![cfg_attr(not(any(native_gpu, native_cuda, browser_gpu)), allow(unused))]
// A browser opens its one adapter together with the engine, and measures it with other clocks.
#![cfg_attr(browser_gpu, allow(dead_code))]

#[cfg(browser_gpu)]
mod browser_times;
#[cfg(all(test, native_gpu))]
mod calibrated;
mod device;
#[cfg(test)]
mod failing;
mod fault;
mod find;
#[cfg(test)]
pub(crate) mod scripted;
#[cfg(test)]
mod sharing;
#[cfg(not(browser_gpu))]
mod times;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};

use device::{Device, On};
pub(crate) use device::{Resident, Runner};
pub use device::{WAITING, wait};
pub(crate) use fault::Fault;
use kiln_device::MemoryUse;
use kiln_device::waiting::Waiting;
use kiln_ir::graph::{Graph, TensorId};
use kiln_ir::op::{Call, Custom, Op};
use kiln_ir::{Data, DataMut, Error, Operand, Precision, Result, TensorType};
use kiln_route::{Backend, Link, MAX_MEMORIES, Memory, Place, Profile, ProfileProblem, Roofline};
/// Lets the browser render its page and handle events.
#[cfg(browser_gpu)]
pub(crate) use kiln_wgpu::runtime::pause;
#[cfg(not(browser_gpu))]
pub(crate) use times::Launch;

/// The GPU backends of this build. If placements are predicted to be equally fast, the backend listed later is chosen.
pub(crate) const KINDS: &[Backend] = &[
    #[cfg(native_gpu)]
    Backend::Gpu,
    #[cfg(native_cuda)]
    Backend::Cuda,
];

/// Whether an engine of this build can have GPUs. A constant, so that builds without GPUs omit the code for them.
pub(crate) const POSSIBLE: bool = cfg!(any(test, native_gpu, native_cuda, browser_gpu));

/// A GPU that an engine is asked to have.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    #[cfg(any(native_gpu, browser_gpu))]
    Adapter(kiln_wgpu::AdapterChoice),
    /// The adapters of a group.
    #[cfg(native_gpu)]
    Adapters(Vec<kiln_wgpu::AdapterChoice>),
    /// The ordinal of a CUDA device, or those of a group.
    #[cfg(native_cuda)]
    Cuda(Vec<u32>),
}

#[cfg(not(browser_gpu))]
impl Asked {
    /// The backend of the GPU.
    pub(crate) fn kind(&self) -> Backend {
        match *self {
            #[cfg(any(native_gpu, browser_gpu))]
            Self::Adapter(_) => Backend::Gpu,
            #[cfg(native_gpu)]
            Self::Adapters(_) => Backend::Gpu,
            #[cfg(native_cuda)]
            Self::Cuda(_) => Backend::Cuda,
        }
    }
}

/// The memory of a GPU, by its position among the engine's GPUs.
pub(crate) fn memory(position: usize) -> Memory {
    // More GPUs than a profile has room for are refused there.
    Memory::new(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

/// The position of the GPU that a memory belongs to; `None` for the host.
pub(crate) fn position(memory: Memory) -> Option<usize> {
    (0..MAX_MEMORIES).find(|&position| self::memory(position) == memory)
}

/// Which GPUs of these backends are kept if there is room for this many: the first of each backend before the second of
/// any.
#[cfg(not(browser_gpu))]
pub(crate) fn fitting(kinds: &[Backend], room: usize) -> Vec<bool> {
    let number = |i: usize| kinds[..i].iter().filter(|&&kind| kind == kinds[i]).count();
    let before = |i: usize| (0..kinds.len()).filter(|&j| (number(j), j) < (number(i), i)).count();
    (0..kinds.len()).map(|i| before(i) < room).collect()
}

/// A placement for a GPU without measurements: cautious constants.
pub(crate) fn assumed(gpu: &Gpu, position: usize) -> (Place, Link) {
    let place = Place {
        name: gpu.name().to_owned(),
        backend: gpu.kind(),
        // It occupies no CPU thread.
        threads: 0,
        memory: memory(position),
        launch: 0.0,
        queued: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 100e-6, levels: vec![(u64::MAX, 100e9)], peak: 1e12 },
    };
    (place, Link::linear((50e-6, 5e9), (100e-6, 3e9)))
}

/// The profile with these links to the memories of devices.
pub(crate) fn linked(
    profile: Profile,
    links: impl IntoIterator<Item = (Memory, Link)>,
) -> Result<Profile, ProfileProblem> {
    links.into_iter().try_fold(profile, |profile, (memory, link)| profile.with_link(memory, link))
}

/// A GPU of an engine, opened by the first operation that is sent to it. A clone refers to the same GPU.
#[derive(Debug, Clone)]
pub(crate) struct Gpu(Arc<State>);

#[derive(Debug)]
struct State {
    /// The name of its placement.
    name: String,
    kind: Backend,
    device: Box<dyn Device>,
    /// The error after which nothing more is sent to it; set once.
    gone: OnceLock<Error>,
    /// Whether it has been logged that the GPU refused something, and that it lacked an operation.
    logged_refused: AtomicBool,
    logged_lacking: AtomicBool,
}

/// The options for opening the devices of an engine.
#[derive(Debug, Clone, Default)]
pub(crate) struct Opening {
    /// The folder of compiled code.
    pub(crate) code_folder: Option<PathBuf>,
    /// Whether executions time each kernel.
    pub(crate) times_kernels: bool,
    /// The precision with which products may read their operands.
    #[cfg_attr(not(any(native_gpu, native_cuda)), allow(dead_code))]
    pub(crate) precision: Precision,
}

impl Gpu {
    fn new(name: String, kind: Backend, device: impl Device) -> Self {
        let no = || AtomicBool::new(false);
        let (device, gone) = (Box::new(device), OnceLock::new());
        Self(Arc::new(State { name, kind, device, gone, logged_refused: no(), logged_lacking: no() }))
    }

    /// Whether both handles refer to the same GPU.
    pub(crate) fn is(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }

    pub(crate) fn name(&self) -> &str {
        &self.0.name
    }

    pub(crate) fn kind(&self) -> Backend {
        self.0.kind
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone().is_some()
    }

    /// The error after which nothing more is sent to it, if any.
    pub(crate) fn gone(&self) -> Option<&Error> {
        self.0.gone.get()
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is missing.
    pub(crate) fn open(&self) -> Result<()> {
        wait(self.0.device.open(WAITING))
    }

    /// Whether it has a kernel for a custom operation. It has one for every built-in operation.
    pub(crate) fn has_kernel(&self, custom: &Custom) -> bool {
        self.0.device.has_kernel(custom)
    }

    /// The number of devices: several if it is a group.
    pub(crate) fn devices(&self) -> usize {
        self.0.device.devices()
    }

    /// The bytes that computing these tensors takes in addition to inputs and states.
    ///
    /// # Errors
    /// The errors of the graph, and [`Error::Unavailable`].
    pub(crate) async fn planned_bytes(&self, graph: &Graph, wanted: &[TensorId], waiting: Waiting) -> Result<u64> {
        self.0.device.planned_bytes(graph, wanted, waiting).await
    }

    /// The free bytes of device memory, if the driver reports them, and the granularity of allocations.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn memory(&self, waiting: Waiting) -> Result<(Option<u64>, u64)> {
        self.0.device.memory(waiting).await
    }

    /// The device memory in use; `None` before it is opened.
    pub(crate) fn memory_use(&self) -> Option<MemoryUse> {
        self.0.device.memory_use()
    }

    /// The open device of a driver; `None` for another driver.
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) fn device_of<D: kiln_device::Driver>(&self) -> Option<Result<D>> {
        let device: &dyn std::any::Any = &*self.0.device;
        device.downcast_ref::<On<D>>().map(On::device)
    }

    /// The device of a browser.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it is not a device of wgpu.
    #[cfg(browser_gpu)]
    pub(crate) async fn device(&self) -> Result<kiln_wgpu::GpuDevice> {
        let device: &dyn std::any::Any = &*self.0.device;
        match device.downcast_ref::<On<kiln_wgpu::GpuDevice>>() {
            Some(on) => on.device_waiting(WAITING).await,
            None => Err(Error::Unavailable { what: self.name().to_owned(), reason: "not a wgpu device".into() }),
        }
    }

    /// Runs an operation from host to host.
    ///
    /// # Errors
    /// The errors of [`kiln_ir::Operations::run_into`], and errors of the device.
    pub(crate) async fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>], waiting: Waiting) -> Result<()> {
        self.0.device.run_call(call, outputs, waiting).await
    }

    /// Copies an operand to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn upload(&self, operand: &Operand<'_>, waiting: Waiting) -> Result<Resident> {
        self.0.device.upload(operand, waiting).await
    }

    /// Copies an operand to each device of a group.
    ///
    /// # Errors
    /// Errors of the device; [`Error::Arity`] for another number of devices.
    pub(crate) async fn upload_parts(&self, parts: &[Operand<'_>], waiting: Waiting) -> Result<Resident> {
        self.0.device.upload_parts(parts, waiting).await
    }

    /// Creates a state with these elements, or with zeros.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn state(&self, from: Option<Data<'_>>, ty: TensorType, waiting: Waiting) -> Result<Resident> {
        self.0.device.state(from, ty, waiting).await
    }

    /// Runs an operation on tensors of the device.
    ///
    /// # Errors
    /// Errors of the data and of the device.
    pub(crate) async fn run(&self, op: &Op, inputs: &[Resident], waiting: Waiting) -> Result<Vec<Resident>> {
        self.0.device.run(op, inputs, waiting).await
    }

    /// Runs recorded graphs.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn runner(&self, waiting: Waiting) -> Result<Box<dyn Runner>> {
        self.0.device.runner(waiting).await
    }

    /// Whether this is an error of the device, so that the work can run elsewhere. Each kind is logged once.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let first = |logged: &AtomicBool| !logged.swap(true, Ordering::Relaxed);
        let (first, lasting) = match Failure::of(error) {
            Some(Failure::Gone) => (self.0.gone.set(error.clone()).is_ok(), "; nothing more is sent there"),
            Some(Failure::Refused) => (first(&self.0.logged_refused), ""),
            Some(Failure::Lacking) => (first(&self.0.logged_lacking), ""),
            None => return false,
        };
        if first {
            tracing::warn!("{}: {error}; other devices do this work{lasting}", self.name());
        }
        true
    }

    /// Whether this error, which ended a measurement, is an error of the device. If so, nothing more is sent to the
    /// device, which is logged.
    pub(crate) fn failed_to_be_measured(&self, error: &Error) -> bool {
        let of_device = Failure::of(error).is_some();
        if of_device && self.0.gone.set(error.clone()).is_ok() {
            tracing::warn!("{} cannot be measured and is excluded from all work: {error}", self.name());
        }
        of_device
    }

    /// Whether the error is the loss of a device that could be replaced by a newly opened one: a page loses its device
    /// whenever the driver is updated or another page breaks it. Native devices stay lost.
    pub(crate) async fn recovers(&self, error: &Error, waiting: Waiting) -> bool {
        if !cfg!(target_arch = "wasm32") || !matches!(error, Error::DeviceLost { .. }) {
            return false;
        }
        match self.0.device.reopen(waiting).await {
            Ok(reopened) => {
                tracing::warn!("{}: {error}; the device was reopened", self.name());
                reopened
            }
            Err(why) => {
                tracing::warn!("{}: the lost device could not be reopened: {why}", self.name());
                false
            }
        }
    }
}

/// The consequence of a device's error for the work that was sent to it.
enum Failure {
    /// The device takes no more work.
    Gone,
    /// The device does not take this work.
    Refused,
    /// The device has no kernel for the operation.
    Lacking,
}

impl Failure {
    /// `None` for errors of the caller.
    fn of(error: &Error) -> Option<Self> {
        match error {
            Error::DeviceLost { .. } | Error::Unavailable { .. } => Some(Self::Gone),
            Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Driver { .. } => Some(Self::Refused),
            Error::Unsupported { .. } => Some(Self::Lacking),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use kiln_ir::DType;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::device::{Again, Pending};
    use super::*;

    /// A device that is missing.
    #[derive(Debug)]
    struct Missing;

    fn missing<'a, T: Send + 'a>() -> Pending<'a, T> {
        let error = Error::Unavailable { what: "a device".into(), reason: "it is missing".into() };
        Box::pin(std::future::ready(Err(error)))
    }

    impl Device for Missing {
        fn open(&self, _: Waiting) -> Pending<'_, ()> {
            missing()
        }

        fn has_kernel(&self, _: &Custom) -> bool {
            false
        }

        fn run_call<'a>(&'a self, _: &'a Call<'_>, _: &'a mut [DataMut<'_>], _: Waiting) -> Pending<'a, ()> {
            missing()
        }

        fn upload<'a>(&'a self, _: &'a Operand<'_>, _: Waiting) -> Pending<'a, Resident> {
            missing()
        }

        fn state<'a>(&'a self, _: Option<Data<'a>>, _: TensorType, _: Waiting) -> Pending<'a, Resident> {
            missing()
        }

        fn run<'a>(&'a self, _: &'a Op, _: &'a [Resident], _: Waiting) -> Pending<'a, Vec<Resident>> {
            missing()
        }

        fn runner(&self, _: Waiting) -> Pending<'_, Box<dyn Runner>> {
            missing()
        }

        fn planned_bytes<'a>(&'a self, _: &'a Graph, _: &'a [TensorId], _: Waiting) -> Pending<'a, u64> {
            missing()
        }

        fn memory(&self, _: Waiting) -> Pending<'_, (Option<u64>, u64)> {
            missing()
        }

        fn memory_use(&self) -> Option<MemoryUse> {
            None
        }

        fn compile_ahead<'a>(&'a self, _: &'a [(Op, &'a [TensorType])], _: Waiting) -> Pending<'a, ()> {
            missing()
        }

        fn resident(&self, _: &Op, _: &[Operand<'_>]) -> Result<Again> {
            Ok(Box::new(|_| wait(missing())))
        }

        fn copies(&self, _: &Op, _: &[Operand<'_>], _: usize) -> Result<Again> {
            Ok(Box::new(|_| wait(missing())))
        }

        fn reopen(&self, _: Waiting) -> Pending<'_, bool> {
            missing()
        }
    }

    #[test]
    fn errors_of_the_device_hand_work_over_and_those_of_the_caller_do_not() {
        let gpu = Gpu::new("missing".into(), Backend::Gpu, Missing);
        let device = || "missing".to_owned();
        for error in [
            Error::Unsupported { op: "rope", backend: "CUDA" },
            Error::OutOfMemory { bytes: 1 },
            Error::Limit { what: "rows", device: device(), asked: 2, limit: 1 },
            Error::Driver { what: "compiling".into(), device: device(), message: "no".into() },
        ] {
            assert!(gpu.failed(&error) && !gpu.is_gone(), "{error}");
        }
        for error in [
            Error::Index { op: "gather", position: 0, index: 9, bound: 3 },
            Error::Type { op: "add", index: 0, expected: DType::F32, found: DType::U32 },
        ] {
            assert!(!gpu.failed(&error), "{error}");
        }
        assert!(gpu.failed(&Error::DeviceLost { device: device(), reason: "unplugged".into() }) && gpu.is_gone());
    }

    #[cfg(not(browser_gpu))]
    #[test]
    fn a_device_that_is_missing_cannot_be_measured() {
        let gpu = Gpu::new("missing".into(), Backend::Gpu, Missing);
        assert!(matches!(gpu.launch(), Err(Error::Unavailable { .. })));
        assert!(matches!(gpu.link(), Err(Error::Unavailable { .. })));
        assert!(gpu.open().is_err_and(|error| gpu.failed(&error)) && gpu.is_gone());
    }

    #[cfg(not(browser_gpu))]
    #[test]
    fn no_kind_of_gpu_takes_the_room_of_another() {
        let (gpu, cuda) = (Backend::Gpu, Backend::Cuda);
        let all = [gpu, gpu, gpu, gpu, cuda, cuda];
        assert_eq!(fitting(&all, 6), [true; 6]);
        assert_eq!(fitting(&all, 3), [true, true, false, false, true, false]);
        assert_eq!(fitting(&all, 5), [true, true, true, false, true, true]);
        assert_eq!(fitting(&all, 0), [false; 6]);
    }
}
