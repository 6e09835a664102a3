//! Names for the values of enumerations that kernels are compiled for, generated from the tables of kiln-ir.
//!
//! A source compares a constant such as `REDUCTION` with names such as `REDUCE_SUM`, never with a number. The text of a kernel
//! declares the names and the value that it is compiled for.

use std::fmt::Write as _;

use kiln_ir::QuantFormat;
use kiln_ir::op::Reduction;

/// An enumeration that kernels are compiled for.
pub trait Symbolic: Copy + PartialEq + 'static {
    /// The constant that holds the value in sources.
    const CONSTANT: &'static str;
    /// Every value. Its place here is its number.
    const ALL: &'static [Self];

    /// The name of the value in sources.
    fn symbol(self) -> String;
}

impl Symbolic for Reduction {
    const CONSTANT: &'static str = "REDUCTION";
    const ALL: &'static [Self] = Self::ALL;

    fn symbol(self) -> String {
        format!("REDUCE_{}", self.name().to_uppercase())
    }
}

impl Symbolic for QuantFormat {
    const CONSTANT: &'static str = "FORMAT";
    const ALL: &'static [Self] = &Self::ALL;

    fn symbol(self) -> String {
        self.name().to_uppercase()
    }
}

/// The constant that compiles a kernel for a value.
pub fn constant<T: Symbolic>(value: T) -> (&'static str, u32) {
    let number = T::ALL.iter().zip(0..).find(|(other, _)| **other == value).map_or(u32::MAX, |(_, number)| number);
    (T::CONSTANT, number)
}

/// The names of the values that a constant can have, in the order of their numbers, if they have names.
pub(crate) fn symbols(constant: &str) -> Option<Vec<String>> {
    fn of<T: Symbolic>(constant: &str) -> Option<Vec<String>> {
        (constant == T::CONSTANT).then(|| T::ALL.iter().map(|value| value.symbol()).collect())
    }
    of::<Reduction>(constant).or_else(|| of::<QuantFormat>(constant))
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
        let Some(symbols) = symbols(constant) else { continue };
        for (number, symbol) in symbols.iter().enumerate() {
            let _ = writeln!(out, "const {symbol}: u32 = {number}u;");
        }
        let name = symbols.get(value as usize).map_or("none", String::as_str);
        let _ = writeln!(out, "const {constant}: u32 = {name};");
    }
}
