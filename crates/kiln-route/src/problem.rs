//! The problem of a decision: the work of an operation or of a recorded graph, and the location of its operands.

use std::collections::{BTreeMap, HashMap};

use kiln_ir::graph::{Fused, Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Call, Cost, Op, total_bytes};
use kiln_ir::{DType, Result, TensorType, for_operation};

use crate::class::Class;
use crate::place::{MAX_MEMORIES, Memory};

/// One operation of a problem.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Task {
    pub(crate) class: Class,
    pub(crate) cost: Cost,
    /// Whether it is an element-wise function of f32 operands that are as large as the result: [`crate::ElementwisePath`].
    pub(crate) elementwise: bool,
}

impl Task {
    pub(crate) fn new(op: &Op, inputs: &[TensorType]) -> Result<(Self, u64)> {
        Ok(Self::checked(op, inputs, &op.infer(inputs)?))
    }

    /// The task for inputs that the shape rule has accepted, and the bytes of its results.
    fn checked(op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> (Self, u64) {
        let cost = for_operation!(op, concrete => {
            use kiln_ir::op::Operation;
            Cost {
                flops: concrete.flops(inputs, outputs),
                bytes_read: concrete.bytes_read(inputs, outputs),
                bytes_written: concrete.bytes_written(inputs, outputs),
            }
        });
        let results = total_bytes(outputs.iter().map(|t| t.bytes() as u64));
        let whole =
            |ty: &TensorType| ty.dtype == DType::F32 && outputs.iter().all(|out| out.shape.numel() == ty.shape.numel());
        let elementwise = matches!(op, Op::Elementwise(_)) && inputs.iter().chain(outputs).all(whole);
        (Self { class: Class::of(op, inputs, outputs), cost, elementwise }, results)
    }

    /// The measure of work of the curves: the larger of flops and bytes. Within a class the two grow together, and the
    /// maximum grows with whichever limits the operation.
    pub(crate) fn work(&self) -> f64 {
        self.cost.flops.max(self.cost.bytes()) as f64
    }
}

/// The work to be placed: one operation, or a recorded graph as a whole.
#[derive(Debug, Clone, PartialEq)]
pub struct Problem {
    // A single operation is stored without an allocation, because a decision must take far less time than the
    // operation.
    first: Option<Task>,
    rest: Vec<Task>,
    operands: [u64; 5],
    more_operands: Vec<u64>,
    operand_count: usize,
    /// Bytes of all operands.
    operand_bytes: u64,
    result_bytes: u64,
    is_call: bool,
}

impl Problem {
    /// One operation on inputs of these types.
    ///
    /// # Errors
    /// The errors of the shape rule of the operation.
    pub fn new(op: &Op, inputs: &[TensorType]) -> Result<Self> {
        Ok(Self::single(Task::new(op, inputs)?, inputs))
    }

    /// One operation that has been checked.
    pub fn of_call(call: &Call<'_>) -> Self {
        Self::single(Task::checked(call.op(), call.types(), call.outputs()), call.types())
    }

    #[inline]
    fn single((task, result_bytes): (Task, u64), inputs: &[TensorType]) -> Self {
        let mut operands = [0; 5];
        for (slot, ty) in operands.iter_mut().zip(inputs) {
            *slot = ty.bytes() as u64;
        }
        let more_operands = inputs.iter().skip(operands.len()).map(|ty| ty.bytes() as u64).collect();
        let operand_count = inputs.len();
        let operand_bytes = total_bytes(inputs.iter().map(|ty| ty.bytes() as u64));
        Self {
            first: Some(task),
            rest: Vec::new(),
            operands,
            more_operands,
            operand_count,
            operand_bytes,
            result_bytes,
            is_call: true,
        }
    }

