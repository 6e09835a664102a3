//! The file that compiled pipelines are kept in.
//!
//! Magic bytes, the version of the format, the key, the fingerprints of the shaders that it holds, what the driver gave,
//! and a checksum of all that. Numbers are little endian; lists begin with their length.

use std::collections::BTreeSet;

const MAGIC: [u8; 8] = *b"kilnpipe";
const VERSION: u32 = 1;

/// What a file holds.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents<'a> {
    /// Fingerprints of the shaders whose pipelines are in `data`.
    pub(super) held: BTreeSet<u64>,
    /// What the driver gave.
    pub(super) data: &'a [u8],
}

/// Why a file is not used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unusable {
    /// It is not what was written.
    Corrupt,
    /// Another adapter, driver or version of kiln wrote it.
    Foreign {
        /// Who wrote it.
        key: String,
    },
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Corrupt => write!(f, "it is damaged"),
            Self::Foreign { key } => write!(f, "it is of {key}"),
        }
    }
}

/// FNV-1a: stable between versions of the compiler, which the hasher of the standard library is not.
pub(super) fn fingerprint(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01b3))
}

/// The bytes of a file.
pub(super) fn encode(key: &str, contents: &Contents<'_>) -> Vec<u8> {
    let Contents { held, data } = contents;
    let mut bytes = Vec::with_capacity(64 + key.len() + 8 * held.len() + data.len());
    bytes.extend(MAGIC);
    bytes.extend(VERSION.to_le_bytes());
    bytes.extend((key.len() as u64).to_le_bytes());
    bytes.extend(key.as_bytes());
    bytes.extend((held.len() as u64).to_le_bytes());
    held.iter().for_each(|fingerprint| bytes.extend(fingerprint.to_le_bytes()));
    bytes.extend((data.len() as u64).to_le_bytes());
    bytes.extend(*data);
    bytes.extend(fingerprint(&bytes).to_le_bytes());
    bytes
}

/// Reads a file that was written with this key.
pub(super) fn decode<'a>(bytes: &'a [u8], key: &str) -> Result<Contents<'a>, Unusable> {
    let (found, contents) = parse(bytes).ok_or(Unusable::Corrupt)?;
    if found != key {
        return Err(Unusable::Foreign { key: found.to_owned() });
    }
    Ok(contents)
}

fn parse(bytes: &[u8]) -> Option<(&str, Contents<'_>)> {
    let (body, checksum) = bytes.split_last_chunk::<8>()?;
    if fingerprint(body) != u64::from_le_bytes(*checksum) {
        return None;
    }
    let mut rest = body;
    let (magic, version) = (take(&mut rest, 8)?, take(&mut rest, 4)?);
    if magic != MAGIC || version != VERSION.to_le_bytes() {
        return None;
    }
    let length = number(&mut rest)?;
    let key = std::str::from_utf8(take(&mut rest, length)?).ok()?;
    let fingerprints = number(&mut rest)?.checked_mul(8)?;
    let held = take(&mut rest, fingerprints)?.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
    let length = number(&mut rest)?;
    let data = take(&mut rest, length)?;
    rest.is_empty().then_some((key, Contents { held, data }))
}

fn take<'a>(rest: &mut &'a [u8], length: usize) -> Option<&'a [u8]> {
    let (taken, others) = rest.split_at_checked(length)?;
    *rest = others;
    Some(taken)
}

fn number(rest: &mut &[u8]) -> Option<usize> {
    let (word, others) = rest.split_first_chunk::<8>()?;
    *rest = others;
    usize::try_from(u64::from_le_bytes(*word)).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contents() -> Contents<'static> {
        Contents { held: BTreeSet::from([3, u64::MAX]), data: b"what the driver gave" }
    }

    #[test]
    fn what_was_written_is_read() {
        let bytes = encode("an adapter", &contents());
        assert_eq!(decode(&bytes, "an adapter"), Ok(contents()));
        let empty = Contents { held: BTreeSet::new(), data: b"" };
        assert_eq!(decode(&encode("", &empty), ""), Ok(empty));
    }

    #[test]
    fn the_file_of_another_says_whose_it_is() {
        let bytes = encode("an adapter", &contents());
        assert_eq!(decode(&bytes, "another"), Err(Unusable::Foreign { key: "an adapter".into() }));
    }

    #[test]
    fn damage_anywhere_is_found() {
        let bytes = encode("an adapter", &contents());
        for length in 0..bytes.len() {
            assert_eq!(decode(&bytes[..length], "an adapter"), Err(Unusable::Corrupt), "cut to {length}");
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            assert_eq!(decode(&damaged, "an adapter"), Err(Unusable::Corrupt), "byte {at}");
        }
        assert_eq!(decode(&[&bytes[..], b"more"].concat(), "an adapter"), Err(Unusable::Corrupt));
    }

    #[test]
    fn lengths_that_lie_under_a_sound_checksum_are_found() {
        let bytes = encode("key", &contents());
        // The length of the key, the number of fingerprints, the length of the data.
        for at in [12, 12 + 8 + 3, 12 + 8 + 3 + 8 + 16] {
            for lie in [u64::MAX, u64::MAX / 8 + 2, 1 << 40, 1000] {
                let mut body = bytes[..bytes.len() - 8].to_vec();
                body[at..at + 8].copy_from_slice(&lie.to_le_bytes());
                let checksum = fingerprint(&body);
                body.extend(checksum.to_le_bytes());
                assert_eq!(decode(&body, "key"), Err(Unusable::Corrupt), "{lie} at {at}");
            }
        }
    }
}
