//! The tokens of a vocabulary: texts, scores, kinds, and the token of a text.

use super::hash::{Hash, slots};
use crate::{Error, Result};

/// The kind of a token.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum TokenKind {
    /// A piece of text.
    Normal = 1,
    /// The token for text that the vocabulary cannot spell.
    Unknown = 2,
    /// Controls the model: begin, end, turn. It is recognised in text only on request.
    Control = 3,
    /// Recognised in every text before it is split.
    UserDefined = 4,
    /// Never produced.
    Unused = 5,
    /// One byte, `<0xHH>`.
    Byte = 6,
}

impl TokenKind {
    /// The kind with this number in files. llama.cpp's kind "undefined" is used by no tokenizer.
    pub(super) fn from_id(id: i64) -> Option<Self> {
        Some(match id {
            1 => Self::Normal,
            2 => Self::Unknown,
            3 => Self::Control,
            4 => Self::UserDefined,
            0 | 5 => Self::Unused,
            6 => Self::Byte,
            _ => return None,
        })
    }
}

/// A slot of the table: a token with its text's location, so that a lookup does not need the tables by token.
#[derive(Debug, Clone, Copy)]
struct Slot {
    /// Half of the text's hash, so that other texts are rarely compared.
    hash: u32,
    id: u32,
    start: u32,
    len: u32,
}

/// A slot without a token.
const FREE: Slot = Slot { hash: 0, id: u32::MAX, start: 0, len: 0 };

/// The tokens of a vocabulary.
#[derive(Debug)]
pub(super) struct Vocabulary {
    /// All texts, concatenated.
    texts: Vec<u8>,
    /// The end of each text.
    ends: Vec<u32>,
    kinds: Vec<TokenKind>,
    /// Empty if the file has no scores.
    scores: Vec<f32>,
    hash: Hash,
    /// Tokens by the hashes of their texts.
    by_text: Vec<Slot>,
    longest: usize,
}