    /// A recorded graph, placed as a whole: its operations one after the other, transfers only at its edges. Its
    /// operands are the tensors that it reads but does not make, in the order in which it first reads them; its results
    /// are those that it makes and does not read.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] never happens for a graph that recorded its own nodes.
    pub fn graph(graph: &Graph) -> Result<Self> {
        let mut problem = Self {
            first: None,
            rest: Vec::with_capacity(graph.nodes().len().saturating_sub(1)),
            operands: [0; 5],
            more_operands: Vec::new(),
            operand_count: 0,
            operand_bytes: 0,
            result_bytes: 0,
            is_call: false,
        };
        // For each tensor whether a step of the schedule computes it, and whether it has been read.
        let mut seen = HashMap::new();
        for node in graph.nodes() {
            let types = node.inputs.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<_>>>()?;
            for (&id, ty) in node.inputs.iter().zip(&types) {
                let (_, read) = seen.entry(id).or_insert_with(|| {
                    let bytes = ty.bytes() as u64;
                    match problem.operands.get_mut(problem.operand_count) {
                        Some(slot) => *slot = bytes,
                        None => problem.more_operands.push(bytes),
                    }
                    problem.operand_count += 1;
                    (0, true)
                });
                *read = true;
            }
            // A reshape does not run: its result is its operand.
            if !node.op.renames(&types) {
                let (task, _) = Task::new(&node.op, &types)?;
                match problem.first {
                    None => problem.first = Some(task),
                    Some(_) => problem.rest.push(task),
                }
            }
            for &id in &node.outputs {
                seen.insert(id, (graph.ty(id)?.bytes() as u64, false));
            }
        }
        problem.operand_bytes = total_bytes(problem.operands());
        problem.result_bytes = total_bytes(seen.values().filter(|(_, read)| !read).map(|&(bytes, _)| bytes));
        Ok(problem)
    }

    /// The steps of a schedule, placed as a whole: its operations one after the other, transfers only at its edges. Its
    /// operands are the inputs of the graph that it reads, in the order of [`Problem::inputs_of`]; its results are those
    /// that it was made for.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] when the schedule is of another graph.
    pub fn schedule(schedule: &Schedule, graph: &Graph) -> Result<Self> {
        let mut tasks = Vec::with_capacity(schedule.steps.len());
        for step in &schedule.steps {
            match step {
                Step::Run { op, inputs, .. } => {
                    let types = inputs.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<_>>>()?;
                    tasks.push(Task::new(op, &types)?.0);
                }
                Step::Fused(fused) => tasks.extend(Self::fused(fused, graph)?.tasks()),
            }
        }
        let bytes = Self::inputs_of(schedule, graph)?;
        let bytes = bytes.into_iter().map(|id| Ok(graph.ty(id)?.bytes() as u64)).collect::<Result<Vec<_>>>()?;
        let results = schedule.results.iter().map(|&id| Ok(graph.ty(id)?.bytes() as u64));
        Ok(Self::of(tasks, &bytes, total_bytes(results.collect::<Result<Vec<_>>>()?)))
    }

    /// The inputs of a graph that a schedule reads, in the order in which it first reads them.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] when the schedule is of another graph.
    pub fn inputs_of(schedule: &Schedule, graph: &Graph) -> Result<Vec<TensorId>> {
        let mut inputs = Vec::new();
        for id in schedule.steps.iter().flat_map(Step::inputs).map(|&id| schedule.root(id)) {
            if graph.is_input(id)? && !inputs.contains(&id) {
                inputs.push(id);
            }
        }
        Ok(inputs)
    }

    /// A fused element-wise chain: its functions one after the other, transfers only of what it reads and writes. Each
    /// function counts as it would alone; that its operands stay in the first-level cache helps every place alike.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] when the chain is of another graph.
    pub fn fused(fused: &Fused, graph: &Graph) -> Result<Self> {
        let mut tasks = Vec::with_capacity(fused.instructions.len());
        for instruction in &fused.instructions {
            let op = Op::from(instruction.kind.with_params(instruction.params));
            let types = vec![TensorType::f32(fused.shape); instruction.operands.len()];
            tasks.push(Task::new(&op, &types)?.0);
        }
        let bytes = fused.inputs.iter().map(|&id| Ok(graph.ty(id)?.bytes() as u64)).collect::<Result<Vec<_>>>()?;
        let each = TensorType::f32(fused.shape).bytes() as u64;
        Ok(Self::of(tasks, &bytes, each.saturating_mul(fused.outputs.len() as u64)))
    }

