//! The placement of a recorded graph, step by step.
//!
//! A placement is a list of segments, each of them steps that run on one device without a pause. One thread of the host
//! executes it: it reads what a segment needs from other devices, uploads it, submits the segment, and goes on with the next
//! one while the device works. [`Timeline`] computes the time of exactly that, so every candidate is judged by how it will
//! be run. The candidates are each device alone; the shortest path over (step, device), which weighs transfers against
//! speed along a chain; and the earliest finish of every step (HEFT, Topcuoglu et al. 2002), which spreads independent
//! branches.

use std::collections::HashMap;

use kiln_ir::graph::{FusionLimits, Graph, Schedule, Step, TensorId};
use kiln_ir::op::{Op, total_bytes};
use kiln_ir::{Result, TensorType};

use crate::link::Link;
use crate::model::transfer;
use crate::place::{MAX_MEMORIES, Memory, Place};
use crate::problem::{Problem, Residency, Task};
use crate::router::{Router, TIE};
use crate::selector::Backend;
use crate::units::Seconds;

/// Several devices are used where the best one alone is predicted to take longer than this share of their time allows:
/// predictions are off by as much.
const WORTH: f64 = 0.9;

/// The most segments of one GPU: as many as a device keeps ready.
const MOST_SEGMENTS: usize = 4;

/// The steps of a recorded graph, and what each reads and writes.
#[derive(Debug, Clone)]
pub struct Flow {
    steps: Vec<FlowStep>,
    tensors: Vec<TensorId>,
    bytes: Vec<u64>,
    /// The first of the tensors are the operands of the graph's [`Problem`], in its order.
    operands: usize,
    results: Vec<usize>,
    /// The steps that read each tensor, once for each time.
    readers: Vec<Vec<usize>>,
}

#[derive(Debug, Clone)]
struct FlowStep {
    task: Task,
    reads: Vec<usize>,
    writes: Vec<usize>,
    barred: u64,
}

impl Flow {
    /// The steps that compute the wanted tensors, one operation each, with the schedule that they are the steps of.
    ///
    /// # Errors
    /// [`kiln_ir::Error::ForeignTensor`] for a tensor of another graph.
    pub fn new(graph: &Graph, wanted: &[TensorId]) -> Result<(Self, Schedule)> {
        let schedule = graph.schedule(wanted, FusionLimits::NONE)?;
        let tensors = Problem::inputs_of(&schedule, graph)?;
        let mut flow = Self {
            steps: Vec::new(),
            operands: tensors.len(),
            tensors,
            bytes: Vec::new(),
            results: Vec::new(),
            readers: Vec::new(),
        };
        let mut number: HashMap<TensorId, usize> = flow.tensors.iter().enumerate().map(|(i, &id)| (id, i)).collect();
        for step in &schedule.steps {
            let Step::Run { op, inputs, outputs } = step else { continue };
            let types = inputs.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<TensorType>>>()?;
            let (task, _) = Task::new(op, &types)?;
            let reads = inputs.iter().filter_map(|&id| number.get(&schedule.root(id)).copied()).collect();
            let mut writes = Vec::with_capacity(outputs.len());
            for &id in outputs {
                number.insert(id, flow.tensors.len());
                writes.push(flow.tensors.len());
                flow.tensors.push(id);
            }
            flow.steps.push(FlowStep { task, reads, writes, barred: 0 });
        }
        flow.bytes = flow.tensors.iter().map(|&id| Ok(graph.ty(id)?.bytes() as u64)).collect::<Result<_>>()?;
        flow.results = schedule.results.iter().filter_map(|&id| number.get(&schedule.root(id)).copied()).collect();
        flow.results.sort_unstable();
        flow.results.dedup();
        flow.readers.resize_with(flow.tensors.len(), Vec::new);
        for (number, step) in flow.steps.iter().enumerate() {
            step.reads.iter().for_each(|&tensor| flow.readers[tensor].push(number));
        }
        Ok((flow, schedule))
    }

    /// Bars the places that `lacks` names for an operation: nothing but a force sends it there.
    pub fn bar(&mut self, schedule: &Schedule, places: usize, lacks: impl Fn(&Op, usize) -> bool) {
        for (step, scheduled) in self.steps.iter_mut().zip(&schedule.steps) {
            let Step::Run { op, .. } = scheduled else { continue };
            step.barred = (0..places.min(64)).filter(|&place| lacks(op, place)).fold(0, |all, place| all | 1 << place);
        }
    }

