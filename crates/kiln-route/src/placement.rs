//! The placement of a recorded graph, step by step.
//!
//! A placement is a list of segments, each of them steps that run on one device without a pause. One thread of the host
//! executes it: it reads what a segment needs from other devices, uploads it, submits the segment, and goes on with the next
//! one while the device works. [`Timeline`] computes the time of exactly that, so every candidate is judged by how it will
//! be run. The candidates are each device alone; the shortest path over (step, device), which weighs transfers against
//! speed along a chain; and the earliest finish of every step (HEFT, Topcuoglu et al. 2002), which spreads independent
//! branches.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::ops::Range;

use kiln_ir::graph::{FusionLimits, Graph, Schedule, Step, TensorId};
use kiln_ir::op::Op;
use kiln_ir::{Result, TensorType};

use crate::model::transfer;
use crate::place::{MAX_MEMORIES, MAX_PLACES, Memory, Place};
use crate::problem::{Problem, Residency, Task};
use crate::profile::{GraphsOnHost, Profile};
use crate::router::{Router, STEADIER, TIE};
use crate::selector::Backend;
use crate::units::Seconds;

/// Several devices are used only if they are predicted to take less than this share of the time of the best single
/// device: predictions have an error of that size.
const WORTH: f64 = 0.9;

/// Maximum number of segments of one GPU: a device caches as many executables.
const MOST_SEGMENTS: usize = 4;

/// Number of earlier tasks, or sizes, that a [`Flow`] searches for an equal one: a layer of a model has fewer, and an
/// unlimited search would be slow for a graph whose steps all differ.
const LOOK_BACK: usize = 32;

/// A bound adds the times in another order than the simulation, so it decides only beyond this rounding error.
const ROUNDING: f64 = 1e-9;

/// The steps of a recorded graph, and what each reads and writes.
#[derive(Debug, Clone)]
pub struct Flow {
    steps: Vec<FlowStep>,
    /// The tensors that all steps read, and those that they write.
    reads: Vec<Tensor>,
    writes: Vec<Tensor>,
    /// The distinct tasks of the steps: each task is predicted once.
    tasks: Vec<Task>,
    /// Number of tensors, and their total bytes.
    tensors: usize,
    bytes: u64,
    /// The distinct sizes of the tensors in bytes: each transfer is predicted once.
    sizes: Vec<u64>,
    /// The first of the tensors: the operands of the graph's [`Problem`], in its order.
    inputs: Vec<TensorId>,
    results: Vec<Tensor>,
    /// Pairs of a step that reads a version of a state and the step that replaces that version: they run in this order.
    before: Vec<(usize, usize)>,
}

#[derive(Debug, Clone)]
struct FlowStep {
    /// Index of its task.
    task: usize,
    /// The range of its tensors among those that all steps read.
    reads: Range<usize>,
    writes: Range<usize>,
    barred: u64,
}

/// A tensor of a flow.
#[derive(Debug, Clone, Copy)]
struct Tensor {
    number: usize,
    /// Index of its size.
    size: usize,
}

/// The position of a value among the most recent ones; appends the value if it is not there.
fn position<T: PartialEq>(seen: &mut Vec<T>, value: T) -> usize {
    let first = seen.len().saturating_sub(LOOK_BACK);
    let known = seen[first..].iter().rposition(|known| *known == value);
    known.map_or_else(
        || {
            seen.push(value);
            seen.len() - 1
        },
        |at| first + at,
    )
}

