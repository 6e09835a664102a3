//! A plan with its kernels compiled and its memory taken: what runs again and again without anything being made anew.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ir::graph::{Location as Tensor, TensorId};
use kiln_ir::{Error, Result};
use kiln_ptx::Launch;

use crate::CudaDevice;
use crate::driver::{Begins, CapturedGraph, Event, Function, Span};
use crate::memory::Region;
use crate::plan::{Fault, Location, Plan};
use crate::profile::{CudaProfile, KernelTime};

/// The word that reports a fault: the position of an index above the index. At first all ones.
const FAULT_BYTES: usize = 8;
/// Bytes from one kind of fault to the next: where a buffer may begin.
const FAULT_STRIDE: usize = 16;

/// Launches from which on capturing them pays.
const CAPTURED: usize = 2;

/// A plan, compiled, with its memory.
#[derive(Debug)]
pub(crate) struct Executable {
    device: CudaDevice,
    inputs: HashMap<TensorId, Region>,
    /// The wanted tensors and their bytes, in the order in which they were asked for.
    results: Vec<(Region, u64)>,
    /// What is between them. Nobody else may have it while the plan can run again.
    intermediates: Vec<Region>,
    steps: Vec<Prepared>,
    faults: Option<(Region, Vec<Fault>)>,
    /// Marks before and behind each launch, on a device that measures.
    marks: Vec<Event>,
    /// The launches, captured once they run again.
    graph: Option<CapturedGraph>,
    /// Whether it ran.
    ran: bool,
}

/// A launch with everything that it needs.
#[derive(Debug)]
struct Prepared {
    function: Arc<Function>,
    launch: Launch,
    buffers: Vec<Region>,
    begins: Begins,
}

impl Prepared {
    fn spans(&self) -> Result<Vec<Span<'_>>> {
        self.buffers.iter().map(Region::whole).collect()
    }
}

impl Executable {
    /// Compiles a plan and takes its memory. Inputs that are given are used where they lie, the others are taken too.
    ///
    /// # Errors
    /// [`Error::OutOfMemory`], [`Error::DeviceLost`]; [`Error::Driver`] for a kernel that the driver refuses.
    pub(crate) fn new(device: &CudaDevice, plan: Plan, given: &HashMap<TensorId, Region>) -> Result<Self> {
        let take = |bytes: u64| device.take(bytes);
        let mut inputs = HashMap::new();
        for &(id, bytes) in &plan.inputs {
            inputs.insert(id, given.get(&id).cloned().map_or_else(|| take(bytes), Ok)?);
        }
        let slots = plan.slots.iter().map(|&bytes| take(bytes)).collect::<Result<Vec<_>>>()?;
        let scratch = plan.scratch.iter().map(|&bytes| take(bytes)).collect::<Result<Vec<_>>>()?;
        let mut made: HashMap<TensorId, Region> = HashMap::new();
        for &(location, bytes) in &plan.results {
            if let Tensor::Result(id) = location
                && !made.contains_key(&id)
            {
                made.insert(id, take(bytes)?);
            }
        }
        let faults = match &plan.faults[..] {
            [] => None,
            faults => Some((take((FAULT_STRIDE * faults.len()) as u64)?, faults.to_vec())),
        };
        let missing = || Error::ForeignTensor { index: usize::MAX };
        let tensor = |location: Tensor| match location {
            Tensor::Input(id) => inputs.get(&id).cloned(),
            Tensor::Result(id) => made.get(&id).cloned(),
            Tensor::Slot(slot) => slots.get(slot).cloned(),
        };
        let find = |location: Location| {
            let found = match location {
                Location::Tensor(location) => tensor(location),
                Location::Scratch(number) => scratch.get(number).cloned(),
                Location::Fault(number) => {
                    let offset = (FAULT_STRIDE * number) as u64;
                    faults.as_ref().and_then(|(region, _)| region.part(offset, FAULT_BYTES as u64))
                }
            };
            found.ok_or_else(missing)
        };
        let beginnings = plan.beginnings();
        let mut steps = Vec::with_capacity(plan.dispatches.len());
        for (dispatch, begins) in plan.dispatches.into_iter().zip(beginnings) {
            let function = device.inner.kernels.get(&dispatch.code)?;
            let buffers = dispatch.buffers.into_iter().map(find).collect::<Result<_>>()?;
            steps.push(Prepared { function, launch: dispatch.launch, buffers, begins });
        }
        let results = plan.results.iter().map(|&(at, bytes)| Ok((tensor(at).ok_or_else(missing)?, bytes)));
        let results = results.collect::<Result<_>>()?;
        let intermediates = slots.iter().chain(&scratch).cloned().collect();
        let marks = if device.inner.profiling { 2 * steps.len() } else { 0 };
        let marks = (0..marks).map(|_| Event::new(&device.inner.context, true)).collect::<Result<_>>()?;
        let device = device.clone();
        Ok(Self { device, inputs, results, intermediates, steps, faults, marks, graph: None, ran: false })
    }