    /// The inputs of the graph that it reads: what the operands of a [`Residency`] are.
    pub fn inputs(&self) -> &[TensorId] {
        &self.tensors[..self.operands]
    }

    /// Bytes of all tensors: what a device holds at most that runs every step.
    pub fn bytes(&self) -> u64 {
        total_bytes(self.bytes.iter().copied())
    }

    /// Number of steps.
    pub fn len(&self) -> usize {
        self.steps.len()
    }

    /// Whether there is nothing to do.
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

/// Where the steps of a graph run.
#[derive(Debug, Clone, PartialEq)]
pub struct Placement {
    /// In the order in which they are submitted; one where a single device runs everything.
    pub segments: Vec<Segment>,
    /// Predicted seconds, transfers included.
    pub seconds: f64,
    /// The place that would be best alone, and what it is predicted to take; infinite where none has all kernels.
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

/// What is predicted of each step.
struct Predicted {
    /// Seconds on each device by the index of its memory; that of the CPU is its best place. Infinite where barred.
    seconds: Vec<[f64; MAX_MEMORIES]>,
    /// That place of the CPU.
    cpu: Vec<usize>,
}

impl Predicted {
    /// Removes the GPUs of every other kind; returns `None` if no GPU is of this kind.
    fn without_gpus_but(&self, kind: Backend, places: &[Place], devices: &Devices) -> Option<Self> {
        let of_kind = |device: usize| devices[device].is_some_and(|(place, _)| places[place].backend == kind);
        if !(1..MAX_MEMORIES).any(of_kind) {
            return None;
        }
        let mut seconds = self.seconds.clone();
        for seconds in &mut seconds {
            (1..MAX_MEMORIES).filter(|&device| !of_kind(device)).for_each(|device| seconds[device] = f64::INFINITY);
        }
        Some(Self { seconds, cpu: Vec::new() })
    }
}

/// For each memory the position of its place and that place's launch latency; `None` for an unused memory.
type Devices = [Option<(usize, f64)>; MAX_MEMORIES];

/// The state of the devices while the steps of a graph are submitted one after the other.
#[derive(Debug, Clone)]
struct Timeline<'a> {
    links: &'a [Option<Link>],
    devices: &'a Devices,
    /// When the thread of the host is free.
    host: f64,
    /// When each device is.
    free: [f64; MAX_MEMORIES],
    /// The memories that hold each tensor, a bit each.
    held: Vec<u8>,
    last: Option<usize>,
}

impl<'a> Timeline<'a> {
    fn new(links: &'a [Option<Link>], devices: &'a Devices, flow: &Flow, residency: &Residency) -> Self {
        let mut held = vec![0_u8; flow.tensors.len()];
        for (operand, held) in held.iter_mut().enumerate().take(flow.operands) {
            let holding = (0..MAX_MEMORIES).filter(|&m| residency.holds(Memory::new(m as u8), operand));
            *held = holding.fold(0, |all, memory| all | 1 << memory);
        }
        Self { links, devices, host: 0.0, free: [0.0; MAX_MEMORIES], held, last: None }
    }

    /// Takes over the state of another one of the same graph.
    fn follow(&mut self, other: &Self) {
        (self.host, self.free, self.last) = (other.host, other.free, other.last);
        self.held.copy_from_slice(&other.held);
    }

    /// Waits for a tensor and brings it to a device: when the host is free then.
    fn brought(&self, mut host: f64, tensor: usize, bytes: u64, device: usize) -> f64 {
        let held = self.held[tensor];
        if held & 1 << device != 0 {
            return host;
        }
        if held & 1 == 0 {
            let from = held.trailing_zeros() as usize;
            let ready = self.free.get(from).copied().unwrap_or(0.0);
            host = host.max(ready) + transfer(self.links, Memory::new(from as u8), Memory::HOST, bytes);
        }
        host + transfer(self.links, Memory::HOST, Memory::new(device as u8), bytes)
    }

    /// When the host and the device are free after a step on it.
    fn after(&self, flow: &Flow, step: &FlowStep, seconds: f64, device: usize) -> (f64, f64) {
        let host = step.reads.iter().fold(self.host, |host, &t| self.brought(host, t, flow.bytes[t], device));
        let launch = self.devices[device].map_or(0.0, |(_, launch)| launch);
        let seconds = if self.last == Some(device) { seconds } else { launch + seconds };
        match device {
            // The thread of the host is the CPU's.
            0 => (host + seconds, host + seconds),
            _ => (host, host.max(self.free[device]) + seconds),
        }
    }

