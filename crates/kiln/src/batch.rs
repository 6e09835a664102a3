use std::collections::{HashMap, HashSet};

use kiln_ir::graph::{FusionLimits, Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Matmul, Op, widened};
use kiln_ir::{Buffer, DType, Data, DataMut, Error, Operand, QuantFormat, Record, Result, Shape, TensorType, f16};
use kiln_route::{Explanation, Problem, Residency};

use crate::gpus::{self, Gpu, OnGpu};
use crate::{Engine, PackedMatrix};

/// The engine of a batch.
#[derive(Debug)]
pub(crate) enum Holder<'e> {
    Borrowed(&'e Engine),
    /// Of those who cannot borrow it.
    #[cfg(target_arch = "wasm32")]
    Shared(std::sync::Arc<Engine>),
}

impl std::ops::Deref for Holder<'_> {
    type Target = Engine;
    fn deref(&self) -> &Engine {
        match self {
            Self::Borrowed(engine) => engine,
            #[cfg(target_arch = "wasm32")]
            Self::Shared(engine) => engine,
        }
    }
}

/// Operations recorded now and run together. They are the methods of [`Record`].
///
/// Nothing runs until it is executed. It computes the tensors that are asked for: what they do not need is dropped,
/// what is computed twice is shared, element-wise chains run as one pass, and memory is reused as soon as it is free.
/// The schedule and its memory stay: after [`Batch::set`] the same results are computed again without either being made
/// anew.
///
/// ```
/// use kiln::Record;
///
/// # fn main() -> kiln::Result<()> {
/// let engine = kiln::Engine::new()?;
/// let mut batch = engine.batch();
/// let x = batch.upload(&[1.0, -2.0, 3.0], &[3])?;
/// let bias = batch.upload(&[0.5], &[])?;
/// let y = batch.add(x, bias)?;
/// let y = batch.relu(y)?;
/// batch.execute(&[y])?;
/// assert_eq!(batch.read(y)?, [1.5, 0.0, 3.5]);
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Batch<'e> {
    pub(crate) engine: Holder<'e>,
    graph: Graph,
    host: HashMap<TensorId, Buffer>,
    /// Uploaded matrices that products are to find packed.
    to_pack: HashSet<TensorId>,
    /// Those that the products of executed schedules have asked for, and whether they were packed as transposed ones.
    packed: HashMap<(TensorId, bool), PackedMatrix>,
    plan: Option<Plan>,
}

/// A schedule with the memory that it runs in.
#[derive(Debug)]
struct Plan {
    wanted: Vec<TensorId>,
    schedule: Schedule,
    memory: Memory,
    /// The GPU that ran it last, by its position, and what it keeps.
    on_gpu: Option<(usize, OnGpu)>,
    /// Inputs that were replaced since.
    stale: HashSet<TensorId>,
}

/// Where results lie: intermediate ones in slots, wanted ones in buffers of their own.
#[derive(Debug)]
struct Memory {
    slots: Vec<Buffer>,
    results: HashMap<TensorId, Buffer>,
}

impl<'e> Batch<'e> {
    pub(crate) fn new(engine: Holder<'e>) -> Self {
        let (host, to_pack, packed) = (HashMap::new(), HashSet::new(), HashMap::new());
        Self { engine, graph: Graph::new(), host, to_pack, packed, plan: None }
    }

    /// Copies f32 elements of the given extents into the batch.
    ///
    /// # Errors
    /// [`Error::Length`] when the elements do not fill the extents.
    pub fn upload(&mut self, data: &[f32], dims: &[usize]) -> Result<TensorId> {
        self.input(Data::F32(data), dims)
    }

    /// Copies f16 elements of the given extents into the batch.
    ///
    /// # Errors
    /// As [`Batch::upload`].
    pub fn upload_f16(&mut self, data: &[f16], dims: &[usize]) -> Result<TensorId> {
        self.input(Data::F16(data), dims)
    }

    /// Copies indices of the given extents into the batch.
    ///
    /// # Errors
    /// As [`Batch::upload`].
    pub fn upload_indices(&mut self, data: &[u32], dims: &[usize]) -> Result<TensorId> {
        self.input(Data::U32(data), dims)
    }

    /// Copies quantised blocks into the batch; the extents count elements.
    ///
    /// # Errors
    /// As [`Batch::upload`], and [`Error::Format`] when a row is not whole blocks.
    pub fn upload_blocks(&mut self, format: QuantFormat, data: &[u8], dims: &[usize]) -> Result<TensorId> {
        self.input(Data::Blocks(format, data), dims)
    }

