//! JSON of profiles and recordings: types to and from the values of serde_json. The derive of serde would be built for these types
//! alone.
//!
//! Reading is strict: unknown fields and missing fields are errors, which name where they are. Of fields that occur twice in one object
//! the last counts. Numbers are exact both ways.

use std::fmt::Display;

use kiln_ir::Precision;
pub(crate) use serde_json::{Map, Value};

/// A value, or what is wrong with it and in which field.
pub(crate) type Result<T> = std::result::Result<T, String>;

/// A type that profiles hold.
pub(crate) trait Json: Sized {
    /// The value as JSON.
    fn to_value(&self) -> Value;

    /// Reads a value.
    fn from_value(value: Value) -> Result<Self>;

    /// The value of a field that is missing; `None` where it is required.
    fn missing() -> Option<Self> {
        None
    }
}

/// Rounds every floating-point number to four digits.
pub(crate) fn rounded(value: Value) -> Value {
    match value {
        Value::Number(number) if number.is_f64() => {
            number.as_f64().and_then(|x| format!("{x:.3e}").parse::<f64>().ok()).into()
        }
        Value::Array(values) => values.into_iter().map(rounded).collect(),
        Value::Object(fields) => fields.into_iter().map(|(name, value)| (name, rounded(value))).collect(),
        other => other,
    }
}

/// Reads the value of a field or of an item, whose name errors begin with.
pub(crate) fn named<T: Json>(name: impl Display, value: Value) -> Result<T> {
    T::from_value(value).map_err(|error| format!("{name}: {error}"))
}

/// Takes a field, which may be missing if it has a default.
pub(crate) fn field<T: Json>(fields: &mut Map<String, Value>, name: &str, default: Option<T>) -> Result<T> {
    match fields.remove(name) {
        Some(value) => named(name, value),
        None => default.or_else(T::missing).ok_or_else(|| format!("the field {name} is missing")),
    }
}

/// Checks that all fields were taken.
pub(crate) fn all_known(fields: &Map<String, Value>) -> Result<()> {
    fields.keys().next().map_or(Ok(()), |name| Err(format!("unknown field {name:?}")))
}

/// The items of a list of this length.
pub(crate) fn items<const N: usize>(value: Value) -> Result<[Value; N]> {
    let items = Vec::<Value>::from_value(value)?;
    items.try_into().map_err(|items: Vec<_>| format!("expected a list of {N}, found one of {}", items.len()))
}

/// Types that serde knows. Of those here every value has JSON; numbers that are not finite become null.
macro_rules! known {
    ($($type:ty),*) => {$(
        impl Json for $type {
            fn to_value(&self) -> Value {
                serde_json::json!(self)
            }

            fn from_value(value: Value) -> Result<Self> {
                serde_json::from_value(value).map_err(|error| error.to_string())
            }
        }
    )*};
}
known!(u8, u32, i32, u64, usize, f64, String, (u64, f64), Vec<Value>, Map<String, Value>);

impl Json for Precision {
    fn to_value(&self) -> Value {
        self.name().into()
    }

    fn from_value(value: Value) -> Result<Self> {
        String::from_value(value)?.parse().map_err(|error: kiln_ir::Error| error.to_string())
    }
}

impl<T: Json> Json for Option<T> {
    fn to_value(&self) -> Value {
        self.as_ref().map_or(Value::Null, T::to_value)
    }

    fn from_value(value: Value) -> Result<Self> {
        if value.is_null() { Ok(None) } else { T::from_value(value).map(Some) }
    }

    fn missing() -> Option<Self> {
        Some(None)
    }
}

impl<T: Json> Json for Vec<T> {
    fn to_value(&self) -> Value {
        self.iter().map(T::to_value).collect()
    }

    fn from_value(value: Value) -> Result<Self> {
        Vec::<Value>::from_value(value)?.into_iter().enumerate().map(|(i, item)| named(i, item)).collect()
    }
}

