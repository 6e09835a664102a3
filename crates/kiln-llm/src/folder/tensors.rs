//! The weights of a folder, by the names that GGUF files give them.

use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kiln::{DType, Tensor, bf16, f16};

use super::files::File;
use super::names::{MXFP4_PARTS, Names};
use super::safetensors;
use crate::{Error, Result};

/// The weights of a folder.
#[derive(Debug)]
pub(crate) struct Weights {
    pub(super) files: Vec<File>,
    /// The file of each tensor, and the tensor's index in the file.
    pub(super) by_name: HashMap<String, (usize, usize)>,
    pub(super) names: Names,
    /// Whether norms multiply by 1 + w.
    pub(super) plus_one: bool,
    /// Tensors that GGUF files contain and folders do not.
    pub(super) computed: Vec<(&'static str, Vec<f32>)>,
    /// Whether matrices that cannot share the bytes of their file are copies of them; otherwise they are zeros.
    pub(crate) copies: bool,
}

/// The bytes of a file, which keep it open.
struct Part {
    file: Arc<kiln_gguf::Bytes>,
    at: Range<usize>,
}

impl AsRef<[u8]> for Part {
    fn as_ref(&self) -> &[u8] {
        &(*self.file).as_ref()[self.at.clone()]
    }
}

impl Weights {
    fn computed(&self, name: &str) -> Option<&[f32]> {
        self.computed.iter().find(|(known, _)| *known == name).map(|(_, values)| &**values)
    }

    fn stored(&self, name: &str) -> Option<(&File, &safetensors::Info)> {
        self.named(&self.names.of(name)?)
    }

    /// A tensor by its name in the folder.
    pub(super) fn named(&self, name: &str) -> Option<(&File, &safetensors::Info)> {
        let &(file, at) = self.by_name.get(name)?;
        Some((&self.files[file], &self.files[file].infos[at]))
    }

    /// Whether there is a tensor of this name. Parts of packed tensors must be there.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.computed(name).is_some() || self.stored(name).is_some() || self.names.packed(name).is_some()
    }

    pub(crate) fn rows(&self, name: &str) -> Option<usize> {
        self.stored(name)?.1.shape.first().copied()
    }

    /// Some rows of a tensor. Vectors become f32. Matrices share the bytes of their file, except that misaligned ones
    /// become f32 too, which takes up to twice their memory.
    ///
    /// # Errors
    /// [`Error::File`] for a missing tensor, [`Error::Folder`] for a type that weights cannot have, [`Error::Model`]
    /// for other extents.
    pub(crate) fn rows_of(&self, name: &str, dims: &[usize], rows: Range<usize>) -> Result<Tensor> {
        if let Some(packed) = self.names.packed(name) {
            let whole = self.unpacked(name, packed, dims)?;
            return if rows == (0..dims[0]) { Ok(whole) } else { Ok(whole.slice(rows)?) };
        }
        let other = |name: &str, shape: &[usize]| other_extents(name, shape, dims);
        if let Some(values) = self.computed(name) {
            return match *dims == [values.len()] {
                true => Ok(Tensor::from_vec(values[rows].to_vec(), dims)?),
                false => Err(other(name, &[values.len()])),
            };
        }
        let Some((file, info)) = self.stored(name) else {
            // The name that the folder would use.
            let name = self.names.of(name).unwrap_or_else(|| name.to_owned());
            return Err(Error::File(kiln_gguf::Error::MissingTensor { name }));
        };
        if info.shape != dims {
            return Err(other(&info.name, &info.shape));
        }
        let dtype = file.computed(info)?;
        let of_row = info.bytes.len().checked_div(dims[0]).unwrap_or(0);
        let start = info.bytes.start + rows.start * of_row;
        let part = Part { file: file.bytes.clone(), at: start..start + rows.len() * of_row };
        let all: Vec<usize> = std::iter::once(rows.len()).chain(dims[1..].iter().copied()).collect();
        let is_aligned = part.as_ref().as_ptr().addr().is_multiple_of(dtype.size());
        if dims.len() > 1 && is_aligned {
            return Ok(Tensor::from_shared(Arc::new(part), dtype, &all)?);
        }
        if dims.len() > 1 && !self.copies {
            return Ok(Tensor::from_vec(vec![0.0; all.iter().product()], &all)?);
        }
        let mut values = floats(part.as_ref(), dtype);
        if self.plus_one && info.name.ends_with("norm.weight") {
            values.iter_mut().for_each(|w| *w += 1.0);
        }
        Ok(Tensor::from_vec(values, &all)?)
    }

    /// A tensor that was not requested under any of these names.
    pub(crate) fn unread(&self, read: &HashSet<String>) -> Option<String> {
        let mut of_read: HashSet<String> = HashSet::new();
        for name in read {
            let Some(theirs) = self.names.of(name) else { continue };
            if self.has_mxfp4(name) {
                of_read.extend(MXFP4_PARTS.map(|part| format!("{theirs}{part}")));
            }
            of_read.insert(theirs);
        }
        let infos = self.files.iter().flat_map(|file| &file.infos).map(|info| &*info.name);
        let mut unread = infos.filter(|name| !of_read.contains(*name) && !self.names.is_idle(name));
        unread.next().map(|name| name.escape_debug().to_string())
    }
}

impl File {
    /// The element type of a tensor in kiln.
    ///
    /// # Errors
    /// [`Error::Folder`] for a type that weights cannot have.
    pub(super) fn computed(&self, info: &safetensors::Info) -> Result<DType> {
        info.computed().ok_or_else(|| {
            let reason =
                format!("tensor {:?} has type {}; weights of F32, F16 and BF16 are supported", info.name, info.dtype);
            Error::folder(&self.path, reason)
        })
    }

    /// The bytes of a tensor.
    pub(super) fn bytes(&self, info: &safetensors::Info) -> &[u8] {
        &(*self.bytes).as_ref()[info.bytes.clone()]
    }
}

/// The error for a tensor whose extents differ from those that follow from `config.json`.
pub(super) fn other_extents(name: &str, found: &[usize], expected: &[usize]) -> Error {
    Error::model("weights", format!("{name} is {found:?}, config.json requires {expected:?}"))
}

/// Elements of a type that weights may have.
pub(super) fn floats(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let (of_four, of_two) = (bytes.as_chunks::<4>().0.iter(), bytes.as_chunks::<2>().0.iter());
    match dtype {
        DType::F16 => of_two.map(|&two| f16::from_le_bytes(two).to_f32()).collect(),
        DType::Bf16 => of_two.map(|&two| bf16::from_le_bytes(two).to_f32()).collect(),
        _ => of_four.map(|&four| f32::from_le_bytes(four)).collect(),
    }
}