    fn input(&mut self, data: Data<'_>, dims: &[usize]) -> Result<TensorId> {
        let operand = Operand::new(data, Shape::new(dims)?)?;
        let copy = data.to_buffer()?;
        let id = self.graph.input(operand.ty());
        self.host.insert(id, copy);
        Ok(id)
    }

    /// Replaces the f32 elements of an uploaded tensor for the next execution.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Length`] when the number of elements differs.
    pub fn set(&mut self, id: TensorId, data: &[f32]) -> Result<()> {
        let ty = self.graph.ty(id)?;
        match self.host.get_mut(&id) {
            Some(Buffer::F32(held)) if held.len() == data.len() => {
                held.copy_from_slice(data);
                self.packed.retain(|&(packed, _), _| packed != id);
                if let Some(plan) = &mut self.plan {
                    plan.stale.insert(id);
                }
                Ok(())
            }
            Some(Buffer::F32(held)) => {
                Err(Error::Length { op: "set", operand: "data", expected: held.len(), found: data.len() })
            }
            Some(_) => Err(Error::Type { op: "set", index: 0, expected: ty.dtype, found: DType::F32 }),
            None => Err(Error::Parameter {
                op: "set",
                reason: format!("tensor {} is a result; only uploaded tensors can be replaced", id.index()),
            }),
        }
    }

    /// Keeps an uploaded matrix packed, too, for the products that have it as their right-hand matrix, as
    /// [`Engine::pack_b`] does. It is packed when the first of them runs, and again after [`Batch::set`].
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not uploaded,
    /// [`Error::Shape`] for one that is no matrix, [`Error::Type`] for one of another element type.
    pub fn pack(&mut self, id: TensorId) -> Result<()> {
        let ty = self.graph.ty(id)?;
        if !self.host.contains_key(&id) {
            let reason = format!("tensor {} is a result; only uploaded tensors can be packed", id.index());
            return Err(Error::Parameter { op: "pack", reason });
        }
        if ty.dtype != DType::F32 {
            return Err(Error::Type { op: "pack", index: 0, expected: DType::F32, found: ty.dtype });
        }
        if ty.shape.dims().len() != 2 {
            return Err(Error::Shape { op: "pack", reason: format!("{} is no matrix", ty.shape) });
        }
        self.to_pack.insert(id);
        Ok(())
    }

    /// Packs what the products of a schedule are to find packed.
    fn pack_for(&mut self, schedule: &Schedule) -> Result<()> {
        for step in &schedule.steps {
            let Some((id, op)) = packable(step) else { continue };
            let key = (id, op.transpose_b);
            if !self.to_pack.contains(&id) || self.packed.contains_key(&key) {
                continue;
            }
            if let (Some(Buffer::F32(b)), &[rows, columns]) = (self.host.get(&id), self.graph.ty(id)?.shape.dims()) {
                let (k, n) = if op.transpose_b { (columns, rows) } else { (rows, columns) };
                self.packed.insert(key, self.engine.pack_b(b, k, n, op.transpose_b)?);
            }
        }
        Ok(())
    }

