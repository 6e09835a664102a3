//! Characters and their classes.

use crate::unicode::Class;

/// A character of a text, with its class.
#[derive(Debug, Clone, Copy)]
pub(in crate::tokenizer) struct Char {
    pub(super) c: char,
    pub(super) class: Class,
}

impl Char {
    pub(super) fn is_space(self) -> bool {
        self.c.is_whitespace()
    }

    /// `[\r\n]`.
    pub(super) fn is_newline(self) -> bool {
        matches!(self.c, '\r' | '\n')
    }

    pub(super) fn is_letter(self) -> bool {
        self.class.is_letter()
    }

    pub(super) fn is_number(self) -> bool {
        self.class.is_number()
    }

    /// `[\p{L}\p{M}]`.
    pub(super) fn is_letter_or_mark(self) -> bool {
        self.class.is_letter() || self.class.is_mark()
    }

    /// `[^\s\p{L}\p{N}]`.
    pub(super) fn is_other(self) -> bool {
        !self.is_space() && !self.is_letter() && !self.is_number()
    }

    /// `[\p{P}\p{S}]`.
    pub(super) fn is_punctuation_or_symbol(self) -> bool {
        matches!(self.class, Class::Punctuation | Class::Symbol)
    }

    /// `[^\r\n\p{L}\p{N}]`, which may precede letters.
    pub(super) fn leads(self) -> bool {
        !self.is_newline() && !self.is_letter() && !self.is_number()
    }

    /// `[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]`.
    pub(super) fn is_upper(self) -> bool {
        self.is_letter_or_mark() && self.class != Class::Lower
    }

    /// `[\p{Ll}\p{Lm}\p{Lo}\p{M}]`.
    pub(super) fn is_lower(self) -> bool {
        self.is_letter_or_mark() && !matches!(self.class, Class::Upper | Class::Title)
    }

    /// `\p{Han}`.
    pub(super) fn is_han(self) -> bool {
        matches!(self.c, '\u{2e80}'..='\u{2e99}' | '\u{2e9b}'..='\u{2ef3}' | '\u{2f00}'..='\u{2fd5}' | '々' | '〇'
            | '〡'..='〩' | '〸'..='〻' | '\u{3400}'..='\u{4dbf}' | '\u{4e00}'..='\u{9fff}' | '\u{f900}'..='\u{fa6d}'
            | '\u{fa70}'..='\u{fad9}' | '\u{16fe2}'..='\u{16fe3}' | '\u{16ff0}'..='\u{16ff1}'
            | '\u{20000}'..='\u{323af}')
    }

    /// `[一-龥぀-ゟ゠-ヿ]`, of DeepSeek-V3.
    pub(super) fn is_cjk(self) -> bool {
        matches!(self.c, '一'..='龥' | '\u{3040}'..='ゟ' | '゠'..='ヿ')
    }
}
