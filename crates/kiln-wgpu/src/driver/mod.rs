//! The device: all uses of wgpu except kernels.

#[cfg(not(target_arch = "wasm32"))]
mod absent;
pub(crate) mod adapters;
#[cfg(target_arch = "wasm32")]
pub(crate) mod browser;
mod choice;
mod compile;
mod cooperative;
mod device;
mod direct;
mod downloads;
mod lost;
mod mapped;
mod opening;
mod options;
#[cfg(not(target_arch = "wasm32"))]
mod pipeline_cache;
mod pipelines;
mod program;
mod readbacks;
#[cfg(not(target_arch = "wasm32"))]
mod retired;
mod timestamps;
mod uploads;

#[cfg(not(target_arch = "wasm32"))]
pub use absent::AbsentApi;
pub use adapters::{AdapterInfo, AdapterKind};
pub use choice::{ADAPTER_VARIABLE, AdapterChoice};
pub use device::GpuDevice;
pub use options::GpuDeviceOptions;

use std::collections::HashMap;

use kiln_device::waiting::{Arriving, Waiting};
use kiln_device::{Bindings, Driver, Lowering, Plan, Profile, Read, Shared, Value};
use kiln_ir::graph::{Fused, FusionLimits, TensorId};
use kiln_ir::op::{Custom, Elementwise, Op, RmsNorm};
use kiln_ir::{Result, TensorType};

use self::direct::{Direct, HostResults};
use self::program::Program;
use crate::Region;
use crate::lower::{cast, elementwise, quant};
use crate::plan::{self, Dispatch, FAULT_STRIDE, Target};

kiln_device::device_methods!(GpuDevice);

impl Driver for GpuDevice {
    type Choice = AdapterChoice;
    type Options = GpuDeviceOptions;
    type Target = Target;
    type Memory = wgpu::Buffer;
    type Step = Dispatch;
    type Program = Program;
    type Direct = Direct;
    type HostResults = HostResults;

    const FAULT_STRIDE: u64 = FAULT_STRIDE;
    const FAULT_POSITION: usize = 0;
    const COPY_ALIGNMENT: u64 = wgpu::COPY_BUFFER_ALIGNMENT;
    const BEGINS: bool = true;
    const MOST_READY_BYTES: u64 = 256 << 20;

    async fn open_device(choice: &AdapterChoice, options: &GpuDeviceOptions, waiting: Waiting) -> Result<Self> {
        Self::open_waiting(choice, options, waiting).await
    }

    #[cfg(not(target_arch = "wasm32"))]
    fn hardware() -> Result<Vec<AdapterChoice>> {
        let adapters = Self::list_adapters().into_iter().filter(|adapter| adapter.kind != AdapterKind::Software);
        let choices: Vec<_> = adapters.map(|adapter| AdapterChoice::Index(adapter.index)).collect();
        if choices.is_empty() {
            // The search for the best adapter fails with the reason why no adapter was found.
            let best = Self::find(&AdapterChoice::Best)?;
            return Ok(vec![AdapterChoice::Index(best.index)]);
        }
        Ok(choices)
    }

    fn label(&self) -> String {
        self.adapter().name.clone()
    }

    fn target(&self) -> &Target {
        &self.inner.target
    }

    fn shared(&self) -> &Shared<wgpu::Buffer> {
        &self.inner.shared
    }

    fn check_alive(&self) -> Result<()> {
        self.still_open()
    }

    fn is_profiling(&self) -> bool {
        self.inner.profiling
    }

    fn view_alignment(&self) -> u64 {
        self.inner.target.limits.min_storage_buffer_offset_alignment.into()
    }

