//! Tokenizers: from texts to tokens and back.

mod bpe;
mod decode;
mod gguf;
mod hash;
mod json;
mod merge;
mod prefixes;
mod pretokenize;
mod special;
mod spm;
mod unigram;
mod vocabulary;
mod wordpiece;

use std::collections::{BTreeSet, HashMap};

pub use decode::Decoder;
use merge::SPACE;
use special::{Part, Special};
pub use vocabulary::TokenKind;
use vocabulary::Vocabulary;

use crate::{Error, Result};

/// The algorithm that splits texts into tokens.
#[derive(Debug)]
enum Algorithm {
    Spm(spm::Spm),
    Bpe(bpe::Bpe),
    WordPiece(wordpiece::WordPiece),
    Unigram(unigram::Unigram),
}

/// The tokens with a special meaning in a model.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message that waits for a tool.
    pub eom: Option<u32>,
    /// Replaces text that the vocabulary cannot spell.
    pub unknown: Option<u32>,
    /// Separates two texts.
    pub separator: Option<u32>,
    /// Fills a batch.
    pub padding: Option<u32>,
    /// Hides a token.
    pub mask: Option<u32>,
}

/// Options of encoding a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Encoding {
    /// Whether the tokens that the model requires around a text are added (BOS, EOS, or `[CLS]` and `[SEP]`).
    pub add_special: bool,
    /// Whether the texts of control tokens become these tokens. Leave it off for texts of users: with it, a user who
    /// writes `<|im_end|>` ends the turn.
    pub parse_special: bool,
}

impl Default for Encoding {
    /// Adds the tokens around a text; special tokens in the user's text stay text.
    fn default() -> Self {
        Self { add_special: true, parse_special: false }
    }
}

/// A vocabulary, and the algorithm that splits texts into its tokens.
#[derive(Debug)]
pub struct Tokenizer {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    special: Special,
    ids: SpecialTokens,
    ends: BTreeSet<u32>,
    /// The tokens before and after a text.
    prefix: Option<u32>,
    suffix: Option<u32>,
    /// Whether a space is added before a text, and before the text after a special token.
    add_space_prefix: bool,
    /// Whether the space is added only before the whole text.
    space_prefix_once: bool,
}

/// The settings of a tokenizer from any file format.
struct Parts {
    vocabulary: Vocabulary,
    algorithm: Algorithm,
    ids: SpecialTokens,
    strips: HashMap<u32, (bool, bool)>,
    prefix: Option<u32>,
    suffix: Option<u32>,
    add_space_prefix: bool,
    space_prefix_once: bool,
}

impl Tokenizer {
    fn new(parts: Parts) -> Result<Self> {
        let Parts { mut vocabulary, algorithm, ids, strips, prefix, suffix, add_space_prefix, space_prefix_once } =
            parts;
        let all =
            [ids.bos, ids.eos, ids.eot, ids.eom, ids.unknown, ids.separator, ids.padding, ids.mask, prefix, suffix];
        for id in all.into_iter().flatten() {
            if id as usize >= vocabulary.len() {
                let reason = format!("token {id} is named, the vocabulary has {}", vocabulary.len());
                return Err(Error::vocabulary("special tokens", reason));
            }
        }
        let ends = special::ends(&mut vocabulary, [ids.eos, ids.eot, ids.eom].into_iter().flatten());
        let special = Special::new(&vocabulary, strips)?;
        Ok(Self { vocabulary, algorithm, special, ids, ends, prefix, suffix, add_space_prefix, space_prefix_once })
    }

    /// Sets the tokens before and after texts, and adds tokens that end a generation.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for a token that does not exist.
    pub(crate) fn with_special(mut self, bos: Option<u32>, eos: Option<u32>, ends: &[u32]) -> Result<Self> {
        let all = bos.iter().chain(&eos).chain(ends);
        if let Some(id) = all.copied().find(|&id| id as usize >= self.len()) {
            let reason = format!("token {id} is named, the vocabulary has {}", self.len());
            return Err(Error::vocabulary("special tokens", reason));
        }
        (self.ids.bos, self.ids.eos) = (bos.or(self.ids.bos), eos.or(self.ids.eos));
        self.ends.extend(eos.iter().chain(ends));
        Ok(self)
    }

