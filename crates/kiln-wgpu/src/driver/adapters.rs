//! What the machine has: adapters, and which of them is meant.

use std::fmt;
use std::sync::OnceLock;

use kiln_ir::{Error, Result};

#[cfg(not(target_arch = "wasm32"))]
use super::absent::absent;

/// The environment variable that names the adapter that [`crate::GpuDevice::new`] opens: a part of its label or its index.
pub const ADAPTER_VARIABLE: &str = "KILN_ADAPTER";

/// What kind of device an adapter is.
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
    /// What it calls itself. Equal GPUs have equal names.
    pub name: String,
    /// What tells it from the others: its name, and from the second of that name on its number among them, as in
    /// `NVIDIA H200 #2`.
    pub label: String,
    /// What it is.
    pub kind: AdapterKind,
    /// The interface it is reached through: `vulkan`, `metal`, `dx12`, `webgpu`.
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

/// The interfaces to search for adapters: all, or those of `WGPU_BACKEND`. OpenGL is excluded: its drivers lack most of
/// what compute needs, and some crash during enumeration.
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

/// Every adapter, with its properties. Callers must not run concurrently, see `device/opening.rs`.
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
        described.map(move |(info, adapter)| (AdapterInfo { name: name.clone().unwrap_or(info.name), ..info }, adapter))
    };
    let (mut infos, adapters): (Vec<AdapterInfo>, Vec<_>) = described.unzip();
    tell_apart(&mut infos);
    infos.into_iter().zip(adapters).collect()
}

/// Appends a number to repeated names.
fn tell_apart(adapters: &mut [AdapterInfo]) {
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
    /// How often this thread enumerated the adapters.
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

/// Which adapter to open.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum AdapterChoice {
    /// The adapter that [`ADAPTER_VARIABLE`] names, or else the best hardware adapter.
    #[default]
    Best,
    /// The best adapter, including software.
    Any,
    /// The adapter at this position.
    Index(usize),
    /// The adapter with this label, or else the first whose label contains this text, ignoring case.
    Name(String),
}

impl AdapterChoice {
    /// Parses a person's choice: an index, or a part of a label.
    fn parse(text: &str) -> Self {
        text.trim().parse().map_or_else(|_| Self::Name(text.trim().to_owned()), Self::Index)
    }
}

/// The position of the chosen adapter.
///
/// # Errors
/// [`Error::Unavailable`]; the message lists the adapters found.
pub(crate) fn choose(choice: &AdapterChoice, adapters: &[AdapterInfo]) -> Result<usize> {
    let found = match choice {
        AdapterChoice::Best => match std::env::var(ADAPTER_VARIABLE) {
            Ok(text) if !text.trim().is_empty() => return choose(&AdapterChoice::parse(&text), adapters),
            _ => best(adapters.iter().filter(|adapter| adapter.kind != AdapterKind::Software)),
        },
        AdapterChoice::Any => best(adapters.iter()),
        AdapterChoice::Index(index) => (*index < adapters.len()).then_some(*index),
        AdapterChoice::Name(name) => {
            let name = name.to_lowercase();
            let labels: Vec<String> = adapters.iter().map(|adapter| adapter.label.to_lowercase()).collect();
            labels.iter().position(|label| *label == name).or_else(|| labels.iter().position(|l| l.contains(&name)))
        }
    };
    found.ok_or_else(|| Error::Unavailable {
        what: match choice {
            AdapterChoice::Best | AdapterChoice::Any => "a GPU".to_owned(),
            AdapterChoice::Index(index) => format!("adapter {index}"),
            AdapterChoice::Name(name) => format!("an adapter whose name contains {name:?}"),
        },
        reason: there_is(adapters),
    })
}

