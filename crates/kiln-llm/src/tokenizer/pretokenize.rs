//! How texts are split into words before byte-pair encoding.
//!
//! Each family of tokenizers publishes regular expressions. Here an expression is a list of rules in the order of its
//! alternatives, each a function that returns how many characters it matches at the beginning of what is left; a family is a
//! list of expressions, each applied to the pieces that the one before has made. The doc of each rule quotes its part of an
//! expression, and tests compare families with their published expressions. `\s` is White_Space, other classes are general categories.

use std::borrow::Cow;

use crate::unicode::Class;

/// A character of a text, with its class.
#[derive(Debug, Clone, Copy)]
pub(super) struct Char {
    c: char,
    class: Class,
}

impl Char {
    fn is_space(self) -> bool {
        self.c.is_whitespace()
    }

    /// `[\r\n]`.
    fn is_newline(self) -> bool {
        matches!(self.c, '\r' | '\n')
    }

    fn is_letter(self) -> bool {
        self.class.is_letter()
    }

    fn is_number(self) -> bool {
        self.class.is_number()
    }

    /// `[\p{L}\p{M}]`.
    fn is_letter_or_mark(self) -> bool {
        self.class.is_letter() || self.class.is_mark()
    }

    /// `[^\s\p{L}\p{N}]`.
    fn is_other(self) -> bool {
        !self.is_space() && !self.is_letter() && !self.is_number()
    }

    /// `[\p{P}\p{S}]`.
    fn is_punctuation_or_symbol(self) -> bool {
        matches!(self.class, Class::Punctuation | Class::Symbol)
    }

