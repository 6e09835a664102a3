//! How a device is opened.

#[cfg(not(target_arch = "wasm32"))]
use std::path::PathBuf;

use kiln_ir::Precision;

/// How a device is opened: by default with all that it can do, and without files.
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

    /// Plain WebGPU, as a browser has it: nothing that the device can do beyond is used.
    pub fn plain(self) -> Self {
        Self { plain: true, ..self }
    }

    /// Checks every index and bounds every loop of every kernel at run time. Without it that is left out of kernels that
    /// need none; with [`GpuDeviceOptions::plain`], and in browsers, it never is.
    pub fn checks(self) -> Self {
        Self { checks: true, ..self }
    }

    /// Measures how long each kernel runs: [`crate::GpuCommandBatch::profile`] tells. Every kernel is then a pass of its own,
    /// which takes longer. Where the adapter has no clock, opening it is [`kiln_ir::Error::Unavailable`].
    pub fn profile(self) -> Self {
        Self { profile: true, ..self }
    }

    /// With what precision products may read their operands. With [`Precision::Tf32`], [`Precision::Bf16`] and
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

    /// Keeps compiled pipelines in a file in this folder, so that the next process need not compile them again. It is made
    /// where it is not there; a file for each adapter and driver. Without effect where the driver does not offer it
    /// (wgpu does on Vulkan alone) and with [`GpuDeviceOptions::plain`].
    ///
    /// The driver trusts what the file holds. What was damaged, or written for another driver or by another version of
    /// kiln, is found and replaced; what someone forged is not: the folder has to be one that nobody else may write to.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn pipeline_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { pipeline_folder: Some(folder.into()), ..self }
    }
}
