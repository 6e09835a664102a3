//! Several devices, and work shared among them.

use std::collections::HashMap;
use std::fmt::Debug;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use kiln_ir::op::{Call, Cost, Op, Reduce, check_outputs};
use kiln_ir::{Buffer, DataMut, Error, Operand, Operations, Result};

use crate::cut::{self, Cut, Join, split};
use crate::driver::is_same;
use crate::executable::{self, Executable};
use crate::ready::{Ready, ReadyOperations};
use crate::submission_queue::{SubmissionQueue, Submitted};
use crate::tensor::write;
use crate::turns::Turns;
use crate::waiting::{Waiting, block_on};
use crate::{Backend, Batch, Driver, Plan};

/// Bytes of operands and results below which work is not shared: transferring this many takes some hundreds of
/// microseconds, many times the launch on another device.
const SHARED_FROM: u64 = 8 << 20;
/// Bytes of operands and results up to which work is small: the host copies them in less time than a submission takes.
const SMALL_UP_TO: u64 = 256 << 10;
/// Floating-point operations, or bytes of its own memory, for which a device takes about as long as for the transfer of one byte.
const FLOPS_A_BYTE: u64 = 64;
/// Callers whose work that is not small a device has at once: one uploads, one computes, one downloads.
const AT_ONCE: usize = 3;

/// Several devices, and work shared among them. The operations are the methods of [`Operations`]; [`PoolBatch`](crate::PoolBatch)
/// records several of them. Cloning it is cheap and gives the same pool.
///
/// - An operation that is large is cut into as many parts as there are devices if these do not depend on one another:
///   element-wise functions, reductions (but the Euclidean norm of everything), products by rows of their first operand, stacks of
///   products, and operations on rows.
/// - Any other operation, and each run of a batch, goes to the device with the least work in flight.
/// - Small work of several threads that waits for the same device is submitted together: the threads whose work came while the
///   device was in use share the next submission. Other work of up to three callers is on a device at once.
/// - Callers are served in the order in which they came. One that comes back is served after those who wait already.
/// - A lost device gets no more work, and the others repeat the work that it was lost in. Once all devices are lost, the error is
///   that of the last one.
#[derive(Debug)]
pub struct DevicePool<D: Driver> {
    members: Arc<[Member<D>]>,
}

impl<D: Driver> Clone for DevicePool<D> {
    fn clone(&self) -> Self {
        Self { members: self.members.clone() }
    }
}

/// A device and its load.
#[derive(Debug)]
struct Member<D: Driver> {
    device: D,
    backend: Backend<D>,
    /// The work in flight, in bytes or operations, whichever is more.
    load: AtomicU64,
    queue: SubmissionQueue<D>,
    /// Compiled operations for the queue.
    queued: ReadyOperations<Executable<D>>,
    turns: Turns,
}

impl<D: Driver> Member<D> {
    fn new(device: D) -> Self {
        Self {
            backend: Backend::on(device.clone()),
            device,
            load: AtomicU64::new(0),
            queue: SubmissionQueue::new(),
            queued: ReadyOperations::default(),
            turns: Turns::new(AT_ONCE),
        }
    }

    fn lend(&self, work: u64) -> Lent<'_, D> {
        self.load.fetch_add(work, Ordering::Relaxed);
        Lent { member: self, work }
    }

    /// Runs an operation when it is the caller's turn.
    fn run_in_turn(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        let _turn = self.turns.take();
        self.backend.run_call(call, outputs)
    }

    /// Runs a small operation: at once if no other small one uses the device, else in a submission with those that wait.
    fn run_small(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        if let Some(_in_use) = self.queue.try_use() {
            return self.backend.run_call(call, outputs);
        }
        match self.run_queued(call, outputs) {
            Ok(true) => Ok(()),
            Err(error @ (Error::DeviceLost { .. } | Error::Index { .. })) => Err(error),
            // Alone it succeeds, or fails for a reason of its own.
            Ok(false) | Err(_) => {
                self.queued.clear();
                self.backend.run_call(call, outputs)
            }
        }
    }

    /// Runs an operation in a submission with others that wait. `false` if it has to run alone.
    fn run_queued(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<bool> {
        let (device, op, types) = (&self.device, call.op(), call.types());
        device.check_alive()?;
        let ready = match self.queued.take(op, types) {
            Some(ready) => ready,
            None => {
                let (inputs, plan) = Plan::of_operation(op, types, device.target())?;
                let executable = block_on(Executable::new(device, plan, &HashMap::new()))?;
                Ready { op: *op, types: types.to_vec(), inputs, executable }
            }
        };
        let upload = || {
            let mut regions = ready.inputs.iter().zip(call.inputs());
            regions.try_for_each(|(&id, input)| match ready.executable.input(id) {
                Some(region) => write(device, region, input.data().as_bytes()),
                None => Ok(()),
            })
        };
        let bytes = types.iter().map(|ty| ty.bytes() as u64).sum();
        block_on(device.scoped("an upload", bytes, upload))?;
        let queued = executable::Call::new(ready.executable, outputs.iter().map(DataMut::bytes));
        let Submitted::Done(queued) = self.queue.submit(device, queued)? else { return Ok(false) };
        let (executable, done) = queued.finish(outputs);
        self.queued.keep(Ready { executable, ..ready }, D::MOST_READY_BYTES, Executable::bytes);
        done.map(|()| true)
    }
}

