//! Several devices, and work shared among them.

use std::sync::atomic::{AtomicU64, Ordering};

use kiln_core::op::{Op, check};
use kiln_core::{Data, DataMut, Error, Operand, Operations, Result, Shape, TensorType};

use crate::adapters::{AdapterChoice, AdapterKind};
use crate::{GpuBackend, GpuDevice};

/// Bytes of operands and results below which work is not shared. Not measured yet: sending these takes some hundreds of
/// microseconds, many times what the launch on another device adds.
const SHARED_FROM: u64 = 8 << 20;

/// Several devices, and work shared among them. The operations are the methods of [`Operations`].
///
/// An operation whose rows do not depend on one another, and that is large, is cut into as many parts as there are devices;
/// any other goes to the device with the least in flight. A device that is lost gets no more work.
#[derive(Debug)]
pub struct GpuDevicePool {
    members: Vec<Member>,
}

/// A device and what it has to do.
#[derive(Debug)]
struct Member {
    device: GpuDevice,
    backend: GpuBackend,
    /// The work in flight: bytes and operations, whichever is more.
    load: AtomicU64,
}

/// A device of a pool, lent for some work that counts as its load until this is dropped.
#[derive(Debug)]
pub struct Lent<'p> {
    member: &'p Member,
    work: u64,
}

impl Lent<'_> {
    /// The device.
    pub fn device(&self) -> &GpuDevice {
        &self.member.device
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        self.member.load.fetch_sub(self.work, Ordering::Relaxed);
    }
}

impl GpuDevicePool {
    /// Every adapter that is no software.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none; [`Error::Driver`] where a driver refuses.
    pub fn all() -> Result<Self> {
        let hardware = GpuDevice::list_adapters().into_iter().filter(|adapter| adapter.kind != AdapterKind::Software);
        let choices: Vec<AdapterChoice> = hardware.map(|adapter| AdapterChoice::Index(adapter.index)).collect();
        // Of none the best is missing, with the reason.
        Self::with(if choices.is_empty() { &[AdapterChoice::Best] } else { &choices })
    }

    /// The adapters of choice, one device each.
    ///
    /// # Errors
    /// As [`GpuDevicePool::all`]; [`Error::Parameter`] for no choice at all.
    pub fn with(choices: &[AdapterChoice]) -> Result<Self> {
        Self::of(choices.iter().map(GpuDevice::open).collect::<Result<_>>()?)
    }

    /// These devices.
    ///
    /// # Errors
    /// [`Error::Parameter`] for none.
    pub fn of(devices: Vec<GpuDevice>) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::Parameter {
                op: "device pool",
                reason: "no device is named, at least 1 is needed".into(),
            });
        }
        let member =
            |device: GpuDevice| Member { backend: GpuBackend::on(device.clone()), device, load: AtomicU64::new(0) };
        Ok(Self { members: devices.into_iter().map(member).collect() })
    }

    /// The devices, lost ones among them.
    pub fn devices(&self) -> impl Iterator<Item = &GpuDevice> {
        self.members.iter().map(|member| &member.device)
    }

    /// The device with the least in flight, for so much work: bytes or operations, as long as it is always the same.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] when all are lost.
    pub fn least_loaded(&self, work: u64) -> Result<Lent<'_>> {
        let least = self.alive().min_by_key(|member| member.load.load(Ordering::Relaxed));
        let Some(member) = least else {
            self.members[0].device.check_alive()?;
            return Err(Error::Unavailable { what: "a device".into(), reason: "the pool has none".into() });
        };
        member.load.fetch_add(work, Ordering::Relaxed);
        Ok(Lent { member, work })
    }

    fn alive(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| !member.device.is_lost())
    }

    /// Runs an operation in parts of rows, one on each device.
    fn share(
        alive: &[&Member],
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &mut [DataMut<'_>],
        cut: &[bool],
    ) -> Result<()> {
        let rows = leading(&inputs[0].ty());
        let each = rows.div_ceil(alive.len().max(1)).max(1);
        let mut rest: Vec<DataMut<'_>> = outputs.iter_mut().map(reborrow).collect();
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for (number, member) in alive.iter().enumerate() {
                let (from, to) = (rows.min(number * each), rows.min((number + 1) * each));
                let part =
                    inputs.iter().zip(cut).map(|(input, &cut)| if cut { part_of(input, from, to) } else { Ok(*input) });
                let part = part.collect::<Result<Vec<_>>>()?;
                let mut out: Vec<DataMut<'_>> = Vec::with_capacity(rest.len());
                for slot in &mut rest {
                    let (mine, others) = split(std::mem::replace(slot, DataMut::F32(&mut [])), to - from, rows - from);
                    out.push(mine);
                    *slot = others;
                }
                if from < to {
                    threads.push(scope.spawn(move || member.backend.run_into(op, &part, &mut out)));
                }
            }
            // All of them end before the first error is given.
            let ends: Vec<Result<()>> = threads
                .into_iter()
                .map(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
                .collect();
            ends.into_iter().collect()
        })
    }
}

