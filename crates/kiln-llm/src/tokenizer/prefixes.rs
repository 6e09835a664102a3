//! Tokens that a text begins with.

use super::vocabulary::Vocabulary;
use crate::{Error, Result};

/// Maximum bytes of a token's text, which bounds the time that each position of a text takes.
const MOST: usize = 1024;

/// Some tokens of a vocabulary, sorted by text.
#[derive(Debug)]
pub(super) struct Prefixes {
    sorted: Vec<u32>,
    /// Whether one of them begins with a byte.
    begins: Box<[bool; 256]>,
}

impl Prefixes {
    /// These tokens but those without text. Of several with the same text it is the first.
    ///
    /// # Errors
    /// [`Error::Vocabulary`] for a text of more than 1024 bytes.
    pub(super) fn new(vocabulary: &Vocabulary, tokens: impl Iterator<Item = u32>) -> Result<Self> {
        let mut sorted: Vec<u32> = tokens.filter(|&id| !vocabulary.text(id).is_empty()).collect();
        if let Some((id, len)) = sorted.iter().map(|&id| (id, vocabulary.text(id).len())).find(|&(_, len)| len > MOST) {
            let reason = format!("token {id} has {len} bytes, at most {MOST} are possible");
            return Err(Error::vocabulary("tokenizer.ggml.tokens", reason));
        }
        sorted.sort_by(|&a, &b| vocabulary.text(a).cmp(vocabulary.text(b)));
        sorted.dedup_by(|a, b| vocabulary.text(*a) == vocabulary.text(*b));
        let mut begins = Box::new([false; 256]);
        for &id in &sorted {
            begins[usize::from(vocabulary.text(id)[0])] = true;
        }
        Ok(Self { sorted, begins })
    }

    /// Calls `with` with the length and the token of each prefix of a text that is one of the tokens, shortest first.
    pub(super) fn of(&self, vocabulary: &Vocabulary, text: &[u8], mut with: impl FnMut(usize, u32)) {
        if !text.first().is_some_and(|&first| self.begins[usize::from(first)]) {
            return;
        }
        let mut tokens = &self.sorted[..];
        for (depth, &byte) in text.iter().enumerate() {
            // All tokens of the range share the preceding bytes. A token that ends here is the first of them.
            let at = |id: u32| vocabulary.text(id).get(depth).copied();
            let start = tokens.partition_point(|&id| at(id) < Some(byte));
            let end = tokens.partition_point(|&id| at(id) <= Some(byte));
            tokens = &tokens[start..end];
            let Some(&first) = tokens.first() else { return };
            if vocabulary.text(first).len() == depth + 1 {
                with(depth + 1, first);
            }
        }
    }
}
