//! The interface that a backend implements: everything that differs between devices.

use std::collections::HashMap;
use std::fmt::Debug;

use kiln_ir::graph::{Fused, FusionLimits, TensorId};
use kiln_ir::op::{Custom, Elementwise, Op, RmsNorm};
use kiln_ir::{Result, TensorType};

use crate::location::Value;
use crate::lower::Lowering;
use crate::memory::{Pool, Region};
use crate::plan::{Bindings, Plan};
use crate::profile::Profile;
use crate::statistics::Counters;
use crate::waiting::{Arriving, Waiting};

/// The memory of a driver's device.
pub type RegionOf<D> = Region<<D as Driver>::Memory>;

/// The state that the device layer keeps for each open device.
#[derive(Debug)]
pub struct Shared<M> {
    /// Device memory that is used again.
    pub pool: Pool<M>,
    /// Counts of the work submitted.
    pub counters: Counters,
}

impl<M> Shared<M> {
    /// The state of a device that was just opened. Sizes of allocations are multiples of `granularity`; free memory beyond
    /// `most_free` bytes is returned to the driver; no allocation has more than `largest` bytes.
    pub fn new(granularity: u64, most_free: u64, largest: u64) -> Self {
        Self { pool: Pool::new(granularity, most_free, largest), counters: Counters::default() }
    }
}

/// Bytes of a region that are copied to the host.
#[derive(Debug)]
pub struct Read<'a, M> {
    /// The region; the copy begins at its first byte.
    pub from: Region<M>,
    /// The destination of the bytes, which is filled.
    pub to: &'a mut [u8],
}