    fn of(tasks: Vec<Task>, bytes: &[u64], result_bytes: u64) -> Self {
        let mut operands = [0; 5];
        operands.iter_mut().zip(bytes).for_each(|(slot, &bytes)| *slot = bytes);
        Self {
            first: tasks.first().copied(),
            rest: tasks.iter().skip(1).copied().collect(),
            operands,
            more_operands: bytes.iter().skip(operands.len()).copied().collect(),
            operand_count: bytes.len(),
            operand_bytes: total_bytes(bytes.iter().copied()),
            result_bytes,
            is_call: false,
        }
    }

    pub(crate) fn tasks(&self) -> impl Iterator<Item = &Task> {
        self.first.iter().chain(&self.rest)
    }

    /// Bytes of each operand.
    pub(crate) fn operands(&self) -> impl Iterator<Item = u64> + '_ {
        let inline = self.operand_count.min(self.operands.len());
        self.operands[..inline].iter().chain(&self.more_operands).copied()
    }

    /// Bytes of all operands.
    pub(crate) fn operand_bytes(&self) -> u64 {
        self.operand_bytes
    }

    /// Its operation if it is a single call, not the steps of a graph.
    pub(crate) fn call(&self) -> Option<&Task> {
        self.first.as_ref().filter(|_| self.is_call)
    }

    /// Whether it is a single call, not the steps of a graph.
    pub(crate) fn is_call(&self) -> bool {
        self.is_call
    }

    /// Whether it is a single call of an element-wise function whose transfers are an [`crate::ElementwisePath`].
    pub(crate) fn is_elementwise(&self) -> bool {
        self.call().is_some_and(|task| task.elementwise)
    }

    pub(crate) fn result_bytes(&self) -> u64 {
        self.result_bytes
    }

    /// The class of a problem of one operation.
    pub fn class(&self) -> Option<Class> {
        if self.rest.is_empty() { self.first.map(|task| task.class) } else { None }
    }

    /// Number of operations.
    pub fn len(&self) -> usize {
        usize::from(self.first.is_some()) + self.rest.len()
    }

    /// Whether it has no operations.
    pub fn is_empty(&self) -> bool {
        self.first.is_none()
    }

    /// The work of all operations together.
    pub fn cost(&self) -> Cost {
        self.tasks().fold(Cost::default(), |sum, task| Cost {
            flops: sum.flops.saturating_add(task.cost.flops),
            bytes_read: sum.bytes_read.saturating_add(task.cost.bytes_read),
            bytes_written: sum.bytes_written.saturating_add(task.cost.bytes_written),
        })
    }

    /// The measure of work of a single operation that its class is calibrated over: the larger of flops and bytes.
    pub fn work(&self) -> f64 {
        self.tasks().map(Task::work).sum()
    }
}

/// The locations of the operands of a problem and of its result, the placements that still have to compile for it, and those that
/// cannot run it.
///
/// Operands are named by position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Residency {
    /// The first operands that each memory holds, a bit each.
    held: [u64; MAX_MEMORIES],
    /// The memories that hold further operands, a bit each.
    further: BTreeMap<usize, u8>,
    /// The memories that hold every operand that neither of these has.
    rest: u8,
    result_stays: bool,
    cold: u64,
    barred: u64,
}

/// Number of operands that [`Residency::held`] names.
const FIRST: usize = u64::BITS as usize;

/// The host in [`Residency::further`].
const ON_HOST: u8 = 1;

impl Default for Residency {
    fn default() -> Self {
        Self::host()
    }
}

