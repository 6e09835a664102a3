//! An open device: its queue, its compiled kernels, its memory, and what became of it.

use std::sync::{Arc, Mutex, OnceLock, PoisonError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::{Duration, Instant};

use kiln_core::{Error, Result};
use kiln_shaders::Capabilities;

use crate::adapters::{self, AdapterChoice, AdapterInfo};
use crate::cooperative;
use crate::direct;
use crate::memory::{DeviceBuffer, Pool, Region};
use crate::options::DeviceOptions;
#[cfg(not(target_arch = "wasm32"))]
use crate::pipeline_cache::PipelineCache;
use crate::pipelines::Pipelines;
use crate::plan::Target;
#[cfg(not(target_arch = "wasm32"))]
use crate::retired::{self, Opened};
#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::statistics::{Counters, Statistics};
use crate::trusted;
use crate::uploads::Uploads;
use crate::wait::{Signal, Waiting};

/// An open device. Cloning it is cheap and gives the same device.
#[derive(Debug, Clone)]
pub struct GpuDevice {
    pub(crate) inner: Arc<Inner>,
}

#[derive(Debug)]
pub(crate) struct Inner {
    info: AdapterInfo,
    pub(crate) device: wgpu::Device,
    pub(crate) queue: wgpu::Queue,
    #[cfg(not(target_arch = "wasm32"))]
    features: wgpu::Features,
    pub(crate) limits: wgpu::Limits,
    pub(crate) capabilities: Capabilities,
    /// Whether it multiplies cooperative matrices.
    cooperative: bool,
    /// Whether kernels can work on memory that the host maps.
    pub(crate) direct: bool,
    /// Whether kernels that need no checks at run time go without.
    pub(crate) trusting: bool,
    /// Whether executions measure their kernels.
    pub(crate) profiling: bool,
    pub(crate) pipelines: Pipelines,
    /// What of them outlives the process.
    #[cfg(not(target_arch = "wasm32"))]
    pipeline_cache: Option<Arc<PipelineCache>>,
    pub(crate) counters: Counters,
    uploads: Uploads,
    pool: Arc<Pool>,
    lost: Lost,
}

impl Inner {
    /// What plans for it depend on.
    pub(crate) fn target(&self) -> Target<'_> {
        Target { limits: &self.limits, cooperative: self.cooperative }
    }

    /// Submits commands, after all uploads before them. All submissions go through this.
    pub(crate) fn submit(&self, commands: wgpu::CommandBuffer) {
        self.uploads.submit(&self.queue, Some(commands));
    }

    /// Writes bytes, up to whole words: after all that was submitted before, and before all that is submitted later.
    pub(crate) fn write(&self, region: &Region, bytes: &[u8]) {
        let at = (region.raw(), region.offset);
        self.uploads.write((&self.device, &self.queue), &self.counters, at, bytes);
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Inner {
    pub(crate) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        self.pipeline_cache.as_ref().map(|cache| cache.raw())
    }

    /// Takes note of a pipeline that was compiled from this shader, with or without checks.
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
            limits: self.limits.clone(),
            lost: self.lost.clone(),
        });
    }
}

/// Browsers keep what they compiled by themselves.
#[cfg(target_arch = "wasm32")]
impl Inner {
    pub(crate) fn pipeline_cache(&self) -> Option<&wgpu::PipelineCache> {
        None
    }

    pub(crate) fn compiled(&self, _: &str, _: bool) {}
}

/// How large the blocks are that wgpu takes from the driver and gives out in parts: small at first, then twice as large each
/// time. To take a large one of the host's memory is half of what the first operation of a process waits for.
const BLOCKS: wgpu::MemoryHints =
    wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: (8 << 20)..(256 << 20) };

/// Why a device is gone, once it is.
type Lost = Arc<Mutex<Option<String>>>;

