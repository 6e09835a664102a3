//! Unused devices that stay open. The next opening of the same adapter with the same options reuses one.
//!
//! NVIDIA's driver 580.159 deadlocks when one thread closes a device while another allocates memory on another device, so
//! the process closes no device, not even a lost one. Besides, opening a device takes 130 ms there.

use std::sync::{Mutex, PoisonError};

use super::adapters::AdapterInfo;
use super::lost::Lost;

/// The reusable parts of an open device.
#[derive(Debug)]
pub(crate) struct Opened {
    pub(crate) info: AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    pub(crate) features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
    /// The reason why the device is lost, once it is.
    pub(super) lost: Lost,
}

static RETIRED: Mutex<Vec<Opened>> = Mutex::new(Vec::new());

/// A retired device of this adapter that was opened with the same options.
pub(crate) fn take(info: &AdapterInfo, features: wgpu::Features, limits: &wgpu::Limits) -> Option<Opened> {
    let mut retired = RETIRED.lock().unwrap_or_else(PoisonError::into_inner);
    let serves = |one: &Opened| {
        one.info == *info && one.features == features && one.limits == *limits && one.lost.reason().is_none()
    };
    let at = retired.iter().position(serves)?;
    Some(retired.swap_remove(at))
}

/// Keeps an unused device.
pub(crate) fn keep(opened: Opened) {
    RETIRED.lock().unwrap_or_else(PoisonError::into_inner).push(opened);
}

#[cfg(test)]
mod tests {
    use crate::{AdapterChoice, GpuDevice, GpuDeviceOptions};

    #[test]
    fn a_device_is_handed_out_again_unless_it_is_lost() {
        let choice = AdapterChoice::Index(0);
        // Distinct options, so that no other test takes the device.
        let open = || GpuDevice::open_with(&choice, &GpuDeviceOptions::new().plain().profile());
        let first = match open() {
            Ok(device) => device,
            Err(why) if !std::env::var("KILN_REQUIRE").is_ok_and(|required| required.contains("wgpu")) => {
                return println!("skipped: {why}");
            }
            Err(why) => panic!("{why}"),
        };
        let raw = first.inner.device.clone();
        let second = open().unwrap();
        assert_ne!(raw, second.inner.device, "it is in use");
        drop(first);
        let third = open().unwrap();
        assert_eq!(raw, third.inner.device);
        third.destroy();
        drop(third);
        let fourth = open().unwrap();
        assert_ne!(raw, fourth.inner.device);
        assert!(!fourth.is_lost());
    }
}
