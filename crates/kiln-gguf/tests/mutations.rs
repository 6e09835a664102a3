//! Damaged files: cut at every byte, and changed at random by a fixed sequence.

mod support;

use kiln_gguf::Gguf;
use support::{exercise::exercise, small};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

#[test]
fn a_file_that_is_cut_anywhere_is_refused() {
    let whole = small();
    let end = Gguf::parse(&whole).unwrap().infos().iter().map(|t| t.offset() + t.bytes()).max().unwrap();
    for len in 0..end {
        let error = Gguf::parse(&whole[..len]).map(drop).expect_err("a part is missing");
        assert!(!error.to_string().is_empty());
    }
    // Padding after the last tensor may be missing.
    (end..=whole.len()).for_each(|len| exercise(&whole[..len]));
}

/// SplitMix64.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

/// What numbers are replaced by: those around which arithmetic goes wrong.
const EXTREMES: [u64; 12] =
    [0, 1, 2, 31, 32, 33, 0x7fff_ffff, 0xffff_ffff, 0x1_0000_0000, i64::MAX as u64, u64::MAX - 31, u64::MAX];

fn mutate(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(4) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(6) {
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            // A number of 4 or 8 bytes at any position.
            2 | 3 => {
                let number = EXTREMES[random.below(EXTREMES.len())].to_le_bytes();
                let width = if random.below(2) == 0 { 4 } else { 8 };
                bytes.iter_mut().skip(at).zip(&number[..width]).for_each(|(to, from)| *to = *from);
            }
            4 => bytes.truncate(at),
            // A piece of the file at another position.
            _ => {
                let len = random.below(64).min(bytes.len() - at);
                let to = random.below(bytes.len() - len + 1);
                bytes.copy_within(at..at + len, to);
            }
        }
    }
}

/// 10⁵ files; `KILN_FUZZ_CASES` names another number.
#[test]
fn mutated_files_give_errors_or_are_read() {
    let cases = std::env::var("KILN_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(100_000);
    let whole = small();
    exercise(&whole);
    let mut random = Random(1);
    let mut bytes = Vec::new();
    for _ in 0..cases {
        bytes.clone_from(&whole);
        mutate(&mut bytes, &mut random);
        exercise(&bytes);
    }
}