impl Flow {
    /// The steps that compute the wanted tensors, one operation each, with the schedule that they are the steps of.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] for a tensor of another graph.
    pub fn new(graph: &Graph, wanted: &[TensorId]) -> Result<(Self, Schedule)> {
        let schedule = graph.schedule(wanted, FusionLimits::NONE)?;
        let mut flow = Self {
            steps: Vec::with_capacity(schedule.steps.len()),
            reads: Vec::new(),
            writes: Vec::new(),
            tasks: Vec::new(),
            tensors: 0,
            bytes: 0,
            sizes: Vec::new(),
            inputs: Problem::inputs_of(&schedule, graph)?,
            results: Vec::new(),
            before: Vec::new(),
        };
        let room = flow.inputs.len() + schedule.steps.len();
        let mut known: HashMap<TensorId, Tensor> = HashMap::with_capacity(room);
        for at in 0..flow.inputs.len() {
            let id = flow.inputs[at];
            known.insert(id, flow.add(graph.ty(id)?));
        }
        let mut types: Vec<TensorType> = Vec::new();
        // The steps that read the latest version of each state.
        let mut readers: HashMap<TensorId, Vec<usize>> = HashMap::new();
        for step in &schedule.steps {
            let Step::Run { op, inputs, outputs, .. } = step else { continue };
            types.clear();
            for &id in inputs {
                types.push(graph.ty(id)?);
            }
            let (task, _) = Task::new(op, &types)?;
            let (reads, writes) = (flow.reads.len(), flow.writes.len());
            flow.reads.extend(inputs.iter().filter_map(|&id| known.get(&schedule.root(id))));
            for &id in outputs {
                let ty = graph.ty(id)?;
                let tensor = flow.add(ty);
                if graph.state_of(id).is_some() {
                    // The memory of the state gets a new number.
                    flow.bytes = flow.bytes.saturating_sub(ty.bytes() as u64);
                    let number = flow.steps.len();
                    let replaced = readers.remove(&schedule.root(id)).unwrap_or_default();
                    flow.before.extend(replaced.into_iter().map(|reader| (reader, number)));
                    known.insert(schedule.root(id), tensor);
                } else {
                    known.insert(id, tensor);
                }
                flow.writes.push(tensor);
            }
            for &id in inputs.iter().filter(|&&id| graph.state_of(id).is_some()) {
                readers.entry(schedule.root(id)).or_default().push(flow.steps.len());
            }
            let task = position(&mut flow.tasks, task);
            let (reads, writes) = (reads..flow.reads.len(), writes..flow.writes.len());
            flow.steps.push(FlowStep { task, reads, writes, barred: 0 });
        }
        flow.results = schedule.results.iter().filter_map(|&id| known.get(&schedule.root(id)).copied()).collect();
        flow.results.sort_unstable_by_key(|tensor| tensor.number);
        flow.results.dedup_by_key(|tensor| tensor.number);
        Ok((flow, schedule))
    }

    /// Assigns a number to a new tensor.
    fn add(&mut self, ty: TensorType) -> Tensor {
        let bytes = ty.bytes() as u64;
        self.tensors += 1;
        self.bytes = self.bytes.saturating_add(bytes);
        Tensor { number: self.tensors - 1, size: position(&mut self.sizes, bytes) }
    }

    /// The tensors that a step reads, once for each operand.
    fn reads(&self, step: usize) -> &[Tensor] {
        &self.reads[self.steps[step].reads.clone()]
    }

    /// The tensors that a step writes.
    fn writes(&self, step: usize) -> &[Tensor] {
        &self.writes[self.steps[step].writes.clone()]
    }

    /// Excludes the placements that `lacks` names for an operation: only a forced placement sends it there.
    pub fn bar(&mut self, schedule: &Schedule, places: usize, lacks: impl Fn(&Op, usize) -> bool) {
        for (step, scheduled) in self.steps.iter_mut().zip(&schedule.steps) {
            let Step::Run { op, .. } = scheduled else { continue };
            step.barred = (0..places.min(64)).filter(|&place| lacks(op, place)).fold(0, |all, place| all | 1 << place);
        }
    }

    /// The inputs of the graph that it reads: the operands of its [`Residency`].
    pub fn inputs(&self) -> &[TensorId] {
        &self.inputs
    }

    /// An order of the steps that greedily minimises changes of the device, given the device of each step: a device
    /// runs all steps that do not wait for others.
    fn grouped(&self, device_of: &[usize]) -> Vec<usize> {
        let mut made = vec![usize::MAX; self.tensors];
        let mut after: Vec<Vec<usize>> = vec![Vec::new(); self.len()];
        let mut missing = vec![0; self.len()];
        let mut depend = |before: usize, step: usize| {
            after[before].push(step);
            missing[step] += 1;
        };
        for step in 0..self.len() {
            let producers = self.reads(step).iter().map(|tensor| made[tensor.number]);
            producers.filter(|&producer| producer != usize::MAX).for_each(|producer| depend(producer, step));
            self.writes(step).iter().for_each(|tensor| made[tensor.number] = step);
        }
        self.before.iter().for_each(|&(reader, step)| depend(reader, step));
        let mut ready: [BinaryHeap<Reverse<usize>>; MAX_MEMORIES] = Default::default();
        let at_first = (0..self.len()).filter(|&step| missing[step] == 0);
        at_first.for_each(|step| ready[device_of[step]].push(Reverse(step)));
        let mut order = Vec::with_capacity(self.len());
        let mut device = 0;
        loop {
            if ready[device].is_empty() {
                // The device of the step that was recorded first.
                let first = |device: &usize| ready[*device].peek().map_or(usize::MAX, |&Reverse(step)| step);
                device = (0..MAX_MEMORIES).min_by_key(first).unwrap_or(0);
            }
            let Some(Reverse(step)) = ready[device].pop() else { return order };
            order.push(step);
            for &next in &after[step] {
                missing[next] -= 1;
                if missing[next] == 0 {
                    ready[device_of[next]].push(Reverse(next));
                }
            }
        }
    }

    /// Bytes of all tensors: the most that a device which runs every step holds.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether the flow has no steps.
    pub fn is_empty(&self) -> bool {
        self.steps.is_empty()
    }
}

