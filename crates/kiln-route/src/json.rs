//! JSON of profiles and recordings, written and read without a tree between the text and the types. Nothing else of the default
//! build uses JSON: serde with its derive and serde_json were a tenth of the time to build it.
//!
//! Reading is strict: unknown fields, fields that occur twice and missing fields are errors. Numbers are exact both ways.

use std::fmt::{Display, Write};

use kiln_ir::Precision;

/// A value, or what is wrong with the text and where.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// Maximum number of lists and objects inside one another. A recording has seven.
const MAX_DEPTH: u32 = 32;

/// A type that profiles hold.
pub(crate) trait Json: Sized {
    /// Appends the value.
    fn write(&self, to: &mut Writer);

    /// Reads a value.
    fn read(from: &mut Reader<'_>) -> Result<Self>;

    /// The value of a field that is missing; `None` where it is required.
    fn missing() -> Option<Self> {
        None
    }
}

/// The text of a value.
pub(crate) fn to_text(value: &impl Json) -> String {
    let mut to = Writer { text: String::new(), short: false };
    value.write(&mut to);
    to.text
}

/// The text of a value, with four digits of every floating-point number.
pub(crate) fn to_short_text(value: &impl Json) -> String {
    let mut to = Writer { text: String::new(), short: true };
    value.write(&mut to);
    to.text
}

/// Reads a text that holds one value.
pub(crate) fn from_text<T>(text: &str, read: impl FnOnce(&mut Reader<'_>) -> Result<T>) -> Result<T> {
    let mut from = Reader { text, at: 0, depth: 0 };
    let value = read(&mut from)?;
    match from.peek() {
        None => Ok(value),
        Some(_) => Err(from.expected("the end of the text")),
    }
}

/// A text that grows.
pub(crate) struct Writer {
    text: String,
    short: bool,
}

impl Writer {
    /// Appends a bracket, which begins or ends a list or an object.
    pub(crate) fn bracket(&mut self, bracket: char) {
        self.text.push(bracket);
    }

    /// Appends an item of a list. All items but the first follow a comma; no string ends like an opening bracket.
    pub(crate) fn item(&mut self, value: &impl Json) {
        if !self.text.ends_with(['[', '{']) {
            self.text.push(',');
        }
        value.write(self);
    }

    /// Appends a field of an object.
    pub(crate) fn field(&mut self, name: &str, value: &impl Json) {
        self.item(&name.to_owned());
        self.text.push(':');
        value.write(self);
    }

    fn display(&mut self, value: impl Display) {
        // A String takes everything.
        let _ = write!(self.text, "{value}");
    }
}

/// A text that is read from front to back.
pub(crate) struct Reader<'a> {
    text: &'a str,
    at: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    /// An error at the current position.
    pub(crate) fn wrong(&self, what: impl Display) -> String {
        format!("{what} at byte {}", self.at)
    }

    fn expected(&self, what: &str) -> String {
        match self.rest().chars().next() {
            Some(found) => self.wrong(format_args!("expected {what}, found {found:?}")),
            None => self.wrong(format_args!("expected {what}, found the end")),
        }
    }

    fn rest(&self) -> &'a str {
        &self.text[self.at..]
    }

    /// The next character that is not white space, which it stops before.
    fn peek(&mut self) -> Option<char> {
        let rest = self.rest();
        self.at += rest.len() - rest.trim_start_matches([' ', '\t', '\n', '\r']).len();
        self.rest().chars().next()
    }

    /// Passes a word, if it comes next.
    fn passed(&mut self, word: &str) -> bool {
        self.peek();
        let passed = self.rest().starts_with(word);
        self.at += if passed { word.len() } else { 0 };
        passed
    }

    /// Passes a word.
    pub(crate) fn pass(&mut self, word: &str) -> Result<()> {
        if self.passed(word) { Ok(()) } else { Err(self.expected(&format!("`{word}`"))) }
    }

