//! Several devices that run the same plans in step, each on memory of its own: one device for the device layer.
//!
//! A graph is recorded with the extents that one device sees. What is uploaded goes to all devices, except for tensors of
//! parts: each device gets its own part. Every device runs every launch; [`AllReduce`] adds what they hold. Results are read
//! from the first device.

use std::collections::HashMap;
use std::convert::Infallible;
use std::sync::Arc;

use kiln_ir::graph::{Fused, FusionLimits, TensorId};
use kiln_ir::op::{AllReduce, Custom, Elementwise, Op, RmsNorm};
use kiln_ir::{DType, Data, DataMut, Error, Result, TensorType};

use crate::driver::{Driver, Read, RegionOf, Shared};
use crate::location::{Location, Value};
use crate::lower::Lowering;
use crate::memory::Region;
use crate::plan::{Bindings, Plan};
use crate::profile::Profile;
use crate::waiting::Waiting;

/// Devices of one backend that work as one; a handle that is cheap to clone.
///
/// Sums over the devices run on them where the backend has a kernel for that ([`Driver::lower_all_reduce`]), otherwise on the host.
#[derive(Debug)]
pub struct Group<D: Driver>(Arc<Inner<D>>);

#[derive(Debug)]
struct Inner<D: Driver> {
    devices: Vec<D>,
    target: GroupTarget<D>,
    shared: Shared<GroupMemory<D>>,
    /// For each device the memory through which the others send to it; empty where sums run on the host.
    exchange: Vec<RegionOf<D>>,
}

/// The properties that plans of a group depend on: those of its devices, which are alike.
#[derive(Debug)]
pub struct GroupTarget<D: Driver> {
    first: D,
    devices: usize,
}

/// Memory of a group: an allocation on each device.
#[derive(Debug)]
pub struct GroupMemory<D: Driver>(Vec<RegionOf<D>>);

/// A launch on every device, or a sum over the devices on the host.
#[derive(Debug)]
pub enum GroupStep<D: Driver> {
    /// A launch.
    Launch(D::Step),
    /// A sum of this many f32.
    Sum {
        /// The operand.
        from: Location,
        /// The result.
        to: Location,
        /// Elements.
        count: usize,
    },
}

/// Steps that are bound to the memory of each device.
#[derive(Debug)]
pub struct GroupProgram<D: Driver>(Vec<Part<D>>);

#[derive(Debug)]
enum Part<D: Driver> {
    /// A program of each device.
    Launches(Vec<D::Program>),
    Sum {
        from: Region<GroupMemory<D>>,
        to: Region<GroupMemory<D>>,
        count: usize,
    },
}

impl<D: Driver> Clone for Group<D> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<D: Driver> Clone for GroupStep<D> {
    fn clone(&self) -> Self {
        match self {
            Self::Launch(step) => Self::Launch(step.clone()),
            &Self::Sum { from, to, count } => Self::Sum { from, to, count },
        }
    }
}

impl<D: Driver> GroupStep<D> {
    /// The launch; `None` for a sum on the host.
    fn launch(&self) -> Option<D::Step> {
        match self {
            Self::Launch(step) => Some(step.clone()),
            Self::Sum { .. } => None,
        }
    }
}

impl<D: Driver> Group<D> {
    /// A group of these devices.
    ///
    /// # Errors
    /// [`Error::Parameter`] for fewer than two devices, or the same one twice; [`Error::Unavailable`] where they cannot reach each
    /// other; the errors of allocation.
    pub fn new(devices: Vec<D>) -> Result<Self> {
        let wrong = |reason: String| Err(Error::Parameter { op: "group", reason });
        let Some(first) = devices.first().filter(|_| devices.len() > 1) else {
            return wrong(format!("a group needs at least 2 devices, found {}", devices.len()));
        };
        for (at, device) in devices.iter().enumerate() {
            if devices[..at].iter().any(|other| crate::driver::is_same(device, other)) {
                return wrong(format!("{} is in the group twice", device.label()));
            }
        }
        let exchange = D::exchange(&devices)?;
        let pool = &first.shared().pool;
        let largest = devices.iter().map(|device| device.shared().pool.largest()).min();
        let shared = Shared::new(pool.granularity(), pool.most_free(), largest.unwrap_or(u64::MAX));
        let target = GroupTarget { first: first.clone(), devices: devices.len() };
        Ok(Self(Arc::new(Inner { devices, target, shared, exchange })))
    }

    /// Its devices.
    pub fn devices(&self) -> &[D] {
        &self.0.devices
    }

