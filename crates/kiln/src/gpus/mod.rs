//! GPUs as places of an engine. Whatever backend runs them, they are looked for, measured, used and given up in one way;
//! what is particular to a backend is its [`Device`].
// A build without a backend of GPUs has none.
#![cfg_attr(
    not(any(
        all(feature = "gpu", not(target_arch = "wasm32")),
        all(feature = "cuda", not(target_arch = "wasm32")),
        all(feature = "gpu-wasm", target_arch = "wasm32")
    )),
    allow(unused)
)]

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
mod adapter;
#[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
mod asynchronous;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
mod batch;
#[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
mod cuda;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
mod device;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
mod times;

#[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
pub(crate) use asynchronous::{Gpu, OnGpu, pause};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
pub(crate) use batch::OnGpu;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use device::Device;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use kiln_core::op::Op;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use kiln_core::{DataMut, Error, Operand, Result};
use kiln_route::{Backend, Link, Memory, Place, Profile, ProfileProblem, Roofline};
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use std::path::Path;
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
use std::sync::atomic::{AtomicBool, Ordering};

/// The kinds of GPU that this build has a backend for. Of places that are predicted to take as long the later kind is
/// taken.
pub(crate) const KINDS: &[Backend] = &[
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    Backend::Gpu,
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    Backend::Cuda,
];

/// A GPU that an engine is asked to have.
#[derive(Debug, Clone)]
pub(crate) enum Asked {
    #[cfg(any(all(feature = "gpu", not(target_arch = "wasm32")), all(feature = "gpu-wasm", target_arch = "wasm32")))]
    Adapter(kiln_wgpu::AdapterChoice),
    /// The number of a device of CUDA.
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    Cuda(u32),
}

#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
impl Asked {
    /// What kind of GPU it is.
    pub(crate) fn kind(&self) -> Backend {
        match *self {
            #[cfg(any(
                all(feature = "gpu", not(target_arch = "wasm32")),
                all(feature = "gpu-wasm", target_arch = "wasm32")
            ))]
            Self::Adapter(_) => Backend::Gpu,
            #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
            Self::Cuda(_) => Backend::Cuda,
        }
    }
}

/// A GPU of an engine. It is opened by the first operation that is sent to it.
#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
#[derive(Debug)]
pub(crate) struct Gpu {
    /// That of its place.
    name: String,
    kind: Backend,
    device: Box<dyn Device>,
    /// Gone for good: nothing more is sent to it.
    gone: AtomicBool,
    /// Whether it was told that it refused something, and that it lacked an operation.
    told_refused: AtomicBool,
    told_lacking: AtomicBool,
}

#[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
impl Gpu {
    fn new(name: String, kind: Backend, device: impl Device) -> Self {
        let no = || AtomicBool::new(false);
        Self { name, kind, device: Box::new(device), gone: no(), told_refused: no(), told_lacking: no() }
    }

    /// The GPU behind a place of a profile, wherever it stands; none where this build has no backend for it. Compiled code
    /// is kept in the folder.
    pub(crate) fn of_place(place: &Place, folder: Option<&Path>) -> Option<Self> {
        match place.backend {
            #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
            Backend::Gpu => Some(adapter::named(&place.name, folder)),
            #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
            Backend::Cuda => Some(cuda::named(&place.name, folder)),
            _ => None,
        }
    }

    /// The GPU that is meant.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it is not there, with what is.
    pub(crate) fn chosen(asked: &Asked, folder: Option<&Path>) -> Result<Self> {
        match *asked {
            #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
            Asked::Adapter(ref choice) => adapter::chosen(choice, folder),
            #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
            Asked::Cuda(ordinal) => cuda::chosen(ordinal, folder),
        }
    }

    /// Every GPU of these kinds that is no software.
    pub(crate) fn hardware(kinds: &[Backend], folder: Option<&Path>) -> Vec<Self> {
        let mut found = Vec::new();
        for kind in kinds {
            match kind {
                #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
                Backend::Gpu => found.extend(adapter::hardware(folder)),
                #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
                Backend::Cuda => found.extend(cuda::all(folder)),
                _ => {}
            }
        }
        found
    }

    pub(crate) fn name(&self) -> &str {
        &self.name
    }

    pub(crate) fn kind(&self) -> Backend {
        self.kind
    }

    pub(crate) fn is_gone(&self) -> bool {
        self.gone.load(Ordering::Relaxed)
    }

