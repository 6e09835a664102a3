//! GPUs that a thread waits for. What is particular to a backend is its [`Device`].

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
mod adapter;
mod batch;
#[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
mod cuda;
mod device;
#[cfg(test)]
mod failing;
#[cfg(test)]
mod scripted;
mod times;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

use kiln_ir::op::Op;
use kiln_ir::{DataMut, Error, Operand, Result};
use kiln_route::{Backend, Place};

use super::Asked;
pub(crate) use batch::OnGpu;
use device::Device;

/// A GPU of an engine. It is opened by the first operation that is sent to it.
#[derive(Debug)]
pub(crate) struct Gpu {
    /// That of its place.
    name: String,
    kind: Backend,
    device: Box<dyn Device>,
    /// Why it is gone for good, once it is: nothing more is sent to it.
    gone: OnceLock<Error>,
    /// Whether it was told that it refused something, and that it lacked an operation.
    told_refused: AtomicBool,
    told_lacking: AtomicBool,
}

impl Gpu {
    fn new(name: String, kind: Backend, device: impl Device) -> Self {
        let no = || AtomicBool::new(false);
        let gone = OnceLock::new();
        Self { name, kind, device: Box::new(device), gone, told_refused: no(), told_lacking: no() }
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

    /// Every GPU of this kind that is no software.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none, with the reason, which is told once in the process.
    pub(crate) fn hardware(kind: Backend, folder: Option<&Path>) -> Result<Vec<Self>> {
        static TOLD: Mutex<Vec<Backend>> = Mutex::new(Vec::new());
        let found = match kind {
            #[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
            Backend::Gpu => adapter::hardware(folder),
            #[cfg(all(feature = "cuda", not(target_arch = "wasm32")))]
            Backend::Cuda => cuda::hardware(folder),
            _ => {
                let reason = "this build has no backend for it".into();
                Err(Error::Unavailable { what: kind.to_string(), reason })
            }
        };
        if let Err(why) = &found {
            let mut told = TOLD.lock().unwrap_or_else(PoisonError::into_inner);
            if !told.contains(&kind) {
                told.push(kind);
                tracing::info!("without {kind}: {why}");
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
        self.gone().is_some()
    }

    /// Why nothing more is sent to it.
    pub(crate) fn gone(&self) -> Option<&Error> {
        self.gone.get()
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
    /// As [`kiln_ir::Operations::run_into`], and errors of the device.
    pub(crate) fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        self.device.run_into(op, inputs, outputs)
    }

    /// Whether an error is one of the device, so that the work can go elsewhere. Each kind of it is told once.
    pub(crate) fn failed(&self, error: &Error) -> bool {
        let first = |told: &AtomicBool| !told.swap(true, Ordering::Relaxed);
        let (first, lasting) = match Failure::of(error) {
            Some(Failure::Gone) => (self.gone.set(error.clone()).is_ok(), "; nothing more is sent there"),
            Some(Failure::Refused) => (first(&self.told_refused), ""),
            Some(Failure::Lacking) => (first(&self.told_lacking), ""),
            None => return false,
        };
        if first {
            tracing::warn!("{}: {error}; the work goes on elsewhere{lasting}", self.name);
        }
        true
    }

    /// Whether an error with which measuring ended is one of the device. Nothing more is sent there then, which is told.
    pub(crate) fn failed_to_be_measured(&self, error: &Error) -> bool {
        let of_device = Failure::of(error).is_some();
        if of_device && self.gone.set(error.clone()).is_ok() {
            tracing::warn!("{} cannot be measured and is no place: {error}", self.name);
        }
        of_device
    }
}

/// What errors of a device mean for the work that it was asked for.
enum Failure {
    /// The device takes no work any more.
    Gone,
    /// It does not take this.
    Refused,
    /// It has no kernel for it.
    Lacking,
}

impl Failure {
    /// None for errors of the caller.
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

    #[test]
    fn a_device_that_is_missing_cannot_be_measured() {
        let gpu = Gpu::new("missing".into(), Backend::Gpu, Missing);
        assert!(matches!(gpu.launch(), Err(Error::Unavailable { .. })));
        assert!(matches!(gpu.link(), Err(Error::Unavailable { .. })));
        assert!(gpu.open().is_err_and(|error| gpu.failed(&error)) && gpu.is_gone());
    }
}
