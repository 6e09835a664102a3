//! Calibration: measures a machine, and evaluates the router's decisions on it.

#[cfg(not(browser_gpu))]
mod account;
#[cfg(target_arch = "wasm32")]
pub(crate) mod brief;
mod fit;
#[cfg(not(browser_gpu))]
pub(crate) mod full;
#[cfg(not(browser_gpu))]
mod gpu;
#[cfg(not(browser_gpu))]
pub(crate) mod graphs;
pub mod grid;
#[cfg(not(browser_gpu))]
mod measure;
#[cfg(not(browser_gpu))]
pub mod regret;
#[cfg(not(target_arch = "wasm32"))]
mod shared;

use std::path::PathBuf;
use std::time::Duration;

#[cfg(not(browser_gpu))]
use kiln_ir::Error;
use kiln_ir::Result;
use kiln_route::Machine;
#[cfg(not(browser_gpu))]
use kiln_route::ProfileProblem;
#[cfg(not(browser_gpu))]
pub use measure::Progress;

use crate::Absent;

/// The error for a measurement that cannot make a profile.
#[cfg(not(browser_gpu))]
pub(crate) fn unusable(problem: ProfileProblem) -> Error {
    Error::Unavailable { what: "a usable measurement".into(), reason: problem.to_string() }
}

/// The time that a calibration may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Effort {
    /// About half a minute, or a minute with a GPU. The decisions are good enough for most programs.
    #[default]
    Quick,
    /// About four times as long, for machines that are always busy.
    Thorough,
}

/// The result of a calibration.
#[derive(Debug, Clone, PartialEq)]
pub struct CalibrationReport {
    /// The measured machine, with the logical processors that the process may run on.
    pub machine: Machine,
    /// The time it took.
    pub took: Duration,
    /// The number of measured classes: operations, and their kinds of shape.
    pub classes: usize,
    /// The number of measured times.
    pub measurements: usize,
    /// GPUs that failed while they were measured. The profile does not contain them.
    pub left_out: Vec<Absent>,
    /// Where the profile was written, or why it could not be; `None` for an engine without a file.
    pub saved: Option<Result<PathBuf, String>>,
}

impl std::fmt::Display for CalibrationReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { machine, took, classes, measurements, left_out, saved } = self;
        write!(f, "{measurements} measurements of {classes} classes in {:.1} s", took.as_secs_f64())?;
        match saved {
            None => {}
            Some(Ok(path)) => write!(f, ", written to {}", path.display())?,
            Some(Err(reason)) => write!(f, ", not written: {reason}")?,
        }
        left_out.iter().try_for_each(|gpu| write!(f, "; without {gpu}"))?;
        write!(f, "; on {machine}")
    }
}

#[cfg(test)]
mod tests {
    use kiln_route::{Backend, Place};

    /// One thread of two instruction sets, and two threads of the better one.
    pub(super) fn places() -> Vec<Place> {
        let place = |name: &str, threads| Place::cpu(name, Backend::Simd, 8, threads);
        vec![place("avx2 x1", 1), place("avx512 x1", 1), place("avx512 x2", 2)]
    }
}