/// Opens a device that notes it when it is lost.
async fn open(
    name: &str,
    adapter: &wgpu::Adapter,
    features: wgpu::Features,
    limits: &wgpu::Limits,
    cooperative: bool,
) -> Result<(wgpu::Device, wgpu::Queue, Lost)> {
    let descriptor = wgpu::DeviceDescriptor {
        label: Some("kiln"),
        required_features: features,
        required_limits: limits.clone(),
        experimental_features: if cooperative { trusted::experiments() } else { Default::default() },
        memory_hints: BLOCKS,
        ..Default::default()
    };
    let opened = adapter.request_device(&descriptor).await;
    let (device, queue) = opened.map_err(|error| Error::Driver {
        what: "opening the device".into(),
        device: name.to_owned(),
        message: error.to_string(),
    })?;
    let lost = Arc::new(Mutex::new(None));
    let told = lost.clone();
    device.set_device_lost_callback(move |reason, message| {
        let reason = if message.is_empty() { format!("{reason:?}") } else { message };
        *told.lock().unwrap_or_else(PoisonError::into_inner) = Some(reason);
    });
    let name = name.to_owned();
    // What no scope catches would end the process.
    device.on_uncaptured_error(Arc::new(move |error| tracing::error!("{name}: {error}")));
    Ok((device, queue, lost))
}

impl GpuDevice {
    /// Opens the adapter that the environment variable `KILN_ADAPTER` names, or else the best one: a discrete GPU before
    /// an integrated one. A driver in software is used only when it is asked for.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none, with what there is; [`Error::Driver`] where its driver refuses.
    pub async fn new_async() -> Result<Self> {
        Self::open_async(&AdapterChoice::Best).await
    }

    /// Opens an adapter of choice.
    ///
    /// # Errors
    /// As [`GpuDevice::new_async`].
    pub async fn open_async(choice: &AdapterChoice) -> Result<Self> {
        Self::open_with_async(choice, &DeviceOptions::new()).await
    }

    /// Opens an adapter of choice as the options say.
    ///
    /// # Errors
    /// As [`GpuDevice::new_async`].
    pub async fn open_with_async(choice: &AdapterChoice, options: &DeviceOptions) -> Result<Self> {
        let (infos, adapters): (Vec<AdapterInfo>, Vec<wgpu::Adapter>) = adapters::all().await.into_iter().unzip();
        let index = adapters::choose(choice, &infos)?;
        Self::of_adapter(infos[index].clone(), &adapters[index], options).await
    }

