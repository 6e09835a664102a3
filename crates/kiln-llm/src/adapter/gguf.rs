//! Adapters in GGUF files, as llama.cpp's converter writes them.

use kiln::DType;
use kiln_gguf::Gguf;

use super::names::{layer_number, unknown};
use super::parts::{Matrix, Modules, Parts, RowOrder, Side};
use crate::architecture::MODULES;
use crate::{Error, Result};

/// Reads an adapter: `general.type` is `adapter`, `adapter.type` is `lora`, and tensors are `blk.N.PROJECTION.weight.lora_a` and
/// `.lora_b`. Without `adapter.lora.alpha`, or with 0, the factor is 1, as in llama.cpp.
pub(super) fn read(name: &str, file: &Gguf<'_>) -> Result<Parts> {
    let metadata = file.metadata();
    let wrong = |reason: String| Err(Error::adapter(name, reason));
    for (key, expected) in [("general.type", "adapter"), ("adapter.type", "lora")] {
        match metadata.find::<&str>(key)? {
            Some(found) if found == expected => {}
            Some(found) => return wrong(format!("{key} is {found:?}, {expected:?} is expected of an adapter")),
            None => return wrong(format!("the file has no {key}, which is {expected:?} in adapters")),
        }
    }
    if metadata.value("adapter.alora.invocation_tokens").is_some() {
        return wrong("it begins to work at certain tokens (aLoRA), which is not supported".to_owned());
    }
    let architecture: &str = metadata.get("general.architecture")?;
    let alpha = metadata.find::<f32>("adapter.lora.alpha")?.unwrap_or(0.0);
    let mut modules = Modules::new(name);
    for view in file.tensors() {
        let info = view.info();
        let (key, side) = key_of(info.name()).ok_or_else(|| unknown(name, info.name()))?;
        let ty = info.tensor_type()?;
        let [rows, columns] = match *ty.shape.dims() {
            // A matrix of one row, whose leading extent of 1 some writers omit.
            [columns] => [1, columns],
            [rows, columns] => [rows, columns],
            _ => return wrong(format!("tensor {:?} is {}, a matrix is expected", info.name(), ty.shape)),
        };
        if !matches!(ty.dtype, DType::F32 | DType::F16 | DType::Bf16 | DType::Blocks(_)) {
            return wrong(format!("tensor {:?} has type {}, which weights cannot have", info.name(), ty.dtype));
        }
        modules.add(key, side, info.name(), Matrix::from_bytes(view.bytes(), ty.dtype, [rows, columns])?)?;
    }
    let factor = |_, rank: usize| Ok(if alpha == 0.0 { 1.0 } else { alpha / rank as f32 });
    modules.into_parts(Some(architecture.to_owned()), RowOrder::Gguf, factor)
}

/// The layer and projection of a tensor, and its side (A or B).
fn key_of(tensor: &str) -> Option<((usize, &'static str), Side)> {
    let (module, side) = tensor.rsplit_once('.')?;
    let side = match side {
        "lora_a" => Side::A,
        "lora_b" => Side::B,
        _ => return None,
    };
    let (layer, stem) = module.strip_prefix("blk.")?.strip_suffix(".weight")?.split_once('.')?;
    let stem = MODULES.into_iter().find(|known| *known == stem)?;
    Some(((layer_number(layer)?, stem), side))
}
