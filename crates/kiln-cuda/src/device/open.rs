//! Finding and opening devices, and what is known of them.

use std::fmt;
use std::sync::Arc;

use kiln_ir::{Error, Result};

use super::kernels::Kernels;
use super::options::DeviceOptions;
use super::staging::Staging;
use crate::driver::DeviceMemory;
use crate::driver::{Context, CudaVersion, Driver, DriverProblem, Facts, Readings, readings};
use crate::plan::Hardware;
use kiln_device::Shared;

/// Allocations are multiples of this, so that kernels may access whole vectors.
const GRANULARITY: u64 = 256;

/// What is known of a device without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, in the order of the driver.
    pub ordinal: u32,
    /// What the driver calls it.
    pub name: String,
    /// What its hardware can do, by NVIDIA's count: 9.0 for Hopper.
    pub compute_capability: (u32, u32),
    /// Bytes of its memory.
    pub memory: u64,
    /// Its multiprocessors.
    pub multiprocessors: u32,
    /// Bytes of the cache that they share.
    pub l2_cache: u64,
}

impl DeviceInfo {
    fn new(ordinal: u32, facts: Facts) -> Self {
        let Facts { name, capability, memory, multiprocessors, l2_bytes } = facts;
        Self { ordinal, name, compute_capability: capability, memory, multiprocessors, l2_cache: l2_bytes }
    }
}

impl fmt::Display for DeviceInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { ordinal, name, compute_capability: (major, minor), memory, multiprocessors, .. } = self;
        let gib = *memory as f64 / f64::from(1 << 30);
        write!(f, "{name} (device {ordinal}, {major}.{minor}, {multiprocessors} multiprocessors, {gib:.1} GiB)")
    }
}

/// An open device. Cloning it is cheap and gives the same device.
#[derive(Debug, Clone)]
pub struct CudaDevice {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) info: DeviceInfo,
    /// The hardware properties that plans depend on.
    pub(crate) hardware: Hardware,
    pub(crate) profiling: bool,
    pub(crate) kernels: Kernels,
    pub(crate) staging: Staging,
    pub(crate) shared: Shared<DeviceMemory>,
    pub(crate) context: Arc<Context>,
}

impl CudaDevice {
    /// The version of CUDA that the driver is for.
    ///
    /// # Errors
    /// Why there is no driver to work with.
    pub fn driver_version() -> Result<CudaVersion, DriverProblem> {
        Driver::get().map(|driver| driver.version)
    }

    /// Every device that the driver knows, in its order.
    ///
    /// # Errors
    /// Why there is no driver to work with. A device that does not answer is left out, and reported through `tracing`.
    pub fn list() -> Result<Vec<DeviceInfo>, DriverProblem> {
        let driver = Driver::get()?;
        let info = |ordinal| match Context::facts(driver, ordinal) {
            Ok(facts) => Some(DeviceInfo::new(ordinal, facts)),
            Err(error) => {
                tracing::warn!("device {ordinal} is left out: {error}");
                None
            }
        };
        Ok((0..driver.devices).filter_map(info).collect())
    }

    /// Whether there is a driver and a device.
    pub fn is_available() -> bool {
        Driver::get().is_ok()
    }

    /// Opens the first device.
    ///
    /// # Errors
    /// The errors of [`CudaDevice::open`].
    pub fn new() -> Result<Self> {
        Self::open(0, &DeviceOptions::new())
    }

    /// Opens the device with this number, as the options say.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is no driver to work with (the reason is that of a [`DriverProblem`]), no such
    /// device, or where it is too old; [`Error::Driver`] where the driver refuses.
    pub fn open(ordinal: u32, options: &DeviceOptions) -> Result<Self> {
        let driver = Driver::get().map_err(DriverProblem::into_error)?;
        if ordinal >= driver.devices {
            return Err(Error::Unavailable {
                what: format!("CUDA device {ordinal}"),
                reason: format!("there are {}, counted from 0", driver.devices),
            });
        }
        let info = DeviceInfo::new(ordinal, Context::facts(driver, ordinal)?);
        let context = Arc::new(Context::open(driver, ordinal, info.name.clone())?);
        let folder = options.kernel_folder.clone();
        let kernels = Kernels::new(context.clone(), driver, info.compute_capability, folder)?;
        let hardware =
            Hardware { target: kernels.target, multiprocessors: info.multiprocessors, precision: options.precision };
        // A quarter of the memory at most, because other programs use the device too.
        let shared = Shared::new(GRANULARITY, info.memory / 4, u64::MAX);
        let staging = Staging::new(context.clone());
        let inner = Inner { info, hardware, profiling: options.profile, kernels, staging, shared, context };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// What is known of it.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The target that its kernels are written for: `sm_90a`.
    pub fn target(&self) -> &'static str {
        self.inner.hardware.target.name()
    }

    /// Whether products and attention of f16, and products of f32 as [`DeviceOptions::precision`] says, run on tensor
    /// cores.
    pub fn has_tensor_cores(&self) -> bool {
        self.inner.hardware.has_tensor_cores()
    }

    /// Bytes of its memory that nobody has taken.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn free_memory(&self) -> Result<u64> {
        self.inner.context.free_memory()
    }

    /// Its clocks, temperature, power and utilisation, by NVML, the library that comes with the driver for that; none where
    /// that is not there.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn readings(&self) -> Result<Option<Readings>> {
        Ok(readings(&self.inner.context.bus()?))
    }

    /// Number of kernels compiled, or loaded from files, so far.
    pub fn compiled_kernels(&self) -> usize {
        self.inner.kernels.len()
    }

    /// Ends the device, as a fault would: whatever is asked of it from then on is [`Error::DeviceLost`].
    pub fn destroy(&self) {
        self.inner.context.abandon("it was destroyed");
    }

    /// Refuses tensors of another device.
    pub(crate) fn check_own(&self, tensors: &[&crate::CudaTensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| tensor.check_on(self))
    }
}
