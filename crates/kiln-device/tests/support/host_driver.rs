//! A device in plain Rust: memory is bytes on the heap, kernels are the f64 reference of each operation.
//!
//! Work is queued and runs in order of submission when a caller waits for it, as late as a real device may run it. Tests make
//! the device fail: it can run out of memory, be lost, or refuse a kernel. It panics where the device layer breaks its part of
//! the contract: a program that was not compiled, a region that is too small or misaligned, an output that overlaps an input, an
//! error outside of `scoped`, memory that was not allocated.

use std::collections::{HashMap, HashSet, VecDeque};
use std::fmt;
use std::future::poll_fn;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::Poll;

use kiln_device::waiting::Waiting;
use kiln_device::{
    Bindings, Driver, Executable, KernelTime, Location, Lowering, Plan, Profile, Read, Region, RegionOf, Shared, Value,
};
use kiln_ir::graph::{Fused, FusionLimits, TensorId};
use kiln_ir::op::{Custom, Op, RmsNorm};
use kiln_ir::{Buffer, Error, Result, TensorType};

use super::steps::{self, HostKernel, HostStep, Kernel};

/// How the device is opened.
#[derive(Debug, Clone)]
pub(crate) struct HostOptions {
    /// Bytes of device memory.
    pub(crate) memory: u64,
    /// Bytes of the largest allocation.
    pub(crate) largest: u64,
    /// Free bytes that the pool keeps.
    pub(crate) most_free: u64,
    /// Offsets at which a view may begin are multiples of this.
    pub(crate) view_alignment: u64,
    /// Whether executions time each kernel.
    pub(crate) profiles: bool,
    /// Whether operations between slices of the host run in their direct form.
    pub(crate) direct: bool,
    /// Whether results that are read are in memory that the host maps.
    pub(crate) host_results: bool,
    /// Whether methods without a `Waiting` are pending once, too.
    pub(crate) suspends: bool,
    /// Whether a lack of memory is reported by `scoped`, as WebGPU does, and not by the allocation.
    pub(crate) late_errors: bool,
    /// How large fused chains may be.
    pub(crate) fusion: FusionLimits,
    /// The name of an operation that has no kernel.
    pub(crate) unsupported: Option<&'static str>,
    /// The name of a kernel whose results are wrong.
    pub(crate) wrong: Option<&'static str>,
}

impl Default for HostOptions {
    fn default() -> Self {
        Self {
            memory: 1 << 30,
            largest: 1 << 30,
            most_free: 1 << 20,
            view_alignment: 16,
            profiles: false,
            direct: false,
            host_results: false,
            suspends: false,
            late_errors: false,
            fusion: FusionLimits::default(),
            unsupported: None,
            wrong: None,
        }
    }
}

/// Names a device, and counts how often it was opened.
#[derive(Debug, Clone, Default)]
pub(crate) struct HostChoice {
    /// The name in error messages.
    pub(crate) name: String,
    /// How often it was opened, or tried to.
    pub(crate) opened: Arc<AtomicU64>,
    /// Whether opening it fails.
    pub(crate) missing: bool,
}

/// The properties that plans depend on.
#[derive(Debug)]
pub(crate) struct HostTarget {
    pub(crate) fusion: FusionLimits,
    pub(crate) unsupported: Option<&'static str>,
}

/// The bytes of an allocation, made at the first access: tests may allocate more than the machine has.
#[derive(Debug)]
struct Bytes {
    size: usize,
    /// Whether the device reported late that it could not be allocated.
    is_missing: AtomicBool,
    data: Mutex<Vec<u8>>,
}

impl Bytes {
    /// The bytes; all ones, which are NaNs and invalid indices, where nothing was written.
    fn lock(&self) -> MutexGuard<'_, Vec<u8>> {
        let mut data = lock(&self.data);
        data.resize(self.size, 0xff);
        data
    }
}

/// An allocation of device memory.
pub(crate) struct HostMemory {
    bytes: Arc<Bytes>,
    size: u64,
    used: Arc<AtomicU64>,
}

impl fmt::Debug for HostMemory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostMemory({} bytes)", self.size)
    }
}

