//! Times and counts for people.

use std::fmt;

/// Formats a time in a suitable unit with three digits.
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            s if s < 1e-6 => (s * 1e9, "ns"),
            s if s < 1e-3 => (s * 1e6, "µs"),
            s if s < 1.0 => (s * 1e3, "ms"),
            s => (s, "s"),
        };
        f.pad(&format!("{} {unit}", ThreeDigits(value)))
    }
}

/// Formats a number of at least one with three digits, or with all digits before the point if these are more.
pub(crate) struct ThreeDigits(pub(crate) f64);

impl fmt::Display for ThreeDigits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let digits = match self.0 {
            x if x < 10.0 => 2,
            x if x < 100.0 => 1,
            _ => 0,
        };
        write!(f, "{:.digits$}", self.0)
    }
}

/// Formats a count in a suitable unit.
pub(crate) struct Count(pub(crate) u64, pub(crate) &'static str);

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0 as f64;
        match self.0 {
            0..1_000 => write!(f, "{} {}", self.0, self.1),
            1_000..1_000_000 => write!(f, "{:.1} k{}", n / 1e3, self.1),
            1_000_000..1_000_000_000 => write!(f, "{:.1} M{}", n / 1e6, self.1),
            _ => write!(f, "{:.1} G{}", n / 1e9, self.1),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn units_suit_the_value() {
        let shown = |s: f64| Seconds(s).to_string();
        assert_eq!(shown(3.14159e-8), "31.4 ns");
        assert_eq!(shown(1.5e-5), "15.0 µs");
        assert_eq!(shown(0.25), "250 ms");
        assert_eq!(shown(2.0), "2.00 s");
        assert_eq!(format!("[{:>9}]", Seconds(1e-9)), "[  1.00 ns]");
        assert_eq!([1.953, 12.34, 3321.73].map(|x| ThreeDigits(x).to_string()), ["1.95", "12.3", "3322"]);
        assert_eq!(Count(999, "B").to_string(), "999 B");
        assert_eq!(Count(2_000_000, "FLOP").to_string(), "2.0 MFLOP");
    }
}