/// A device of a pool, lent for some work that counts as its load until this is dropped.
#[derive(Debug)]
pub struct Lent<'p, D: Driver> {
    member: &'p Member<D>,
    work: u64,
}

impl<D: Driver> Lent<'_, D> {
    /// The device.
    pub fn device(&self) -> &D {
        &self.member.device
    }

    /// Does work when it is the caller's turn. Small work is given the queue if other small work uses the device: it may submit
    /// itself together with what waits there.
    pub(crate) fn in_turn<T>(&self, is_small: bool, work: impl FnOnce(Option<&SubmissionQueue<D>>) -> T) -> T {
        let Member { queue, turns, .. } = self.member;
        if !is_small {
            let _turn = turns.take();
            return work(None);
        }
        let in_use = queue.try_use();
        work(in_use.is_none().then_some(queue))
    }
}

impl<D: Driver> Drop for Lent<'_, D> {
    fn drop(&mut self) {
        self.member.load.fetch_sub(self.work, Ordering::Relaxed);
    }
}

/// The work of operations as bytes that take as long to transfer, if their operands and results are transferred.
pub(crate) fn work_of(cost: &Cost) -> u64 {
    cost.bytes().max(cost.flops / FLOPS_A_BYTE)
}

/// Whether a device is done with so little work that a submission of its own is most of the time. `transferred` bytes come from the host
/// or go there; a device reads and writes its own memory as much faster as it computes.
pub(crate) fn is_small(cost: &Cost, transferred: u64) -> bool {
    transferred.max(cost.bytes().max(cost.flops) / FLOPS_A_BYTE) <= SMALL_UP_TO
}

impl<D: Driver> DevicePool<D> {
    /// Every hardware device of the backend. One whose driver refuses is left out, with a warning through `tracing`.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where no device is found; [`Error::Driver`] where the drivers of all refuse.
    pub fn all() -> Result<Self> {
        Self::of(opened(&D::hardware()?, open)?)
    }

    /// The devices of choice, one each.
    ///
    /// # Errors
    /// The errors of [`DevicePool::all`]; [`Error::Parameter`] for no choice at all.
    pub fn with(choices: &[D::Choice]) -> Result<Self> {
        Self::of(choices.iter().map(open).collect::<Result<_>>()?)
    }

    /// A pool of these devices.
    ///
    /// # Errors
    /// [`Error::Parameter`] for an empty list.
    pub fn of(devices: Vec<D>) -> Result<Self> {
        if devices.is_empty() {
            return Err(Error::Parameter {
                op: "device pool",
                reason: "no device is named, at least 1 is needed".into(),
            });
        }
        Ok(Self { members: devices.into_iter().map(Member::new).collect() })
    }

    /// The devices, lost ones among them.
    pub fn devices(&self) -> impl Iterator<Item = &D> {
        self.members.iter().map(|member| &member.device)
    }

