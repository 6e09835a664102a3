//! Interfaces to GPUs through which no adapter is reached, each with the reason.

use std::error::Error as _;
use std::fmt;

use super::adapters::{self, AdapterInfo};
use crate::trusted;

/// An interface to GPUs that reaches none on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentApi {
    /// The name of the API, as in [`AdapterInfo::api`]: `vulkan`, `metal`, `dx12`.
    pub api: &'static str,
    /// Why, and what helps.
    pub reason: String,
}

impl fmt::Display for AbsentApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.api, self.reason)
    }
}

/// The name of an interface, its constants in wgpu, and the function that finds out why it has no adapter.
type Interface = (&'static str, wgpu::Backends, fn() -> String);

/// The interfaces through which none of all the adapters is available.
pub(crate) fn absent(all: &[AdapterInfo]) -> Vec<AbsentApi> {
    let apple = cfg!(target_vendor = "apple");
    let apis: [Interface; 3] = [
        ("vulkan", wgpu::Backends::VULKAN, if apple { || "kiln uses Metal on this system".into() } else { vulkan }),
        (
            "metal",
            wgpu::Backends::METAL,
            if apple { || "no GPU offers it".into() } else { || "it is of Apple's systems".into() },
        ),
        (
            "dx12",
            wgpu::Backends::DX12,
            if cfg!(windows) { || "it reaches no other GPU".into() } else { || "it is of Windows".into() },
        ),
    ];
    let absent = apis.into_iter().filter(|(api, ..)| all.iter().all(|adapter| adapter.api != *api));
    let reason = |(api, backend, reason): Interface| {
        let left_out = !adapters::asked().contains(backend);
        AbsentApi { api, reason: if left_out { "`WGPU_BACKEND` leaves it out".into() } else { reason() } }
    };
    absent.map(reason).collect()
}

fn vulkan() -> String {
    match trusted::refusal_of_vulkan() {
        None => "its loader works, and no driver offers an adapter: install the driver of the GPU".into(),
        Some(refusal) => {
            let cause = refusal.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            because(&refusal.to_string(), &cause)
        }
    }
}

/// In wgpu's terms: the requested backend, and the result.
fn because(asked: &str, cause: &str) -> String {
    match asked {
        "missing Vulkan entry points" => {
            format!("there is no loader (libvulkan or vulkan-1), which comes with the driver of the GPU{cause}")
        }
        _ => format!("its loader is there and finds no driver: install the driver of the GPU ({asked}{cause})"),
    }
}

#[cfg(test)]
mod tests {
    use super::adapters::AdapterKind;
    use super::*;

    #[test]
    fn every_interface_without_an_adapter_has_a_reason_of_its_own() {
        let (name, label, driver) = (String::from("a GPU"), String::from("a GPU"), String::new());
        let none = absent(&[]);
        assert_eq!(none.iter().map(|absent| absent.api).collect::<Vec<_>>(), ["vulkan", "metal", "dx12"]);
        for (i, one) in none.iter().enumerate() {
            assert!(one.to_string().starts_with(one.api) && one.reason.len() > 10, "{one}");
            assert!(none[..i].iter().all(|other| other.reason != one.reason), "{one}");
        }
        if cfg!(target_os = "linux") {
            assert!(none[1].reason.contains("Apple") && none[2].reason.contains("Windows"), "{none:?}");
        }
        let adapter = AdapterInfo { index: 0, kind: AdapterKind::Discrete, api: "vulkan".into(), name, label, driver };
        assert_eq!(absent(&[adapter]), none[1..]);
    }

    #[test]
    fn no_loader_and_no_driver_are_two_things() {
        let loader = because("missing Vulkan entry points", ": libvulkan.so.1: cannot open shared object file");
        assert!(loader.contains("no loader") && loader.contains("cannot open"), "{loader}");
        let driver = because("vkCreateInstance() failed", ": Unable to find a Vulkan driver");
        assert!(driver.contains("install the driver") && driver.contains("Unable to find"), "{driver}");
    }
}