    async fn of_adapter(info: AdapterInfo, adapter: &wgpu::Adapter, options: &DeviceOptions) -> Result<Self> {
        let mut features = adapter.features() & options.features();
        let cooperative = features.contains(cooperative::FEATURES) && cooperative::offers(adapter);
        if !cooperative {
            features.remove(cooperative::FEATURES);
        }
        if options.profile && !features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            let reason = format!("{} has no timestamps", info.name);
            return Err(Error::Unavailable { what: "the time of each kernel".into(), reason });
        }
        // Everything that the adapter can do: the defaults are those of the weakest browser.
        let mut limits = adapter.limits();
        if !features.contains(wgpu::Features::IMMEDIATES) {
            limits.max_immediate_size = 0;
        }
        #[cfg(not(target_arch = "wasm32"))]
        let retired = retired::take(&info, features, &limits).map(|again| (again.device, again.queue, again.lost));
        #[cfg(target_arch = "wasm32")]
        let retired = None;
        let (device, queue, lost) = match retired {
            Some(again) => again,
            None => open(&info.name, adapter, features, &limits, cooperative).await?,
        };
        let capabilities = Capabilities {
            subgroup: features.contains(wgpu::Features::SUBGROUP),
            immediates: features.contains(wgpu::Features::IMMEDIATES),
        };
        #[cfg(not(target_arch = "wasm32"))]
        let pipeline_cache = match &options.pipeline_folder {
            Some(folder) if features.contains(wgpu::Features::PIPELINE_CACHE) => {
                PipelineCache::open(&device, folder).await
            }
            _ => None,
        };
        let inner = Inner {
            info,
            device,
            queue,
            #[cfg(not(target_arch = "wasm32"))]
            features,
            limits,
            capabilities,
            cooperative,
            direct: features.contains(direct::FEATURES),
            trusting: !options.plain && !options.checks,
            profiling: options.profile,
            pipelines: Pipelines::default(),
            #[cfg(not(target_arch = "wasm32"))]
            pipeline_cache,
            counters: Counters::default(),
            uploads: Uploads::default(),
            pool: Arc::default(),
            lost,
        };
        Ok(Self { inner: Arc::new(inner) })
    }

    /// Every adapter of the machine, software too, in the order of their indices.
    pub async fn list_adapters_async() -> Vec<AdapterInfo> {
        adapters::all().await.into_iter().map(|(info, _)| info).collect()
    }

    /// Whether [`GpuDevice::new_async`] would find an adapter; asked of the machine once.
    pub async fn is_available_async() -> bool {
        static AVAILABLE: OnceLock<bool> = OnceLock::new();
        if let Some(&known) = AVAILABLE.get() {
            return known;
        }
        let found = adapters::choose(&AdapterChoice::Best, &Self::list_adapters_async().await).is_ok();
        *AVAILABLE.get_or_init(|| found)
    }

    /// The adapter that was opened.
    pub fn adapter(&self) -> &AdapterInfo {
        &self.inner.info
    }

    /// Waits until all that was submitted is done.
    ///
    /// # Errors
    /// [`Error::DeviceLost`].
    pub async fn finish_async(&self) -> Result<()> {
        self.finish_with(Waiting::Elsewhere).await
    }

    async fn finish_with(&self, waiting: Waiting) -> Result<()> {
        let sent = || {
            self.inner.uploads.submit(&self.inner.queue, None);
            Ok(())
        };
        self.scoped("an upload", 0, sent).await?;
        let done = Signal::new();
        let set = done.clone();
        self.inner.queue.on_submitted_work_done(move || set.set(()));
        self.wait(waiting);
        done.await;
        self.check_alive()
    }

    /// Whether products of f16 go through cooperative matrices (tensor cores).
    pub fn has_cooperative_matrices(&self) -> bool {
        self.inner.cooperative
    }

    /// Number of kernels compiled so far.
    pub fn compiled_kernels(&self) -> usize {
        self.inner.pipelines.len()
    }

    /// What the device was asked for since it was opened.
    pub fn statistics(&self) -> Statistics {
        self.inner.counters.read()
    }

    /// Gives memory that is not in use back to the driver.
    pub fn trim(&self) {
        self.inner.pool.clear();
        self.inner.uploads.clear();
    }

    /// Ends the device, as unplugging it would: whatever is asked of it from then on is [`Error::DeviceLost`].
    pub fn destroy(&self) {
        self.inner.device.destroy();
        let mut lost = self.inner.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.get_or_insert_with(|| "it was destroyed".into());
    }

    /// Whether the device is gone.
    pub fn is_lost(&self) -> bool {
        self.lost().is_some()
    }
}

/// The same for those who wait.
#[cfg(not(target_arch = "wasm32"))]
impl GpuDevice {
    /// As [`GpuDevice::new_async`].
    ///
    /// # Errors
    /// As there.
    pub fn new() -> Result<Self> {
        block_on(Self::new_async())
    }

    /// As [`GpuDevice::open_async`].
    ///
    /// # Errors
    /// As there.
    pub fn open(choice: &AdapterChoice) -> Result<Self> {
        block_on(Self::open_async(choice))
    }

    /// As [`GpuDevice::open_with_async`].
    ///
    /// # Errors
    /// As there.
    pub fn open_with(choice: &AdapterChoice, options: &DeviceOptions) -> Result<Self> {
        block_on(Self::open_with_async(choice, options))
    }

    /// The adapter that would be opened, without opening it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] where there is none, with what there is.
    pub fn find(choice: &AdapterChoice) -> Result<AdapterInfo> {
        let mut adapters = Self::list_adapters();
        let index = adapters::choose(choice, &adapters)?;
        Ok(adapters.swap_remove(index))
    }

    /// As [`GpuDevice::list_adapters_async`].
    pub fn list_adapters() -> Vec<AdapterInfo> {
        block_on(Self::list_adapters_async())
    }

    /// As [`GpuDevice::finish_async`].
    ///
    /// # Errors
    /// As there.
    pub fn finish(&self) -> Result<()> {
        block_on(self.finish_with(Waiting::Here))
    }

    /// As [`GpuDevice::is_available_async`].
    pub fn is_available() -> bool {
        block_on(Self::is_available_async())
    }
}

