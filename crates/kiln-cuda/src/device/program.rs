//! Launches that are compiled and bound to memory.

use std::ops::Range;
use std::sync::Arc;

use kiln_device::{Bindings, KernelTime, Profile};
use kiln_ir::{Error, Result};
use kiln_ptx::Launch;

use super::groups;
use crate::driver::{Begins, CapturedGraph, DeviceMemory, Event, Function, Span};
use crate::plan::{Dispatch, beginnings};
use crate::{CudaDevice, Region, span};

/// Minimum number of launches for a graph capture.
const CAPTURED: usize = 2;

/// Launches that the programs of a group submit in turn. A queue of the driver holds about a thousand; a launch that finds it full
/// waits, on a device that may wait for launches of another that the same thread has yet to submit.
const TURN: usize = 128;

/// A plan's launches, compiled and bound.
#[derive(Debug)]
pub struct Program {
    device: CudaDevice,
    steps: Vec<Bound>,
    /// Events before and after each launch, if the device times them.
    marks: Vec<Event>,
    /// The launches as a graph, captured when they run again.
    graph: Option<CapturedGraph>,
    /// Whether running again captures a graph.
    captures: bool,
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
        let marks = (0..marks).map(|_| Event::new(&device.inner.context, true)).collect::<Result<Vec<_>>>()?;
        let captures = steps.len() >= CAPTURED && marks.is_empty();
        Ok(Self { device: device.clone(), steps, marks, graph: None, captures, has_run: false })
    }

    /// Sets the fault words to all ones and submits the program once.
    pub(super) fn submit(&mut self, faults: Option<&Region>) -> Result<()> {
        self.begin(faults)?;
        match self.graph()? {
            Some(graph) => graph.launch()?,
            None => self.launch(0..self.steps.len())?,
        }
        self.end();
        Ok(())
    }

    /// Submits a program of each device of a group once, as [`Program::submit`], so that no queue is full before the others have the
    /// launches that its device waits for.
    pub(super) fn submit_together(programs: &mut [Self], faults: &[Option<Region>]) -> Result<()> {
        programs.iter().zip(faults).try_for_each(|(program, faults)| program.begin(faults.as_ref()))?;
        // All of them are captured before one runs: capturing may wait for a device.
        let mut captured = true;
        for program in &mut *programs {
            captured &= program.graph()?.is_some();
        }
        let devices: Vec<CudaDevice> = programs.iter().map(|program| program.device.clone()).collect();
        groups::in_turn(&devices, || Self::launch_together(programs, captured))?;
        programs.iter_mut().for_each(Self::end);
        Ok(())
    }

    fn launch_together(programs: &mut [Self], captured: bool) -> Result<()> {
        if captured {
            programs.iter_mut().try_for_each(|program| program.graph.as_mut().map_or(Ok(()), CapturedGraph::launch))?;
        } else {
            let most = programs.iter().map(|program| program.steps.len()).max().unwrap_or(0);
            for from in (0..most).step_by(TURN) {
                let turn = |program: &Self| {
                    let ends = program.steps.len();
                    program.launch(from.min(ends)..(from + TURN).min(ends))
                };
                programs.iter().try_for_each(turn)?;
            }
        }
        Ok(())
    }

    fn begin(&self, faults: Option<&Region>) -> Result<()> {
        faults.map_or(Ok(()), |words| span(words, 0, words.bytes())?.fill(0xff))
    }

    fn end(&mut self) {
        self.has_run = true;
        self.device.inner.shared.counters.submitted(1, self.steps.len());
    }

    /// The graph of a program that runs again; `None` for one that runs launch by launch, as where there is no memory for a graph.
    fn graph(&mut self) -> Result<Option<&mut CapturedGraph>> {
        if self.graph.is_none() && self.has_run && self.captures {
            let steps = &self.steps;
            let graph = CapturedGraph::new(&self.device.inner.context, |capture| {
                steps
                    .iter()
                    .try_for_each(|step| capture.launch(&step.function, &step.launch, &step.spans()?, step.begins))
            });
            match graph {
                Err(Error::OutOfMemory { .. }) => self.captures = false,
                graph => self.graph = Some(graph?),
            }
        }
        Ok(self.graph.as_mut())
    }

    fn launch(&self, steps: Range<usize>) -> Result<()> {
        let mut marks = self.marks.get(2 * steps.start..).unwrap_or_default().iter();
        for step in &self.steps[steps] {
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
