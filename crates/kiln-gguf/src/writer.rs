//! Writes files.

use std::collections::HashSet;
use std::fmt;
use std::io::{self, Write};

use crate::metadata::ValueKind;
use crate::reader::{ALIGNMENT, DEFAULT_ALIGNMENT, MAGIC, MAX_ALIGNMENT, MAX_KEY, MAX_NAME, MAX_RANK, bytes_of};
use crate::{Error, Metadata, Result, TensorKind, TensorView, Value};

/// The version that is written.
const VERSION: u32 = 3;

/// A Rust value that metadata can hold.
pub trait ToValue {
    /// Appends the number of the type and the value.
    fn encode(&self, to: &mut Vec<u8>);
}

/// An element of an array of metadata.
pub trait ToElement {
    /// The type.
    const KIND: ValueKind;

    /// Appends the value.
    fn encode_element(&self, to: &mut Vec<u8>);
}

macro_rules! elements {
    ($($ty:ty => $kind:ident, |$value:ident| $bytes:expr;)+) => {
        $(impl ToElement for $ty {
            const KIND: ValueKind = ValueKind::$kind;
            fn encode_element(&self, to: &mut Vec<u8>) {
                let $value = self;
                to.extend_from_slice(&$bytes);
            }
        }
        impl ToValue for $ty {
            fn encode(&self, to: &mut Vec<u8>) {
                to.extend_from_slice(&(ValueKind::$kind as u32).to_le_bytes());
                self.encode_element(to);
            }
        })+
    };
}

elements! {
    u8 => U8, |x| x.to_le_bytes();
    i8 => I8, |x| x.to_le_bytes();
    u16 => U16, |x| x.to_le_bytes();
    i16 => I16, |x| x.to_le_bytes();
    u32 => U32, |x| x.to_le_bytes();
    i32 => I32, |x| x.to_le_bytes();
    u64 => U64, |x| x.to_le_bytes();
    i64 => I64, |x| x.to_le_bytes();
    f32 => F32, |x| x.to_le_bytes();
    f64 => F64, |x| x.to_le_bytes();
    bool => Bool, |x| [u8::from(*x)];
    // Tokens may be strings of any bytes.
    &[u8] => String, |x| string(x);
    &str => String, |x| string(x.as_bytes());
    String => String, |x| string(x.as_bytes());
}

fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// An array.
impl<T: ToElement> ToValue for Vec<T> {
    fn encode(&self, to: &mut Vec<u8>) {
        encode_array(T::KIND, self.len(), to);
        self.iter().for_each(|element| element.encode_element(to));
    }
}

fn encode_array(kind: ValueKind, len: usize, to: &mut Vec<u8>) {
    to.extend_from_slice(&(ValueKind::Array as u32).to_le_bytes());
    to.extend_from_slice(&(kind as u32).to_le_bytes());
    to.extend_from_slice(&(len as u64).to_le_bytes());
}

/// A value of another file, copied unchanged.
impl ToValue for Value<'_> {
    fn encode(&self, to: &mut Vec<u8>) {
        match self {
            Self::U8(x) => x.encode(to),
            Self::I8(x) => x.encode(to),
            Self::U16(x) => x.encode(to),
            Self::I16(x) => x.encode(to),
            Self::U32(x) => x.encode(to),
            Self::I32(x) => x.encode(to),
            Self::F32(x) => x.encode(to),
            Self::Bool(x) => x.encode(to),
            Self::String(x) => x.encode(to),
            Self::U64(x) => x.encode(to),
            Self::I64(x) => x.encode(to),
            Self::F64(x) => x.encode(to),
            Self::Array(array) => {
                encode_array(array.kind(), array.len(), to);
                to.extend_from_slice(array.bytes());
            }
        }
    }
}

/// A tensor that is to be written.
#[derive(Debug)]
struct Tensor<'a> {
    name: String,
    kind: TensorKind,
    extents: Vec<u64>,
    /// The number of its bytes.
    len: usize,
    content: Content<'a>,
}