/// Steps that run on one device without a pause.
#[derive(Debug, Clone, PartialEq)]
pub struct Segment {
    /// Position of the place; of a segment of the CPU the one that most of its time is spent at. Each step of it is decided
    /// by itself.
    pub place: usize,
    /// The memory that it works in.
    pub memory: Memory,
    /// Positions of its steps in the schedule of the [`Flow`], in the order of running.
    pub steps: Vec<usize>,
    /// Predicted seconds from the start of the graph to its start, and to its end.
    pub start: f64,
    /// See [`Segment::start`].
    pub finish: f64,
}

/// The placement of the steps of a graph.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// In the order in which they are submitted; one where a single device runs everything.
    pub segments: Vec<Segment>,
    /// Predicted seconds, transfers included.
    pub seconds: f64,
    /// The place that would be best alone, and its predicted seconds; infinite if no placement has all kernels.
    pub alone: (usize, f64),
}

impl Placement {
    /// The segments and their time line in a sentence.
    pub fn in_words(&self, question: &str, places: &[Place]) -> String {
        let name = |place: usize| places.get(place).map_or("", |place| place.name.as_str());
        let segment = |segment: &Segment| {
            let (start, finish) = (Seconds(segment.start), Seconds(segment.finish));
            format!("{} steps on {} from {start} to {finish}", segment.steps.len(), name(segment.place))
        };
        let segments: Vec<String> = self.segments.iter().map(segment).collect();
        format!("{question}: {}", segments.join(", "))
    }
}

/// The predictions for each step.
struct Predicted {
    /// Seconds on each device by the index of its memory; the CPU's are those of its best placement. Infinite if
    /// excluded.
    seconds: Vec<[f64; MAX_MEMORIES]>,
    /// That CPU placement.
    cpu: Vec<usize>,
}

/// For each memory the position of its placement and that placement's launch latency; `None` for an unused memory.
type Devices = [Option<(usize, f64)>; MAX_MEMORIES];

/// Data that the simulations of one graph share.
struct Setting<'a> {
    flow: &'a Flow,
    predicted: &'a Predicted,
    devices: &'a Devices,
    /// Seconds from and to each memory for each size of the flow. A transfer between two memories takes the sum of one
    /// from the first and one to the second; the host's are zero.
    transfers: Vec<[(f64, f64); MAX_MEMORIES]>,
    /// The memories that hold each tensor at the start, as bits.
    held: Vec<u8>,
    result_stays: bool,
    /// Seconds of any execution.
    graph: f64,
    /// Seconds of copying a result on the host, for each size of the flow.
    read: Vec<f64>,
}

impl<'a> Setting<'a> {
    fn new(
        flow: &'a Flow,
        predicted: &'a Predicted,
        devices: &'a Devices,
        profile: &Profile,
        residency: &Residency,
    ) -> Self {
        let links = profile.links();
        let both_ways = |&bytes: &u64| {
            let mut seconds = [(0.0, 0.0); MAX_MEMORIES];
            for (memory, seconds) in seconds.iter_mut().enumerate() {
                let memory = Memory::new(memory as u8);
                let [down, up] = [(memory, Memory::HOST), (Memory::HOST, memory)];
                *seconds = (transfer(links, down.0, down.1, bytes), transfer(links, up.0, up.1, bytes));
            }
            seconds
        };
        let mut held = vec![0_u8; flow.tensors];
        for (operand, held) in held.iter_mut().enumerate().take(flow.inputs.len()) {
            let holding = (0..MAX_MEMORIES).filter(|&m| residency.holds(Memory::new(m as u8), operand));
            *held = holding.fold(0, |all, memory| all | 1 << memory);
        }
        let transfers = flow.sizes.iter().map(both_ways).collect();
        let on_host = profile.graphs_on_host();
        let read = |&bytes: &u64| on_host.map_or(0.0, |known| known.read.seconds(bytes));
        Self {
            flow,
            predicted,
            devices,
            transfers,
            held,
            result_stays: residency.result_stays(),
            graph: on_host.map_or(0.0, |known| known.graph),
            read: flow.sizes.iter().map(read).collect(),
        }
    }

    /// Seconds from and to a memory of a tensor.
    #[inline]
    fn transfer(&self, tensor: Tensor, memory: usize) -> (f64, f64) {
        self.transfers[tensor.size][memory]
    }

    fn launch(&self, device: usize) -> f64 {
        self.devices[device].map_or(0.0, |(_, launch)| launch)
    }

    /// The CPU and the GPUs of a kind; `None` if there is no such GPU.
    fn with_gpus(&self, kind: Backend, places: &[Place]) -> Option<Vec<usize>> {
        let of_kind = |device: usize| self.devices[device].is_some_and(|(place, _)| places[place].backend == kind);
        let devices: Vec<usize> = (0..MAX_MEMORIES).filter(|&device| device == 0 || of_kind(device)).collect();
        (devices.len() > 1).then_some(devices)
    }

