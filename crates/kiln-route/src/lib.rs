#![doc = include_str!("../README.md")]
//!
//! | module | what it holds |
//! |---|---|
//! | `selector` | [`BackendSelector`]: static rules |
//! | `place`, `link`, `class` | [`Place`], [`Memory`], [`Link`]: the devices of a machine; [`Class`]: operations with one measured curve |
//! | `profile`, `history`, `json` | [`Profile`]: the measurements as a file; [`History`]: times observed later |
//! | `problem`, `model`, `curves`, `router` | [`Problem`]: the work to be placed; [`Router`]: the predicted times and the [`Decision`] |
//! | `placement` | [`Placement`]: the segments of a recorded graph, each with its place |
//! | `explain`, `recording` | [`Explanation`]: a decision as text; [`Recording`]: times to judge decisions by |
//!
//! Design choices:
//!
//! - Two selectors. [`BackendSelector`] applies static rules that need no measurement and never look at the machine;
//!   [`Router`] predicts the time on every place from measurements of this machine and takes the least.
//! - A place is data: a name, a kind, a number of threads, a memory and constants. No backend is named here, so CPUs
//!   with one instruction set or four, and any number of GPUs, are routed by the same code.
//! - Deciding is a pure function of the problem, of where its operands are, and of a [`Profile`]: no clock, no thread,
//!   no allocation to hold a single operation, well below a microsecond. It is tested without hardware.
//! - Measured times are interpolated, not fitted: a [`Curve`](Calibrated) is the measured form of
//!   `c0 + max(bytes / bandwidth(level), flops / peak)`. Where nothing was measured the formula itself is applied.
//! - Every decision can say why, in a sentence ([`Decision::why`]) and in a table ([`Explanation`]). The words are made
//!   only when they are printed.
//! - A profile that cannot be used is never an error of the program: [`ProfileProblem`] says what is wrong with it and the
//!   built-in constants decide instead.
#![forbid(unsafe_code)]

// Each module imports only from those above it.
mod json;

mod selector;
mod units;

mod class;
mod link;
mod place;

mod history;
mod problem;
mod profile;
mod recording;

mod model;

mod curves;

mod router;

mod placement;

mod explain;

pub use class::{Class, measured_as};
pub use explain::{ExplainedSegment, Explanation};
pub use history::{History, Observed};
pub use link::{ElementwisePath, Implausible, Link, LinkPath, MOST_BANDWIDTH, Transfer};
pub use model::Basis;
pub use place::{MAX_MEMORIES, MAX_PLACES, Memory, Place, Roofline};
pub use placement::{Flow, Placement, Segment};
pub use problem::{Problem, Residency};
pub use profile::{Calibrated, Cpus, GraphsOnHost, Machine, PROFILE_VERSION, Profile, ProfileProblem};
pub use recording::{RecordedProblem, Recording};
pub use router::{Decision, Prediction, Router, Why};
pub use selector::{Backend, BackendSelector, OpComplexity};
