//! The alternatives of the published expressions, each a function over the characters of a text.

use super::chars::Char;
use crate::unicode::Class;

/// Returns how many characters match at the beginning of the rest of a piece.
pub(super) type Rule = fn(&[Char]) -> usize;

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
pub(super) fn contraction(text: &[Char]) -> usize {
    contraction_by(text, |c| c)
}

/// The same in upper case, too: `(?i:'s|'t|'re|'ve|'m|'ll|'d)`, where ſ folds to s.
pub(super) fn any_contraction(text: &[Char]) -> usize {
    contraction_by(text, |c| if c == 'ſ' { 's' } else { c.to_ascii_lowercase() })
}

/// ` ?\p{L}+`.
pub(super) fn spaced_letters(text: &[Char]) -> usize {
    led(text, space, Char::is_letter)
}

/// ` ?\p{N}+`.
pub(super) fn spaced_numbers(text: &[Char]) -> usize {
    led(text, space, Char::is_number)
}

/// ` ?[^\s\p{L}\p{N}]+`.
pub(super) fn spaced_others(text: &[Char]) -> usize {
    led(text, space, Char::is_other)
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n]*`.
pub(super) fn others_with_newlines(text: &[Char]) -> usize {
    tailed(text, spaced_others(text), Char::is_newline)
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]*`.
pub(super) fn others_with_newlines_and_slashes(text: &[Char]) -> usize {
    tailed(text, spaced_others(text), |c| c.is_newline() || c.c == '/')
}

/// ` ?[^\s\p{L}\p{N}]+[\r\n/]?`.
pub(super) fn others_with_one_newline_or_slash(text: &[Char]) -> usize {
    let n = spaced_others(text);
    tailed(&text[..text.len().min(n + 1)], n, |c| c.is_newline() || c.c == '/')
}

/// ` ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*`.
pub(super) fn others_without_marks(text: &[Char]) -> usize {
    tailed(text, led(text, space, |c| c.is_other() && !c.class.is_mark()), Char::is_newline)
}

/// A match, extended by the following characters for which `is` holds.
fn tailed(text: &[Char], matched: usize, is: impl Fn(Char) -> bool) -> usize {
    if matched == 0 { 0 } else { matched + run(&text[matched..], is) }
}

/// `[^\r\n\p{L}\p{N}]?\p{L}+`.
pub(super) fn led_letters(text: &[Char]) -> usize {
    led(text, Char::leads, Char::is_letter)
}

/// `[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+`.
pub(super) fn led_letters_and_marks(text: &[Char]) -> usize {
    led(text, Char::leads, Char::is_letter_or_mark)
}

/// At most this many characters: a rule that takes no more must not look at all that follow, as the next match begins there.
fn beginning(text: &[Char], most: usize) -> &[Char] {
    &text[..text.len().min(most)]
}

/// `\p{N}`.
pub(super) fn number(text: &[Char]) -> usize {
    run(beginning(text, 1), Char::is_number)
}

/// `\p{N}{1,3}`.
pub(super) fn three_numbers(text: &[Char]) -> usize {
    run(beginning(text, 3), Char::is_number)
}

/// `\p{N}+`.
pub(super) fn numbers(text: &[Char]) -> usize {
    run(text, Char::is_number)
}

/// `[0-9][0-9][0-9]`.
pub(super) fn three_digits(text: &[Char]) -> usize {
    if run(beginning(text, 3), |c| c.c.is_ascii_digit()) == 3 { 3 } else { 0 }
}

/// `\s*[\r\n]+`, and `\s*[\r\n]`: both end with the last newline.
pub(super) fn lines(text: &[Char]) -> usize {
    let spaces = &text[..run(text, Char::is_space)];
    spaces.iter().rposition(|c| c.is_newline()).map_or(0, |at| at + 1)
}

/// `\s+(?!\S)`: all spaces but the one in front of a word.
pub(super) fn spaces_before_last(text: &[Char]) -> usize {
    let n = run(text, Char::is_space);
    if n == text.len() { n } else { n.saturating_sub(1) }
}

/// `\s+`.
pub(super) fn spaces(text: &[Char]) -> usize {
    run(text, Char::is_space)
}

