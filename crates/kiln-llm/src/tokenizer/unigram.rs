//! Unigram: of all ways to cut a text into tokens the one with the greatest sum of scores (Viterbi).

use super::merge::SPACE;
use super::prefixes::Prefixes;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::{Error, Result};

/// The tokenizer of T5 and of multilingual embedding models.
#[derive(Debug)]
pub(super) struct Unigram {
    unknown: u32,
    /// The score of a character that no token spells.
    unknown_score: f64,
    /// Tokens that texts may be divided into.
    pieces: Prefixes,
    normalizer: Option<Normalizer>,
    pub(super) add_space_prefix: bool,
    pub(super) merge_spaces: bool,
    /// Spaces belong to the word before them, not to the word after.
    pub(super) space_suffix: bool,
}

/// The best segmentation up to a position.
#[derive(Clone, Copy)]
struct Best {
    token: u32,
    /// The beginning of its last token.
    from: usize,
    score: f64,
}

/// Whether texts may be divided into tokens of this kind.
fn is_piece(kind: TokenKind) -> bool {
    matches!(kind, TokenKind::Normal | TokenKind::UserDefined | TokenKind::Unused)
}

impl Unigram {
    pub(super) fn new(vocabulary: &Vocabulary, unknown: Option<u32>, charsmap: Option<&[u8]>) -> Result<Self> {
        /// The penalty of an unknown character relative to the least likely token.
        const PENALTY: f64 = 10.0;
        let missing = "a unigram tokenizer needs a token for unknown characters, and the file does not name one";
        let unknown = unknown.ok_or_else(|| Error::vocabulary("tokenizer.ggml.unknown_token_id", missing))?;
        let ids = 0..vocabulary.len() as u32;
        let scored = ids.clone().filter(|&id| vocabulary.kind(id) == TokenKind::Normal);
        if let Some(id) = scored.clone().find(|&id| !vocabulary.score(id).is_finite()) {
            let reason = format!("that of token {id} is {}; every token needs a finite one", vocabulary.score(id));
            return Err(Error::vocabulary("tokenizer.ggml.scores", reason));
        }
        let least = f64::from(scored.map(|id| vocabulary.score(id)).fold(f32::INFINITY, f32::min));
        let used = ids.filter(|&id| is_piece(vocabulary.kind(id)));
        Ok(Self {
            unknown,
            unknown_score: if least.is_finite() { least } else { 0.0 } - PENALTY,
            pieces: Prefixes::new(vocabulary, used)?,
            normalizer: charsmap.map(Normalizer::new).transpose()?,
            add_space_prefix: true,
            merge_spaces: true,
            space_suffix: false,
        })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, to: &mut Vec<u32>) {
        let text = self.normalized(text);
        if text.is_empty() {
            return;
        }
        let unreached = Best { token: self.unknown, from: 0, score: f64::NEG_INFINITY };
        let mut best = vec![unreached; text.len() + 1];
        best[0].score = 0.0;
        for (at, c) in text.char_indices() {
            let score = best[at].score;
            let mut alone = false;
            let mut offer = |len: usize, token: u32, cost: f64| {
                let champion = &mut best[at + len];
                if score + cost > champion.score {
                    *champion = Best { token, from: at, score: score + cost };
                }
            };
            self.pieces.of(vocabulary, &text.as_bytes()[at..], |len, token| {
                // Tokens that end a text become control tokens later.
                let kind = vocabulary.kind(token);
                if !is_piece(kind) {
                    return;
                }
                alone |= len == c.len_utf8();
                let user = kind == TokenKind::UserDefined;
                offer(len, token, if user { 0.0 } else { vocabulary.score(token).into() });
            });
            if !alone {
                offer(c.len_utf8(), self.unknown, self.unknown_score);
            }
        }
        let start = to.len();
        let mut at = text.len();
        while at > 0 {
            let Best { token, from, .. } = best[at];
            // Adjacent unknown characters become one unknown token.
            if token != self.unknown || to.len() == start || to.last() != Some(&self.unknown) {
                to.push(token);
            }
            at = from;
        }
        to[start..].reverse();
    }

