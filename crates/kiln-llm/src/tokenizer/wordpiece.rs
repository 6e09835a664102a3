//! WordPiece: words are cut into the longest tokens from the left.

use super::vocabulary::Vocabulary;
use crate::unicode::{Class, without_accents};
use crate::{Error, Result};

/// The tokenizer of BERT.
///
/// Texts of tokens begin with `▁` at the beginning of a word, as in GGUF files, and have no `##` inside words.
#[derive(Debug)]
pub(super) struct WordPiece {
    unknown: u32,
    pub(super) lower_case: bool,
    pub(super) strip_accents: bool,
}

/// Longer words become unknown, as in the original: the search considers every end of every token.
const LONGEST_WORD: usize = 100;

/// Whether a character is a word of its own, as in some scripts.
fn is_cjk(c: char) -> bool {
    matches!(c, '\u{4e00}'..='\u{9fff}' | '\u{3400}'..='\u{4dbf}' | '\u{20000}'..='\u{2a6df}' | '\u{2a700}'..='\u{2b73f}'
        | '\u{2b740}'..='\u{2b81f}' | '\u{2b920}'..='\u{2ceaf}' | '\u{f900}'..='\u{faff}' | '\u{2f800}'..='\u{2fa1f}')
}

impl WordPiece {
    pub(super) fn new(unknown: Option<u32>, lower_case: bool, strip_accents: bool) -> Result<Self> {
        let missing = "WordPiece needs a token for unknown words, and the file does not name one";
        let unknown = unknown.ok_or_else(|| Error::vocabulary("tokenizer.ggml.unknown_token_id", missing))?;
        Ok(Self { unknown, lower_case, strip_accents })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, to: &mut Vec<u32>) {
        let mut word = String::new();
        for c in text.chars() {
            if c.is_whitespace() {
                self.encode_word(vocabulary, &mut word, to);
            } else if c == '\0' || c == '\u{fffd}' || Class::of(c) == Class::Control {
                // Omitted, as in the original.
            } else if self.strip_accents {
                without_accents(c, |c| self.push(vocabulary, c, &mut word, to));
            } else {
                self.push(vocabulary, c, &mut word, to);
            }
        }
        self.encode_word(vocabulary, &mut word, to);
    }

    fn push(&self, vocabulary: &Vocabulary, c: char, word: &mut String, to: &mut Vec<u32>) {
        let alone = c.is_ascii_punctuation() || Class::of(c) == Class::Punctuation || is_cjk(c);
        if alone {
            self.encode_word(vocabulary, word, to);
        }
        if self.lower_case {
            word.extend(c.to_lowercase());
        } else {
            word.push(c);
        }
        if alone {
            self.encode_word(vocabulary, word, to);
        }
    }

    /// Appends the tokens of a word, and clears the word.
    fn encode_word(&self, vocabulary: &Vocabulary, word: &mut String, to: &mut Vec<u32>) {
        if word.is_empty() {
            return;
        }
        let start = to.len();
        let marked = format!("{}{word}", super::merge::SPACE);
        let mut rest = if word.chars().count() <= LONGEST_WORD { marked.as_bytes() } else { &[] };
        let mut known = !rest.is_empty();
        word.clear();
        while !rest.is_empty() {
            let longest = (1..=rest.len().min(vocabulary.longest())).rev();
            let found = longest.into_iter().find_map(|n| vocabulary.find_piece(&rest[..n]).map(|token| (n, token)));
            let Some((n, token)) = found else {
                known = false;
                break;
            };
            to.push(token);
            rest = &rest[n..];
        }
        if !known {
            to.truncate(start);
            to.push(self.unknown);
        }
    }
}
