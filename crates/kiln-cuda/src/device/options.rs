//! Options for opening a device.

use std::path::PathBuf;

use kiln_ir::Precision;

/// Options for opening a device. By default kernels are neither cached in files nor timed.
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

    /// Measures the time of each kernel, which [`crate::CudaCommandBatch::profile`] returns. Every kernel then runs between two
    /// events, which takes longer, and launches are not captured in a graph.
    pub fn profile(self) -> Self {
        Self { profile: true, ..self }
    }

    /// Sets the precision with which products may read their operands, if the device has tensor cores that support it: those from
    /// compute capability 8.0 on are used.
    pub fn precision(self, precision: Precision) -> Self {
        Self { precision, ..self }
    }

    /// Keeps compiled kernels in files in this folder, so that the next process need not compile them again. The folder is
    /// created if it does not exist. It has a file for each kernel, kind of device and driver.
    ///
    /// The driver trusts the contents of these files. A file that is damaged, or made from another text or by another driver, is
    /// detected and replaced; a forged file is not: nobody else may have write access to the folder.
    ///
    /// Kernels whose warp groups exchange registers are not in the folder: the driver returns no good code for them. It keeps them in
    /// its own cache (`CUDA_CACHE_PATH`).
    pub fn kernel_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { kernel_folder: Some(folder.into()), ..self }
    }
}
