use std::fmt;

/// The maximum error of a result relative to exact arithmetic. `u` is 2^-24, the unit roundoff of f32.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bound {
    /// The correctly rounded result, bit for bit. Any NaN matches a NaN. If both signs of a zero result are exact, the
    /// reference defines the sign.
    Exact,
    /// At most this many units in the last place of the exact result; subnormal results count in steps of 2^-149.
    Ulp(f64),
    /// At most this many `u` times the magnitude that the operation defines: the sum of the absolute values of the
    /// added terms, or the largest of the combined operands.
    Magnitude(f64),
}

impl fmt::Display for Bound {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Exact => f.write_str("exact"),
            Self::Ulp(n) => write!(f, "{n} ULP"),
            // Rounds up, so that the printed bound is never below the real one.
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
    /// The results for NaN, infinities, -0, denormals and empty inputs, in words, for docs/numerics.md.
    pub special: &'static str,
}
