//! Options for opening a device.

#[cfg(not(target_arch = "wasm32"))]
use std::path::PathBuf;

use kiln_ir::Precision;

/// Options for opening a device. By default it has all supported features, and pipelines are not cached in files.
///
/// ```no_run
/// use kiln_wgpu::{AdapterChoice, GpuDeviceOptions, GpuDevice};
///
/// # fn main() -> kiln_ir::Result<()> {
/// let options = GpuDeviceOptions::new().pipeline_folder("/home/me/.cache/kiln");
/// let device = GpuDevice::open_with(&AdapterChoice::Best, &options)?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct GpuDeviceOptions {
    pub(crate) plain: bool,
    pub(crate) checks: bool,
    pub(crate) profile: bool,
    pub(crate) precision: Precision,
    #[cfg(not(target_arch = "wasm32"))]
    pub(crate) pipeline_folder: Option<PathBuf>,
}

impl GpuDeviceOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Uses plain WebGPU, as a browser has it, and none of the device's other features.
    pub fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Checks every index and bounds every loop of every kernel at run time. Without this option, kernels that need no checks
    /// omit them, except with [`GpuDeviceOptions::plain`] and in browsers.
    pub fn checks(self) -> Self {
        Self { checks: true, ..self }
    }

    /// Measures the time of each kernel, which [`crate::GpuCommandBatch::profile`] returns. Every kernel is then a pass of its own,
    /// which takes longer. If the adapter has no timestamps, opening it returns [`kiln_ir::Error::Unavailable`].
    pub fn profile(self) -> Self {
        Self { profile: true, ..self }
    }

    /// Sets the precision with which products may read their operands. With [`Precision::Tf32`], [`Precision::Bf16`] and
    /// [`Precision::Int8`] products of many rows with quantised weights round both operands to f16, if the device has
    /// cooperative matrices ([`crate::GpuDevice::has_cooperative_matrices`]); [`crate::numerics::bound_on`] gives the bound.
    /// All other products keep the contract.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// The features that are requested if the adapter has them.
    pub(crate) fn features(&self) -> wgpu::Features {
        let clock = if self.profile { wgpu::Features::TIMESTAMP_QUERY } else { wgpu::Features::empty() };
        if self.plain {
            return clock;
        }
        let features = clock | wgpu::Features::SUBGROUP | wgpu::Features::IMMEDIATES;
        let features = features | super::cooperative::FEATURES | super::direct::FEATURES;
        #[cfg(not(target_arch = "wasm32"))]
        if self.pipeline_folder.is_some() {
            return features | wgpu::Features::PIPELINE_CACHE;
        }
        features
    }

    /// Keeps compiled pipelines in a file in this folder, so that the next process need not compile them again. The folder is
    /// created if it does not exist. It has a file for each adapter and driver. The option has no effect if the driver does not
    /// support it (wgpu does on Vulkan alone) and with [`GpuDeviceOptions::plain`].
    ///
    /// The driver trusts the contents of the file. A file that is damaged, or written for another driver or by another version
    /// of kiln, is detected and replaced; a forged file is not: nobody else may have write access to the folder.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn pipeline_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { pipeline_folder: Some(folder.into()), ..self }
    }
}
