//! The folder of an encoder: `config.json` as the keys of a GGUF file, and the settings of embeddings in the files of
//! sentence-transformers.

use std::path::Path;

use serde_json::Value;

use super::families;
use super::files::{is_plain, json, needed};
use super::keys::{Keys, Object};
use crate::architecture::encoder_names;
use crate::sentences::Sentences;
use crate::{Error, Pooling, Result};

/// The translation of a `config.json`.
#[derive(Debug)]
pub(super) struct Translated {
    /// A GGUF file that contains only metadata.
    pub(super) metadata: Vec<u8>,
    pub(super) vocabulary: Option<usize>,
}

/// Translates the `config.json` of an encoder.
///
/// # Errors
/// [`Error::NotAnEncoder`] and [`Error::UnsupportedArchitecture`] for another `model_type`; [`Error::Folder`] for keys
/// that are missing, of another type, or request unsupported features.
pub(super) fn translate(path: &Path, json: &Value) -> Result<Translated> {
    let config = Object::of(path, json)?;
    let model_type = config.needed("model_type", config.text("model_type")?)?;
    let architecture = families::encoder(model_type).ok_or_else(|| match families::decoder(model_type) {
        Some(family) => Error::NotAnEncoder { architecture: family.architecture, supported: encoder_names() },
        None => Error::unsupported_architecture(model_type, families::encoders()),
    })?;
    refuse_what_is_not_computed(&config)?;
    let mut keys = Keys::new(architecture)?;
    for (name, theirs) in [
        ("block_count", "num_hidden_layers"),
        ("context_length", "max_position_embeddings"),
        ("embedding_length", "hidden_size"),
        ("feed_forward_length", "intermediate_size"),
        ("attention.head_count", "num_attention_heads"),
    ] {
        keys.set(name, &config.needed(theirs, config.count(theirs)?)?)?;
    }
    keys.number("attention.layer_norm_epsilon", config.positive("layer_norm_eps")?.unwrap_or(1e-12))?;
    let vocabulary = config.count("vocab_size")?.map(|n| n as usize);
    Ok(Translated { metadata: keys.into_file(), vocabulary })
}

fn refuse_what_is_not_computed(config: &Object<'_>) -> Result<()> {
    config.refuse_quantised()?;
    // The only supported value of each key, which is also its default.
    for (name, expected) in [("hidden_act", "gelu"), ("position_embedding_type", "absolute")] {
        if let Some(found) = config.text(name)?.filter(|&found| found != expected) {
            let found = found.escape_debug();
            return Err(config.wrong(format!("{name} is {found}, {expected} is supported for encoders")));
        }
    }
    if config.truth("is_decoder")? == Some(true) {
        return Err(config.wrong("is_decoder: attention to earlier tokens alone is not supported".to_owned()));
    }
    Ok(())
}

/// Reads the settings of a folder's embeddings: `modules.json`, or `1_Pooling` without it,
/// `sentence_bert_config.json`, and `model_max_length` of `tokenizer_config.json`. The defaults are those of
/// sentence-transformers: the mean, and texts of any length, which is `usize::MAX`.
///
/// # Errors
/// [`Error::Folder`] for invalid files, and for unsupported modules and kinds of pooling.
pub(super) fn sentences(folder: &Path) -> Result<Sentences> {
    let pooling = match modules(folder)? {
        Some(pooling) => pooling,
        None => json(&folder.join("1_Pooling").join("config.json"))?.map(|_| "1_Pooling".to_owned()),
    };
    let pooling = match pooling {
        None => Pooling::Mean,
        Some(module) => pooling_of(&folder.join(module).join("config.json"))?,
    };
    let path = folder.join("sentence_bert_config.json");
    let found = json(&path)?;
    let config = found.as_ref().map(|found| Object::of(&path, found)).transpose()?;
    let (mut lower_case, mut most) = (false, None);
    if let Some(config) = config {
        lower_case = config.truth("do_lower_case")?.unwrap_or(false);
        most = config.count("max_seq_length")?.map(|n| n as usize);
    }
    if most.is_none() {
        let path = folder.join("tokenizer_config.json");
        if let Some(found) = json(&path)? {
            // Transformers writes 10^30 for texts of any length.
            most = Object::of(&path, &found)?.positive("model_max_length")?.map(|n| n as usize);
        }
    }
    Ok(Sentences { pooling, max_tokens: most.unwrap_or(usize::MAX), lower_case })
}

/// The folder of the pooling module in `modules.json`; `None` without such a file.
fn modules(folder: &Path) -> Result<Option<Option<String>>> {
    let path = folder.join("modules.json");
    let Some(found) = json(&path)? else { return Ok(None) };
    let modules = found.as_array().ok_or_else(|| Error::folder(&path, "a list of modules is expected"))?;
    let mut pooling = None;
    for module in modules {
        let module = Object::of(&path, module)?;
        let kind = module.needed("type", module.text("type")?)?;
        let part = module.needed("path", module.text("path")?)?;
        match kind.rsplit('.').next().unwrap_or_default() {
            "Transformer" if part.is_empty() => {}
            "Pooling" if pooling.is_none() && is_plain(part) => pooling = Some(part.to_owned()),
            // Normalisation is an option of kiln.
            "Normalize" => {}
            _ => {
                let (kind, part) = (kind.escape_debug(), part.escape_debug());
                let reason = format!(
                    "the module {kind} in \"{part}\" is not supported; a Transformer in the folder itself, a Pooling in a folder of it \
                     and a Normalize are"
                );
                return Err(Error::folder(&path, reason));
            }
        }
    }
    Ok(Some(pooling))
}

/// The pooling of a module: `pooling_mode`, or the one of the older keys that is true.
fn pooling_of(path: &Path) -> Result<Pooling> {
    let found = needed(path)?;
    let config = Object::of(path, &found)?;
    let modes = match config.get("pooling_mode") {
        Some(Value::Array(several)) => several.iter().map(|mode| mode.as_str().unwrap_or_default()).collect(),
        Some(_) => config.text("pooling_mode")?.into_iter().collect(),
        None => {
            let mut modes = Vec::new();
            for (name, mode) in [
                ("pooling_mode_mean_tokens", "mean"),
                ("pooling_mode_cls_token", "cls"),
                ("pooling_mode_lasttoken", "lasttoken"),
                ("pooling_mode_max_tokens", "max"),
                ("pooling_mode_mean_sqrt_len_tokens", "mean_sqrt_len_tokens"),
                ("pooling_mode_weightedmean_tokens", "weightedmean"),
            ] {
                if config.truth(name)? == Some(true) {
                    modes.push(mode);
                }
            }
            modes
        }
    };
    match &modes[..] {
        ["mean"] => Ok(Pooling::Mean),
        ["cls"] => Ok(Pooling::Cls),
        ["lasttoken"] => Ok(Pooling::Last),
        other => {
            let reason = format!("pooling by {other:?} is not supported; supported are mean, cls and lasttoken");
            Err(Error::folder(path, reason))
        }
    }
}
