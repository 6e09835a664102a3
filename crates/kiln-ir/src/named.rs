//! Parameters of operations for languages with named parameters: an object of options in JavaScript, keyword arguments in Python.
//!
//! A binding implements [`Named`] for what its language passes. A [`Parameter`] reads itself from there, and its [`Form`]
//! describes what the language may pass. [`signatures`](crate::signatures) has the parameters of every operation.

use std::fmt;
use std::ops::Range;

use crate::{DType, Error, QuantFormat, Result};

/// A value as another language passes it.
#[derive(Debug, Clone, PartialEq)]
pub enum Value {
    /// A truth value.
    Flag(bool),
    /// A number.
    Number(f64),
    /// Text.
    Text(String),
    /// A list.
    List(Vec<Self>),
    /// Anything else, such as a tensor.
    Other,
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Flag(flag) => flag.fmt(f),
            Self::Number(number) => number.fmt(f),
            Self::Text(text) => write!(f, "\"{text}\""),
            Self::List(list) => write!(f, "a list of {}", list.len()),
            Self::Other => f.write_str("an object"),
        }
    }
}

impl Value {
    fn number(&self) -> Option<f64> {
        if let Self::Number(number) = self { Some(*number) } else { None }
    }

    /// A number that counts, and that an f64 represents exactly.
    fn whole(&self) -> Option<usize> {
        let number = self.number().filter(|n| n.fract() == 0.0 && (0.0..=9e15).contains(n))?;
        usize::try_from(number as u64).ok()
    }

    /// The elements of a list.
    fn list<T>(&self, of: impl Fn(&Self) -> Option<T>) -> Option<Vec<T>> {
        if let Self::List(list) = self { list.iter().map(of).collect() } else { None }
    }

    fn pair(&self) -> Option<(usize, usize)> {
        if let [first, second] = self.list(Self::whole)?[..] { Some((first, second)) } else { None }
    }

    /// Whether it counts as true: not false, zero or empty text.
    fn flag(&self) -> bool {
        match self {
            Self::Flag(flag) => *flag,
            Self::Number(number) => *number != 0.0 && !number.is_nan(),
            Self::Text(text) => !text.is_empty(),
            Self::List(_) | Self::Other => true,
        }
    }
}

/// Values with names.
pub trait Named {
    /// The value with this name, unless it is missing.
    fn get(&self, name: &str) -> Option<Value>;
}

/// The form of a parameter in languages with named parameters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// A number.
    Number,
    /// A truth value.
    Flag,
    /// Two whole numbers.
    Pair,
    /// A list of whole numbers.
    Numbers,
    /// A list of pairs of whole numbers.
    Pairs,
    /// One of these words.
    Words(&'static [&'static str]),
    /// `valid` or `same`, or a number for each of these sides.
    Sides(&'static [&'static str]),
    /// The name of a [`QuantFormat`].
    Format,
    /// The name of a [`DType`].
    DType,
    /// Several parameters, which have names of their own.
    Fields(&'static [Field]),
    /// Optional operands, which follow the others in this order.
    Operands(&'static [&'static str]),
}

/// A parameter with its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The name.
    pub name: &'static str,
    /// Its form.
    pub form: Form,
    /// Whether it may be omitted.
    pub optional: bool,
}

/// A type that is read from named values.
pub trait Parameter {
    /// The type that is read: the type itself, or the owner of the data that it borrows.
    type Value;

    /// Its form.
    const FORM: Form;

    /// Reads parameter `name` of operation `op`. Returns `None` if it is missing.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a value of another form.
    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self::Value>>;
}

/// Gives a value to an operation.
pub(crate) trait Lend<'a, T> {
    fn lend(&'a self) -> T;
}

impl<T: Clone> Lend<'_, T> for T {
    fn lend(&self) -> T {
        self.clone()
    }
}

impl<'a, T> Lend<'a, &'a [T]> for Vec<T> {
    fn lend(&'a self) -> &'a [T] {
        self
    }
}

/// Reads a value, which must be `expected`.
fn read<T>(
    from: &dyn Named,
    op: &'static str,
    name: &'static str,
    expected: &str,
    of: impl FnOnce(&Value) -> Option<T>,
) -> Result<Option<T>> {
    let Some(value) = from.get(name) else { return Ok(None) };
    let wrong = || Error::Parameter { op, reason: format!("expected {expected} for {name}, found {value}") };
    of(&value).map(Some).ok_or_else(wrong)
}

/// Reads one of `all`, which have names.
pub(crate) fn read_word<T: Copy>(
    from: &dyn Named,
    op: &'static str,
    name: &'static str,
    all: &[T],
    of: impl Fn(T) -> &'static str,
) -> Result<Option<T>> {
    let names: Vec<&str> = all.iter().map(|&one| of(one)).collect();
    read(from, op, name, &format!("one of {}", names.join(", ")), |value| {
        let Value::Text(text) = value else { return None };
        all.iter().copied().find(|&one| of(one) == text)
    })
}