impl Residency {
    /// Every operand is on the host, the result is wanted there, and every place has compiled what it needs.
    pub const fn host() -> Self {
        let mut held = [0; MAX_MEMORIES];
        held[0] = u64::MAX;
        Self { held, further: BTreeMap::new(), rest: ON_HOST, result_stays: false, cold: 0, barred: 0 }
    }

    /// Every operand is in every memory: the residency of a graph that runs repeatedly.
    pub const fn everywhere() -> Self {
        let held = [u64::MAX; MAX_MEMORIES];
        Self { held, further: BTreeMap::new(), rest: u8::MAX, result_stays: false, cold: 0, barred: 0 }
    }

    /// Operand `index` is in `memory` too.
    #[must_use]
    pub fn copied(mut self, index: usize, memory: Memory) -> Self {
        if memory.index() >= MAX_MEMORIES {
            return self;
        }
        match bit(index) {
            Some(bit) => self.held[memory.index()] |= bit,
            None => *self.memories_of(index) |= 1 << memory.index(),
        }
        self
    }

    /// Operand `index` is in `memory` and nowhere else.
    #[must_use]
    pub fn moved(mut self, index: usize, memory: Memory) -> Self {
        match bit(index) {
            Some(bit) => self.held.iter_mut().for_each(|held| *held &= !bit),
            None => *self.memories_of(index) = 0,
        }
        self.copied(index, memory)
    }

    /// The memories of an operand behind the first ones.
    fn memories_of(&mut self, index: usize) -> &mut u8 {
        self.further.entry(index).or_insert(self.rest)
    }

    /// The result may stay in the memory of the place that computes it.
    #[must_use]
    pub const fn keep_result(mut self) -> Self {
        self.result_stays = true;
        self
    }

    /// The place at this position has not compiled its code for the problem yet.
    #[must_use]
    pub fn cold(mut self, place: usize) -> Self {
        self.cold |= bit(place).unwrap_or(0);
        self
    }

    /// The placement at this position cannot run the problem: an operand has a layout of other placements. Only a forced placement
    /// sends it there.
    #[must_use]
    pub fn barred(mut self, place: usize) -> Self {
        self.barred |= bit(place).unwrap_or(0);
        self
    }

    pub(crate) fn holds(&self, memory: Memory, operand: usize) -> bool {
        if memory.index() >= MAX_MEMORIES {
            return false;
        }
        match bit(operand) {
            Some(bit) => self.held[memory.index()] & bit != 0,
            None => self.further.get(&operand).unwrap_or(&self.rest) >> memory.index() & 1 != 0,
        }
    }

    /// A memory that holds the operand: the host if it does.
    pub(crate) fn source(&self, operand: usize) -> Memory {
        let holder = (0..MAX_MEMORIES).map(|m| Memory::new(m as u8)).find(|&m| self.holds(m, operand));
        holder.unwrap_or(Memory::HOST)
    }

    /// Whether all operands are only on the host, and the result is wanted there.
    pub(crate) fn is_on_host(&self) -> bool {
        let first = self.held[0] == u64::MAX && self.held[1..].iter().all(|&held| held == 0);
        !self.result_stays
            && first
            && self.rest == ON_HOST
            && self.further.values().all(|&memories| memories == ON_HOST)
    }

    pub(crate) fn result_stays(&self) -> bool {
        self.result_stays
    }

    pub(crate) fn is_cold(&self, place: usize) -> bool {
        bit(place).is_some_and(|bit| self.cold & bit != 0)
    }

    /// Whether this is [`Residency::host`].
    pub(crate) fn is_plain(&self) -> bool {
        self.cold | self.barred == 0 && self.is_on_host()
    }

    pub(crate) fn is_barred(&self, place: usize) -> bool {
        bit(place).is_some_and(|bit| self.barred & bit != 0)
    }
}

fn bit(index: usize) -> Option<u64> {
    (index < FIRST).then(|| 1 << index)
}