    /// Adds f32 of all devices in their order, on the host.
    async fn sum(
        &self,
        from: &Region<GroupMemory<D>>,
        to: &Region<GroupMemory<D>>,
        count: usize,
        waiting: Waiting,
    ) -> Result<()> {
        let mut sums = vec![0.0f32; count];
        let mut part = vec![0.0f32; count];
        for (at, device) in self.0.devices.iter().enumerate() {
            let into = if at == 0 { &mut sums } else { &mut part };
            let mut into = DataMut::F32(into);
            let mut reads = [Read { from: of_device(from, at)?, to: into.as_bytes() }];
            device.read(&mut reads, waiting).await?;
            if at > 0 {
                sums.iter_mut().zip(&part).for_each(|(sum, x)| *sum += x);
            }
        }
        let sums = Data::F32(&sums).as_bytes();
        self.scoped("a sum over devices", sums.len() as u64, || self.write(to, sums)).await
    }
}

/// The region of one device.
fn of_device<D: Driver>(region: &Region<GroupMemory<D>>, at: usize) -> Result<RegionOf<D>> {
    let missing = || Error::Parameter { op: "group", reason: format!("memory without a part for device {at}") };
    let whole = region.memory()?.0.get(at).ok_or_else(missing)?;
    whole.part(region.offset(), region.bytes(), 1).ok_or_else(missing)
}