/// Reads `valid`, `same`, or a number for each of these sides.
pub(crate) fn read_sides<T: Copy, const N: usize>(
    from: &dyn Named,
    op: &'static str,
    name: &'static str,
    [valid, same]: [T; 2],
    sides: &[&str; N],
    of: impl Fn([usize; N]) -> T,
) -> Result<Option<T>> {
    read(from, op, name, &format!("valid, same or [{}]", sides.join(", ")), |value| match value {
        Value::Text(text) if text == "valid" => Some(valid),
        Value::Text(text) if text == "same" => Some(same),
        _ => value.list(Value::whole)?.try_into().ok().map(&of),
    })
}

/// The error for a parameter that must not be missing.
pub(crate) fn missing(op: &'static str, name: &str) -> Error {
    Error::Parameter { op, reason: format!("{name} is missing") }
}

/// Implements [`Parameter`] for types that are one value.
macro_rules! values {
    ($($ty:ty = $value:ty, $form:ident, $expected:literal, $of:expr;)*) => {
        $(impl Parameter for $ty {
            type Value = $value;
            const FORM: Form = Form::$form;

            fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<$value>> {
                read(from, op, name, $expected, $of)
            }
        })*
    };
}

values! {
    f32 = Self, Number, "a number", |value| value.number().map(|number| number as f32);
    usize = Self, Number, "a whole number", Value::whole;
    bool = Self, Flag, "a truth value", |value| Some(value.flag());
    (usize, usize) = Self, Pair, "two whole numbers", Value::pair;
    &[usize] = Vec<usize>, Numbers, "a list of whole numbers", |value| value.list(Value::whole);
    &[(usize, usize)] = Vec<(usize, usize)>, Pairs, "a list of pairs of whole numbers", |value| value.list(Value::pair);
}

impl<T: Parameter> Parameter for Option<T> {
    type Value = Option<T::Value>;
    const FORM: Form = T::FORM;

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self::Value>> {
        Ok(T::read(from, op, name)?.map(Some))
    }
}

impl Parameter for QuantFormat {
    type Value = Self;
    const FORM: Form = Form::Format;

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self>> {
        read_word(from, op, name, &Self::ALL, Self::name)
    }
}

impl Parameter for DType {
    type Value = Self;
    const FORM: Form = Form::DType;

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self>> {
        read_word(from, op, name, Self::ALL, Self::name)
    }
}

/// Implements [`Parameter`] for an enum with `ALL` and `name`.
macro_rules! words {
    ($ty:ty) => {
        impl $crate::named::Parameter for $ty {
            type Value = Self;
            const FORM: $crate::named::Form = $crate::named::Form::Words(&{
                let mut words = [""; <$ty>::ALL.len()];
                let mut i = 0;
                while i < words.len() {
                    words[i] = <$ty>::ALL[i].name();
                    i += 1;
                }
                words
            });

            fn read(
                from: &dyn $crate::named::Named,
                op: &'static str,
                name: &'static str,
            ) -> $crate::Result<Option<Self>> {
                $crate::named::read_word(from, op, name, Self::ALL, Self::name)
            }
        }
    };
}

/// The fields of parameters.
macro_rules! fields {
    ($($name:ident: $ty:ty $(as $form:ty)? $(= $default:expr)?),*) => {
        &[$($crate::named::Field {
            name: stringify!($name),
            form: <$crate::named::read_as!($ty $(, $form)?) as $crate::named::Parameter>::FORM,
            optional: $crate::named::is_given!($($default)?),
        }),*]
    };
}

/// Whether there is a default value.
macro_rules! is_given {
    () => {
        false
    };
    ($default:expr) => {
        true
    };
}

/// The type that reads a parameter.
macro_rules! read_as {
    ($ty:ty) => {
        $ty
    };
    ($ty:ty, $form:ty) => {
        $form
    };
}

/// Evaluates an expression with parameters that are read from named values, for operation `$op`.
macro_rules! with_parameters {
    ($from:ident, $op:expr, ($($name:ident: $ty:ty $(as $form:ty)? $(= $default:expr)?),*), $value:expr) => {{
        let _ = $from;
        $(let $name = <$crate::named::read_as!($ty $(, $form)?) as $crate::named::Parameter>::read($from, $op, stringify!($name))?;)*
        $(let $name: $ty = match &$name {
            Some(given) => $crate::named::Lend::lend(given),
            None => $crate::named::or_missing!($op, $name $(, $default)?),
        };)*
        $value
    }};
}

/// The default value of a parameter, or an error.
macro_rules! or_missing {
    ($op:expr, $name:ident) => {
        return Err($crate::named::missing($op, stringify!($name)))
    };
    ($op:expr, $name:ident, $default:expr) => {
        $default
    };
}

/// Implements [`Parameter`] for a struct of options: its named parameters with their default values, and how it is made of them.
macro_rules! options {
    ($ty:ty, $parameters:tt, $value:expr) => {
        impl $crate::named::Parameter for $ty {
            type Value = Self;
            const FORM: $crate::named::Form = $crate::named::Form::Fields($crate::named::fields! $parameters);

            fn read(
                from: &dyn $crate::named::Named,
                op: &'static str,
                _: &'static str,
            ) -> $crate::Result<Option<Self>> {
                Ok(Some($crate::named::with_parameters!(from, op, $parameters, $value)))
            }
        }
    };
}

pub(crate) use {fields, is_given, options, or_missing, read_as, with_parameters, words};

// The end of the dimension if `end` is missing.
options!(Range<usize>, (start: usize = 0, end: usize = usize::MAX), start..end);
