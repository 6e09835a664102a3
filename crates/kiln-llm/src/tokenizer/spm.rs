//! SentencePiece's BPE: pairs are merged by the score of the token that they make.

use super::merge::{Cuts, Symbols};
use super::vocabulary::{Bytes, Vocabulary};
use crate::Result;

/// The tokenizer of Llama 1 and 2, and of models based on them.
#[derive(Debug)]
pub(super) struct Spm {
    bytes: Bytes,
    unknown: Option<u32>,
    cuts: Cuts,
}

/// Converts a score to a rank: the greater the score, the smaller the rank.
fn rank(score: f32) -> u32 {
    // Both zeros are the same score.
    let bits = (score + 0.0).to_bits();
    // The bits of positive floats have the order of the floats, those of negative ones the opposite order.
    if bits >> 31 == 0 { !(bits | 1 << 31) } else { bits }
}

impl Spm {
    pub(super) fn new(vocabulary: &Vocabulary, unknown: Option<u32>) -> Result<Self> {
        Ok(Self { bytes: vocabulary.bytes()?, unknown, cuts: Cuts::new(vocabulary.texts()) })
    }

    /// Appends the tokens of a text in which `▁` replaces spaces.
    pub(super) fn encode(&self, vocabulary: &Vocabulary, text: &str, symbols: &mut Symbols, to: &mut Vec<u32>) {
        for piece in self.cuts.pieces(text) {
            let bytes = piece.as_bytes();
            symbols.clear();
            for (at, c) in piece.char_indices() {
                let len = c.len_utf8();
                symbols.push(vocabulary.find_piece(&bytes[at..at + len]), at, len);
            }
            symbols.merge(|a, b| {
                let len = (a.len + b.len) as usize;
                let joined = (len <= vocabulary.longest()).then(|| &bytes[a.start as usize..][..len])?;
                let token = vocabulary.find_piece(joined)?;
                Some((rank(vocabulary.score(token)), token))
            });
            for symbol in symbols.iter() {
                match symbol.token() {
                    Some(token) => to.push(token),
                    None => self.spell(vocabulary, &bytes[symbol.start as usize..][..symbol.len as usize], to),
                }
            }
        }
    }

    /// Appends a token for each byte. A character with a byte that has no token becomes one unknown token.
    fn spell(&self, vocabulary: &Vocabulary, bytes: &[u8], to: &mut Vec<u32>) {
        let start = to.len();
        for &byte in bytes {
            let Some(token) = self.bytes.get(byte).or_else(|| vocabulary.find_piece(&[byte])) else {
                to.truncate(start);
                return to.extend(self.unknown);
            };
            to.push(token);
        }
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn greater_scores_have_lesser_ranks() {
        let scores = [f32::INFINITY, 3.0, 1.0, f32::MIN_POSITIVE, 0.0, -1.0, -2.0, f32::NEG_INFINITY];
        assert!(scores.windows(2).all(|pair| rank(pair[0]) < rank(pair[1])));
        assert_eq!(rank(0.0), rank(-0.0));
    }
}
