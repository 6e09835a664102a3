//! Byte-pair encoding: pairs of tokens are merged by the rank of the merge.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::hash::{Hash, slots};
use super::pretokenize::{Splits, Splitter};
use super::vocabulary::{Bytes, Vocabulary};
use crate::{Error, Result};

/// No token.
const NONE: u32 = u32::MAX;

/// The tokenizer of GPT-2 and of most models since.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    spelling: Spelling,
    /// Whether a word that is a token as a whole is taken without merging.
    whole_words: bool,
    merges: Merges,
}

/// How words are spelled in the texts of tokens.
#[derive(Debug)]
enum Spelling {
    /// A character of GPT-2's alphabet for each byte; the token of each.
    Alphabet(Box<[u32; 256]>),
    /// As they are, and single bytes as `<0xHH>`.
    Plain(Bytes),
}

/// The character that GPT-2's alphabet has for a byte: printable ones stand for themselves.
pub(super) fn alphabet(byte: u8) -> char {
    let c = match byte {
        b'!'..=b'~' | 0xa1..=0xac | 0xae..=0xff => u32::from(byte),
        0..=0x20 => 0x100 + u32::from(byte),
        0x7f..=0xa0 => 0x100 + 33 + u32::from(byte - 0x7f),
        0xad => 0x100 + 67,
    };
    // All are below 0x144.
    char::from_u32(c).unwrap_or_default()
}

/// The byte of a character of the alphabet.
pub(super) fn byte_of(c: char) -> Option<u8> {
    let byte = match u32::from(c) {
        x @ (0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff) => x,
        x @ 0x100..=0x120 => x - 0x100,
        x @ 0x121..=0x142 => x - 0x121 + 0x7f,
        0x143 => 0xad,
        _ => return None,
    };
    Some(byte as u8)
}

/// A pair of tokens, the rank of their merge and the token that it makes.
#[derive(Debug, Clone, Copy)]
struct Merge {
    pair: u64,
    rank: u32,
    token: u32,
}

/// The merges, by pairs of tokens.
#[derive(Debug)]
struct Merges {
    hash: Hash,
    slots: Vec<Merge>,
}

fn pair_of(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

impl Merges {
    /// A pair that no merge has: there is no token of this number.
    const FREE: u64 = u64::MAX;

    fn new(merges: usize) -> Self {
        let free = Merge { pair: Self::FREE, rank: 0, token: 0 };
        Self { hash: Hash::new(), slots: vec![free; slots(merges)] }
    }

    fn slot(&self, pair: u64) -> usize {
        let mask = self.slots.len() - 1;
        let mut slot = self.hash.of_number(pair) as usize & mask;
        while self.slots[slot].pair != pair && self.slots[slot].pair != Self::FREE {
            slot = (slot + 1) & mask;
        }
        slot
    }

    /// Rank and token of the merge of two tokens.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        if left == NONE || right == NONE {
            return None;
        }
        let merge = self.slots[self.slot(pair_of(left, right))];
        (merge.pair != Self::FREE).then_some((merge.rank, merge.token))
    }
}

/// Where the text of a merge is cut: at its first space that is not its first byte.
fn cut(merge: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = merge.iter().skip(1).position(|&byte| byte == b' ')? + 1;
    Some((&merge[..at], &merge[at + 1..]))
}

/// Memory that words use one after the other.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    splits: Splits,
    spelled: String,
    symbols: Vec<Symbol>,
    queue: BinaryHeap<Reverse<(u32, u32, u32, u32)>>,
}

/// A token, or a character that is none.
#[derive(Debug, Clone, Copy)]
struct Symbol {
    token: u32,
    start: u32,
    len: u32,
    previous: u32,
    next: u32,
    /// Rank and token of the merge with the next one.
    rank: u32,
    merged: u32,
}

/// Words of so many symbols are merged by looking for the least rank again and again, longer ones by a queue.
const SHORT: usize = 48;