    /// Computes the wanted tensors from what is uploaded now.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; errors of the data, such as an index out of its table.
    /// What was uploaded is intact afterwards.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    pub fn execute(&mut self, wanted: &[TensorId]) -> Result<()> {
        let mut plan = self.planned(wanted)?;
        if !self.run_on_gpu(&mut plan)? {
            self.run_on_cpu(&mut plan)?;
        }
        self.plan = Some(plan);
        Ok(())
    }

    /// As `execute` natively, where it waits.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch; errors of the data, such as an index out of its table.
    /// What was uploaded is intact afterwards.
    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    pub async fn execute_async(&mut self, wanted: &[TensorId]) -> Result<()> {
        let mut plan = self.planned(wanted)?;
        if !self.run_on_gpu(&mut plan).await? {
            self.run_on_cpu(&mut plan)?;
        }
        self.plan = Some(plan);
        Ok(())
    }

    fn planned(&mut self, wanted: &[TensorId]) -> Result<Plan> {
        match self.plan.take() {
            // Nodes are only ever added, and a schedule holds exactly what its results need.
            Some(plan) if plan.wanted == wanted => Ok(plan),
            _ => Plan::new(&self.graph, wanted),
        }
    }

    fn run_on_cpu(&mut self, plan: &mut Plan) -> Result<()> {
        let Plan { schedule, memory, .. } = plan;
        self.pack_for(schedule)?;
        for step in &schedule.steps {
            let ids: Vec<TensorId> = step.outputs().collect();
            // Out of the storage while the step writes them; no step reads what it writes.
            let mut out: Vec<Buffer> = ids.iter().map(|&id| memory.take(schedule, id)).collect();
            let done = self.run(schedule, memory, step, &mut out);
            for (id, buffer) in ids.into_iter().zip(out) {
                memory.put(schedule, id, buffer);
            }
            done?;
        }
        Ok(())
    }

    /// What the router decides about.
    fn question(&self, plan: &Plan) -> Result<(Problem, Residency)> {
        Ok((Problem::schedule(&plan.schedule, &self.graph)?, self.residency(plan)?))
    }

    /// Where the operands of a plan lie: what did not change since it was sent to a GPU is there.
    fn residency(&self, plan: &Plan) -> Result<Residency> {
        let mut residency = self.engine.on_host();
        if let Some((gpu, _)) = plan.on_gpu {
            let inputs = Problem::inputs_of(&plan.schedule, &self.graph)?;
            for (operand, _) in inputs.iter().enumerate().filter(|(_, id)| !plan.stale.contains(id)) {
                residency = residency.copied(operand, gpus::memory(gpu));
            }
        }
        Ok(residency)
    }

    /// The predicted time of computing these tensors on each place if they were executed now, and why the chosen one is
    /// chosen. What the last execution of the same tensors left on a GPU need not be sent there again.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn explain(&self, wanted: &[TensorId]) -> Result<Explanation> {
        let schedule = self.schedule(wanted)?;
        let problem = Problem::schedule(&schedule, &self.graph)?;
        let question = format!("a batch of {} steps", schedule.steps.len());
        let residency = match &self.plan {
            Some(plan) if plan.wanted == wanted => self.residency(plan)?,
            _ => self.engine.on_host(),
        };
        let decision = self.engine.router.decide(&problem, &residency);
        Ok(Explanation::new(question, &problem, &decision))
    }

    /// Takes over what a GPU has computed.
    fn keep(&self, plan: &mut Plan, results: Vec<Buffer>) {
        for (&id, result) in plan.schedule.results.iter().zip(results) {
            if !self.host.contains_key(&id) {
                plan.memory.results.insert(id, result);
            }
        }
    }

    /// Runs a plan as a whole on a GPU, if that is predicted to be fastest and the GPU does it, and says whether it did.
    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    fn run_on_gpu(&self, plan: &mut Plan) -> Result<bool> {
        if self.engine.gpus.is_empty() || plan.schedule.steps.is_empty() {
            return Ok(false);
        }
        let (problem, mut residency) = self.question(plan)?;
        loop {
            let decision = self.engine.router.decide(&problem, &residency);
            let Some((position, gpu)) = self.engine.gpu(&decision) else { return Ok(false) };
            match self.compute_on(position, gpu, plan) {
                Err(error) => {
                    // What lies there may be half of old inputs and half of new ones.
                    plan.on_gpu = None;
                    if self.engine.router.forced().is_some() || !gpu.failed(&error) {
                        return Err(error);
                    }
                    residency = residency.barred(decision.index());
                }
                Ok(results) => {
                    self.keep(plan, results);
                    return Ok(true);
                }
            }
        }
    }

    #[cfg(not(all(feature = "gpu-wasm", target_arch = "wasm32")))]
    fn compute_on(&self, position: usize, gpu: &Gpu, plan: &mut Plan) -> Result<Vec<Buffer>> {
        match &mut plan.on_gpu {
            Some((at, on_gpu)) if *at == position => {
                for id in plan.stale.drain() {
                    if let Some(buffer) = self.host.get(&id) {
                        on_gpu.set(id, buffer.as_data())?;
                    }
                }
                on_gpu.run()
            }
            other => {
                let on_gpu = OnGpu::new(gpu, &self.graph, &self.host, &plan.schedule.results)?;
                plan.stale.clear();
                other.insert((position, on_gpu)).1.run()
            }
        }
    }

    /// The same in a browser, where a lost device is opened anew once.
    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    async fn run_on_gpu(&self, plan: &mut Plan) -> Result<bool> {
        if self.engine.gpus.is_empty() || plan.schedule.steps.is_empty() {
            return Ok(false);
        }
        let (problem, mut residency) = self.question(plan)?;
        let mut recovered = false;
        loop {
            let decision = self.engine.router.decide(&problem, &residency);
            let Some((position, gpu)) = self.engine.gpu(&decision) else { return Ok(false) };
            match self.compute_on(position, gpu, plan).await {
                Err(error) => {
                    plan.on_gpu = None;
                    if !recovered && gpu.recovers(&error).await {
                        recovered = true;
                        continue;
                    }
                    if self.engine.router.forced().is_some() || !gpu.failed(&error) {
                        return Err(error);
                    }
                    residency = residency.barred(decision.index());
                }
                Ok(results) => {
                    self.keep(plan, results);
                    return Ok(true);
                }
            }
        }
    }

    #[cfg(all(feature = "gpu-wasm", target_arch = "wasm32"))]
    async fn compute_on(&self, position: usize, gpu: &Gpu, plan: &mut Plan) -> Result<Vec<Buffer>> {
        match &mut plan.on_gpu {
            Some((at, on_gpu)) if *at == position => {
                for id in plan.stale.drain() {
                    if let Some(buffer) = self.host.get(&id) {
                        on_gpu.set(id, buffer.as_data()).await?;
                    }
                }
                on_gpu.run().await
            }
            other => {
                let on_gpu = OnGpu::new(gpu, &self.graph, &self.host, &plan.schedule.results).await?;
                plan.stale.clear();
                other.insert((position, on_gpu)).1.run().await
            }
        }
    }

    fn run(&self, schedule: &Schedule, memory: &Memory, step: &Step, out: &mut [Buffer]) -> Result<()> {
        let mut operands = Vec::with_capacity(step.inputs().len());
        for &id in step.inputs() {
            let ty = self.graph.ty(id)?;
            let buffer = self
                .host
                .get(&id)
                .or_else(|| memory.get(schedule, id))
                .ok_or(Error::ForeignTensor { index: id.index() })?;
            operands.push(Operand::new(prefix(buffer.as_data(), &ty), ty.shape)?);
        }
        let mut outputs = Vec::with_capacity(out.len());
        for (id, buffer) in step.outputs().zip(out) {
            outputs.push(prefix_mut(buffer.as_mut(), &self.graph.ty(id)?));
        }
        if let Some((id, op)) = packable(step)
            && let Some(b) = self.packed.get(&(id, op.transpose_b))
            && let [DataMut::F32(out)] = &mut outputs[..]
        {
            // One matrix serves a stack of others: their rows follow one another.
            let dims = operands[0].ty().shape;
            let m = dims.dims().iter().rev().skip(1).product();
            return widened(&operands[..1], |a| self.engine.matmul_packed_into(a[0].data().f32(), b, out, m));
        }
        match step {
            Step::Run { op, .. } => self.engine.run_step(op, &operands, &mut outputs),
            Step::Fused(fused) => {
                let inputs: Vec<&[f32]> = operands.iter().map(|o| o.data().f32()).collect();
                let mut slices: Vec<&mut [f32]> = outputs.iter_mut().map(DataMut::f32).collect();
                self.engine.run_fused(fused, &self.graph, &inputs, &mut slices)
            }
        }
    }

    /// The f32 elements of a tensor that the last [`Batch::execute`] was asked for, or that was uploaded.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch, [`Error::Parameter`] for one that was not computed,
    /// [`Error::Type`] for one of another element type.
    pub fn read(&self, id: TensorId) -> Result<&[f32]> {
        match self.data(id)? {
            Data::F32(data) => Ok(data),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::F32, found: other.dtype() }),
        }
    }

    /// The indices of a tensor, as [`Batch::read`].
    ///
    /// # Errors
    /// As [`Batch::read`].
    pub fn read_indices(&self, id: TensorId) -> Result<&[u32]> {
        match self.data(id)? {
            Data::U32(data) => Ok(data),
            other => Err(Error::Type { op: "read", index: 0, expected: DType::U32, found: other.dtype() }),
        }
    }

    /// The elements of a tensor of any type, as [`Batch::read`].
    ///
    /// # Errors
    /// As [`Batch::read`].
    pub fn data(&self, id: TensorId) -> Result<Data<'_>> {
        self.graph.ty(id)?;
        let stored = self.plan.as_ref().and_then(|plan| {
            let position = plan.wanted.iter().position(|&w| w == id)?;
            Some(plan.schedule.results[position])
        });
        let held = stored.and_then(|id| self.plan.as_ref()?.memory.results.get(&id));
        let held = held.or_else(|| self.host.get(&stored.unwrap_or(id)));
        held.map(Buffer::as_data).ok_or_else(|| Error::Parameter {
            op: "read",
            reason: format!("tensor {} was not among those that the last execution was asked for", id.index()),
        })
    }

    /// The extents of a tensor of this batch.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn shape(&self, id: TensorId) -> Result<Shape> {
        Ok(self.graph.ty(id)?.shape)
    }

    /// What was recorded.
    pub fn graph(&self) -> &Graph {
        &self.graph
    }

    /// Number of operations recorded.
    pub fn num_operations(&self) -> usize {
        self.graph.nodes().len()
    }

    /// Number of tensors, uploaded ones and results.
    pub fn num_tensors(&self) -> usize {
        self.graph.tensors()
    }

    /// The steps that computing the wanted tensors takes, without running them.
    ///
    /// # Errors
    /// [`Error::ForeignTensor`] for a tensor of another batch.
    pub fn schedule(&self, wanted: &[TensorId]) -> Result<Schedule> {
        self.graph.schedule(wanted, FusionLimits::default())
    }
}