/// A struct as an object of all its fields. A field with a default is left out where it has this value.
macro_rules! object {
    ($type:ty { $($field:ident $(= $default:expr)?),* }) => {
        impl $crate::json::Json for $type {
            fn to_value(&self) -> $crate::json::Value {
                let mut fields = $crate::json::Map::new();
                $($(if self.$field != $default)? {
                    fields.insert(stringify!($field).into(), $crate::json::Json::to_value(&self.$field));
                })*
                fields.into()
            }

            fn from_value(value: $crate::json::Value) -> $crate::json::Result<Self> {
                let mut fields = $crate::json::Json::from_value(value)?;
                $(
                    let $field = $crate::json::field(&mut fields, stringify!($field), None$(.or(Some($default)))?)?;
                )*
                $crate::json::all_known(&fields)?;
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
            fn to_value(&self) -> $crate::json::Value {
                vec![$($crate::json::Json::to_value(&self.$field)),*].into()
            }

            fn from_value(value: $crate::json::Value) -> $crate::json::Result<Self> {
                let [$($field),*] = $crate::json::items(value)?;
                Ok(Self { $($field: $crate::json::named(stringify!($field), $field)?),* })
            }
        }
    };
}
pub(crate) use list;

/// A struct as its only field.
macro_rules! transparent {
    ($type:ty) => {
        impl $crate::json::Json for $type {
            fn to_value(&self) -> $crate::json::Value {
                $crate::json::Json::to_value(&self.0)
            }

            fn from_value(value: $crate::json::Value) -> $crate::json::Result<Self> {
                $crate::json::Json::from_value(value).map(Self)
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
        let value: Value = serde_json::from_str(text).map_err(|error| error.to_string())?;
        T::from_value(value)
    }

    #[derive(Debug, PartialEq)]
    struct Cup {
        name: String,
        size: Option<u8>,
        cracks: u32,
    }
    object!(Cup { name, size, cracks = 0 });

    #[derive(Debug, PartialEq)]
    struct Shelf {
        rows: Vec<Vec<Cup>>,
        bars: (u64, f64),
    }
    list!(Shelf { rows, bars });

    fn cup(cracks: u32) -> Cup {
        Cup { name: "mug".into(), size: None, cracks }
    }

    #[test]
    fn fields_are_named_and_known() {
        // The order of fields is another where a crate of the build has the feature `preserve_order` of serde_json.
        assert_eq!(cup(0).to_value(), serde_json::json!({ "name": "mug", "size": null }));
        assert_eq!(cup(2).to_value(), serde_json::json!({ "name": "mug", "size": null, "cracks": 2 }));
        assert_eq!(read(" { \"cracks\" : 2 ,\r\n\t\"name\" : \"mug\" } "), Ok(cup(2)));
        assert_eq!(read(r#"{"name":"cup","cracks":1,"name":"mug","cracks":2}"#), Ok(cup(2)), "the last counts");
        for (text, problem) in [
            (r#"{"size":1}"#, "the field name is missing"),
            (r#"{"name":"mug","colour":1}"#, "unknown field \"colour\""),
            (r#"{"name":"mug","size":256}"#, "size: invalid value: integer `256`, expected u8"),
            (r#"{"name":"mug","size":1.0}"#, "size: invalid type: floating point `1.0`, expected u8"),
            (r#"{"name":"mug","cracks":-1}"#, "cracks: invalid value: integer `-1`, expected u32"),
            (r#"{"name":"mug","cracks":null}"#, "cracks: invalid type: null, expected u32"),
            (r#"{"name":null}"#, "name: invalid type: null, expected a string"),
            (r#"["mug"]"#, "invalid type: sequence, expected a map"),
            ("7", "invalid type: integer `7`, expected a map"),
        ] {
            assert_eq!(read::<Cup>(text), Err(problem.into()), "{text}");
        }
        for text in ["", r#"{"name":"mug",}"#, r#"{"name":"mug"} {"#, r#"{"name":"mug""#, "{'name':'mug'}"] {
            assert!(read::<Cup>(text).unwrap_err().contains("at line 1 column"), "{text}");
        }
    }

    #[test]
    fn lists_have_their_length_and_errors_say_where() {
        let shelf = Shelf { rows: vec![vec![], vec![cup(0), cup(1)]], bars: (u64::MAX, 0.5) };
        assert_eq!(Shelf::from_value(shelf.to_value()), Ok(shelf));
        for (text, problem) in [
            ("[[]]", "expected a list of 2, found one of 1"),
            ("[[],[1,2],3]", "expected a list of 2, found one of 3"),
            ("{}", "invalid type: map, expected a sequence"),
            (r#"["",[1,2]]"#, "rows: invalid type: string \"\", expected a sequence"),
            (r#"[[[],[{"name":"mug"},{}]],[1,2]]"#, "rows: 1: 1: the field name is missing"),
            (
                r#"[[[{"name":"mug","size":true}]],[1,2]]"#,
                "rows: 0: 0: size: invalid type: boolean `true`, expected u8",
            ),
            ("[[],[1,null]]", "bars: invalid type: null, expected f64"),
            ("[[],[1]]", "bars: invalid length 1, expected a tuple of size 2"),
            ("[[],[1,2,3]]", "bars: invalid length 3, expected fewer elements in array"),
        ] {
            assert_eq!(read::<Shelf>(text), Err(problem.into()), "{text}");
        }
        for depth in [200, 100_000] {
            let nested = format!("{}{}", "[".repeat(depth), "]".repeat(depth));
            assert!(read::<Shelf>(&nested).unwrap_err().contains("recursion limit"), "{depth}");
        }
    }

    #[test]
    fn numbers_are_exact() {
        for value in [
            [0.1 + 0.2, 1e-7, 1e16, 1e15, 123_456_789.123],
            [f64::MIN_POSITIVE, f64::MAX, -0.0, 5e-324, 1.0 / 3.0],
            // Without the feature `float_roundtrip` of serde_json these are read as their neighbours.
            [1.0e-9 / 3.0, 8.98846567431158e307, 1.2345678901234567e-5, 31.245270191439438, 121.48791951161945],
        ]
        .concat()
        {
            let text = value.to_value().to_string();
            assert_eq!(read::<f64>(&text).map(f64::to_bits), Ok(value.to_bits()), "{text}");
        }
        assert_eq!(read::<u64>(&u64::MAX.to_value().to_string()), Ok(u64::MAX));
        assert_eq!((read("10"), read("-0")), (Ok(10.0), Ok(-0.0)));
        for text in ["18446744073709551616", "-1", "1.0", "1e3", "-0", "\"1\""] {
            assert!(read::<u64>(text).is_err(), "{text}");
        }
        for text in ["1e999", "", "null", "NaN", "inf", "01", "1.", "+1", "\"1\""] {
            assert!(read::<f64>(text).is_err(), "{text}");
        }
        assert_eq!([f64::NAN, f64::INFINITY].map(|value| value.to_value()), [Value::Null, Value::Null]);
        let value = serde_json::json!({ "a": [1.234_567e-7, 1_234_567], "b": [1e9, null, "1.234567"] });
        assert_eq!(rounded(value), serde_json::json!({ "a": [1.235e-7, 1_234_567], "b": [1e9, null, "1.234567"] }));
    }
}
