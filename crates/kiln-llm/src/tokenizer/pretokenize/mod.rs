//! Splits texts into words before byte-pair encoding.
//!
//! Each family of tokenizers publishes regular expressions. Here an expression is a list of rules in the order of its
//! alternatives, each a function that returns how many characters it matches at the beginning of the remaining text; a family is a
//! list of expressions, each applied to the pieces of the expression before. The doc of each rule quotes its part of an
//! expression, and tests compare families with their published expressions. `\s` is White_Space, other classes are general categories.

mod chars;
mod families;
mod rules;
mod stage;

use std::borrow::Cow;

use self::chars::Char;
use self::families::{EXPRESSIONS, FAMILIES, NO_TRAITS, Traits};
use self::stage::Stage;
use crate::unicode::Class;

pub(super) use self::families::GPT_2_EXPRESSION;

/// Splits texts like a family.
#[derive(Debug, Clone)]
pub(super) struct Splitter {
    stages: Cow<'static, [Stage]>,
    traits: Traits,
}

impl Splitter {
    /// The family with this name.
    pub(super) fn named(name: &str) -> Option<Self> {
        let family = FAMILIES.iter().find(|family| family.names.contains(&name))?;
        Some(Self { stages: family.stages.into(), traits: family.traits })
    }

    /// Splits by expressions in turn.
    ///
    /// # Errors
    /// The first unknown expression.
    pub(super) fn of_expressions(expressions: &[String]) -> Result<Self, String> {
        let stage = |text: &String| {
            let known = EXPRESSIONS.iter().find(|(expression, _)| expression == text);
            known.map(|&(_, stage)| stage).ok_or_else(|| text.clone())
        };
        let stages: Vec<Stage> = expressions.iter().map(stage).collect::<Result<_, _>>()?;
        Ok(Self { stages: stages.into(), traits: NO_TRAITS })
    }

    /// Splits nothing; `▁` replaces spaces.
    pub(super) fn whole_text() -> Self {
        Self { stages: [].as_slice().into(), traits: Traits { plain: true, ..NO_TRAITS } }
    }

    pub(super) fn whole_words(&self) -> bool {
        self.traits.whole_words
    }

    pub(super) fn whole_newlines(&self) -> bool {
        self.traits.whole_newlines
    }

    pub(super) fn is_plain(&self) -> bool {
        self.traits.plain
    }

    pub(super) fn adds_bos(&self) -> bool {
        self.traits.adds_bos
    }

    /// Splits a text into words, which together are the text.
    pub(super) fn split(&self, text: &str, splits: &mut Splits) {
        splits.chars.clear();
        splits.chars.extend(text.chars().map(|c| Char { c, class: Class::of(c) }));
        splits.pieces.clear();
        splits.pieces.push(splits.chars.len());
        for stage in &*self.stages {
            splits.next.clear();
            let mut start = 0;
            for &end in &splits.pieces {
                stage.cut(&splits.chars[start..end], start, &mut splits.next);
                start = end;
            }
            std::mem::swap(&mut splits.pieces, &mut splits.next);
        }
    }
}

/// The ends of words, and memory that splitting reuses.
#[derive(Debug, Default)]
pub(super) struct Splits {
    chars: Vec<Char>,
    /// The character after each piece.
    pieces: Vec<usize>,
    next: Vec<usize>,
}