/// Lowers for one of the devices.
fn for_device<D: Driver, T>(
    plan: &mut Lowering<'_, Group<D>>,
    lower: impl FnOnce(&mut Lowering<'_, D>) -> Result<T>,
) -> Result<T> {
    let target = plan.target;
    let mut steps = Vec::new();
    let lowered = plan.with_steps(target.first.target(), &mut steps, lower);
    steps.into_iter().for_each(|step| plan.push(GroupStep::Launch(step)));
    lowered
}

/// Devices of a group answer one after another: each submits without waiting, so they compute at the same time.
impl<D: Driver> Driver for Group<D> {
    /// The devices.
    type Choice = Vec<D::Choice>;
    type Options = D::Options;
    type Target = GroupTarget<D>;
    type Memory = GroupMemory<D>;
    type Step = GroupStep<D>;
    type Program = GroupProgram<D>;
    type Direct = Infallible;
    type HostResults = Infallible;

    const FAULT_STRIDE: u64 = D::FAULT_STRIDE;
    const FAULT_POSITION: usize = D::FAULT_POSITION;
    const COPY_ALIGNMENT: u64 = D::COPY_ALIGNMENT;
    const MOST_READY_BYTES: u64 = D::MOST_READY_BYTES;

    async fn open_device(choice: &Vec<D::Choice>, options: &D::Options, waiting: Waiting) -> Result<Self> {
        let mut devices = Vec::with_capacity(choice.len());
        for choice in choice {
            devices.push(D::open_device(choice, options, waiting).await?);
        }
        Self::new(devices)
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn hardware() -> Result<Vec<Vec<D::Choice>>> {
        Ok(vec![D::hardware()?])
    }

    fn label(&self) -> String {
        self.0.devices.iter().map(Driver::label).collect::<Vec<_>>().join(" + ")
    }

    fn target(&self) -> &GroupTarget<D> {
        &self.0.target
    }

    fn shared(&self) -> &Shared<GroupMemory<D>> {
        &self.0.shared
    }

    fn check_alive(&self) -> Result<()> {
        self.0.devices.iter().try_for_each(Driver::check_alive)
    }

    fn is_profiling(&self) -> bool {
        self.0.target.first.is_profiling()
    }

    /// Those of the device that has the fewest.
    fn free_bytes(&self) -> Result<Option<u64>> {
        let mut least = None;
        for device in &self.0.devices {
            let Some(free) = device.free_bytes()? else { return Ok(None) };
            least = Some(least.map_or(free, |least: u64| least.min(free)));
        }
        Ok(least)
    }

    fn view_alignment(&self) -> u64 {
        self.0.target.first.view_alignment()
    }

    async fn scoped<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let done = D::scoped_together(&self.0.devices, what, bytes, work).await;
        if matches!(done, Err(Error::OutOfMemory { .. })) {
            // The pool of the group may hold what a device reported late as not allocated.
            crate::bodies::trim(self);
        }
        done
    }

    fn allocate(&self, bytes: u64) -> Result<GroupMemory<D>> {
        let of = |device: &D| Ok(Region::unpooled(device.allocate(bytes)?, bytes));
        Ok(GroupMemory(self.0.devices.iter().map(of).collect::<Result<_>>()?))
    }

    fn trim_staging(&self) {
        self.0.devices.iter().for_each(Driver::trim_staging);
    }

    fn fusion_limits(target: &GroupTarget<D>) -> FusionLimits {
        D::fusion_limits(target.first.target())
    }

    fn has_kernel(custom: &Custom) -> bool {
        D::has_kernel(custom)
    }

    fn lower(op: &Op, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (Op::AllReduce(AllReduce), &[from, ref addend @ ..], &[to]) = (op, inputs, outputs) else {
            return for_device(plan, |plan| D::lower(op, plan, inputs, outputs));
        };
        let addend = addend.first().copied();
        let (devices, count) = (plan.target.devices, to.ty.shape.numel());
        let is_wide = from.ty.dtype == DType::F32;
        let from = if is_wide { from } else { for_device(plan, |plan| D::widen(plan, from))? };
        if count == 0 || for_device(plan, |plan| D::lower_all_reduce(plan, devices, from, addend, to))? {
            return Ok(());
        }
        let Some(addend) = addend else {
            plan.push(GroupStep::Sum { from: from.at, to: to.at, count });
            return Ok(());
        };
        let sum = plan.scratch(to.ty);
        plan.push(GroupStep::Sum { from: from.at, to: sum.at, count });
        for_device(plan, |plan| D::lower(&Elementwise::add().into(), plan, &[sum, addend], outputs))
    }

    fn lower_normed(
        norm: &RmsNorm,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        for_device(plan, |plan| D::lower_normed(norm, op, plan, inputs, outputs))
    }

    fn lower_gated(
        gate: &Elementwise,
        norm: Option<&RmsNorm>,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        for_device(plan, |plan| D::lower_gated(gate, norm, op, plan, inputs, outputs))
    }

    fn lower_fused(fused: &Fused, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        for_device(plan, |plan| D::lower_fused(fused, plan, inputs, outputs))
    }

    fn lower_round(
        op: &Op,
        norm: Option<&RmsNorm>,
        plan: &mut Lowering<'_, Self>,
        operands: &[[Vec<Value>; 2]],
    ) -> Result<bool> {
        for_device(plan, |plan| D::lower_round(op, norm, plan, operands))
    }

    fn join(target: &GroupTarget<D>, steps: &mut Vec<GroupStep<D>>, begins: &[usize]) -> Result<()> {
        let Some(&first) = begins.first() else { return Ok(()) };
        // A sum that the host computes stays between the launches that it was recorded between.
        let Some(mut round) = steps[first..].iter().map(GroupStep::launch).collect::<Option<Vec<_>>>() else {
            return Ok(());
        };
        let begins: Vec<usize> = begins.iter().map(|&begin| begin - first).collect();
        D::join(target.first.target(), &mut round, &begins)?;
        steps.truncate(first);
        steps.extend(round.into_iter().map(GroupStep::Launch));
        Ok(())
    }

    fn widen(plan: &mut Lowering<'_, Self>, value: Value) -> Result<Value> {
        for_device(plan, |plan| D::widen(plan, value))
    }

    async fn compile(&self, steps: &[GroupStep<D>]) -> Result<()> {
        let launches: Vec<D::Step> = steps.iter().filter_map(GroupStep::launch).collect();
        for device in &self.0.devices {
            device.compile(&launches).await?;
        }
        Ok(())
    }

    fn bind(&self, steps: Vec<GroupStep<D>>, memory: &Bindings<GroupMemory<D>>) -> Result<GroupProgram<D>> {
        let of = |at: usize| memory.mapped(|region| of_device(region, at), &self.0.exchange, at);
        let memories = (0..self.0.devices.len()).map(of).collect::<Result<Vec<_>>>()?;
        let bind = |launches: Vec<D::Step>| {
            let each = self.0.devices.iter().zip(&memories);
            Ok(Part::Launches(
                each.map(|(device, memory)| device.bind(launches.clone(), memory)).collect::<Result<_>>()?,
            ))
        };
        let (mut parts, mut launches) = (Vec::new(), Vec::new());
        for step in steps {
            match step {
                GroupStep::Launch(step) => launches.push(step),
                GroupStep::Sum { from, to, count } => {
                    if !launches.is_empty() {
                        parts.push(bind(std::mem::take(&mut launches))?);
                    }
                    parts.push(Part::Sum { from: memory.find(from)?, to: memory.find(to)?, count });
                }
            }
        }
        // Also without launches: a program sets the words of faults.
        if !launches.is_empty() || parts.is_empty() {
            parts.push(bind(launches)?);
        }
        Ok(GroupProgram(parts))
    }

    fn write(&self, to: &RegionOf<Self>, bytes: &[u8]) -> Result<()> {
        let mut devices = self.0.devices.iter().enumerate();
        devices.try_for_each(|(at, device)| device.write(&of_device(to, at)?, bytes))
    }

    fn parts(&self) -> usize {
        self.0.devices.len()
    }

    fn write_part(&self, part: usize, to: &RegionOf<Self>, bytes: &[u8]) -> Result<()> {
        let to = of_device(to, part)?;
        self.0.devices[part].write(&to, bytes)
    }

    fn copy(&self, from: &RegionOf<Self>, offset: u64, to: &RegionOf<Self>, bytes: u64) -> Result<()> {
        let mut devices = self.0.devices.iter().enumerate();
        devices.try_for_each(|(at, device)| device.copy(&of_device(from, at)?, offset, &of_device(to, at)?, bytes))
    }

    /// Words of faults are those of the first device: indices are the same on all.
    async fn run(
        &self,
        program: &mut GroupProgram<D>,
        faults: Option<&RegionOf<Self>>,
        reads: &mut [Read<'_, GroupMemory<D>>],
        waiting: Waiting,
    ) -> Result<()> {
        let mut faults = match faults {
            Some(region) => {
                (0..self.0.devices.len()).map(|at| of_device(region, at).map(Some)).collect::<Result<_>>()?
            }
            None => vec![None; self.0.devices.len()],
        };
        for part in &mut program.0 {
            match part {
                Part::Launches(programs) => {
                    D::run_together(&self.0.devices, programs, &faults, waiting).await?;
                    // Later launches add to what earlier ones report.
                    faults.fill(None);
                }
                Part::Sum { from, to, count } => self.sum(from, to, *count, waiting).await?,
            }
        }
        self.read(reads, waiting).await
    }

    async fn repeat(&self, program: &mut GroupProgram<D>, faults: Option<&RegionOf<Self>>, times: usize) -> Result<()> {
        for _ in 0..times {
            self.run(program, faults, &mut [], Waiting::Elsewhere).await?;
        }
        Ok(())
    }

    async fn read(&self, reads: &mut [Read<'_, GroupMemory<D>>], waiting: Waiting) -> Result<()> {
        self.0.target.first.read(&mut of_first(reads)?, waiting).await
    }

    async fn wait(&self, waiting: Waiting) -> Result<()> {
        for device in &self.0.devices {
            device.wait(waiting).await?;
        }
        Ok(())
    }

    /// Those of the first device.
    async fn times(&self, program: &GroupProgram<D>, waiting: Waiting) -> Result<Profile> {
        let mut all = Profile::default();
        for part in &program.0 {
            if let Part::Launches(programs) = part
                && let Some(program) = programs.first()
            {
                all.kernels.extend(self.0.target.first.times(program, waiting).await?.kernels);
            }
        }
        Ok(all)
    }

    fn is_direct(&self, _: &Op, _: &[TensorType], _: &Plan<Self>) -> bool {
        false
    }

    async fn make_direct(&self, op: &Op, _: Plan<Self>, _: &[TensorId]) -> Result<Infallible> {
        Err(Error::Unsupported { op: op.name(), backend: "a group of devices" })
    }

    async fn run_direct(&self, direct: &mut Infallible, _: &[&[u8]], _: &mut [&mut [u8]], _: Waiting) -> Result<()> {
        match *direct {}
    }

    fn direct_bytes(direct: &Infallible) -> u64 {
        match *direct {}
    }

    async fn host_results(
        &self,
        _: &Plan<Self>,
        _: &mut HashMap<TensorId, RegionOf<Self>>,
    ) -> Result<Option<Infallible>> {
        Ok(None)
    }

    async fn read_host_results(&self, results: &Infallible, _: &mut [&mut [u8]], _: Waiting) -> Result<()> {
        match *results {}
    }
}

/// Reads of the memory of the first device.
fn of_first<'r, D: Driver>(reads: &'r mut [Read<'_, GroupMemory<D>>]) -> Result<Vec<Read<'r, D::Memory>>> {
    reads.iter_mut().map(|read| Ok(Read { from: of_device(&read.from, 0)?, to: &mut *read.to })).collect()
}
