//! Plans: the launches of a graph, on memory that is named and not allocated yet.

use std::collections::HashMap;

use kiln_ir::graph::{FusionLimits, Graph, Step, TensorId};
use kiln_ir::op::{Op, RmsNorm, total_bytes};
use kiln_ir::{Error, Record, Result, TensorType};

use crate::driver::{Driver, RegionOf};
use crate::location::{Fault, Location, Value};
use crate::lower::{Kept, Lowering};
use crate::memory::Region;

/// Launches in the order in which they run, and the memory that they need.
#[derive(Debug)]
pub struct Plan<D: Driver> {
    /// The launches.
    pub steps: Vec<D::Step>,
    /// Bytes of each slot.
    pub slots: Vec<u64>,
    /// Bytes of each piece of scratch memory.
    pub scratch: Vec<u64>,
    /// Bytes of each value that several operations need.
    pub kept: Vec<u64>,
    /// The faults that kernels may report.
    pub faults: Vec<Fault>,
    /// Inputs and states that are read or written, with their bytes.
    pub inputs: Vec<(TensorId, u64)>,
    /// The location of each wanted tensor, with its bytes.
    pub results: Vec<(Location, u64)>,
}

impl<D: Driver> Plan<D> {
    /// Bytes of the memory that it writes: results, intermediate results and scratch memory.
    pub fn computed_bytes(&self) -> u64 {
        let own = self.slots.iter().chain(&self.scratch).chain(&self.kept).copied();
        total_bytes(own.chain(self.results.iter().map(|&(_, bytes)| bytes)))
    }

    /// Plans the computation of the wanted tensors.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for an id of another graph; the errors of [`Driver::lower`].
    pub fn new(graph: &Graph, wanted: &[TensorId], target: &D::Target) -> Result<Self> {
        Self::within(D::fusion_limits(target), graph, wanted, target)
    }

    /// [`Plan::new`] where every operation or fused chain has launches of its own, even if the device could join it with others: for
    /// measurements of one operation.
    ///
    /// # Errors
    /// The errors of [`Plan::new`].
    pub fn one_by_one(graph: &Graph, wanted: &[TensorId], target: &D::Target) -> Result<Self> {
        Self::within(FusionLimits { round: 1, ..D::fusion_limits(target) }, graph, wanted, target)
    }

    fn within(limits: FusionLimits, graph: &Graph, wanted: &[TensorId], target: &D::Target) -> Result<Self> {
        let schedule = graph.schedule(wanted, limits)?;
        let location = |id: TensorId| schedule.location(graph, id).map(Location::from);
        let value = |id: TensorId| Ok(Value { at: location(id)?, ty: graph.ty(id)? });
        let bytes = |id: TensorId| graph.ty(id).map(|ty| ty.bytes() as u64);

        let (mut steps, mut scratch, mut kept, mut faults) = (Vec::new(), Vec::new(), Kept::default(), Vec::new());
        let mut left = &schedule.steps[..];
        for &count in &schedule.rounds {
            let (round, others) = left.split_at(count);
            left = others;
            let operands = |step: &Step| {
                let inputs = step.inputs().iter().map(|&id| value(id)).collect::<Result<Vec<_>>>()?;
                let outputs = step.outputs().map(value).collect::<Result<Vec<_>>>()?;
                Ok([inputs, outputs])
            };
            let operands = round.iter().map(operands).collect::<Result<Vec<_>>>()?;
            if let Some((op, norm)) = common(round)
                && D::lower_round(
                    op,
                    norm,
                    &mut Lowering::new(target, &mut steps, &mut scratch, &mut kept, &mut faults),
                    &operands,
                )?
            {
                continue;
            }
            let mut begins = Vec::with_capacity(count);
            for (step, [inputs, outputs]) in round.iter().zip(&operands) {
                begins.push(steps.len());
                let mut lowering = Lowering::new(target, &mut steps, &mut scratch, &mut kept, &mut faults);
                match step {
                    Step::Run { op, norm, gate: Some(gate), .. } => {
                        D::lower_gated(gate, norm.as_ref(), op, &mut lowering, inputs, outputs)?;
                    }
                    Step::Run { op, norm: None, .. } => D::lower(op, &mut lowering, inputs, outputs)?,
                    Step::Run { op, norm: Some(norm), .. } => {
                        D::lower_normed(norm, op, &mut lowering, inputs, outputs)?;
                    }
                    Step::Fused(fused) => D::lower_fused(fused, &mut lowering, inputs, outputs)?,
                }
            }
            if count > 1 {
                D::join(target, &mut steps, &begins)?;
            }
        }
        let inputs = schedule.inputs(graph)?.into_iter().map(|id| Ok((id, bytes(id)?)));
        let results = schedule.results.iter().map(|&id| Ok((location(id)?, bytes(id)?)));
        Ok(Self {
            steps,
            slots: schedule.slots.iter().map(|slot| slot.bytes as u64).collect(),
            scratch,
            kept: kept.bytes,
            faults,
            inputs: inputs.collect::<Result<_>>()?,
            results: results.collect::<Result<_>>()?,
        })
    }