impl Splits {
    /// The words of the text that was split.
    pub(super) fn words<'t>(&self, text: &'t str) -> impl Iterator<Item = &'t str> {
        let mut rest = text;
        let mut start = 0;
        self.pieces.iter().map(move |&end| {
            let bytes = self.chars[start..end].iter().map(|c| c.c.len_utf8()).sum();
            start = end;
            let (word, behind) = rest.split_at(bytes);
            rest = behind;
            word
        })
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use fancy_regex::Regex;

    use super::families::{
        CJK_EXPRESSION, DEEPSEEK_3_EXPRESSION, GPT_4O_EXPRESSION, LLAMA_3_EXPRESSION, QWEN_2_EXPRESSION,
        TEKKEN_EXPRESSION,
    };
    use super::*;

    /// Names of families, and their expressions as they are published.
    #[rustfmt::skip]
    const PUBLISHED: &[(&str, &[&str])] = &[
        ("gpt-2", &[GPT_2_EXPRESSION]),
        ("smollm", &[r"\p{N}", GPT_2_EXPRESSION]),
        ("falcon", &[r"[\p{P}\$\+<=>\^~\|`]+", GPT_2_EXPRESSION, "[0-9][0-9][0-9]"]),
        ("default", &[r"[\p{P}\$\+<=>\^~\|]+", GPT_2_EXPRESSION, r"\p{N}+", "[0-9][0-9][0-9]"]),
        ("llama-bpe", &[LLAMA_3_EXPRESSION]),
        ("qwen2", &[QWEN_2_EXPRESSION]),
        ("laguna", &[r"[^\n]+|[\n]+", QWEN_2_EXPRESSION]),
        ("qwen35", &[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("ufakzeka", &[r"[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("bailingmoe", &[r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+"]),
        ("seed-coder", &[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1}| ?[^\s\p{L}\p{N}\r\n]+|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("exaone-moe", &[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]?|\s*[\r\n]|\s+(?!\S)|\s+"]),
        ("jais-2", &[r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s{512}(?!\S)|\s{256}(?!\S)|\s{128}(?!\S)|\s{64}(?!\S)|\s{32}(?!\S)|\s{16}(?!\S)|\s{8}(?!\S)|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}"]),
        ("minicpm5", &[r"\p{N}{1,3}", r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}+| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("deepseek-coder", &[r"[\r\n]", r"\s?\p{L}+", r"\s?\p{P}+", r"[一-龥\u{800}-一가-\u{d7ff}]+", r"\p{N}"]),
        ("deepseek-v3", &[r"\p{N}{1,3}", CJK_EXPRESSION, DEEPSEEK_3_EXPRESSION]),
        ("spark2_5", &[r"\p{N}{1,3}", CJK_EXPRESSION, r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+|[\r\n]|\s+(?!\S)|\s+"##, r"\p{N}"]),
        ("youtu", &[r"[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-\u{303f}\u{fe30}-\u{fe4f}]+|[ㄅ-ㄯ]+|[一-龥\u{3040}-ゟ゠-ヿ]+", r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("gpt-4o", &[GPT_4O_EXPRESSION]),
        ("tekken", &[TEKKEN_EXPRESSION]),
        ("kimi-k2", &[r"[\p{Han}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]+[\p{Ll}\p{Lm}\p{Lo}\p{M}&&[^\p{Han}]]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"]),
        ("bloom", &[r" ?[^(\s|.,!?…。，、।۔،)]+"]),
        ("viking", &[r" ?[^(\s|.,!?…。，、।۔،)]+", r"\p{N}"]),
        ("chameleon", &["<sentinel:[0-9]+>", "(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z", r"([\t\n]|    |  )", r"\p{N}", r"[\p{P}!-/:-@\[-`{-~]", GPT_2_EXPRESSION]),
        ("gemma4", &[r"[^\n]+|[\n]+"]),
    ];

    /// The pieces according to the regular expressions.
    fn by_expressions<'t>(expressions: &[Regex], text: &'t str) -> Vec<&'t str> {
        let mut pieces = vec![text];
        for expression in expressions {
            let mut next = Vec::new();
            for piece in pieces {
                let mut end = 0;
                for found in expression.find_iter(piece) {
                    let found = found.expect("the texts are short");
                    next.push(&piece[end..found.start()]);
                    next.push(found.as_str());
                    end = found.end();
                }
                next.push(&piece[end..]);
            }
            next.retain(|piece| !piece.is_empty());
            pieces = next;
        }
        pieces
    }

    /// Texts that different expressions split differently.
    const PARTS: &[&str] = &[
        " ",
        " ",
        "  ",
        "     ",
        "\n",
        "\r\n",
        "\t",
        "\u{a0}",
        "\u{3000}",
        "a",
        "Z",
        "bc",
        "De",
        "é",
        "ſ",
        "ǅ",
        "ʰ",
        "ª",
        "한",
        "ㄱ",
        "ㄅ",
        "中",
        "々",
        "あ",
        "ー",
        "क",
        "ि",
        "\u{301}",
        "\u{20dd}",
        "0",
        "12",
        "3456",
        "٣",
        "½",
        "Ⅷ",
        "'",
        "'s",
        "'LL",
        "'re",
        "'x",
        "’",
        ".",
        ",",
        "!?",
        "/",
        "(",
        ")",
        "|",
        "`",
        "$",
        "+",
        "~",
        "_",
        "-",
        "…",
        "。",
        "，",
        "€",
        "🦙",
        "<sentinel:12>",
        "<sentinel:>",
        "IMGIMGABZ",
        "IMGIMGZ",
        "\u{7f}",
        "\u{200d}",
        "\u{ad}",
    ];

    #[test]
    fn families_split_as_their_expressions() {
        let mut state = 1u64;
        let mut random = |n: usize| {
            state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            (state >> 33) as usize % n
        };
        let texts: Vec<String> =
            (0..1000).map(|_| (0..random(14) + 1).map(|_| PARTS[random(PARTS.len())]).collect()).collect();
        let mut splits = Splits::default();
        for (name, published) in PUBLISHED {
            let splitter = Splitter::named(name).unwrap();
            let expressions: Vec<Regex> = published.iter().map(|text| Regex::new(text).unwrap()).collect();
            for text in &texts {
                splitter.split(text, &mut splits);
                let found: Vec<&str> = splits.words(text).collect();
                assert_eq!(found, by_expressions(&expressions, text), "{name}: {text:?}");
            }
        }
    }

    #[test]
    fn long_runs_are_split_as_the_expressions_say_and_in_time_that_grows_with_them() {
        let mut splits = Splits::default();
        for (name, published) in PUBLISHED {
            let splitter = Splitter::named(name).unwrap();
            let expressions: Vec<Regex> = published.iter().map(|text| Regex::new(text).unwrap()).collect();
            for n in [3, 4, 5, 7, 8, 9, 256, 257, 511, 512, 513, 514, 1023, 1025] {
                for text in
                    [" ".repeat(n), " ".repeat(n) + "a", "\t".repeat(n) + ".", "1".repeat(n), "\n".repeat(n) + "1"]
                {
                    splitter.split(&text, &mut splits);
                    let found: Vec<&str> = splits.words(&text).collect();
                    assert_eq!(found, by_expressions(&expressions, &text), "{name}: {n}");
                }
            }
        }
        // Long enough that a test in quadratic time would not be waited for.
        for name in PUBLISHED.iter().map(|(name, _)| *name).chain(["deepseek-llm", "superbpe"]) {
            let splitter = Splitter::named(name).unwrap();
            for run in ["1", " ", "\n", "\t", "!", "\u{301}"] {
                let text = run.repeat(200_000) + "1";
                splitter.split(&text, &mut splits);
                assert_eq!(splits.words(&text).map(str::len).sum::<usize>(), text.len(), "{name}");
            }
        }
    }

    #[test]
    fn spaces_at_the_end_are_a_word() {
        let splitter = Splitter::named("deepseek-llm").unwrap();
        let mut splits = Splits::default();
        for (text, expected) in [
            ("1 \t ", &["1", " \t "][..]),
            ("  1", &["  ", "1"]),
            ("   ", &["   "]),
            (" 1  1 ", &[" ", "1", "  ", "1", " "]),
        ] {
            splitter.split(text, &mut splits);
            assert_eq!(splits.words(text).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn every_expression_of_files_is_published_by_a_family() {
        for (expression, _) in EXPRESSIONS.iter().filter(|(_, stage)| matches!(stage, Stage::Find(_))) {
            assert!(PUBLISHED.iter().any(|(_, all)| all.contains(expression)), "{expression}");
            assert!(Splitter::of_expressions(&[(*expression).to_owned()]).is_ok());
        }
        assert_eq!(Splitter::of_expressions(&["a+".to_owned()]).unwrap_err(), "a+");
    }

    #[test]
    fn digits_are_grouped_from_their_end() {
        let splitter = Splitter::named("superbpe").unwrap();
        let mut splits = Splits::default();
        for (text, expected) in [
            ("a1234567b", &["a", "1", "234", "567", "b"][..]),
            ("123456", &["123", "456"]),
            ("12 3", &["12", " ", "3"]),
            ("", &[]),
        ] {
            splitter.split(text, &mut splits);
            assert_eq!(splits.words(text).collect::<Vec<_>>(), expected);
        }
    }

    #[test]
    fn names_are_unique() {
        let mut names: Vec<_> = FAMILIES.iter().flat_map(|family| family.names).collect();
        let all = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
