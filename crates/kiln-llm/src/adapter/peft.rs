//! Adapters as PEFT, the library of Hugging Face, saves them: `adapter_config.json` and `adapter_model.safetensors`.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;

use serde::de::{MapAccess, Visitor};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use super::names::{layer_number, unknown};
use super::parts::{Matrix, Modules, Parts, RowOrder, Side};
use crate::error::printable;
use crate::folder::{adapted_module, safetensors};
use crate::{Error, Result};

/// The prefix of every tensor name: the names of the objects that contain the model.
const PREFIX: &str = "base_model.model.";

/// The keys of `adapter_config.json` that are read. The tensors determine which projections are adapted.
#[derive(Deserialize)]
struct Config {
    peft_type: String,
    r: usize,
    lora_alpha: f64,
    #[serde(default)]
    use_rslora: Option<bool>,
    /// Different ranks and alphas for some modules, by suffixes of module names.
    #[serde(default)]
    rank_pattern: Option<Entries>,
    #[serde(default)]
    alpha_pattern: Option<Entries>,
    /// The other keys. Some of them request unsupported features.
    #[serde(flatten)]
    others: Map<String, Value>,
}

/// The entries of an object in file order, which matters.
struct Entries(Vec<(String, Value)>);

impl<'de> Deserialize<'de> for Entries {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct InOrder;
        impl<'de> Visitor<'de> for InOrder {
            type Value = Entries;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of modules and numbers")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Entries, A::Error> {
                let mut entries = Vec::new();
                while let Some(entry) = map.next_entry()? {
                    entries.push(entry);
                }
                Ok(Entries(entries))
            }
        }
        from.deserialize_map(InOrder)
    }
}

/// Keys that request more than the matrices A and B, with the values that do not.
const MORE: &[(&str, &[&str])] = &[
    ("bias", &["null", "\"none\""]),
    ("modules_to_save", &["null", "[]"]),
    ("use_dora", &["null", "false"]),
    ("lora_bias", &["null", "false"]),
    ("fan_in_fan_out", &["null", "false"]),
    ("layer_replication", &["null"]),
    ("alora_invocation_tokens", &["null", "[]"]),
    ("trainable_token_indices", &["null", "[]", "{}"]),
    ("target_parameters", &["null", "[]"]),
];

/// Loads an adapter from its folder.
pub(super) fn load(folder: &Path) -> Result<Parts> {
    let (config, weights) = (folder.join("adapter_config.json"), folder.join("adapter_model.safetensors"));
    let text = crate::folder::text(&config)?.ok_or_else(|| Error::folder(&config, "the file is missing"))?;
    if !weights.exists() {
        let reason = "the file is missing; adapters in other files, such as adapter_model.bin, are not read";
        return Err(Error::folder(&weights, reason));
    }
    let bytes = kiln_gguf::Bytes::read(&weights)?;
    read(&folder.display().to_string(), &text, &weights, bytes.as_ref())
}

/// Reads an adapter; `path` names its weights in errors.
pub(super) fn read(name: &str, config: &str, path: &Path, weights: &[u8]) -> Result<Parts> {
    let wrong = |reason: String| Error::adapter(name, reason);
    let config: Config = serde_json::from_str(config)
        .map_err(|error| wrong(format!("adapter_config.json is not valid: {}", printable(error))))?;
    if config.peft_type != "LORA" {
        return Err(wrong(format!("peft_type is {:?}; LORA is supported", config.peft_type)));
    }
    for (key, idle) in MORE {
        if let Some(value) = config.others.get(*key).map(Value::to_string).filter(|value| !idle.contains(&&**value)) {
            let value: String = value.chars().filter(|c| !c.is_control()).take(100).collect();
            return Err(wrong(format!("adapter_config.json has {key} = {value}, which is not supported")));
        }
    }
    let ranks = Pattern::new("rank_pattern", config.rank_pattern.as_ref()).map_err(wrong)?;
    let alphas = Pattern::new("alpha_pattern", config.alpha_pattern.as_ref()).map_err(wrong)?;
    let mut modules = Modules::new(name);
    // The PEFT name of each key's module.
    let mut names = BTreeMap::new();
    for info in safetensors::parse(path, weights)? {
        let (module, key, side) = key_of(&info.name).ok_or_else(|| unknown(name, &info.name))?;
        let dtype = info.computed().ok_or_else(|| {
            wrong(format!("tensor {:?} has type {}; F32, F16 and BF16 are supported", info.name, info.dtype))
        })?;
        let &[rows, columns] = &*info.shape else {
            return Err(wrong(format!("tensor {:?} is {:?}, a matrix is expected", info.name, info.shape)));
        };
        let matrix = Matrix::from_bytes(&weights[info.bytes.clone()], dtype, [rows, columns])?;
        modules.add(key, side, &info.name, matrix)?;
        names.insert(key, module.to_owned());
    }
    let factor = |key: (usize, &'static str), rank: usize| {
        let module = names.get(&key).map_or("", String::as_str);
        let expected = ranks.of(module).unwrap_or(config.r as f64);
        if rank as f64 != expected {
            return Err(wrong(format!("module {module} has rank {rank}, adapter_config.json says {expected}")));
        }
        let alpha = alphas.of(module).unwrap_or(config.lora_alpha);
        let by = if config.use_rslora == Some(true) { expected.sqrt() } else { expected };
        Ok((alpha / by) as f32)
    };
    modules.into_parts(None, RowOrder::Halves, factor)
}

/// The PEFT name of a tensor's module, its layer and projection, and its side.
fn key_of(tensor: &str) -> Option<(&str, (usize, &'static str), Side)> {
    let module = tensor.strip_prefix(PREFIX)?;
    let (module, side) = match (module.strip_suffix(".lora_A.weight"), module.strip_suffix(".lora_B.weight")) {
        (Some(module), _) => (module, Side::A),
        (_, Some(module)) => (module, Side::B),
        _ => return None,
    };
    let (layer, stem) = adapted_module(module)?;
    Some((module, (layer_number(layer)?, stem), side))
}

/// Values for some modules. PEFT treats the keys as regular expressions that match the end of a module's name; here
/// they must be such suffixes, made of whole parts between dots.
struct Pattern<'c>(Vec<(&'c str, f64)>);

impl<'c> Pattern<'c> {
    /// # Errors
    /// Returns what is unsupported in `key` as an error.
    fn new(key: &str, entries: Option<&'c Entries>) -> Result<Self, String> {
        let entries = entries.into_iter().flat_map(|Entries(entries)| entries).map(|(name, value)| {
            if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '.')) {
                return Err(format!(
                    "{key} has {name:?}: names of modules, or their ends, are supported, and no other regular expressions"
                ));
            }
            let number = value.as_f64().ok_or_else(|| format!("{key} gives {name:?} the value {value}, a number is expected"))?;
            Ok((&**name, number))
        });
        Ok(Self(entries.collect::<Result<_, _>>()?))
    }

    /// The value for a module; the first matching key wins.
    fn of(&self, module: &str) -> Option<f64> {
        let fits = |end: &str| module.strip_suffix(end).is_some_and(|rest| rest.is_empty() || rest.ends_with('.'));
        self.0.iter().find(|(end, _)| fits(end)).map(|&(_, number)| number)
    }
}
