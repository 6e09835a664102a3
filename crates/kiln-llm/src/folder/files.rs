//! The files of a folder.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use kiln_gguf::Bytes;
use serde_json::Value;

use super::safetensors;
use crate::error::printable;
use crate::{Error, Result};

/// A safetensors file.
#[derive(Debug, Clone)]
pub(super) struct File {
    pub(super) path: PathBuf,
    pub(super) bytes: Arc<Bytes>,
    pub(super) infos: Vec<safetensors::Info>,
}

/// Maximum bytes of a JSON or template file, so that another file does not fill the memory.
const MOST_TEXT: u64 = 1 << 30;

/// Whether a name is a plain file name without a path.
pub(super) fn is_plain(name: &str) -> bool {
    let mut parts = Path::new(name).components();
    matches!((parts.next(), parts.next()), (Some(std::path::Component::Normal(part)), None) if part == name)
}

pub(super) fn missing(path: &Path) -> Error {
    Error::folder(path, "the file is missing")
}

/// The text of a file, if it exists.
pub(crate) fn text(path: &Path) -> Result<Option<String>> {
    if !path.exists() {
        return Ok(None);
    }
    let len = std::fs::metadata(path).map_or(0, |found| found.len());
    if len > MOST_TEXT {
        return Err(Error::folder(path, format!("it has {len} bytes, at most {MOST_TEXT} are expected")));
    }
    let bytes = Bytes::read(path)?;
    let text = String::from_utf8(bytes.as_ref().to_vec());
    Ok(Some(text.map_err(|_| Error::folder(path, "it is not UTF-8"))?))
}

/// The JSON of a file, if it exists.
pub(super) fn json(path: &Path) -> Result<Option<Value>> {
    let Some(text) = text(path)? else { return Ok(None) };
    let value = serde_json::from_str(&text)
        .map_err(|error| Error::folder(path, format!("not valid JSON: {}", printable(error))))?;
    Ok(Some(value))
}

pub(super) fn needed(path: &Path) -> Result<Value> {
    json(path)?.ok_or_else(|| missing(path))
}
