//! The device that tests run on.

use kiln_wgpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice};

/// The device that the environment variable `KILN_ADAPTER` names, or else the best, software allowed. Where there is none
/// the test is left out, and says so; with `wgpu` in `KILN_REQUIRE` it fails instead.
pub(crate) fn device() -> Option<GpuDevice> {
    opened(GpuDevice::open)
}

/// The same for plain WebGPU.
#[allow(dead_code)] // not every file of tests that has this module needs both
pub(crate) fn plain_device() -> Option<GpuDevice> {
    opened(GpuDevice::open_plain)
}

fn opened(open: impl Fn(&AdapterChoice) -> kiln_core::Result<GpuDevice>) -> Option<GpuDevice> {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some();
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    match open(&choice) {
        Ok(device) => Some(device),
        Err(why) => {
            let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
            assert!(!required.split(',').any(|name| name.trim() == "wgpu"), "{why}");
            eprintln!("left out: {why}");
            None
        }
    }
}
