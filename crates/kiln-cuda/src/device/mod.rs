//! The device: it implements the driver interface of [`kiln_device`] with calls of NVIDIA's driver.

mod arrival;
mod direct;
mod groups;
mod kernels;
mod open;
mod options;
mod program;
mod staging;

pub use open::{CudaDevice, DeviceInfo};
pub use options::CudaDeviceOptions;

use std::collections::HashMap;
use std::convert::Infallible;

use kiln_device::waiting::{Arriving, Waiting};
use kiln_device::{Bindings, Driver, Lowering, Plan, Profile, Read, Shared, Value};
use kiln_ir::graph::{Fused, FusionLimits, NormLimits, TensorId};
use kiln_ir::op::{Custom, Op, QuantMatmul, RmsNorm};
use kiln_ir::{QuantFormat, Result, TensorType};
use kiln_ptx::kernels::all_reduce::AllReduce;
use kiln_ptx::kernels::quant::{WarpGroupTiling, WarpQuantMatmul};

use self::arrival::Arrival;
use self::direct::Direct;
use self::program::Program;
use self::staging::BLOCK;
use crate::driver::{DeviceMemory, DriverProblem, exchange};
use crate::lower::{cast, elementwise, quant, shape};
use crate::plan::{Dispatch, Hardware};
use crate::{Region, plan, span};

kiln_device::device_methods!(CudaDevice);

/// Methods that are asynchronous in the trait block here, because the driver only blocks.
impl Driver for CudaDevice {
    type Choice = u32;
    type Options = CudaDeviceOptions;
    type Target = Hardware;
    type Memory = DeviceMemory;
    type Step = Dispatch;
    type Program = Program;
    type Direct = Direct;
    type HostResults = Infallible;

    const FAULT_STRIDE: u64 = 16;
    /// Kernels take the minimum of 64-bit words, whose upper half is the position.
    const FAULT_POSITION: usize = 1;
    const COPY_ALIGNMENT: u64 = 1;
    const MOST_READY_BYTES: u64 = 1 << 30;
    const BEGINS: bool = true;

    async fn open_device(ordinal: &u32, options: &CudaDeviceOptions, _: Waiting) -> Result<Self> {
        Self::open(*ordinal, options)
    }

    fn hardware() -> Result<Vec<u32>> {
        let devices = Self::list().map_err(DriverProblem::into_error)?;
        Ok(devices.into_iter().map(|info| info.ordinal).collect())
    }

    fn label(&self) -> String {
        self.info().to_string()
    }

    fn target(&self) -> &Hardware {
        &self.inner.hardware
    }

    fn shared(&self) -> &Shared<DeviceMemory> {
        &self.inner.shared
    }

    fn check_alive(&self) -> Result<()> {
        self.inner.context.check_alive()
    }

    fn free_bytes(&self) -> Result<Option<u64>> {
        self.free_memory().map(Some)
    }

    fn is_profiling(&self) -> bool {
        self.inner.profiling
    }

    fn view_alignment(&self) -> u64 {
        kiln_device::memory::VECTOR_BYTES
    }

    async fn scoped<T>(&self, _: &str, _: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_alive()?;
        work()
    }

    fn allocate(&self, bytes: u64) -> Result<DeviceMemory> {
        let memory = DeviceMemory::new(&self.inner.context, bytes)?;
        self.inner.shared.counters.storage_buffers.add(1);
        Ok(memory)
    }

    fn trim_staging(&self) {
        self.inner.staging.clear();
    }

    fn fusion_limits(target: &Hardware) -> FusionLimits {
        let norms = NormLimits {
            rows: WarpQuantMatmul::NORMED_ROWS,
            formats: WarpQuantMatmul::FORMATS,
            many: if target.has_warp_groups() { quant::GROUPED } else { usize::MAX },
            multiples: WarpGroupTiling::MULTIPLES,
        };
        let has_kernel = |&format: &QuantFormat| WarpQuantMatmul::new(format, norms.rows, target.target).is_some();
        let norms = norms.formats.iter().all(has_kernel).then_some(norms);
        FusionLimits { addends: true, norms, round: 4, ..FusionLimits::default() }
    }

    fn exchange(devices: &[Self]) -> Result<Vec<Region>> {
        let contexts: Vec<_> = devices.iter().map(|device| device.inner.context.clone()).collect();
        let bytes = AllReduce::exchange_bytes(devices.len()) as u64;
        let memory = exchange::exchange(&contexts, bytes)?;
        Ok(memory.into_iter().map(|memory| Region::unpooled(memory, bytes)).collect())
    }

    fn lower_all_reduce(
        plan: &mut Lowering<'_, Self>,
        devices: usize,
        from: Value,
        addend: Option<Value>,
        to: Value,
    ) -> Result<bool> {
        shape::lower_all_reduce(plan, devices, from, addend, to)?;
        Ok(true)
    }

