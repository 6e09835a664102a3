//! The bytes of a case: a seed with a few changes, from a generator that is the same on every machine.

use kiln_ir::op::reference::Random;

/// Numbers around which arithmetic goes wrong.
const EXTREMES: [u64; 14] = [
    0,
    1,
    2,
    31,
    32,
    33,
    0x7f,
    0x7fff_ffff,
    0x8000_0000,
    0xffff_ffff,
    0x1_0000_0000,
    i64::MAX as u64,
    u64::MAX - 31,
    u64::MAX,
];

/// The special characters of JSON and Jinja.
const SIGNS: &[u8] = b"0123456789,:[]{}\"\\-+.e %|()";

/// Words of texts: values of JSON, and what Jinja's grammar is made of.
const WORDS: [&str; 40] = [
    "0",
    "-1",
    "1",
    "7",
    "0.5",
    "1e-40",
    "1e39",
    "1e300",
    "65536",
    "2147483648",
    "4294967295",
    "9007199254740993",
    "18446744073709551615",
    "null",
    "true",
    "false",
    "[]",
    "{}",
    "\"\"",
    "[1, 0, 1]",
    "{\"a\": 1}",
    "\\u0000",
    "\\ud800",
    "\u{e4}",
    "\u{1f980}",
    "a",
    "messages",
    "loop.index0",
    "range(99999)",
    "|tojson",
    "|join",
    "|length",
    "[::-1]",
    "{{",
    "}}",
    "{%",
    "%}",
    "{% for m in messages %}",
    "{% endfor %}",
    "{% if x %}",
];

/// A case: one of the seeds, changed at up to eight places. The first cases are the seeds themselves.
pub fn mutated(seeds: &[Vec<u8>], case: u64) -> Vec<u8> {
    let count = seeds.len().max(1) as u64;
    let mut bytes = seeds.get((case % count) as usize).cloned().unwrap_or_default();
    if case < count {
        return bytes;
    }
    let mut random = Random::new(case);
    for _ in 0..1 << random.below(4) {
        change(&mut bytes, seeds, &mut random);
    }
    bytes
}

/// Changes one place.
fn change(bytes: &mut Vec<u8>, seeds: &[Vec<u8>], random: &mut Random) {
    let at = random.below(bytes.len() + 1);
    let rest = bytes.len() - at;
    match random.below(12) {
        0 => replace(bytes, at, |byte| byte ^ 1 << random.below(8)),
        1 => replace(bytes, at, |_| random.bits() as u8),
        2 => replace(bytes, at, |_| SIGNS[random.below(SIGNS.len())]),
        // A number of 4 or 8 bytes, anywhere.
        3 | 4 => {
            let number = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
            let width = [4, 8][random.below(2)];
            bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(to, from)| *to = *from);
        }
        // A word or a number of a text becomes another.
        5 | 6 => {
            let part = |byte: &u8| byte.is_ascii_alphanumeric() || b"_.-".contains(byte);
            let start = at - bytes[..at].iter().rev().take_while(|byte| part(byte)).count();
            let end = at + bytes[at..].iter().take_while(|byte| part(byte)).count();
            bytes.splice(start..end, WORDS[random.below(WORDS.len())].bytes());
        }
        7 => drop(bytes.splice(at..at, WORDS[random.below(WORDS.len())].bytes())),
        8 => bytes.truncate(at),
        9 => drop(bytes.drain(at..at + random.below(64).min(rest))),
        // A piece in another place, over what is there or between it.
        10 => {
            let piece = bytes[at..at + random.below(64).min(rest)].to_vec();
            let to = random.below(bytes.len() + 1);
            let over = random.below(2) * piece.len();
            bytes.splice(to..(to + over).min(bytes.len()), piece);
        }
        // A piece of a seed.
        _ => {
            let Some(other) = seeds.get(random.below(seeds.len())) else { return };
            let from = random.below(other.len() + 1);
            let piece = &other[from..other.len().min(from + random.below(256))];
            bytes.splice(at..bytes.len().min(at + random.below(2) * piece.len()), piece.iter().copied());
        }
    }
}

fn replace(bytes: &mut [u8], at: usize, by: impl FnOnce(u8) -> u8) {
    if let Some(byte) = bytes.get_mut(at) {
        *byte = by(*byte);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_differ_and_are_the_same_each_time() {
        let seeds = [b"{\"a\": 12, \"b\": [1, 2]}".to_vec(), vec![0; 64]];
        assert_eq!([mutated(&seeds, 0), mutated(&seeds, 1)], seeds);
        let cases: std::collections::HashSet<Vec<u8>> = (2..2000).map(|case| mutated(&seeds, case)).collect();
        assert!(cases.len() > 1500, "{}", cases.len());
        assert!((2..200).all(|case| mutated(&seeds, case) == mutated(&seeds, case)));
        // Without a byte to change, and without a seed.
        assert!((0..200).all(|case| mutated(&[Vec::new()], case).len() < 400));
        assert!(mutated(&[], 0).is_empty());
    }
}
