//! The metadata of a model file by the names of its architecture.

use kiln_gguf::{Metadata, Value};

use crate::{Error, Result};

/// Keys of one architecture.
pub(crate) struct Keys<'a> {
    metadata: Metadata<'a>,
    architecture: &'static str,
}

impl<'a> Keys<'a> {
    pub(crate) fn new(metadata: Metadata<'a>, architecture: &'static str) -> Self {
        Self { metadata, architecture }
    }

    fn key(&self, name: &str) -> String {
        format!("{}.{name}", self.architecture)
    }

    pub(crate) fn count(&self, name: &str) -> Result<usize> {
        Ok(self.metadata.get::<u32>(&self.key(name))? as usize)
    }

    pub(crate) fn find_count(&self, name: &str) -> Result<Option<usize>> {
        Ok(self.metadata.find::<u32>(&self.key(name))?.map(|n| n as usize))
    }

    pub(crate) fn find_number(&self, name: &str) -> Result<Option<f32>> {
        Ok(self.metadata.find::<f32>(&self.key(name))?)
    }

    pub(crate) fn find_text(&self, name: &str) -> Result<Option<&'a str>> {
        Ok(self.metadata.find::<&str>(&self.key(name))?)
    }

    pub(crate) fn find_truth(&self, name: &str) -> Result<Option<bool>> {
        Ok(self.metadata.find::<bool>(&self.key(name))?)
    }

    /// An optional number, which must be finite and positive.
    pub(crate) fn positive(&self, name: &str) -> Result<Option<f32>> {
        match self.find_number(name)? {
            Some(number) if !(number.is_normal() && number > 0.0) => {
                Err(self.refused(format!("{name} is {number}, which is not a positive number")))
            }
            number => Ok(number),
        }
    }

    /// A cap, which must be finite and positive; zero means no cap.
    pub(crate) fn cap(&self, name: &str, default: Option<f32>) -> Result<Option<f32>> {
        match self.find_number(name)? {
            None => Ok(default),
            Some(0.0) => Ok(None),
            Some(_) => self.positive(name),
        }
    }

    /// Whether each layer has a window: from an array of booleans or integers, or from the length of a pattern whose last layer
    /// sees all keys.
    pub(crate) fn windowed(&self, layers: usize, default: Option<usize>) -> Result<Vec<bool>> {
        let name = "attention.sliding_window_pattern";
        let pattern = match self.metadata.value(&self.key(name)) {
            Some(Value::Array(_)) => {
                let key = self.key(name);
                let each = match self.metadata.get::<Vec<bool>>(&key) {
                    Ok(each) => each,
                    Err(_) => self.metadata.get::<Vec<u32>>(&key)?.into_iter().map(|truth| truth != 0).collect(),
                };
                if each.len() != layers {
                    return Err(self.refused(format!("{name} names {} layers of {layers}", each.len())));
                }
                return Ok(each);
            }
            _ => self.find_count(name)?.or(default),
        };
        match pattern {
            Some(0) => Ok(vec![true; layers]),
            Some(n) => Ok((0..layers).map(|i| i % n != n - 1).collect()),
            None => {
                Err(self
                    .refused(format!("attention.sliding_window without {name}, which names the layers with a window")))
            }
        }
    }

    pub(crate) fn refused(&self, reason: String) -> Error {
        Error::model(self.architecture, reason)
    }
}
