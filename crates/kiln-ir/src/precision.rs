//! With what precision products read their operands.

use std::fmt;
use std::str::FromStr;

use crate::{Error, Result};

/// With what precision the products of matrices, of floats and with quantised weights, may read their operands: `matmul`, `matvec`,
/// `quant_matmul`. Sums are always in f32.
///
/// A device rounds operands only where that is faster there, and may keep more than is asked. Results stay deterministic. The CPU
/// and GPUs through wgpu keep the contract at every precision; CUDA has tensor cores for lower ones.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Precision {
    /// As the contract of each operation says: the bounds and special values of the table of numerics.
    #[default]
    Contract,
    /// f32 in two parts in TF32, whose three greater products are taken: an error of at most `56 + k / 128` units of `u Σ |terms|`,
    /// and NaN where an infinity, or a number that TF32 rounds to one, is multiplied. On Hopper; elsewhere the contract is kept.
    Tf32x3,
    /// f32 in TF32, its upper 19 bits, rounded towards zero: an error of at most `2¹⁵ + k / 4 + 16` units of `u Σ |terms|`.
    Tf32,
    /// f32, and weights in blocks, to the nearest bf16, 8 significant bits: an error of at most `2¹⁶ + k / 8 + 144` units of
    /// `u Σ |terms|`. A number beyond the largest of bf16 (3.39e38) is an infinity.
    Bf16,
    /// Rows that meet weights in blocks in 8 bits a block, `x ≈ max |x| / 127 · integer`, or as [`Precision::Bf16`], which is as close:
    /// an error of at most `2¹⁶ + k / 8 + 144` units of `u Σ |terms|`, where `Σ |terms|` has the largest |x| of a block for each x of
    /// it. Products of floats are those of [`Precision::Bf16`].
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
    /// [`Error::Parameter`] for a name that no element of [`Precision::ALL`] has.
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