    /// Opens the device.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where it is not there.
    pub(crate) fn open(&self) -> Result<()> {
        self.device.open()
    }

    /// The open device, where this is an adapter.
    #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
    pub(crate) fn adapter(&self) -> Option<Result<kiln_wgpu::GpuDevice>> {
        let device: &dyn std::any::Any = &*self.device;
        device.downcast_ref::<adapter::Adapter>().map(|adapter| adapter.device().cloned())
    }

    /// The open device, where this is one of CUDA.
    #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
    pub(crate) fn cuda(&self) -> Option<Result<kiln_cuda::CudaDevice>> {
        let device: &dyn std::any::Any = &*self.device;
        device.downcast_ref::<cuda::Cuda>().map(|cuda| cuda.device().cloned())
    }

    /// # Errors
    /// As [`kiln_core::Operations::run_into`], and errors of the device.
    pub(crate) fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.device.run_into(op, inputs, outputs)
    }

    /// Whether an error is one of the device, so that the work can go elsewhere. Each kind of it is told once.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let told = match error {
            Error::DeviceLost { .. } | Error::Unavailable { .. } => &self.gone,
            Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Driver { .. } => &self.told_refused,
            Error::Unsupported { .. } => &self.told_lacking,
            _ => return false,
        };
        if !told.swap(true, Ordering::Relaxed) {
            let lasting = if self.is_gone() { "; nothing more is sent there" } else { "" };
            tracing::warn!("{}: {error}; the work goes on elsewhere{lasting}", self.name);
        }
        true
    }
}

/// The memory of a GPU by its position among those of an engine.
pub(crate) fn memory(position: usize) -> Memory {
    // More than a profile has room for are refused there.
    Memory::new(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

/// A GPU of which nothing has been measured: cautious constants.
pub(crate) fn assumed(gpu: &Gpu, position: usize) -> (Place, Link) {
    let place = Place {
        name: gpu.name().to_owned(),
        backend: gpu.kind(),
        // It keeps no thread of the CPU busy.
        threads: 0,
        memory: memory(position),
        launch: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 100e-6, levels: vec![(u64::MAX, 100e9)], peak: 1e12 },
    };
    let link = Link { upload_latency: 50e-6, upload_bandwidth: 5e9, download_latency: 100e-6, download_bandwidth: 3e9 };
    (place, link)
}

/// The profile with these ways to the memories of devices.
pub(crate) fn linked(
    profile: Profile,
    links: impl IntoIterator<Item = (Memory, Link)>,
) -> Result<Profile, ProfileProblem> {
    links.into_iter().try_fold(profile, |profile, (memory, link)| profile.with_link(memory, link))
}

#[cfg(all(test, not(all(feature = "gpu-wasm", target_arch = "wasm32"))))]
mod tests {
    use kiln_core::DType;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::device::{Again, Recording};
    use super::*;

    /// A device that is not there.
    #[derive(Debug)]
    struct Missing;

    impl Device for Missing {
        fn open(&self) -> Result<()> {
            Err(Error::Unavailable { what: "a device".into(), reason: "it is missing".into() })
        }

        fn run_into(&self, _: &Op, _: &[Operand<'_>], _: &mut [DataMut<'_>]) -> Result<()> {
            self.open()
        }

        fn resident(&self, _: &Op, _: &[Operand<'_>]) -> Result<Again> {
            Ok(Box::new(|| Missing.open()))
        }

        fn reading(&self, _: &Operand<'_>) -> Result<Again> {
            Ok(Box::new(|| Missing.open()))
        }

        fn batch(&self) -> Result<Box<dyn Recording>> {
            Err(Error::Unsupported { op: "batch", backend: "nothing" })
        }
    }

    #[test]
    fn errors_of_the_device_hand_work_over_and_those_of_the_caller_do_not() {
        let gpu = Gpu::new("missing".into(), Backend::Gpu, Missing);
        let device = || "missing".to_owned();
        for error in [
            Error::Unsupported { op: "quantize", backend: "CUDA" },
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

    #[test]
    fn a_device_that_is_missing_cannot_be_measured() {
        let gpu = Gpu::new("missing".into(), Backend::Gpu, Missing);
        assert!(matches!(gpu.launch(), Err(Error::Unavailable { .. })));
        assert!(matches!(gpu.link(), Err(Error::Unavailable { .. })));
        assert!(gpu.open().is_err_and(|error| gpu.failed(&error)) && gpu.is_gone());
    }
}
