//! Marks between what is asked of a device.

use std::sync::Arc;

use cudarc::driver::sys::CUevent;
use kiln_ir::Result;

use super::Context;
use super::library::{Code, SUCCESS};

/// A mark: the device comes by it once all that was asked for before is done.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: CUevent,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for Event {}
// SAFETY: as above; the driver guards what it holds for an event.
unsafe impl Sync for Event {}

impl Event {
    /// A mark that nothing was asked before yet. `timed` ones know when the device came by.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self> {
        const DISABLE_TIMING: u32 = 2;
        let flags = if timed { 0 } else { DISABLE_TIMING };
        let mut event = std::ptr::null_mut();
        // SAFETY: it writes one handle, to a place that is there.
        context.run("making a mark", |call| unsafe { (call.cuEventCreate)(&mut event, flags) })?;
        Ok(Self { context: context.clone(), event })
    }

    /// Puts it behind all that was asked for.
    ///
    /// # Errors
    /// The errors of [`Event::new`].
    pub(crate) fn record(&self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: event and stream are of this context.
        self.context.run("setting a mark", |call| unsafe { (call.cuEventRecord)(self.event, stream) })
    }

    /// Waits until the device came by, at once where it was never set.
    ///
    /// # Errors
    /// The errors of [`Event::new`], and of all that ran before it.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event is of this context.
        self.context.run("waiting for a mark", |call| unsafe { (call.cuEventSynchronize)(self.event) })
    }

    /// Whether the device came by, or it was never set.
    ///
    /// # Errors
    /// The errors of [`Event::wait`].
    pub(crate) fn is_past(&self) -> Result<bool> {
        const NOT_READY: Code = 600;
        let mut past = true;
        // SAFETY: the event is of this context.
        self.context.run("asking for a mark", |call| match unsafe { (call.cuEventQuery)(self.event) } {
            NOT_READY => {
                past = false;
                SUCCESS
            }
            code => code,
        })?;
        Ok(past)
    }

    /// Nanoseconds from another mark to this one; the device came by both.
    ///
    /// # Errors
    /// The errors of [`Event::new`].
    pub(crate) fn nanoseconds_since(&self, earlier: &Self) -> Result<f64> {
        let mut milliseconds = 0f32;
        // SAFETY: it writes one number, to a place that is there; both events are of this context.
        self.context.run("reading a clock", |call| unsafe {
            (call.cuEventElapsedTime)(&mut milliseconds, earlier.event, self.event)
        })?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from the driver and is given back once.
        self.context.give_back("giving a mark back", |call| unsafe { (call.cuEventDestroy_v2)(self.event) });
    }
}