    /// A lower bound on the time of every placement on these devices, regardless of dependencies. A device takes at
    /// least the sum over its steps, and the slowest one takes at least any weighted mean over the devices; so no
    /// placement is below the sum over all steps of the least weighted time. The weights are chosen so that all devices
    /// would take equally long to run everything.
    fn shared_work(&self, devices: &[usize]) -> f64 {
        let mut weights = [0.0_f64; MAX_MEMORIES];
        for seconds in &self.predicted.seconds {
            for &device in devices {
                if seconds[device].is_finite() {
                    weights[device] += seconds[device];
                }
            }
        }
        weights.iter_mut().filter(|all| **all > 0.0).for_each(|all| *all = 1.0 / *all);
        let total: f64 = weights.iter().sum();
        let weighted = |seconds: &[f64; MAX_MEMORIES]| {
            let times = devices.iter().filter(|&&device| seconds[device].is_finite());
            times.map(|&device| weights[device] * seconds[device]).fold(f64::INFINITY, f64::min)
        };
        self.predicted.seconds.iter().map(weighted).sum::<f64>() / total
    }

    /// The computing time of the busiest device: a lower bound for every order of these steps.
    fn busiest(&self, assigned: &[usize]) -> f64 {
        let mut busy = [0.0_f64; MAX_MEMORIES];
        assigned.iter().zip(&self.predicted.seconds).for_each(|(&device, seconds)| busy[device] += seconds[device]);
        busy.into_iter().fold(0.0, f64::max)
    }
}

/// The state of the devices while the steps of a graph are submitted in turn.
#[derive(Debug, Clone)]
struct Timeline {
    /// The time when the host thread is free.
    host: f64,
    /// The time when each device is free.
    free: [f64; MAX_MEMORIES],
    /// The maximum of these.
    latest: f64,
    /// The memories that hold each tensor, as bits.
    held: Vec<u8>,
    last: usize,
}

impl Timeline {
    /// The predecessor of the first step: no device.
    const NONE: usize = usize::MAX;

    fn new(setting: &Setting<'_>) -> Self {
        let host = setting.graph;
        Self { host, free: [0.0; MAX_MEMORIES], latest: 0.0, held: setting.held.clone(), last: Self::NONE }
    }

    /// Copies the state of another timeline of the same graph.
    fn follow(&mut self, other: &Self) {
        (self.host, self.free, self.latest, self.last) = (other.host, other.free, other.latest, other.last);
        self.held.copy_from_slice(&other.held);
    }

    /// Waits for a tensor and transfers it to a device. Returns when the host is free then.
    #[inline]
    fn brought(&self, setting: &Setting<'_>, mut host: f64, tensor: Tensor, device: usize) -> f64 {
        let held = self.held[tensor.number];
        if held & 1 << device != 0 {
            return host;
        }
        if held & 1 == 0 {
            let from = held.trailing_zeros() as usize;
            if let Some(&ready) = self.free.get(from) {
                host = larger(host, ready) + setting.transfer(tensor, from).0;
            }
        }
        host + setting.transfer(tensor, device).1
    }

    /// When the host and the device are free after a step on it.
    #[inline]
    fn after(&self, setting: &Setting<'_>, step: usize, device: usize) -> (f64, f64) {
        let reads = setting.flow.reads(step);
        let mut host = self.host;
        for (at, &tensor) in reads.iter().enumerate() {
            // One transfer serves all operands that are the same tensor.
            if reads[..at].iter().all(|before| before.number != tensor.number) {
                host = self.brought(setting, host, tensor, device);
            }
        }
        let seconds = setting.predicted.seconds[step][device];
        let seconds = if self.last == device { seconds } else { setting.launch(device) + seconds };
        match device {
            // The CPU computes on the host thread.
            0 => (host + seconds, host + seconds),
            _ => (host, larger(host, self.free[device]) + seconds),
        }
    }

    /// Submits a step. The last argument is when the host and the device are free after it.
    #[inline]
    fn submit(&mut self, setting: &Setting<'_>, step: usize, device: usize, (host, free): (f64, f64)) {
        for tensor in setting.flow.reads(step) {
            let held = &mut self.held[tensor.number];
            if *held & 1 << device == 0 {
                // The transfer went through the host.
                *held |= 1 | 1 << device;
            }
        }
        for tensor in setting.flow.writes(step) {
            self.held[tensor.number] = 1 << device;
        }
        (self.host, self.free[device], self.last) = (host, free, device);
        self.latest = larger(self.latest, free);
    }

