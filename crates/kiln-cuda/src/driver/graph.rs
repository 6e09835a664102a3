//! Launches that are captured once and asked for together, again and again.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphExec, CUstream, CUstreamCaptureMode};
use kiln_ir::Result;

use super::Context;
use super::memory::Span;
use super::module::{Begins, Function};

/// Launches in an order, which the driver takes in one call.
#[derive(Debug)]
pub(crate) struct CapturedGraph {
    context: Arc<Context>,
    executable: CUgraphExec,
}

// SAFETY: handles of the driver may be used by any thread.
unsafe impl Send for CapturedGraph {}
// SAFETY: as above; launching needs `&mut`.
unsafe impl Sync for CapturedGraph {}

/// What launches are captured from: a stream on which nothing runs.
pub(crate) struct Capture<'a> {
    context: &'a Arc<Context>,
    stream: CUstream,
}

impl Capture<'_> {
    /// Adds a launch, as [`Function::launch`].
    ///
    /// # Errors
    /// The errors of [`Function::launch`].
    pub(crate) fn launch(
        &self,
        function: &Function,
        launch: &kiln_ptx::Launch,
        buffers: &[Span<'_>],
        begins: Begins,
    ) -> Result<()> {
        function.launch_on(self.stream, launch, buffers, begins)
    }
}

impl Drop for Capture<'_> {
    fn drop(&mut self) {
        // SAFETY: the stream was made for this and is given back once; nothing runs on it.
        self.context.give_back("giving a stream back", |call| unsafe { (call.cuStreamDestroy_v2)(self.stream) });
    }
}

impl CapturedGraph {
    /// Captures what `record` launches.
    ///
    /// # Errors
    /// Those of `record`; [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn new(context: &Arc<Context>, record: impl FnOnce(&Capture<'_>) -> Result<()>) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle, to a place that is there.
        context.run("making a stream", |call| unsafe { (call.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        let capture = Capture { context, stream };
        // What other threads ask of the driver meanwhile is no business of this capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is of this context.
        context.run("a capture", |call| unsafe { (call.cuStreamBeginCapture_v2)(stream, mode) })?;
        let recorded = record(&capture);
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above; it writes one handle, to a place that is there.
        let ended = context.run("a capture", |call| unsafe { (call.cuStreamEndCapture)(stream, &mut graph) });
        let mut executable = std::ptr::null_mut();
        let made = recorded.and(ended).and_then(|()| {
            // SAFETY: the graph came from the driver just now; it writes one handle, to a place that is there.
            context
                .run("making a graph", |call| unsafe { (call.cuGraphInstantiateWithFlags)(&mut executable, graph, 0) })
        });
        if !graph.is_null() {
            // SAFETY: the handle came from the driver and is given back once; the executable does not need it.
            context.give_back("giving a graph back", |call| unsafe { (call.cuGraphDestroy)(graph) });
        }
        made?;
        Ok(Self { context: context.clone(), executable })
    }

    /// Runs what was captured, after all that was asked for before.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn launch(&mut self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: the memory that the launches use is held by whoever holds this, and was checked as they were captured.
        self.context.run("a batch", |call| unsafe { (call.cuGraphLaunch)(self.executable, stream) })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the handle came from the driver and is given back once; the driver waits for what still runs.
        self.context.give_back("giving a graph back", |call| unsafe { (call.cuGraphExecDestroy)(self.executable) });
    }
}
