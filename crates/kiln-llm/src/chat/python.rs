//! Values as Python writes them: `str`, `repr` and `json.dumps`.

use std::fmt::Write;

use minijinja::value::{Kwargs, ValueKind};
use minijinja::{Error, ErrorKind, Value};

/// Maximum nesting depth of printed lists.
const MOST_DEPTH: usize = 64;

fn too_deep() -> Error {
    Error::new(ErrorKind::InvalidOperation, format!("a value is nested deeper than {MOST_DEPTH}"))
}

/// The text of `str(value)`.
///
/// # Errors
/// [`ErrorKind::InvalidOperation`] for values nested too deeply.
pub(super) fn text(value: &Value) -> Result<String, Error> {
    if let Some(text) = value.as_str() {
        return Ok(text.to_owned());
    }
    let mut to = String::new();
    repr(value, 0, &mut to)?;
    Ok(to)
}

fn repr(value: &Value, depth: usize, to: &mut String) -> Result<(), Error> {
    if depth > MOST_DEPTH {
        return Err(too_deep());
    }
    match value.kind() {
        ValueKind::Undefined => {}
        ValueKind::None => to.push_str("None"),
        ValueKind::Bool => to.push_str(if value.is_true() { "True" } else { "False" }),
        ValueKind::Number => number(value, to),
        ValueKind::String => quoted(value.as_str().unwrap_or_default(), to),
        ValueKind::Seq | ValueKind::Iterable => {
            to.push('[');
            for (at, value) in value.try_iter()?.enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                repr(&value, depth + 1, to)?;
            }
            to.push(']');
        }
        ValueKind::Map => {
            to.push('{');
            for (at, key) in value.try_iter()?.enumerate() {
                to.push_str(if at > 0 { ", " } else { "" });
                repr(&key, depth + 1, to)?;
                to.push_str(": ");
                repr(&value.get_item(&key)?, depth + 1, to)?;
            }
            to.push('}');
        }
        _ => {
            let _ = write!(to, "{value}");
        }
    }
    Ok(())
}

/// Prints a number; floats with the fewest digits that round-trip.
fn number(value: &Value, to: &mut String) {
    let written = match f64::try_from(value.clone()) {
        Ok(float) if !value.is_integer() => match float.abs() {
            _ if float.is_nan() => write!(to, "nan"),
            _ if float.is_infinite() => write!(to, "{}inf", if float < 0.0 { "-" } else { "" }),
            size if size != 0.0 && !(1e-4..1e16).contains(&size) => {
                let text = format!("{float:e}");
                let (digits, exponent) = text.split_once('e').unwrap_or((&text, "0"));
                let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
                write!(to, "{digits}e{sign}{exponent:0>2}")
            }
            _ => write!(to, "{float:?}"),
        },
        _ => write!(to, "{value}"),
    };
    // Writing to a String cannot fail.
    debug_assert!(written.is_ok());
}

/// The text of `repr(text)`: single quotes, unless only double ones need no escape.
fn quoted(text: &str, to: &mut String) {
    let quote = if text.contains('\'') && !text.contains('"') { '"' } else { '\'' };
    to.push(quote);
    for c in text.chars() {
        match c {
            '\n' => to.push_str("\\n"),
            '\r' => to.push_str("\\r"),
            '\t' => to.push_str("\\t"),
            '\\' => to.push_str("\\\\"),
            c if c == quote => to.extend(['\\', c]),
            c if u32::from(c) < 0x20 || (0x7f..0xa0).contains(&u32::from(c)) => {
                let _ = write!(to, "\\x{:02x}", u32::from(c));
            }
            c => to.push(c),
        }
    }
    to.push(quote);
}

/// The options of `json.dumps`.
struct Json {
    /// Whether characters beyond ASCII are escaped.
    ascii: bool,
    /// The indentation of one level.
    indent: Option<String>,
    between_items: String,
    between_key_and_value: String,
    sort_keys: bool,
}