/// The source of a tensor's bytes.
enum Content<'a> {
    Bytes(&'a [u8]),
    /// A function writes them.
    Made(&'a Make<'a>),
}

/// A function that writes the bytes of a tensor.
type Make<'a> = dyn Fn(&mut dyn Write) -> io::Result<()> + 'a;

impl fmt::Debug for Content<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
            Self::Made(_) => f.write_str("made when it is written"),
        }
    }
}

/// Counts the bytes that pass through to a writer.
struct Counted<'w> {
    to: &'w mut dyn Write,
    written: usize,
}

impl Write for Counted<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.to.write(bytes)?;
        self.written += written;
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.to.flush()
    }
}

impl Tensor<'_> {
    fn write(&self, to: &mut impl Write) -> io::Result<()> {
        match &self.content {
            Content::Bytes(bytes) => to.write_all(bytes),
            Content::Made(make) => {
                let mut to = Counted { to, written: 0 };
                make(&mut to)?;
                if to.written != self.len {
                    let reason = format!("{}: {} bytes were made, {} are expected", self.name, to.written, self.len);
                    return Err(io::Error::new(io::ErrorKind::InvalidData, reason));
                }
                Ok(())
            }
        }
    }
}

/// A file that is to be written: metadata, and tensors whose bytes are borrowed, or made when they are written.
///
/// ```
/// # fn main() -> kiln_gguf::Result<()> {
/// use kiln_gguf::{Gguf, TensorKind, Writer};
/// let mut writer = Writer::new();
/// writer.set("general.architecture", &"llama")?;
/// writer.tensor("output_norm.weight", TensorKind::F32, &[2], &[0; 8])?;
/// let mut file = Vec::new();
/// writer.write(&mut file).expect("a Vec takes everything");
/// assert_eq!(Gguf::parse(&file)?.metadata().get::<&str>("general.architecture")?, "llama");
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Writer<'a> {
    alignment: u32,
    keys: HashSet<String>,
    /// Keys and values, encoded.
    entries: Vec<u8>,
    names: HashSet<String>,
    tensors: Vec<Tensor<'a>>,
}

impl Default for Writer<'_> {
    fn default() -> Self {
        Self {
            alignment: DEFAULT_ALIGNMENT,
            keys: HashSet::new(),
            entries: Vec::new(),
            names: HashSet::new(),
            tensors: Vec::new(),
        }
    }
}

fn refused(what: &str, reason: impl Into<String>) -> Error {
    Error::Write { what: format!("{what:?}"), reason: reason.into() }
}

impl<'a> Writer<'a> {
    /// A file without metadata and tensors.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a key. `general.alignment` also sets the alignment of the file.
    ///
    /// # Errors
    /// [`Error::Write`] where the key exists, has more than 65535 bytes, or is an alignment that no reader takes.
    pub fn set(&mut self, key: &str, value: &dyn ToValue) -> Result<()> {
        if key.len() as u64 > MAX_KEY {
            return Err(refused(
                &key.chars().take(60).collect::<String>(),
                format!("a key has at most {MAX_KEY} bytes"),
            ));
        }
        let mut encoded = Vec::new();
        value.encode(&mut encoded);
        if key == ALIGNMENT {
            self.alignment = match encoded[..] {
                // The type u32 and its value.
                [4, 0, 0, 0, a, b, c, d] => u32::from_le_bytes([a, b, c, d]),
                _ => 0,
            };
            if !self.alignment.is_power_of_two() || self.alignment > MAX_ALIGNMENT {
                self.alignment = DEFAULT_ALIGNMENT;
                return Err(refused(key, format!("a u32 that is a power of two up to {MAX_ALIGNMENT} is expected")));
            }
        }
        if !self.keys.insert(key.to_owned()) {
            return Err(refused(key, "the key exists already"));
        }
        self.entries.extend_from_slice(&string(key.as_bytes()));
        self.entries.append(&mut encoded);
        Ok(())
    }

