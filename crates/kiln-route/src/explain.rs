//! Decisions as tables for people.

use std::fmt;

use kiln_ir::TensorType;
use kiln_ir::op::{Cost, Op};

use crate::place::{Memory, Place};
use crate::placement::{Placement, Segment};
use crate::problem::Problem;
use crate::router::Decision;
use crate::units::{Count, Seconds};

/// A decision and everything that led to it; displays as a table of the predicted time on each place.
#[derive(Debug, Clone, PartialEq)]
pub struct Explanation {
    /// The question: the operation and the shapes.
    pub question: String,
    /// The machine that the predictions are about, with the logical processors that the process may run on.
    pub machine: String,
    /// The work of the operation or the graph.
    pub cost: Cost,
    /// Name and predicted seconds of each place, fastest first.
    pub predictions: Vec<(String, f64)>,
    /// The name of the chosen place.
    pub chosen: String,
    /// Whether another place is predicted to take nearly as long.
    pub unsure: bool,
    /// The reason in a sentence.
    pub why: String,
    /// The work of several devices: segments of a graph in the order in which they are submitted, or parts of an operation; empty if
    /// one device runs everything.
    pub segments: Vec<ExplainedSegment>,
}

/// Steps of a graph that run on one device without a pause, or a part of an operation.
#[derive(Debug, Clone, PartialEq)]
pub struct ExplainedSegment {
    /// The name of the place.
    pub place: String,
    /// Number of steps.
    pub steps: usize,
    /// Predicted seconds from the start of the graph to its start.
    pub start: f64,
    /// Predicted seconds from the start of the graph to its end. It overlaps with a segment that starts before.
    pub finish: f64,
}

impl ExplainedSegment {
    fn of(placement: &Placement, places: &[Place]) -> Vec<Self> {
        let segment = |segment: &Segment| Self {
            place: places.get(segment.place).map_or(String::new(), |place| place.name.clone()),
            steps: segment.steps.len(),
            start: segment.start,
            finish: segment.finish,
        };
        placement.segments.iter().map(segment).collect()
    }
}

impl Explanation {
    /// Puts the decision about an operation into words.
    pub fn operation(op: &Op, inputs: &[TensorType], problem: &Problem, decision: &Decision<'_>) -> Self {
        use fmt::Write;
        let mut question = op.name().to_owned();
        for input in inputs {
            // Writing to a string cannot fail.
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
            machine: decision.machine().to_string(),
            cost: problem.cost(),
            predictions,
            chosen: decision.place().name.clone(),
            unsure: decision.is_unsure(),
            why: decision.why().to_string(),
            segments: Vec::new(),
        }
    }

    /// Adds the parts that several devices run at once, and the reason.
    #[must_use]
    pub fn shared(self, segments: Vec<ExplainedSegment>, why: String) -> Self {
        Self { segments, why, unsure: false, ..self }
    }

    /// Adds the segments of a graph whose steps a program has pinned.
    #[must_use]
    pub fn pinned(mut self, placement: &Placement, places: &[Place]) -> Self {
        let name = |place: usize| places.get(place).map_or(String::new(), |place| place.name.clone());
        self.chosen = placement.segments.first().map_or(self.chosen, |first| name(first.place));
        self.segments = ExplainedSegment::of(placement, places);
        self.unsure = false;
        let on_host = places.get(placement.alone.0).is_some_and(|place| place.memory == Memory::HOST);
        let alone = if on_host { "the CPU".to_owned() } else { name(placement.alone.0) };
        let alone_seconds = Seconds(placement.alone.1);
        let seconds = Seconds(placement.seconds);
        self.why =
            format!("its steps are pinned, and are predicted to take {seconds}; {alone} alone takes {alone_seconds}");
        self
    }

    /// Adds the segments of a graph whose steps were placed one by one.
    #[must_use]
    pub fn placed(mut self, placement: &Placement, places: &[Place]) -> Self {
        let name = |place: usize| places.get(place).map_or(String::new(), |place| place.name.clone());
        let chosen = placement.segments.first().map_or(self.chosen.clone(), |first| name(first.place));
        if chosen != self.chosen {
            let seconds = Seconds(placement.seconds);
            self.why = format!("{chosen} is predicted to take {seconds}; on a CPU each step is decided by itself");
            self.chosen = chosen;
        }
        if placement.segments.len() < 2 {
            return self;
        }
        self.segments = ExplainedSegment::of(placement, places);
        self.unsure = false;
        let (alone, alone_seconds) = (name(placement.alone.0), placement.alone.1);
        self.why = match alone_seconds < f64::INFINITY {
            true => format!(
                "several devices are predicted to take {} where {alone} alone takes {}",
                Seconds(placement.seconds),
                Seconds(alone_seconds)
            ),
            false => {
                format!("no place has all kernels; together they are predicted to take {}", Seconds(placement.seconds))
            }
        };
        self
    }
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}: {}, {}", self.question, Count(self.cost.flops, "FLOP"), Count(self.cost.bytes(), "B"))?;
        let width = self.predictions.iter().map(|(name, _)| name.len()).max().unwrap_or(0).max("place".len());
        writeln!(f, "    {:width$}  {:>9}  {:>8}", "place", "predicted", "relative")?;
        let least = self.predictions.first().map_or(1.0, |p| p.1).max(f64::MIN_POSITIVE);
        for (name, seconds) in &self.predictions {
            let mark = if *name == self.chosen && self.segments.is_empty() { "->" } else { "" };
            writeln!(f, " {mark:2} {name:width$}  {:>9}  {:>7.2}x", Seconds(*seconds), seconds / least)?;
        }
        for segment in &self.segments {
            let (start, finish) = (Seconds(segment.start), Seconds(segment.finish));
            writeln!(f, " -> {:width$}  {} steps from {start} to {finish}", segment.place, segment.steps)?;
        }
        write!(f, " {}", self.why)?;
        if self.unsure {
            f.write_str(" (unsure: the next place is within 10 %)")?;
        }
        write!(f, "\n on {}", self.machine)
    }
}