impl Vocabulary {
    /// A vocabulary. If several tokens have the same text, the first is found.
    pub(super) fn new<'a>(
        texts: impl Iterator<Item = &'a [u8]>,
        kinds: Vec<TokenKind>,
        scores: Vec<f32>,
    ) -> Result<Self> {
        let mut this = Self {
            texts: Vec::new(),
            ends: Vec::with_capacity(kinds.len()),
            kinds,
            scores,
            hash: Hash::new(),
            by_text: Vec::new(),
            longest: 0,
        };
        for text in texts {
            this.texts.extend_from_slice(text);
            this.longest = this.longest.max(text.len());
            let end = u32::try_from(this.texts.len())
                .map_err(|_| Error::vocabulary("tokens", "the texts have more than 4 GiB together"))?;
            this.ends.push(end);
        }
        let n = this.ends.len();
        if n == 0 || n >= 1 << 30 {
            return Err(Error::vocabulary(
                "tokens",
                format!("{n} tokens, at least one and less than 2^30 are expected"),
            ));
        }
        if this.kinds.len() != n {
            let reason = format!("{} kinds of tokens for {n} tokens", this.kinds.len());
            return Err(Error::vocabulary("token types", reason));
        }
        if !this.scores.is_empty() && this.scores.len() != n {
            let reason = format!("{} scores for {n} tokens", this.scores.len());
            return Err(Error::vocabulary("scores", reason));
        }
        if let Some(at) = this.scores.iter().position(|score| score.is_nan()) {
            return Err(Error::vocabulary("scores", format!("the score of token {at} is not a number")));
        }
        this.by_text = vec![FREE; slots(n)];
        let mut start = 0;
        for id in 0..n as u32 {
            let (end, text) = (this.ends[id as usize], this.text(id));
            // A token without text is never found.
            if !text.is_empty() {
                let (slot, hash) = this.slot(text);
                if this.by_text[slot].id == FREE.id {
                    this.by_text[slot] = Slot { hash, id, start, len: end - start };
                }
            }
            start = end;
        }
        Ok(this)
    }

    /// The slot of a text (that of its token, or a free one), and half of its hash.
    fn slot(&self, text: &[u8]) -> (usize, u32) {
        let mask = self.by_text.len() - 1;
        let hash = self.hash.of(text);
        let (mut at, hash) = (hash as usize & mask, (hash >> 32) as u32);
        loop {
            let slot = &self.by_text[at];
            let is_it = || slot.hash == hash && &self.texts[slot.start as usize..][..slot.len as usize] == text;
            if slot.id == FREE.id || is_it() {
                return (at, hash);
            }
            at = (at + 1) & mask;
        }
    }

    pub(super) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The text of a token, which must exist.
    pub(super) fn text(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = if id == 0 { 0 } else { self.ends[id - 1] as usize };
        &self.texts[start..self.ends[id] as usize]
    }

    /// All texts, in the order of the tokens.
    pub(super) fn texts(&self) -> impl Iterator<Item = &[u8]> {
        (0..self.len() as u32).map(|id| self.text(id))
    }

    /// The token of a text.
    pub(super) fn find(&self, text: &[u8]) -> Option<u32> {
        let Slot { id, .. } = self.by_text[self.slot(text).0];
        (id != FREE.id).then_some(id)
    }

    /// The token for a piece of text. Control tokens and byte tokens are excluded: a user who writes `<s>` gets the
    /// tokens of its letters.
    pub(super) fn find_piece(&self, text: &[u8]) -> Option<u32> {
        let is_text = |&id: &u32| !matches!(self.kind(id), TokenKind::Control | TokenKind::Unknown | TokenKind::Byte);
        self.find(text).filter(is_text)
    }

    /// The tokens of many texts. Reads all slots first and then their texts, so that the processor waits for several
    /// cache misses at once: tables of a large vocabulary exceed the caches.
    pub(super) fn find_all(&self, texts: &[&[u8]], to: &mut Vec<Option<u32>>) {
        let mask = self.by_text.len() - 1;
        to.clear();
        to.extend(texts.iter().map(|text| Some(self.by_text[self.hash.of(text) as usize & mask].id)));
        for (text, token) in texts.iter().zip(to) {
            if token.is_none_or(|id| id == FREE.id || self.text(id) != *text) {
                *token = self.find(text);
            }
        }
    }

    pub(super) fn kind(&self, id: u32) -> TokenKind {
        self.kinds[id as usize]
    }

    pub(super) fn set_kind(&mut self, id: u32, kind: TokenKind) {
        self.kinds[id as usize] = kind;
    }

    /// The score of a token; 0 if the file has no scores.
    pub(super) fn score(&self, id: u32) -> f32 {
        self.scores.get(id as usize).copied().unwrap_or(0.0)
    }

    /// Bytes of the longest text.
    pub(super) fn longest(&self) -> usize {
        self.longest
    }

    /// The tokens of single bytes, `<0xHH>`.
    pub(super) fn bytes(&self) -> Result<Bytes> {
        let mut bytes = Bytes(Box::new([None; 256]));
        for id in 0..self.len() as u32 {
            if self.kind(id) == TokenKind::Byte {
                let byte = byte_of(self.text(id)).ok_or_else(|| {
                    let text = String::from_utf8_lossy(self.text(id)).into_owned();
                    Error::vocabulary("tokens", format!("token {id} is a byte: <0xHH> is expected, not {text:?}"))
                })?;
                bytes.0[usize::from(byte)].get_or_insert(id);
            }
        }
        Ok(bytes)
    }
}

/// The byte that a text `<0xHH>` names.
pub(super) fn byte_of(text: &[u8]) -> Option<u8> {
    let [b'<', b'0', b'x', high @ (b'0'..=b'9' | b'A'..=b'F' | b'a'..=b'f'), low, b'>'] = text else { return None };
    let digit = |c: u8| char::from(c).to_digit(16);
    Some((digit(*high)? << 4 | digit(*low)?) as u8)
}

/// The tokens of single bytes.
#[derive(Debug)]
pub(super) struct Bytes(Box<[Option<u32>; 256]>);

impl Bytes {
    /// The token of a byte.
    pub(super) fn get(&self, byte: u8) -> Option<u32> {
        self.0[usize::from(byte)]
    }
}
