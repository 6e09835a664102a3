//! Unicode data for tokenizers: the classes of characters, and characters without accents.
//!
//! The tables are generated (`KILN_BLESS=1 cargo test -p kiln-llm --lib unicode` writes `unicode/tables.rs`) from the crates
//! `unicode-properties` and `unicode-normalization`, and the tests compare every character with these.

mod tables;

/// The general category of a character, with the distinctions that tokenizers need.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum Class {
    /// Lu.
    Upper,
    /// Ll.
    Lower,
    /// Lt.
    Title,
    /// Lm.
    Modifier,
    /// Lo.
    OtherLetter,
    /// Mn.
    Accent,
    /// Mc and Me.
    OtherMark,
    /// Nd.
    Digit,
    /// Nl and No.
    OtherNumber,
    /// P.
    Punctuation,
    /// S.
    Symbol,
    /// Z.
    Separator,
    /// Cc, Cf, Co and Cs.
    Control,
    /// Cn.
    Unassigned,
}

impl Class {
    /// In the order of their numbers in the table.
    const ALL: [Self; 14] = [
        Self::Upper,
        Self::Lower,
        Self::Title,
        Self::Modifier,
        Self::OtherLetter,
        Self::Accent,
        Self::OtherMark,
        Self::Digit,
        Self::OtherNumber,
        Self::Punctuation,
        Self::Symbol,
        Self::Separator,
        Self::Control,
        Self::Unassigned,
    ];

    /// The class of a character.
    pub(crate) fn of(c: char) -> Self {
        match ASCII.get(c as usize) {
            Some(&class) => class,
            None => Self::search(c),
        }
    }

    const fn search(c: char) -> Self {
        let (mut low, mut high) = (0, tables::CLASSES.len());
        // Finds the last range that begins at or before the character. The first one begins at 0.
        while high - low > 1 {
            let middle = low.midpoint(high);
            if tables::CLASSES[middle] >> 4 <= c as u32 {
                low = middle;
            } else {
                high = middle;
            }
        }
        Self::ALL[(tables::CLASSES[low] & 15) as usize]
    }

    /// `\p{L}`.
    pub(crate) fn is_letter(self) -> bool {
        self as u8 <= Self::OtherLetter as u8
    }

    /// `\p{M}`.
    pub(crate) fn is_mark(self) -> bool {
        matches!(self, Self::Accent | Self::OtherMark)
    }

    /// `\p{N}`.
    pub(crate) fn is_number(self) -> bool {
        matches!(self, Self::Digit | Self::OtherNumber)
    }
}

/// Most texts are ASCII.
static ASCII: [Class; 128] = {
    let mut table = [Class::Control; 128];
    let mut at = 0;
    while at < table.len() {
        table[at] = Class::search(at as u8 as char);
        at += 1;
    }
    table
};

/// Calls `with` with the characters of the canonical decomposition of a character, without accents (Mn).
pub(crate) fn without_accents(c: char, mut with: impl FnMut(char)) {
    if c.is_ascii() {
        return with(c);
    }
    // Hangul syllables decompose by arithmetic (The Unicode Standard, section 3.12).
    if let Some(index) = (c as u32).checked_sub(0xac00).filter(|&index| index < 11172) {
        let parts = [0x1100 + index / 588, 0x1161 + index % 588 / 28, 0x11a7 + index % 28];
        let parts = if index.is_multiple_of(28) { &parts[..2] } else { &parts[..] };
        return parts.iter().filter_map(|&part| char::from_u32(part)).for_each(with);
    }
    match tables::BASES.binary_search_by_key(&c, |&(from, _)| from) {
        Ok(found) => tables::BASES[found].1.chars().for_each(with),
        Err(_) if Class::of(c) == Class::Accent => {}
        Err(_) => with(c),
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use std::fmt::Write;

    use unicode_normalization::UnicodeNormalization;
    use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

    use super::*;

    /// The class according to the crate that the table is generated from.
    fn class(c: char) -> Class {
        use GeneralCategory as G;
        match c.general_category() {
            G::UppercaseLetter => Class::Upper,
            G::LowercaseLetter => Class::Lower,
            G::TitlecaseLetter => Class::Title,
            G::ModifierLetter => Class::Modifier,
            G::OtherLetter => Class::OtherLetter,
            G::NonspacingMark => Class::Accent,
            G::SpacingMark | G::EnclosingMark => Class::OtherMark,
            G::DecimalNumber => Class::Digit,
            G::LetterNumber | G::OtherNumber => Class::OtherNumber,
            G::ConnectorPunctuation
            | G::DashPunctuation
            | G::OpenPunctuation
            | G::ClosePunctuation
            | G::InitialPunctuation
            | G::FinalPunctuation
            | G::OtherPunctuation => Class::Punctuation,
            G::MathSymbol | G::CurrencySymbol | G::ModifierSymbol | G::OtherSymbol => Class::Symbol,
            G::SpaceSeparator | G::LineSeparator | G::ParagraphSeparator => Class::Separator,
            G::Control | G::Format | G::PrivateUse | G::Surrogate => Class::Control,
            G::Unassigned => Class::Unassigned,
        }
    }

    fn bases(c: char) -> String {
        c.nfd().filter(|&c| class(c) != Class::Accent).collect()
    }

    fn generated() -> String {
        let mut text = String::from(
            "//! Generated: `KILN_BLESS=1 cargo test -p kiln-llm --lib unicode` writes it.\n\n\
             /// Where the class changes: the first character, and four bits of class.\n\
             #[rustfmt::skip]\npub(super) static CLASSES: &[u32] = &[",
        );
        let (mut last, mut column) = (None, 0);
        for c in '\0'..=char::MAX {
            if last != Some(class(c)) {
                last = Some(class(c));
                text.push_str(if column % 12 == 0 { "\n    " } else { " " });
                write!(text, "{:#x},", (c as u32) << 4 | class(c) as u32).unwrap();
                column += 1;
            }
        }
        text.push_str(
            "\n];\n\n/// Characters, and what is left of their canonical decomposition without accents. Hangul syllables are not here.\n\
             #[rustfmt::skip]\npub(super) static BASES: &[(char, &str)] = &[",
        );
        column = 0;
        for c in ('\0'..=char::MAX).filter(|&c| class(c) != Class::Accent && !('\u{ac00}'..='\u{d7a3}').contains(&c)) {
            let base = bases(c);
            if base != c.to_string() {
                text.push_str(if column % 4 == 0 { "\n    " } else { " " });
                let base: String = base.chars().map(|c| c.escape_unicode().to_string()).collect();
                write!(text, "('{}', \"{base}\"),", c.escape_unicode()).unwrap();
                column += 1;
            }
        }
        text + "\n];\n"
    }

    #[test]
    fn tables_are_what_is_generated() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/src/unicode/tables.rs");
        let expected = generated();
        if std::env::var("KILN_BLESS").is_ok_and(|value| value == "1") {
            std::fs::write(path, &expected).unwrap();
        }
        let found = std::fs::read_to_string(path).unwrap();
        assert!(found == expected, "{path} is not what is generated: run this test with KILN_BLESS=1");
    }

    #[test]
    fn every_character_has_its_class_and_bases() {
        for c in '\0'..=char::MAX {
            assert_eq!(Class::of(c), class(c), "{c:?}");
            let mut found = String::new();
            without_accents(c, |c| found.push(c));
            assert_eq!(found, bases(c), "{c:?}");
        }
    }
}
