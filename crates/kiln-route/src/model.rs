//! The time that work takes on places.

use kiln_ir::op::total_bytes;

use crate::link::Link;
use crate::place::{Memory, Place};
use crate::problem::{Problem, Residency};

/// What a prediction rests on.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Between two measurements of the class.
    Interpolated,
    /// Below the smallest measurement, whose time is used: it is nearly all overhead there.
    Below,
    /// Above the largest measurement, whose rate is used.
    Beyond,
    /// Measurements of another shape kind of the same operation.
    Related,
    /// The formula with the constants of the placement.
    Formula,
    /// A graph: the sum over its operations.
    Sum,
}

/// Times of a class as a function of work, for all placements at once.
///
/// Between two measured amounts of work, time is interpolated linearly. That is exact for work within one level of the
/// memory, where time is `c0 + work / rate`. Below the first measurement its time is used, because the remaining time
/// is `c0`; beyond the last measurement time grows in proportion to the work, at the last rate.
pub(crate) struct Segment<'a> {
    lower: &'a [f64],
    upper: &'a [f64],
    fraction: f64,
    factor: f64,
    pub(crate) basis: Basis,
}

impl<'a> Segment<'a> {
    /// The segment of the curve for an amount of work; `None` without measurements.
    pub(crate) fn find(work: &[f64], seconds: &'a [Vec<f64>], at: f64) -> Option<Self> {
        let first = seconds.first()?;
        let last = seconds.last()?;
        let above = work.iter().position(|&w| w > at);
        Some(match above {
            Some(0) => Self { lower: first, upper: first, fraction: 0.0, factor: 1.0, basis: Basis::Below },
            Some(i) => {
                let fraction = (at - work[i - 1]) / (work[i] - work[i - 1]);
                let basis = Basis::Interpolated;
                Self { lower: &seconds[i - 1], upper: &seconds[i], fraction, factor: 1.0, basis }
            }
            None => {
                let end = work.last().copied().unwrap_or(at).max(f64::MIN_POSITIVE);
                let basis = if at > end { Basis::Beyond } else { Basis::Interpolated };
                Self { lower: last, upper: last, fraction: 0.0, factor: at.max(end) / end, basis }
            }
        })
    }

    pub(crate) fn seconds(&self, place: usize) -> f64 {
        let (lower, upper) = (self.lower.get(place), self.upper.get(place));
        let (Some(lower), Some(upper)) = (lower, upper) else { return f64::INFINITY };
        (lower + self.fraction * (upper - lower)) * self.factor
    }
}

/// The cost of a problem on placements in addition to its operations: launch, compilation, and transfers of operands
/// and result.
pub(crate) struct Edges<'a> {
    links: &'a [Option<Link>],
    problem: &'a Problem,
    residency: &'a Residency,
    /// Bytes of all operands if they are on the host and the result is wanted there.
    on_host: Option<u64>,
}

impl<'a> Edges<'a> {
    pub(crate) fn new(links: &'a [Option<Link>], problem: &'a Problem, residency: &'a Residency) -> Self {
        let on_host = residency.is_on_host().then(|| total_bytes(problem.operands()));
        Self { links, problem, residency, on_host }
    }

    /// Seconds on a placement; infinite if it cannot run the problem.
    #[inline]
    pub(crate) fn of(&self, index: usize, place: &Place) -> f64 {
        let Self { links, problem, residency, on_host } = *self;
        if residency.is_barred(index) {
            return f64::INFINITY;
        }
        let mut seconds = place.launch;
        if residency.is_cold(index) {
            seconds += place.compile;
        }
        if let Some(bytes) = on_host {
            if place.memory == Memory::HOST {
                return seconds;
            }
            // One submission uploads the operands of a call on slices and downloads its results.
            if let Some(path) = link(links, place.memory).map(|link| &link.call).filter(|_| problem.is_call()) {
                return seconds + path.upload.seconds(bytes) + path.download.seconds(problem.result_bytes());
            }
        }
        for (operand, bytes) in problem.operands().enumerate() {
            if !residency.holds(place.memory, operand) {
                seconds += transfer(links, residency.source(operand), place.memory, bytes);
            }
        }
        if !residency.result_stays() {
            seconds += transfer(links, place.memory, Memory::HOST, problem.result_bytes());
        }
        seconds
    }
}

fn link(links: &[Option<Link>], memory: Memory) -> Option<&Link> {
    links.get(memory.index()).and_then(Option::as_ref)
}

/// Seconds to copy a tensor from one memory to another, through the host.
pub(crate) fn transfer(links: &[Option<Link>], from: Memory, to: Memory, bytes: u64) -> f64 {
    if from == to {
        return 0.0;
    }
    let down = link(links, from).map_or(0.0, |link| link.tensor.download.seconds(bytes));
    down + link(links, to).map_or(0.0, |link| link.tensor.upload.seconds(bytes))
}
