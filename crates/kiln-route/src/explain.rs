//! Decisions as tables for people.

use std::fmt;

use kiln_core::TensorType;
use kiln_core::op::{Cost, Op};

use crate::problem::Problem;
use crate::router::Decision;

/// A time in the unit that suits it, with three digits.
pub(crate) struct Seconds(pub(crate) f64);

impl fmt::Display for Seconds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (value, unit) = match self.0 {
            s if s < 1e-6 => (s * 1e9, "ns"),
            s if s < 1e-3 => (s * 1e6, "µs"),
            s if s < 1.0 => (s * 1e3, "ms"),
            s => (s, "s"),
        };
        let digits = if value < 10.0 {
            2
        } else if value < 100.0 {
            1
        } else {
            0
        };
        f.pad(&format!("{value:.digits$} {unit}"))
    }
}

/// A count in the unit that suits it.
struct Count(u64, &'static str);

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

/// A decision and everything that led to it; displays as a table of the predicted time on each place.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// What was asked: the operation and the shapes.
    pub question: String,
    /// The work it asks for.
    pub cost: Cost,
    /// Name and predicted seconds of each place, fastest first.
    pub predictions: Vec<(String, f64)>,
    /// The name of the chosen place.
    pub chosen: String,
    /// Whether another place is predicted to take nearly as long.
    pub unsure: bool,
    /// The reason in a sentence.
    pub why: String,
}

impl Explanation {
    /// Puts the decision about an operation into words.
    pub fn operation(op: &Op, inputs: &[TensorType], problem: &Problem, decision: &Decision<'_>) -> Self {
        use fmt::Write;
        let mut question = op.name().to_owned();
        for input in inputs {
            // Writing to a string does not fail.
            let _ = write!(question, " {}", input.shape);
        }
        Self::new(question, problem, decision)
    }

    /// Puts a decision into words.
    pub fn new(question: String, problem: &Problem, decision: &Decision<'_>) -> Self {
        let mut predictions: Vec<_> = decision.predictions().map(|p| (p.place.name.clone(), p.seconds)).collect();
        predictions.sort_by(|a, b| a.1.total_cmp(&b.1));
        Self {
            question,
            cost: problem.cost(),
            predictions,
            chosen: decision.place().name.clone(),
            unsure: decision.is_unsure(),
            why: decision.why().to_string(),
        }
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}, {}", self.question, Count(self.cost.flops, "FLOP"), Count(self.cost.bytes(), "B"))?;
        let width = self.predictions.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("place".len());
        writeln!(f, "    {:width$}  {:>9}  {:>8}", "place", "predicted", "relative")?;
        let least = self.predictions.first().map_or(1.0, |p| p.1).max(f64::MIN_POSITIVE);
        for (name, seconds) in &self.predictions {
            let mark = if *name == self.chosen { "->" } else { "" };
            writeln!(f, " {mark:2} {name:width$}  {:>9}  {:>7.2}x", Seconds(*seconds), seconds / least)?;
        }
        write!(f, " {}", self.why)?;
        if self.unsure { write!(f, " (unsure: the next place is within 10 %)") } else { Ok(()) }
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
        assert_eq!(Count(999, "B").to_string(), "999 B");
        assert_eq!(Count(2_000_000, "FLOP").to_string(), "2.0 MFLOP");
    }
}