    /// The time when all wanted results are in the memory where they are wanted.
    fn finished(&self, setting: &Setting<'_>) -> f64 {
        if setting.result_stays {
            return self.latest.max(self.host);
        }
        setting.flow.results.iter().fold(self.host, |host, &tensor| {
            let on_host = self.held[tensor.number] & 1 != 0;
            if on_host { host + setting.read[tensor.size] } else { self.brought(setting, host, tensor, 0) }
        })
    }
}

/// The larger of two times. `f64::max` also handles NaN, which times never are, and takes twice as many instructions.
#[inline]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The seconds of steps that are submitted in this order; infinite if not below `limit`.
fn simulated(
    setting: &Setting<'_>,
    device_of: impl Fn(usize) -> usize,
    order: impl Iterator<Item = usize>,
    limit: f64,
) -> f64 {
    let mut timeline = Timeline::new(setting);
    for step in order {
        let device = device_of(step);
        let after = timeline.after(setting, step, device);
        timeline.submit(setting, step, device, after);
        // The host's time never decreases.
        if timeline.host >= limit {
            return f64::INFINITY;
        }
    }
    timeline.finished(setting)
}

impl Router {
    /// Chooses the placement of each step of a graph. Several devices are used where that is predicted to be faster than the best
    /// of them alone by a tenth. A pure function, as [`Router::decide`].
    pub fn place(&self, flow: &Flow, residency: &Residency) -> Placement {
        let devices = self.devices(residency);
        let predicted = self.predicted(flow, residency);
        let setting = Setting::new(flow, &predicted, &devices, self.profile(), residency);
        let known = (0..MAX_MEMORIES).filter(|&device| devices[device].is_some());
        let time = |device| (device, simulated(&setting, |_| device, 0..flow.len(), f64::INFINITY));
        let each: Vec<(usize, f64)> = known.map(time).collect();
        let least = each.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
        // Of equal devices the last, and CUDA devices before GPUs through wgpu, as for single operations. Nothing leaves the host for a
        // device that is no faster.
        let backend = |device: usize| devices[device].map(|(place, _)| self.places()[place].backend);
        let within = |&(_, seconds): &(usize, f64), share: f64| seconds <= least * (1.0 + share);
        let mut alone = each.iter().rfind(|each| within(each, TIE)).copied().unwrap_or((0, f64::INFINITY));
        if backend(alone.0) == Some(Backend::Gpu) {
            let cuda = each.iter().filter(|each| backend(each.0) == Some(Backend::Cuda) && within(each, STEADIER));
            alone = cuda.copied().min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or(alone);
        }
        alone = each.iter().find(|&&(device, seconds)| device == 0 && seconds <= alone.1).copied().unwrap_or(alone);
        let limit = alone.1 * WORTH;
        let mut best = None;
        let mut seconds = alone.1;
        if self.may_gain(&setting, limit) {
            for kind in [Backend::Gpu, Backend::Cuda] {
                // One GPU may be a placement of both backends, which would wait for one another.
                let Some(among) = setting.with_gpus(kind, self.places()) else { continue };
                // Beside the CPU, too, a GPU through wgpu has to be clearly ahead of a CUDA device.
                let steadier = kind == Backend::Gpu && backend(alone.0) == Some(Backend::Cuda);
                let limit = if steadier { limit / (1.0 + STEADIER) } else { limit };
                let beyond = limit * (1.0 + ROUNDING);
                if setting.shared_work(&among) > beyond {
                    continue;
                }
                let path = shortest_path(&setting, &among);
                let spread = earliest_finish(&setting, &among).filter(|spread| path.as_ref() != Some(spread));
                for assigned in [path, spread].into_iter().flatten() {
                    // Single devices were compared above.
                    let one = assigned.iter().all(|device| *device == assigned[0]);
                    if one || setting.busiest(&assigned) > beyond {
                        continue;
                    }
                    let order = overlapping(flow, &assigned);
                    if alone.1 < f64::INFINITY && !is_short(&assigned, &order) {
                        continue;
                    }
                    let least = limit.min(seconds);
                    let found = simulated(&setting, |step| assigned[step], order.iter().copied(), least);
                    if found < least {
                        (best, seconds) = (Some((assigned, order)), found);
                    }
                }
            }
        }
        let segments = match &best {
            Some((assigned, order)) => self.segments(&setting, |step| assigned[step], order.iter().copied()),
            None => self.segments(&setting, |_| alone.0, 0..flow.len()),
        };
        let place = devices[alone.0].map_or(0, |(place, _)| place);
        Placement { segments, seconds, alone: (place, alone.1) }
    }

