//! The device that tests run on.

#[path = "../../../kiln-device/tests/support/skip.rs"]
mod skip;

use kiln_ir::op::Op;
use kiln_ir::op::reference::{Case, Input, conform_within};
use kiln_ir::{Error, Operations};
use kiln_wgpu::{ADAPTER_VARIABLE, AdapterChoice, GpuBackend, GpuDevice, GpuDeviceOptions, numerics};
use skip::skip;

/// The device that the environment variable `KILN_ADAPTER` names, or else the best, software allowed. Without one
/// the test is left out, and says so; with `wgpu` in `KILN_REQUIRE` it fails instead.
pub(crate) fn device() -> Option<GpuDevice> {
    device_with(&GpuDeviceOptions::new())
}

/// The same, opened as the options say.
#[allow(dead_code)] // not every test file with this module needs it
pub(crate) fn device_with(options: &GpuDeviceOptions) -> Option<GpuDevice> {
    device_where(options, |_| false)
}

/// The same, also left out, and not failing, where the error is one that the device may have.
pub(crate) fn device_where(options: &GpuDeviceOptions, allowed: impl Fn(&Error) -> bool) -> Option<GpuDevice> {
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    match GpuDevice::open_with(&choice, options) {
        Ok(device) => Some(device),
        Err(why) => {
            match allowed(&why) {
                true => eprintln!("skipped: {why}"),
                false => skip("wgpu", why),
            }
            None
        }
    }
}

/// Checks that a backend keeps the contract of an operation.
#[track_caller]
#[allow(dead_code)] // not every test file with this module needs it
pub(crate) fn conform(backend: &GpuBackend, op: impl Into<Op>, inputs: Vec<Input>) {
    let case = Case::new(op, inputs);
    let result = conform_within(&case, numerics::bound, true, |op, inputs| backend.run(op, inputs));
    assert!(result.is_ok(), "{}", result.unwrap_err());
}