fn best<'a>(adapters: impl Iterator<Item = &'a AdapterInfo>) -> Option<usize> {
    let rank = |kind: AdapterKind| match kind {
        AdapterKind::Discrete => 0,
        AdapterKind::Integrated => 1,
        AdapterKind::Virtual => 2,
        AdapterKind::Other => 3,
        AdapterKind::Software => 4,
    };
    adapters.min_by_key(|adapter| (rank(adapter.kind), adapter.index)).map(|adapter| adapter.index)
}

/// The list of adapters for the error message of a failed choice.
fn there_is(adapters: &[AdapterInfo]) -> String {
    if adapters.is_empty() {
        #[cfg(target_arch = "wasm32")]
        return super::browser::why_none().into();
        #[cfg(not(target_arch = "wasm32"))]
        return absent(adapters).iter().map(ToString::to_string).collect::<Vec<_>>().join("; ");
    }
    let list: Vec<String> = adapters.iter().map(AdapterInfo::to_string).collect();
    let hint = match adapters.iter().all(|adapter| adapter.kind == AdapterKind::Software) {
        true => "; software is used only when it is asked for by name or index",
        false => "",
    };
    format!("the adapters are {}{hint}", list.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn adapter(index: usize, name: &str, kind: AdapterKind) -> AdapterInfo {
        AdapterInfo { index, name: name.into(), label: name.into(), kind, api: "vulkan".into(), driver: "1".into() }
    }

    #[test]
    fn equal_gpus_are_told_apart_by_numbers() {
        let names = ["NVIDIA H200 NVL", "NVIDIA H200", "llvmpipe", "NVIDIA H200", "NVIDIA H200"];
        let described = names.iter().enumerate().map(|(i, name)| adapter(i, name, AdapterKind::Discrete));
        let mut all: Vec<AdapterInfo> = described.collect();
        tell_apart(&mut all);
        let labels: Vec<&str> = all.iter().map(|adapter| adapter.label.as_str()).collect();
        assert_eq!(labels, ["NVIDIA H200 NVL", "NVIDIA H200", "llvmpipe", "NVIDIA H200 #2", "NVIDIA H200 #3"]);
        for (index, label) in labels.iter().enumerate() {
            assert_eq!(choose(&AdapterChoice::parse(label), &all), Ok(index), "{label}");
            assert_eq!(choose(&AdapterChoice::parse(&label.to_lowercase()), &all), Ok(index), "{label}");
        }
        assert_eq!(choose(&AdapterChoice::parse("h200"), &all), Ok(0), "the first that contains it");
        assert_eq!(choose(&AdapterChoice::parse("h200 #3"), &all), Ok(4));
        let missing = choose(&AdapterChoice::parse("h200 #4"), &all).unwrap_err().to_string();
        assert!(missing.contains("3: NVIDIA H200 #2 (discrete"), "{missing}");
    }

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

    #[test]
    fn the_best_adapter_has_memory_of_its_own_and_software_has_to_be_asked_for() {
        let all = [
            adapter(0, "llvmpipe", AdapterKind::Software),
            adapter(1, "Iris", AdapterKind::Integrated),
            adapter(2, "GeForce", AdapterKind::Discrete),
        ];
        assert_eq!(choose(&AdapterChoice::Any, &all), Ok(2));
        assert_eq!(choose(&AdapterChoice::Any, &all[..1]), Ok(0));
        assert_eq!(choose(&AdapterChoice::parse("LLVM"), &all), Ok(0));
        assert_eq!(choose(&AdapterChoice::parse(" 1 "), &all), Ok(1));
        let missing = choose(&AdapterChoice::Index(3), &all).unwrap_err().to_string();
        assert!(missing.contains("adapter 3") && missing.contains("GeForce"), "{missing}");
        assert_eq!(best(all.iter().filter(|a| a.kind != AdapterKind::Software)), Some(2));
        let none = choose(&AdapterChoice::Any, &[]).unwrap_err().to_string();
        assert!(none.contains("install the driver"), "{none}");
        assert!(there_is(&all[..1]).contains("only when it is asked for"));
    }
}
