//! Merges neighbours, the least rank first, for SentencePiece and byte-pair encoding.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

/// No token, or no merge.
const NONE: u32 = u32::MAX;

/// A part of a word: a token, or a character without a token.
#[derive(Debug, Clone, Copy)]
pub(super) struct Symbol {
    token: u32,
    /// The offset of its first byte in the word.
    pub(super) start: u32,
    /// Number of bytes; 0 after it was merged into the symbol before it.
    pub(super) len: u32,
    previous: u32,
    next: u32,
    /// Rank and token of the merge with the next symbol.
    rank: u32,
    merged: u32,
}

impl Symbol {
    /// Its token, if it is one.
    pub(super) fn token(&self) -> Option<u32> {
        (self.token != NONE).then_some(self.token)
    }
}

/// A pair of neighbours in the queue: rank, left symbol, the bytes and the token of both together.
type Pair = Reverse<(u32, u32, u32, u32)>;

/// The symbols of a word, and memory that is reused for every word.
#[derive(Debug, Default)]
pub(super) struct Symbols {
    all: Vec<Symbol>,
    queue: BinaryHeap<Pair>,
}

/// Maximum number of symbols for which each step searches for the least rank; longer words use a queue.
const SHORT: usize = 48;

impl Symbols {
    pub(super) fn clear(&mut self) {
        self.all.clear();
    }

    /// Appends a symbol.
    pub(super) fn push(&mut self, token: Option<u32>, start: usize, len: usize) {
        let at = self.all.len() as u32;
        let (previous, next) = (at.wrapping_sub(1), at + 1);
        let (start, len) = (start as u32, len as u32);
        let token = token.unwrap_or(NONE);
        self.all.push(Symbol { token, start, len, previous, next, rank: NONE, merged: NONE });
    }

    /// Merges the pair of the least rank, the leftmost of equal ones, until no pair is left. `pair` returns the rank
    /// and the token of a merge, if there is one.
    pub(super) fn merge(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        if self.all.len() <= SHORT { self.merge_short(pair) } else { self.merge_long(pair) }
    }

    fn merge_short(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let all = &mut self.all;
        let set_rank = |all: &mut [Symbol], at: usize| {
            let found = all.get(at + 1).and_then(|next| pair(&all[at], next));
            (all[at].rank, all[at].merged) = found.unwrap_or((NONE, NONE));
        };
        for at in 0..all.len() {
            set_rank(all, at);
        }
        while let Some((at, _)) =
            all.iter().enumerate().filter(|(_, symbol)| symbol.merged != NONE).min_by_key(|(_, symbol)| symbol.rank)
        {
            all[at].token = all[at].merged;
            all[at].len += all[at + 1].len;
            all.remove(at + 1);
            set_rank(all, at);
            if at > 0 {
                set_rank(all, at - 1);
            }
        }
    }

    fn merge_long(&mut self, pair: impl Fn(&Symbol, &Symbol) -> Option<(u32, u32)>) {
        let (all, queue) = (&mut self.all, &mut self.queue);
        let end = all.len() as u32;
        let queued = |all: &[Symbol], left: u32, right: u32| -> Option<Pair> {
            let (a, b) = (all.get(left as usize)?, all.get(right as usize)?);
            pair(a, b).map(|(rank, token)| Reverse((rank, left, a.len + b.len, token)))
        };
        queue.clear();
        queue.extend((1..end).filter_map(|at| queued(all, at - 1, at)));
        while let Some(Reverse((_, left, len, token))) = queue.pop() {
            let Symbol { next, previous, len: left_len, .. } = all[left as usize];
            // Outdated if one of them was merged with another neighbour since: symbols only grow.
            let Some(right) = all.get(next as usize).copied() else { continue };
            if left_len == 0 || left_len + right.len != len {
                continue;
            }
            all[next as usize].len = 0;
            let merged = &mut all[left as usize];
            (merged.token, merged.len, merged.next) = (token, len, right.next);
            if let Some(after) = all.get_mut(right.next as usize) {
                after.previous = left;
            }
            queue.extend(queued(all, previous, left));
            queue.extend(queued(all, left, right.next));
        }
    }

    /// The remaining symbols.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Symbol> {
        self.all.iter().filter(|symbol| symbol.len > 0)
    }
}

/// The replacement of spaces in the texts of tokens, `▁`.
pub(super) const SPACE: &str = "\u{2581}";

/// Where texts with `▁` for spaces may be split before a `▁`: after a byte that precedes `▁` in no token, so no merge
/// crosses the split.
///
/// Such tokenizers have no words. Splitting changes no token, and short pieces are merged much faster than whole texts.
#[derive(Debug)]
pub(super) struct Cuts {
    /// Whether some token contains `▁` after this byte.
    joined: Box<[bool; 256]>,
}

impl Cuts {
    pub(super) fn new<'a>(texts: impl Iterator<Item = &'a [u8]>) -> Self {
        let mut joined = Box::new([false; 256]);
        for text in texts {
            for window in text.windows(1 + SPACE.len()) {
                if &window[1..] == SPACE.as_bytes() {
                    joined[usize::from(window[0])] = true;
                }
            }
        }
        Self { joined }
    }

    /// The pieces of a text, which together are the text.
    pub(super) fn pieces<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        std::iter::from_fn(move || {
            let bytes = rest.as_bytes();
            let cut = |&(at, _): &(usize, &str)| at > 0 && !self.joined[usize::from(bytes[at - 1])];
            let end = rest.match_indices(SPACE).find(cut).map_or(rest.len(), |(at, _)| at);
            let (piece, behind) = rest.split_at(end);
            rest = behind;
            (!piece.is_empty()).then_some(piece)
        })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    /// Merges adjacent letters of the alphabet, later ones first, and doubled letters last.
    fn merged(word: &str, long: bool) -> Vec<(u32, u32)> {
        let mut symbols = Symbols::default();
        word.bytes().enumerate().for_each(|(at, byte)| symbols.push(Some(byte.into()), at, 1));
        let pair = |a: &Symbol, b: &Symbol| match (a.token, b.token) {
            (a, b) if a + 1 == b => Some((1000 - a, 500 + a)),
            (a, b) if a == b => Some((2000, a)),
            _ => None,
        };
        if long {
            symbols.merge_long(pair)
        } else {
            symbols.merge_short(pair)
        }
        symbols.iter().map(|symbol| (symbol.token, symbol.len)).collect()
    }

    #[test]
    fn short_and_long_words_are_merged_the_same_way() {
        let mut state = 1u32;
        for len in 0..60 {
            let word: String = (0..len)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    char::from(b'a' + (state >> 24) as u8 % 5)
                })
                .collect();
            assert_eq!(merged(&word, false), merged(&word, true), "{word}");
        }
    }

    #[test]
    fn texts_are_cut_where_no_token_joins() {
        let tokens = ["\u{2581}a", "\u{2581}\u{2581}", "b\u{2581}", "a"].map(str::as_bytes);
        let cuts = Cuts::new(tokens.into_iter());
        let pieces: Vec<&str> = cuts.pieces("\u{2581}a\u{2581}a\u{2581}\u{2581}b\u{2581}c").collect();
        assert_eq!(pieces, ["\u{2581}a", "\u{2581}a", "\u{2581}\u{2581}b\u{2581}c"]);
        assert_eq!(cuts.pieces("").count(), 0);
    }
}
