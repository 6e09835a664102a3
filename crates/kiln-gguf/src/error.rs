//! Errors of reading and writing GGUF files.

use std::path::PathBuf;

use crate::TensorKind;

/// The result of fallible functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// An error of reading or writing a GGUF file. Every variant says what was expected, what was found and, if you can mend it, how.
///
/// Names that come from files are printed with escapes, so that a message cannot control a terminal.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The system could not open, read, map or write a file.
    #[error("{}: {source}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's error.
        source: std::io::Error,
    },
    /// The file does not begin with the four bytes of GGUF.
    #[error("not a GGUF file: it begins with {found:02x?}, a GGUF file begins with [47, 47, 55, 46] (\"GGUF\")")]
    Magic {
        /// The first bytes, at most four.
        found: Vec<u8>,
    },
    /// This crate does not read the version.
    #[error("GGUF version {found} is not supported, versions 2 and 3 are: convert the model again with current tools")]
    Version {
        /// The version that the file names.
        found: u32,
    },
    /// The file was written for machines with the other byte order.
    #[error(
        "the file is big-endian (version {version} with its bytes swapped): convert it to little-endian, \
         with `gguf-convert-endian` of the Python package gguf"
    )]
    BigEndian {
        /// The version, its bytes swapped back.
        version: u32,
    },
    /// The file ends before something that it announces.
    #[error("the file ends too early: {what} at byte {at} needs {needed} bytes, {left} are left; download it again")]
    Truncated {
        /// The item being read.
        what: String,
        /// The offset of its beginning.
        at: u64,
        /// Bytes that it needs.
        needed: u64,
        /// Bytes from there to the end of the file.
        left: u64,
    },
    /// A count exceeds what the rest of the file can hold.
    #[error("{what}: {found} announced, the {left} bytes that are left of the file hold at most {at_most}")]
    Count {
        /// What is counted.
        what: String,
        /// The count in the file.
        found: u64,
        /// The maximum that fits.
        at_most: u64,
        /// Bytes that are left.
        left: u64,
    },
    /// A key or a name is longer than the format allows.
    #[error("{what} has {found} bytes, at most {at_most} are allowed")]
    TooLong {
        /// The key or name.
        what: String,
        /// Bytes that it has.
        found: u64,
        /// The limit.
        at_most: u64,
    },
    /// A key or a name is not UTF-8.
    #[error("{what} is not UTF-8: {text:?}")]
    Utf8 {
        /// The key or name.
        what: String,
        /// The text, with replacement characters.
        text: String,
    },
    /// A value has a type that the format does not have.
    #[error("the value of {key:?} has type {found}, types are 0 to 12")]
    UnknownValueType {
        /// The key.
        key: String,
        /// The number in the file.
        found: u32,
    },
    /// An array of arrays, which no known file has.
    #[error("the value of {key:?} is an array of arrays, which is not supported")]
    NestedArray {
        /// The key.
        key: String,
    },
    /// A boolean is neither 0 nor 1.
    #[error("the value of {key:?} holds the byte {found} as a truth value, 0 and 1 are allowed")]
    Bool {
        /// The key.
        key: String,
        /// The byte.
        found: u8,
    },
    /// Two keys, or two tensors, have the same name.
    #[error("the {what} {name:?} exists twice")]
    Duplicate {
        /// Keys or tensors.
        what: &'static str,
        /// The name.
        name: String,
    },
    /// The alignment of the file is invalid.
    #[error("general.alignment is {found}, a u32 that is a power of two from 1 to {at_most} is expected")]
    Alignment {
        /// The value.
        found: String,
        /// The largest alignment.
        at_most: u32,
    },
    /// A tensor has more dimensions than the format allows.
    #[error("tensor {tensor:?} has {found} dimensions, at most 4 are allowed")]
    Rank {
        /// The tensor.
        tensor: String,
        /// Its dimensions.
        found: u32,
    },
    /// A tensor has a type that was removed from the format, or that is newer than this crate.
    #[error("tensor {tensor:?} has type {found}{}", removed(*.found))]
    UnknownKind {
        /// The tensor.
        tensor: String,
        /// The number in the file.
        found: u32,
    },
    /// The elements or bytes of a tensor overflow 64 bits.
    #[error("tensor {tensor:?} of extents {extents:?} and type {kind} has more bytes than 64 bits count")]
    Overflow {
        /// The tensor.
        tensor: String,
        /// Its extents, the contiguous one first.
        extents: Vec<u64>,
        /// Its type.
        kind: TensorKind,
    },
    /// The rows of a tensor are not whole blocks.
    #[error("tensor {tensor:?} has rows of {extent} elements, {kind} needs a multiple of {}", kind.block_len())]
    Blocks {
        /// The tensor.
        tensor: String,
        /// Elements of a row.
        extent: u64,
        /// Its type.
        kind: TensorKind,
    },
    /// The offset of a tensor is not a multiple of the file's alignment.
    #[error("tensor {tensor:?} begins at offset {offset}, a multiple of the alignment {alignment} is expected")]
    Offset {
        /// The tensor.
        tensor: String,
        /// Its offset from the beginning of the data.
        offset: u64,
        /// The alignment of the file.
        alignment: u64,
    },
    /// The bytes of a tensor are not inside of the file.
    #[error(
        "tensor {tensor:?} has {bytes} bytes at offset {offset}, the file has {left} bytes of data: download it again"
    )]
    Outside {
        /// The tensor.
        tensor: String,
        /// Its offset from the beginning of the data.
        offset: u64,
        /// Its bytes.
        bytes: u64,
        /// Bytes of data in the file.
        left: u64,
    },
    /// Two tensors share bytes.
    #[error("the tensors {first:?} and {second:?} overlap")]
    Overlap {
        /// The one that begins first.
        first: String,
        /// The one that begins inside of it.
        second: String,
    },
    /// A required key is missing.
    #[error("the file has no value for {key:?}, {expected} is needed")]
    MissingKey {
        /// The key.
        key: String,
        /// The expected value.
        expected: &'static str,
    },
    /// A value has the wrong type or is out of range.
    #[error("the value of {key:?} is {found}, {expected} is needed")]
    Value {
        /// The key.
        key: String,
        /// The expected value.
        expected: &'static str,
        /// The value found.
        found: String,
    },
    /// A required tensor is missing.
    #[error("the file has no tensor {name:?}")]
    MissingTensor {
        /// The name.
        name: String,
    },
    /// Kiln has no kernels for the type of a tensor.
    #[error("tensor {tensor:?} has type {kind}, with which kiln does not compute: quantise the model to another type")]
    NotComputed {
        /// The tensor.
        tensor: String,
        /// Its type.
        kind: TensorKind,
    },
    /// The data of a tensor are misaligned in memory.
    #[error(
        "the data of tensor {tensor:?} begin at an address that is not a multiple of {needed}: \
         read the file with `Gguf::open` or `Gguf::read`, or pass bytes that begin at a multiple of 32"
    )]
    Address {
        /// The tensor.
        tensor: String,
        /// The required alignment in bytes.
        needed: usize,
    },
    /// A tensor cannot be described, because its extents overflow what this machine addresses.
    #[error("tensor {tensor:?}: {source}")]
    Tensor {
        /// The tensor.
        tensor: String,
        /// The reason.
        source: kiln_ir::Error,
    },
    /// The files of a split model do not belong together.
    #[error("{}: {reason}", path.display())]
    Split {
        /// The file.
        path: PathBuf,
        /// The mismatch.
        reason: String,
    },
    /// The file to be written would be invalid.
    #[error("cannot write {what}: {reason}")]
    Write {
        /// The key or the tensor.
        what: String,
        /// The reason.
        reason: String,
    },
}

/// The reason for an unknown number of a tensor type.
fn removed(id: u32) -> String {
    match TensorKind::removed(id) {
        Some(name) => {
            format!(" ({name}), which was removed from the format: convert the model again with current tools")
        }
        None => ", which this version of kiln does not know: types are 0 to 42".to_owned(),
    }
}

impl Error {
    /// Wraps an error of the system about a file.
    pub(crate) fn io(path: &std::path::Path) -> impl FnOnce(std::io::Error) -> Self {
        let path = path.to_owned();
        move |source| Self::Io { path, source }
    }
}