impl Bpe {
    /// A tokenizer with these merges, in the order of their ranks.
    pub(super) fn new<'a>(
        vocabulary: &Vocabulary,
        splitter: Splitter,
        merges: impl ExactSizeIterator<Item = &'a [u8]>,
    ) -> Result<Self> {
        let wrong = |merge: &[u8], reason: &str| {
            Error::vocabulary("merges", format!("{:?}: {reason}", String::from_utf8_lossy(merge)))
        };
        let spelling = if splitter.is_plain() {
            Spelling::Plain(vocabulary.bytes()?)
        } else {
            let mut tokens = Box::new([NONE; 256]);
            for byte in 0..=255 {
                let token = vocabulary.find(alphabet(byte).encode_utf8(&mut [0; 4]).as_bytes());
                tokens[usize::from(byte)] = token.unwrap_or(NONE);
            }
            Spelling::Alphabet(tokens)
        };
        let mut table = Merges::new(merges.len());
        let mut joined = Vec::new();
        for (rank, merge) in (0u32..).zip(merges) {
            let (left, right) =
                cut(merge).ok_or_else(|| wrong(merge, "two tokens with a space between them are expected"))?;
            joined.clear();
            joined.extend_from_slice(left);
            joined.extend_from_slice(right);
            let token = |text: &[u8]| {
                vocabulary.find(text).ok_or_else(|| {
                    wrong(merge, &format!("{:?} is not in the vocabulary", String::from_utf8_lossy(text)))
                })
            };
            let pair = pair_of(token(left)?, token(right)?);
            let slot = table.slot(pair);
            // The first merge of a pair is the one that counts.
            if table.slots[slot].pair == Merges::FREE {
                table.slots[slot] = Merge { pair, rank, token: token(&joined)? };
            }
        }
        Ok(Self { whole_words: splitter.whole_words(), splitter, spelling, merges: table })
    }

    /// Whether texts of tokens are UTF-8 with `▁` for spaces.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.spelling, Spelling::Plain(_))
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, scratch: &mut Scratch, to: &mut Vec<u32>) {
        let mut splits = std::mem::take(&mut scratch.splits);
        self.splitter.split(text, &mut splits);
        for word in splits.words(text) {
            self.encode_word(vocabulary, word, scratch, to);
        }
        scratch.splits = splits;
    }

    fn encode_word(&self, vocabulary: &Vocabulary, word: &str, scratch: &mut Scratch, to: &mut Vec<u32>) {
        let whole = self.whole_words || self.splitter.whole_newlines() && word.bytes().all(|byte| byte == b'\n');
        if whole {
            let found = match &self.spelling {
                Spelling::Plain(_) => vocabulary.find(word.as_bytes()),
                Spelling::Alphabet(_) => {
                    scratch.spelled.clear();
                    scratch.spelled.extend(word.bytes().map(alphabet));
                    vocabulary.find(scratch.spelled.as_bytes())
                }
            };
            if let Some(token) = found {
                return to.push(token);
            }
        }
        let symbols = &mut scratch.symbols;
        symbols.clear();
        let mut push = |token: u32, start: usize, len: usize| {
            let at = symbols.len() as u32;
            let (start, len) = (start as u32, len as u32);
            symbols.push(Symbol {
                token,
                start,
                len,
                previous: at.wrapping_sub(1),
                next: at + 1,
                rank: NONE,
                merged: NONE,
            });
        };
        match &self.spelling {
            Spelling::Alphabet(tokens) => {
                word.bytes().enumerate().for_each(|(at, byte)| push(tokens[usize::from(byte)], at, 1));
            }
            Spelling::Plain(_) => {
                for (at, c) in word.char_indices() {
                    let text = &word.as_bytes()[at..at + c.len_utf8()];
                    push(vocabulary.find(text).unwrap_or(NONE), at, text.len());
                }
            }
        }
        if symbols.len() <= SHORT {
            self.merge_short(symbols);
        } else {
            self.merge_long(symbols, &mut scratch.queue);
        }
        for symbol in symbols.iter().filter(|symbol| symbol.len > 0) {
            if symbol.token != NONE {
                to.push(symbol.token);
            } else if let Spelling::Plain(bytes) = &self.spelling {
                let text = &word.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                to.extend(text.iter().filter_map(|&byte| bytes.0[usize::from(byte)]));
            }
        }
    }

    fn set_rank(&self, symbols: &mut [Symbol], at: usize, next: usize) {
        let found = symbols.get(next).and_then(|next| self.merges.find(symbols[at].token, next.token));
        (symbols[at].rank, symbols[at].merged) = found.unwrap_or((NONE, NONE));
    }

    /// Merges the pair of the least rank, the leftmost of equals, until there is no pair.
    fn merge_short(&self, symbols: &mut Vec<Symbol>) {
        for at in 0..symbols.len() {
            self.set_rank(symbols, at, at + 1);
        }
        while let Some((at, _)) =
            symbols.iter().enumerate().filter(|(_, s)| s.rank != NONE).min_by_key(|(_, symbol)| symbol.rank)
        {
            symbols[at].token = symbols[at].merged;
            symbols[at].len += symbols[at + 1].len;
            symbols.remove(at + 1);
            self.set_rank(symbols, at, at + 1);
            if at > 0 {
                self.set_rank(symbols, at - 1, at);
            }
        }
    }

    /// The same with a queue of pairs: rank, left symbol, and the tokens that were there when it was queued.
    fn merge_long(&self, symbols: &mut [Symbol], queue: &mut BinaryHeap<Reverse<(u32, u32, u32, u32)>>) {
        let end = symbols.len() as u32;
        let pair = |symbols: &[Symbol], left: u32, right: u32| {
            let (a, b) = (symbols.get(left as usize)?.token, symbols.get(right as usize)?.token);
            self.merges.find(a, b).map(|(rank, _)| Reverse((rank, left, a, b)))
        };
        queue.clear();
        queue.extend((1..end).filter_map(|at| pair(symbols, at - 1, at)));
        while let Some(Reverse((_, left, a, b))) = queue.pop() {
            let Symbol { token, next, previous, len, .. } = symbols[left as usize];
            // One of them was merged with another neighbour since.
            if len == 0 || token != a || symbols.get(next as usize).is_none_or(|next| next.token != b) {
                continue;
            }
            let Some((_, merged)) = self.merges.find(a, b) else { continue };
            let right = symbols[next as usize];
            symbols[next as usize].len = 0;
            symbols[left as usize].len += right.len;
            symbols[left as usize].token = merged;
            symbols[left as usize].next = right.next;
            if let Some(after) = symbols.get_mut(right.next as usize) {
                after.previous = left;
            }
            queue.extend(pair(symbols, previous, left));
            queue.extend(pair(symbols, left, right.next));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_alphabet_has_a_character_for_each_byte() {
        for byte in 0..=255 {
            assert_eq!(byte_of(alphabet(byte)), Some(byte));
        }
        assert_eq!((alphabet(b' '), alphabet(b'\n'), alphabet(0xad)), ('\u{120}', '\u{10a}', '\u{143}'));
        assert_eq!((byte_of('\u{144}'), byte_of(' '), byte_of('\u{a0}')), (None, None, None));
    }

    #[test]
    fn merges_are_cut_at_a_space_that_is_not_first() {
        assert_eq!(cut(b"a b"), Some((&b"a"[..], &b"b"[..])));
        assert_eq!(cut(b"  b"), Some((&b" "[..], &b"b"[..])));
        assert_eq!(cut(b"ab"), None);
        assert_eq!(cut(b""), None);
    }
}