    /// `[^\r\n\p{L}\p{N}]`, which may precede letters.
    fn leads(self) -> bool {
        !self.is_newline() && !self.is_letter() && !self.is_number()
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
    fn is_upper(self) -> bool {
        self.is_letter_or_mark() && self.class != Class::Lower
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
    fn is_lower(self) -> bool {
        self.is_letter_or_mark() && !matches!(self.class, Class::Upper | Class::Title)
    }

    /// `\p{Han}`.
    fn is_han(self) -> bool {
        matches!(self.c, '\u{2e80}'..='\u{2e99}' | '\u{2e9b}'..='\u{2ef3}' | '\u{2f00}'..='\u{2fd5}' | '々' | '〇'
            | '〡'..='〩' | '〸'..='〻' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{fa6d}'
            | '\u{fa70}'..='\u{fad9}' | '\u{16fe2}'..='\u{16fe3}' | '\u{16ff0}'..='\u{16ff1}'
            | '\u{20000}'..='\u{323af}')
    }

    /// `[一-龥぀-ゟ゠-ヿ]`, of DeepSeek-V3.
    fn is_cjk(self) -> bool {
        matches!(self.c, '一'..='龥' | '\u{3040}'..='ゟ' | '゠'..='ヿ')
    }
}

/// Returns how many characters match at the beginning of the rest of a piece.
type Rule = fn(&[Char]) -> usize;

/// One expression.
#[derive(Debug, Clone, Copy)]
enum Stage {
    /// Matches are pieces, and so are the texts between them.
    Find(&'static [Rule]),
    /// Runs of digits are divided into groups of three from their end.
    GroupsOfThree,
}

/// Characters from the beginning for which `is` holds.
fn run(text: &[Char], is: impl Fn(Char) -> bool) -> usize {
    text.iter().take_while(|&&c| is(c)).count()
}

/// `X?Y+`.
fn led(text: &[Char], lead: impl Fn(Char) -> bool, is: impl Fn(Char) -> bool) -> usize {
    match text {
        [first, second, ..] if lead(*first) && is(*second) => 1 + run(&text[1..], is),
        _ => run(text, is),
    }
}

fn space(c: Char) -> bool {
    c.c == ' '
}

/// `'s|'t|'re|'ve|'m|'ll|'d`, its letters folded by `fold`.
fn contraction_by(text: &[Char], fold: fn(char) -> char) -> usize {
    let at = |index: usize| text.get(index).map(|c| fold(c.c));
    if at(0) != Some('\'') {
        return 0;
    }
    match (at(1), at(2)) {
        (Some('s' | 't' | 'm' | 'd'), _) => 2,
        (Some('r' | 'v'), Some('e')) | (Some('l'), Some('l')) => 3,
        _ => 0,
    }
}

/// `'s|'t|'re|'ve|'m|'ll|'d`.
fn contraction(text: &[Char]) -> usize {
    contraction_by(text, |c| c)
}

/// The same in upper case, too: `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, where ſ folds to s.
fn any_contraction(text: &[Char]) -> usize {
    contraction_by(text, |c| if c == 'ſ' { 's' } else { c.to_ascii_lowercase() })
}

/// ` ?\p{L}+`.
fn spaced_letters(text: &[Char]) -> usize {
    led(text, space, Char::is_letter)
}

/// ` ?\p{N}+`.
fn spaced_numbers(text: &[Char]) -> usize {
    led(text, space, Char::is_number)
}

/// ` ?[^\s\p{L}\p{N}]+`.
fn spaced_others(text: &[Char]) -> usize {
    led(text, space, Char::is_other)
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`.
fn others_with_newlines(text: &[Char]) -> usize {
    tailed(text, spaced_others(text), Char::is_newline)
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`.
fn others_with_newlines_and_slashes(text: &[Char]) -> usize {
    tailed(text, spaced_others(text), |c| c.is_newline() || c.c == '/')
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]?`.
fn others_with_one_newline_or_slash(text: &[Char]) -> usize {
    let n = spaced_others(text);
    tailed(&text[..text.len().min(n + 1)], n, |c| c.is_newline() || c.c == '/')
}

/// ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`.
fn others_without_marks(text: &[Char]) -> usize {
    tailed(text, led(text, space, |c| c.is_other() && !c.class.is_mark()), Char::is_newline)
}

/// A match, extended by the following characters for which `is` holds.
fn tailed(text: &[Char], matched: usize, is: impl Fn(Char) -> bool) -> usize {
    if matched == 0 { 0 } else { matched + run(&text[matched..], is) }
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+`.
fn led_letters(text: &[Char]) -> usize {
    led(text, Char::leads, Char::is_letter)
}

/// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`.
fn led_letters_and_marks(text: &[Char]) -> usize {
    led(text, Char::leads, Char::is_letter_or_mark)
}

/// `\p{N}`.
fn number(text: &[Char]) -> usize {
    numbers(text).min(1)
}

/// `\p{N}{1,3}`.
fn three_numbers(text: &[Char]) -> usize {
    numbers(text).min(3)
}

/// `\p{N}+`.
fn numbers(text: &[Char]) -> usize {
    run(text, Char::is_number)
}

/// `[0-9][0-9][0-9]`.
fn three_digits(text: &[Char]) -> usize {
    if run(&text[..text.len().min(3)], |c| c.c.is_ascii_digit()) == 3 { 3 } else { 0 }
}

/// `\s*[\r\n]+`, and `\s*[\r\n]`: both end with the last newline.
fn lines(text: &[Char]) -> usize {
    let spaces = &text[..run(text, Char::is_space)];
    spaces.iter().rposition(|c| c.is_newline()).map_or(0, |at| at + 1)
}

/// `\s+(?!\S)`: all spaces but the one in front of a word.
fn spaces_before_last(text: &[Char]) -> usize {
    let n = run(text, Char::is_space);
    if n == text.len() { n } else { n.saturating_sub(1) }
}

/// `\s+`.
fn spaces(text: &[Char]) -> usize {
    run(text, Char::is_space)
}

/// `\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`.
fn halving_spaces(text: &[Char]) -> usize {
    let most = spaces_before_last(text);
    let fits = |n: &usize| *n <= most;
    [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(fits).unwrap_or(spaces(text).min(1))
}

/// `L?U*l+|L?U+l*` with `L` for `[^\r\n\p{L}\p{N}]`, where some characters are in both `U` and `l`, and some in both
/// `L` and these.
fn led_cased(text: &[Char], upper: impl Fn(Char) -> bool, lower: impl Fn(Char) -> bool) -> usize {
    let runs = |text: &[Char]| {
        let uppers = run(text, &upper);
        (uppers, run(&text[uppers..], &lower))
    };
    let to_lower = |text: &[Char]| match runs(text) {
        // `U*` backtracks to a character that is in both classes and ends the match.
        (uppers, 0) => text[..uppers].iter().rposition(|&c| lower(c)).map_or(0, |at| at + 1),
        (uppers, lowers) => uppers + lowers,
    };
    let from_upper = |text: &[Char]| match runs(text) {
        (0, _) => 0,
        (uppers, lowers) => uppers + lowers,
    };
    let behind = text.split_first().filter(|(lead, _)| lead.leads()).map(|(_, rest)| rest);
    let with_lead = |n: usize| if n == 0 { 0 } else { n + 1 };
    let attempts = [
        behind.map_or(0, |rest| with_lead(to_lower(rest))),
        to_lower(text),
        behind.map_or(0, |rest| with_lead(from_upper(rest))),
        from_upper(text),
    ];
    attempts.into_iter().find(|&n| n > 0).unwrap_or(0)
}

/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+` and
/// `[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*`.
fn cased_letters(text: &[Char]) -> usize {
    led_cased(text, Char::is_upper, Char::is_lower)
}

/// [`cased_letters`], each followed by `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`.
fn cased_letters_with_contraction(text: &[Char]) -> usize {
    match cased_letters(text) {
        0 => 0,
        n => n + any_contraction(&text[n..]),
    }
}

/// [`cased_letters_with_contraction`] for text other than Han.
fn cased_letters_but_han(text: &[Char]) -> usize {
    match led_cased(text, |c| c.is_upper() && !c.is_han(), |c| c.is_lower() && !c.is_han()) {
        0 => 0,
        n => n + any_contraction(&text[n..]),
    }
}

/// `\p{Han}+`.
fn han(text: &[Char]) -> usize {
    run(text, Char::is_han)
}

/// `[一-龥぀-ゟ゠-ヿ]+`.
fn cjk(text: &[Char]) -> usize {
    run(text, Char::is_cjk)
}

/// `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+`.
fn ascii_punctuation_and_letters(text: &[Char]) -> usize {
    match text {
        [first, rest @ ..] if first.c.is_ascii_punctuation() => match run(rest, |c| c.c.is_ascii_alphabetic()) {
            0 => 0,
            n => n + 1,
        },
        _ => 0,
    }
}

/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`.
fn letters_led_by_no_punctuation(text: &[Char]) -> usize {
    led(text, |c| !c.is_newline() && !c.is_letter() && !c.is_punctuation_or_symbol(), Char::is_letter_or_mark)
}

/// ` ?[\p{P}\p{S}]+`.
fn punctuation_and_symbols(text: &[Char]) -> usize {
    led(text, space, Char::is_punctuation_or_symbol)
}

/// ` ?[\p{P}\p{S}]+[\r\n]*`.
fn punctuation_and_symbols_with_newlines(text: &[Char]) -> usize {
    tailed(text, punctuation_and_symbols(text), Char::is_newline)
}

/// `[\r\n]`.
fn newline(text: &[Char]) -> usize {
    run(text, Char::is_newline).min(1)
}

/// `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ…]+`, the letters of scripts with cases, for DeepSeek's first models.
fn spaced_bicameral_letters(text: &[Char]) -> usize {
    led(text, Char::is_space, |c| BICAMERAL.binary_search_by(|range| compare(range, c.c)).is_ok())
}

/// The order of a range relative to a character.
fn compare(&(first, last): &(char, char), c: char) -> std::cmp::Ordering {
    if last < c {
        std::cmp::Ordering::Less
    } else if first > c {
        std::cmp::Ordering::Greater
    } else {
        std::cmp::Ordering::Equal
    }
}

/// The ranges of [`spaced_bicameral_letters`], sorted.
#[rustfmt::skip]
const BICAMERAL: &[(char, char)] = &[
    ('\u{41}', '\u{5a}'), ('\u{61}', '\u{7a}'), ('\u{b5}', '\u{b5}'), ('\u{c0}', '\u{d6}'), ('\u{d8}', '\u{f6}'),
    ('\u{f8}', '\u{1ba}'), ('\u{1bc}', '\u{1bf}'), ('\u{1c4}', '\u{293}'), ('\u{295}', '\u{2af}'),
    ('\u{370}', '\u{373}'), ('\u{376}', '\u{376}'), ('\u{377}', '\u{377}'), ('\u{37b}', '\u{37d}'),
    ('\u{37f}', '\u{37f}'), ('\u{386}', '\u{386}'), ('\u{388}', '\u{38a}'), ('\u{38c}', '\u{38c}'),
    ('\u{38e}', '\u{3a1}'), ('\u{3a3}', '\u{3f5}'), ('\u{3f7}', '\u{481}'), ('\u{48a}', '\u{52f}'),
    ('\u{531}', '\u{556}'), ('\u{10a0}', '\u{10c5}'), ('\u{13a0}', '\u{13f5}'), ('\u{13f8}', '\u{13fd}'),
    ('\u{1c90}', '\u{1cba}'), ('\u{1cbd}', '\u{1cbf}'), ('\u{1d00}', '\u{1d2b}'), ('\u{1d6b}', '\u{1d77}'),
    ('\u{1d79}', '\u{1d9a}'), ('\u{1e00}', '\u{1f15}'), ('\u{1f18}', '\u{1f1d}'), ('\u{1f20}', '\u{1f45}'),
    ('\u{1f48}', '\u{1f4d}'), ('\u{1f50}', '\u{1f57}'), ('\u{1f59}', '\u{1f59}'), ('\u{1f5b}', '\u{1f5b}'),
    ('\u{1f5d}', '\u{1f5d}'), ('\u{1f5f}', '\u{1f7d}'), ('\u{1f80}', '\u{1fb4}'), ('\u{1fb6}', '\u{1fbc}'),
    ('\u{1fbe}', '\u{1fbe}'), ('\u{1fc2}', '\u{1fc4}'), ('\u{1fc6}', '\u{1fcc}'), ('\u{1fd0}', '\u{1fd3}'),
    ('\u{1fd6}', '\u{1fdb}'), ('\u{1fe0}', '\u{1fec}'), ('\u{1ff2}', '\u{1ff4}'), ('\u{1ff6}', '\u{1ffc}'),
    ('\u{2102}', '\u{2102}'), ('\u{2107}', '\u{2107}'), ('\u{210a}', '\u{2113}'), ('\u{2115}', '\u{2115}'),
    ('\u{2119}', '\u{211d}'), ('\u{2124}', '\u{2124}'), ('\u{2126}', '\u{2126}'), ('\u{2128}', '\u{2128}'),
    ('\u{212a}', '\u{212d}'), ('\u{212f}', '\u{2134}'), ('\u{2139}', '\u{2139}'), ('\u{213c}', '\u{213f}'),
    ('\u{2145}', '\u{2149}'), ('\u{214e}', '\u{214e}'), ('\u{2183}', '\u{2183}'), ('\u{2184}', '\u{2184}'),
    ('\u{2c00}', '\u{2c7b}'), ('\u{2c7e}', '\u{2ce4}'), ('\u{2ceb}', '\u{2cee}'), ('\u{2cf2}', '\u{2cf2}'),
    ('\u{2cf3}', '\u{2cf3}'), ('\u{a640}', '\u{a66d}'), ('\u{a680}', '\u{a69b}'), ('\u{a722}', '\u{a76f}'),
    ('\u{a771}', '\u{a787}'), ('\u{a78b}', '\u{a78e}'), ('\u{ab70}', '\u{abbf}'), ('\u{fb00}', '\u{fb06}'),
    ('\u{fb13}', '\u{fb17}'), ('\u{ff21}', '\u{ff3a}'), ('\u{ff41}', '\u{ff5a}'), ('\u{10400}', '\u{1044f}'),
    ('\u{104b0}', '\u{104d3}'), ('\u{104d8}', '\u{104fb}'), ('\u{10c80}', '\u{10cb2}'), ('\u{10cc0}', '\u{10cf2}'),
    ('\u{118a0}', '\u{118df}'), ('\u{1e900}', '\u{1e943}'),
];

/// `\s?[!-/:-~！-／：-～‘-‟　-。]+`.
fn spaced_punctuation(text: &[Char]) -> usize {
    led(
        text,
        Char::is_space,
        |c| matches!(c.c, '!'..='/' | ':'..='~' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff5e}' | '\u{2018}'..='\u{201f}' | '\u{3000}'..='\u{3002}'),
    )
}

/// `\s+$`.
fn spaces_at_the_end(text: &[Char]) -> usize {
    let n = spaces(text);
    if n == text.len() { n } else { 0 }
}

/// `[一-龥ࠀ-一가-퟿]+`.
fn wide(text: &[Char]) -> usize {
    run(text, |c| matches!(c.c, '\u{800}'..='龥' | '가'..='\u{d7ff}'))
}

/// `\s?\p{L}+`.
fn any_spaced_letters(text: &[Char]) -> usize {
    led(text, Char::is_space, Char::is_letter)
}

/// `\s?\p{P}+`.
fn any_spaced_punctuation(text: &[Char]) -> usize {
    led(text, Char::is_space, |c| c.class == Class::Punctuation)
}

/// `[\p{P}\$\+<=>\^~\|`]+`.
fn falcon_punctuation(text: &[Char]) -> usize {
    run(text, |c| c.class == Class::Punctuation || matches!(c.c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|' | '`'))
}

/// `[\p{P}\$\+<=>\^~\|]+`.
fn default_punctuation(text: &[Char]) -> usize {
    run(text, |c| c.class == Class::Punctuation || matches!(c.c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|'))
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`.
fn bloom_words(text: &[Char]) -> usize {
    led(text, space, |c| {
        let stops = matches!(c.c, '(' | '|' | '.' | ',' | '!' | '?' | '…' | '。' | '，' | '、' | '।' | '۔' | '،' | ')');
        !c.is_space() && !stops
    })
}

/// `[^\n]+|[\n]+`.
fn line_or_newlines(text: &[Char]) -> usize {
    match run(text, |c| c.c != '\n') {
        0 => run(text, |c| c.c == '\n'),
        n => n,
    }
}

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+`.
fn youtu_scripts(text: &[Char]) -> usize {
    let sets: [fn(char) -> bool; 3] = [
        |c| matches!(c, '가'..='힣' | 'ㄱ'..='ㆎ'),
        |c| {
            matches!(c, '！' | '…' | '“' | '”' | '‘' | '’' | '—' | '：' | '；' | '，' | '、'..='\u{303f}'
                | '\u{fe30}'..='\u{fe4f}')
        },
        |c| matches!(c, 'ㄅ'..='ㄯ'),
    ];
    sets.into_iter().map(|is| run(text, |c| is(c.c))).find(|&n| n > 0).unwrap_or(0)
}

/// `[^\r\n\p{L}\p{N}]?(?:\p{L}\p{M}*(?: \p{L}\p{M}*)*)+`: words with one space between each two letters.
fn led_spaced_letters(text: &[Char]) -> usize {
    let from = |start: usize| {
        let mut at = start;
        loop {
            let rest = &text[at..];
            match rest {
                [c, ..] if c.is_letter() => at += 1 + run(&rest[1..], |c| c.class.is_mark()),
                [c, next, ..] if space(*c) && next.is_letter() && at > start => {
                    at += 2 + run(&rest[2..], |c| c.class.is_mark());
                }
                _ => return at - start,
            }
        }
    };
    match text {
        [first, second, ..] if first.leads() && second.is_letter() => 1 + from(1),
        _ => from(0),
    }
}

/// `<sentinel:[0-9]+>`.
fn sentinel(text: &[Char]) -> usize {
    const OPEN: &str = "<sentinel:";
    let n = OPEN.len();
    if text.len() < n || !text.iter().map(|c| c.c).take(n).eq(OPEN.chars()) {
        return 0;
    }
    let digits = run(&text[n..], |c| c.c.is_ascii_digit());
    if digits > 0 && text.get(n + digits).is_some_and(|c| c.c == '>') { n + digits + 1 } else { 0 }
}

/// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`.
fn image_token(text: &[Char]) -> usize {
    const OPEN: &str = "IMGIMG";
    let n = OPEN.len();
    if text.len() < n || !text.iter().map(|c| c.c).take(n).eq(OPEN.chars()) {
        return 0;
    }
    let letters = run(&text[n..], |c| matches!(c.c, 'A'..='I'));
    if (1..=4).contains(&letters) && text.get(n + letters).is_some_and(|c| c.c == 'Z') { n + letters + 1 } else { 0 }
}

/// `([\t\n]|    |  )`.
fn tab_or_indentation(text: &[Char]) -> usize {
    match run(&text[..text.len().min(4)], space) {
        4 => 4,
        2 | 3 => 2,
        _ => run(text, |c| matches!(c.c, '\t' | '\n')).min(1),
    }
}

/// `[\p{P}!-/:-@\[-`{-~]`.
fn one_punctuation(text: &[Char]) -> usize {
    run(text, |c| c.class == Class::Punctuation || c.c.is_ascii_punctuation()).min(1)
}

/// The scripts that AFMoE separates: `[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+`.
fn afmoe_scripts(text: &[Char]) -> usize {
    run(text, |c| {
        matches!(c.c, '一'..='鿿' | '㐀'..='䶿' | '\u{f900}'..='\u{faff}' | '\u{3040}'..='ヿ' | '\u{ff65}'..='\u{ff9f}' | '\u{2f00}'..='\u{2fdf}'
            | 'เ'..='\u{e7f}' | '\u{e80}'..='\u{eff}' | 'ក'..='\u{17ff}' | 'က'..='႟' | 'ꩠ'..='ꩿ' | 'ꧠ'..='\u{a9ff}'
            | '가'..='\u{d7af}' | 'ᄀ'..='ᇿ')
    })
}

/// `'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+`.
const GPT_2: Stage =
    Stage::Find(&[contraction, spaced_letters, spaced_numbers, spaced_others, spaces_before_last, spaces]);
/// [`GPT_2`] after splitting numbers into digits.
const DIGITS_GPT_2: &[Stage] = &[Stage::Find(&[number]), GPT_2];
/// `(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+`.
const LLAMA_3: Stage = Stage::Find(&[
    any_contraction,
    led_letters,
    three_numbers,
    others_with_newlines,
    lines,
    spaces_before_last,
    spaces,
]);
/// [`LLAMA_3`] with single digits.
const QWEN_2: Stage =
    Stage::Find(&[any_contraction, led_letters, number, others_with_newlines, lines, spaces_before_last, spaces]);
/// The last expression of DeepSeek-V3.
const DEEPSEEK_3: Stage = Stage::Find(&[
    ascii_punctuation_and_letters,
    letters_led_by_no_punctuation,
    punctuation_and_symbols_with_newlines,
    lines,
    spaces_before_last,
    spaces,
]);
/// That of GPT-4o.
const GPT_4O: Stage = Stage::Find(&[
    cased_letters_with_contraction,
    three_numbers,
    others_with_newlines_and_slashes,
    lines,
    spaces_before_last,
    spaces,
]);

/// [`QWEN_2`] with marks in addition to letters.
const QWEN_35: Stage = Stage::Find(&[
    any_contraction,
    led_letters_and_marks,
    number,
    others_without_marks,
    lines,
    spaces_before_last,
    spaces,
]);
/// That of Mistral's newer models: [`GPT_4O`] without contractions, with single digits.
const TEKKEN: Stage =
    Stage::Find(&[cased_letters, number, others_with_newlines_and_slashes, lines, spaces_before_last, spaces]);

/// The properties of a family other than splitting.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Traits {
    /// A word that is a token is used without merging.
    whole_words: bool,
    /// BOS is added unless the file says otherwise.
    adds_bos: bool,
    /// Texts of tokens are UTF-8 with `▁` for spaces, not GPT-2's alphabet.
    plain: bool,
    /// A run of newlines that is a token is used without merging.
    whole_newlines: bool,
}

/// A family: its names in files, its expressions, its other properties.
#[derive(Debug)]
struct Family {
    names: &'static [&'static str],
    stages: &'static [Stage],
    traits: Traits,
}

const NO_TRAITS: Traits = Traits { whole_words: false, adds_bos: false, plain: false, whole_newlines: false };
const WHOLE: Traits = Traits { whole_words: true, ..NO_TRAITS };

/// A row of the table of families.
macro_rules! families {
    ($([$($name:literal),+] $traits:expr, $stages:expr;)+) => {
        &[$(Family { names: &[$($name),+], stages: $stages, traits: $traits }),+]
    };
}

/// Every family that GGUF files name in `tokenizer.ggml.pre`.
static FAMILIES: &[Family] = families! {
    ["llama-bpe", "llama3", "llama-v3", "falcon3", "falcon-h1", "pixtral", "midm-2.0", "lfm2", "jina-v5-nano"]
        Traits { adds_bos: true, ..WHOLE }, &[LLAMA_3];
    ["dbrx", "smaug-bpe", "chatglm-bpe"] NO_TRAITS, &[LLAMA_3];
    ["glm4", "glm5"] WHOLE, &[LLAMA_3];
    ["jais-2"] NO_TRAITS,
        &[Stage::Find(&[any_contraction, led_letters, three_numbers, others_with_newlines, lines, halving_spaces])];
    ["minicpm5"] WHOLE, &[
        Stage::Find(&[three_numbers]),
        Stage::Find(&[any_contraction, led_letters, numbers, others_with_newlines, lines, spaces_before_last, spaces]),
    ];
    ["qwen2", "deepseek-r1-qwen", "kormo", "f2llmv2", "megrez", "stablelm2", "hunyuan", "solar-open", "grok-2"]
        NO_TRAITS, &[QWEN_2];
    ["laguna"] NO_TRAITS, &[Stage::Find(&[line_or_newlines]), QWEN_2];
    ["qwen35"] NO_TRAITS, &[QWEN_35];
    ["ufakzeka"] NO_TRAITS,
        &[Stage::Find(&[led_letters, number, others_with_newlines, lines, spaces_before_last, spaces])];
    ["bailingmoe", "bailingmoe2", "llada-moe"] NO_TRAITS, &[Stage::Find(&[
        any_contraction, led_letters, number, others_with_newlines, lines, spaces_before_last, spaces,
    ])];
    ["seed-coder"] NO_TRAITS,
        &[Stage::Find(&[any_contraction, led_letters, number, spaced_others, lines, spaces_before_last, spaces])];
    ["exaone-moe"] NO_TRAITS, &[Stage::Find(&[
        any_contraction, led_spaced_letters, number, others_with_one_newline_or_slash, lines, spaces_before_last, spaces,
    ])];
    ["gpt-2", "phi-2", "jina-es", "jina-de", "gigachat", "jina-v2-es", "jina-v2-de", "a.x-4.0", "mellum", "modern-bert",
        "jina-v1-en", "jina-v2-code", "roberta-bpe", "exaone4", "mpt", "olmo", "jais", "trillion", "granite-docling"]
        NO_TRAITS, &[GPT_2];
    ["starcoder", "refact", "command-r", "smollm", "codeshell", "exaone", "minerva-7b", "mellum2"]
        NO_TRAITS, DIGITS_GPT_2;
    ["falcon"] NO_TRAITS, &[Stage::Find(&[falcon_punctuation]), GPT_2, Stage::Find(&[three_digits])];
    ["default"] NO_TRAITS,
        &[Stage::Find(&[default_punctuation]), GPT_2, Stage::Find(&[numbers]), Stage::Find(&[three_digits])];
    ["deepseek-llm"] NO_TRAITS, &[
        Stage::Find(&[newline]), Stage::Find(&[spaced_bicameral_letters]), Stage::Find(&[spaced_punctuation]),
        Stage::Find(&[spaces_at_the_end]), Stage::Find(&[wide]), Stage::Find(&[numbers]),
    ];
    ["deepseek-coder"] NO_TRAITS, &[
        Stage::Find(&[newline]), Stage::Find(&[any_spaced_letters]), Stage::Find(&[any_spaced_punctuation]),
        Stage::Find(&[wide]), Stage::Find(&[number]),
    ];
    ["deepseek-v3", "hunyuan-dense", "joyai-llm", "hy_v4"] NO_TRAITS,
        &[Stage::Find(&[three_numbers]), Stage::Find(&[cjk]), DEEPSEEK_3];
    ["spark2_5"] NO_TRAITS, &[
        Stage::Find(&[three_numbers]), Stage::Find(&[cjk]),
        Stage::Find(&[
            ascii_punctuation_and_letters, letters_led_by_no_punctuation, punctuation_and_symbols, newline,
            spaces_before_last, spaces,
        ]),
        Stage::Find(&[number]),
    ];
    ["afmoe"] NO_TRAITS, &[Stage::GroupsOfThree, Stage::Find(&[afmoe_scripts]), DEEPSEEK_3];
    ["youtu"] WHOLE, &[
        Stage::Find(&[youtu_scripts, cjk]),
        Stage::Find(&[
            cased_letters_with_contraction, number, others_with_newlines_and_slashes, lines, spaces_before_last, spaces,
        ]),
    ];
    ["gpt-4o", "llama4", "kanana2", "talkie", "minimax-m2"] NO_TRAITS, &[GPT_4O];
    ["granite-embed-multi-97m"] WHOLE, &[GPT_4O];
    ["tiny_aya", "cohere2moe"] NO_TRAITS, &[Stage::GroupsOfThree, GPT_4O];
    ["tekken"] Traits { adds_bos: true, ..WHOLE }, &[TEKKEN];
    ["kimi-k2"] NO_TRAITS, &[Stage::Find(&[
        han, cased_letters_but_han, three_numbers, others_with_newlines, lines, spaces_before_last, spaces,
    ])];
    ["bloom", "poro-chat", "gpt3-finnish"] NO_TRAITS, &[Stage::Find(&[bloom_words])];
    ["viking"] NO_TRAITS, &[Stage::Find(&[bloom_words]), Stage::Find(&[number])];
    ["superbpe"] NO_TRAITS, &[Stage::Find(&[numbers]), Stage::GroupsOfThree];
    ["chameleon"] Traits { adds_bos: true, ..NO_TRAITS }, &[
        Stage::Find(&[sentinel]), Stage::Find(&[image_token]), Stage::Find(&[tab_or_indentation]), Stage::Find(&[number]),
        Stage::Find(&[one_punctuation]), GPT_2,
    ];
    ["gemma4", "granite-embed-multi-311m"] Traits { adds_bos: true, plain: true, whole_newlines: true, ..NO_TRAITS },
        &[Stage::Find(&[line_or_newlines])];
    ["sarvam-moe"] Traits { plain: true, ..NO_TRAITS }, &[Stage::Find(&[line_or_newlines])];
};

/// The expression of GPT-2.
pub(super) const GPT_2_EXPRESSION: &str = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+";

/// The expressions of Llama 3, Qwen 2, GPT-4o, Mistral's newer models, and two of DeepSeek-V3.
#[rustfmt::skip]
const LLAMA_3_EXPRESSION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
const QWEN_2_EXPRESSION: &str = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
const GPT_4O_EXPRESSION: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
const TEKKEN_EXPRESSION: &str = r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+";
#[rustfmt::skip]
const DEEPSEEK_3_EXPRESSION: &str = r##"[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"##;
const CJK_EXPRESSION: &str = r"[一-龥぀-ゟ゠-ヿ]+";

/// Expressions in files of Hugging Face, and their stages.
#[rustfmt::skip]
static EXPRESSIONS: &[(&str, Stage)] = &[
    (GPT_2_EXPRESSION, GPT_2),
    (LLAMA_3_EXPRESSION, LLAMA_3),
    (QWEN_2_EXPRESSION, QWEN_2),
    (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+", QWEN_35),
    (GPT_4O_EXPRESSION, GPT_4O),
    (TEKKEN_EXPRESSION, TEKKEN),
    (DEEPSEEK_3_EXPRESSION, DEEPSEEK_3),
    (CJK_EXPRESSION, Stage::Find(&[cjk])),
    (r"\p{N}{1,3}", Stage::Find(&[three_numbers])),
    (r"\p{N}+", Stage::Find(&[numbers])),
    (r"\p{N}", Stage::Find(&[number])),
    (r"[0-9][0-9][0-9]", Stage::Find(&[three_digits])),
    (r"\d{1,3}(?=(?:\d{3})*\b)", Stage::GroupsOfThree),
];

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

impl Stage {
    /// Appends the ends of the parts of a piece that begins at the character `start`.
    fn cut(self, piece: &[Char], start: usize, ends: &mut Vec<usize>) {
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