impl Drop for HostMemory {
    fn drop(&mut self) {
        self.used.fetch_sub(self.size, Ordering::SeqCst);
    }
}

/// Part of an allocation, as a queued command names it. It does not keep the memory allocated.
#[derive(Debug, Clone)]
struct Span {
    bytes: Arc<Bytes>,
    offset: usize,
    len: usize,
}

impl Span {
    fn of(region: &Region<HostMemory>, offset: u64, len: u64) -> Result<Self> {
        assert!(offset + len <= region.bytes(), "{len} bytes from {offset} on exceed a region of {}", region.bytes());
        let bytes = region.memory()?.bytes.clone();
        Ok(Self { bytes, offset: (region.offset() + offset) as usize, len: len as usize })
    }

    fn read(&self, to: &mut [u8]) {
        assert!(!self.bytes.is_missing.load(Ordering::SeqCst), "memory that was not allocated is read");
        to.copy_from_slice(&self.bytes.lock()[self.offset..][..self.len]);
    }

    fn write(&self, from: &[u8]) {
        self.bytes.lock()[self.offset..][..self.len].copy_from_slice(from);
    }

    fn overlaps(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.bytes, &other.bytes)
            && self.offset < other.offset + other.len
            && other.offset < self.offset + self.len
    }
}

/// A step that is bound to memory.
#[derive(Debug)]
struct BoundStep {
    kernel: Kernel,
    name: &'static str,
    inputs: Vec<(TensorType, Span)>,
    outputs: Vec<(TensorType, Span)>,
    fault: Option<Span>,
    /// Whether its results are made wrong.
    wrong: bool,
}

impl BoundStep {
    fn run(&self) {
        let inputs = self.inputs.iter().map(|(ty, span)| {
            let mut data = Buffer::zeros(ty).unwrap();
            span.read(data.as_mut().as_bytes());
            (*ty, data)
        });
        let types: Vec<TensorType> = self.outputs.iter().map(|(ty, _)| *ty).collect();
        let (mut results, fault) = steps::evaluate(&self.kernel, &inputs.collect::<Vec<_>>(), &types).unwrap();
        for ((_, span), result) in self.outputs.iter().zip(&mut results) {
            if self.wrong
                && let Some(first) = result.as_mut().f32().first_mut()
            {
                *first += 1.0;
            }
            span.write(result.as_data().as_bytes());
        }
        if let (Some(words), Some((position, index))) = (&self.fault, fault) {
            words.write(&[position.to_le_bytes(), index.to_le_bytes()].concat());
        }
    }
}

/// Steps that are compiled and bound to memory.
#[derive(Debug)]
pub(crate) struct HostProgram(Arc<Vec<BoundStep>>);

/// An operation between slices of the host.
#[derive(Debug)]
pub(crate) struct HostDirect {
    executable: Executable<HostDevice>,
    inputs: Vec<TensorId>,
    bytes: u64,
}

/// Results in memory that the host maps, in the order in which they are wanted.
#[derive(Debug)]
pub(crate) struct HostResults(Vec<Region<HostMemory>>);

/// The failures to come, and the work that is queued.
#[derive(Default)]
struct State {
    /// How many submissions of programs may still pass the gate; any number if it is open.
    gate: Option<usize>,
    /// Submissions that wait at the gate.
    at_gate: usize,
    /// The error of submissions of several programs.
    fails_together: Option<fn() -> Error>,
    queue: VecDeque<Box<dyn FnOnce() + Send>>,
    lost: Option<String>,
    /// Submissions until the device is lost.
    lost_in: Option<u64>,
    /// Bytes that `scoped` reports as not allocated.
    late_error: Option<u64>,
    /// Calls of `scoped` whose work runs.
    scopes: usize,
    /// The name of a kernel that does not compile.
    refused: Option<&'static str>,
    compiled: HashSet<String>,
    submissions: u64,
    allocations: u64,
    /// Allocations until one fails, and whether all later ones fail, too.
    allocation_fails_in: Option<(u64, bool)>,
    /// Kernels that are compiled until one is refused.
    refused_in: Option<u64>,
    reads: u64,
    /// Reads until one ends early.
    read_fails_in: Option<u64>,
}