    fn sequence(&mut self, open: &str, close: &str, item: &mut dyn FnMut(&mut Self) -> Result<()>) -> Result<()> {
        self.pass(open)?;
        self.depth += 1;
        if self.depth > MAX_DEPTH {
            return Err(self.wrong("too many lists inside one another"));
        }
        if !self.passed(close) {
            item(self)?;
            while !self.passed(close) {
                self.pass(",")?;
                item(self)?;
            }
        }
        self.depth -= 1;
        Ok(())
    }

    /// Reads an object; `field` reads the value after each name.
    pub(crate) fn object(&mut self, field: &mut dyn FnMut(&mut Self, &str) -> Result<()>) -> Result<()> {
        self.sequence("{", "}", &mut |from| {
            let name = String::read(from)?;
            from.pass(":")?;
            field(from, &name)
        })
    }

    /// Reads the value of a field, which must not have one yet.
    pub(crate) fn field<T: Json>(&mut self, name: &str, value: &mut Option<T>) -> Result<()> {
        match value.replace(T::read(self)?) {
            None => Ok(()),
            Some(_) => Err(self.wrong(format_args!("the field {name} occurs twice"))),
        }
    }

    /// The value of a field after the object was read.
    pub(crate) fn found<T: Json>(&self, name: &str, value: Option<T>) -> Result<T> {
        value.or_else(T::missing).ok_or_else(|| self.wrong(format_args!("the field {name} is missing")))
    }

    /// Passes a value of any type.
    pub(crate) fn skip(&mut self) -> Result<()> {
        match self.peek() {
            Some('{') => self.object(&mut |from, _| from.skip()),
            Some('[') => self.sequence("[", "]", &mut Self::skip),
            Some('"') => String::read(self).map(drop),
            Some('n') => self.pass("null"),
            Some('t') => self.pass("true"),
            Some('f') => self.pass("false"),
            _ => self.number("a value").map(drop),
        }
    }

    /// The text of a number. [`str::parse`] also takes what is not a number in JSON, such as `inf`, `+1`, `1.` and `01`.
    fn number(&mut self, what: &str) -> Result<&'a str> {
        self.peek();
        let rest = self.rest();
        let end = rest.find(|c| !matches!(c, '0'..='9' | '+' | '-' | '.' | 'e' | 'E')).unwrap_or(rest.len());
        let (number, digits) =
            (&rest[..end], |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()));
        let unsigned = number.strip_prefix('-').unwrap_or(number);
        let (decimal, exponent) = unsigned.split_once(['e', 'E']).unwrap_or((unsigned, "0"));
        let (whole, fraction) = decimal.split_once('.').unwrap_or((decimal, "0"));
        let zeros = whole.len() > 1 && whole.starts_with('0');
        if zeros || ![whole, fraction, exponent.strip_prefix(['+', '-']).unwrap_or(exponent)].into_iter().all(digits) {
            return Err(self.expected(what));
        }
        self.at += end;
        Ok(number)
    }

    /// The next character of a string.
    fn char(&mut self) -> Result<char> {
        let c = self.rest().chars().next().ok_or_else(|| self.expected("the end of a string"))?;
        self.at += c.len_utf8();
        Ok(c)
    }

    /// What follows a backslash.
    fn escaped(&mut self) -> Result<char> {
        Ok(match self.char()? {
            c @ ('"' | '\\' | '/') => c,
            'b' => '\u{8}',
            'f' => '\u{c}',
            'n' => '\n',
            'r' => '\r',
            't' => '\t',
            'u' => {
                let first = self.unit()?;
                let pair = (0xd800..0xdc00).contains(&first) && self.rest().starts_with("\\u");
                self.at += if pair { 2 } else { 0 };
                let second = if pair { Some(self.unit()?) } else { None };
                let mut chars = char::decode_utf16([first].into_iter().chain(second));
                match (chars.next(), chars.next()) {
                    (Some(Ok(c)), None) => c,
                    _ => return Err(self.wrong("half a surrogate pair")),
                }
            }
            _ => return Err(self.wrong("an unknown escape sequence")),
        })
    }

    /// Four hexadecimal digits.
    fn unit(&mut self) -> Result<u16> {
        let digits = self.rest().get(..4).filter(|digits| digits.bytes().all(|b| b.is_ascii_hexdigit()));
        let unit = digits.and_then(|digits| u16::from_str_radix(digits, 16).ok());
        let unit = unit.ok_or_else(|| self.expected("four hexadecimal digits"))?;
        self.at += 4;
        Ok(unit)
    }
}

