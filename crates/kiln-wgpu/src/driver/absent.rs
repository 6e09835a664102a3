//! The GPU APIs without an adapter on this machine, each with the reason.

use std::error::Error as _;
use std::fmt;

use super::adapters::{self, AdapterInfo};
use crate::trusted;

/// A GPU API without an adapter on this machine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AbsentApi {
    /// The name of the API, as in [`AdapterInfo::api`]: `vulkan`, `metal`, `dx12`.
    pub api: &'static str,
    /// The reason, and what to do about it.
    pub reason: String,
}

impl fmt::Display for AbsentApi {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.api, self.reason)
    }
}

/// The name of an API, its flag in wgpu, and the function that finds out why it has no adapter.
type Interface = (&'static str, wgpu::Backends, fn() -> String);

/// The APIs that none of the adapters belongs to.
pub(crate) fn absent(all: &[AdapterInfo]) -> Vec<AbsentApi> {
    let apple = cfg!(target_vendor = "apple");
    let apis: [Interface; 3] = [
        ("vulkan", wgpu::Backends::VULKAN, if apple { || "kiln uses Metal on this system".into() } else { vulkan }),
        (
            "metal",
            wgpu::Backends::METAL,
            if apple { || "no GPU supports it".into() } else { || "only Apple's systems have it".into() },
        ),
        (
            "dx12",
            wgpu::Backends::DX12,
            if cfg!(windows) { || "no GPU supports it".into() } else { || "only Windows has it".into() },
        ),
    ];
    let absent = apis.into_iter().filter(|(api, ..)| all.iter().all(|adapter| adapter.api != *api));
    let reason = |(api, backend, reason): Interface| {
        let left_out = !adapters::asked().contains(backend);
        AbsentApi { api, reason: if left_out { "`WGPU_BACKEND` excludes it".into() } else { reason() } }
    };
    absent.map(reason).collect()
}

fn vulkan() -> String {
    match trusted::refusal_of_vulkan() {
        None => "its loader works, but no driver offers an adapter: install the driver of the GPU".into(),
        Some(refusal) => {
            let cause = refusal.source().map(|cause| format!(": {cause}")).unwrap_or_default();
            because(&refusal.to_string(), &cause)
        }
    }
}

/// The reason for a Vulkan instance that could not be created, from wgpu's message and its cause.
fn because(asked: &str, cause: &str) -> String {
    match asked {
        "missing Vulkan entry points" => {
            format!("there is no loader (libvulkan or vulkan-1): install the driver of the GPU, which has one{cause}")
        }
        _ => format!("its loader finds no driver: install the driver of the GPU ({asked}{cause})"),
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