    /// Adds all metadata of another file.
    ///
    /// # Errors
    /// The errors of [`Writer::set`].
    pub fn set_all(&mut self, metadata: Metadata<'_>) -> Result<()> {
        metadata.iter().try_for_each(|(key, value)| self.set(key, &value))
    }

    /// Adds a tensor. The first extent is the contiguous one.
    ///
    /// # Errors
    /// [`Error::Write`] where the name exists or has more than 64 bytes, there are more than 4 extents, or the bytes are not
    /// those of the extents; [`Error::Blocks`] and [`Error::Overflow`].
    pub fn tensor(&mut self, name: &str, kind: TensorKind, extents: &[u64], bytes: &'a [u8]) -> Result<()> {
        let needed = self.check(name, kind, extents)?;
        if needed != bytes.len() as u64 {
            return Err(refused(name, format!("{} bytes given, {extents:?} of {kind} need {needed}", bytes.len())));
        }
        self.push(name, kind, extents, bytes.len(), Content::Bytes(bytes))
    }

    /// Adds a tensor whose bytes are made each time it is written, so that no more than one tensor need be in memory. An error of
    /// `make` ends the writing, and so does another number of bytes than that of the extents.
    ///
    /// # Errors
    /// The errors of [`Writer::tensor`].
    pub fn tensor_with(
        &mut self,
        name: &str,
        kind: TensorKind,
        extents: &[u64],
        make: &'a (dyn Fn(&mut dyn Write) -> io::Result<()> + 'a),
    ) -> Result<()> {
        let bytes = self.check(name, kind, extents)?;
        let too_large = |_| refused(name, format!("{bytes} bytes are more than this machine can address"));
        self.push(name, kind, extents, usize::try_from(bytes).map_err(too_large)?, Content::Made(make))
    }

    /// The bytes of a tensor, if it is valid.
    fn check(&self, name: &str, kind: TensorKind, extents: &[u64]) -> Result<u64> {
        if name.len() as u64 > MAX_NAME {
            return Err(refused(name, format!("the name of a tensor has at most {MAX_NAME} bytes")));
        }
        if extents.len() > MAX_RANK {
            return Err(refused(name, format!("{} dimensions, at most {MAX_RANK} are allowed", extents.len())));
        }
        bytes_of(name, kind, extents)
    }

    fn push(&mut self, name: &str, kind: TensorKind, extents: &[u64], len: usize, content: Content<'a>) -> Result<()> {
        if !self.names.insert(name.to_owned()) {
            return Err(refused(name, "the tensor exists already"));
        }
        self.tensors.push(Tensor { name: name.to_owned(), kind, extents: extents.to_vec(), len, content });
        Ok(())
    }

    /// Adds a tensor of another file.
    ///
    /// # Errors
    /// The errors of [`Writer::tensor`].
    pub fn copy(&mut self, tensor: TensorView<'a>) -> Result<()> {
        let info = tensor.info();
        self.tensor(info.name(), info.kind(), info.extents(), tensor.bytes())
    }

    /// Writes the file and flushes.
    ///
    /// # Errors
    /// The errors of `to`.
    pub fn write(&self, to: &mut impl Write) -> io::Result<()> {
        self.write_part(to, 0..self.tensors.len(), (self.keys.len(), &self.entries))
    }

    /// Writes some of the tensors, with these keys.
    fn write_part(
        &self,
        to: &mut impl Write,
        tensors: std::ops::Range<usize>,
        (keys, entries): (usize, &[u8]),
    ) -> io::Result<()> {
        let align = u64::from(self.alignment);
        let tensors = &self.tensors[tensors];
        let mut head = Vec::with_capacity(entries.len() + 128 * tensors.len() + 64);
        head.extend_from_slice(&MAGIC);
        head.extend_from_slice(&VERSION.to_le_bytes());
        head.extend_from_slice(&(tensors.len() as u64).to_le_bytes());
        head.extend_from_slice(&(keys as u64).to_le_bytes());
        head.extend_from_slice(entries);
        let mut offset = 0;
        for tensor in tensors {
            head.extend_from_slice(&string(tensor.name.as_bytes()));
            head.extend_from_slice(&(tensor.extents.len() as u32).to_le_bytes());
            tensor.extents.iter().for_each(|extent| head.extend_from_slice(&extent.to_le_bytes()));
            head.extend_from_slice(&tensor.kind.id().to_le_bytes());
            head.extend_from_slice(&u64::to_le_bytes(offset));
            offset += (tensor.len as u64).next_multiple_of(align);
        }
        // Other readers require tensors without gaps, and padding after the last tensor too.
        head.resize(head.len().next_multiple_of(self.alignment as usize), 0);
        to.write_all(&head)?;
        let zeros = vec![0; self.alignment as usize];
        for tensor in tensors {
            tensor.write(to)?;
            let padding = tensor.len.next_multiple_of(self.alignment as usize) - tensor.len;
            to.write_all(&zeros[..padding])?;
        }
        to.flush()
    }
}

