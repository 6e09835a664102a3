//! Events, which mark positions in the work of a device.

use std::sync::Arc;

use cudarc::driver::sys::CUevent;
use kiln_ir::Result;

use super::Context;
use super::library::{Code, SUCCESS};

/// An event, which completes when all earlier work is done.
#[derive(Debug)]
pub(crate) struct Event {
    context: Arc<Context>,
    event: CUevent,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for Event {}
// SAFETY: as above; the driver synchronizes access to the state of an event.
unsafe impl Sync for Event {}

impl Event {
    /// An event that is not recorded yet. `timed` events store their time.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn new(context: &Arc<Context>, timed: bool) -> Result<Self> {
        const DISABLE_TIMING: u32 = 2;
        let flags = if timed { 0 } else { DISABLE_TIMING };
        let mut event = std::ptr::null_mut();
        // SAFETY: it writes one handle, to a valid place.
        context.run("creating an event", |call| unsafe { (call.cuEventCreate)(&mut event, flags) })?;
        Ok(Self { context: context.clone(), event })
    }

    /// Records it after all earlier work.
    ///
    /// # Errors
    /// The errors of [`Event::new`].
    pub(crate) fn record(&self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: event and stream are of this context.
        self.context.run("recording an event", |call| unsafe { (call.cuEventRecord)(self.event, stream) })
    }

    /// Waits until it completes; returns at once if it was never recorded.
    ///
    /// # Errors
    /// The errors of [`Event::new`], and of all earlier work.
    pub(crate) fn wait(&self) -> Result<()> {
        // SAFETY: the event is of this context.
        self.context.run("waiting for an event", |call| unsafe { (call.cuEventSynchronize)(self.event) })
    }

    /// Whether it has completed or was never recorded.
    ///
    /// # Errors
    /// The errors of [`Event::wait`].
    pub(crate) fn is_past(&self) -> Result<bool> {
        const NOT_READY: Code = 600;
        let mut past = true;
        // SAFETY: the event is of this context.
        self.context.run("querying an event", |call| match unsafe { (call.cuEventQuery)(self.event) } {
            NOT_READY => {
                past = false;
                SUCCESS
            }
            code => code,
        })?;
        Ok(past)
    }

    /// Nanoseconds between another event and this one, which both must have completed.
    ///
    /// # Errors
    /// The errors of [`Event::new`].
    pub(crate) fn nanoseconds_since(&self, earlier: &Self) -> Result<f64> {
        let mut milliseconds = 0f32;
        // SAFETY: it writes one number, to a valid place; both events belong to this context.
        self.context.run("reading the time between events", |call| unsafe {
            (call.cuEventElapsedTime)(&mut milliseconds, earlier.event, self.event)
        })?;
        Ok(f64::from(milliseconds) * 1e6)
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: the handle came from the driver and is destroyed once.
        self.context.give_back("destroying an event", |call| unsafe { (call.cuEventDestroy_v2)(self.event) });
    }
}
