//! Finding and opening devices, and their properties.

use std::fmt;
use std::sync::Arc;

use kiln_ir::{Error, Result};

use super::kernels::Kernels;
use super::options::CudaDeviceOptions;
use super::staging::Staging;
use crate::driver::DeviceMemory;
use crate::driver::{Context, CudaVersion, Driver, DriverProblem, Facts, Readings, readings};
use crate::plan::Hardware;
use kiln_device::Shared;

/// Allocations are multiples of this, so that kernels may access whole vectors.
const GRANULARITY: u64 = 256;

/// The properties of a device that are known without opening it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// Its number, in the order of the driver.
    pub ordinal: u32,
    /// Its name, from the driver.
    pub name: String,
    /// Its compute capability: 9.0 for Hopper.
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
    /// [`DriverProblem`] if no driver can be used.
    pub fn driver_version() -> Result<CudaVersion, DriverProblem> {
        Driver::get().map(|driver| driver.version)
    }

    /// Every device that the driver reports, in its order.
    ///
    /// # Errors
    /// [`DriverProblem`] if no driver can be used. A device that does not answer is excluded, and reported through `tracing`.
    pub fn list() -> Result<Vec<DeviceInfo>, DriverProblem> {
        let driver = Driver::get()?;
        let info = |ordinal| match Context::facts(driver, ordinal) {
            Ok(facts) => Some(DeviceInfo::new(ordinal, facts)),
            Err(error) => {
                tracing::warn!("CUDA device {ordinal} is excluded: {error}");
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
        Self::open(0, &CudaDeviceOptions::new())
    }

    /// Opens the device with this number, as the options say.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if no driver can be used (the reason is that of a [`DriverProblem`]), or if the device does not
    /// exist or is too old; [`Error::Driver`] if the driver refuses.
    pub fn open(ordinal: u32, options: &CudaDeviceOptions) -> Result<Self> {
        let driver = Driver::get().map_err(DriverProblem::into_error)?;
        if ordinal >= driver.devices {
            return Err(Error::Unavailable {
                what: format!("CUDA device {ordinal}"),
                reason: format!("the driver reports {} devices, numbered from 0", driver.devices),
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

    /// The properties of the device.
    pub fn info(&self) -> &DeviceInfo {
        &self.inner.info
    }

    /// The target that its kernels are written for: `sm_90a`.
    pub fn target(&self) -> &'static str {
        self.inner.hardware.target.name()
    }

    /// Whether products and attention of f16, and products of f32 as [`CudaDeviceOptions::precision`] says, run on tensor
    /// cores.
    pub fn has_tensor_cores(&self) -> bool {
        self.inner.hardware.has_tensor_cores()
    }

    /// Bytes of its free memory.
    ///
    /// # Errors
    /// [`Error::DeviceLost`], [`Error::Driver`].
    pub fn free_memory(&self) -> Result<u64> {
        self.inner.context.free_memory()
    }

    /// Its clocks, temperature, power and utilisation, from NVML, a library that comes with the driver; `None` without that
    /// library.
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

    /// Ends the device, as a fault would: every later call returns [`Error::DeviceLost`].
    pub fn destroy(&self) {
        self.inner.context.abandon("it was destroyed");
    }

    /// Refuses tensors of another device.
    pub(crate) fn check_own(&self, tensors: &[&crate::CudaTensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| tensor.check_on(self))
    }
}