impl Operations for GpuDevicePool {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        kiln_core::for_operation!(op, op => check(op, inputs, outputs))?;
        let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
        let cost = op.cost(&types)?;
        let large = cost.bytes() >= SHARED_FROM || cost.flops >= 64 * SHARED_FROM;
        let alive: Vec<&Member> = self.alive().collect();
        if large
            && alive.len() > 1
            && let Some(cut) = rows_apart(op, &types)
        {
            return Self::share(&alive, op, inputs, outputs, &cut);
        }
        let lent = self.least_loaded(cost.bytes().max(cost.flops))?;
        lent.member.backend.run_into(op, inputs, outputs)
    }
}

/// The extent of the first dimension.
fn leading(ty: &TensorType) -> usize {
    ty.shape.dims().first().copied().unwrap_or(1)
}

/// Which operands are cut where the first dimension of the results is, if each of its rows depends on the same row of those
/// alone.
fn rows_apart(op: &Op, types: &[TensorType]) -> Option<Vec<bool>> {
    let rows = leading(&types[0]);
    let rank = types[0].shape.rank();
    let first_only = || (0..types.len()).map(|operand| operand == 0).collect();
    if rows < 2 {
        return None;
    }
    match op {
        Op::Elementwise(_) => {
            let alike = types.iter().all(|ty| ty.shape == types[0].shape);
            alike.then(|| vec![true; types.len()])
        }
        Op::Softmax(_) | Op::LogSoftmax(_) | Op::LayerNorm(_) | Op::RmsNorm(_) | Op::TopK(_) => {
            (rank >= 2).then(first_only)
        }
        Op::Reduce(reduce) => reduce.axis.is_some_and(|axis| axis > 0).then(first_only),
        Op::Matmul(matmul) => (!matmul.transpose_a && rank == 2 && types[1].shape.rank() == 2).then(first_only),
        Op::QuantMatmul(_) => (rank == 2).then(first_only),
        _ => None,
    }
}

/// Some rows of an operand.
fn part_of<'a>(operand: &Operand<'a>, from: usize, to: usize) -> Result<Operand<'a>> {
    let mut dims = operand.shape().dims().to_vec();
    let row = operand.shape().numel().checked_div(dims[0]).unwrap_or(0);
    dims[0] = to - from;
    let range = from * row..to * row;
    let data = match operand.data() {
        Data::F32(elements) => Data::F32(&elements[range]),
        Data::F16(elements) => Data::F16(&elements[range]),
        Data::U32(elements) => Data::U32(&elements[range]),
        Data::Blocks(format, blocks) => {
            let bytes = operand.ty().bytes() / operand.shape().dims()[0];
            Data::Blocks(format, &blocks[from * bytes..to * bytes])
        }
    };
    Operand::new(data, Shape::new(&dims)?)
}

fn reborrow<'a>(data: &'a mut DataMut<'_>) -> DataMut<'a> {
    match data {
        DataMut::F32(elements) => DataMut::F32(elements),
        DataMut::F16(elements) => DataMut::F16(elements),
        DataMut::U32(elements) => DataMut::U32(elements),
        DataMut::Blocks(format, blocks) => DataMut::Blocks(*format, blocks),
    }
}

/// The first `rows` of `all` rows, and the others.
fn split(data: DataMut<'_>, rows: usize, all: usize) -> (DataMut<'_>, DataMut<'_>) {
    let at = |len: usize| len.checked_div(all).unwrap_or(0) * rows;
    match data {
        DataMut::F32(elements) => {
            let (mine, others) = elements.split_at_mut(at(elements.len()));
            (DataMut::F32(mine), DataMut::F32(others))
        }
        DataMut::F16(elements) => {
            let (mine, others) = elements.split_at_mut(at(elements.len()));
            (DataMut::F16(mine), DataMut::F16(others))
        }
        DataMut::U32(elements) => {
            let (mine, others) = elements.split_at_mut(at(elements.len()));
            (DataMut::U32(mine), DataMut::U32(others))
        }
        DataMut::Blocks(format, blocks) => {
            let (mine, others) = blocks.split_at_mut(at(blocks.len()));
            (DataMut::Blocks(format, mine), DataMut::Blocks(format, others))
        }
    }
}