/// The filter `tojson`: `json.dumps`, with the defaults of transformers.
///
/// # Errors
/// [`ErrorKind::InvalidOperation`] for values that JSON cannot represent, and for those nested too deeply.
pub(super) fn to_json(value: &Value, options: Kwargs) -> Result<String, Error> {
    let given: Option<Value> = options.get::<Option<Value>>("indent")?.filter(|indent| !indent.is_none());
    let indent = match given {
        Some(indent) if indent.as_str().is_some() => indent.as_str().map(str::to_owned),
        // A larger indentation would only serve to exhaust the memory.
        Some(indent) => Some(" ".repeat(u8::try_from(indent)?.into())),
        None => None,
    };
    let separators: Option<Vec<String>> = options.get("separators")?;
    let (between_items, between_key_and_value) = match separators.as_deref() {
        Some([items, keys]) => (items.clone(), keys.clone()),
        Some(_) => return Err(Error::new(ErrorKind::InvalidOperation, "tojson: two separators are expected")),
        None if indent.is_some() => (",".to_owned(), ": ".to_owned()),
        None => (", ".to_owned(), ": ".to_owned()),
    };
    let json = Json {
        ascii: options.get::<Option<bool>>("ensure_ascii")?.unwrap_or(false),
        indent,
        between_items,
        between_key_and_value,
        sort_keys: options.get::<Option<bool>>("sort_keys")?.unwrap_or(false),
    };
    options.assert_all_used()?;
    let mut to = String::new();
    json.write(value, 0, &mut to)?;
    Ok(to)
}

impl Json {
    fn write(&self, value: &Value, depth: usize, to: &mut String) -> Result<(), Error> {
        if depth > MOST_DEPTH {
            return Err(too_deep());
        }
        match value.kind() {
            ValueKind::None => to.push_str("null"),
            ValueKind::Bool => to.push_str(if value.is_true() { "true" } else { "false" }),
            ValueKind::Number => match f64::try_from(value.clone()) {
                Ok(float) if float.is_nan() => to.push_str("NaN"),
                Ok(float) if float.is_infinite() => to.push_str(if float < 0.0 { "-Infinity" } else { "Infinity" }),
                _ => number(value, to),
            },
            ValueKind::String => self.string(value.as_str().unwrap_or_default(), to),
            ValueKind::Seq | ValueKind::Iterable => {
                let items = value.try_iter()?;
                self.list(['[', ']'], items, depth, to, |item, to| self.write(&item, depth + 1, to))?;
            }
            ValueKind::Map => {
                let mut keys: Vec<Value> = value.try_iter()?.collect();
                if self.sort_keys {
                    keys.sort();
                }
                self.list(['{', '}'], keys.into_iter(), depth, to, |key, to| {
                    self.string(&text(&key)?, to);
                    to.push_str(&self.between_key_and_value);
                    self.write(&value.get_item(&key)?, depth + 1, to)
                })?;
            }
            kind => {
                return Err(Error::new(ErrorKind::InvalidOperation, format!("tojson: {kind} is not JSON")));
            }
        }
        Ok(())
    }

    /// Prints items between brackets, on separate lines if there is an indentation.
    fn list(
        &self,
        brackets: [char; 2],
        items: impl Iterator<Item = Value>,
        depth: usize,
        to: &mut String,
        write: impl Fn(Value, &mut String) -> Result<(), Error>,
    ) -> Result<(), Error> {
        let line = |depth: usize, to: &mut String| {
            if let Some(indent) = &self.indent {
                to.push('\n');
                (0..depth).for_each(|_| to.push_str(indent));
            }
        };
        to.push(brackets[0]);
        let mut is_empty = true;
        for item in items {
            if !is_empty {
                to.push_str(&self.between_items);
            }
            is_empty = false;
            line(depth + 1, to);
            write(item, to)?;
        }
        if !is_empty {
            line(depth, to);
        }
        to.push(brackets[1]);
        Ok(())
    }

    fn string(&self, text: &str, to: &mut String) {
        to.push('"');
        for c in text.chars() {
            match c {
                '"' => to.push_str("\\\""),
                '\\' => to.push_str("\\\\"),
                '\n' => to.push_str("\\n"),
                '\r' => to.push_str("\\r"),
                '\t' => to.push_str("\\t"),
                '\u{8}' => to.push_str("\\b"),
                '\u{c}' => to.push_str("\\f"),
                c if c < ' ' || self.ascii && !(' '..='~').contains(&c) => {
                    for unit in c.encode_utf16(&mut [0; 2]) {
                        let _ = write!(to, "\\u{unit:04x}");
                    }
                }
                c => to.push(c),
            }
        }
        to.push('"');
    }
}
