//! An open device: its queue, its compiled kernels, its memory, and what it reports.

use std::sync::Arc;

use kiln_ir::{Error, Result};
use kiln_shaders::Capabilities;

use super::adapters::AdapterInfo;
use super::lost::Lost;
#[cfg(not(target_arch = "wasm32"))]
use super::lost::wait_for;
#[cfg(not(target_arch = "wasm32"))]
use super::pipeline_cache::PipelineCache;
use super::pipelines::Pipelines;
use super::readbacks::Readbacks;
#[cfg(not(target_arch = "wasm32"))]
use super::retired::{self, Opened};
use super::uploads::Uploads;
use crate::Region;
use crate::plan::Target;
use kiln_device::Shared;
#[cfg(not(target_arch = "wasm32"))]
use kiln_device::waiting::poll_once;
use kiln_device::waiting::{Signal, Waiting};

/// An open device. Cloning it is cheap and gives the same device.
#[derive(Debug, Clone)]
pub struct GpuDevice {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    pub(super) info: AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) features: wgpu::Features,
    /// The properties that plans depend on.
    pub(crate) target: Target,
    pub(crate) capabilities: Capabilities,
    /// Whether kernels can access memory that the host maps.
    pub(crate) direct: bool,
    /// Whether kernels that need no runtime checks are compiled without them.
    pub(crate) trusting: bool,
    /// Whether executions time their kernels.
    pub(crate) profiling: bool,
    pub(crate) pipelines: Pipelines,
    /// The persistent cache of the pipelines.
    #[cfg(not(target_arch = "wasm32"))]
    pub(super) pipeline_cache: Option<Arc<PipelineCache>>,
    pub(super) uploads: Uploads,
    pub(crate) readbacks: Readbacks,
    pub(crate) shared: Shared<wgpu::Buffer>,
    pub(super) lost: Lost,
}

impl Inner {
    /// Submits commands after all earlier uploads. All submissions use this function.
    pub(crate) fn submit(&self, commands: wgpu::CommandBuffer) -> Option<wgpu::SubmissionIndex> {
        self.uploads.submit(&self.queue, Some(commands))
    }

    /// Submits the uploads that wait for the next submission.
    pub(crate) fn submit_uploads(&self) {
        self.uploads.submit(&self.queue, None);
    }

    /// Writes bytes, padded to whole words: after all earlier submissions, and before all later ones.
    pub(crate) fn write(&self, region: &Region, bytes: &[u8]) -> Result<()> {
        let at = (region.memory()?, region.offset());
        self.uploads.write((&self.device, &self.queue), &self.lost, &self.shared.counters, at, bytes);
        Ok(())
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Inner {
    pub(crate) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.pipeline_cache.as_ref().map(|cache| cache.raw())
    }

    /// Records that a pipeline was compiled from this shader, with or without checks.
    pub(crate) fn compiled(&self, shader: &str, trusted: bool) {
        if let Some(cache) = &self.pipeline_cache {
            cache.compiled(shader, trusted);
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Inner {
    fn drop(&mut self) {
        if let Some(cache) = &self.pipeline_cache {
            cache.save();
        }
        retired::keep(Opened {
            info: self.info.clone(),
            device: self.device.clone(),
            queue: self.queue.clone(),
            features: self.features,
            limits: self.target.limits.clone(),
            lost: self.lost.clone(),
        });
    }
}

/// Browsers cache compiled pipelines by themselves.
#[cfg(target_arch = "wasm32")]
impl Inner {
    pub(crate) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        None
    }

    pub(crate) fn compiled(&self, _: &str, _: bool) {}
}

/// The error for what the device reported about work that requested this many bytes.
fn translated(what: &str, device: &str, bytes: u64, reported: [Option<wgpu::Error>; 3]) -> Option<Error> {
    let mut reported: Vec<wgpu::Error> = reported.into_iter().flatten().collect();
    // If any reported error is out-of-memory, reports that one, because the others follow from it.
    let no_memory = |error: &wgpu::Error| matches!(error, wgpu::Error::OutOfMemory { .. });
    if reported.iter().any(no_memory) {
        return Some(Error::OutOfMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) });
    }
    let message = (!reported.is_empty()).then(|| reported.remove(0).to_string())?;
    Some(Error::Driver { what: what.to_owned(), device: device.to_owned(), message })
}

impl GpuDevice {
    /// The adapter that was opened.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.inner.info
    }

