//! Reads and validates a file.

use std::collections::HashMap;
use std::fmt;

use kiln_ir::{Data, Operand, Shape, TensorType};

use crate::metadata::{Entries, Entry, Metadata, ValueKind};
use crate::{Error, Result, TensorKind};

/// The four bytes at the beginning of every file.
pub(crate) const MAGIC: [u8; 4] = *b"GGUF";
/// Maximum dimensions of a tensor.
pub(crate) const MAX_RANK: usize = 4;
/// Maximum bytes of a key.
pub(crate) const MAX_KEY: u64 = 65535;
/// Maximum bytes of a tensor's name.
pub(crate) const MAX_NAME: u64 = 64;
/// The alignment of files without the key.
pub(crate) const DEFAULT_ALIGNMENT: u32 = 32;
/// Maximum alignment: files use 32, or the page size to align tensors with pages, which is at most 1 MiB.
pub(crate) const MAX_ALIGNMENT: u32 = 1 << 20;
/// The key of the alignment.
pub(crate) const ALIGNMENT: &str = "general.alignment";
/// Minimum bytes of a key with its value: length of the key, type, a value of one byte.
const LEAST_ENTRY: u64 = 8 + 4 + 1;
/// Minimum bytes of a tensor's description: length of the name, dimensions, type, offset.
const LEAST_TENSOR: u64 = 8 + 4 + 4 + 8;

/// The description of a tensor in a file, checked against the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorInfo {
    name: String,
    kind: TensorKind,
    rank: usize,
    extents: [u64; MAX_RANK],
    /// Offset from the beginning of the file.
    start: usize,
    bytes: usize,
}

impl TensorInfo {
    /// The name.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The type of the elements.
    pub fn kind(&self) -> TensorKind {
        self.kind
    }

    /// The extents as files have them: the contiguous one first. A weight of PyTorch `[out, in]` has `[in, out]`.
    pub fn extents(&self) -> &[u64] {
        &self.extents[..self.rank]
    }

    /// The number of elements.
    pub fn elements(&self) -> u64 {
        self.extents().iter().product()
    }

    /// The bytes that the elements take.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The offset of its bytes in the file.
    pub fn offset(&self) -> usize {
        self.start
    }

    /// The type as kiln's operations take it: extents outermost first, so that the contiguous one is last.
    ///
    /// # Errors
    /// [`Error::NotComputed`] where kiln has no such type, [`Error::Tensor`] where the extents overflow this machine.
    pub fn tensor_type(&self) -> Result<TensorType> {
        let dtype =
            self.kind.dtype().ok_or_else(|| Error::NotComputed { tensor: self.name.clone(), kind: self.kind })?;
        let refused = |source| Error::Tensor { tensor: self.name.clone(), source };
        // The bytes of an existing file fit usize, but an extent beside a zero extent may have any value.
        let dims: Vec<usize> = self.extents().iter().rev().map(|&n| usize::try_from(n).unwrap_or(usize::MAX)).collect();
        Shape::new(&dims).and_then(|shape| TensorType::of(dtype, shape)).map_err(refused)
    }
}

/// The bytes of a tensor, borrowed from the file, with its description.
#[derive(Clone, Copy)]
pub struct TensorView<'a> {
    info: &'a TensorInfo,
    bytes: &'a [u8],
}

impl<'a> TensorView<'a> {
    /// The description of the tensor.
    pub fn info(&self) -> &'a TensorInfo {
        self.info
    }

    /// The bytes, as the file has them.
    pub fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// The bytes as an operand of kiln, without a copy.
    ///
    /// # Errors
    /// The errors of [`TensorInfo::tensor_type`]; [`Error::Address`] where borrowed bytes begin at an address that their elements cannot have.
    pub fn operand(&self) -> Result<Operand<'a>> {
        let ty = self.info.tensor_type()?;
        let name = || self.info.name.clone();
        let data = Data::from_bytes(ty.dtype, self.bytes)
            .map_err(|_| Error::Address { tensor: name(), needed: self.info.kind.block_bytes() })?;
        Operand::new(data, ty.shape).map_err(|source| Error::Tensor { tensor: name(), source })
    }
}

impl fmt::Debug for TensorView<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.info, f)
    }
}

/// The storage of the bytes of a file.
#[derive(Debug)]
enum Storage<'a> {
    #[cfg(not(target_arch = "wasm32"))]
    Mapped(crate::map::Map),
    /// Read into memory: the first bytes of 8-byte words, so that elements of every type are aligned.
    Read(Vec<u64>, usize),
    Borrowed(&'a [u8]),
}