    /// The segments of a graph whose steps run in the memories that are given, one for each step, and their predicted time line.
    /// Devices change as seldom as the order of the steps allows. A pure function, as [`Router::decide`].
    pub fn assigned(&self, flow: &Flow, memories: &[Memory], residency: &Residency) -> Placement {
        let devices = self.devices(residency);
        let predicted = self.predicted(flow, residency);
        let setting = Setting::new(flow, &predicted, &devices, self.profile(), residency);
        let of = |step: usize| memories.get(step).map_or(0, |memory| memory.index().min(MAX_MEMORIES - 1));
        let device_of: Vec<usize> = (0..flow.len()).map(of).collect();
        let order = flow.grouped(&device_of);
        let time = |device_of: &dyn Fn(usize) -> usize, order: &mut dyn Iterator<Item = usize>| {
            simulated(&setting, device_of, order, f64::INFINITY)
        };
        let seconds = time(&|step| device_of[step], &mut order.iter().copied());
        let known = (0..MAX_MEMORIES).filter_map(|device| Some((device, devices[device]?.0)));
        let each = known.map(|(device, place)| (place, time(&|_| device, &mut (0..flow.len()))));
        let alone = each.min_by(|a, b| a.1.total_cmp(&b.1)).unwrap_or((0, f64::INFINITY));
        let segments = self.segments(&setting, |step| device_of[step], order.iter().copied());
        Placement { segments, seconds, alone }
    }

    /// Whether several devices might take less than `limit`.
    fn may_gain(&self, setting: &Setting<'_>, limit: f64) -> bool {
        if setting.flow.len() < 2 {
            return false;
        }
        // Each further device costs at least a launch and the smallest transfers.
        let links = self.profile().links();
        let least = (1..MAX_MEMORIES).filter_map(|device| Some((device, setting.devices[device]?.1)));
        let least = least.map(|(device, launch)| launch + transfer(links, Memory::HOST, Memory::new(device as u8), 0));
        let least = least.fold(f64::INFINITY, f64::min);
        limit > least && limit > least + longest_chain(setting)
    }

    fn devices(&self, residency: &Residency) -> Devices {
        let mut devices = Devices::default();
        for (place, known) in self.places().iter().enumerate() {
            if !residency.is_barred(place)
                && let Some(device) = devices.get_mut(known.memory.index())
            {
                // The best CPU placement is the last one.
                *device = Some((place, known.launch));
            }
        }
        devices
    }

    fn predicted(&self, flow: &Flow, residency: &Residency) -> Predicted {
        let mut predicted = Predicted { seconds: Vec::with_capacity(flow.len()), cpu: Vec::with_capacity(flow.len()) };
        let on_host = self.profile().graphs_on_host();
        // How much of its inputs a graph no longer finds in the caches.
        let lost = (flow.bytes as f64 / GraphsOnHost::BEYOND_CACHES as f64).min(1.0);
        let each = |&bytes: &u64| {
            let Some(known) = on_host else { return [0.0; 3] };
            let handover = known.handover.seconds(bytes);
            let spread = known.spread.as_ref().map_or(handover, |spread| spread.seconds(bytes).max(handover));
            [handover, spread, known.cold.seconds(bytes) * lost]
        };
        let reading: Vec<[f64; 3]> = flow.sizes.iter().map(each).collect();
        // Whether several threads write a tensor, if the CPU computes it.
        let mut by_several = vec![false; flow.tensors];
        // The prediction of each task, and the placements that were excluded from it.
        let mut of_tasks: Vec<Option<(u64, [f64; MAX_MEMORIES], usize)>> = vec![None; flow.tasks.len()];
        for (number, step) in flow.steps.iter().enumerate() {
            let known = of_tasks[step.task].filter(|&(barred, ..)| barred == step.barred);
            let (_, mut best, cpu) = known.unwrap_or_else(|| {
                let (best, cpu) = self.on_devices(&flow.tasks[step.task], step.barred, residency);
                *of_tasks[step.task].insert((step.barred, best, cpu))
            });
            let several = self.places()[cpu].threads > 1;
            // Results of other steps are in the caches of other cores, wherever those steps ran.
            let read = |tensor: &Tensor| {
                let [handover, spread, cold] = reading[tensor.size];
                match tensor.number {
                    input if input < flow.inputs.len() => cold,
                    result if several || by_several[result] => spread,
                    _ => handover,
                }
            };
            best[0] += flow.reads(number).iter().map(read).sum::<f64>();
            flow.writes(number).iter().for_each(|tensor| by_several[tensor.number] = several);
            predicted.seconds.push(best);
            predicted.cpu.push(cpu);
        }
        predicted
    }

    /// Seconds of a task on each device, and the best CPU placement.
    fn on_devices(&self, task: &Task, barred: u64, residency: &Residency) -> ([f64; MAX_MEMORIES], usize) {
        let mut seconds = self.task_seconds(task);
        let mut best = [f64::INFINITY; MAX_MEMORIES];
        for (place, known) in self.places().iter().enumerate() {
            if residency.is_barred(place) || barred & 1 << place != 0 {
                seconds[place] = f64::INFINITY;
            }
            if known.memory != Memory::HOST {
                best[known.memory.index()] = seconds[place];
                seconds[place] = f64::INFINITY;
            }
        }
        let cpu = self.least(&seconds);
        best[0] = seconds[cpu];
        (best, cpu)
    }