    /// Waits until all submitted work is done.
    pub(super) async fn finish_with(&self, waiting: Waiting) -> Result<()> {
        let sent = || {
            self.inner.submit_uploads();
            Ok(())
        };
        self.scoped_work("an upload", 0, sent).await?;
        let done = Signal::new();
        let set = done.clone();
        self.inner.queue.on_submitted_work_done(move || set.set(()));
        self.drive(&done, None, (), waiting);
        done.await;
        self.still_open()
    }

    /// Whether products of f16 use cooperative matrices (tensor cores).
    pub fn has_cooperative_matrices(&self) -> bool {
        self.inner.target.cooperative
    }

    /// Number of kernels compiled so far.
    pub fn compiled_kernels(&self) -> usize {
        self.inner.pipelines.len()
    }

    /// Ends the device, as unplugging it would: every later call returns [`Error::DeviceLost`].
    pub fn destroy(&self) {
        self.inner.device.destroy();
        self.inner.lost.record("it was destroyed".into());
    }

    pub(super) fn still_open(&self) -> Result<()> {
        match self.inner.lost.reason() {
            None => Ok(()),
            Some(reason) => Err(Error::DeviceLost { device: self.inner.info.name.clone(), reason }),
        }
    }

    /// Refuses tensors of another device.
    pub(crate) fn check_own(&self, tensors: &[&crate::GpuTensor]) -> Result<()> {
        tensors.iter().try_for_each(|tensor| tensor.check_on(self))
    }

    /// A buffer for kernels to read and write. In a browser, which reports a lack of memory later, the error scope of the caller
    /// catches it.
    ///
    /// # Errors
    /// [`Error::Limit`] beyond the largest buffer; natively [`Error::OutOfMemory`].
    pub(super) fn allocate_buffer(&self, bytes: u64) -> Result<wgpu::Buffer> {
        let limit = self.inner.target.limits.max_buffer_size;
        if bytes > limit {
            let device = self.inner.info.name.clone();
            return Err(Error::Limit { what: "bytes of one tensor", device, asked: bytes, limit });
        }
        use wgpu::BufferUsages as Usages;
        let create = || {
            self.inner.device.create_buffer(&wgpu::BufferDescriptor {
                label: None,
                size: bytes,
                usage: Usages::STORAGE | Usages::COPY_SRC | Usages::COPY_DST,
                mapped_at_creation: false,
            })
        };
        let buffer = self.with_memory(bytes, create)?;
        self.inner.shared.counters.storage_buffers.add(1);
        Ok(buffer)
    }