impl GpuDevice {
    fn lost(&self) -> Option<String> {
        self.inner.lost.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// # Errors
    /// [`Error::DeviceLost`].
    pub(crate) fn check_alive(&self) -> Result<()> {
        match self.lost() {
            None => Ok(()),
            Some(reason) => Err(Error::DeviceLost { device: self.inner.info.name.clone(), reason }),
        }
    }

    /// Memory for a tensor.
    ///
    /// # Errors
    /// [`Error::Limit`] where no buffer can be so large. Memory that runs out shows in the scope of the caller.
    pub(crate) fn take(&self, bytes: u64) -> Result<DeviceBuffer> {
        let limit = self.inner.limits.max_buffer_size;
        if crate::memory::size_class(bytes) > limit {
            let device = self.inner.info.name.clone();
            return Err(Error::Limit { what: "bytes of one tensor", device, asked: bytes, limit });
        }
        Ok(self.inner.pool.take(&self.inner.device, bytes))
    }

    /// Runs `work` and turns what the device reports about it into an error.
    pub(crate) async fn scoped<T>(&self, what: &str, bytes: u64, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.check_alive()?;
        let (result, validation, memory, internal) = {
            let device = &self.inner.device;
            let internal = device.push_error_scope(wgpu::ErrorFilter::Internal);
            let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
            let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
            let result = work();
            // Innermost first; popping takes effect at once.
            (result, validation.pop(), memory.pop(), internal.pop())
        };
        let (validation, memory, internal) = (validation.await, memory.await, internal.await);
        self.check_alive()?;
        if memory.is_some() {
            self.trim();
            return Err(Error::OutOfMemory { bytes: usize::try_from(bytes).unwrap_or(usize::MAX) });
        }
        if let Some(error) = validation.or(internal) {
            let (what, device) = (what.to_owned(), self.inner.info.name.clone());
            return Err(Error::Driver { what, device, message: error.to_string() });
        }
        result
    }

    /// Maps a buffer for reading, once all that was submitted before is done.
    pub(crate) async fn map(&self, buffer: &wgpu::Buffer, bytes: u64, waiting: Waiting) -> Result<wgpu::BufferView> {
        let mapped = Signal::new();
        let set = mapped.clone();
        let slice = buffer.slice(..bytes);
        slice.map_async(wgpu::MapMode::Read, move |result| set.set(result));
        self.wait(waiting);
        let failed = |message: String| Error::Driver {
            what: "reading results".into(),
            device: self.inner.info.name.clone(),
            message,
        };
        let result = mapped.await;
        self.check_alive()?;
        result.map_err(|error| failed(error.to_string()))?;
        self.inner.counters.downloaded(bytes);
        slice.get_mapped_range().map_err(|error| failed(error.to_string()))
    }

    /// Sees to it that the device delivers what it has finished.
    #[cfg(not(target_arch = "wasm32"))]
    fn wait(&self, waiting: Waiting) {
        let device = self.inner.device.clone();
        let wait = move || {
            if let Err(error) = wait_for(&device) {
                tracing::warn!("waiting for a device: {error}");
            }
        };
        match waiting {
            Waiting::Here => wait(),
            Waiting::Elsewhere => {
                // A thread for each wait: they are few and last as long as the work that is waited for.
                if let Err(error) = std::thread::Builder::new().name("kiln-gpu-wait".into()).spawn(wait.clone()) {
                    tracing::warn!("no thread to wait for a device ({error}); waiting here");
                    wait();
                }
            }
        }
    }

    /// The browser delivers by itself.
    #[cfg(target_arch = "wasm32")]
    fn wait(&self, _: Waiting) {}
}

/// What is done so soon is asked for again and again: to be woken by the driver takes longer, on virtual machines above all.
#[cfg(not(target_arch = "wasm32"))]
const SOON: Duration = Duration::from_micros(200);

/// Waits until all that was submitted is done, and delivers it.
#[cfg(not(target_arch = "wasm32"))]
fn wait_for(device: &wgpu::Device) -> std::result::Result<(), wgpu::PollError> {
    let start = Instant::now();
    while start.elapsed() < SOON {
        if device.poll(wgpu::PollType::Poll)?.is_queue_empty() {
            return Ok(());
        }
        std::hint::spin_loop();
    }
    device.poll(wgpu::PollType::wait_indefinitely()).map(|_| ())
}
