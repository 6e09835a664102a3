//! The order of groups of devices: on each device one group computes at a time.
//!
//! The kernels of a group wait for one another across devices. If those of two groups ran at once, one group could keep the blocks of one
//! device and the other those of the other, each waiting for kernels that cannot start. The same happens to two threads of one group
//! that submit to the devices in different orders.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use kiln_ir::Result;

use super::open::Inner;
use crate::CudaDevice;
use crate::driver::submit_together;

/// The devices of the groups that submitted last.
static LAST: Mutex<Vec<Vec<Weak<Inner>>>> = Mutex::new(Vec::new());

/// Submits work of a group, once the work of other groups on its devices is done. The work of one group is submitted by one thread at a
/// time.
///
/// # Errors
/// The errors of `submit`.
pub(super) fn in_turn(devices: &[CudaDevice], submit: impl FnOnce() -> Result<()>) -> Result<()> {
    let mut last = LAST.lock().unwrap_or_else(PoisonError::into_inner);
    let is_ours = |group: &[Weak<Inner>]| {
        group.len() == devices.len()
            && group.iter().zip(devices).all(|(one, other)| one.as_ptr() == Arc::as_ptr(&other.inner))
    };
    let shares = |inner: &Inner| devices.iter().any(|device| device.inner.info.ordinal == inner.info.ordinal);
    last.retain(|group| {
        if is_ours(group) {
            return true;
        }
        let alive: Vec<_> = group.iter().filter_map(Weak::upgrade).collect();
        if !alive.iter().any(|inner| shares(inner)) {
            return !alive.is_empty();
        }
        // A lost device computes nothing, and its own callers get the error.
        alive.iter().for_each(|inner| drop(inner.context.synchronize()));
        false
    });
    if !last.iter().any(|group| is_ours(group)) {
        last.push(devices.iter().map(|device| Arc::downgrade(&device.inner)).collect());
    }
    submit_together(submit)
}
