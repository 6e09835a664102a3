//! The atomics and locks of `hand_over.rs`. Its model, `loom/tests/loom.rs` of the workspace, replaces them with those of loom.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use crate::wait::wait_until;

/// The number of times that a helper looks for work before it reads the clock.
pub(crate) const TURNS: usize = 100;
