//! Byte-pair encoding: pairs of tokens are merged by the rank of the merge.

use super::hash::{Hash, slots};
use super::merge::{Cuts, Symbol, Symbols};
use super::pretokenize::{Splits, Splitter};
use super::vocabulary::{Bytes, Vocabulary};
use crate::{Error, Result};

/// The tokenizer of GPT-2 and of most models since.
#[derive(Debug)]
pub(super) struct Bpe {
    splitter: Splitter,
    spelling: Spelling,
    /// Whether a word that is a token is used without merging.
    whole_words: bool,
    merges: Merges,
}

/// The spelling of words in the texts of tokens.
#[derive(Debug)]
enum Spelling {
    /// Each byte is a character of GPT-2's alphabet; the token of each.
    Alphabet(Box<[Option<u32>; 256]>),
    /// Unchanged, with `▁` for spaces, and single bytes as `<0xHH>`.
    Plain(Bytes, Cuts),
}

/// The character of a byte in GPT-2's alphabet: printable ones represent themselves.
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

/// A pair of tokens, the rank of their merge and the resulting token.
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
    /// The pair of a free slot: no token has the number of its tokens.
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

    /// Adds a merge. The first merge of a pair wins.
    fn insert(&mut self, merge: Merge) {
        let slot = self.slot(merge.pair);
        if self.slots[slot].pair == Self::FREE {
            self.slots[slot] = merge;
        }
    }

    /// Rank and token of the merge of two tokens.
    fn find(&self, left: u32, right: u32) -> Option<(u32, u32)> {
        let merge = self.slots[self.slot(pair_of(left, right))];
        (merge.pair != Self::FREE).then_some((merge.rank, merge.token))
    }
}

/// The two tokens in the text of a merge, which is split at its first space that is not its first byte.
pub(super) fn cut(merge: &[u8]) -> Result<(&[u8], &[u8])> {
    let at = merge.iter().skip(1).position(|&byte| byte == b' ');
    let at = at.ok_or_else(|| {
        let merge = String::from_utf8_lossy(merge);
        Error::vocabulary("merges", format!("{merge:?}: two tokens with a space between them are expected"))
    })?;
    Ok((&merge[..=at], &merge[at + 2..]))
}

/// The error for a merge whose tokens are not in the vocabulary.
fn unknown((left, right): (&[u8], &[u8]), text: &[u8]) -> Error {
    let [left, right, text] = [left, right, text].map(String::from_utf8_lossy);
    Error::vocabulary("merges", format!("the merge of {left:?} and {right:?}: {text:?} is not in the vocabulary"))
}

/// Memory that is reused for every word.
#[derive(Debug, Default)]
pub(super) struct Scratch {
    splits: Splits,
    spelled: String,
    pub(super) symbols: Symbols,
}

impl Bpe {
    /// A tokenizer with these merges, in the order of their ranks.
    pub(super) fn new(
        vocabulary: &Vocabulary,
        splitter: Splitter,
        whole_words: bool,
        merges: &[(&[u8], &[u8])],
    ) -> Result<Self> {
        /// Merges whose tokens are looked up at the same time.
        const CHUNK: usize = 32;
        let spelling = if splitter.is_plain() {
            Spelling::Plain(vocabulary.bytes()?, Cuts::new(vocabulary.texts()))
        } else {
            let token = |byte: usize| vocabulary.find(alphabet(byte as u8).encode_utf8(&mut [0; 4]).as_bytes());
            Spelling::Alphabet(Box::new(std::array::from_fn(token)))
        };
        let mut table = Merges::new(merges.len());
        let mut joined = Vec::new();
        let (mut texts, mut found) = (Vec::new(), Vec::new());
        // Trainers number tokens in the order of merges, so the token is usually the next one or, for a token with
        // several merges, the same again.
        let mut last = 0;
        for (part, first) in merges.chunks(CHUNK).zip((0u32..).step_by(CHUNK)) {
            texts.clear();
            texts.extend(part.iter().flat_map(|&(left, right)| [left, right]));
            vocabulary.find_all(&texts, &mut found);
            let mut made = [Merge { pair: Merges::FREE, rank: 0, token: 0 }; CHUNK];
            for (((&merge, tokens), rank), made) in part.iter().zip(found.chunks(2)).zip(first..).zip(&mut made) {
                let named = |token: Option<u32>, text: &[u8]| token.ok_or_else(|| unknown(merge, text));
                let pair = pair_of(named(tokens[0], merge.0)?, named(tokens[1], merge.1)?);
                joined.clear();
                joined.extend_from_slice(merge.0);
                joined.extend_from_slice(merge.1);
                let is_it = |&id: &u32| (id as usize) < vocabulary.len() && vocabulary.text(id) == joined;
                last = match [last, last + 1].into_iter().find(is_it) {
                    Some(token) => token,
                    None => named(vocabulary.find(&joined), &joined)?,
                };
                *made = Merge { pair, rank, token: last };
            }
            made[..part.len()].iter().for_each(|&merge| table.insert(merge));
        }
        Ok(Self { whole_words, splitter, spelling, merges: table })
    }

    /// Whether texts of tokens are UTF-8 with `▁` for spaces.
    pub(super) fn is_plain(&self) -> bool {
        matches!(self.spelling, Spelling::Plain(..))
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
                Spelling::Plain(..) => vocabulary.find_piece(word.as_bytes()),
                Spelling::Alphabet(_) => {
                    scratch.spelled.clear();
                    scratch.spelled.extend(word.bytes().map(alphabet));
                    vocabulary.find_piece(scratch.spelled.as_bytes())
                }
            };
            if let Some(token) = found {
                return to.push(token);
            }
        }
        let symbols = &mut scratch.symbols;
        match &self.spelling {
            Spelling::Alphabet(tokens) => {
                symbols.clear();
                for (at, byte) in word.bytes().enumerate() {
                    symbols.push(tokens[usize::from(byte)], at, 1);
                }
                self.merge(symbols);
                to.extend(symbols.iter().filter_map(Symbol::token));
            }
            Spelling::Plain(bytes, cuts) => {
                for piece in cuts.pieces(word) {
                    symbols.clear();
                    for (at, c) in piece.char_indices() {
                        let len = c.len_utf8();
                        symbols.push(vocabulary.find_piece(&piece.as_bytes()[at..at + len]), at, len);
                    }
                    self.merge(symbols);
                    for symbol in symbols.iter() {
                        let text = &piece.as_bytes()[symbol.start as usize..][..symbol.len as usize];
                        match symbol.token() {
                            Some(token) => to.push(token),
                            None => to.extend(text.iter().filter_map(|&byte| bytes.get(byte))),
                        }
                    }
                }
            }
        }
    }

    fn merge(&self, symbols: &mut Symbols) {
        symbols.merge(|a, b| self.merges.find(a.token()?, b.token()?));
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

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
        assert_eq!(cut(b"a b").unwrap(), (&b"a"[..], &b"b"[..]));
        assert_eq!(cut(b"  b").unwrap(), (&b" "[..], &b"b"[..]));
        assert_eq!(cut(b"ab ").unwrap(), (&b"ab"[..], &b""[..]));
        assert!([&b"ab"[..], b"", b" ", b" a"].map(cut).iter().all(Result::is_err));
    }
}
