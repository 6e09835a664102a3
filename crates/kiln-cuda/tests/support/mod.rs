//! The device that tests run on.

#[path = "../../../kiln-device/tests/support/skip.rs"]
mod skip;

use kiln_cuda::{CudaDevice, CudaDeviceOptions};
use skip::skip;

/// The first device. Without one the test is skipped, and says so; with `cuda` in `KILN_REQUIRE` it fails instead.
#[allow(dead_code)] // not every test file with this module needs it
pub(crate) fn device() -> Option<CudaDevice> {
    device_with(&CudaDeviceOptions::new())
}

/// The same, opened as the options say.
pub(crate) fn device_with(options: &CudaDeviceOptions) -> Option<CudaDevice> {
    match CudaDevice::open(0, options) {
        Ok(device) => Some(device),
        Err(why) => {
            skip("cuda", why);
            None
        }
    }
}