    /// The segments of steps that are submitted in this order.
    fn segments(
        &self,
        setting: &Setting<'_>,
        device_of: impl Fn(usize) -> usize,
        order: impl ExactSizeIterator<Item = usize>,
    ) -> Vec<Segment> {
        let predicted = setting.predicted;
        let mut timeline = Timeline::new(setting);
        let mut segments: Vec<Segment> = Vec::new();
        let mut left = order.len();
        for step in order {
            let device = device_of(step);
            let memory = Memory::new(device as u8);
            let (host, free) = timeline.after(setting, step, device);
            timeline.submit(setting, step, device, (host, free));
            if segments.last().is_none_or(|last| last.memory != memory) {
                let place = setting.devices[device].map_or(0, |(place, _)| place);
                let start = free - predicted.seconds[step][device];
                segments.push(Segment { place, memory, steps: Vec::with_capacity(left), start, finish: start });
            }
            if let Some(last) = segments.last_mut() {
                last.steps.push(step);
                last.finish = free;
            }
            left -= 1;
        }
        for segment in segments.iter_mut().filter(|segment| segment.memory == Memory::HOST) {
            let mut spent = [0.0_f64; MAX_PLACES];
            segment.steps.iter().for_each(|&step| spent[predicted.cpu[step]] += predicted.seconds[step][0]);
            let most = (0..self.places().len()).max_by(|&a, &b| spent[a].total_cmp(&spent[b]));
            segment.place = most.unwrap_or(segment.place);
        }
        segments
    }
}

/// The shortest path over (step, device), in the order of the schedule; `None` if a step has no device.
///
/// Keeps, for each step, the best path to each device, with the memories that hold each tensor after that path.
fn shortest_path(setting: &Setting<'_>, devices: &[usize]) -> Option<Vec<usize>> {
    let steps = setting.flow.len();
    // The paths to each device, and space for those of the next step.
    let mut ways = vec![Timeline::new(setting)];
    let mut next: Vec<Timeline> = Vec::with_capacity(devices.len());
    let mut free: Vec<Timeline> = Vec::with_capacity(devices.len());
    // For each step and each path to it, the device and the preceding path.
    let mut came: Vec<[(u8, u8); MAX_MEMORIES]> = Vec::with_capacity(steps);
    for (step, seconds) in setting.predicted.seconds.iter().enumerate() {
        let mut from = [(0, 0); MAX_MEMORIES];
        for &device in devices.iter().filter(|&&device| seconds[device].is_finite()) {
            let (mut before, mut after, mut least) = (0, (0.0, 0.0), f64::INFINITY);
            for (number, way) in ways.iter().enumerate() {
                let then = way.after(setting, step, device);
                // The device is not free before the host is.
                let finish = larger(way.latest, then.1);
                if number == 0 || finish < least {
                    (before, after, least) = (number, then, finish);
                }
            }
            let mut timeline = match free.pop() {
                Some(mut timeline) => {
                    timeline.follow(&ways[before]);
                    timeline
                }
                None => ways[before].clone(),
            };
            timeline.submit(setting, step, device, after);
            from[next.len()] = (device as u8, before as u8);
            next.push(timeline);
        }
        if next.is_empty() {
            return None;
        }
        free.append(&mut ways);
        std::mem::swap(&mut ways, &mut next);
        came.push(from);
    }
    let last = |timeline: &Timeline| timeline.finished(setting);
    let (mut way, _) = ways.iter().map(last).enumerate().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut assigned = vec![0; steps];
    for (step, from) in came.iter().enumerate().rev() {
        let (device, before) = from[way];
        (assigned[step], way) = (device.into(), before.into());
    }
    Some(assigned)
}