impl Record for Batch<'_> {
    fn record_all(&mut self, op: Op, inputs: &[TensorId]) -> Result<Vec<TensorId>> {
        self.graph.record_all(op, inputs)
    }
}

impl Plan {
    fn new(graph: &Graph, wanted: &[TensorId]) -> Result<Self> {
        let schedule = graph.schedule(wanted, FusionLimits::default())?;
        let slots = schedule.slots.iter().map(|slot| Buffer::with_bytes(slot.dtype, slot.bytes));
        let slots = slots.collect::<Result<_>>()?;
        let mut results = HashMap::new();
        for &id in &schedule.results {
            if !graph.is_input(id)? {
                results.insert(id, Buffer::zeros(&graph.ty(id)?)?);
            }
        }
        Ok(Self {
            wanted: wanted.to_vec(),
            schedule,
            memory: Memory { slots, results },
            on_gpu: None,
            stale: HashSet::new(),
        })
    }
}

impl Memory {
    fn get(&self, schedule: &Schedule, id: TensorId) -> Option<&Buffer> {
        schedule.slot(id).map_or_else(|| self.results.get(&id), |slot| self.slots.get(slot))
    }

    fn take(&mut self, schedule: &Schedule, id: TensorId) -> Buffer {
        let held = match schedule.slot(id) {
            Some(slot) => self.slots.get_mut(slot),
            None => self.results.get_mut(&id),
        };
        held.map_or(Buffer::F32(Vec::new()), |buffer| std::mem::replace(buffer, Buffer::F32(Vec::new())))
    }

