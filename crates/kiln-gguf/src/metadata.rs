//! Metadata: keys with typed values, borrowed from the file.

use std::collections::HashMap;
use std::fmt;

use crate::{Error, Result};

/// Defines [`ValueKind`] from the table of types: number in files, name, bytes of an element in an array.
macro_rules! value_kinds {
    ($($(#[doc = $doc:literal])+ $variant:ident = $id:literal $name:literal $size:expr;)+) => {
        /// The type of a value of metadata.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        pub enum ValueKind {
            $($(#[doc = $doc])+ $variant = $id,)+
        }

        impl ValueKind {
            /// The type with this number in files.
            pub const fn from_id(id: u32) -> Option<Self> {
                match id { $($id => Some(Self::$variant),)+ _ => None }
            }

            /// The name of the type.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)+ }
            }

            /// Bytes of a value; the minimum if its length varies.
            pub(crate) const fn least_bytes(self) -> u64 {
                match self { $(Self::$variant => $size,)+ }
            }
        }
    };
}

value_kinds! {
    /// Unsigned integer of 8 bits.
    U8 = 0 "u8" 1;
    /// Signed integer of 8 bits.
    I8 = 1 "i8" 1;
    /// Unsigned integer of 16 bits.
    U16 = 2 "u16" 2;
    /// Signed integer of 16 bits.
    I16 = 3 "i16" 2;
    /// Unsigned integer of 32 bits.
    U32 = 4 "u32" 4;
    /// Signed integer of 32 bits.
    I32 = 5 "i32" 4;
    /// IEEE 754 binary32.
    F32 = 6 "f32" 4;
    /// A byte, 0 or 1.
    Bool = 7 "bool" 1;
    /// Length and bytes.
    String = 8 "string" 8;
    /// Type, length and elements.
    Array = 9 "array" 12;
    /// Unsigned integer of 64 bits.
    U64 = 10 "u64" 8;
    /// Signed integer of 64 bits.
    I64 = 11 "i64" 8;
    /// IEEE 754 binary64.
    F64 = 12 "f64" 8;
}

impl fmt::Display for ValueKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A value of metadata, borrowed from the file.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value<'a> {
    /// An unsigned integer of 8 bits.
    U8(u8),
    /// A signed integer of 8 bits.
    I8(i8),
    /// An unsigned integer of 16 bits.
    U16(u16),
    /// A signed integer of 16 bits.
    I16(i16),
    /// An unsigned integer of 32 bits.
    U32(u32),
    /// A signed integer of 32 bits.
    I32(i32),
    /// A float of 32 bits.
    F32(f32),
    /// True or false.
    Bool(bool),
    /// A string. Its bytes are UTF-8 in most files, but tokens may contain any bytes.
    String(&'a [u8]),
    /// Elements of one type.
    Array(Array<'a>),
    /// An unsigned integer of 64 bits.
    U64(u64),
    /// A signed integer of 64 bits.
    I64(i64),
    /// A float of 64 bits.
    F64(f64),
}

/// An array of metadata. Its elements are decoded as they are read.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    kind: ValueKind,
    len: usize,
    bytes: &'a [u8],
}

impl<'a> Array<'a> {
    pub(crate) fn new(kind: ValueKind, len: usize, bytes: &'a [u8]) -> Self {
        Self { kind, len, bytes }
    }

    /// The type of its elements.
    pub fn kind(&self) -> ValueKind {
        self.kind
    }

    /// The number of its elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether it has no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The encoded elements.
    pub(crate) fn bytes(&self) -> &'a [u8] {
        self.bytes
    }

    /// Its elements.
    ///
    /// A map whose file changes may hold fewer elements than were counted when it was opened; the iterator then ends early.
    pub fn iter(&self) -> impl Iterator<Item = Value<'a>> + use<'a> {
        let (kind, mut bytes) = (self.kind, self.bytes);
        (0..self.len).map_while(move |_| Value::decode(kind, &mut bytes))
    }

    /// Its elements as strings of bytes, or `None` where it has other elements.
    pub fn strings(&self) -> Option<impl Iterator<Item = &'a [u8]> + use<'a>> {
        (self.kind == ValueKind::String).then(|| {
            let mut bytes = self.bytes;
            (0..self.len).map_while(move |_| take_string(&mut bytes))
        })
    }
}

/// Prints only the first elements: arrays of tokens have hundreds of thousands.
impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

impl fmt::Display for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 8;
        write!(f, "{} {} [", self.len, self.kind)?;
        for (at, value) in self.iter().take(SHOWN).enumerate() {
            write!(f, "{}{value}", if at == 0 { "" } else { ", " })?;
        }
        write!(f, "{}]", if self.len > SHOWN { ", ..." } else { "" })
    }
}

