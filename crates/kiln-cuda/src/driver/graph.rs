//! Launches that are captured once as a graph, which is launched as often as needed.

use std::sync::Arc;

use cudarc::driver::sys::{CUgraphExec, CUstream, CUstreamCaptureMode};
use kiln_ir::Result;

use super::Context;
use super::memory::Span;
use super::module::{Begins, Function};

/// A sequence of launches that is submitted by one call.
#[derive(Debug)]
pub(crate) struct CapturedGraph {
    context: Arc<Context>,
    executable: CUgraphExec,
}

// SAFETY: any thread may use the driver's handles.
unsafe impl Send for CapturedGraph {}
// SAFETY: as above; launching needs `&mut`.
unsafe impl Sync for CapturedGraph {}

/// A stream in capture mode, on which nothing runs.
pub(crate) struct Capture<'a> {
    context: &'a Arc<Context>,
    stream: CUstream,
}

impl Capture<'_> {
    /// Adds a launch, like [`Function::launch`].
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
        // SAFETY: the stream was created for this and is destroyed once; nothing runs on it.
        self.context.give_back("destroying a stream", |call| unsafe { (call.cuStreamDestroy_v2)(self.stream) });
    }
}

impl CapturedGraph {
    /// Captures the launches of `record`.
    ///
    /// # Errors
    /// The errors of `record`; [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn new(context: &Arc<Context>, record: impl FnOnce(&Capture<'_>) -> Result<()>) -> Result<Self> {
        const NON_BLOCKING: u32 = 1;
        let mut stream = std::ptr::null_mut();
        // SAFETY: it writes one handle, to a valid place.
        context.run_waiting("creating a stream", |call| unsafe { (call.cuStreamCreate)(&mut stream, NON_BLOCKING) })?;
        let capture = Capture { context, stream };
        // Calls of other threads do not affect this capture.
        let mode = CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is of this context.
        context.run("a capture", |call| unsafe { (call.cuStreamBeginCapture_v2)(stream, mode) })?;
        let recorded = record(&capture);
        let mut graph = std::ptr::null_mut();
        // SAFETY: the capture began above; it writes one handle, to a valid place.
        let ended = context.run("a capture", |call| unsafe { (call.cuStreamEndCapture)(stream, &mut graph) });
        let mut executable = std::ptr::null_mut();
        let made = recorded.and(ended).and_then(|()| {
            // SAFETY: the driver has just returned the graph; it writes one handle, to a valid place.
            context.run_waiting("creating a graph", |call| unsafe {
                (call.cuGraphInstantiateWithFlags)(&mut executable, graph, 0)
            })
        });
        if !graph.is_null() {
            // SAFETY: the handle came from the driver and is destroyed once; the executable does not need it.
            context.give_back("destroying a graph", |call| unsafe { (call.cuGraphDestroy)(graph) });
        }
        made?;
        Ok(Self { context: context.clone(), executable })
    }

    /// Runs the captured launches after all earlier work.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    pub(crate) fn launch(&mut self) -> Result<()> {
        let stream = self.context.stream();
        // SAFETY: the owner of this holds the memory that the launches use, which was checked during the capture.
        self.context.run("a batch", |call| unsafe { (call.cuGraphLaunch)(self.executable, stream) })
    }
}

impl Drop for CapturedGraph {
    fn drop(&mut self) {
        // SAFETY: the handle came from the driver and is destroyed once; the driver waits for running work.
        self.context.give_back("destroying a graph", |call| unsafe { (call.cuGraphExecDestroy)(self.executable) });
    }
}