    /// Plans one operation on inputs of these types: the ids of its inputs, and the plan.
    ///
    /// # Errors
    /// The errors of the shape rule and of [`Plan::new`].
    pub fn of_operation(op: &Op, inputs: &[TensorType], target: &D::Target) -> Result<(Vec<TensorId>, Self)> {
        let mut graph = Graph::new();
        let inputs: Vec<TensorId> = inputs.iter().map(|&ty| graph.input(ty)).collect();
        let wanted = graph.record_all(*op, &inputs)?;
        Ok((inputs, Self::new(&graph, &wanted, target)?))
    }
}

/// The operation of several steps, and the norm that they include, if they are the same.
fn common(steps: &[Step]) -> Option<(&Op, Option<&RmsNorm>)> {
    fn of(step: &Step) -> Option<(&Op, Option<&RmsNorm>)> {
        match step {
            Step::Run { op, norm, gate: None, .. } => Some((op, norm.as_ref())),
            Step::Run { .. } | Step::Fused(_) => None,
        }
    }
    let (first, others) = steps.split_first()?;
    let first = of(first)?;
    (!others.is_empty() && others.iter().all(|step| of(step) == Some(first))).then_some(first)
}

/// The memory of a plan, by location.
#[derive(Debug)]
pub struct Bindings<M> {
    pub(crate) inputs: HashMap<TensorId, Region<M>>,
    pub(crate) results: HashMap<TensorId, Region<M>>,
    pub(crate) slots: Vec<Region<M>>,
    pub(crate) scratch: Vec<Region<M>>,
    pub(crate) kept: Vec<Region<M>>,
    pub(crate) faults: Option<Region<M>>,
    fault_stride: u64,
    /// Of each device of a group, and which of them this is.
    exchange: (Vec<Region<M>>, usize),
}

impl<M> Bindings<M> {
    /// Allocates the memory of a plan, except for inputs and results that are given.
    pub(crate) fn allocate<D: Driver<Memory = M>>(
        device: &D,
        plan: &Plan<D>,
        given: &HashMap<TensorId, RegionOf<D>>,
    ) -> Result<Self> {
        let take = |bytes: u64| device.shared().pool.take(bytes, |bytes| device.allocate(bytes));
        let given_or_taken = |id: TensorId, bytes: u64| given.get(&id).cloned().map_or_else(|| take(bytes), Ok);
        let mut inputs = HashMap::new();
        for &(id, bytes) in &plan.inputs {
            inputs.insert(id, given_or_taken(id, bytes)?);
        }
        let all = |sizes: &[u64]| sizes.iter().map(|&bytes| take(bytes)).collect::<Result<Vec<_>>>();
        let (slots, scratch, kept) = (all(&plan.slots)?, all(&plan.scratch)?, all(&plan.kept)?);
        let mut results = HashMap::new();
        for &(location, bytes) in &plan.results {
            if let Location::Result(id) = location
                && !results.contains_key(&id)
            {
                results.insert(id, given_or_taken(id, bytes)?);
            }
        }
        let fault_stride = D::FAULT_STRIDE;
        let faults = match plan.faults.len() as u64 {
            0 => None,
            count => Some(take(fault_stride * count)?),
        };
        Ok(Self { inputs, results, slots, scratch, kept, faults, fault_stride, exchange: (Vec::new(), 0) })
    }

    /// The memory of device `own` of a group.
    pub(crate) fn mapped<N>(
        &self,
        of_device: impl Fn(&Region<M>) -> Result<Region<N>>,
        exchange: &[Region<N>],
        own: usize,
    ) -> Result<Bindings<N>> {
        let of = |regions: &HashMap<TensorId, Region<M>>| {
            regions.iter().map(|(&id, region)| Ok((id, of_device(region)?))).collect::<Result<HashMap<_, _>>>()
        };
        let all = |regions: &[Region<M>]| regions.iter().map(&of_device).collect::<Result<Vec<_>>>();
        Ok(Bindings {
            inputs: of(&self.inputs)?,
            results: of(&self.results)?,
            slots: all(&self.slots)?,
            scratch: all(&self.scratch)?,
            kept: all(&self.kept)?,
            faults: self.faults.as_ref().map(&of_device).transpose()?,
            fault_stride: self.fault_stride,
            exchange: (exchange.to_vec(), own),
        })
    }

    /// The region of a location.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor that the plan does not have.
    pub fn find(&self, location: Location) -> Result<Region<M>> {
        let found = match location {
            Location::Input(id) | Location::State(id) => self.inputs.get(&id).cloned(),
            Location::Result(id) => self.results.get(&id).cloned(),
            Location::Slot(slot) => self.slots.get(slot).cloned(),
            Location::Scratch(number) => self.scratch.get(number).cloned(),
            Location::Kept(number) => self.kept.get(number).cloned(),
            Location::Fault(number) => {
                let stride = self.fault_stride;
                self.faults.as_ref().and_then(|words| words.part(stride * number as u64, stride, stride))
            }
            Location::Exchange(device) => self.exchange.0.get(device).cloned(),
            Location::OwnExchange => self.exchange.0.get(self.exchange.1).cloned(),
        };
        found.ok_or(Error::ForeignTensor { index: usize::MAX })
    }
}