    /// Checks that a model with this many rows of embeddings has one for each token.
    ///
    /// # Errors
    /// [`Error::Model`] if it has fewer.
    pub(crate) fn check_rows(&self, rows: usize) -> Result<()> {
        match self.len() > rows {
            true => Err(Error::model(
                "the vocabulary",
                format!("{} tokens have only {rows} rows of embeddings", self.len()),
            )),
            false => Ok(()),
        }
    }

    /// The number of tokens.
    pub fn len(&self) -> usize {
        self.vocabulary.len()
    }

    /// Whether the vocabulary is empty. Always false, because an empty vocabulary is an error.
    pub fn is_empty(&self) -> bool {
        self.vocabulary.len() == 0
    }

    /// Encodes a text with [`Encoding::default`], as models require it.
    pub fn encode(&self, text: &str) -> Vec<u32> {
        self.encode_with(text, Encoding::default())
    }

    /// Encodes a text as tokens.
    pub fn encode_with(&self, text: &str, encoding: Encoding) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() / 3 + 8);
        if encoding.add_special {
            tokens.extend(self.prefix);
        }
        self.encode_parts(text, encoding.parse_special, None, &mut tokens);
        if encoding.add_special {
            tokens.extend(self.suffix);
        }
        tokens
    }

    /// The tokens of a text inside another: no space is added before it.
    pub(crate) fn encode_inside(&self, text: &str) -> Vec<u32> {
        let mut tokens = Vec::new();
        self.encode_part(text, false, &mut bpe::Scratch::default(), &mut tokens);
        tokens
    }

    fn encode_parts(&self, text: &str, parse_special: bool, guard: Option<char>, to: &mut Vec<u32>) {
        let mut scratch = bpe::Scratch::default();
        let mut after_special = true;
        self.special.split(&self.vocabulary, text, parse_special, guard, |part| match part {
            Part::Token(token) => {
                to.push(token);
                after_special = !self.space_prefix_once;
            }
            Part::Text(text) => {
                match guard {
                    Some(guard) if text.contains(guard) => {
                        self.encode_part(&text.replace(guard, ""), after_special, &mut scratch, to);
                    }
                    _ => self.encode_part(text, after_special, &mut scratch, to),
                }
                after_special = false;
            }
        });
    }

    fn encode_part(&self, text: &str, after_special: bool, scratch: &mut bpe::Scratch, to: &mut Vec<u32>) {
        let with_spaces = || {
            let space = if self.add_space_prefix && after_special { SPACE } else { "" };
            format!("{space}{}", text.replace(' ', SPACE))
        };
        match &self.algorithm {
            Algorithm::Spm(spm) => spm.encode(&self.vocabulary, &with_spaces(), &mut scratch.symbols, to),
            Algorithm::Bpe(bpe) if bpe.is_plain() => bpe.encode(&self.vocabulary, &with_spaces(), scratch, to),
            Algorithm::Bpe(bpe) => bpe.encode(&self.vocabulary, text, scratch, to),
            Algorithm::WordPiece(wordpiece) => wordpiece.encode(&self.vocabulary, text, to),
            Algorithm::Unigram(unigram) => unigram.encode(&self.vocabulary, text, to),
        }
    }

    /// Decodes tokens that are the beginning of a text. Control tokens have no text.
    pub fn decode(&self, tokens: &[u32]) -> String {
        let mut decoder = self.decoder().from_start();
        let mut text = String::new();
        for &token in tokens {
            text.push_str(decoder.push(token));
        }
        text + decoder.finish()
    }

    /// Returns a decoder, which turns tokens into text as they arrive.
    pub fn decoder(&self) -> Decoder<'_> {
        Decoder::new(self)
    }

    /// The text of a token as stored in files, which may be any bytes; `None` if the token does not exist.
    pub fn token(&self, id: u32) -> Option<&[u8]> {
        ((id as usize) < self.len()).then(|| self.vocabulary.text(id))
    }

    /// Finds the token with this text, as stored in files.
    pub fn find(&self, text: &[u8]) -> Option<u32> {
        self.vocabulary.find(text)
    }

    /// The kind of a token; `None` if the token does not exist.
    pub fn kind(&self, id: u32) -> Option<TokenKind> {
        ((id as usize) < self.len()).then(|| self.vocabulary.kind(id))
    }

    /// The tokens with a special meaning in the file.
    pub fn special_tokens(&self) -> SpecialTokens {
        self.ids
    }

    /// Whether a generation ends with this token.
    pub fn is_end(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// The tokens that a generation ends with.
    pub fn ends(&self) -> impl Iterator<Item = u32> {
        self.ends.iter().copied()
    }

    /// The tokens that [`Encoding::add_special`] adds before and after a text.
    pub fn around(&self) -> (Option<u32>, Option<u32>) {
        (self.prefix, self.suffix)
    }

    /// Whether texts of tokens begin with a space that the text does not have.
    fn adds_space(&self) -> bool {
        match &self.algorithm {
            Algorithm::Spm(_) | Algorithm::Bpe(_) => self.add_space_prefix,
            Algorithm::Unigram(unigram) => unigram.add_space_prefix && !unigram.space_suffix,
            Algorithm::WordPiece(_) => true,
        }
    }

    /// Appends the bytes that a token represents.
    pub(crate) fn piece(&self, id: u32, special: bool, to: &mut Vec<u8>) {
        if id as usize >= self.len() {
            return;
        }
        let text = self.vocabulary.text(id);
        match self.vocabulary.kind(id) {
            TokenKind::Control | TokenKind::Unknown if !special => {}
            TokenKind::Control | TokenKind::Unknown | TokenKind::UserDefined => to.extend_from_slice(text),
            TokenKind::Byte => to.extend(vocabulary::byte_of(text)),
            TokenKind::Unused => {}
            TokenKind::Normal => match (&self.algorithm, str::from_utf8(text)) {
                (Algorithm::Bpe(bpe), Ok(text)) if !bpe.is_plain() => {
                    for c in text.chars() {
                        match bpe::byte_of(c) {
                            Some(byte) => to.push(byte),
                            None => to.extend_from_slice(c.encode_utf8(&mut [0; 4]).as_bytes()),
                        }
                    }
                }
                (_, Ok(text)) => to.extend_from_slice(text.replace(SPACE, " ").as_bytes()),
                (_, Err(_)) => to.extend_from_slice(text),
            },
        }
    }
}

