//! Models in several files, `NAME-00001-of-0000N.gguf`.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use crate::{Error, Gguf, Metadata, Result, TensorInfo, TensorView};

/// The key of the number of a file, from 0.
pub(crate) const NUMBER: &str = "split.no";
/// The key of the number of files.
pub(crate) const COUNT: &str = "split.count";
/// The key of the number of tensors in all files.
pub(crate) const TENSORS: &str = "split.tensors.count";

/// The path of a file of a split model: `number` counts from 0, names from 1.
pub(crate) fn path_of(prefix: &Path, number: u16, count: u16) -> PathBuf {
    let mut path = prefix.as_os_str().to_owned();
    path.push(format!("-{:05}-of-{count:05}.gguf", u32::from(number) + 1));
    path.into()
}

/// The prefix of the path of the first of `count` files.
fn prefix_of(path: &Path, count: u16) -> Option<PathBuf> {
    let name = path.file_name()?.to_str()?;
    let prefix = name.strip_suffix(&format!("-00001-of-{count:05}.gguf"))?;
    Some(path.with_file_name(prefix))
}

/// A model: one file, or all files of a split one, with their tensors by name.
#[derive(Debug)]
pub struct Model {
    paths: Vec<PathBuf>,
    files: Vec<Gguf<'static>>,
    /// The index of the file that contains a tensor.
    file_of: HashMap<String, usize>,
}

impl Model {
    /// Maps the file of a model, and the others of a split one, whose first file this must be. See [`Gguf::open`] about files
    /// that change.
    ///
    /// # Errors
    /// The errors of [`Gguf::open`]; [`Error::Split`] where files do not belong together, [`Error::Duplicate`] where two have a
    /// tensor of the same name.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), |path| Gguf::open(path))
    }

    /// Reads the same into memory.
    ///
    /// # Errors
    /// The errors of [`Gguf::read`] and of [`Model::open`].
    pub fn read(path: impl AsRef<Path>) -> Result<Self> {
        Self::with(path.as_ref(), |path| Gguf::read(path))
    }

    fn with(path: &Path, load: impl Fn(&Path) -> Result<Gguf<'static>>) -> Result<Self> {
        let wrong = |path: &Path, reason: String| Error::Split { path: path.to_owned(), reason };
        let first = load(path)?;
        let count = first.metadata().find::<u16>(COUNT)?.unwrap_or(1);
        let (mut paths, mut files) = (vec![path.to_owned()], Vec::new());
        if count > 1 {
            let number = first.metadata().get::<u16>(NUMBER)?;
            if number != 0 {
                let reason = format!("this is file {} of {count}: open the first one", u32::from(number) + 1);
                return Err(wrong(path, reason));
            }
            let prefix = prefix_of(path, count).ok_or_else(|| {
                wrong(path, format!("the first of {count} files has a name that ends with -00001-of-{count:05}.gguf"))
            })?;
            paths.extend((1..count).map(|number| path_of(&prefix, number, count)));
        }
        files.push(first);
        for (number, path) in (1u16..).zip(&paths[1..]) {
            let file = load(path)?;
            let (found, of) = (file.metadata().get::<u16>(NUMBER)?, file.metadata().get::<u16>(COUNT)?);
            if (found, of) != (number, count) {
                let reason =
                    format!("it says that it is file {found} (from 0) of {of}, {number} of {count} is expected");
                return Err(wrong(path, reason));
            }
            files.push(file);
        }
        let mut file_of = HashMap::new();
        for (at, file) in files.iter().enumerate() {
            for info in file.infos() {
                if file_of.insert(info.name().to_owned(), at).is_some() {
                    return Err(Error::Duplicate { what: "tensor", name: info.name().to_owned() });
                }
            }
        }
        if count > 1
            && let Some(expected) = files[0].metadata().find::<u64>(TENSORS)?
            && expected != file_of.len() as u64
        {
            let reason = format!("{expected} tensors announced, {} found in {count} files", file_of.len());
            return Err(wrong(path, reason));
        }
        Ok(Self { paths, files, file_of })
    }

    /// The files, the first one first.
    pub fn files(&self) -> &[Gguf<'static>] {
        &self.files
    }

    /// The paths of the files.
    pub fn paths(&self) -> &[PathBuf] {
        &self.paths
    }

    /// The metadata, which are those of the first file.
    pub fn metadata(&self) -> Metadata<'_> {
        self.files[0].metadata()
    }

    /// The descriptions of the tensors of all files.
    pub fn infos(&self) -> impl Iterator<Item = &TensorInfo> {
        self.files.iter().flat_map(Gguf::infos)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        match self.file_of.get(name) {
            Some(&file) => self.files[file].tensor(name),
            None => Err(Error::MissingTensor { name: name.to_owned() }),
        }
    }
}
