//! Weights as tensors that share the bytes of their file.

use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use kiln::waiting::wait;
use kiln::{Buffer, DType, Data, Shape, Tensor, TensorType};
use kiln_gguf::Model;

use crate::folder::Weights;
use crate::{Error, Result};

/// The source of a model's weights.
#[derive(Debug)]
pub(crate) struct Source {
    files: Files,
    /// The names of the requested tensors.
    read: RefCell<HashSet<String>>,
    /// Whether tensors that cannot share the bytes of their file are copies of them; otherwise they are zeros.
    copies: bool,
}

#[derive(Debug)]
enum Files {
    Gguf(Arc<Model>),
    Folder(Weights),
    /// Tensors that a program created.
    Tensors(HashMap<String, Tensor>),
}

/// The bytes of one tensor, which keep their file open.
struct Bytes {
    model: Arc<Model>,
    /// The index of the file in a split model, and the bytes in it.
    file: usize,
    at: Range<usize>,
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        &self.model.files()[self.file].bytes()[self.at.clone()]
    }
}

impl Source {
    pub(crate) fn new(model: Model) -> Self {
        Self { files: Files::Gguf(Arc::new(model)), read: RefCell::default(), copies: true }
    }

    /// The weights of a folder, by their names in GGUF files.
    pub(crate) fn of_folder(weights: Weights) -> Self {
        Self { files: Files::Folder(weights), read: RefCell::default(), copies: true }
    }

    /// Tensors by their names in GGUF files.
    pub(crate) fn of_tensors(tensors: HashMap<String, Tensor>) -> Self {
        Self { files: Files::Tensors(tensors), read: RefCell::default(), copies: true }
    }

    /// The same with zeros, which take no memory, in place of matrices that would be copied: for what depends on types and extents
    /// alone.
    pub(crate) fn without_copies(mut self) -> Self {
        self.copies = false;
        if let Files::Folder(weights) = &mut self.files {
            weights.copies = false;
        }
        self
    }