struct Inner {
    name: String,
    options: HostOptions,
    target: HostTarget,
    shared: Shared<HostMemory>,
    used: Arc<AtomicU64>,
    limit: AtomicU64,
    state: Mutex<State>,
    gate_changed: Condvar,
}

/// An open device.
#[derive(Clone)]
pub(crate) struct HostDevice(Arc<Inner>);

impl fmt::Debug for HostDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HostDevice({})", self.0.name)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Is pending once.
async fn suspend() {
    let mut first = true;
    poll_fn(|context| {
        if std::mem::take(&mut first) {
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        Poll::Ready(())
    })
    .await;
}

kiln_device::device_methods!(HostDevice);

impl HostDevice {
    /// A device with these options.
    pub(crate) fn new(options: HostOptions) -> Self {
        Self::named("the test device", options)
    }

    /// A device with this name in error messages.
    pub(crate) fn named(name: &str, options: HostOptions) -> Self {
        Self(Arc::new(Inner {
            name: name.to_owned(),
            target: HostTarget { fusion: options.fusion, unsupported: options.unsupported },
            shared: Shared::new(16, options.most_free, u64::MAX),
            used: Arc::default(),
            limit: options.memory.into(),
            state: Mutex::default(),
            gate_changed: Condvar::new(),
            options,
        }))
    }

    /// Loses the device now.
    pub(crate) fn lose(&self) {
        let mut state = lock(&self.0.state);
        state.queue.clear();
        state.lost.get_or_insert_with(|| "it was unplugged".into());
    }

    /// Loses the device at the `n`-th submission from now on, counted from 0. Submissions are writes, copies, programs and
    /// reads.
    pub(crate) fn lose_at(&self, n: u64) {
        lock(&self.0.state).lost_in = Some(n);
    }

    /// Submissions so far, as [`HostDevice::lose_at`] counts them.
    pub(crate) fn submissions(&self) -> u64 {
        lock(&self.0.state).submissions
    }

    /// Changes the bytes of device memory.
    pub(crate) fn limit_memory(&self, bytes: u64) {
        self.0.limit.store(bytes, Ordering::SeqCst);
    }

    /// Lets the `n`-th allocation from now on fail, counted from 0; all later ones, too, if this `lasts`. `None` ends it.
    pub(crate) fn fail_allocation(&self, n: Option<u64>, lasts: bool) {
        lock(&self.0.state).allocation_fails_in = n.map(|n| (n, lasts));
    }

    /// Refuses to compile the `n`-th kernel from now on that is not compiled, counted from 0, and all later ones. `None` ends it.
    pub(crate) fn refuse_from(&self, n: Option<u64>) {
        lock(&self.0.state).refused_in = n;
    }

    /// Lets the `n`-th read from now on, counted from 0, end after half of its bytes. `None` ends it.
    pub(crate) fn fail_read(&self, n: Option<u64>) {
        lock(&self.0.state).read_fails_in = n;
    }

    /// Reads of device memory so far.
    pub(crate) fn reads(&self) -> u64 {
        lock(&self.0.state).reads
    }

    /// Counts a read; whether it is the one that ends early.
    fn read_fails(&self) -> bool {
        let mut state = lock(&self.0.state);
        state.reads += 1;
        let left = state.read_fails_in;
        state.read_fails_in = left.and_then(|left| left.checked_sub(1));
        left == Some(0)
    }

    /// Bytes allocated from the driver: live ones, pooled ones, and those beside the pool.
    pub(crate) fn allocated(&self) -> u64 {
        self.0.used.load(Ordering::SeqCst)
    }

    /// Allocations of device memory so far.
    pub(crate) fn allocations(&self) -> u64 {
        lock(&self.0.state).allocations
    }

    /// Refuses to compile kernels of this name, or no longer any.
    pub(crate) fn refuse(&self, kernel: Option<&'static str>) {
        lock(&self.0.state).refused = kernel;
    }

    /// Kernels compiled so far.
    pub(crate) fn compilations(&self) -> usize {
        lock(&self.0.state).compiled.len()
    }

    /// Counts an allocation; whether it is one that fails.
    fn allocation_fails(&self) -> bool {
        match &mut lock(&self.0.state).allocation_fails_in {
            Some((0, true)) => true,
            ends @ Some((0, false)) => {
                *ends = None;
                true
            }
            Some((left, _)) => {
                *left -= 1;
                false
            }
            None => false,
        }
    }

    fn lost(&self, reason: &str) -> Error {
        Error::DeviceLost { device: self.0.name.clone(), reason: reason.to_owned() }
    }

    /// Queues a command.
    fn submit(&self, command: impl FnOnce() + Send + 'static) -> Result<()> {
        let mut state = lock(&self.0.state);
        if state.lost_in == Some(0) {
            state.queue.clear();
            state.lost.get_or_insert_with(|| "it was unplugged".into());
        }
        if let Some(reason) = &state.lost {
            return Err(self.lost(reason));
        }
        state.lost_in = state.lost_in.map(|left| left - 1);
        state.submissions += 1;
        state.queue.push_back(Box::new(command));
        Ok(())
    }

    /// Runs all queued commands, in order.
    fn flush(&self) {
        let mut state = lock(&self.0.state);
        while let Some(command) = state.queue.pop_front() {
            command();
        }
    }

    /// Lets this many submissions of programs pass, and all others wait. `None` lets all pass.
    pub(crate) fn set_gate(&self, passing: Option<usize>) {
        lock(&self.0.state).gate = passing;
        self.0.gate_changed.notify_all();
    }

    /// Waits until this many submissions wait at the gate.
    pub(crate) fn await_at_gate(&self, submissions: usize) {
        let state = lock(&self.0.state);
        let others = |state: &mut State| state.at_gate != submissions;
        drop(self.0.gate_changed.wait_while(state, others).unwrap_or_else(PoisonError::into_inner));
    }

    /// Lets submissions of several programs fail, or no longer.
    pub(crate) fn fail_together(&self, error: Option<fn() -> Error>) {
        lock(&self.0.state).fails_together = error;
    }

    fn pass_gate(&self) {
        let mut state = lock(&self.0.state);
        state.at_gate += 1;
        self.0.gate_changed.notify_all();
        let closed = |state: &mut State| state.gate == Some(0);
        state = self.0.gate_changed.wait_while(state, closed).unwrap_or_else(PoisonError::into_inner);
        state.gate = state.gate.map(|passing| passing - 1);
        state.at_gate -= 1;
        self.0.gate_changed.notify_all();
    }

    fn submit_program(&self, program: &HostProgram, faults: Option<&Region<HostMemory>>) -> Result<()> {
        self.submit_programs(&[(program, faults)])
    }

    /// Submits programs together.
    fn submit_programs(&self, programs: &[(&HostProgram, Option<&Region<HostMemory>>)]) -> Result<()> {
        let faults = programs.iter().filter_map(|(_, faults)| faults.map(|region| Span::of(region, 0, region.bytes())));
        let faults = faults.collect::<Result<Vec<_>>>()?;
        let programs: Vec<_> = programs.iter().map(|(program, _)| program.0.clone()).collect();
        self.pass_gate();
        let fails = lock(&self.0.state).fails_together.filter(|_| programs.len() > 1);
        if let Some(error) = fails {
            return Err(error());
        }
        self.0.shared.counters.submitted(1, programs.iter().map(|steps| steps.len()).sum());
        self.submit(move || {
            faults.iter().for_each(|faults| faults.write(&vec![0xff; faults.len]));
            programs.iter().flat_map(|steps| steps.iter()).for_each(BoundStep::run);
        })
    }

    async fn suspend_if(&self, suspends: bool) {
        if suspends {
            suspend().await;
        }
    }
}

impl Driver for HostDevice {
    type Choice = HostChoice;
    type Options = HostOptions;
    type Target = HostTarget;
    type Memory = HostMemory;
    type Step = HostStep;
    type Program = HostProgram;
    type Direct = HostDirect;
    type HostResults = HostResults;

    const FAULT_STRIDE: u64 = 256;
    const FAULT_POSITION: usize = 0;
    const COPY_ALIGNMENT: u64 = 4;
    // Its default `begin` never submits, as that of a device whose results are too large does.
    const BEGINS: bool = true;
    const MOST_READY_BYTES: u64 = 1 << 16;

    async fn open_device(choice: &HostChoice, options: &HostOptions, waiting: Waiting) -> Result<Self> {
        if waiting == Waiting::Elsewhere {
            suspend().await;
        }
        let attempt = choice.opened.fetch_add(1, Ordering::SeqCst) + 1;
        if choice.missing {
            return Err(Error::Unavailable { what: choice.name.clone(), reason: format!("attempt {attempt} failed") });
        }
        Ok(Self::named(&choice.name, options.clone()))
    }

    fn hardware() -> Result<Vec<HostChoice>> {
        let choice = |name: &str| HostChoice { name: name.to_owned(), ..HostChoice::default() };
        Ok(vec![choice("first"), HostChoice { missing: true, ..choice("second") }, choice("third")])
    }

    fn label(&self) -> String {
        self.0.name.clone()
    }

    fn target(&self) -> &HostTarget {
        &self.0.target
    }

    fn shared(&self) -> &Shared<HostMemory> {
        &self.0.shared
    }

    fn check_alive(&self) -> Result<()> {
        lock(&self.0.state).lost.as_deref().map_or(Ok(()), |reason| Err(self.lost(reason)))
    }

    fn is_profiling(&self) -> bool {
        self.0.options.profiles
    }

    fn view_alignment(&self) -> u64 {
        self.0.options.view_alignment
    }

    async fn scoped<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        Self::scoped_together(std::slice::from_ref(self), what, bytes, work).await
    }

    async fn scoped_together<T>(devices: &[Self], _: &str, _: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        devices.iter().try_for_each(Self::check_alive)?;
        devices.iter().for_each(|device| lock(&device.0.state).scopes += 1);
        let result = work();
        let mut late = None;
        for device in devices {
            let mut state = lock(&device.0.state);
            state.scopes -= 1;
            late = late.or(state.late_error.take());
        }
        for device in devices {
            device.suspend_if(device.0.options.suspends).await;
        }
        devices.iter().try_for_each(Self::check_alive)?;
        if let Some(bytes) = late {
            // Memory that was not allocated must not be reused, so the result returns to the pool first.
            drop(result);
            devices.iter().for_each(Self::trim);
            return Err(Error::OutOfMemory { bytes: bytes as usize });
        }
        result
    }

    fn allocate(&self, bytes: u64) -> Result<HostMemory> {
        self.check_alive()?;
        let limit = self.0.options.largest;
        if bytes > limit {
            return Err(Error::Limit { what: "bytes of one tensor", device: self.label(), asked: bytes, limit });
        }
        let used = self.0.used.fetch_add(bytes, Ordering::SeqCst) + bytes;
        // Already counted: dropping it subtracts its size, also on failure.
        let data = Arc::new(Bytes { size: bytes as usize, is_missing: AtomicBool::new(false), data: Mutex::default() });
        let memory = HostMemory { bytes: data, size: bytes, used: self.0.used.clone() };
        let fails = self.allocation_fails();
        if fails || used > self.0.limit.load(Ordering::SeqCst) {
            if !self.0.options.late_errors {
                return Err(Error::OutOfMemory { bytes: bytes as usize });
            }
            let mut state = lock(&self.0.state);
            assert!(state.scopes > 0, "{}: an error that no scope catches", self.0.name);
            state.late_error.get_or_insert(bytes);
            memory.bytes.is_missing.store(true, Ordering::SeqCst);
        }
        lock(&self.0.state).allocations += 1;
        self.0.shared.counters.storage_buffers.add(1);
        Ok(memory)
    }

    fn trim_staging(&self) {}

    fn fusion_limits(target: &HostTarget) -> FusionLimits {
        target.fusion
    }

    fn has_kernel(custom: &Custom) -> bool {
        custom.kernel::<HostKernel>().is_some()
    }

    fn lower(op: &Op, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        steps::lower(op, plan, inputs, outputs)
    }

    fn lower_fused(fused: &Fused, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        fused.check()?;
        let kernel = Kernel::Fused(fused.clone());
        plan.push(HostStep { kernel, inputs: inputs.to_vec(), outputs: outputs.to_vec(), fault: None });
        Ok(())
    }

    fn lower_round(
        op: &Op,
        _norm: Option<&RmsNorm>,
        plan: &mut Lowering<'_, Self>,
        operands: &[[Vec<Value>; 2]],
    ) -> Result<bool> {
        Ok(steps::lower_round(op, plan, operands))
    }

    fn widen(plan: &mut Lowering<'_, Self>, value: Value) -> Result<Value> {
        Ok(steps::widen(plan, value))
    }

    async fn compile(&self, steps: &[HostStep]) -> Result<()> {
        self.check_alive()?;
        self.suspend_if(self.0.options.suspends).await;
        let mut state = lock(&self.0.state);
        for step in steps {
            let compiled = state.compiled.contains(&step.code());
            let counted = !compiled && state.refused_in == Some(0);
            if counted || !compiled && state.refused == Some(step.name()) {
                let (what, message) = (format!("compiling {}", step.name()), "it is refused".into());
                return Err(Error::Driver { what, device: self.label(), message });
            }
            if !compiled {
                state.refused_in = state.refused_in.map(|left| left - 1);
            }
            state.compiled.insert(step.code());
        }
        Ok(())
    }

    fn bind(&self, steps: Vec<HostStep>, memory: &Bindings<HostMemory>) -> Result<HostProgram> {
        let find = |at: Location, bytes: u64| {
            let region = memory.find(at)?;
            assert!(region.offset().is_multiple_of(self.view_alignment()), "{at:?} begins at {}", region.offset());
            Span::of(&region, 0, bytes)
        };
        let value = |value: &Value| Ok((value.ty, find(value.at, value.ty.bytes() as u64)?));
        let bound = steps.into_iter().map(|step| {
            assert!(lock(&self.0.state).compiled.contains(&step.code()), "{} is not compiled", step.name());
            let inputs = step.inputs.iter().map(value).collect::<Result<Vec<_>>>()?;
            let outputs = step.outputs.iter().map(value).collect::<Result<Vec<_>>>()?;
            // The output of an update already contains the first operand.
            let read = &inputs[usize::from(step.updates())..];
            let overlap = |(_, output): &(TensorType, Span)| read.iter().any(|(_, input)| input.overlaps(output));
            assert!(!outputs.iter().any(overlap), "{step:?} overwrites what it reads");
            let fault = step.fault.map(|at| find(at, 8)).transpose()?;
            let name = step.name();
            let wrong = self.0.options.wrong == Some(name);
            self.0.shared.counters.bind_groups.add(1);
            Ok(BoundStep { kernel: step.kernel, name, inputs, outputs, fault, wrong })
        });
        Ok(HostProgram(Arc::new(bound.collect::<Result<_>>()?)))
    }

    fn write(&self, to: &RegionOf<Self>, bytes: &[u8]) -> Result<()> {
        let (to, bytes) = (Span::of(to, 0, bytes.len() as u64)?, bytes.to_vec());
        self.submit(move || to.write(&bytes))
    }

    fn copy(&self, from: &RegionOf<Self>, offset: u64, to: &RegionOf<Self>, bytes: u64) -> Result<()> {
        assert!(offset.is_multiple_of(Self::COPY_ALIGNMENT), "a copy begins at {offset}");
        let (from, to) = (Span::of(from, offset, bytes)?, Span::of(to, 0, bytes)?);
        self.0.shared.counters.submitted(1, 0);
        self.submit(move || {
            let mut copied = vec![0; from.len];
            from.read(&mut copied);
            to.write(&copied);
        })
    }

    async fn run(
        &self,
        program: &mut HostProgram,
        faults: Option<&RegionOf<Self>>,
        reads: &mut [Read<'_, HostMemory>],
        waiting: Waiting,
    ) -> Result<()> {
        self.submit_program(program, faults)?;
        self.read(reads, waiting).await
    }

    async fn run_all(
        &self,
        programs: &mut [(&mut HostProgram, Option<&RegionOf<Self>>)],
        reads: &mut [Read<'_, HostMemory>],
        waiting: Waiting,
    ) -> Result<()> {
        let programs: Vec<_> = programs.iter().map(|(program, faults)| (&**program, *faults)).collect();
        self.submit_programs(&programs)?;
        self.read(reads, waiting).await
    }

    async fn repeat(&self, program: &mut HostProgram, faults: Option<&RegionOf<Self>>, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| self.submit_program(program, faults))
    }

    async fn read(&self, reads: &mut [Read<'_, HostMemory>], waiting: Waiting) -> Result<()> {
        self.suspend_if(waiting == Waiting::Elsewhere).await;
        let bytes: u64 = reads.iter().map(|read| read.to.len() as u64).sum();
        if bytes == 0 {
            return self.check_alive();
        }
        self.submit(|| {})?;
        self.flush();
        self.0.shared.counters.downloaded(bytes);
        let fails = self.read_fails();
        for read in reads {
            let most = if fails { read.to.len() / 2 } else { read.to.len() };
            Span::of(&read.from, 0, most as u64)?.read(&mut read.to[..most]);
        }
        match fails {
            true => Err(Error::Driver {
                what: "reading".into(),
                device: self.label(),
                message: "it ended after half of the bytes".into(),
            }),
            false => Ok(()),
        }
    }

    async fn wait(&self, waiting: Waiting) -> Result<()> {
        self.suspend_if(waiting == Waiting::Elsewhere).await;
        self.check_alive()?;
        self.flush();
        Ok(())
    }

    async fn times(&self, program: &HostProgram, waiting: Waiting) -> Result<Profile> {
        self.suspend_if(waiting == Waiting::Elsewhere).await;
        self.check_alive()?;
        let kernel = |(at, step): (usize, &BoundStep)| KernelTime {
            name: step.name.to_owned(),
            grid: [1; 3],
            resident_blocks: None,
            nanoseconds: 1000.0 * (at + 1) as f64,
        };
        Ok(Profile { kernels: program.0.iter().enumerate().map(kernel).collect() })
    }

    fn is_direct(&self, _: &Op, _: &[TensorType], _: &Plan<Self>) -> bool {
        self.0.options.direct
    }

    async fn make_direct(&self, _: &Op, plan: Plan<Self>, inputs: &[TensorId]) -> Result<HostDirect> {
        let bytes = plan.inputs.iter().map(|input| input.1).chain(plan.results.iter().map(|result| result.1)).sum();
        let executable = Executable::new(self, plan, &HashMap::new()).await?;
        Ok(HostDirect { executable, inputs: inputs.to_vec(), bytes })
    }

    async fn run_direct(
        &self,
        direct: &mut HostDirect,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()> {
        for (id, bytes) in direct.inputs.iter().zip(inputs) {
            if let Some(region) = direct.executable.input(*id) {
                self.write(region, bytes)?;
            }
        }
        let reads = outputs.iter_mut().map(|output| &mut **output).enumerate().collect();
        direct.executable.run(reads, waiting).await
    }

    fn direct_bytes(direct: &HostDirect) -> u64 {
        direct.bytes
    }

    async fn host_results(
        &self,
        plan: &Plan<Self>,
        given: &mut HashMap<TensorId, RegionOf<Self>>,
    ) -> Result<Option<HostResults>> {
        if !self.0.options.host_results {
            return Ok(None);
        }
        let mut regions = Vec::new();
        for &(location, bytes) in &plan.results {
            let (Location::Result(id) | Location::Input(id)) = location else {
                panic!("{location:?} is no location of a result");
            };
            let region = match given.get(&id) {
                Some(region) => region.clone(),
                None => {
                    let size = bytes.next_multiple_of(16).max(16);
                    Region::unpooled(self.scoped("results", size, || self.allocate(size)).await?, size)
                }
            };
            given.insert(id, region.clone());
            regions.push(region);
        }
        Ok(Some(HostResults(regions)))
    }

    async fn read_host_results(
        &self,
        results: &HostResults,
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()> {
        let reads = results.0.iter().zip(outputs).map(|(from, to)| Read { from: from.clone(), to });
        self.read(&mut reads.collect::<Vec<_>>(), waiting).await
    }
}
