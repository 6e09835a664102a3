//! The contents of the file of compiled pipelines: the fingerprints of the shaders, then the data from the driver.
//!
//! Numbers are little endian; both begin with their length.

use std::collections::BTreeSet;

/// The contents of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Contents<'a> {
    /// Fingerprints of the shaders whose pipelines are in `data`.
    pub(super) held: BTreeSet<u64>,
    /// The data from the driver.
    pub(super) data: &'a [u8],
}

impl<'a> Contents<'a> {
    pub(super) fn encode(&self) -> Vec<u8> {
        let Self { held, data } = self;
        let mut bytes = Vec::with_capacity(16 + 8 * held.len() + data.len());
        bytes.extend((held.len() as u64).to_le_bytes());
        held.iter().for_each(|fingerprint| bytes.extend(fingerprint.to_le_bytes()));
        bytes.extend((data.len() as u64).to_le_bytes());
        bytes.extend(*data);
        bytes
    }

    /// `None` if this is not a valid encoding.
    pub(super) fn decode(mut bytes: &'a [u8]) -> Option<Self> {
        let rest = &mut bytes;
        let fingerprints = number(rest)?.checked_mul(8)?;
        let held = take(rest, fingerprints)?.as_chunks::<8>().0.iter().map(|word| u64::from_le_bytes(*word)).collect();
        let length = number(rest)?;
        let data = take(rest, length)?;
        rest.is_empty().then_some(Self { held, data })
    }
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

    #[test]
    fn what_was_encoded_is_decoded_and_nothing_else_is() {
        let contents = Contents { held: BTreeSet::from([3, u64::MAX]), data: b"what the driver gave" };
        let bytes = contents.encode();
        assert_eq!(Contents::decode(&bytes), Some(contents));
        for length in 0..bytes.len() {
            assert_eq!(Contents::decode(&bytes[..length]), None, "cut to {length}");
        }
        assert_eq!(Contents::decode(&[&bytes[..], b"more"].concat()), None);
        // The number of fingerprints, the length of the data.
        for at in [0, 8 + 16] {
            for lie in [u64::MAX, u64::MAX / 8 + 2, 1 << 40, 1000] {
                let mut lying = bytes.clone();
                lying[at..at + 8].copy_from_slice(&lie.to_le_bytes());
                assert_eq!(Contents::decode(&lying), None, "{lie} at {at}");
            }
        }
    }
}