    fn put(&mut self, schedule: &Schedule, id: TensorId, buffer: Buffer) {
        match schedule.slot(id) {
            Some(slot) => self.slots[slot] = buffer,
            None => drop(self.results.insert(id, buffer)),
        }
    }
}

/// The right-hand matrix of a step that is a product which can take it packed.
fn packable(step: &Step) -> Option<(TensorId, Matmul)> {
    match step {
        Step::Run { op: Op::Matmul(op), inputs, .. } if !op.transpose_a => Some((*inputs.get(1)?, *op)),
        _ => None,
    }
}

/// The part of a slot that a tensor takes.
fn prefix<'a>(data: Data<'a>, ty: &TensorType) -> Data<'a> {
    match data {
        Data::F32(d) => Data::F32(&d[..ty.shape.numel().min(d.len())]),
        Data::F16(d) => Data::F16(&d[..ty.shape.numel().min(d.len())]),
        Data::U32(d) => Data::U32(&d[..ty.shape.numel().min(d.len())]),
        Data::Blocks(format, d) => Data::Blocks(format, &d[..ty.bytes().min(d.len())]),
    }
}

fn prefix_mut<'a>(data: DataMut<'a>, ty: &TensorType) -> DataMut<'a> {
    match data {
        DataMut::F32(d) => {
            let n = ty.shape.numel().min(d.len());
            DataMut::F32(&mut d[..n])
        }
        DataMut::F16(d) => {
            let n = ty.shape.numel().min(d.len());
            DataMut::F16(&mut d[..n])
        }
        DataMut::U32(d) => {
            let n = ty.shape.numel().min(d.len());
            DataMut::U32(&mut d[..n])
        }
        DataMut::Blocks(format, d) => {
            let n = ty.bytes().min(d.len());
            DataMut::Blocks(format, &mut d[..n])
        }
    }
}
