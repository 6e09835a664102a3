//! An expression as rules, and how it divides a piece of text.

use super::chars::Char;
use super::rules::{Rule, numbers};

/// One expression.
#[derive(Debug, Clone, Copy)]
pub(super) enum Stage {
    /// Matches are pieces, and so are the texts between them.
    Find(&'static [Rule]),
    /// Runs of digits are divided into groups of three from their end.
    GroupsOfThree,
    /// `\s+$`. As a rule it would look at a run of spaces again from each of them.
    SpacesAtTheEnd,
}

impl Stage {
    /// Appends the ends of the parts of a piece that begins at the character `start`.
    pub(super) fn cut(self, piece: &[Char], start: usize, ends: &mut Vec<usize>) {
        let mut at = 0;
        let mut gap = 0;
        let mut push = |gap: &mut usize, from: usize, to: usize| {
            if from > *gap {
                ends.push(start + from);
            }
            ends.push(start + to);
            *gap = to;
        };
        while at < piece.len() {
            let rest = &piece[at..];
            match self {
                Self::Find(rules) => match rules.iter().map(|rule| rule(rest)).find(|&n| n > 0) {
                    Some(n) => {
                        push(&mut gap, at, at + n);
                        at += n;
                    }
                    None => at += 1,
                },
                Self::SpacesAtTheEnd => {
                    let spaces = rest.iter().rev().take_while(|c| c.is_space()).count();
                    if spaces > 0 {
                        push(&mut gap, piece.len() - spaces, piece.len());
                    }
                    break;
                }
                Self::GroupsOfThree => match numbers(rest) {
                    0 => at += 1,
                    n => {
                        let end = at + n;
                        let first = if n.is_multiple_of(3) { 3 } else { n % 3 };
                        push(&mut gap, at, at + first);
                        at += first;
                        while at < end {
                            push(&mut gap, at, at + 3);
                            at += 3;
                        }
                    }
                },
            }
        }
        if gap < piece.len() {
            ends.push(start + piece.len());
        }
    }
}
