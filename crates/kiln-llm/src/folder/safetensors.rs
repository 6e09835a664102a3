//! Parses safetensors files: a length of 8 bytes, a JSON header that describes the tensors, and the data.

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::ops::Range;
use std::path::Path;

use kiln::DType;
use serde::Deserialize;
use serde::de::{Error as _, MapAccess, Visitor};

use crate::error::printable;
use crate::{Error, Result};

/// Maximum bytes of a header, as in the reference implementation.
const MOST_HEADER: u64 = 100_000_000;

/// Names of element types, and their bits.
const TYPES: &[(&str, u64)] = &[
    ("BOOL", 8),
    ("F4", 4),
    ("F6_E2M3", 6),
    ("F6_E3M2", 6),
    ("U8", 8),
    ("I8", 8),
    ("F8_E5M2", 8),
    ("F8_E4M3", 8),
    ("F8_E8M0", 8),
    ("I16", 16),
    ("U16", 16),
    ("F16", 16),
    ("BF16", 16),
    ("I32", 32),
    ("U32", 32),
    ("F32", 32),
    ("C64", 64),
    ("F64", 64),
    ("I64", 64),
    ("U64", 64),
];

/// A tensor of a header, checked against the file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Info {
    pub(crate) name: String,
    /// A name of [`TYPES`].
    pub(crate) dtype: &'static str,
    /// The extents, outermost first.
    pub(crate) shape: Vec<usize>,
    /// Its bytes in the file.
    pub(crate) bytes: Range<usize>,
}

impl Info {
    /// The element type in kiln, if weights may have it.
    pub(crate) fn computed(&self) -> Option<DType> {
        match self.dtype {
            "F32" => Some(DType::F32),
            "F16" => Some(DType::F16),
            "BF16" => Some(DType::Bf16),
            _ => None,
        }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    dtype: String,
    shape: Vec<u64>,
    data_offsets: [u64; 2],
}

/// The tensors of a header, in its order.
struct Header(Vec<(String, Entry)>);

impl<'de> Deserialize<'de> for Header {
    fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Header;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object with an entry for each tensor")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Header, A::Error> {
                let (mut entries, mut names) = (Vec::new(), HashSet::new());
                while let Some(name) = map.next_key::<String>()? {
                    if !names.insert(name.clone()) {
                        return Err(A::Error::custom(format!("the name {name:?} exists twice")));
                    }
                    let wrong = |error: A::Error| A::Error::custom(format!("{name:?}: {error}"));
                    if name == "__metadata__" {
                        map.next_value::<HashMap<String, String>>().map_err(wrong)?;
                    } else {
                        let entry = map.next_value().map_err(wrong)?;
                        entries.push((name, entry));
                    }
                }
                Ok(Header(entries))
            }
        }
        from.deserialize_map(Entries)
    }
}

