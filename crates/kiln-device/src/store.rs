//! Files that keep compiled code for the next process.
//!
//! A file is magic bytes, a version, a key that says what the contents were made from and by whom, the contents, and a
//! checksum of all that. Numbers are little endian; key and contents begin with their length.
#![cfg(not(target_arch = "wasm32"))] // a browser has no files

use std::io::{Read, Write};
use std::path::Path;

/// Larger files are ignored.
const MOST_BYTES: u64 = 256 << 20;

/// A kind of file.
#[derive(Debug, Clone, Copy)]
pub struct Kind {
    /// The first bytes of every file of this kind.
    pub magic: [u8; 8],
    /// The version of the format of its contents.
    pub version: u32,
}

/// The reason why a file is not used.
#[derive(Debug, PartialEq, Eq)]
pub enum Unusable {
    /// The file does not exist.
    Missing,
    /// The file cannot be read.
    Unreadable(String),
    /// The file does not contain what was written.
    Corrupt,
    /// The file was made from another input or by another version.
    Foreign {
        /// Its key.
        key: String,
    },
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("it does not exist"),
            Self::Unreadable(why) => write!(f, "it cannot be read: {why}"),
            Self::Corrupt => f.write_str("it is damaged"),
            Self::Foreign { key } => write!(f, "it was made for {key}"),
        }
    }
}

/// FNV-1a: stable between versions of the compiler, which the hasher of the standard library is not.
pub fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

impl Kind {
    /// The contents of a file that was written with this key.
    ///
    /// # Errors
    /// The reason why the file is not used.
    pub fn load(&self, path: &Path, key: &str) -> Result<Vec<u8>, Unusable> {
        let unreadable = |error: std::io::Error| match error.kind() {
            std::io::ErrorKind::NotFound => Unusable::Missing,
            _ => Unusable::Unreadable(error.to_string()),
        };
        let mut bytes = Vec::new();
        // Opening a FIFO would wait for a writer, and a device may never end.
        if !std::fs::metadata(path).map_err(unreadable)?.is_file() {
            return Err(Unusable::Unreadable("it is not a file".into()));
        }
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(MOST_BYTES + 1).read_to_end(&mut bytes).map_err(unreadable)?;
        if bytes.len() as u64 > MOST_BYTES {
            return Err(Unusable::Unreadable(format!("it is longer than {MOST_BYTES} bytes")));
        }
        self.decode(&bytes, key).map(<[u8]>::to_vec)
    }

    /// Writes a file, with its folder, in one piece; see [`kiln_files::replace`].
    ///
    /// # Errors
    /// The errors of [`kiln_files::replace`] and of making the folder.
    pub fn save(&self, path: &Path, key: &str, contents: &[u8]) -> std::io::Result<()> {
        if let Some(folder) = path.parent() {
            std::fs::create_dir_all(folder)?;
        }
        kiln_files::replace(path, |file| file.write_all(&self.encode(key, contents)))
    }

    fn encode(&self, key: &str, contents: &[u8]) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(64 + key.len() + contents.len());
        bytes.extend(self.magic);
        bytes.extend(self.version.to_le_bytes());
        for part in [key.as_bytes(), contents] {
            bytes.extend((part.len() as u64).to_le_bytes());
            bytes.extend(part);
        }
        bytes.extend(fingerprint(&bytes).to_le_bytes());
        bytes
    }

    fn decode<'a>(&self, bytes: &'a [u8], key: &str) -> Result<&'a [u8], Unusable> {
        let (found, contents) = self.parse(bytes).ok_or(Unusable::Corrupt)?;
        if found != key {
            return Err(Unusable::Foreign { key: found.to_owned() });
        }
        Ok(contents)
    }

    fn parse<'a>(&self, bytes: &'a [u8]) -> Option<(&'a str, &'a [u8])> {
        let (body, checksum) = bytes.split_last_chunk::<8>()?;
        if fingerprint(body) != u64::from_le_bytes(*checksum) {
            return None;
        }
        let mut rest = body;
        let (magic, version) = (take(&mut rest, 8)?, take(&mut rest, 4)?);
        if magic != self.magic || version != self.version.to_le_bytes() {
            return None;
        }
        let key = std::str::from_utf8(part(&mut rest)?).ok()?;
        let contents = part(&mut rest)?;
        rest.is_empty().then_some((key, contents))
    }
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, others) = rest.split_at_checked(length)?;
    *rest = others;
    Some(taken)
}

fn part<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    let (word, others) = rest.split_first_chunk::<8>()?;
    *rest = others;
    take(rest, usize::try_from(u64::from_le_bytes(*word)).ok()?)
}

#[cfg(test)]
mod tests {
    use super::*;

    const KIND: Kind = Kind { magic: *b"kilntest", version: 1 };

    #[test]
    fn what_was_written_is_read() {
        let folder = std::env::temp_dir().join(format!("kiln-store-{}", std::process::id()));
        let path = folder.join("deeper").join("file.bin");
        assert_eq!(KIND.load(&path, "a driver"), Err(Unusable::Missing));
        // The file of a process that was killed while writing; the process number no longer exists.
        let left = path.with_file_name(".file.bin.4194305-7");
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = std::fs::File::create(&left).unwrap();
        file.set_modified(std::time::SystemTime::now() - std::time::Duration::from_secs(7200)).unwrap();
        for contents in [b"what was made".as_slice(), b""] {
            KIND.save(&path, "a driver", contents).unwrap();
            assert_eq!(KIND.load(&path, "a driver").unwrap(), contents);
        }
        assert_eq!(KIND.load(&path, "another"), Err(Unusable::Foreign { key: "a driver".into() }));
        assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "no temporary file stays");
        assert!(matches!(KIND.load(&folder, ""), Err(Unusable::Unreadable(_))), "a folder is no file");
        std::fs::remove_dir_all(folder).unwrap();
    }

    #[test]
    fn another_kind_or_version_is_damage() {
        let bytes = KIND.encode("key", b"contents");
        for kind in [Kind { magic: *b"kilnelse", ..KIND }, Kind { version: 2, ..KIND }] {
            assert_eq!(kind.decode(&bytes, "key"), Err(Unusable::Corrupt), "{kind:?}");
        }
    }

    #[test]
    fn damage_anywhere_is_found() {
        let bytes = KIND.encode("a driver", b"what was made");
        for length in 0..bytes.len() {
            assert_eq!(KIND.decode(&bytes[..length], "a driver"), Err(Unusable::Corrupt), "cut to {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(KIND.decode(&damaged, "a driver"), Err(Unusable::Corrupt), "byte {at}");
        }
        assert_eq!(KIND.decode(&[&bytes[..], b"more"].concat(), "a driver"), Err(Unusable::Corrupt));
    }

    #[test]
    fn lengths_that_lie_under_a_sound_checksum_are_found() {
        let bytes = KIND.encode("key", b"contents");
        for at in [12, 12 + 8 + 3] {
            for lie in [u64::MAX, u64::MAX / 8 + 2, 1 << 40, 1000] {
                let mut body = bytes[..bytes.len() - 8].to_vec();
                body[at..at + 8].copy_from_slice(&lie.to_le_bytes());
                let checksum = fingerprint(&body);
                body.extend(checksum.to_le_bytes());
                assert_eq!(KIND.decode(&body, "key"), Err(Unusable::Corrupt), "{lie} at {at}");
            }
        }
    }
}
