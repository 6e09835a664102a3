//! Decisions as tables for people.

use std::fmt;

use kiln_ir::TensorType;
use kiln_ir::op::{Cost, Op};

use crate::problem::Problem;
use crate::router::Decision;
use crate::units::{Count, Seconds};

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
