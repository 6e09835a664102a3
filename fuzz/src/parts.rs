//! Several files in one sequence of bytes, since a fuzzer changes one sequence.

/// Joins parts: each but the last with its length in front, in four bytes.
pub(crate) fn join(parts: &[&[u8]]) -> Vec<u8> {
    let mut joined = Vec::new();
    for (at, part) in parts.iter().enumerate() {
        if at + 1 < parts.len() {
            joined.extend((part.len() as u32).to_le_bytes());
        }
        joined.extend_from_slice(part);
    }
    joined
}

/// Splits bytes into parts. A length beyond the end means everything up to the end.
pub(crate) fn split<const N: usize>(mut bytes: &[u8]) -> [&[u8]; N] {
    std::array::from_fn(|at| {
        if at + 1 == N {
            return bytes;
        }
        let (length, rest) = bytes.split_at_checked(4).unwrap_or((&[0; 4], bytes));
        let length = u32::from_le_bytes(length.try_into().unwrap_or_default()) as usize;
        let (part, rest) = rest.split_at(length.min(rest.len()));
        bytes = rest;
        part
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_come_back_and_wrong_lengths_are_cut() {
        let joined = join(&[b"ab", b"", b"cde"]);
        assert_eq!(split::<3>(&joined), [&b"ab"[..], b"", b"cde"]);
        assert_eq!(split::<2>(b"\xff\xff\xff\xffab"), [&b"ab"[..], b""]);
        assert_eq!(split::<3>(b"abc"), [&b""[..], b"", b"abc"]);
    }
}
