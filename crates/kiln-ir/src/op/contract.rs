use std::fmt;

/// How far a result may be from what exact arithmetic gives. `u` is 2^-24, the unit roundoff of f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The correctly rounded result, bit for bit (any NaN for a NaN; where the exact result is the same zero of two
    /// signs, the reference says which).
    Exact,
    /// At most this many units in the last place of the exact result; subnormal results count in steps of 2^-149.
    Ulp(f64),
    /// At most this many `u` times the magnitude that the operation names: the sum of the absolute values of the
    /// terms that were added, or the largest of the operands that were combined.
    Magnitude(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Ulp(n) => write!(f, "{n} ULP"),
            // Not one below what is meant.
            Self::Magnitude(n) => {
                write!(f, "{} u Σ|terms|", if (n * 100.0).fract() == 0.0 { *n } else { (n * 10.0).ceil() / 10.0 })
            }
        }
    }
}

/// The numerics contract of an operation, the same on every backend.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Contract {
    /// The error bound.
    pub bound: Bound,
    /// What NaN, infinities, -0, denormals and empty inputs give, in words, for docs/numerics.md.
    pub special: &'static str,
}
