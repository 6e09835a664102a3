//! Tokens that are recognised in texts before these are split, and tokens that end a generation.

use std::collections::{BTreeSet, HashMap};

use super::prefixes::Prefixes;
use super::vocabulary::{TokenKind, Vocabulary};
use crate::Result;

/// Finds tokens in texts, the longest at each position.
#[derive(Debug)]
pub(super) struct Special {
    tokens: Prefixes,
    /// Tokens that remove adjacent white space: before, after.
    strips: HashMap<u32, (bool, bool)>,
}

/// A part of a text.
pub(super) enum Part<'t> {
    Text(&'t str),
    Token(u32),
}

/// Whether a token of this kind is recognised; `with_control` says whether control tokens are.
fn is_recognised(kind: TokenKind, with_control: bool) -> bool {
    kind == TokenKind::UserDefined || with_control && matches!(kind, TokenKind::Control | TokenKind::Unknown)
}

impl Special {
    /// # Errors
    /// The errors of [`Prefixes::new`].
    pub(super) fn new(vocabulary: &Vocabulary, strips: HashMap<u32, (bool, bool)>) -> Result<Self> {
        let recognised = (0..vocabulary.len() as u32).filter(|&id| {
            // Not another token with the same text.
            is_recognised(vocabulary.kind(id), true) && vocabulary.find(vocabulary.text(id)) == Some(id)
        });
        Ok(Self { tokens: Prefixes::new(vocabulary, recognised)?, strips })
    }

    /// The longest token at a position of a text, and its length.
    pub(super) fn at(
        &self,
        vocabulary: &Vocabulary,
        text: &str,
        at: usize,
        with_control: bool,
    ) -> Option<(u32, usize)> {
        let mut longest = None;
        self.tokens.of(vocabulary, &text.as_bytes()[at..], |len, token| {
            // A token that is not UTF-8 may end inside a character.
            let fits = text.is_char_boundary(at) && text.is_char_boundary(at + len);
            if fits && is_recognised(vocabulary.kind(token), with_control) {
                longest = Some((token, len));
            }
        });
        longest
    }

    /// Calls `with` with the parts of a text in order. No text part is empty. No token begins with a character that is
    /// followed by a `guard`.
    pub(super) fn split<'t>(
        &self,
        vocabulary: &Vocabulary,
        text: &'t str,
        with_control: bool,
        guard: Option<char>,
        mut with: impl FnMut(Part<'t>),
    ) {
        let bytes = text.as_bytes();
        let (mut start, mut at) = (0, 0);
        while at < bytes.len() {
            let is_guarded = |guard| text.get(at..).is_some_and(|text| text.chars().nth(1) == Some(guard));
            let found = self.at(vocabulary, text, at, with_control).filter(|_| !guard.is_some_and(is_guarded));
            let Some((token, len)) = found else {
                at += 1;
                continue;
            };
            let (in_front, behind) = self.strips.get(&token).copied().unwrap_or_default();
            let before = &text[start..at];
            let before = if in_front { before.trim_ascii_end() } else { before };
            if !before.is_empty() {
                with(Part::Text(before));
            }
            with(Part::Token(token));
            at += len;
            if behind {
                at = text.len() - text[at..].trim_ascii_start().len();
            }
            start = at;
        }
        if start < text.len() {
            with(Part::Text(&text[start..]));
        }
    }
}

/// Texts of tokens that end a turn or a text in any model.
const ENDS: &[&str] = &[
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Texts of tokens that separate files and repositories in code completion, which end a generation too.
const FILE_ENDS: &[&[&str]] = &[
    &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    &["<|fim_repo|>", "<|repo_name|>", "<fim-repo>", "<REPO>", "<reponame>"],
    &["<|file_sep|>"],
];

/// The tokens that end a generation: those that the file names, and those that are known by their texts. The latter
/// become control tokens whatever the file says, so that a text which spells them stays text.
pub(super) fn ends(vocabulary: &mut Vocabulary, named: impl IntoIterator<Item = u32>) -> BTreeSet<u32> {
    let mut ends: BTreeSet<u32> = named.into_iter().collect();
    let token = |vocabulary: &Vocabulary, text: &str| vocabulary.find(text.as_bytes());
    for texts in FILE_ENDS {
        if let Some(id) = texts.iter().find_map(|text| token(vocabulary, text)) {
            vocabulary.set_kind(id, TokenKind::Control);
            ends.insert(id);
        }
    }
    for text in ENDS {
        let Some(id) = token(vocabulary, text) else { continue };
        let also = |text: &str| vocabulary.find(text.as_bytes()).is_some();
        // In models with an end-of-message token, `<|end|>` ends a part of a message, and `</s>` is an HTML tag.
        let within = match *text {
            "<|end|>" => (also("<|return|>") || also("<|flush|>")) && (also("<|call|>") || also("<|calls|>")),
            "</s>" => also("<|tool_response>") || also("<|plamo:eos|>"),
            _ => false,
        };
        if !within {
            vocabulary.set_kind(id, TokenKind::Control);
            ends.insert(id);
        }
    }
    ends
}
