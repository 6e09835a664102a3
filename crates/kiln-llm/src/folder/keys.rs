//! The values of JSON files, and the keys of GGUF files that are made of them.

use std::path::Path;

use kiln_gguf::{ToValue, Writer};
use serde_json::{Map, Value};

use crate::{Error, Result};

/// An object of a file. Null values count as missing.
#[derive(Clone, Copy)]
pub(super) struct Object<'a> {
    pub(super) path: &'a Path,
    pub(super) values: &'a Map<String, Value>,
}

impl<'a> Object<'a> {
    pub(super) fn of(path: &'a Path, value: &'a Value) -> Result<Self> {
        let values = value.as_object().ok_or_else(|| Error::folder(path, "an object is expected"))?;
        Ok(Self { path, values })
    }

    pub(super) fn wrong(&self, reason: String) -> Error {
        Error::folder(self.path, reason)
    }

    pub(super) fn get(&self, name: &str) -> Option<&'a Value> {
        self.values.get(name).filter(|value| !value.is_null())
    }

    /// The value of a key, converted by `read`.
    pub(super) fn read<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        let Some(value) = self.get(name) else { return Ok(None) };
        read(value).map(Some).ok_or_else(|| {
            let found: String = value.to_string().chars().take(100).flat_map(char::escape_debug).collect();
            self.wrong(format!("{name} is {found}, {expected} is expected"))
        })
    }

    pub(super) fn whole(&self, name: &str) -> Result<Option<u32>> {
        self.read(name, "an integer of 32 bits", |value| value.as_u64()?.try_into().ok())
    }

    pub(super) fn count(&self, name: &str) -> Result<Option<u32>> {
        self.read(name, "a count from 1 on", |value| u32::try_from(value.as_u64()?).ok().filter(|&n| n > 0))
    }

    pub(super) fn number(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a number", Value::as_f64)
    }

    pub(super) fn positive(&self, name: &str) -> Result<Option<f64>> {
        self.read(name, "a positive number", |value| value.as_f64().filter(|&x| (x as f32).is_normal() && x > 0.0))
    }

    pub(super) fn truth(&self, name: &str) -> Result<Option<bool>> {
        self.read(name, "true or false", Value::as_bool)
    }

    pub(super) fn text(&self, name: &str) -> Result<Option<&'a str>> {
        self.read(name, "a string", Value::as_str)
    }

    pub(super) fn object(&self, name: &str) -> Result<Option<Self>> {
        let values = self.read(name, "an object", Value::as_object)?;
        Ok(values.map(|values| Self { values, ..*self }))
    }

    pub(super) fn list<T>(
        &self,
        name: &str,
        expected: &str,
        read: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<Vec<T>>> {
        self.read(name, expected, |value| value.as_array()?.iter().map(&read).collect())
    }

    pub(super) fn needed<T>(&self, name: &str, found: Option<T>) -> Result<T> {
        found.ok_or_else(|| self.wrong(format!("{name} is missing")))
    }

    /// Refuses weights that are quantised in formats of other programs.
    pub(super) fn refuse_quantised(&self) -> Result<()> {
        if self.get("quantization_config").is_none() {
            return Ok(());
        }
        let reason = "quantization_config: weights that are quantised in safetensors files are not supported; take the model's files \
                      of 16 bits, or a GGUF file";
        Err(self.wrong(reason.to_owned()))
    }

    /// One token number or several.
    pub(super) fn tokens(&self, name: &str) -> Result<Vec<u32>> {
        let id = |value: &Value| value.as_u64()?.try_into().ok();
        let read = |value: &Value| match value {
            Value::Array(several) => several.iter().map(id).collect(),
            one => Some(vec![id(one)?]),
        };
        Ok(self.read(name, "the number of a token, or several", read)?.unwrap_or_default())
    }
}

/// The keys to be written.
pub(super) struct Keys {
    architecture: &'static str,
    writer: Writer<'static>,
}

impl Keys {
    /// Keys with only the name of the architecture.
    pub(super) fn new(architecture: &'static str) -> Result<Self> {
        let mut writer = Writer::new();
        writer.set("general.architecture", &architecture)?;
        Ok(Self { architecture, writer })
    }

    pub(super) fn set(&mut self, name: &str, value: &dyn ToValue) -> Result<()> {
        Ok(self.writer.set(&format!("{}.{name}", self.architecture), value)?)
    }

    pub(super) fn number(&mut self, name: &str, value: f64) -> Result<()> {
        self.set(name, &(value as f32))
    }

    /// A GGUF file that contains only these metadata.
    pub(super) fn into_file(self) -> Vec<u8> {
        let mut file = Vec::new();
        self.writer.write(&mut file).expect("a Vec takes everything");
        file
    }
}
