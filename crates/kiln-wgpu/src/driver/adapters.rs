//! The adapters of the machine.

use std::fmt;
use std::sync::OnceLock;

/// The kind of an adapter's device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum AdapterKind {
    /// A GPU with memory of its own.
    Discrete,
    /// A GPU that shares the memory of the CPU.
    Integrated,
    /// A GPU behind a hypervisor.
    Virtual,
    /// The CPU, through a software driver. Used only on request.
    Software,
    /// The driver does not report it.
    Other,
}

impl From<wgpu::DeviceType> for AdapterKind {
    fn from(ty: wgpu::DeviceType) -> Self {
        match ty {
            wgpu::DeviceType::DiscreteGpu => Self::Discrete,
            wgpu::DeviceType::IntegratedGpu => Self::Integrated,
            wgpu::DeviceType::VirtualGpu => Self::Virtual,
            wgpu::DeviceType::Cpu => Self::Software,
            wgpu::DeviceType::Other => Self::Other,
        }
    }
}

/// An adapter: a device that could be opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AdapterInfo {
    /// Its position in [`crate::GpuDevice::list_adapters`].
    pub index: usize,
    /// Its name, from the driver. Equal GPUs have equal names.
    pub name: String,
    /// A unique label: its name, and from the second adapter of that name on its number among them, as in
    /// `NVIDIA H200 #2`.
    pub label: String,
    /// The kind of its device.
    pub kind: AdapterKind,
    /// The name of its API: `vulkan`, `metal`, `dx12`, `webgpu`.
    pub api: String,
    /// The driver and its version.
    pub driver: String,
}

impl fmt::Display for AdapterInfo {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { index, label, kind, api, driver, .. } = self;
        let kind = format!("{kind:?}").to_lowercase();
        write!(f, "{index}: {label} ({kind}, {api}, {driver})")
    }
}

/// The APIs to search for adapters: all, or those of `WGPU_BACKEND`. OpenGL is excluded: its drivers lack most of what
/// compute needs, and some crash during enumeration.
pub(crate) fn asked() -> wgpu::Backends {
    wgpu::Backends::PRIMARY & wgpu::Backends::from_env().unwrap_or(wgpu::Backends::PRIMARY)
}

/// The single instance of the process: creating another costs milliseconds and finds the same adapters.
fn instance() -> &'static wgpu::Instance {
    static INSTANCE: OnceLock<wgpu::Instance> = OnceLock::new();
    INSTANCE.get_or_init(|| {
        let mut descriptor = wgpu::InstanceDescriptor::new_without_display_handle();
        descriptor.backends = asked();
        // Disables the driver's validation layers, which are for driver developers.
        descriptor.flags = wgpu::InstanceFlags::empty();
        wgpu::Instance::new(descriptor)
    })
}

/// Every adapter, with its properties. Callers must not run concurrently, see `opening.rs`.
pub(crate) async fn all() -> Vec<(AdapterInfo, wgpu::Adapter)> {
    #[cfg(target_arch = "wasm32")]
    if !super::browser::has_webgpu() {
        // wgpu would panic outside of pages and workers.
        return Vec::new();
    }
    #[cfg(test)]
    LISTINGS.set(LISTINGS.get() + 1);
    let adapters = instance().enumerate_adapters(wgpu::Backends::PRIMARY).await;
    let mut seen = Vec::new();
    let mut once = |info: wgpu::AdapterInfo| info.backend != wgpu::Backend::Noop && is_another(info, &mut seen);
    let real = adapters.into_iter().filter(|adapter| once(adapter.get_info()));
    let described = real.enumerate().map(|(index, adapter)| (describe(index, &adapter), adapter));
    #[cfg(target_arch = "wasm32")]
    let described = {
        let name = super::browser::adapter_name().await;
        described.map(move |(info, adapter)| (AdapterInfo { name: name.clone(), ..info }, adapter))
    };
    let (mut infos, adapters): (Vec<AdapterInfo>, Vec<_>) = described.unzip();
    tell_apart(&mut infos);
    infos.into_iter().zip(adapters).collect()
}