impl Storage<'static> {
    /// Maps a whole file.
    #[cfg(not(target_arch = "wasm32"))]
    fn map(path: &std::path::Path) -> Result<Self> {
        let (file, len) = file_of(path)?;
        // Systems do not map empty files.
        if len == 0 {
            return Ok(Self::Read(Vec::new(), 0));
        }
        Ok(Self::Mapped(crate::map::Map::new(&file).map_err(Error::io(path))?))
    }

    /// WebAssembly has no file mapping.
    #[cfg(target_arch = "wasm32")]
    fn map(path: &std::path::Path) -> Result<Self> {
        Self::read(path)
    }

    /// Reads a whole file into memory.
    fn read(path: &std::path::Path) -> Result<Self> {
        use std::io::{ErrorKind, Read};
        let (mut file, len) = file_of(path)?;
        let len = usize::try_from(len).map_err(|_| Error::io(path)(ErrorKind::FileTooLarge.into()))?;
        let words = len.div_ceil(8);
        let mut memory: Vec<u64> = Vec::new();
        memory.try_reserve_exact(words).map_err(|_| Error::io(path)(ErrorKind::OutOfMemory.into()))?;
        memory.resize(words, 0);
        file.read_exact(&mut bytemuck::cast_slice_mut(&mut memory)[..len]).map_err(Error::io(path))?;
        Ok(Self::Read(memory, len))
    }
}

impl Storage<'_> {
    fn bytes(&self) -> &[u8] {
        match self {
            #[cfg(not(target_arch = "wasm32"))]
            Self::Mapped(map) => map.bytes(),
            Self::Read(words, len) => &bytemuck::cast_slice(words)[..*len],
            Self::Borrowed(bytes) => bytes,
        }
    }
}

/// The bytes of a file of any format, mapped or read: for readers of weights that are not in GGUF files.
#[derive(Debug)]
pub struct Bytes(Storage<'static>);

impl Bytes {
    /// Maps a file into memory. [`Gguf::open`] says what happens where it changes: copy bytes before they are checked as text.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn map(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Storage::map(path.as_ref()).map(Self)
    }

    /// Reads a whole file into memory. Its bytes begin at a multiple of 8.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read or the machine has no memory for it.
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Storage::read(path.as_ref()).map(Self)
    }
}

impl AsRef<[u8]> for Bytes {
    fn as_ref(&self) -> &[u8] {
        self.0.bytes()
    }
}

/// The parsed contents of a file.
#[derive(Debug)]
struct Contents {
    version: u32,
    alignment: u32,
    entries: Entries,
    tensors: Vec<TensorInfo>,
    by_name: HashMap<String, usize>,
}

/// A GGUF file that was read and validated.
///
/// Metadata and tensors borrow from it; nothing is copied but keys and names.
#[derive(Debug)]
pub struct Gguf<'a> {
    storage: Storage<'a>,
    contents: Contents,
}

impl Gguf<'static> {
    /// Maps a file into memory and validates it.
    ///
    /// Pages are loaded from the disk when they are first read. While the map lives the file must not be changed in place; if
    /// it is truncated, reading beyond its new end ends the process with SIGBUS. Where that can happen (a network drive, a download
    /// that is still running), use [`Gguf::read`].
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be mapped; every error of validation.
    pub fn open(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::of(Storage::map(path.as_ref())?)
    }

    /// Reads a whole file into memory and validates it. It may change or be truncated later.
    ///
    /// # Errors
    /// [`Error::Io`] where the file cannot be read or the machine has no memory for it; every error of validation.
    pub fn read(path: impl AsRef<std::path::Path>) -> Result<Self> {
        Self::of(Storage::read(path.as_ref())?)
    }
}

/// Opens a file and returns its length. Refuses directories, FIFOs and devices: opening a FIFO would wait for a writer.
fn file_of(path: &std::path::Path) -> Result<(std::fs::File, u64)> {
    let found = std::fs::metadata(path).map_err(Error::io(path))?;
    if !found.is_file() {
        let reason = "it is a directory, a FIFO or a device, a file is needed";
        return Err(Error::io(path)(std::io::Error::new(std::io::ErrorKind::InvalidInput, reason)));
    }
    let file = std::fs::File::open(path).map_err(Error::io(path))?;
    let len = file.metadata().map_err(Error::io(path))?.len();
    Ok((file, len))
}

