//! SentencePiece's BPE: pairs are merged by the score of the token that they make.

use std::cmp::Ordering;
use std::collections::BinaryHeap;

use super::vocabulary::{Bytes, Vocabulary};
use crate::Result;

/// What stands for a space in the texts of tokens, `▁`.
pub(super) const SPACE: &str = "\u{2581}";

/// The tokenizer of Llama 1 and 2, and of models made from it.
#[derive(Debug)]
pub(super) struct Spm {
    bytes: Bytes,
    unknown: Option<u32>,
}

/// A part of the text: a character, or what was merged to a token.
#[derive(Clone, Copy)]
struct Symbol {
    start: usize,
    /// 0 once it was merged into the symbol before it.
    len: usize,
    previous: usize,
    next: usize,
}

/// No symbol.
const END: usize = usize::MAX;

/// Two neighbours that are a token together.
struct Pair {
    score: f32,
    left: usize,
    right: usize,
    len: usize,
}

/// The greatest is the highest score, then the leftmost.
impl Ord for Pair {
    fn cmp(&self, other: &Self) -> Ordering {
        self.score.total_cmp(&other.score).then(other.left.cmp(&self.left))
    }
}

impl PartialOrd for Pair {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl PartialEq for Pair {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Pair {}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<Self> {
        Ok(Self { bytes: vocabulary.bytes()?, unknown })
    }

    /// Appends the tokens of a text in which `▁` stands for spaces.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, to: &mut Vec<u32>) {
        let mut symbols: Vec<Symbol> = Vec::with_capacity(text.len());
        for (start, c) in text.char_indices() {
            let at = symbols.len();
            symbols.push(Symbol { start, len: c.len_utf8(), previous: at.wrapping_sub(1), next: at + 1 });
        }
        let Some(last) = symbols.last_mut() else { return };
        last.next = END;

        let pair = |symbols: &[Symbol], left: usize, right: usize| {
            if left == END || right == END {
                return None;
            }
            let (start, len) = (symbols[left].start, symbols[left].len + symbols[right].len);
            if len > vocabulary.longest() {
                return None;
            }
            let token = vocabulary.find(&text.as_bytes()[start..start + len])?;
            Some(Pair { score: vocabulary.score(token), left, right, len })
        };
        let mut queue: BinaryHeap<Pair> = (1..symbols.len()).filter_map(|at| pair(&symbols, at - 1, at)).collect();
        while let Some(Pair { left, right, len, .. }) = queue.pop() {
            let (a, b) = (symbols[left], symbols[right]);
            // One of them was merged with another neighbour since.
            if a.len == 0 || b.len == 0 || a.len + b.len != len {
                continue;
            }
            symbols[left].len = len;
            symbols[left].next = b.next;
            symbols[right].len = 0;
            if b.next != END {
                symbols[b.next].previous = left;
            }
            queue.extend(pair(&symbols, a.previous, left));
            queue.extend(pair(&symbols, left, b.next));
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            let bytes = &text.as_bytes()[symbol.start..symbol.start + symbol.len];
            match vocabulary.find(bytes) {
                Some(token) => to.push(token),
                None => self.spell(vocabulary, bytes, to),
            }
        }
    }

    /// Appends a token for each byte. What has no such token is unknown, once for the character.
    fn spell(&self, vocabulary: &Vocabulary, bytes: &[u8], to: &mut Vec<u32>) {
        let start = to.len();
        for &byte in bytes {
            let Some(token) = self.bytes.0[usize::from(byte)].or_else(|| vocabulary.find(&[byte])) else {
                to.truncate(start);
                return to.extend(self.unknown);
            };
            to.push(token);
        }
    }
}