    /// Submits a step. Returns when it starts.
    fn submit(&mut self, flow: &Flow, step: &FlowStep, seconds: f64, device: usize) -> f64 {
        let (host, free) = self.after(flow, step, seconds, device);
        for &tensor in &step.reads {
            if self.held[tensor] & 1 << device == 0 {
                // It came through the host.
                self.held[tensor] |= 1 | 1 << device;
            }
        }
        for &tensor in &step.writes {
            self.held[tensor] = 1 << device;
        }
        (self.host, self.free[device], self.last) = (host, free, Some(device));
        free - seconds
    }

    /// When the results are where they are wanted.
    fn finished(&self, flow: &Flow, residency: &Residency) -> f64 {
        if residency.result_stays() {
            return self.free.iter().copied().fold(self.host, f64::max);
        }
        flow.results.iter().fold(self.host, |host, &tensor| self.brought(host, tensor, flow.bytes[tensor], 0))
    }
}

impl Router {
    /// Chooses where each step of a graph runs. Several devices are used where that is predicted to be faster than the best
    /// of them alone by a tenth. A pure function, as [`Router::decide`].
    pub fn place(&self, flow: &Flow, residency: &Residency) -> Placement {
        let devices = self.devices(residency);
        let predicted = self.predicted(flow, residency);
        let links = self.profile().links();
        let timeline = || Timeline::new(links, &devices, flow, residency);
        let time = |assigned: &[usize], order: &[usize]| {
            let mut timeline = timeline();
            for &step in order {
                let device = assigned[step];
                timeline.submit(flow, &flow.steps[step], predicted.seconds[step][device], device);
            }
            timeline.finished(flow, residency)
        };
        let in_order: Vec<usize> = (0..flow.len()).collect();
        let known = (0..MAX_MEMORIES).filter(|&device| devices[device].is_some());
        let each: Vec<(usize, f64)> =
            known.map(|device| (device, time(&vec![device; flow.len()], &in_order))).collect();
        let least = each.iter().map(|&(_, seconds)| seconds).fold(f64::INFINITY, f64::min);
        // Of those that are equal the last, as for single operations.
        let alone =
            each.into_iter().rfind(|&(_, seconds)| seconds <= least * (1.0 + TIE)).unwrap_or((0, f64::INFINITY));
        let mut best = (vec![alone.0; flow.len()], in_order, alone.1);
        // Any other device costs at least a launch and the smallest transfers.
        let least = (1..MAX_MEMORIES).filter_map(|device| Some((device, devices[device]?.1)));
        let least = least.map(|(device, launch)| launch + transfer(links, Memory::HOST, Memory::new(device as u8), 0));
        let limit = alone.1 * WORTH;
        let least = least.fold(f64::INFINITY, f64::min);
        if flow.len() > 1 && limit > least + longest_chain(flow, &predicted) {
            for kind in [Backend::Gpu, Backend::Cuda] {
                // One GPU may be a place of both kinds: they would wait for one another.
                let Some(predicted) = predicted.without_gpus_but(kind, self.places(), &devices) else { continue };
                let assigned = [
                    shortest_path(flow, &predicted, residency, &timeline()),
                    earliest_finish(flow, &predicted, &timeline()),
                ];
                for assigned in assigned.into_iter().flatten() {
                    let order = overlapping(flow, &assigned);
                    let seconds = time(&assigned, &order);
                    let kept_ready = alone.1 == f64::INFINITY || is_short(&assigned, &order);
                    if seconds < limit && seconds < best.2 && kept_ready {
                        best = (assigned, order, seconds);
                    }
                }
            }
        }
        let (assigned, order, seconds) = best;
        let segments = self.segments(flow, &predicted, timeline(), &assigned, &order);
        let place = devices[alone.0].map_or(0, |(place, _)| place);
        Placement { segments, seconds, alone: (place, alone.1) }
    }

    fn devices(&self, residency: &Residency) -> Devices {
        let mut devices = Devices::default();
        for (place, known) in self.places().iter().enumerate() {
            if !residency.is_barred(place)
                && let Some(device) = devices.get_mut(known.memory.index())
            {
                // The best place of the CPU stands last.
                *device = Some((place, known.launch));
            }
        }
        devices
    }