    /// Runs `create` in a scope of its own, so that a lack of memory is an error at once: the pool then frees memory and tries
    /// again.
    #[cfg(not(target_arch = "wasm32"))]
    fn with_memory<T>(&self, bytes: u64, create: impl FnOnce() -> T) -> Result<T> {
        let scope = self.inner.device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let created = create();
        // Natively the future of a scope is complete.
        match poll_once(std::pin::pin!(scope.pop())).flatten() {
            Some(_) => Err(Error::OutOfMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) }),
            None => Ok(created),
        }
    }

    #[cfg(target_arch = "wasm32")]
    fn with_memory<T>(&self, _: u64, create: impl FnOnce() -> T) -> Result<T> {
        Ok(create())
    }

    /// Runs `work` and turns what the device reports about it into an error.
    pub(crate) async fn scoped_work<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.still_open()?;
        let (result, reports) = {
            let scopes = Scopes::push(&self.inner.device);
            let result = work();
            (result, scopes.pop())
        };
        let Err(error) = self.reported(what, bytes, reports).await else { return result };
        // Buffers that the device could not allocate return to the pool, from which they are removed.
        drop(result);
        self.trim_after(&error);
        Err(error)
    }

    /// [`GpuDevice::scoped_work`] with several devices: what any of them reports is an error.
    pub(super) async fn scoped_together<T>(
        devices: &[Self],
        what: &str,
        bytes: u64,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        devices.iter().try_for_each(Self::still_open)?;
        let (result, reports) = {
            let scopes: Vec<_> = devices.iter().map(|device| Scopes::push(&device.inner.device)).collect();
            let result = work();
            (result, scopes.into_iter().map(Scopes::pop).collect::<Vec<_>>())
        };
        let mut failed = None;
        for (device, reports) in devices.iter().zip(reports) {
            failed = failed.or(device.reported(what, bytes, reports).await.err());
        }
        let Some(error) = failed else { return result };
        drop(result);
        devices.iter().for_each(|device| device.trim_after(&error));
        Err(error)
    }

    /// The error in what the device reported within scopes.
    async fn reported(
        &self,
        what: &str,
        bytes: u64,
        [validation, memory, internal]: [impl Future<Output = Option<wgpu::Error>>; 3],
    ) -> Result<()> {
        let (validation, memory, internal) = (validation.await, memory.await, internal.await);
        self.still_open()?;
        translated(what, &self.inner.info.name, bytes, [memory, validation, internal]).map_or(Ok(()), Err)
    }

    /// Returns unused buffers to the driver after a lack of memory.
    fn trim_after(&self, error: &Error) {
        if matches!(error, Error::OutOfMemory { .. }) {
            self.trim();
        }
    }

    /// Maps a buffer for reading, after all earlier submissions are done.
    pub(crate) async fn map(&self, buffer: &wgpu::Buffer, bytes: u64, waiting: Waiting) -> Result<wgpu::BufferView> {
        self.mapped(begin_map(buffer, bytes), None, buffer, bytes, waiting).await
    }

    /// Waits for a buffer that [`begin_map`] maps after a submission, or after all earlier ones.
    pub(crate) async fn mapped(
        &self,
        mapped: Mapped,
        after: Option<wgpu::SubmissionIndex>,
        buffer: &wgpu::Buffer,
        bytes: u64,
        waiting: Waiting,
    ) -> Result<wgpu::BufferView> {
        let slice = buffer.slice(..bytes);
        self.drive(&mapped, after, Err(wgpu::BufferAsyncError), waiting);
        let failed = |message: String| Error::Driver {
            what: "reading results".into(),
            device: self.inner.info.name.clone(),
            message,
        };
        let result = mapped.await;
        self.still_open()?;
        result.map_err(|error| failed(error.to_string()))?;
        self.inner.shared.counters.downloaded(bytes);
        slice.get_mapped_range().map_err(|error| failed(error.to_string()))
    }

    /// Makes the device deliver all work, or the work up to a submission, which completes `done`. If the device is lost, `done`
    /// is completed with `of_lost`.
    #[cfg(not(target_arch = "wasm32"))]
    fn drive<T: Clone + Send + 'static>(
        &self,
        done: &Signal<T>,
        after: Option<wgpu::SubmissionIndex>,
        of_lost: T,
        waiting: Waiting,
    ) {
        let (device, lost, done) = (self.inner.device.clone(), self.inner.lost.clone(), done.clone());
        let wait = move || wait_for(|how| device.poll(how), &lost, (&done, of_lost), after);
        match waiting {
            Waiting::Here => wait(),
            Waiting::Elsewhere => {
                // One thread for each wait: there are few, and they last as long as the work.
                if let Err(error) = std::thread::Builder::new().name("kiln-gpu-wait".into()).spawn(wait.clone()) {
                    kiln_device::waiting::no_thread("waiting for a device", &error);
                    wait();
                }
            }
        }
    }

    /// The browser delivers finished work by itself.
    #[cfg(target_arch = "wasm32")]
    fn drive<T>(&self, _: &Signal<T>, _: Option<wgpu::SubmissionIndex>, _: T, _: Waiting) {}
}

/// The completion of a mapping.
pub(crate) type Mapped = Signal<std::result::Result<(), wgpu::BufferAsyncError>>;

/// Begins to map a buffer for reading, after all earlier submissions.
pub(crate) fn begin_map(buffer: &wgpu::Buffer, bytes: u64) -> Mapped {
    let mapped = Signal::new();
    let set = mapped.clone();
    buffer.slice(..bytes).map_async(wgpu::MapMode::Read, move |result| set.set(result));
    mapped
}

/// Scopes of a device that catch its errors of each kind.
struct Scopes {
    validation: wgpu::ErrorScopeGuard,
    memory: wgpu::ErrorScopeGuard,
    internal: wgpu::ErrorScopeGuard,
}

impl Scopes {
    fn push(device: &wgpu::Device) -> Self {
        let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        Self { validation, memory, internal }
    }