/// `\s{512}(?!\S)|\s{256}(?!\S)|…|\s{4}(?!\S)|\s{1,2}(?!\S)|\s{1}`.
pub(super) fn halving_spaces(text: &[Char]) -> usize {
    // One more than the longest: whether a word follows there.
    let most = spaces_before_last(beginning(text, 513));
    let fits = |n: &usize| *n <= most;
    [512, 256, 128, 64, 32, 16, 8, 4, 2, 1].into_iter().find(fits).unwrap_or(spaces(beginning(text, 1)))
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
pub(super) fn cased_letters(text: &[Char]) -> usize {
    led_cased(text, Char::is_upper, Char::is_lower)
}

/// [`cased_letters`], each followed by `(?i:'s|'t|'re|'ve|'m|'ll|'d)?`.
pub(super) fn cased_letters_with_contraction(text: &[Char]) -> usize {
    match cased_letters(text) {
        0 => 0,
        n => n + any_contraction(&text[n..]),
    }
}

/// [`cased_letters_with_contraction`] for text other than Han.
pub(super) fn cased_letters_but_han(text: &[Char]) -> usize {
    match led_cased(text, |c| c.is_upper() && !c.is_han(), |c| c.is_lower() && !c.is_han()) {
        0 => 0,
        n => n + any_contraction(&text[n..]),
    }
}

/// `\p{Han}+`.
pub(super) fn han(text: &[Char]) -> usize {
    run(text, Char::is_han)
}

/// `[一-龥぀-ゟ゠-ヿ]+`.
pub(super) fn cjk(text: &[Char]) -> usize {
    run(text, Char::is_cjk)
}

/// `[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+`.
pub(super) fn ascii_punctuation_and_letters(text: &[Char]) -> usize {
    match text {
        [first, rest @ ..] if first.c.is_ascii_punctuation() => match run(rest, |c| c.c.is_ascii_alphabetic()) {
            0 => 0,
            n => n + 1,
        },
        _ => 0,
    }
}

/// `[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+`.
pub(super) fn letters_led_by_no_punctuation(text: &[Char]) -> usize {
    led(text, |c| !c.is_newline() && !c.is_letter() && !c.is_punctuation_or_symbol(), Char::is_letter_or_mark)
}

/// ` ?[\p{P}\p{S}]+`.
pub(super) fn punctuation_and_symbols(text: &[Char]) -> usize {
    led(text, space, Char::is_punctuation_or_symbol)
}

/// ` ?[\p{P}\p{S}]+[\r\n]*`.
pub(super) fn punctuation_and_symbols_with_newlines(text: &[Char]) -> usize {
    tailed(text, punctuation_and_symbols(text), Char::is_newline)
}

/// `[\r\n]`.
pub(super) fn newline(text: &[Char]) -> usize {
    run(beginning(text, 1), Char::is_newline)
}

/// `\s?[A-Za-zµÀ-ÖØ-öø-ƺƼ-ƿ…]+`, the letters of scripts with cases, for DeepSeek's first models.
pub(super) fn spaced_bicameral_letters(text: &[Char]) -> usize {
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
pub(super) fn spaced_punctuation(text: &[Char]) -> usize {
    led(
        text,
        Char::is_space,
        |c| matches!(c.c, '!'..='/' | ':'..='~' | '\u{ff01}'..='\u{ff0f}' | '\u{ff1a}'..='\u{ff5e}' | '\u{2018}'..='\u{201f}' | '\u{3000}'..='\u{3002}'),
    )
}

/// `[一-龥ࠀ-一가-퟿]+`.
pub(super) fn wide(text: &[Char]) -> usize {
    run(text, |c| matches!(c.c, '\u{800}'..='龥' | '가'..='\u{d7ff}'))
}

/// `\s?\p{L}+`.
pub(super) fn any_spaced_letters(text: &[Char]) -> usize {
    led(text, Char::is_space, Char::is_letter)
}

/// `\s?\p{P}+`.
pub(super) fn any_spaced_punctuation(text: &[Char]) -> usize {
    led(text, Char::is_space, |c| c.class == Class::Punctuation)
}

/// `[\p{P}\$\+<=>\^~\|`]+`.
pub(super) fn falcon_punctuation(text: &[Char]) -> usize {
    run(text, |c| c.class == Class::Punctuation || matches!(c.c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|' | '`'))
}

/// `[\p{P}\$\+<=>\^~\|]+`.
pub(super) fn default_punctuation(text: &[Char]) -> usize {
    run(text, |c| c.class == Class::Punctuation || matches!(c.c, '$' | '+' | '<' | '=' | '>' | '^' | '~' | '|'))
}

/// ` ?[^(\s|.,!?…。，、।۔،)]+`.
pub(super) fn bloom_words(text: &[Char]) -> usize {
    led(text, space, |c| {
        let stops = matches!(c.c, '(' | '|' | '.' | ',' | '!' | '?' | '…' | '。' | '，' | '、' | '।' | '۔' | '،' | ')');
        !c.is_space() && !stops
    })
}

/// `[^\n]+|[\n]+`.
pub(super) fn line_or_newlines(text: &[Char]) -> usize {
    match run(text, |c| c.c != '\n') {
        0 => run(text, |c| c.c == '\n'),
        n => n,
    }
}

/// `[가-힣ㄱ-ㆎ]+|[！…“”‘’—：；，、-〿︰-﹏]+|[ㄅ-ㄯ]+`.
pub(super) fn youtu_scripts(text: &[Char]) -> usize {
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
pub(super) fn led_spaced_letters(text: &[Char]) -> usize {
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
pub(super) fn sentinel(text: &[Char]) -> usize {
    const OPEN: &str = "<sentinel:";
    let n = OPEN.len();
    if text.len() < n || !text.iter().map(|c| c.c).take(n).eq(OPEN.chars()) {
        return 0;
    }
    let digits = run(&text[n..], |c| c.c.is_ascii_digit());
    if digits > 0 && text.get(n + digits).is_some_and(|c| c.c == '>') { n + digits + 1 } else { 0 }
}

/// `(IMGIMG)((A|B|C|D|E|F|G|H|I){1,4})Z`.
pub(super) fn image_token(text: &[Char]) -> usize {
    const OPEN: &str = "IMGIMG";
    let n = OPEN.len();
    if text.len() < n || !text.iter().map(|c| c.c).take(n).eq(OPEN.chars()) {
        return 0;
    }
    let letters = run(&text[n..], |c| matches!(c.c, 'A'..='I'));
    if (1..=4).contains(&letters) && text.get(n + letters).is_some_and(|c| c.c == 'Z') { n + letters + 1 } else { 0 }
}

/// `([\t\n]|    |  )`.
pub(super) fn tab_or_indentation(text: &[Char]) -> usize {
    match run(beginning(text, 4), space) {
        4 => 4,
        2 | 3 => 2,
        _ => run(beginning(text, 1), |c| matches!(c.c, '\t' | '\n')),
    }
}

/// `[\p{P}!-/:-@\[-`{-~]`.
pub(super) fn one_punctuation(text: &[Char]) -> usize {
    run(beginning(text, 1), |c| c.class == Class::Punctuation || c.c.is_ascii_punctuation())
}

/// The scripts that AFMoE separates: `[一-鿿㐀-䶿豈-﫿぀-ゟ゠-ヿ･-ﾟ⼀-⿟เ-๿຀-໿ក-៿က-႟ꩠ-ꩿꧠ-꧿가-힯ᄀ-ᇿ]+`.
pub(super) fn afmoe_scripts(text: &[Char]) -> usize {
    run(text, |c| {
        matches!(c.c, '一'..='鿿' | '㐀'..='䶿' | '\u{f900}'..='\u{faff}' | '\u{3040}'..='ヿ' | '\u{ff65}'..='\u{ff9f}' | '\u{2f00}'..='\u{2fdf}'
            | 'เ'..='\u{e7f}' | '\u{e80}'..='\u{eff}' | 'ក'..='\u{17ff}' | 'က'..='႟' | 'ꩠ'..='ꩿ' | 'ꧠ'..='\u{a9ff}'
            | '가'..='\u{d7af}' | 'ᄀ'..='ᇿ')
    })
}
