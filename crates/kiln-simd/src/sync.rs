//! The atomics and locks of `hand_over.rs`. Its model, `loom/tests/loom.rs` of the workspace, has those of loom in their place.

pub(crate) use std::hint::spin_loop;
pub(crate) use std::sync::atomic::{AtomicUsize, Ordering};
pub(crate) use std::sync::{Arc, Mutex, MutexGuard};

pub(crate) use crate::wait::wait_until;

/// How often a helper looks for work before it asks for the time.
pub(crate) const TURNS: usize = 100;