    fn predicted(&self, flow: &Flow, residency: &Residency) -> Predicted {
        let mut predicted = Predicted { seconds: Vec::with_capacity(flow.len()), cpu: Vec::with_capacity(flow.len()) };
        for step in &flow.steps {
            let mut seconds = self.task_seconds(&step.task);
            let mut best = [f64::INFINITY; MAX_MEMORIES];
            for (place, known) in self.places().iter().enumerate() {
                if residency.is_barred(place) || step.barred & 1 << place != 0 {
                    seconds[place] = f64::INFINITY;
                }
                if known.memory != Memory::HOST {
                    best[known.memory.index()] = seconds[place];
                    seconds[place] = f64::INFINITY;
                }
            }
            let cpu = self.least(&seconds);
            // What other steps wrote is in the caches of other cores, wherever those ran.
            let written = step.reads.iter().filter(|&&tensor| tensor >= flow.operands);
            let handed: f64 = written.map(|&tensor| self.profile().handover(flow.bytes[tensor])).sum();
            best[0] = seconds[cpu] + handed;
            predicted.seconds.push(best);
            predicted.cpu.push(cpu);
        }
        predicted
    }

    /// The segments of steps that are submitted in this order.
    fn segments(
        &self,
        flow: &Flow,
        predicted: &Predicted,
        mut timeline: Timeline<'_>,
        assigned: &[usize],
        order: &[usize],
    ) -> Vec<Segment> {
        let mut segments: Vec<Segment> = Vec::new();
        for &step in order {
            let device = assigned[step];
            let memory = Memory::new(device as u8);
            let start = timeline.submit(flow, &flow.steps[step], predicted.seconds[step][device], device);
            if segments.last().is_none_or(|last| last.memory != memory) {
                let place = timeline.devices[device].map_or(0, |(place, _)| place);
                segments.push(Segment { place, memory, steps: Vec::new(), start, finish: start });
            }
            if let Some(last) = segments.last_mut() {
                last.steps.push(step);
                last.finish = timeline.free[device];
            }
        }
        for segment in segments.iter_mut().filter(|segment| segment.memory == Memory::HOST) {
            let at = |place: usize| {
                let there = segment.steps.iter().filter(|&&step| predicted.cpu[step] == place);
                there.map(|&step| predicted.seconds[step][0]).sum::<f64>()
            };
            let most = (0..self.places().len()).max_by(|&a, &b| at(a).total_cmp(&at(b)));
            segment.place = most.unwrap_or(segment.place);
        }
        segments
    }
}

/// The shortest path over (step, device), in the order of the schedule; `None` where a step has no device.
///
/// It keeps the best way to each device at each step; what that way left in which memory goes with it.
fn shortest_path(
    flow: &Flow,
    predicted: &Predicted,
    residency: &Residency,
    start: &Timeline<'_>,
) -> Option<Vec<usize>> {
    // The ways to each device, and room for those of the next step.
    let mut ways: Vec<Timeline<'_>> = vec![start.clone()];
    let mut next: Vec<Timeline<'_>> = Vec::with_capacity(MAX_MEMORIES);
    let mut free: Vec<Timeline<'_>> = Vec::with_capacity(MAX_MEMORIES);
    // For each step and each way to it, the device and the way before.
    let mut came: Vec<[(usize, usize); MAX_MEMORIES]> = Vec::with_capacity(flow.len());
    for (step, seconds) in flow.steps.iter().zip(&predicted.seconds) {
        let mut from = [(0, 0); MAX_MEMORIES];
        for (device, &seconds) in seconds.iter().enumerate().filter(|(_, seconds)| seconds.is_finite()) {
            let finish = |way: &Timeline<'_>| {
                let (host, free) = way.after(flow, step, seconds, device);
                way.free.iter().copied().fold(host.max(free), f64::max)
            };
            let times = ways.iter().map(finish).enumerate();
            let (before, _) = times.min_by(|a, b| a.1.total_cmp(&b.1))?;
            let mut timeline = free.pop().unwrap_or_else(|| start.clone());
            timeline.follow(&ways[before]);
            timeline.submit(flow, step, seconds, device);
            from[next.len()] = (device, before);
            next.push(timeline);
        }
        if next.is_empty() {
            return None;
        }
        free.append(&mut ways);
        std::mem::swap(&mut ways, &mut next);
        came.push(from);
    }
    let last = |timeline: &Timeline<'_>| timeline.finished(flow, residency);
    let (mut way, _) = ways.iter().map(last).enumerate().min_by(|a, b| a.1.total_cmp(&b.1))?;
    let mut assigned = vec![0; flow.len()];
    for (step, from) in came.iter().enumerate().rev() {
        (assigned[step], way) = from[way];
    }
    Some(assigned)
}

