//! How a device is opened.

use std::path::PathBuf;

use kiln_ir::Precision;

/// How a device is opened: by default without files and without clocks.
///
/// ```no_run
/// use kiln_cuda::{CudaDevice, CudaDeviceOptions};
///
/// # fn main() -> kiln_ir::Result<()> {
/// let device = CudaDevice::open(0, &CudaDeviceOptions::new().kernel_folder("/home/me/.cache/kiln"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct CudaDeviceOptions {
    pub(crate) profile: bool,
    pub(crate) precision: Precision,
    pub(crate) kernel_folder: Option<PathBuf>,
}

impl CudaDeviceOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Measures how long each kernel runs: [`crate::CudaCommandBatch::profile`] returns it. Every kernel is then between two
    /// marks, which takes longer, and nothing is captured.
    pub fn profile(self) -> Self {
        Self { profile: true, ..self }
    }

    /// With what precision products may read their operands, where the device has tensor cores that take them: those from compute
    /// capability 8.0 on are used.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Keeps compiled kernels in files in this folder, so that the next process need not compile them again. It is made
    /// where it is not there; a file for each kernel, kind of device and driver.
    ///
    /// The driver trusts what a file holds. What was damaged, or made from another text or by another driver, is found and
    /// replaced; what someone forged is not: the folder has to be one that nobody else may write to.
    ///
    /// Kernels whose warp groups exchange registers are not in the folder: the driver returns no good code for them. It keeps them in
    /// its own cache (`CUDA_CACHE_PATH`).
    pub fn kernel_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { kernel_folder: Some(folder.into()), ..self }
    }
}
