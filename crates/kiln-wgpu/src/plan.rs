//! What a GPU does for a graph: dispatches on memory that is named but not yet there.

use std::collections::HashSet;

use kiln_core::graph::{Graph, Schedule, Step, TensorId};
use kiln_core::op::Op;
use kiln_core::{Error, Result};
use kiln_shaders::elementwise::Chain;
use kiln_shaders::{Capabilities, Head, Kernel};

use crate::lower::{Fault, Lowering, Value, elementwise, lower};

/// One 32-bit parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl From<u32> for Word {
    fn from(value: u32) -> Self {
        Self(value)
    }
}

impl From<usize> for Word {
    /// Extents fit 32 bits: a binding, and so what a kernel indexes, has fewer elements than that.
    fn from(value: usize) -> Self {
        Self(u32::try_from(value).unwrap_or(u32::MAX))
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

/// Memory of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Location {
    /// A tensor that comes from outside.
    Input(TensorId),
    /// A result that is wanted.
    Result(TensorId),
    /// A slot that intermediate results share.
    Slot(usize),
    /// Memory of one operation. Operations run one after another, so they share it.
    Scratch(usize),
    /// The words that report one kind of fault.
    Fault(usize),
}

/// Part of a buffer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) at: Location,
    /// First byte; a multiple of the alignment that the device asks for.
    pub(crate) offset: u64,
    /// Bytes, or all that follow.
    pub(crate) bytes: Option<u64>,
}

impl From<Location> for Slice {
    fn from(at: Location) -> Self {
        Self { at, offset: 0, bytes: None }
    }
}

/// How many workgroups run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid(u64);

impl Grid {
    /// So many workgroups.
    pub(crate) fn groups_of(groups: usize) -> Self {
        Self(groups as u64)
    }

    /// As many workgroups as so many invocations need.
    pub(crate) fn invocations(invocations: usize) -> Self {
        Self((invocations as u64).div_ceil(u64::from(kiln_shaders::WORKGROUP)))
    }

    /// The grid, folded into two dimensions where one is too long. The last row may run past the end.
    pub(crate) fn folded(self, most: u32) -> [u32; 3] {
        let rows = self.0.div_ceil(u64::from(most)).max(1);
        let columns = self.0.div_ceil(rows);
        [columns, rows, 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}

/// The code of a dispatch, without its parameters: what a pipeline is made from.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// A kernel with constants baked in.
    Kernel(Kernel, Vec<(&'static str, u32)>),
    /// A chain of element-wise functions.
    Chain(Chain),
}

impl Code {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernel(kernel, _) => kernel.name,
            Self::Chain(_) => "elementwise",
        }
    }

    pub(crate) fn head(&self) -> Head {
        match self {
            Self::Kernel(kernel, _) => kernel.head(),
            Self::Chain(chain) => chain.head(),
        }
    }

    pub(crate) fn text(&self, capabilities: Capabilities) -> String {
        match self {
            Self::Kernel(kernel, constants) => kernel.text(constants, capabilities),
            Self::Chain(chain) => chain.text(capabilities),
        }
    }
}

/// One run of a kernel.
#[derive(Debug)]
pub(crate) struct Dispatch {
    pub(crate) code: Code,
    pub(crate) buffers: Vec<Slice>,
    pub(crate) params: Vec<u32>,
    pub(crate) groups: [u32; 3],
}

/// Dispatches in the order in which they run, and the memory that they need.
#[derive(Debug)]
pub(crate) struct Plan {
    pub(crate) dispatches: Vec<Dispatch>,
    /// Bytes of each slot.
    pub(crate) slots: Vec<u64>,
    /// Bytes of each piece of scratch memory.
    pub(crate) scratch: Vec<u64>,
    pub(crate) faults: Vec<Fault>,
    /// Inputs that are read, with their bytes.
    pub(crate) inputs: Vec<(TensorId, u64)>,
    /// For each wanted tensor, where it lies afterwards.
    pub(crate) results: Vec<(Location, u64)>,
}

impl Plan {
    /// Plans the computation of the wanted tensors.
    pub(crate) fn new(graph: &Graph, wanted: &[TensorId], limits: &wgpu::Limits) -> Result<Self> {
        let schedule = graph.schedule(wanted, elementwise::fusion_limits(limits))?;
        let kept: HashSet<TensorId> = schedule.results.iter().copied().collect();
        let location = |id: TensorId| -> Result<Location> {
            Ok(match schedule.slot(id) {
                Some(slot) => Location::Slot(slot),
                None if graph.is_input(id)? => Location::Input(id),
                None if kept.contains(&id) => Location::Result(id),
                None => return Err(Error::ForeignTensor { index: id.index() }),
            })
        };
        let value = |id: TensorId| Ok(Value { at: location(id)?, ty: graph.ty(id)? });

        let (mut dispatches, mut scratch, mut faults) = (Vec::new(), Vec::new(), Vec::new());
        for step in &schedule.steps {
            let mut lowering = Lowering::new(limits, &mut dispatches, &mut scratch, &mut faults);
            let inputs = step.inputs().iter().map(|&id| value(id)).collect::<Result<Vec<_>>>()?;
            let outputs = step.outputs().map(value).collect::<Result<Vec<_>>>()?;
            match step {
                Step::Run { op, .. } => lower(op, &mut lowering, &inputs, &outputs)?,
                Step::Fused(fused) => elementwise::lower_fused(fused, &mut lowering, &inputs, &outputs),
            }
        }
        let results = schedule.results.iter().map(|&id| Ok((location(id)?, graph.ty(id)?.bytes() as u64)));
        Ok(Self {
            dispatches,
            slots: schedule.slots.iter().map(|slot| slot.bytes as u64).collect(),
            scratch,
            faults,
            inputs: inputs_of(&schedule, graph)?,
            results: results.collect::<Result<_>>()?,
        })
    }

    /// Plans one operation on inputs of these types: the graph that it is, and its plan.
    pub(crate) fn of_operation(
        op: &Op,
        inputs: &[kiln_core::TensorType],
        limits: &wgpu::Limits,
    ) -> Result<(Vec<TensorId>, Self)> {
        use kiln_core::Record;
        let mut graph = Graph::new();
        let inputs: Vec<TensorId> = inputs.iter().map(|&ty| graph.input(ty)).collect();
        let wanted = graph.record_all(*op, &inputs)?;
        Ok((inputs, Self::new(&graph, &wanted, limits)?))
    }
}

/// The inputs that a schedule reads or gives back.
fn inputs_of(schedule: &Schedule, graph: &Graph) -> Result<Vec<(TensorId, u64)>> {
    let mut seen = HashSet::new();
    let mut inputs = Vec::new();
    let read = schedule.steps.iter().flat_map(|step| step.inputs().iter().copied());
    for id in read.chain(schedule.results.iter().copied()) {
        if graph.is_input(id)? && seen.insert(id) {
            inputs.push((id, graph.ty(id)?.bytes() as u64));
        }
    }
    Ok(inputs)
}