    /// The device with the least in flight, for so much work: bytes or operations, as long as it is always the same.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] when all are lost.
    pub fn least_loaded(&self, work: u64) -> Result<Lent<'_, D>> {
        self.least_loaded_of(work, |_| true).map(|(_, lent)| lent)
    }

    /// The device with the least in flight among those at positions that are allowed, and its position. `allowed` accepts one or more.
    pub(crate) fn least_loaded_of(&self, work: u64, allowed: impl Fn(usize) -> bool) -> Result<(usize, Lent<'_, D>)> {
        let allowed = || self.members.iter().enumerate().filter(|(position, _)| allowed(*position));
        loop {
            let alive = allowed().filter(|(_, member)| member.device.check_alive().is_ok());
            let loads = alive.map(|(position, member)| (member.load.load(Ordering::Relaxed), position));
            let Some((load, position)) = loads.min() else {
                allowed().try_for_each(|(_, member)| member.device.check_alive())?;
                return Err(Error::Unavailable { what: "a device".into(), reason: "all are excluded".into() });
            };
            let member = &self.members[position];
            // Otherwise threads that come together would all choose the same device.
            let unchanged =
                member.load.compare_exchange(load, load.wrapping_add(work), Ordering::Relaxed, Ordering::Relaxed);
            if unchanged.is_ok() {
                return Ok((position, Lent { member, work }));
            }
        }
    }

    /// Number of calls that wait for a device, of all threads.
    pub fn waiting(&self) -> usize {
        self.members.iter().map(|member| member.queue.waiting() + member.turns.waiting()).sum()
    }

    /// The position of a device, if it belongs to the pool.
    pub(crate) fn position(&self, device: &D) -> Option<usize> {
        self.members.iter().position(|member| is_same(&member.device, device))
    }

    /// A batch on the device with the least in flight. It adds `work` to that until what is lent is dropped: bytes or
    /// operations.
    ///
    /// # Errors
    /// [`Error::DeviceLost`] when all are lost.
    pub fn batch(&self, work: u64) -> Result<(Batch<D>, Lent<'_, D>)> {
        let lent = self.least_loaded(work)?;
        Ok((Batch::new(lent.device().clone()), lent))
    }

    fn alive(&self) -> impl Iterator<Item = &Member<D>> {
        self.members.iter().filter(|member| member.device.check_alive().is_ok())
    }

    /// Runs an operation in parts, one on each device.
    fn share(
        alive: &[&Member<D>],
        op: &Op,
        inputs: &[Operand<'_>],
        outputs: &mut [DataMut<'_>],
        cut: &Cut,
    ) -> Result<()> {
        match cut.join {
            Join::Rows => {
                let mut rest: Vec<DataMut<'_>> = outputs.iter_mut().map(DataMut::reborrow).collect();
                let mut left = cut.rows;
                let mut parts = Vec::new();
                for (from, to) in ranges(cut.rows, alive.len()) {
                    let mut out = Vec::with_capacity(rest.len());
                    for slot in &mut rest {
                        let (mine, others) = split(std::mem::replace(slot, DataMut::F32(&mut [])), to - from, left);
                        out.push(mine);
                        *slot = others;
                    }
                    left -= to - from;
                    parts.push((cut.part(inputs, from, to)?, out));
                }
                on_each(alive, parts, |member, (part, mut out)| {
                    Call::with(op, &part, |call| member.run_in_turn(call, &mut out))
                })
                .map(drop)
            }
            Join::Reduced { part: op, again, divisor } => {
                let reduced = Self::partial(alive, &op, inputs, cut)?;
                let values: Vec<f32> = reduced.iter().flat_map(|part| part.as_data().f32()).copied().collect();
                alive[0].backend.run_into(&Reduce::all(again).into(), &[Operand::vector(&values)], outputs)?;
                if let (Some(divisor), [DataMut::F32(mean)]) = (divisor, outputs) {
                    mean.iter_mut().for_each(|sum| *sum = (f64::from(*sum) / divisor as f64) as f32);
                }
                Ok(())
            }
            Join::Place(reduction) => {
                let found = Self::partial(alive, op, inputs, cut)?;
                let place = |((from, _), part): ((usize, usize), &Buffer)| from + part.as_data().u32()[0] as usize;
                let places: Vec<usize> = ranges(cut.rows, alive.len()).zip(&found).map(place).collect();
                let values: Vec<f32> = places.iter().map(|&at| inputs[0].data().load(at)).collect();
                alive[0].backend.run_into(&Reduce::all(reduction).into(), &[Operand::vector(&values)], outputs)?;
                if let [DataMut::U32(found)] = outputs {
                    // Parts and elements are both in order, so of equal elements the first of the first part is chosen.
                    found.iter_mut().for_each(|part| *part = places[*part as usize] as u32);
                }
                Ok(())
            }
        }
    }

    /// The results of the parts, one tensor each.
    fn partial(alive: &[&Member<D>], op: &Op, inputs: &[Operand<'_>], cut: &Cut) -> Result<Vec<Buffer>> {
        let parts = ranges(cut.rows, alive.len()).map(|(from, to)| cut.part(inputs, from, to));
        let parts = parts.collect::<Result<Vec<_>>>()?;
        let results = on_each(alive, parts, |member, part| {
            let _turn = member.turns.take();
            member.backend.run(op, &part)
        })?;
        Ok(results.into_iter().flatten().collect())
    }
}

fn open<D: Driver>(choice: &D::Choice) -> Result<D> {
    block_on(D::open_device(choice, &D::Options::default(), Waiting::Here))
}

/// The devices of these choices that can be opened; the last error if none can.
fn opened<C: Debug, T>(choices: &[C], open: impl Fn(&C) -> Result<T>) -> Result<Vec<T>> {
    let mut refused = None;
    let mut devices = Vec::new();
    for choice in choices {
        match open(choice) {
            Ok(device) => devices.push(device),
            Err(why) => {
                tracing::warn!(?choice, %why, "this device cannot be opened, so the pool excludes it");
                refused = Some(why);
            }
        }
    }
    if devices.is_empty() { refused.map_or(Ok(devices), Err) } else { Ok(devices) }
}

/// Divides this many rows into one range for each device, or fewer; no range is empty.
fn ranges(rows: usize, devices: usize) -> impl Iterator<Item = (usize, usize)> {
    let each = rows.div_ceil(devices.max(1)).max(1);
    (0..rows).step_by(each).map(move |from| (from, rows.min(from + each)))
}

/// Runs each part on a device of its own, and waits for all of them before it returns the first error.
fn on_each<D: Driver, P: Send, T: Send>(
    alive: &[&Member<D>],
    parts: Vec<P>,
    work: impl Fn(&Member<D>, P) -> Result<T> + Sync,
) -> Result<Vec<T>> {
    let work = &work;
    // Each thread takes its part out. If the system refuses to start a thread, its part remains and runs on the calling
    // thread.
    let parts: Vec<Mutex<Option<P>>> = parts.into_iter().map(|part| Mutex::new(Some(part))).collect();
    let run = |member: &Member<D>, part: &Mutex<Option<P>>| {
        let part = part.lock().unwrap_or_else(PoisonError::into_inner).take();
        part.map(|part| work(member, part))
    };
    let run = &run;
    std::thread::scope(|scope| {
        let start = |(&member, part)| std::thread::Builder::new().spawn_scoped(scope, move || run(member, part));
        let threads: Vec<_> = alive.iter().zip(&parts).map(start).collect();
        let ends =
            threads.into_iter().zip(alive.iter().zip(&parts)).filter_map(|(thread, (member, part))| match thread {
                Ok(thread) => thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)),
                Err(why) => {
                    crate::waiting::no_thread("a device of a pool", &why);
                    run(member, part)
                }
            });
        let ends: Vec<Result<T>> = ends.collect();
        ends.into_iter().collect()
    })
}