    /// Where an input lies.
    pub(crate) fn input(&self, id: TensorId) -> Option<&Region> {
        self.inputs.get(&id)
    }

    /// Where the wanted tensors lie, and their bytes.
    pub(crate) fn results(&self) -> &[(Region, u64)] {
        &self.results
    }

    /// Bytes of all the memory that it holds.
    pub(crate) fn bytes(&self) -> u64 {
        let within = self.inputs.values().chain(&self.intermediates).map(Region::bytes);
        within.chain(self.results.iter().map(|(region, _)| region.bytes())).sum()
    }

    /// Runs the plan, and copies the first results to where there is a place for them. Unless there is one, or data can be
    /// at fault, nothing is waited for.
    ///
    /// # Errors
    /// [`Error::Index`] for faults in the data, [`Error::DeviceLost`], [`Error::Driver`].
    pub(crate) fn run(&mut self, outputs: &mut [&mut [u8]]) -> Result<()> {
        if let Some((region, _)) = &self.faults {
            region.whole()?.fill(0xff)?;
        }
        self.launch()?;
        self.ran = true;
        let mut reported = vec![0; self.faults.as_ref().map_or(0, |(_, faults)| FAULT_STRIDE * faults.len())];
        let mut wanted: Vec<(&Region, &mut [u8])> = Vec::with_capacity(1 + outputs.len());
        if let Some((region, _)) = &self.faults {
            wanted.push((region, &mut reported));
        }
        wanted.extend(self.results.iter().zip(outputs).map(|((region, _), out)| (region, &mut **out)));
        if wanted.is_empty() {
            return Ok(());
        }
        self.device.inner.staging.download(&mut wanted)?;
        let fault = self.faults.as_ref().and_then(|(_, faults)| first_fault(faults, &reported));
        fault.map_or(Ok(()), Err)
    }

    fn launch(&mut self) -> Result<()> {
        if let Some(graph) = &mut self.graph {
            return graph.launch();
        }
        if self.ran && self.steps.len() >= CAPTURED && self.marks.is_empty() {
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
            // What is measured has nothing beside it.
            let begins = if self.marks.is_empty() { step.begins } else { Begins::Behind };
            step.function.launch(&step.launch, &step.spans()?, begins)?;
            marks.next().map_or(Ok(()), Event::record)?;
        }
        Ok(())
    }

    /// How long each kernel of the last execution took.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where the device does not measure, [`Error::Parameter`] where nothing ran yet,
    /// [`Error::DeviceLost`].
    pub(crate) fn profile(&self) -> Result<CudaProfile> {
        if !self.device.inner.profiling {
            return Err(Error::Unavailable {
                what: "the time of each kernel".into(),
                reason: "the device was opened without `DeviceOptions::profile`".into(),
            });
        }
        if !self.ran {
            return Err(Error::Parameter { op: "profile", reason: "nothing was executed yet".into() });
        }
        let kernels = self.steps.iter().zip(self.marks.as_chunks::<2>().0).map(|(step, [before, behind])| {
            behind.wait()?;
            let name = step.function.kernel().name().to_owned();
            let resident_blocks = step.function.resident_blocks()?;
            let nanoseconds = behind.nanoseconds_since(before)?;
            Ok(KernelTime { name, grid: step.function.grid(&step.launch), resident_blocks, nanoseconds })
        });
        Ok(CudaProfile { kernels: kernels.collect::<Result<_>>()? })
    }
}

/// The first fault that a run reported.
fn first_fault(faults: &[Fault], reported: &[u8]) -> Option<Error> {
    faults.iter().zip(reported.chunks_exact(FAULT_STRIDE)).find_map(|(fault, bytes)| {
        let word = bytes.first_chunk().map_or(u64::MAX, |bytes| u64::from_le_bytes(*bytes));
        (word != u64::MAX).then_some(Error::Index {
            op: fault.op,
            position: (word >> 32) as usize,
            index: word as u32 as usize,
            bound: fault.bound,
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_fault_is_told() {
        let fault = |op, bound| Fault { op, bound };
        let faults = [fault("gather", 5), fault("gather", 7)];
        let mut words = [0xff; 2 * FAULT_STRIDE];
        assert_eq!(first_fault(&faults, &words), None);
        words[FAULT_STRIDE..FAULT_STRIDE + 8].copy_from_slice(&(3u64 << 32 | 9).to_le_bytes());
        assert_eq!(first_fault(&faults, &words), Some(Error::Index { op: "gather", position: 3, index: 9, bound: 7 }));
    }
}