/// Each step where it finishes first, in the order of the schedule; `None` where a step has no device. Here every device works
/// by itself: that the thread of the host is the CPU's, too, is up to the order of submission.
fn earliest_finish(flow: &Flow, predicted: &Predicted, start: &Timeline<'_>) -> Option<Vec<usize>> {
    let mut held = start.held.clone();
    let mut computed = vec![0.0_f64; flow.tensors.len()];
    let mut free = [0.0_f64; MAX_MEMORIES];
    let mut assigned = Vec::with_capacity(flow.len());
    for (step, seconds) in flow.steps.iter().zip(&predicted.seconds) {
        let arrival = |tensor: usize, device: usize| {
            let from = held[tensor].trailing_zeros().min(MAX_MEMORIES as u32 - 1) as usize;
            let there = held[tensor] & 1 << device != 0;
            let [from, to] = [from, device].map(|memory| Memory::new(memory as u8));
            computed[tensor] + if there { 0.0 } else { transfer(start.links, from, to, flow.bytes[tensor]) }
        };
        let finish = |device: usize| {
            let ready = step.reads.iter().map(|&tensor| arrival(tensor, device)).fold(free[device], f64::max);
            let waited = device != 0 && ready > free[device];
            let launch =
                start.devices[device].filter(|_| waited || free[device] == 0.0).map_or(0.0, |(_, launch)| launch);
            ready + launch + seconds[device]
        };
        let able = (0..MAX_MEMORIES).filter(|&device| seconds[device].is_finite());
        let (device, finish) = able.map(|device| (device, finish(device))).min_by(|a, b| a.1.total_cmp(&b.1))?;
        free[device] = finish;
        for &tensor in &step.reads {
            held[tensor] |= 1 << device;
        }
        for &tensor in &step.writes {
            (held[tensor], computed[tensor]) = (1 << device, finish);
        }
        assigned.push(device);
    }
    Some(assigned)
}

/// The order in which steps are submitted: those of GPUs as soon as what they read has been computed, before those of the CPU;
/// of the CPU's those first that need not wait for a GPU.
fn overlapping(flow: &Flow, assigned: &[usize]) -> Vec<usize> {
    // How much of what it reads each step lacks.
    let of_steps = |step: &FlowStep| step.reads.iter().filter(|&&tensor| tensor >= flow.operands).count();
    let mut missing: Vec<usize> = flow.steps.iter().map(of_steps).collect();
    // Whether a tensor is a result of a GPU, which the CPU waits for.
    let mut pending = vec![false; flow.tensors.len()];
    let mut ready: Vec<usize> = (0..flow.len()).filter(|&step| missing[step] == 0).collect();
    let mut order = Vec::with_capacity(flow.len());
    loop {
        let waits = |step: usize| flow.steps[step].reads.iter().any(|&tensor| pending[tensor]);
        // Waiting for its own device costs a GPU nothing.
        let rank = |step: usize| if assigned[step] == 0 { 1 + usize::from(waits(step)) } else { 0 };
        let next = ready.iter().enumerate().min_by_key(|&(_, &step)| (rank(step), step));
        let Some((at, &step)) = next else { break };
        ready.swap_remove(at);
        order.push(step);
        for &tensor in &flow.steps[step].writes {
            pending[tensor] = assigned[step] != 0;
            for &reader in &flow.readers[tensor] {
                missing[reader] -= 1;
                if missing[reader] == 0 {
                    ready.push(reader);
                }
            }
        }
    }
    order
}

/// A time that no placement on several devices is below: of the longest chain of steps, each where it takes least.
fn longest_chain(flow: &Flow, predicted: &Predicted) -> f64 {
    let mut finished = vec![0.0_f64; flow.tensors.len()];
    let mut longest = 0.0_f64;
    for (step, seconds) in flow.steps.iter().zip(&predicted.seconds) {
        let start = step.reads.iter().map(|&tensor| finished[tensor]).fold(0.0, f64::max);
        let finish = start + seconds.iter().copied().fold(f64::INFINITY, f64::min);
        step.writes.iter().for_each(|&tensor| finished[tensor] = finish);
        longest = longest.max(finish);
    }
    longest
}

/// Whether no GPU has more segments than it keeps ready.
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
