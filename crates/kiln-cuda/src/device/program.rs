//! Launches that are compiled and bound to memory.

use std::sync::Arc;

use kiln_device::{Bindings, KernelTime, Profile};
use kiln_ir::Result;
use kiln_ptx::Launch;

use crate::driver::{Begins, CapturedGraph, DeviceMemory, Event, Function, Span};
use crate::plan::{Dispatch, beginnings};
use crate::{CudaDevice, Region, span};

/// Minimum number of launches for a graph capture.
const CAPTURED: usize = 2;

/// A plan's launches, compiled and bound.
#[derive(Debug)]
pub struct Program {
    device: CudaDevice,
    steps: Vec<Bound>,
    /// Events before and after each launch, if the device times them.
    marks: Vec<Event>,
    /// The launches as a graph, captured when they run again.
    graph: Option<CapturedGraph>,
    has_run: bool,
}

/// A launch with all its bindings.
#[derive(Debug)]
struct Bound {
    function: Arc<Function>,
    launch: Launch,
    buffers: Vec<Region>,
    begins: Begins,
}

impl Bound {
    fn spans(&self) -> Result<Vec<Span<'_>>> {
        self.buffers.iter().map(|region| span(region, 0, region.bytes())).collect()
    }
}

impl Program {
    pub(super) fn new(device: &CudaDevice, plan: Vec<Dispatch>, memory: &Bindings<DeviceMemory>) -> Result<Self> {
        let beginnings = beginnings(&plan, device.inner.kernels.target);
        let mut steps = Vec::with_capacity(plan.len());
        for (dispatch, begins) in plan.into_iter().zip(beginnings) {
            let function = device.inner.kernels.get(&dispatch.code)?;
            let buffers = dispatch.buffers.into_iter().map(|at| memory.find(at)).collect::<Result<_>>()?;
            steps.push(Bound { function, launch: dispatch.launch, buffers, begins });
        }
        let marks = if device.inner.profiling { 2 * steps.len() } else { 0 };
        let marks = (0..marks).map(|_| Event::new(&device.inner.context, true)).collect::<Result<_>>()?;
        Ok(Self { device: device.clone(), steps, marks, graph: None, has_run: false })
    }

    /// Sets the fault words to all ones and submits the program once.
    pub(super) fn submit(&mut self, faults: Option<&Region>) -> Result<()> {
        if let Some(words) = faults {
            span(words, 0, words.bytes())?.fill(0xff)?;
        }
        self.launch()?;
        self.has_run = true;
        self.device.inner.shared.counters.submitted(1, self.steps.len());
        Ok(())
    }

    fn launch(&mut self) -> Result<()> {
        if let Some(graph) = &mut self.graph {
            return graph.launch();
        }
        if self.has_run && self.steps.len() >= CAPTURED && self.marks.is_empty() {
            let steps = &self.steps;
            let mut graph = CapturedGraph::new(&self.device.inner.context, |capture| {
                steps
                    .iter()
                    .try_for_each(|step| capture.launch(&step.function, &step.launch, &step.spans()?, step.begins))
            })?;
            graph.launch()?;
            self.graph = Some(graph);
            return Ok(());
        }
        let mut marks = self.marks.iter();
        for step in &self.steps {
            marks.next().map_or(Ok(()), Event::record)?;
            // Timed launches must not overlap.
            let begins = if self.marks.is_empty() { step.begins } else { Begins::Behind };
            step.function.launch(&step.launch, &step.spans()?, begins)?;
            marks.next().map_or(Ok(()), Event::record)?;
        }
        Ok(())
    }

    /// The time of each kernel of the last run.
    pub(super) fn times(&self) -> Result<Profile> {
        let kernels = self.steps.iter().zip(self.marks.as_chunks::<2>().0).map(|(step, [before, after])| {
            after.wait()?;
            Ok(KernelTime {
                name: step.function.kernel().name().to_owned(),
                grid: step.function.grid(&step.launch),
                resident_blocks: Some(step.function.resident_blocks()?),
                nanoseconds: after.nanoseconds_since(before)?,
            })
        });
        Ok(Profile { kernels: kernels.collect::<Result<_>>()? })
    }
}
