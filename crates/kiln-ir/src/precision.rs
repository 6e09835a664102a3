//! The precision with which products read their operands.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// The precision with which products of matrices, of floats and with quantised weights, may read their operands: `matmul`, `matvec`,
/// `quant_matmul`. Sums are always in f32.
///
/// A device rounds operands only where that is faster there, and may keep more than is asked. Results stay deterministic. CUDA
/// has tensor cores for every precision, CPUs have products of bytes for [`Precision::Int8`], and GPUs through wgpu have cooperative
/// matrices of f16 for products of many rows with quantised weights, which keep the bounds of [`Precision::Tf32`] and all below it;
/// everything else keeps the contract.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// Keeps the contract of each operation: the bounds and special values of the table of numerics.
    #[default]
    Contract,
    /// Splits f32 into two TF32 parts and adds the three largest products: an error of at most `56 + k / 128` units of
    /// `u Σ |terms|`, and NaN for products with an infinity or with a number that TF32 rounds to one. On Hopper; other
    /// devices keep the contract.
    Tf32x3,
    /// Rounds f32 to TF32, its upper 19 bits, towards zero: an error of at most `2¹⁵ + k / 4 + 16` units of `u Σ
    /// |terms|`.
    Tf32,
    /// Rounds f32 and quantised weights to the nearest bf16, with 8 significant bits: an error of at most `2¹⁶ + k / 8
    /// + 144` units of `u Σ |terms|`. A number beyond the largest bf16 (3.39e38) becomes an infinity.
    Bf16,
    /// Rounds rows that are multiplied with quantised weights to 8 bits for each 32 neighbours, `x ≈ max |x| / 127 · integer`,
    /// or as [`Precision::Bf16`], which is as close: an error of at most `2¹⁶ + 2¹⁰ + k / 8` units of `u Σ |terms|`, with the
    /// terms of the contract. CPUs round any number of rows (for Q2_K and Q3_K 12 and more on x86-64, none elsewhere), except in
    /// WebAssembly. On x86-64 a row has other bits in a product of 12 and more rows (32 for Q6_K), which adds in another order.
    /// Products of floats are those of [`Precision::Bf16`].
    Int8,
}

impl Precision {
    /// Every precision, the highest first.
    pub const ALL: [Self; 5] = [Self::Contract, Self::Tf32x3, Self::Tf32, Self::Bf16, Self::Int8];

    /// The name, as it is parsed: `contract`, `tf32x3`, `tf32`, `bf16`, `int8`.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Contract => "contract",
            Self::Tf32x3 => "tf32x3",
            Self::Tf32 => "tf32",
            Self::Bf16 => "bf16",
            Self::Int8 => "int8",
        }
    }
}

impl fmt::Display for Precision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Precision {
    type Err = Error;

    /// # Errors
    /// [`Error::Parameter`] for a name that no value in [`Precision::ALL`] has.
    fn from_str(name: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|precision| precision.name() == name).ok_or_else(|| {
            let names: Vec<&str> = Self::ALL.into_iter().map(Self::name).collect();
            Error::Parameter { op: "precision", reason: format!("{name:?} is unknown; {} are known", names.join(", ")) }
        })
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn names_are_parsed() {
        for precision in Precision::ALL {
            assert_eq!(precision.to_string().parse::<Precision>().unwrap(), precision);
        }
        let wrong = "fp8".parse::<Precision>().unwrap_err();
        assert!(matches!(&wrong, Error::Parameter { reason, .. } if reason.contains("tf32x3")), "{wrong}");
    }
}