    async fn scoped<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.scoped_work(what, bytes, work).await
    }

    async fn scoped_together<T>(
        devices: &[Self],
        what: &str,
        bytes: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        GpuDevice::scoped_together(devices, what, bytes, work).await
    }

    fn allocate(&self, bytes: u64) -> Result<wgpu::Buffer> {
        self.allocate_buffer(bytes)
    }

    fn trim_staging(&self) {
        self.inner.uploads.clear();
        self.inner.readbacks.clear();
    }

    fn fusion_limits(target: &Target) -> FusionLimits {
        elementwise::fusion_limits(&target.limits)
    }

    fn has_kernel(custom: &Custom) -> bool {
        custom.kernel::<crate::WgslKernel>().is_some()
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

    fn lower_gated(
        gate: &Elementwise,
        norm: Option<&RmsNorm>,
        op: &Op,
        plan: &mut Lowering<'_, Self>,
        inputs: &[Value],
        outputs: &[Value],
    ) -> Result<()> {
        quant::lower_gated(gate, norm, op, plan, inputs, outputs)
    }

    fn lower_fused(fused: &Fused, plan: &mut Lowering<'_, Self>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        elementwise::lower_fused(fused, plan, inputs, outputs);
        Ok(())
    }

    fn join(target: &Target, steps: &mut Vec<Dispatch>, begins: &[usize]) -> Result<()> {
        plan::join(target, steps, begins);
        Ok(())
    }

    fn widen(plan: &mut Lowering<'_, Self>, value: Value) -> Result<Value> {
        Ok(cast::widened(plan, value))
    }

    async fn compile(&self, steps: &[Dispatch]) -> Result<()> {
        self.compile_new(steps.iter().map(|dispatch| &dispatch.code)).await
    }

    fn bind(&self, steps: Vec<Dispatch>, memory: &Bindings<wgpu::Buffer>) -> Result<Program> {
        Program::new(self, &steps, memory)
    }

    fn write(&self, to: &Region, bytes: &[u8]) -> Result<()> {
        self.inner.write(to, bytes)
    }

    fn copy(&self, from: &Region, offset: u64, to: &Region, bytes: u64) -> Result<()> {
        let inner = &self.inner;
        let mut encoder = inner.device.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
        let (start, words) = (from.offset() + offset, bytes.next_multiple_of(wgpu::COPY_BUFFER_ALIGNMENT));
        encoder.copy_buffer_to_buffer(from.memory()?, start, to.memory()?, to.offset(), words);
        inner.submit(encoder.finish());
        inner.shared.counters.submitted(1, 0);
        Ok(())
    }

    async fn run(
        &self,
        program: &mut Program,
        faults: Option<&Region>,
        reads: &mut [Read<'_, wgpu::Buffer>],
        waiting: Waiting,
    ) -> Result<()> {
        program::run(self, &[(program, faults)], reads, waiting).await
    }

    async fn begin(
        &self,
        program: &mut Program,
        faults: Option<&Region>,
        reads: Vec<(Region, u64)>,
        waiting: Waiting,
    ) -> Result<Option<Arriving<Vec<Vec<u8>>>>> {
        program::begin(self, (program, faults), reads, waiting).await
    }

    async fn run_all(
        &self,
        programs: &mut [(&mut Program, Option<&Region>)],
        reads: &mut [Read<'_, wgpu::Buffer>],
        waiting: Waiting,
    ) -> Result<()> {
        let programs: Vec<_> = programs.iter().map(|(program, faults)| (&**program, *faults)).collect();
        program::run(self, &programs, reads, waiting).await
    }

    async fn repeat(&self, program: &mut Program, faults: Option<&Region>, times: usize) -> Result<()> {
        let repeated = || (0..times).try_for_each(|_| program.submit(self, faults));
        self.scoped_work("a batch", 0, repeated).await
    }

    async fn read(&self, reads: &mut [Read<'_, wgpu::Buffer>], waiting: Waiting) -> Result<()> {
        program::run(self, &[], reads, waiting).await
    }

    async fn wait(&self, waiting: Waiting) -> Result<()> {
        self.finish_with(waiting).await
    }

    async fn times(&self, program: &Program, waiting: Waiting) -> Result<Profile> {
        program.times(self, waiting).await
    }

    fn is_direct(&self, _: &Op, _: &[TensorType], plan: &Plan<Self>) -> bool {
        direct::takes(self, plan)
    }

    async fn make_direct(&self, _: &Op, plan: Plan<Self>, inputs: &[TensorId]) -> Result<Direct> {
        Direct::new(self, plan, inputs).await
    }

    async fn run_direct(
        &self,
        direct: &mut Direct,
        inputs: &[&[u8]],
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()> {
        direct.run(self, inputs, outputs, waiting).await
    }

    fn direct_bytes(direct: &Direct) -> u64 {
        direct.bytes()
    }

    async fn host_results(
        &self,
        plan: &Plan<Self>,
        given: &mut HashMap<TensorId, Region>,
    ) -> Result<Option<HostResults>> {
        if !direct::takes(self, plan) {
            return Ok(None);
        }
        HostResults::new(self, plan, given).await.map(Some)
    }

    async fn read_host_results(
        &self,
        results: &HostResults,
        outputs: &mut [&mut [u8]],
        waiting: Waiting,
    ) -> Result<()> {
        results.read(self, outputs, waiting).await
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use kiln_ir::{Error, Operations};

    use super::adapters::LISTINGS;
    use crate::{AdapterChoice, GpuBackend};

    #[test]
    fn nothing_happens_before_the_first_operation() {
        let listings = LISTINGS.get();
        let none = GpuBackend::with_choice(AdapterChoice::Index(1000));
        let any = GpuBackend::with_choice(AdapterChoice::Any);
        assert!(GpuBackend::new().opened().is_none() && any.opened().is_none());
        assert_eq!(LISTINGS.get(), listings);
        let refused = none.relu(&[1.0]);
        assert!(matches!(refused, Err(Error::Unavailable { .. })), "{refused:?}");
        assert!(LISTINGS.get() > listings && none.opened().is_none());
        match any.relu(&[-1.0, 2.0]) {
            Ok(y) => assert_eq!(y, [0.0, 2.0]),
            Err(why) => assert!(!std::env::var("KILN_REQUIRE").is_ok_and(|names| names.contains("wgpu")), "{why}"),
        }
    }
}