impl Json for String {
    fn write(&self, to: &mut Writer) {
        to.text.push('"');
        for c in self.chars() {
            match c {
                '"' | '\\' => to.text.extend(['\\', c]),
                '\0'..=' ' if c != ' ' => to.display(format_args!("\\u{:04x}", u32::from(c))),
                _ => to.text.push(c),
            }
        }
        to.text.push('"');
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.pass("\"")?;
        let mut text = Self::new();
        loop {
            match from.char()? {
                '"' => return Ok(text),
                '\\' => text.push(from.escaped()?),
                '\0'..'\x20' => return Err(from.wrong("a control character in a string")),
                c => text.push(c),
            }
        }
    }
}

impl Json for f64 {
    fn write(&self, to: &mut Writer) {
        let value = if to.short { format!("{self:.3e}").parse().unwrap_or(*self) } else { *self };
        match value.is_finite() {
            true => to.display(format_args!("{value:?}")),
            false => to.display("null"), // JSON has no infinity
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        let value = from.number("a number")?.parse().ok().filter(|value: &Self| value.is_finite());
        value.ok_or_else(|| from.wrong("a number beyond the range of f64"))
    }
}

macro_rules! integers {
    ($($type:ty)*) => {$(
        impl Json for $type {
            fn write(&self, to: &mut Writer) {
                to.display(self);
            }

            fn read(from: &mut Reader<'_>) -> Result<Self> {
                let text = from.number("an integer")?;
                text.parse().map_err(|_| from.wrong(format_args!("{text} is not a {}", stringify!($type))))
            }
        }
    )*};
}
integers!(u8 u32 i32 u64 usize);

impl Json for Precision {
    fn write(&self, to: &mut Writer) {
        self.name().to_owned().write(to);
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        String::read(from)?.parse().map_err(|error| from.wrong(error))
    }
}

impl<T: Json> Json for Option<T> {
    fn write(&self, to: &mut Writer) {
        match self {
            Some(value) => value.write(to),
            None => to.display("null"),
        }
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        if from.passed("null") { Ok(None) } else { T::read(from).map(Some) }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: Json> Json for Vec<T> {
    fn write(&self, to: &mut Writer) {
        to.bracket('[');
        self.iter().for_each(|value| to.item(value));
        to.bracket(']');
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        let mut values = Self::new();
        from.sequence("[", "]", &mut |from| T::read(from).map(|value| values.push(value)))?;
        Ok(values)
    }
}

impl Json for (u64, f64) {
    fn write(&self, to: &mut Writer) {
        to.bracket('[');
        to.item(&self.0);
        to.item(&self.1);
        to.bracket(']');
    }

    fn read(from: &mut Reader<'_>) -> Result<Self> {
        from.pass("[")?;
        let first = u64::read(from)?;
        from.pass(",")?;
        let second = f64::read(from)?;
        from.pass("]")?;
        Ok((first, second))
    }
}

/// A struct as an object of all its fields. A field with a default is left out where it has this value.
macro_rules! object {
    ($type:ty { $($field:ident $(= $default:expr)?),* }) => {
        impl $crate::json::Json for $type {
            fn write(&self, to: &mut $crate::json::Writer) {
                to.bracket('{');
                $($(if self.$field != $default)? { to.field(stringify!($field), &self.$field); })*
                to.bracket('}');
            }

            fn read(from: &mut $crate::json::Reader<'_>) -> $crate::json::Result<Self> {
                $(let mut $field = None;)*
                from.object(&mut |from, name| match name {
                    $(stringify!($field) => from.field(name, &mut $field),)*
                    _ => Err(from.wrong(format_args!("unknown field {name:?}"))),
                })?;
                $(let $field = from.found(stringify!($field), $field$(.or(Some($default)))?)?;)*
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use object;

/// A struct as a list of all its fields, in this order.
macro_rules! list {
    ($type:ty { $($field:ident),* }) => {
        impl $crate::json::Json for $type {
            fn write(&self, to: &mut $crate::json::Writer) {
                to.bracket('[');
                $(to.item(&self.$field);)*
                to.bracket(']');
            }

            fn read(from: &mut $crate::json::Reader<'_>) -> $crate::json::Result<Self> {
                let mut before = "[";
                $(
                    from.pass(std::mem::replace(&mut before, ","))?;
                    let $field = $crate::json::Json::read(from)?;
                )*
                from.pass("]")?;
                Ok(Self { $($field),* })
            }
        }
    };
}
pub(crate) use list;

/// A struct as its only field.
macro_rules! transparent {
    ($type:ty) => {
        impl $crate::json::Json for $type {
            fn write(&self, to: &mut $crate::json::Writer) {
                self.0.write(to);
            }

            fn read(from: &mut $crate::json::Reader<'_>) -> $crate::json::Result<Self> {
                $crate::json::Json::read(from).map(Self)
            }
        }
    };
}
pub(crate) use transparent;

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn read<T: Json>(text: &str) -> Result<T> {
        from_text(text, T::read)
    }

    fn skip(from: &mut Reader<'_>) -> Result<()> {
        from.skip()
    }

    #[derive(Debug, PartialEq)]
    struct Cup {
        name: String,
        size: Option<u8>,
        cracks: u32,
    }
    object!(Cup { name, size, cracks = 0 });

    #[test]
    fn fields_are_named_once_and_known() {
        let cup = |cracks| Cup { name: "mug".into(), size: None, cracks };
        assert_eq!(to_text(&cup(0)), r#"{"name":"mug","size":null}"#);
        assert_eq!(to_text(&cup(2)), r#"{"name":"mug","size":null,"cracks":2}"#);
        assert_eq!(read(" { \"cracks\" : 2 ,\r\n\t\"name\" : \"mug\" } "), Ok(cup(2)));
        for (text, problem) in [
            (r#"{"size":1}"#, "the field name is missing at byte 10"),
            (r#"{"name":"mug","name":"mug"}"#, "the field name occurs twice at byte 26"),
            (r#"{"name":"mug","colour":1}"#, "unknown field \"colour\" at byte 23"),
            (r#"{"name":"mug","size":256}"#, "256 is not a u8 at byte 24"),
            (r#"{"name":"mug","size":1.0}"#, "1.0 is not a u8 at byte 24"),
            (r#"{"name":null}"#, "expected `\"`, found 'n' at byte 8"),
            (r#"{"name":"mug",}"#, "expected `\"`, found '}' at byte 14"),
            (r#"{"name":"mug"} {"#, "expected the end of the text, found '{' at byte 15"),
            (r#"{"name":"mug""#, "expected `,`, found the end at byte 13"),
            (r#"["mug"]"#, "expected `{`, found '[' at byte 0"),
        ] {
            assert_eq!(read::<Cup>(text), Err(problem.into()), "{text}");
        }
    }

    /// That a text is read as serde_json reads it, or refused where it refuses it.
    fn as_serde<T: Json + PartialEq + std::fmt::Debug>(text: &str, of: impl Fn(serde_json::Value) -> Option<T>) {
        let expected = serde_json::from_str(text).ok().and_then(of);
        assert_eq!(read::<T>(text).ok(), expected, "{text}");
        let skipped = from_text(text, skip).is_ok();
        assert_eq!(skipped, serde_json::from_str::<serde_json::Value>(text).is_ok(), "{text}");
    }

    #[test]
    fn numbers_are_those_of_json() {
        for text in
            "0 -0 1 -1 10 1.5 1e3 1E+3 1e-3 0.0 -0.5e-7 5e-324 1.7976931348623157e308 100000000000000000000 \
            18446744073709551615 18446744073709551616 01 -01 +1 1. .5 - 1e 1e+ 1.e3 0x1 1_0 inf nan NaN Infinity -inf 1e1.5 --1 1-1 1e5e5"
                .split_whitespace()
        {
            as_serde(text, |value| value.as_f64());
            as_serde(text, |value| value.as_u64());
        }
        assert!(read::<f64>("1e999").is_err() && read::<f64>("").is_err());
        for value in
            [0.1 + 0.2, 1e-7, 1e16, 1e15, 123_456_789.123, f64::MIN_POSITIVE, f64::MAX, -0.0, 5e-324, 1.0 / 3.0]
        {
            let text = to_text(&value);
            assert_eq!(read::<f64>(&text).map(f64::to_bits), Ok(value.to_bits()), "{text}");
            assert!(serde_json::from_str::<f64>(&text).is_ok(), "{text}");
        }
        assert_eq!(
            [1.234_567e-7, 1e9, f64::INFINITY].map(|value| to_short_text(&value)),
            ["1.235e-7", "1000000000.0", "null"]
        );
    }

    #[test]
    fn strings_are_those_of_json() {
        let string = |value: serde_json::Value| value.as_str().map(str::to_owned);
        for text in [
            r#""""#,
            r#""ö 𝄞""#,
            r#""\"\\\/\b\f\n\r\t""#,
            r#""\u00e4\u0000""#,
            r#""\ud834\udd1e""#,
            r#""\ud834""#,
            r#""\udd1e""#,
            r#""\ud834\ud834""#,
            r#""\ud834 \udd1e""#,
            r#""\ud834\n""#,
            r#""\u12""#,
            r#""\u12g4""#,
            r#""\u+123""#,
            r#""\uäöü""#,
            r#""\x""#,
            r#"""#,
            r#""\""#,
            "\"\n\"",
            "\"\u{7f}\"",
            "'a'",
            "\"a\" \"b\"",
            "\"a\" ",
            "",
        ] {
            as_serde(text, string);
        }
        for text in ["", "a \"quoted\" \\ name", "\0\u{1f} \u{7f}", "\r\n\t", "ö 𝄞", "\u{2028}"] {
            let written = to_text(&text.to_owned());
            assert_eq!(
                serde_json::from_str::<serde_json::Value>(&written).ok().and_then(string).as_deref(),
                Some(text)
            );
            assert_eq!(read::<String>(&written).as_deref(), Ok(text));
        }
    }

    #[test]
    fn lists_end_and_are_not_too_deep() {
        let pairs = |value: serde_json::Value| {
            let pair = |pair: &serde_json::Value| match &pair.as_array()?[..] {
                [a, b] => Some((a.as_u64()?, b.as_f64()?)),
                _ => None,
            };
            value.as_array()?.iter().map(pair).collect::<Option<Vec<_>>>()
        };
        for text in "[] [[1,2.5]] [[1,2.5],[3,4]] [[1]] [[1,2,3]] [[1,2,]] [[1,2],] [,] [[1,2] [[1,2]]] [[1 2]] [] [null] {} {1:2} [true] [nul]"
            .split(' ')
        {
            as_serde(text, pairs);
        }
        let nested = |depth| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(from_text(&nested(32), skip).is_ok());
        for depth in [33, 100_000] {
            assert!(from_text(&nested(depth), skip).unwrap_err().contains("too many lists"));
        }
        assert_eq!(from_text(r#"{"a":[1,{"b":null}],"c":"d"}"#, skip), Ok(()));
    }
}