    /// The text with its characters mapped, and `▁` for spaces.
    fn normalized(&self, text: &str) -> String {
        let mut mapped = String::with_capacity(text.len() + 4);
        match &self.normalizer {
            Some(normalizer) => normalizer.apply(text, &mut mapped),
            None => mapped.push_str(text),
        }
        let mut out = String::with_capacity(2 * mapped.len() + 4);
        let prefix = self.add_space_prefix && !self.space_suffix;
        let (mut prefixed, mut within) = (false, false);
        for c in mapped.chars() {
            if c == ' ' {
                within = false;
                if !self.merge_spaces {
                    out.push_str(SPACE);
                }
                continue;
            }
            if !within {
                within = true;
                if prefix && !prefixed || self.merge_spaces {
                    out.push_str(SPACE);
                    prefixed = true;
                }
            }
            out.push(c);
        }
        if self.add_space_prefix && self.space_suffix {
            out.push_str(SPACE);
        }
        out
    }
}

/// SentencePiece's precompiled character map: a double array whose entries are combined by XOR, and the replacements.
///
/// An entry has a base in bits 10 to 30 (shifted by 8 if bit 9 is set), its own byte in bits 0 to 7, and bit 8 set if a
/// replacement begins at its base.
#[derive(Debug)]
struct Normalizer {
    entries: Vec<u32>,
    /// Replacements, each terminated by a zero.
    replacements: Vec<u8>,
}

impl Normalizer {
    /// Maximum bytes of a replacement, which bounds the memory that each character of a text takes. The longest of NFKC has 33.
    const MOST: usize = 256;

    fn new(map: &[u8]) -> Result<Self> {
        let wrong = |reason: String| Error::vocabulary("tokenizer.ggml.precompiled_charsmap", reason);
        let (head, rest) =
            map.split_first_chunk().ok_or_else(|| wrong(format!("{} bytes, at least 4 are expected", map.len())))?;
        let len = u32::from_le_bytes(*head);
        let (entries, replacements) = usize::try_from(len)
            .ok()
            .and_then(|len| rest.split_at_checked(len))
            .ok_or_else(|| wrong(format!("its table has {len} bytes, but only {} follow", rest.len())))?;
        let entries: Vec<u32> = entries.as_chunks().0.iter().map(|&entry| u32::from_le_bytes(entry)).collect();
        if entries.is_empty() || replacements.last() != Some(&0) {
            return Err(wrong("a table, and replacements that end with a zero, are expected".into()));
        }
        if let Some(long) = replacements.split(|&byte| byte == 0).map(<[u8]>::len).find(|&len| len > Self::MOST) {
            return Err(wrong(format!("a replacement has {long} bytes, at most {} are possible", Self::MOST)));
        }
        Ok(Self { entries, replacements: replacements.to_vec() })
    }

    /// The length of the longest prefix of a text that the map contains, and its replacement.
    fn longest(&self, text: &[u8]) -> Option<(usize, &str)> {
        let base = |entry: u32| ((entry >> 10) << ((entry & (1 << 9)) >> 6)) as usize;
        let entry = |at: usize| self.entries.get(at).copied();
        let mut node = base(entry(0)?);
        let mut found = None;
        for (at, &byte) in text.iter().enumerate().take_while(|&(_, &byte)| byte != 0) {
            node ^= usize::from(byte);
            // An index outside of the table, from a damaged map, has no entry.
            let Some(unit) = entry(node).filter(|unit| unit & (1 << 31 | 0xff) == u32::from(byte)) else { break };
            node ^= base(unit);
            if unit >> 8 & 1 == 1
                && let Some(value) = entry(node)
            {
                found = Some((at + 1, (value & !(1 << 31)) as usize));
            }
        }
        let (len, start) = found?;
        let replacement = self.replacements.get(start..)?.split(|&byte| byte == 0).next()?;
        Some((len, str::from_utf8(replacement).ok()?))
    }

    fn apply(&self, text: &str, to: &mut String) {
        let mut rest = text;
        while let Some(c) = rest.chars().next() {
            // If a prefix ends inside a character, the map is damaged; the character is kept.
            match self.longest(rest.as_bytes()) {
                Some((len, replacement)) if rest.is_char_boundary(len) => {
                    to.push_str(replacement);
                    rest = &rest[len..];
                }
                _ => {
                    to.push(c);
                    rest = &rest[c.len_utf8()..];
                }
            }
        }
    }
}