impl<D: Driver> Operations for DevicePool<D> {
    fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        Call::with(op, inputs, |call| self.run_call(call, outputs))
    }

    fn run_call(&self, call: &Call<'_>, outputs: &mut [DataMut<'_>]) -> Result<()> {
        check_outputs(call.op().name(), call.outputs(), outputs)?;
        let cost = call.cost();
        let work = work_of(&cost);
        let cut = if work >= SHARED_FROM { cut::cut(call.op(), call.types()) } else { None };
        loop {
            let alive: Vec<&Member<D>> = self.alive().collect();
            let done = match &cut {
                Some(cut) if alive.len() > 1 => {
                    let _lent: Vec<Lent<'_, D>> =
                        alive.iter().map(|member| member.lend(work / alive.len() as u64)).collect();
                    Self::share(&alive, call.op(), call.inputs(), outputs, cut)
                }
                _ => {
                    let lent = self.least_loaded(work)?;
                    match is_small(&cost, cost.bytes()) {
                        true => lent.member.run_small(call, outputs),
                        false => lent.member.run_in_turn(call, outputs),
                    }
                }
            };
            match done {
                // The remaining devices write the whole result again.
                Err(Error::DeviceLost { .. }) if (1..alive.len()).contains(&self.alive().count()) => {}
                done => return done,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_that_refuses_is_left_out_and_the_last_reason_given_where_all_do() {
        let refuse = |choice: &usize| {
            let (what, device) = ("a device".into(), format!("{choice:?}"));
            Error::Driver { what, device, message: "no".into() }
        };
        let choices = [0, 1, 2];
        let odd = |choice: &usize| match choice {
            1 => Ok("one"),
            _ => Err(refuse(choice)),
        };
        assert_eq!(opened(&choices, odd).unwrap(), ["one"]);
        let none = |choice: &usize| Err::<(), _>(refuse(choice));
        assert!(matches!(opened(&choices, none), Err(Error::Driver { device, .. }) if device.contains('2')));
    }
}