/// Assigns each step to the device where it finishes first, in the order of the schedule; `None` if a step has no
/// device. Here the CPU counts as an independent device; the order of submission accounts for its use of the host
/// thread.
fn earliest_finish(setting: &Setting<'_>, devices: &[usize]) -> Option<Vec<usize>> {
    let flow = setting.flow;
    let mut held = setting.held.clone();
    let mut computed = vec![0.0_f64; flow.tensors];
    let mut free = [0.0_f64; MAX_MEMORIES];
    let mut assigned = Vec::with_capacity(flow.len());
    for (step, seconds) in setting.predicted.seconds.iter().enumerate() {
        let (reads, writes) = (flow.reads(step), flow.writes(step));
        let arrival = |tensor: Tensor, device: usize| {
            let (held, computed) = (held[tensor.number], computed[tensor.number]);
            let from = held.trailing_zeros().min(MAX_MEMORIES as u32 - 1) as usize;
            if held & 1 << device != 0 {
                return computed;
            }
            computed + (setting.transfer(tensor, from).0 + setting.transfer(tensor, device).1)
        };
        let finish = |device: usize| {
            let ready = reads.iter().map(|&tensor| arrival(tensor, device)).fold(free[device], f64::max);
            let waited = device != 0 && ready > free[device];
            let launch = if waited || free[device] == 0.0 { setting.launch(device) } else { 0.0 };
            ready + launch + seconds[device]
        };
        let able = devices.iter().copied().filter(|&device| seconds[device].is_finite());
        let (device, finish) = able.map(|device| (device, finish(device))).min_by(|a, b| a.1.total_cmp(&b.1))?;
        free[device] = finish;
        for tensor in reads {
            held[tensor.number] |= 1 << device;
        }
        for tensor in writes {
            (held[tensor.number], computed[tensor.number]) = (1 << device, finish);
        }
        assigned.push(device);
    }
    Some(assigned)
}

/// The order in which steps are submitted: GPU steps as soon as their operands are computed, before CPU steps; among
/// CPU steps first those that need not wait for a GPU.
fn overlapping(flow: &Flow, assigned: &[usize]) -> Vec<usize> {
    // The readers of each tensor that a step writes, once for each operand: those of tensor t are at `first[t]..first[t
    // + 1]`. Behind the tensors each step has a number of its own, which the steps "read" that must run after it.
    let mut first = vec![0; flow.tensors + flow.len() + 1];
    let after = |&(step, then): &(usize, usize)| (then, flow.tensors + step);
    let operands = |step: usize| flow.reads(step).iter().map(move |tensor| (step, tensor.number));
    let reads = || (0..flow.len()).flat_map(operands).chain(flow.before.iter().map(after));
    reads().for_each(|(_, tensor)| first[tensor] += 1);
    let mut sum = 0;
    for count in &mut first {
        sum += *count;
        *count = sum;
    }
    let mut readers = vec![0; sum];
    for (step, tensor) in reads() {
        first[tensor] -= 1;
        readers[first[tensor]] = step;
    }
    // How much each step waits for: operands that are not computed yet, and steps.
    let mut missing = vec![0; flow.len()];
    reads().filter(|&(_, number)| number >= flow.inputs.len()).for_each(|(step, _)| missing[step] += 1);
    // Whether a tensor is a result of a GPU that the CPU has to wait for.
    let mut pending = vec![false; flow.tensors];
    // Waiting for its own device costs a GPU nothing. The rank of a ready step does not change, because all of its
    // operands are computed.
    let rank = |step: usize, pending: &[bool]| match assigned[step] {
        0 => 1 + u8::from(flow.reads(step).iter().any(|tensor| pending[tensor.number])),
        _ => 0,
    };
    let at_first = (0..flow.len()).filter(|&step| missing[step] == 0).map(|step| Reverse((rank(step, &pending), step)));
    let mut ready: BinaryHeap<Reverse<(u8, usize)>> = at_first.collect();
    let mut order = Vec::with_capacity(flow.len());
    while let Some(Reverse((_, step))) = ready.pop() {
        order.push(step);
        for tensor in flow.writes(step) {
            pending[tensor.number] = assigned[step] != 0;
        }
        for number in flow.writes(step).iter().map(|tensor| tensor.number).chain([flow.tensors + step]) {
            for &reader in &readers[first[number]..first[number + 1]] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.push(Reverse((rank(reader, &pending), reader)));
                }
            }
        }
    }
    order
}

/// A lower bound on the time of every placement on several devices: the longest chain of steps, each on its fastest
/// device.
fn longest_chain(setting: &Setting<'_>) -> f64 {
    let flow = setting.flow;
    let mut finished = vec![0.0_f64; flow.tensors];
    let mut longest = 0.0_f64;
    for (step, seconds) in setting.predicted.seconds.iter().enumerate() {
        let start = flow.reads(step).iter().map(|tensor| finished[tensor.number]).fold(0.0, f64::max);
        let finish = start + seconds.iter().copied().fold(f64::INFINITY, f64::min);
        flow.writes(step).iter().for_each(|tensor| finished[tensor.number] = finish);
        longest = longest.max(finish);
    }
    longest
}

/// Whether no GPU has more segments than executables that it caches.
fn is_short(assigned: &[usize], order: &[usize]) -> bool {
    let mut segments = [0; MAX_MEMORIES];
    let mut last = None;
    for &step in order {
        if last != Some(assigned[step]) {
            segments[assigned[step]] += 1;
        }
        last = Some(assigned[step]);
    }
    segments[1..].iter().all(|&count| count <= MOST_SEGMENTS)
}
