//! How a device is opened.

use std::path::PathBuf;

/// With what precision products of matrices read f32. Tensor cores take TF32, the upper 19 bits of an f32; those from compute
/// capability 8.0 on are used. On other devices everything is [`InputPrecision::Ieee`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum InputPrecision {
    /// As it is, on the units for f32: the bounds and special values of the contract.
    #[default]
    Ieee,
    /// In two parts in TF32 and three products of these: an error of at most `56 + k / 128` units of `u Σ |terms|`, and
    /// NaN where an infinity, or a number that TF32 rounds to one, is multiplied. On Hopper; elsewhere as
    /// [`InputPrecision::Ieee`].
    Tf32x3,
    /// In TF32, rounded towards zero: an error of at most `2¹⁵ + k / 4 + 16` units of `u Σ |terms|`.
    Tf32,
}

/// How a device is opened: by default without files and without clocks.
///
/// ```no_run
/// use kiln_cuda::{CudaDevice, DeviceOptions};
///
/// # fn main() -> kiln_ir::Result<()> {
/// let device = CudaDevice::open(0, &DeviceOptions::new().kernel_folder("/home/me/.cache/kiln"))?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[must_use]
pub struct DeviceOptions {
    pub(crate) profile: bool,
    pub(crate) input_precision: InputPrecision,
    pub(crate) kernel_folder: Option<PathBuf>,
}

impl DeviceOptions {
    /// The default.
    pub fn new() -> Self {
        Self::default()
    }

    /// Measures how long each kernel runs: [`crate::CudaCommandBatch::profile`] tells. Every kernel then stands between two
    /// marks, which takes longer, and nothing is captured.
    pub fn profile(self) -> Self {
        Self { profile: true, ..self }
    }

    /// With what precision products read matrices of f32, where the device has tensor cores that take them.
    pub fn input_precision(self, input_precision: InputPrecision) -> Self {
        Self { input_precision, ..self }
    }

    /// Keeps compiled kernels in files in this folder, so that the next process need not compile them again. It is made
    /// where it is not there; a file for each kernel, kind of device and driver.
    ///
    /// The driver trusts what a file holds. What was damaged, or made from another text or by another driver, is found and
    /// replaced; what someone forged is not: the folder has to be one that nobody else may write to.
    pub fn kernel_folder(self, folder: impl Into<PathBuf>) -> Self {
        Self { kernel_folder: Some(folder.into()), ..self }
    }
}