/// Methods for chats.
#[cfg(feature = "chat")]
impl Tokenizer {
    /// The tokens of a chat that is to be continued. Adds the token before a text unless it is there already. No
    /// control token begins with a character that is followed by a `guard`; guards have no tokens.
    pub(crate) fn encode_chat(&self, text: &str, guard: Option<char>) -> Vec<u32> {
        let mut tokens = Vec::with_capacity(text.len() / 3 + 8);
        tokens.extend(self.prefix);
        self.encode_parts(text, true, guard, &mut tokens);
        if self.prefix.is_some() && tokens.get(1) == self.prefix.as_ref() {
            tokens.remove(0);
        }
        tokens
    }

    /// The length of the token at a position of a text that is recognised in every text, if there is one.
    pub(crate) fn user_defined_at(&self, text: &str, at: usize) -> Option<usize> {
        let (token, len) = self.special.at(&self.vocabulary, text, at, true)?;
        (self.vocabulary.kind(token) == TokenKind::UserDefined).then_some(len)
    }

    /// Whether a text has a control token at a position.
    pub(crate) fn control_at(&self, text: &str, at: usize) -> bool {
        let found = self.special.at(&self.vocabulary, text, at, true);
        found.is_some_and(|(token, _)| self.vocabulary.kind(token) != TokenKind::UserDefined)
    }

    /// The texts of control tokens.
    pub(crate) fn control_texts(&self) -> impl Iterator<Item = &[u8]> {
        let is_control = |id: u32| matches!(self.vocabulary.kind(id), TokenKind::Control | TokenKind::Unknown);
        (0..self.len() as u32).filter(move |&id| is_control(id)).map(|id| self.vocabulary.text(id))
    }
}