/// The tensors of a file, in the order of their bytes. They cover its data without gaps.
///
/// # Errors
/// [`Error::Folder`] names the file and, for a defect of one tensor, the tensor.
pub(crate) fn parse(path: &Path, file: &[u8]) -> Result<Vec<Info>> {
    let wrong = |reason: String| Error::folder(path, format!("not a valid safetensors file: {reason}"));
    let (len, rest) = file
        .split_first_chunk::<8>()
        .ok_or_else(|| wrong(format!("it has {} bytes, the length of its header alone takes 8", file.len())))?;
    let len = u64::from_le_bytes(*len);
    let most = MOST_HEADER.min(rest.len() as u64);
    if len > most {
        return Err(wrong(format!("its header announces {len} bytes, at most {most} are possible: download it again")));
    }
    // At most the length of the file, so it fits.
    let (header, data) = rest.split_at(len as usize);
    // A copy, because a mapped file may change after the UTF-8 check.
    let header = String::from_utf8(header.to_vec()).map_err(|_| wrong("its header is not UTF-8".to_owned()))?;
    // Anything except spaces after the object is an error, and so are deeply nested values.
    let Header(entries) = serde_json::from_str(&header).map_err(|error| wrong(printable(error)))?;
    let mut infos = Vec::with_capacity(entries.len());
    for (name, Entry { dtype, shape, data_offsets: [begin, end] }) in entries {
        let wrong = |reason: String| wrong(format!("tensor {name:?} {reason}"));
        let Some(&(dtype, bits)) = TYPES.iter().find(|(known, _)| *known == dtype) else {
            return Err(wrong(format!("has the type {dtype:?}, which is not known")));
        };
        let elements = shape.iter().try_fold(1u64, |product, &extent| product.checked_mul(extent));
        let bits = elements.and_then(|elements| elements.checked_mul(bits));
        let bits = bits.ok_or_else(|| wrong(format!("has extents {shape:?}, which overflow 64 bits")))?;
        if begin > end || end > data.len() as u64 {
            return Err(wrong(format!(
                "has the bytes {begin} to {end} of {} bytes of data: download the file again",
                data.len()
            )));
        }
        if !bits.is_multiple_of(8) || bits / 8 != end - begin {
            return Err(wrong(format!(
                "of type {dtype} and extents {shape:?} has {bits} bits, and is given {} bytes",
                end - begin
            )));
        }
        let shape = shape.iter().map(|&n| usize::try_from(n)).collect::<Result<_, _>>();
        let shape = shape.map_err(|_| wrong("has extents that this machine does not address".to_owned()))?;
        let start = 8 + header.len();
        infos.push(Info { name, dtype, shape, bytes: start + begin as usize..start + end as usize });
    }
    infos.sort_by_key(|info| (info.bytes.start, info.bytes.end));
    let mut at = 8 + header.len();
    for info in &infos {
        if info.bytes.start != at {
            let what = if info.bytes.start < at { "overlaps the tensor before it" } else { "leaves a gap before it" };
            return Err(wrong(format!("tensor {:?} {what}", info.name)));
        }
        at = info.bytes.end;
    }
    if at != file.len() {
        return Err(wrong(format!("{} bytes after the last tensor belong to no tensor", file.len() - at)));
    }
    Ok(infos)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(header: &str, data: usize) -> Vec<u8> {
        let mut file = (header.len() as u64).to_le_bytes().to_vec();
        file.extend(header.as_bytes());
        file.resize(file.len() + data, 7);
        file
    }

    fn parsed(file: &[u8]) -> Result<Vec<Info>> {
        parse(Path::new("w.safetensors"), file)
    }

    const TWO: &str = r#"{"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},
        "a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]},"none":{"dtype":"I64","shape":[0,9],"data_offsets":[8,8]}}  "#;

    #[test]
    fn tensors_are_where_the_header_says() {
        let file = file(TWO, 14);
        let start = file.len() - 14;
        let infos = parsed(&file).unwrap();
        let found: Vec<_> = infos.iter().map(|info| (&*info.name, info.dtype, &*info.shape, &info.bytes)).collect();
        assert_eq!(
            found,
            [
                ("a", "F32", &[2, 1][..], &(start..start + 8)),
                ("none", "I64", &[0, 9], &(start + 8..start + 8)),
                ("b", "BF16", &[3], &(start + 8..start + 14)),
            ]
        );
        assert_eq!(infos.iter().map(Info::computed).collect::<Vec<_>>(), [Some(DType::F32), None, Some(DType::Bf16)]);
        assert_eq!(parsed(&self::file("{}", 0)).unwrap(), []);
        // A scalar has one element, two 4-bit elements have one byte.
        let scalars = r#"{"a":{"dtype":"U8","shape":[],"data_offsets":[0,1]},"b":{"dtype":"F4","shape":[2],"data_offsets":[1,2]}}"#;
        assert_eq!(parsed(&self::file(scalars, 2)).unwrap().len(), 2);
    }

    #[test]
    fn files_cut_anywhere_are_refused() {
        let file = file(TWO, 14);
        for len in 0..file.len() {
            let error = parsed(&file[..len]).unwrap_err();
            assert!(matches!(&error, Error::Folder { path, .. } if path == Path::new("w.safetensors")), "{error}");
        }
        assert!(parsed(&[&file[..], &[0]].concat()).unwrap_err().to_string().contains("1 bytes after the last tensor"));
    }

    #[test]
    fn headers_that_lie_are_refused() {
        let tensor = |dtype: &str, shape: &str, offsets: &str| {
            format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
        };
        let two = |first: &str, second: &str| {
            let entry = |offsets: &str| format!(r#"{{"dtype":"U8","shape":[4],"data_offsets":{offsets}}}"#);
            format!(r#"{{"v":{},"w":{}}}"#, entry(first), entry(second))
        };
        let nested = format!(r#"{{"w":{}"#, "[".repeat(100_000));
        let cases = [
            (tensor("F33", "[2]", "[0,8]"), "tensor \"w\" has the type \"F33\""),
            (tensor("F33\\u001b", "[2]", "[0,8]"), "\"F33\\u{1b}\""),
            (tensor("F32", "[3]", "[0,8]"), "96 bits, and is given 8 bytes"),
            (tensor("F4", "[15]", "[0,8]"), "60 bits, and is given 8 bytes"),
            (tensor("F32", "[4294967296,4294967296]", "[0,8]"), "overflow"),
            (tensor("F32", "[9223372036854775808]", "[0,8]"), "overflow"),
            (tensor("F32", "[18446744073709551616]", "[0,8]"), "\"w\""),
            (tensor("F32", "[-2]", "[0,8]"), "\"w\""),
            (tensor("F32", "[2.0]", "[0,8]"), "\"w\""),
            (tensor("F32", "2", "[0,8]"), "\"w\""),
            (tensor("F32", "[2]", "[0,9]"), "bytes 0 to 9 of 8"),
            (tensor("F32", "[2]", "[8,0]"), "bytes 8 to 0 of 8"),
            (tensor("F32", "[2]", "[18446744073709551608,18446744073709551615]"), "of 8 bytes"),
            (tensor("F32", "[2]", "[0]"), "\"w\""),
            (tensor("F32", "[2]", "[0,8,9]"), "\"w\""),
            (tensor("F32", "[1]", "[4,8]"), "leaves a gap"),
            (tensor("F32", "[1]", "[0,4]"), "4 bytes after"),
            (two("[0,4]", "[3,7]"), "tensor \"w\" overlaps"),
            (two("[0,4]", "[0,4]"), "tensor \"w\" overlaps"),
            (two("[4,8]", "[4,8]"), "gap"),
            (two("[0,4]", "[4,8]").replace('v', "w"), "\"w\" exists twice"),
            (r#"{"w":{"dtype":"U8","dtype":"U8","shape":[8],"data_offsets":[0,8]}}"#.into(), "duplicate"),
            (r#"{"w":{"dtype":"U8","shape":[8],"data_offsets":[0,8],"more":1}}"#.into(), "unknown field"),
            (r#"{"w":{"dtype":"U8","shape":[8]}}"#.into(), "data_offsets"),
            (r#"{"__metadata__":{"a":1}}"#.into(), "__metadata__"),
            (r#"{"__metadata__":{},"__metadata__":{}}"#.into(), "exists twice"),
            ("[]".into(), "object"),
            ("".into(), "EOF"),
            ("{} {}".into(), "trailing"),
            (nested, "\"w\""),
        ];
        for (header, expected) in cases {
            let error = parsed(&file(&header, 8)).unwrap_err().to_string();
            assert!(error.contains(expected) && error.contains("w.safetensors"), "{header:.100}: {error}");
        }
        for len in [9, MOST_HEADER + 1, u64::MAX, 1 << 63] {
            let error = parsed(&[&len.to_le_bytes()[..], b"{}      "].concat()).unwrap_err().to_string();
            assert!(error.contains(&format!("announces {len} bytes")), "{error}");
        }
        assert!(parsed(&[&2u64.to_le_bytes()[..], b"\xff\xff"].concat()).unwrap_err().to_string().contains("UTF-8"));
    }
}
