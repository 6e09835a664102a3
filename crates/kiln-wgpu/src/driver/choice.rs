//! The choice of the adapter that a device is opened on.

use kiln_ir::{Error, Result};

#[cfg(not(target_arch = "wasm32"))]
use super::absent::absent;
use super::adapters::{AdapterInfo, AdapterKind};

/// The environment variable that names the adapter that [`crate::GpuDevice::new`] opens: a part of its label or its index.
pub const ADAPTER_VARIABLE: &str = "KILN_ADAPTER";

/// The adapter to open.
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
    /// Parses the value of [`ADAPTER_VARIABLE`]: an index, or a part of a label.
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
        true => "; a software adapter is used only when it is asked for by name or index, or by `AdapterChoice::Any`",
        false => "",
    };
    format!("the adapters are {}{hint}", list.join("; "))
}

#[cfg(test)]
mod tests {
    use super::super::adapters::tell_apart;
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