    /// Whether there is a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        match &self.files {
            Files::Gguf(model) => model.tensor(name).is_ok(),
            Files::Folder(weights) => weights.has(name),
            Files::Tensors(tensors) => tensors.contains_key(name),
        }
    }

    /// The outermost extent of a tensor, if it exists.
    pub(crate) fn rows(&self, name: &str) -> Option<usize> {
        match &self.files {
            Files::Gguf(model) => usize::try_from(*model.tensor(name).ok()?.info().extents().last()?).ok(),
            Files::Folder(weights) => weights.rows(name),
            Files::Tensors(tensors) => tensors.get(name)?.shape().dims().first().copied(),
        }
    }

    /// The tensor of this name, outermost extent first.
    ///
    /// # Errors
    /// [`Error::File`] if the file has no such tensor, or kiln has no kernels for its type (for folders that is
    /// [`Error::Folder`]); [`Error::Model`] if its extents differ.
    pub(crate) fn tensor(&self, name: &str, dims: &[usize]) -> Result<Tensor> {
        self.rows_of(name, dims, 0..dims.first().copied().unwrap_or_default())
    }

    /// Some rows of the tensor with this name, whose extents are `dims`: entries along the outermost one. They share
    /// the bytes of the file, because rows of every type are whole blocks.
    ///
    /// # Errors
    /// The errors of [`Source::tensor`].
    pub(crate) fn rows_of(&self, name: &str, dims: &[usize], rows: Range<usize>) -> Result<Tensor> {
        self.read.borrow_mut().insert(name.to_owned());
        match &self.files {
            Files::Gguf(model) => Self::rows_of_gguf(model, name, dims, rows),
            Files::Folder(weights) => weights.rows_of(name, dims, rows),
            Files::Tensors(tensors) => {
                let missing = || Error::File(kiln_gguf::Error::MissingTensor { name: name.to_owned() });
                let tensor = tensors.get(name).ok_or_else(missing)?;
                if tensor.shape().dims() != dims {
                    let reason = format!("{name} is {}, {dims:?} is expected", tensor.shape());
                    return Err(Error::model("weights", reason));
                }
                if rows == (0..dims[0]) { Ok(tensor.clone()) } else { Ok(tensor.slice(rows)?) }
            }
        }
    }

    fn rows_of_gguf(model: &Arc<Model>, name: &str, dims: &[usize], rows: Range<usize>) -> Result<Tensor> {
        let view = model.tensor(name)?;
        let ty = view.info().tensor_type()?;
        if ty.shape != Shape::new(dims)? {
            return Err(Error::model("weights", format!("{name} is {}, the metadata require {dims:?}", ty.shape)));
        }
        // Refuses misaligned elements here, where the name is known.
        view.operand()?;
        let has = |file: &kiln_gguf::Gguf<'_>| file.tensor(name).is_ok();
        let file = model.files().iter().position(has).unwrap_or(0);
        let of_row = view.bytes().len().checked_div(dims[0]).unwrap_or(0);
        let start = view.info().offset() + rows.start * of_row;
        let bytes = Bytes { model: model.clone(), file, at: start..start + rows.len() * of_row };
        let dims: Vec<usize> = std::iter::once(rows.len()).chain(dims[1..].iter().copied()).collect();
        Ok(Tensor::from_shared(Arc::new(bytes), ty.dtype, &dims)?)
    }

    /// The tensor with this name, if the file has one.
    ///
    /// # Errors
    /// The errors of [`Source::tensor`], except for a missing tensor.
    pub(crate) fn find(&self, name: &str, dims: &[usize]) -> Result<Option<Tensor>> {
        self.has(name).then(|| self.tensor(name, dims)).transpose()
    }

    /// Whether a program created the tensors.
    pub(crate) fn is_of_program(&self) -> bool {
        matches!(self.files, Files::Tensors(_))
    }

    /// Whether the tensors are those of a folder.
    pub(crate) fn is_folder(&self) -> bool {
        matches!(self.files, Files::Folder(_))
    }

    /// Stacks `dims[0]` tensors with the other two extents. Their elements are copied, unless the source makes no copies, as f32 if
    /// they have several floating-point types.
    ///
    /// # Errors
    /// The errors of [`Source::tensor`], and [`Error::Model`] if some are quantised in another type than others.
    pub(crate) fn stacked(&self, names: impl Iterator<Item = String>, dims: [usize; 3]) -> Result<Tensor> {
        let named = |name: String| Ok((self.tensor(&name, &dims[1..])?, name));
        let tensors = names.map(named).collect::<Result<Vec<(Tensor, String)>>>()?;
        let first = tensors.first().map_or(DType::F32, |(tensor, _)| tensor.dtype());
        let other = tensors.iter().find(|(tensor, _)| tensor.dtype() != first);
        let dtype = match other {
            None => first,
            Some((tensor, _)) if tensor.dtype().is_float() && first.is_float() => DType::F32,
            Some((tensor, name)) => {
                let reason = format!("{name} is {}, those before it are {first}", tensor.dtype());
                return Err(Error::model("weights", reason));
            }
        };
        let mut stack = Buffer::zeros(&TensorType::of(dtype, Shape::new(&dims)?)?)?;
        if !self.copies {
            return Ok(Tensor::from_buffer(stack, &dims)?);
        }
        let (mut into, mut at) = (stack.as_mut(), 0);
        for (tensor, _) in tensors {
            // They are on the host, unless the program moved them.
            let elements = wait(tensor.to_buffer_async())?;
            let wide: Vec<f32>;
            let data = match elements.as_data() {
                data if data.dtype() == dtype => data,
                Data::F16(halves) => {
                    wide = halves.iter().map(|x| x.to_f32()).collect();
                    Data::F32(&wide)
                }
                Data::Bf16(halves) => {
                    wide = halves.iter().map(|x| x.to_f32()).collect();
                    Data::F32(&wide)
                }
                data => return Err(Error::model("weights", format!("experts of {first} and of {}", data.dtype()))),
            };
            into.as_bytes()[at..at + data.bytes()].copy_from_slice(data.as_bytes());
            at += data.bytes();
        }
        Ok(Tensor::from_buffer(stack, &dims)?)
    }

    /// A tensor that was not requested.
    pub(crate) fn unread(&self) -> Option<String> {
        let read = self.read.borrow();
        // Some files of 2023 contain frequencies, which follow from the base.
        let known = |name: &str| read.contains(name) || name.ends_with(".attn_rot_embd.weight");
        match &self.files {
            Files::Gguf(model) => {
                let unread = model.infos().map(|info| info.name()).find(|name| !known(name));
                unread.map(|name| name.escape_debug().to_string())
            }
            Files::Folder(weights) => weights.unread(&read),
            Files::Tensors(tensors) => {
                let unread = tensors.keys().find(|name| !known(name));
                unread.map(|name| name.escape_debug().to_string())
            }
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use kiln::QuantFormat;
    use kiln_gguf::{TensorKind, Writer};

    use super::*;

    /// Six rows of two blocks of 32 elements, each a 16-bit scale and 32 integers.
    const ROW: usize = 2 * 34;

    #[test]
    fn rows_are_those_bytes_of_the_file() {
        let bytes: Vec<u8> = (0..6 * ROW).map(|i| (i % 251) as u8).collect();
        let mut writer = Writer::new();
        writer.tensor("other", TensorKind::F32, &[3], &[0; 12]).unwrap();
        writer.tensor("fused", TensorKind::Q8_0, &[64, 6], &bytes).unwrap();
        let path = std::env::temp_dir().join(format!("kiln-llm-{}-rows.gguf", std::process::id()));
        writer.save(&path).unwrap();
        let source = Source::new(Model::read(&path).unwrap());
        std::fs::remove_file(path).unwrap();
        assert_eq!((source.rows("fused"), source.rows("none"), source.has("none")), (Some(6), None, false));
        for rows in [0..6, 0..2, 2..5, 5..6] {
            let part = source.rows_of("fused", &[6, 64], rows.clone()).unwrap();
            assert_eq!((part.dtype(), part.shape().dims()), (DType::Blocks(QuantFormat::Q8_0), &[rows.len(), 64][..]));
            assert_eq!(part.to_buffer().unwrap().as_data().blocks(), &bytes[rows.start * ROW..rows.end * ROW]);
        }
        assert!(matches!(source.rows_of("fused", &[5, 64], 0..2), Err(Error::Model { .. })));
        assert!(matches!(source.tensor("none", &[1]), Err(Error::File(_))));
        assert_eq!(source.unread().as_deref(), Some("other"));
        source.tensor("other", &[3]).unwrap();
        assert_eq!(source.unread(), None);
    }

    #[test]
    fn outlines_copy_no_elements() {
        let source = || {
            let expert = |value: f32| Tensor::from_vec(vec![value; 6], &[2, 3]).unwrap();
            Source::of_tensors((0..2_u8).map(|at| (at.to_string(), expert(f32::from(at) + 1.0))).collect())
        };
        let stack = |source: Source| source.stacked((0..2).map(|at| at.to_string()), [2, 2, 3]).unwrap();
        let [copied, outline] = [stack(source()), stack(source().without_copies())];
        assert_eq!((copied.dtype(), copied.shape()), (outline.dtype(), outline.shape()));
        assert_eq!(copied.to_vec().unwrap(), [[1.0; 6], [2.0; 6]].concat());
        assert_eq!(outline.to_vec().unwrap(), [0.0; 12]);
    }
}