/// Takes a number from the beginning of `bytes`.
macro_rules! number {
    ($ty:ty, $bytes:expr) => {{
        let (first, rest) = $bytes.split_first_chunk()?;
        *$bytes = rest;
        <$ty>::from_le_bytes(*first)
    }};
}

fn take_string<'a>(bytes: &mut &'a [u8]) -> Option<&'a [u8]> {
    let len = number!(u64, bytes);
    let (string, rest) = bytes.split_at_checked(usize::try_from(len).ok()?)?;
    *bytes = rest;
    Some(string)
}

impl<'a> Value<'a> {
    /// Takes a value that is not an array from the beginning of `bytes`; `None` if there are too few.
    pub(crate) fn decode(kind: ValueKind, bytes: &mut &'a [u8]) -> Option<Self> {
        Some(match kind {
            ValueKind::U8 => Self::U8(number!(u8, bytes)),
            ValueKind::I8 => Self::I8(number!(i8, bytes)),
            ValueKind::U16 => Self::U16(number!(u16, bytes)),
            ValueKind::I16 => Self::I16(number!(i16, bytes)),
            ValueKind::U32 => Self::U32(number!(u32, bytes)),
            ValueKind::I32 => Self::I32(number!(i32, bytes)),
            ValueKind::F32 => Self::F32(number!(f32, bytes)),
            ValueKind::Bool => Self::Bool(number!(u8, bytes) != 0),
            ValueKind::String => Self::String(take_string(bytes)?),
            ValueKind::U64 => Self::U64(number!(u64, bytes)),
            ValueKind::I64 => Self::I64(number!(i64, bytes)),
            ValueKind::F64 => Self::F64(number!(f64, bytes)),
            ValueKind::Array => return None,
        })
    }

    /// Its type.
    pub fn kind(&self) -> ValueKind {
        match self {
            Self::U8(_) => ValueKind::U8,
            Self::I8(_) => ValueKind::I8,
            Self::U16(_) => ValueKind::U16,
            Self::I16(_) => ValueKind::I16,
            Self::U32(_) => ValueKind::U32,
            Self::I32(_) => ValueKind::I32,
            Self::F32(_) => ValueKind::F32,
            Self::Bool(_) => ValueKind::Bool,
            Self::String(_) => ValueKind::String,
            Self::Array(_) => ValueKind::Array,
            Self::U64(_) => ValueKind::U64,
            Self::I64(_) => ValueKind::I64,
            Self::F64(_) => ValueKind::F64,
        }
    }

    /// Its value, if it is an integer of any width.
    fn integer(&self) -> Option<i128> {
        Some(match *self {
            Self::U8(x) => x.into(),
            Self::I8(x) => x.into(),
            Self::U16(x) => x.into(),
            Self::I16(x) => x.into(),
            Self::U32(x) => x.into(),
            Self::I32(x) => x.into(),
            Self::U64(x) => x.into(),
            Self::I64(x) => x.into(),
            _ => return None,
        })
    }
}

/// Prints numbers as they are, and strings and arrays abbreviated, with control characters escaped.
impl fmt::Display for Value<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        const SHOWN: usize = 60;
        match self {
            Self::Bool(x) => write!(f, "{x}"),
            Self::F32(x) => write!(f, "{x}"),
            Self::F64(x) => write!(f, "{x}"),
            Self::String(bytes) => {
                let text = String::from_utf8_lossy(bytes);
                match text.char_indices().nth(SHOWN) {
                    Some((end, _)) => write!(f, "{:?}... ({} bytes)", &text[..end], bytes.len()),
                    None => write!(f, "{text:?}"),
                }
            }
            Self::Array(array) => write!(f, "{array}"),
            number => write!(f, "{}", number.integer().unwrap_or_default()),
        }
    }
}

/// A Rust type that a value of metadata can be read as.
///
/// Integers of each width are read as every integer type that holds them: writers of GGUF files do not agree on widths.
pub trait FromValue<'a>: Sized {
    /// The name of the type in errors.
    const EXPECTED: &'static str;

    /// The value, or `None` if it has another type or is out of range.
    fn from_value(value: Value<'a>) -> Option<Self>;
}

macro_rules! from_value {
    ($($ty:ty, $expected:literal, $value:ident => $read:expr;)+) => {
        $(impl<'a> FromValue<'a> for $ty {
            const EXPECTED: &'static str = $expected;
            fn from_value($value: Value<'a>) -> Option<Self> {
                $read
            }
        })+
    };
}