/// An open device of a backend: a handle that is cheap to clone.
///
/// Everything that the device layer does with a device goes through these methods: buffers, copies, compile, submit, wait,
/// limits, profile. Work is ordered: what is written, copied or submitted later sees the effects of what came before, so
/// memory can be used again as soon as the host drops it.
///
/// Methods that are asynchronous complete at their first poll with [`Waiting::Here`], which is how blocking calls are made.
#[allow(async_fn_in_trait)] // Called with concrete drivers: the compiler infers whether their futures are `Send`.
pub trait Driver: Clone + Debug + Send + Sync + Sized + 'static {
    /// Selects a device before it is opened. The default is the best one.
    type Choice: Clone + Debug + Default + Send + Sync;
    /// Options for opening a device.
    type Options: Clone + Debug + Default + Send + Sync;
    /// The properties of a device that plans depend on.
    type Target: Debug;
    /// Device memory, freed when it is dropped.
    type Memory: Debug + Send + Sync;
    /// One launch of a kernel; its memory is given by [`crate::Location`]s.
    type Step: Debug + Clone;
    /// Steps that are compiled and bound to memory.
    type Program: Debug + Send + Sync;
    /// An operation that runs on slices of the host without copies on the device.
    type Direct: Debug + Send + Sync;
    /// Results of a plan in memory that the host maps.
    type HostResults: Debug + Send + Sync;

    /// Bytes from the words of one kind of fault to those of the next: a multiple of [`Driver::view_alignment`].
    const FAULT_STRIDE: u64;
    /// Index of the position word of a fault; the other of the two words is the index that was out of range.
    const FAULT_POSITION: usize;
    /// Offsets at which [`Driver::copy`] may begin are multiples of this.
    const COPY_ALIGNMENT: u64;
    /// Whether [`Driver::begin`] submits programs.
    const BEGINS: bool = false;
    /// The compiled operations that a [`crate::Backend`] caches hold at most this many bytes.
    const MOST_READY_BYTES: u64;

    /// Opens a device.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Unavailable`] if there is no such device.
    async fn open_device(choice: &Self::Choice, options: &Self::Options, waiting: Waiting) -> Result<Self>;

    /// The devices to open for a pool of all hardware devices.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Unavailable`] if the machine has no such device.
    #[cfg(not(target_arch = "wasm32"))]
    fn hardware() -> Result<Vec<Self::Choice>>;

    /// The name of the device in error messages.
    fn label(&self) -> String;

    /// The properties that plans depend on.
    fn target(&self) -> &Self::Target;

    /// The state that the device layer keeps for this device.
    fn shared(&self) -> &Shared<Self::Memory>;

    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`] once the device is lost.
    fn check_alive(&self) -> Result<()>;

    /// Whether executions time each kernel.
    fn is_profiling(&self) -> bool;

    /// The free bytes of device memory, if the driver reports them.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    fn free_bytes(&self) -> Result<Option<u64>> {
        Ok(None)
    }

    /// Offsets at which a region may begin are multiples of this.
    fn view_alignment(&self) -> u64;

    /// Runs `work`, which allocates or submits, and turns what the device reports about it into an error, whose message
    /// contains `what` and `bytes`.
    ///
    /// # Errors
    /// The errors of `work` and of the device.
    async fn scoped<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T>;

    /// [`Driver::scoped`] for work with all devices of a [`Group`](crate::Group): what any of them reports about it is an error. By
    /// default only the errors that `work` returns are, which suits drivers whose calls return all of theirs.
    ///
    /// # Errors
    /// The errors of [`Driver::scoped`].
    async fn scoped_together<T>(
        devices: &[Self],
        what: &str,
        bytes: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        devices.iter().try_for_each(Self::check_alive)?;
        match devices.first() {
            Some(first) => first.scoped(what, bytes, work).await,
            None => work(),
        }
    }

    /// Allocates device memory; its contents are undefined.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] beyond the largest allocation of the device, [`kiln_ir::Error::OutOfMemory`].
    fn allocate(&self, bytes: u64) -> Result<Self::Memory>;

    /// Returns unused memory outside of the pool to the driver.
    fn trim_staging(&self);

    /// The limits of fused element-wise chains.
    fn fusion_limits(target: &Self::Target) -> FusionLimits;

    /// Whether a custom operation has a kernel for such devices. Every built-in operation has one.
    fn has_kernel(custom: &Custom) -> bool;

    /// Adds the steps of an operation to a plan. The shape rule has accepted the inputs; an output may be empty.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] if the device cannot run it at this size, [`kiln_ir::Error::Unsupported`] if it has no
    /// kernel.
    fn lower(op: &Op, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()>;

    /// Adds the steps of a product of normalised rows to a plan: inputs are the rows, the other operands of the
    /// product, and gamma. By default the norm is a separate step.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn lower_normed(
        norm: &RmsNorm,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        crate::lower::normed(norm, op, plan, inputs, outputs)
    }

    /// Adds the steps of a gate and of the two products that it takes to a plan: inputs are the rows, the weights of both products, and
    /// gamma if the rows are normalised first. By default each of the three is a separate step.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn lower_gated(
        gate: &Elementwise,
        norm: Option<&RmsNorm>,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        crate::lower::gated(gate, norm, op, plan, inputs, outputs)
    }

    /// Adds the steps of a fused element-wise chain to a plan.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn lower_fused(fused: &Fused, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()>;

    /// Memory through which devices send each other operands of [`Driver::lower_all_reduce`]: a region of each device that all of
    /// them access, zeroed. By default it is empty: the host computes sums.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Unavailable`] where the devices cannot reach each other's memory; the errors of allocation.
    fn exchange(_devices: &[Self]) -> Result<Vec<RegionOf<Self>>> {
        Ok(Vec::new())
    }

    /// Adds the steps of a sum of f32 over this many devices of a [`Group`](crate::Group) to a plan, which each of them runs; `false`
    /// where the host must add. The addend, which all devices have, is added once.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn lower_all_reduce(
        _plan: &mut Lowering<'_, Self>,
        _devices: usize,
        _from: Value,
        _addend: Option<Value>,
        _to: Value,
    ) -> Result<bool> {
        Ok(false)
    }

    /// Adds the steps of several operations that are equal but for their operands, which `operands` has with the outputs, to a plan:
    /// those of a round ([`FusionLimits::round`]), which are independent. `norm`: as for [`Driver::lower_normed`]. Returns
    /// whether the device has kernels for all of them at once; if not, the plan is as before, and each is lowered by itself.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn lower_round(
        _op: &Op,
        _norm: Option<&RmsNorm>,
        _plan: &mut Lowering<'_, Self>,
        _operands: &[[Vec<Value>; 2]],
    ) -> Result<bool> {
        Ok(false)
    }

    /// Merges the last steps of a plan if possible. They belong to operations of one round ([`FusionLimits::round`]):
    /// `begins` are the positions of the first steps of each operation, and no step reads or writes what a step of
    /// another operation writes, except for scratch memory.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn join(_target: &Self::Target, _steps: &mut Vec<Self::Step>, _begins: &[usize]) -> Result<()> {
        Ok(())
    }

    /// Casts a value of f16 or bf16 to f32 for the duration of a step.
    ///
    /// # Errors
    /// The errors of [`Driver::lower`].
    fn widen(plan: &mut Lowering<'_, Self>, value: Value) -> Result<Value>;

    /// Compiles those kernels of these steps that are not compiled yet.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Driver`] for a kernel that the driver refuses, [`kiln_ir::Error::DeviceLost`].
    async fn compile(&self, steps: &[Self::Step]) -> Result<()>;

    /// Binds compiled steps to memory.
    ///
    /// # Errors
    /// [`kiln_ir::Error::Limit`] for a binding that is too large; the errors of allocations.
    fn bind(&self, steps: Vec<Self::Step>, memory: &Bindings<Self::Memory>) -> Result<Self::Program>;

    /// Writes bytes to the beginning of a region. The slice may be modified as soon as this returns.
    ///
    /// # Errors
    /// The errors of the device.
    fn write(&self, to: &RegionOf<Self>, bytes: &[u8]) -> Result<()>;

    /// The number of parts of a tensor of parts: the devices of a [`Group`](crate::Group), and 1 elsewhere.
    fn parts(&self) -> usize {
        1
    }

    /// Writes bytes to the beginning of a region of one device of a group; `part` is below [`Driver::parts`].
    ///
    /// # Errors
    /// The errors of the device.
    fn write_part(&self, _part: usize, to: &RegionOf<Self>, bytes: &[u8]) -> Result<()> {
        self.write(to, bytes)
    }

    /// Copies bytes of one region, beginning at `offset`, to the beginning of another.
    ///
    /// # Errors
    /// The errors of the device.
    fn copy(&self, from: &RegionOf<Self>, offset: u64, to: &RegionOf<Self>, bytes: u64) -> Result<()>;

    /// Sets the fault words to all ones, submits a program once, and copies regions to the host. Does not wait if there
    /// are no reads.
    ///
    /// # Errors
    /// [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    async fn run(
        &self,
        program: &mut Self::Program,
        faults: Option<&RegionOf<Self>>,
        reads: &mut [Read<'_, Self::Memory>],
        waiting: Waiting,
    ) -> Result<()>;

    /// Submits a program as [`Driver::run`] does, and begins to copy the first bytes of regions to the host. The future that it
    /// returns waits for these copies, and not for what is submitted later. `None` if the device cannot do this: then nothing was
    /// submitted.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn begin(
        &self,
        _program: &mut Self::Program,
        _faults: Option<&RegionOf<Self>>,
        _reads: Vec<(RegionOf<Self>, u64)>,
        _waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Vec<u8>>>>> {
        Ok(None)
    }

    /// Runs several programs of this device in this order, each as [`Driver::run`] does, and then copies regions to the host. By
    /// default each program is a submission, and one more copies all regions.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn run_all(
        &self,
        programs: &mut [(&mut Self::Program, Option<&RegionOf<Self>>)],
        reads: &mut [Read<'_, Self::Memory>],
        waiting: Waiting,
    ) -> Result<()> {
        for (program, faults) in programs {
            self.run(program, *faults, &mut [], waiting).await?;
        }
        self.read(reads, waiting).await
    }

    /// Submits a program to each device of a group, without waiting for any of them. No device may have to finish before
    /// another one has its work: they wait for one another. By default each program is submitted as a whole.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn run_together(
        devices: &[Self],
        programs: &mut [Self::Program],
        faults: &[Option<RegionOf<Self>>],
        waiting: Waiting,
    ) -> Result<()> {
        for ((device, program), faults) in devices.iter().zip(programs).zip(faults) {
            device.run(program, faults.as_ref(), &mut [], waiting).await?;
        }
        Ok(())
    }

    /// Submits a program this many times without waiting.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn repeat(&self, program: &mut Self::Program, faults: Option<&RegionOf<Self>>, times: usize) -> Result<()>;

    /// Copies regions to the host, after all earlier work.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn read(&self, reads: &mut [Read<'_, Self::Memory>], waiting: Waiting) -> Result<()>;

    /// Waits until all submitted work is done.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`].
    async fn wait(&self, waiting: Waiting) -> Result<()>;

    /// The time of each kernel in the last run of a program, if the device times kernels.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::Driver`].
    async fn times(&self, program: &Self::Program, waiting: Waiting) -> Result<Profile>;

    /// Whether an operation between slices of the host runs in its direct form.
    fn is_direct(&self, op: &Op, types: &[TensorType], plan: &Plan<Self>) -> bool;

    /// Makes the direct form of an operation ready, for which [`Driver::is_direct`] holds.
    ///
    /// # Errors
    /// The errors of compilation and of allocation.
    async fn make_direct(&self, op: &Op, plan: Plan<Self>, inputs: &[TensorId]) -> Result<Self::Direct>;

    /// Runs a direct operation.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn run_direct(
        &self,
        direct: &mut Self::Direct,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()>;

    /// Bytes that a direct operation holds.
    fn direct_bytes(direct: &Self::Direct) -> u64;

    /// Allocates the results of a plan in memory that the host maps, and adds them to `given`, if that is faster.
    ///
    /// # Errors
    /// The errors of allocation.
    async fn host_results(
        &self,
        plan: &Plan<Self>,
        given: &mut HashMap<TensorId, RegionOf<Self>>,
    ) -> Result<Option<Self::HostResults>>;

    /// Copies such results to slices, after all earlier work.
    ///
    /// # Errors
    /// The errors of [`Driver::run`].
    async fn read_host_results(
        &self,
        results: &Self::HostResults,
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()>;
}

/// Whether both handles refer to one open device.
pub(crate) fn is_same<D: Driver>(a: &D, b: &D) -> bool {
    std::ptr::eq(a.shared(), b.shared())
}