    /// Ends the scopes at once, the innermost first. The futures are what they caught, in the order of the fields.
    fn pop(self) -> [impl Future<Output = Option<wgpu::Error>>; 3] {
        [self.validation.pop(), self.memory.pop(), self.internal.pop()]
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
pub(super) mod tests {
    use kiln_ir::op::{Elementwise, Transpose};
    use kiln_ir::{Operand, Record};

    use super::*;
    use crate::{AdapterChoice, AdapterKind, GpuCommandBatch};
    use kiln_device::waiting::block_on;

    /// A device of any kind; `None` if no device opens and the tests do not require one.
    pub(in crate::driver) fn device() -> Option<GpuDevice> {
        match GpuDevice::open(&AdapterChoice::Any) {
            Ok(device) => Some(device),
            Err(why) => {
                let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
                assert!(!required.split(',').any(|name| name.trim() == "wgpu"), "{why}");
                eprintln!("skipped: {why}");
                None
            }
        }
    }

    #[test]
    fn what_a_device_reports_is_a_typed_error() {
        let memory = || Some(wgpu::Error::OutOfMemory { source: "no room".into() });
        let validation = || {
            let description = "bad binding".to_owned();
            Some(wgpu::Error::Validation { source: "bad".into(), description })
        };
        let internal = || {
            let description = "odd".to_owned();
            Some(wgpu::Error::Internal { source: "odd".into(), description })
        };
        let of = |reported| translated("a batch", "a GPU", 77, reported);
        assert!(of([None, None, None]).is_none());
        for reported in [[memory(), None, None], [memory(), validation(), internal()]] {
            assert!(matches!(of(reported), Some(Error::OutOfMemory { bytes: 77 })));
        }
        let refused = of([None, validation(), internal()]);
        let Some(Error::Driver { what, device, message }) = refused else { panic!("{refused:?}") };
        assert_eq!((what.as_str(), device.as_str()), ("a batch", "a GPU"));
        assert!(message.contains("bad"), "{message}");
        assert!(matches!(of([None, None, internal()]), Some(Error::Driver { .. })));
    }

    #[test]
    fn a_device_that_is_lost_while_futures_wait_completes_them() {
        let Some(device) = device() else { return };
        device.inner.lost.record("the driver says so".into());
        // As if another thread had recorded it after the work was submitted.
        for waiting in [Waiting::Here, Waiting::Elsewhere] {
            let never: Mapped = Signal::new();
            device.drive(&never, None, Err(wgpu::BufferAsyncError), waiting);
            assert_eq!(block_on(never), Err(wgpu::BufferAsyncError));
        }
        assert!(matches!(block_on(device.finish_with(Waiting::Here)), Err(Error::DeviceLost { .. })));
    }

    /// Runs in a process of its own whose address space is limited, in which a software driver runs out of memory.
    #[test]
    #[cfg(target_os = "linux")]
    fn pooled_memory_is_freed_when_an_allocation_fails() {
        const LIMITED: &str = "KILN_TEST_CHILD";
        let Some(device) = device() else { return };
        if device.adapter().kind != AdapterKind::Software {
            return println!("skipped: hardware has memory of its own");
        }
        if std::env::var_os(LIMITED).is_none() {
            let this = "driver::device::tests::pooled_memory_is_freed_when_an_allocation_fails";
            let program = std::env::current_exe().unwrap();
            let mut limited = std::process::Command::new("sh");
            limited.args(["-c", "ulimit -v 8000000 && exec \"$0\" \"$@\""]).arg(program).args(["--exact", this]);
            let ran = limited.env(LIMITED, "").output().unwrap();
            let ran_it = String::from_utf8_lossy(&ran.stdout).contains("1 passed");
            return assert!(ran.status.success() && ran_it, "{ran:?}");
        }
        let pool = &device.inner.shared.pool;
        let take = |bytes| {
            let take = || pool.take(bytes, |bytes| device.allocate_buffer(bytes));
            block_on(device.scoped_work("a test", bytes, take))
        };
        // The rest is then less than what wgpu asks the driver for when many small buffers share it.
        let mut held: Vec<_> = (0..16).map_while(|_| take(512 << 20).ok()).collect();
        assert!((1..16).contains(&held.len()), "{}", held.len());
        let small: Vec<_> = (0..64).map_while(|_| take(64 << 20).ok()).collect();
        assert!(small.len() < 64);
        held.pop();
        assert_eq!(device.memory_use().pooled, 512 << 20);
        let smaller = take(450 << 20);
        assert!(smaller.is_ok_and(|region| region.bytes() == 480 << 20));
        assert_eq!(device.memory_use().pooled, 480 << 20, "the larger allocation was freed");
    }

    #[test]
    fn an_error_of_a_device_reaches_the_caller_and_leaves_the_device() {
        let Some(device) = device() else { return };
        let report = || {
            // A copy from a buffer that does not allow copies.
            let buffer = |usage| {
                let descriptor = wgpu::BufferDescriptor { label: None, size: 64, usage, mapped_at_creation: false };
                device.inner.device.create_buffer(&descriptor)
            };
            let (from, to) = (buffer(wgpu::BufferUsages::UNIFORM), buffer(wgpu::BufferUsages::COPY_DST));
            let mut encoder = device.inner.device.create_command_encoder(&Default::default());
            encoder.copy_buffer_to_buffer(&from, 0, &to, 0, 64);
            device.inner.submit(encoder.finish());
            Ok(())
        };
        let refused = block_on(device.scoped_work("a copy", 0, report));
        assert!(matches!(&refused, Err(Error::Driver { what, .. }) if what == "a copy"), "{refused:?}");
        let x = device.upload(&Operand::vector(&[1.0])).unwrap();
        assert_eq!(x.read().unwrap().as_data().f32(), [1.0]);
    }

    #[test]
    fn an_error_of_any_device_of_a_group_reaches_the_caller() {
        for failing in 0..2 {
            let (Some(one), Some(two)) = (device(), device()) else { return };
            let devices = [one, two];
            let raw = &devices[failing].inner.device;
            let report = || {
                // Buffers must not have a usage of no kind.
                let usage = wgpu::BufferUsages::empty();
                Ok(raw.create_buffer(&wgpu::BufferDescriptor {
                    label: None,
                    size: 64,
                    usage,
                    mapped_at_creation: false,
                }))
            };
            let refused = block_on(GpuDevice::scoped_together(&devices, "a group", 0, report));
            assert!(matches!(&refused, Err(Error::Driver { what, .. }) if what == "a group"), "{failing}: {refused:?}");
            assert_eq!(block_on(GpuDevice::scoped_together(&devices, "a group", 0, || Ok(7))), Ok(7));
            for device in &devices {
                let x = device.upload(&Operand::vector(&[1.0])).unwrap();
                assert_eq!(x.read().unwrap().as_data().f32(), [1.0]);
            }
            devices[failing].destroy();
            let lost = block_on(GpuDevice::scoped_together(&devices, "a group", 0, || Ok(())));
            assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}");
        }
    }

    #[test]
    fn results_that_no_buffer_holds_together_are_read_one_after_the_other() {
        let Some(mut device) = device() else { return };
        let inner = Arc::get_mut(&mut device.inner).unwrap();
        inner.target.limits.max_buffer_size = 1 << 20;
        let (rows, columns) = (300, 700);
        let x: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let mut batch = GpuCommandBatch::new(device.clone());
        let x = batch.upload(&x, &[rows, columns]).unwrap();
        let turned = batch.transpose(x).unwrap();
        let [small, double, triple] =
            [batch.sum(turned), batch.scale(turned, 2.0), batch.scale(turned, 3.0)].map(Result::unwrap);
        let wanted = [double, small, triple, turned];
        let check = |results: &[kiln_ir::Buffer]| {
            let at = |result: usize, i: usize| results[result].as_data().f32()[i];
            for (i, j) in [(0, 0), (1, 0), (0, 1), (699, 299), (350, 17)] {
                let (value, i) = ((j * columns + i) as f32, i * rows + j);
                assert_eq!([at(0, i), at(2, i), at(3, i)], [2.0 * value, 3.0 * value, value]);
            }
            assert_eq!(results[1].as_data().f32().len(), 1);
        };
        for _ in 0..2 {
            let before = device.statistics();
            check(&batch.run(&wanted).unwrap());
            let spent = device.statistics() - before;
            // 840 kB each.
            assert_eq!((spent.downloads, spent.submissions), (3, 3), "{spent}");
            let before = device.statistics();
            check(&batch.read_many(&wanted).unwrap());
            let spent = device.statistics() - before;
            assert_eq!((spent.downloads, spent.submissions, spent.readback_buffers), (3, 3, 0), "{spent}");
        }
        let matrix = device.upload(&Operand::f32(&[1.0, 2.0], &[1, 2]).unwrap()).unwrap();
        let turned = device.run(&Transpose.into(), &[&matrix]).unwrap().remove(0);
        assert!(device.run(&Elementwise::relu().into(), &[&turned]).is_ok());
    }
}
