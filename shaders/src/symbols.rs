//! Names for the values of enumerations that kernels are compiled for, generated from the tables of kiln-ir.
//!
//! A source compares a constant such as `REDUCTION` with names such as `REDUCE_SUM`, never with a number. The text of a kernel
//! declares the names and the value that it is compiled for.

use std::fmt::Write as _;

use kiln_ir::op::{Comparison, ElementwiseKind, IntegerFunction, Reduction};
use kiln_ir::{DType, QuantFormat};

/// An enumeration that kernels are compiled for.
pub trait Symbolic: Copy + PartialEq + 'static {
    /// The constants that hold a value in sources.
    const CONSTANTS: &'static [&'static str];
    /// Every value. Its place here is its number.
    const ALL: &'static [Self];

    /// Whether texts declare the names of all values, and the constant, as numbers. Words of WGSL cannot be declared.
    const DECLARED: bool = true;

    /// The name of the value in sources.
    fn symbol(self) -> String;
}

/// Types of single elements, by their own names.
impl Symbolic for DType {
    const CONSTANTS: &'static [&'static str] = &["STORED", "STORED_A", "STORED_B", "FROM_TYPE", "TO_TYPE"];
    const ALL: &'static [Self] = Self::ALL;
    const DECLARED: bool = false;

    fn symbol(self) -> String {
        self.name().to_owned()
    }
}

impl Symbolic for Reduction {
    const CONSTANTS: &'static [&'static str] = &["REDUCTION"];
    const ALL: &'static [Self] = Self::ALL;

    fn symbol(self) -> String {
        format!("REDUCE_{}", self.name().to_uppercase())
    }
}

impl Symbolic for Comparison {
    const CONSTANTS: &'static [&'static str] = &["COMPARISON"];
    const ALL: &'static [Self] = Self::ALL;

    fn symbol(self) -> String {
        format!("COMPARE_{}", self.name().to_uppercase())
    }
}

impl Symbolic for IntegerFunction {
    const CONSTANTS: &'static [&'static str] = &["FUNCTION"];
    const ALL: &'static [Self] = Self::ALL;

    fn symbol(self) -> String {
        format!("INTEGER_{}", self.name().to_uppercase())
    }
}

/// Gates, by the names of their functions.
impl Symbolic for ElementwiseKind {
    const CONSTANTS: &'static [&'static str] = &["GATE"];
    const ALL: &'static [Self] = Self::GATES;
    const DECLARED: bool = false;

    fn symbol(self) -> String {
        self.name().to_owned()
    }
}

impl Symbolic for QuantFormat {
    const CONSTANTS: &'static [&'static str] = &["FORMAT"];
    const ALL: &'static [Self] = &Self::ALL;

    fn symbol(self) -> String {
        self.name().to_uppercase()
    }
}

/// The number of a value in sources.
pub fn number<T: Symbolic>(value: T) -> u32 {
    T::ALL.iter().zip(0..).find(|(other, _)| **other == value).map_or(u32::MAX, |(_, number)| number)
}

/// The constant that compiles a kernel for a value: the first one that values of its type have.
pub fn constant<T: Symbolic>(value: T) -> (&'static str, u32) {
    (T::CONSTANTS[0], number(value))
}

/// The names of the values that a constant can have, in the order of their numbers, if they have names.
pub(crate) fn symbols(constant: &str) -> Option<Vec<String>> {
    fn of<T: Symbolic>(constant: &str) -> Option<Vec<String>> {
        T::CONSTANTS.contains(&constant).then(|| T::ALL.iter().map(|value| value.symbol()).collect())
    }
    of::<Reduction>(constant)
        .or_else(|| of::<Comparison>(constant))
        .or_else(|| of::<IntegerFunction>(constant))
        .or_else(|| of::<ElementwiseKind>(constant))
        .or_else(|| of::<QuantFormat>(constant))
        .or_else(|| of::<DType>(constant))
}

/// A value of a constant as text: its name if it is an enumeration, otherwise the number.
pub(crate) fn text(constant: &str, value: u32) -> String {
    let symbol = symbols(constant).and_then(|symbols| symbols.into_iter().nth(value as usize));
    symbol.unwrap_or_else(|| value.to_string())
}

/// Whether texts declare a constant and the names of its values.
fn is_declared(constant: &str) -> bool {
    fn of<T: Symbolic>(constant: &str) -> bool {
        T::DECLARED && T::CONSTANTS.contains(&constant)
    }
    of::<Reduction>(constant)
        || of::<Comparison>(constant)
        || of::<IntegerFunction>(constant)
        || of::<ElementwiseKind>(constant)
        || of::<QuantFormat>(constant)
        || of::<DType>(constant)
}

/// The value that a constant is compared with: by its name if it is an enumeration, otherwise a number.
pub(crate) fn value(constant: &str, text: &str) -> Option<u32> {
    match symbols(constant) {
        Some(symbols) => symbols.iter().zip(0..).find(|(symbol, _)| *symbol == text).map(|(_, number)| number),
        None => text.parse().ok(),
    }
}

/// Declares the names of the values of each constant that is an enumeration, and its own value.
pub(crate) fn declarations(constants: &[(&str, u32)], out: &mut String) {
    for &(constant, value) in constants {
        let Some(symbols) = symbols(constant).filter(|_| is_declared(constant)) else { continue };
        for (number, symbol) in symbols.iter().enumerate() {
            let _ = writeln!(out, "const {symbol}: u32 = {number}u;");
        }
        let name = symbols.get(value as usize).map_or("none", String::as_str);
        let _ = writeln!(out, "const {constant}: u32 = {name};");
    }
}