    fn lower_round(
        op: &Op,
        norm: Option<&RmsNorm>,
        plan: &mut Lowering<'_, Self>,
        operands: &[[Vec<Value>; 2]],
    ) -> Result<bool> {
        match op {
            Op::QuantMatmul(QuantMatmul { format }) => quant::lower_round(*format, norm, plan, operands),
            _ => Ok(false),
        }
    }

    fn join(target: &Hardware, steps: &mut Vec<Dispatch>, begins: &[usize]) -> Result<()> {
        plan::join(target, steps, begins)
    }

    fn has_kernel(custom: &Custom) -> bool {
        custom.kernel::<crate::CudaKernel>().is_some()
    }

    fn lower(op: &Op, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        kiln_ir::for_operation!(op, op => kiln_device::lower::lower_one(op, plan, inputs, outputs))
    }

    fn lower_normed(
        norm: &RmsNorm,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        quant::lower_normed(norm, op, plan, inputs, outputs)
    }

    fn lower_fused(fused: &Fused, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        elementwise::lower_fused(fused, plan, inputs, outputs)
    }

    fn widen(plan: &mut Lowering<'_, Self>, value: Value) -> Result<Value> {
        cast::widened(plan, value)
    }

    async fn compile(&self, steps: &[Dispatch]) -> Result<()> {
        self.inner.kernels.compile(steps.iter().map(|step| &step.code))
    }

    fn bind(&self, steps: Vec<Dispatch>, memory: &Bindings<DeviceMemory>) -> Result<Program> {
        Program::new(self, steps, memory)
    }

    fn write(&self, to: &Region, bytes: &[u8]) -> Result<()> {
        self.inner.staging.upload(bytes, to)
    }

    fn copy(&self, from: &Region, offset: u64, to: &Region, bytes: u64) -> Result<()> {
        span(to, 0, bytes)?.copy_from(&span(from, offset, bytes)?)
    }

    async fn run(
        &self,
        program: &mut Program,
        faults: Option<&Region>,
        reads: &mut [Read<'_, DeviceMemory>],
        waiting: Waiting,
    ) -> Result<()> {
        program.submit(faults)?;
        self.read(reads, waiting).await
    }

    async fn begin(
        &self,
        program: &mut Program,
        faults: Option<&Region>,
        reads: Vec<(Region, u64)>,
        _: Waiting,
    ) -> Result<Option<Arriving<Vec<Vec<u8>>>>> {
        if reads.iter().any(|read| read.1 > BLOCK as u64) {
            return Ok(None);
        }
        program.submit(faults)?;
        self.inner.shared.counters.downloaded(reads.iter().map(|read| read.1).sum());
        let arrival = Arrival::new(self, &reads)?;
        Ok(Some(Box::pin(async move { arrival.wait() })))
    }

    async fn run_together(
        devices: &[Self],
        programs: &mut [Program],
        faults: &[Option<Region>],
        _: Waiting,
    ) -> Result<()> {
        debug_assert_eq!(devices.len(), programs.len());
        Program::submit_together(programs, faults)
    }

    async fn repeat(&self, program: &mut Program, faults: Option<&Region>, times: usize) -> Result<()> {
        (0..times).try_for_each(|_| program.submit(faults))
    }

    async fn read(&self, reads: &mut [Read<'_, DeviceMemory>], _: Waiting) -> Result<()> {
        let bytes: u64 = reads.iter().map(|read| read.to.len() as u64).sum();
        if bytes == 0 {
            return Ok(());
        }
        self.inner.shared.counters.downloaded(bytes);
        self.inner.staging.download(reads)
    }

    async fn wait(&self, _: Waiting) -> Result<()> {
        self.inner.context.synchronize()
    }

    async fn times(&self, program: &Program, _: Waiting) -> Result<Profile> {
        program.times()
    }

    fn is_direct(&self, op: &Op, types: &[TensorType], _: &Plan<Self>) -> bool {
        Direct::takes(op, types)
    }

    async fn make_direct(&self, op: &Op, _: Plan<Self>, inputs: &[TensorId]) -> Result<Direct> {
        Direct::new(self, op, inputs.len())
    }

    async fn run_direct(
        &self,
        direct: &mut Direct,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        _: Waiting,
    ) -> Result<()> {
        outputs.iter_mut().try_for_each(|out| direct.run(self, inputs, out))
    }

    fn direct_bytes(_: &Direct) -> u64 {
        0
    }

    async fn host_results(&self, _: &Plan<Self>, _: &mut HashMap<TensorId, Region>) -> Result<Option<Infallible>> {
        Ok(None)
    }

    async fn read_host_results(&self, results: &Infallible, _: &mut [&mut [u8]], _: Waiting) -> Result<()> {
        match *results {}
    }
}