from_value! {
    u8, "an unsigned integer of 8 bits", value => value.integer()?.try_into().ok();
    i8, "an integer of 8 bits", value => value.integer()?.try_into().ok();
    u16, "an unsigned integer of 16 bits", value => value.integer()?.try_into().ok();
    i16, "an integer of 16 bits", value => value.integer()?.try_into().ok();
    u32, "an unsigned integer of 32 bits", value => value.integer()?.try_into().ok();
    i32, "an integer of 32 bits", value => value.integer()?.try_into().ok();
    u64, "an unsigned integer of 64 bits", value => value.integer()?.try_into().ok();
    i64, "an integer of 64 bits", value => value.integer()?.try_into().ok();
    usize, "an unsigned integer", value => value.integer()?.try_into().ok();
    bool, "true or false", value => if let Value::Bool(x) = value { Some(x) } else { None };
    f32, "a float of 32 bits", value => if let Value::F32(x) = value { Some(x) } else { None };
    f64, "a float", value => match value {
        Value::F32(x) => Some(x.into()),
        Value::F64(x) => Some(x),
        _ => None,
    };
    &'a [u8], "a string", value => if let Value::String(x) = value { Some(x) } else { None };
    &'a str, "a string of UTF-8", value => str::from_utf8(FromValue::from_value(value)?).ok();
    Array<'a>, "an array", value => if let Value::Array(x) = value { Some(x) } else { None };
    Value<'a>, "a value", value => Some(value);
}

/// All elements of an array.
impl<'a, T: FromValue<'a>> FromValue<'a> for Vec<T> {
    const EXPECTED: &'static str = "an array of fitting elements";

    fn from_value(value: Value<'a>) -> Option<Self> {
        let array = Array::from_value(value)?;
        let all: Vec<T> = array.iter().map(T::from_value).collect::<Option<_>>()?;
        (all.len() == array.len()).then_some(all)
    }
}

/// The location of a value in the file.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) key: String,
    pub(crate) kind: ValueKind,
    /// The type and number of the elements, for arrays.
    pub(crate) array: Option<(ValueKind, usize)>,
    /// The bytes of the value; for an array those of its elements.
    pub(crate) at: std::ops::Range<usize>,
}

/// The keys of a file, and the locations of their values.
#[derive(Debug, Clone, Default)]
pub(crate) struct Entries {
    pub(crate) all: Vec<Entry>,
    pub(crate) by_key: HashMap<String, usize>,
}

/// The metadata of a file.
#[derive(Clone, Copy)]
pub struct Metadata<'a> {
    entries: &'a Entries,
    bytes: &'a [u8],
}

impl<'a> Metadata<'a> {
    pub(crate) fn new(entries: &'a Entries, bytes: &'a [u8]) -> Self {
        Self { entries, bytes }
    }

    /// The number of keys.
    pub fn len(&self) -> usize {
        self.entries.all.len()
    }

    /// Whether there are no keys.
    pub fn is_empty(&self) -> bool {
        self.entries.all.is_empty()
    }

    /// Keys and values, in the order of the file.
    pub fn iter(&self) -> impl Iterator<Item = (&'a str, Value<'a>)> + use<'a> {
        let this = *self;
        this.entries.all.iter().filter_map(move |entry| Some((&*entry.key, this.value_of(entry)?)))
    }

    /// The value of a key, if the file has one.
    pub fn value(&self, key: &str) -> Option<Value<'a>> {
        self.value_of(&self.entries.all[*self.entries.by_key.get(key)?])
    }

    fn value_of(&self, entry: &Entry) -> Option<Value<'a>> {
        let mut bytes = &self.bytes[entry.at.clone()];
        match entry.array {
            Some((kind, len)) => Some(Value::Array(Array::new(kind, len, bytes))),
            // `None` only if the file changes under a map.
            None => Value::decode(entry.kind, &mut bytes),
        }
    }

    /// The value of a key as a Rust type.
    ///
    /// # Errors
    /// [`Error::MissingKey`] where the file has no such key, [`Error::Value`] where the value has another type.
    pub fn get<T: FromValue<'a>>(&self, key: &str) -> Result<T> {
        self.find(key)?.ok_or_else(|| Error::MissingKey { key: key.to_owned(), expected: T::EXPECTED })
    }

    /// The value of a key as a Rust type, or `None` where the file has no such key.
    ///
    /// # Errors
    /// [`Error::Value`] where the value has another type.
    pub fn find<T: FromValue<'a>>(&self, key: &str) -> Result<Option<T>> {
        let Some(value) = self.value(key) else { return Ok(None) };
        match T::from_value(value) {
            Some(found) => Ok(Some(found)),
            None => Err(Error::Value {
                key: key.to_owned(),
                expected: T::EXPECTED,
                found: format!("{} {value}", value.kind()),
            }),
        }
    }
}

impl fmt::Debug for Metadata<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}