/// Appends a number to repeated names.
pub(super) fn tell_apart(adapters: &mut [AdapterInfo]) {
    for i in 0..adapters.len() {
        let (earlier, rest) = adapters.split_at_mut(i);
        let AdapterInfo { name, label, .. } = &mut rest[0];
        *label = match earlier.iter().filter(|other| other.name == *name).count() {
            0 => name.clone(),
            equal => format!("{name} #{}", equal + 1),
        };
    }
}

/// Whether this GPU was not seen before through another interface. `seen` records all GPUs with the interfaces through
/// which each was seen; a GPU occurs at most once in each interface.
fn is_another(info: wgpu::AdapterInfo, seen: &mut Vec<(wgpu::AdapterInfo, Vec<wgpu::Backend>)>) -> bool {
    // If only one of the two interfaces reports the bus address, the vendor and device numbers decide.
    let same_bus = |a: &str, b: &str| a.is_empty() || b.is_empty() || a.eq_ignore_ascii_case(b);
    let same = seen.iter_mut().find(|(other, through)| {
        (other.vendor, other.device) == (info.vendor, info.device)
            && info.vendor != 0
            && same_bus(&other.device_pci_bus_id, &info.device_pci_bus_id)
            && !through.contains(&info.backend)
    });
    match same {
        Some((_, through)) => {
            through.push(info.backend);
            false
        }
        None => {
            let through = vec![info.backend];
            seen.push((info, through));
            true
        }
    }
}

#[cfg(test)]
thread_local! {
    /// The number of times that this thread enumerated the adapters.
    pub(crate) static LISTINGS: std::cell::Cell<usize> = const { std::cell::Cell::new(0) };
}

fn describe(index: usize, adapter: &wgpu::Adapter) -> AdapterInfo {
    let info = adapter.get_info();
    AdapterInfo {
        index,
        label: info.name.clone(),
        name: info.name,
        kind: info.device_type.into(),
        api: info.backend.to_str().to_owned(),
        driver: format!("{} {}", info.driver, info.driver_info).trim().to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_gpu_that_two_interfaces_reach_is_there_once() {
        use wgpu::Backend::{Dx12, Vulkan};
        let seen_through = |backend, vendor, device, bus: &str| {
            let mut info = wgpu::AdapterInfo::new(wgpu::DeviceType::DiscreteGpu, backend);
            (info.vendor, info.device, info.device_pci_bus_id) = (vendor, device, bus.to_owned());
            info
        };
        let kept = |infos: &[wgpu::AdapterInfo]| {
            let mut seen = Vec::new();
            infos.iter().map(|info| is_another(info.clone(), &mut seen)).collect::<Vec<_>>()
        };
        let (one, two) = ("0000:01:00.0", "0000:02:00.0");
        // Two equal GPUs and one of another kind, all through both interfaces; software through each.
        let all = [
            seen_through(Vulkan, 0x10de, 7, one),
            seen_through(Vulkan, 0x10de, 7, two),
            seen_through(Vulkan, 0x8086, 9, ""),
            seen_through(Vulkan, 0x10005, 0, ""),
            seen_through(Dx12, 0x10de, 7, two),
            seen_through(Dx12, 0x10de, 7, one),
            seen_through(Dx12, 0x8086, 9, "0000:00:02.0"),
            seen_through(Dx12, 0x1414, 140, ""),
        ];
        assert_eq!(kept(&all), [true, true, true, true, false, false, false, true]);
        // Only one interface reports the bus address.
        let all = [
            seen_through(Vulkan, 0x10de, 7, ""),
            seen_through(Vulkan, 0x10de, 7, ""),
            seen_through(Dx12, 0x10de, 7, one),
            seen_through(Dx12, 0x10de, 7, two),
        ];
        assert_eq!(kept(&all), [true, true, false, false]);
        // These adapters have no identification.
        assert_eq!(kept(&[seen_through(Vulkan, 0, 0, ""), seen_through(Dx12, 0, 0, "")]), [true, true]);
    }
}