#[cfg(not(target_arch = "wasm32"))]
mod files {
    use std::path::{Path, PathBuf};

    use super::{ToValue, Writer, refused, string};
    use crate::{Error, Result, split};

    impl Writer<'_> {
        /// Writes a file at a path. A file of this name is replaced once the new one is complete and on the disk, so that a
        /// program which has the old one mapped keeps it.
        ///
        /// # Errors
        /// [`Error::Io`].
        pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
            kiln_files::replace(&path, |file| self.write(file)).map_err(Error::io(path.as_ref()))
        }

        /// Writes files `PREFIX-00001-of-0000N.gguf`, each with at most `most_bytes` of tensors, but with one tensor at
        /// least. The metadata are in the first. Returns their paths.
        ///
        /// # Errors
        /// [`Error::Io`]; [`Error::Write`] for more than 65535 files, and where a key is set that numbers files, as of a model that is
        /// divided already.
        pub fn save_split(&self, prefix: impl AsRef<Path>, most_bytes: usize) -> Result<Vec<PathBuf>> {
            for key in [split::NUMBER, split::COUNT, split::TENSORS] {
                if self.keys.contains(key) {
                    return Err(refused(key, "it numbers files, and is set already; leave it out"));
                }
            }
            let mut parts = Vec::new();
            let (mut start, mut bytes) = (0, 0usize);
            for (index, tensor) in self.tensors.iter().enumerate() {
                if index > start && bytes.saturating_add(tensor.len) > most_bytes {
                    parts.push(start..index);
                    (start, bytes) = (index, 0);
                }
                bytes = bytes.saturating_add(tensor.len);
            }
            parts.push(start..self.tensors.len());
            let name = prefix.as_ref().to_string_lossy();
            let count = u16::try_from(parts.len())
                .map_err(|_| refused(&name, format!("{} files, at most 65535 are possible", parts.len())))?;
            let mut paths = Vec::new();
            for (number, part) in (0..count).zip(parts) {
                let mut entries = if number == 0 { self.entries.clone() } else { Vec::new() };
                let mut keys = if number == 0 { self.keys.len() } else { 0 };
                let mut add = |key: &str, value: &dyn ToValue| {
                    entries.extend_from_slice(&string(key.as_bytes()));
                    value.encode(&mut entries);
                    keys += 1;
                };
                if number > 0 && self.alignment != super::DEFAULT_ALIGNMENT {
                    add(super::ALIGNMENT, &self.alignment);
                }
                add(split::NUMBER, &number);
                add(split::COUNT, &count);
                add(split::TENSORS, &i32::try_from(self.tensors.len()).unwrap_or(i32::MAX));
                let path = split::path_of(prefix.as_ref(), number, count);
                kiln_files::replace(&path, |file| self.write_part(file, part.clone(), (keys, &entries)))
                    .map_err(Error::io(&path))?;
                paths.push(path);
            }
            Ok(paths)
        }
    }
}
