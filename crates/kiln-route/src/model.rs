//! The time that work takes on places.

use crate::link::Link;
use crate::place::{Memory, Place};
use crate::problem::{Problem, Residency};

/// The basis of a prediction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Basis {
    /// Between two measurements of the class.
    Interpolated,
    /// Below the smallest measurement, whose time is used: it is nearly all overhead there.
    Below,
    /// Above the largest measurement, whose rate is used.
    Beyond,
    /// Measurements of the class with another precision of products.
    OtherPrecision,
    /// Measurements of another shape kind of the same operation.
    Related,
    /// The formula with the constants of the placement.
    Formula,
    /// A graph: the sum over its operations.
    Sum,
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
        let on_host = residency.is_on_host().then(|| problem.operand_bytes());
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
            if let Some(link) = link(links, place.memory).filter(|_| problem.is_call()) {
                return seconds + link.call_seconds(problem.is_elementwise(), [bytes, problem.result_bytes()]);
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