impl<'a> Gguf<'a> {
    /// Validates a file whose bytes are in memory, such as one that a browser has downloaded.
    ///
    /// # Errors
    /// Every error of validation.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        Self::of(Storage::Borrowed(bytes))
    }

    fn of(storage: Storage<'a>) -> Result<Self> {
        let contents = Contents::of(storage.bytes())?;
        Ok(Self { storage, contents })
    }

    /// The version of the format: 2 or 3, which are the same for little-endian files.
    pub fn version(&self) -> u32 {
        self.contents.version
    }

    /// The alignment: offsets of tensors are multiples of it.
    pub fn alignment(&self) -> u32 {
        self.contents.alignment
    }

    /// The bytes of the whole file. Those of a tensor begin at [`TensorInfo::offset`].
    pub fn bytes(&self) -> &[u8] {
        self.storage.bytes()
    }

    /// The length of the file in bytes.
    pub fn file_bytes(&self) -> usize {
        self.storage.bytes().len()
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.contents.entries, self.storage.bytes())
    }

    /// The descriptions of the tensors, in the order of the file.
    pub fn infos(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }

    /// The tensors, in the order of the file.
    pub fn tensors(&self) -> impl ExactSizeIterator<Item = TensorView<'_>> {
        let bytes = self.storage.bytes();
        self.contents.tensors.iter().map(move |info| view(bytes, info))
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::MissingTensor`].
    pub fn tensor(&self, name: &str) -> Result<TensorView<'_>> {
        let found = self.contents.by_name.get(name);
        let &index = found.ok_or_else(|| Error::MissingTensor { name: name.to_owned() })?;
        Ok(view(self.storage.bytes(), &self.contents.tensors[index]))
    }
}

fn view<'a>(file: &'a [u8], info: &'a TensorInfo) -> TensorView<'a> {
    TensorView { info, bytes: &file[info.start..info.start + info.bytes] }
}

/// The head of a file: its metadata and the descriptions of its tensors, without their elements.
///
/// It is for files that arrive in parts, such as downloads: the kind of a model and the memory that it needs are known before its
/// weights arrive.
#[derive(Debug)]
pub struct Header {
    /// The bytes from the beginning of the file.
    bytes: Vec<u8>,
    contents: Contents,
}

impl Header {
    /// Validates the first bytes of a file of `file_bytes` bytes. `None` if they end before the descriptions of the tensors do: call it
    /// again with more bytes.
    ///
    /// # Errors
    /// Every error of validation, as soon as the bytes show it; [`Error::TooLong`] for a file whose length this machine cannot count.
    pub fn parse(beginning: &[u8], file_bytes: u64) -> Result<Option<Self>> {
        let most = usize::MAX as u64;
        if file_bytes > most {
            return Err(Error::TooLong { what: "the file".into(), found: file_bytes, at_most: most });
        }
        let mut cursor = Cursor::of_file(beginning, file_bytes);
        match Contents::read(&mut cursor) {
            _ if cursor.short => Ok(None),
            Ok(contents) => Ok(Some(Self { bytes: beginning[..cursor.at].to_vec(), contents })),
            Err(error) => Err(error),
        }
    }

    /// The metadata.
    pub fn metadata(&self) -> Metadata<'_> {
        Metadata::new(&self.contents.entries, &self.bytes)
    }

    /// The descriptions of the tensors, in the order of the file. Their offsets are those in the whole file.
    pub fn infos(&self) -> &[TensorInfo] {
        &self.contents.tensors
    }
}

/// Reads the parts of a file in turn.
struct Cursor<'a> {
    /// The file, or the known prefix of it.
    bytes: &'a [u8],
    at: usize,
    /// The length of the file.
    file: u64,
    /// Whether bytes were requested that are in the file but not known.
    short: bool,
}

impl<'a> Cursor<'a> {
    /// A cursor at the beginning of a file of this length; the first `bytes` of it are known.
    fn of_file(bytes: &'a [u8], file: u64) -> Self {
        Self { bytes, at: 0, file: file.max(bytes.len() as u64), short: false }
    }

    fn left(&self) -> u64 {
        self.file - self.at as u64
    }

    /// Number of items of at least `least` bytes that the known bytes can hold: the capacity to allocate.
    fn known(&self, least: u64) -> usize {
        (self.bytes.len() - self.at) / least as usize
    }

    fn take(&mut self, n: u64, what: impl FnOnce() -> String) -> Result<&'a [u8]> {
        self.short = n <= self.left() && n > (self.bytes.len() - self.at) as u64;
        if self.short || n > self.left() {
            return Err(Error::Truncated { what: what(), at: self.at as u64, needed: n, left: self.left() });
        }
        // At most the remaining bytes, so it fits.
        let end = self.at + n as usize;
        let taken = &self.bytes[self.at..end];
        self.at = end;
        Ok(taken)
    }

    fn u32(&mut self, what: impl FnOnce() -> String) -> Result<u32> {
        self.take(4, what).map(|b| u32::from_le_bytes(b.try_into().unwrap_or_default()))
    }

    fn u64(&mut self, what: impl FnOnce() -> String) -> Result<u64> {
        self.take(8, what).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default()))
    }

    /// A count of items of at least `least` bytes each, checked against the remaining bytes before anything is
    /// allocated.
    fn count(&mut self, least: u64, what: impl Fn() -> String) -> Result<usize> {
        let found = self.u64(&what)?;
        let (left, at_most) = (self.left(), self.left() / least);
        if found > at_most {
            return Err(Error::Count { what: what(), found, at_most, left });
        }
        Ok(found as usize)
    }

    /// The length and bytes of a name, which must be UTF-8.
    fn name(&mut self, most: u64, what: impl Fn() -> String) -> Result<String> {
        let found = self.u64(&what)?;
        if found > most {
            return Err(Error::TooLong { what: what(), found, at_most: most });
        }
        let bytes = self.take(found, &what)?;
        let not_utf8 = |_| Error::Utf8 { what: what(), text: String::from_utf8_lossy(bytes).into_owned() };
        str::from_utf8(bytes).map(str::to_owned).map_err(not_utf8)
    }
}

impl Contents {
    fn of(bytes: &[u8]) -> Result<Self> {
        Self::read(&mut Cursor::of_file(bytes, bytes.len() as u64))
    }

    fn read(cursor: &mut Cursor<'_>) -> Result<Self> {
        let (bytes, file) = (cursor.bytes, cursor.file);
        let found = &bytes[..bytes.len().min(MAGIC.len())];
        // Only a part of the magic bytes may be known.
        cursor.short = MAGIC.starts_with(found) && found.len() < MAGIC.len() && file >= MAGIC.len() as u64;
        if found != MAGIC {
            return Err(Error::Magic { found: found.to_vec() });
        }
        cursor.at = MAGIC.len();
        let version = cursor.u32(|| "the version".into())?;
        // No flag states the byte order; a version with an empty low half has swapped bytes.
        if version & 0xffff == 0 && version != 0 {
            return Err(Error::BigEndian { version: version.swap_bytes() });
        }
        if !(2..=3).contains(&version) {
            return Err(Error::Version { found: version });
        }
        let tensors = cursor.count(LEAST_TENSOR, || "the number of tensors".into())?;
        let entries = cursor.count(LEAST_ENTRY, || "the number of metadata keys".into())?;

        let entries = read_entries(cursor, entries)?;
        let alignment = alignment(&entries, bytes)?;
        let described = describe(cursor, tensors)?;

        // A file without tensors may end with its metadata.
        let align = u64::from(alignment);
        let start = (cursor.at as u64).next_multiple_of(align).min(file);
        let left = file - start;
        let mut tensors = Vec::with_capacity(described.len());
        let mut by_name = HashMap::with_capacity(described.len());
        for Described { name, kind, rank, extents, offset } in described {
            if !offset.is_multiple_of(align) {
                return Err(Error::Offset { tensor: name, offset, alignment: align });
            }
            let bytes = bytes_of(&name, kind, &extents[..rank])?;
            if offset.checked_add(bytes).is_none_or(|end| end > left) {
                return Err(Error::Outside { tensor: name, offset, bytes, left });
            }
            if by_name.insert(name.clone(), tensors.len()).is_some() {
                return Err(Error::Duplicate { what: "tensor", name });
            }
            // Both are at most the length of the file.
            tensors.push(TensorInfo {
                name,
                kind,
                rank,
                extents,
                start: (start + offset) as usize,
                bytes: bytes as usize,
            });
        }
        check_overlaps(&tensors)?;
        Ok(Self { version, alignment, entries, tensors, by_name })
    }
}

fn read_entries(cursor: &mut Cursor<'_>, count: usize) -> Result<Entries> {
    let room = count.min(cursor.known(LEAST_ENTRY));
    let mut entries = Entries { all: Vec::with_capacity(room), by_key: HashMap::with_capacity(room) };
    for index in 0..count {
        let key = cursor.name(MAX_KEY, || format!("metadata key {index}"))?;
        let value = || format!("the value of {key:?}");
        let kind = value_kind(cursor.u32(value)?, &key)?;
        let (array, at) = if kind == ValueKind::Array {
            let kind = value_kind(cursor.u32(value)?, &key)?;
            if kind == ValueKind::Array {
                return Err(Error::NestedArray { key });
            }
            let len = cursor.count(kind.least_bytes(), || format!("the length of {key:?}"))?;
            let start = cursor.at;
            if kind == ValueKind::String {
                for _ in 0..len {
                    skip_value(cursor, kind, &key)?;
                }
            } else {
                // The count was checked against the remaining bytes.
                let elements = cursor.take(len as u64 * kind.least_bytes(), value)?;
                if kind == ValueKind::Bool
                    && let Some(&found) = elements.iter().find(|&&byte| byte > 1)
                {
                    return Err(Error::Bool { key, found });
                }
            }
            (Some((kind, len)), start..cursor.at)
        } else {
            let start = cursor.at;
            skip_value(cursor, kind, &key)?;
            (None, start..cursor.at)
        };
        if entries.by_key.insert(key.clone(), index).is_some() {
            return Err(Error::Duplicate { what: "metadata key", name: key });
        }
        entries.all.push(Entry { key, kind, array, at });
    }
    Ok(entries)
}

fn value_kind(id: u32, key: &str) -> Result<ValueKind> {
    ValueKind::from_id(id).ok_or_else(|| Error::UnknownValueType { key: key.to_owned(), found: id })
}

/// Skips a value that is not an array.
fn skip_value(cursor: &mut Cursor<'_>, kind: ValueKind, key: &str) -> Result<()> {
    let what = || format!("the value of {key:?}");
    match kind {
        ValueKind::String => {
            let len = cursor.u64(what)?;
            cursor.take(len, what)?;
        }
        ValueKind::Bool => {
            let byte = cursor.take(1, what)?[0];
            if byte > 1 {
                return Err(Error::Bool { key: key.to_owned(), found: byte });
            }
        }
        _ => {
            cursor.take(kind.least_bytes(), what)?;
        }
    }
    Ok(())
}

fn alignment(entries: &Entries, bytes: &[u8]) -> Result<u32> {
    let Some(value) = Metadata::new(entries, bytes).value(ALIGNMENT) else { return Ok(DEFAULT_ALIGNMENT) };
    match value {
        crate::Value::U32(found) if found.is_power_of_two() && found <= MAX_ALIGNMENT => Ok(found),
        _ => Err(Error::Alignment { found: format!("{} {value}", value.kind()), at_most: MAX_ALIGNMENT }),
    }
}

/// The description of a tensor, before it is checked against the data.
struct Described {
    name: String,
    kind: TensorKind,
    rank: usize,
    extents: [u64; MAX_RANK],
    offset: u64,
}

fn describe(cursor: &mut Cursor<'_>, count: usize) -> Result<Vec<Described>> {
    let mut all = Vec::with_capacity(count.min(cursor.known(LEAST_TENSOR)));
    for index in 0..count {
        let name = cursor.name(MAX_NAME, || format!("the name of tensor {index}"))?;
        let what = || format!("the description of tensor {name:?}");
        let rank = cursor.u32(what)?;
        if rank as usize > MAX_RANK {
            return Err(Error::Rank { tensor: name, found: rank });
        }
        let mut extents = [1; MAX_RANK];
        for extent in &mut extents[..rank as usize] {
            *extent = cursor.u64(what)?;
        }
        let id = cursor.u32(what)?;
        let offset = cursor.u64(what)?;
        let Some(kind) = TensorKind::from_id(id) else {
            return Err(Error::UnknownKind { tensor: name, found: id });
        };
        all.push(Described { name, kind, rank: rank as usize, extents, offset });
    }
    Ok(all)
}

/// The bytes of a tensor, if its extents are valid.
pub(crate) fn bytes_of(name: &str, kind: TensorKind, extents: &[u64]) -> Result<u64> {
    let overflow = || Error::Overflow { tensor: name.to_owned(), extents: extents.to_vec(), kind };
    // A zero extent must not hide an overflow of the others.
    let reach = extents.iter().try_fold(1u64, |n, &extent| n.checked_mul(extent.max(1))).ok_or_else(overflow)?;
    let elements = if extents.contains(&0) { 0 } else { reach };
    let row = extents.first().copied().unwrap_or(1);
    if !row.is_multiple_of(kind.block_len() as u64) {
        return Err(Error::Blocks { tensor: name.to_owned(), extent: row, kind });
    }
    kind.bytes(elements).ok_or_else(overflow)
}

fn check_overlaps(tensors: &[TensorInfo]) -> Result<()> {
    let mut order: Vec<&TensorInfo> = tensors.iter().filter(|tensor| tensor.bytes > 0).collect();
    order.sort_by_key(|tensor| tensor.start);
    for pair in order.windows(2) {
        if pair[0].start + pair[0].bytes > pair[1].start {
            return Err(Error::Overlap { first: pair[0].name.clone(), second: pair[1].name.clone() });
        }
    }
    Ok(())
}
