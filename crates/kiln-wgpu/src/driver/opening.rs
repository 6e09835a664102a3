//! Opening devices and listing adapters: one at a time in a process.
//!
//! On NVIDIA's driver 580.159 a process whose threads opened devices at the same time ended once in 55 runs by a segmentation
//! fault. Why is not known. Vulkan allows what they did; one after the other is not known to fail.

use std::sync::{Arc, OnceLock};
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, PoisonError};

use kiln_ir::{Error, Result};
use kiln_shaders::Capabilities;

#[cfg(not(target_arch = "wasm32"))]
use super::absent::{AbsentApi, absent};
use super::adapters::{self, AdapterInfo};
use super::choice::{AdapterChoice, choose};
use super::device::{GpuDevice, Inner};
use super::lost::Lost;
use super::options::GpuDeviceOptions;
#[cfg(not(target_arch = "wasm32"))]
use super::pipeline_cache::PipelineCache;
use super::pipelines::Pipelines;
use super::readbacks::Readbacks;
#[cfg(not(target_arch = "wasm32"))]
use super::retired;
use super::uploads::Uploads;
use super::{cooperative, direct};
use crate::plan::Target;
use crate::trusted;
use kiln_device::waiting::Waiting;
#[cfg(not(target_arch = "wasm32"))]
use kiln_device::waiting::{block_on, elsewhere};
use kiln_device::{Shared, blocking_and_async};

/// Buffers are multiples of four words, which kernels may access as whole vectors.
const GRANULARITY: u64 = 16;

/// Free memory beyond this is returned to the driver.
const MOST_FREE: u64 = 1 << 30;

/// Maximum bytes of a binding: the sizes that shaders see have 32 bits. Metal reports more.
const MOST_BOUND: u64 = u32::MAX as u64;

/// Held while adapters are enumerated or a device is opened.
#[cfg(not(target_arch = "wasm32"))]
static OPENING: Mutex<()> = Mutex::new(());

/// Runs `work` while nothing else in the process opens a device. It takes up to some tenths of a second inside the
/// driver, so callers that must not block use a thread.
#[cfg(not(target_arch = "wasm32"))]
async fn alone<T, F>(waiting: Waiting, work: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let work = move || {
        let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        block_on(work())
    };
    match waiting {
        Waiting::Here => work(),
        Waiting::Elsewhere => elsewhere("kiln-gpu-open", work).await,
    }
}

/// A browser has one thread.
#[cfg(target_arch = "wasm32")]
async fn alone<T, F: Future<Output = T>>(_: Waiting, work: impl FnOnce() -> F) -> T {
    work().await
}

/// The sizes of the blocks that wgpu allocates from the driver and subdivides: small at first, then doubling.
/// Allocating a large block of host memory would be half of the delay of a process's first operation.
const BLOCKS: wgpu::MemoryHints =
    wgpu::MemoryHints::Manual { suballocated_device_memory_block_size: (8 << 20)..(256 << 20) };

/// Opens a device that records its loss.
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
    let lost = Lost::default();
    let told = lost.clone();
    device.set_device_lost_callback(move |reason, message| {
        let reason = if message.is_empty() { format!("{reason:?}") } else { message };
        told.record(reason);
    });
    let name = name.to_owned();
    // Errors outside of all scopes would otherwise end the process.
    device.on_uncaptured_error(Arc::new(move |error| tracing::error!("{name}: {error}")));
    Ok((device, queue, lost))
}

/// The maximum bytes of a binding on an adapter with this limit: whole vectors, so that the last operand that fits has room.
fn most_bound(limit: u64) -> u64 {
    limit.min(MOST_BOUND) / GRANULARITY * GRANULARITY
}

impl GpuDevice {
    blocking_and_async! {
        /// Opens the adapter that the environment variable `KILN_ADAPTER` names, or else the best one: a discrete GPU before
        /// an integrated one. A software driver is used only on request.
        ///
        /// # Errors
        /// [`Error::Unavailable`] if no such adapter exists; the error lists those that exist. [`Error::Driver`] if its driver refuses.
        pub fn new, new_async(waiting) -> Result<Self> {
            Self::open_waiting(&AdapterChoice::Best, &GpuDeviceOptions::new(), waiting).await
        }

        /// Opens the chosen adapter.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::new_async`].
        pub fn open, open_async(waiting, choice: &AdapterChoice) -> Result<Self> {
            Self::open_waiting(choice, &GpuDeviceOptions::new(), waiting).await
        }

        /// Opens the chosen adapter with these options. Concurrent calls open one device at a time.
        ///
        /// # Errors
        /// The errors of [`GpuDevice::new_async`].
        pub fn open_with, open_with_async(waiting, choice: &AdapterChoice, options: &GpuDeviceOptions) -> Result<Self> {
            Self::open_waiting(choice, options, waiting).await
        }

        /// Every adapter of the machine, including software, in the order of their indices. A GPU with two APIs is listed once, with
        /// Vulkan; `WGPU_BACKEND=dx12` excludes Vulkan.
        pub fn list_adapters, list_adapters_async(waiting) -> Vec<AdapterInfo> {
            Self::list_waiting(waiting).await
        }

        /// The adapter that would be opened, without opening it.
        ///
        /// # Errors
        /// [`Error::Unavailable`] if no such adapter exists; the error lists those that exist.
        pub fn find, find_async(waiting, choice: &AdapterChoice) -> Result<AdapterInfo> {
            Self::find_waiting(choice, waiting).await
        }

        /// Whether [`GpuDevice::new_async`] would find an adapter; the machine is queried once.
        pub fn is_available, is_available_async(waiting) -> bool {
            static AVAILABLE: OnceLock<bool> = OnceLock::new();
            if let Some(&known) = AVAILABLE.get() {
                return known;
            }
            let found = Self::find_waiting(&AdapterChoice::Best, waiting).await.is_ok();
            *AVAILABLE.get_or_init(|| found)
        }
    }

    /// The GPU APIs (Vulkan, Metal, DX12) without an adapter on this machine, each with the reason.
    #[cfg(not(target_arch = "wasm32"))]
    pub fn absent_apis() -> Vec<AbsentApi> {
        absent(&Self::list_adapters())
    }

    pub(super) async fn open_waiting(
        choice: &AdapterChoice,
        options: &GpuDeviceOptions,
        waiting: Waiting,
    ) -> Result<Self> {
        let (choice, options) = (choice.clone(), options.clone());
        let open = async move || {
            let (infos, adapters): (Vec<AdapterInfo>, Vec<wgpu::Adapter>) = adapters::all().await.into_iter().unzip();
            let index = choose(&choice, &infos)?;
            Self::of_adapter(infos[index].clone(), &adapters[index], &options).await
        };
        alone(waiting, open).await
    }

    async fn list_waiting(waiting: Waiting) -> Vec<AdapterInfo> {
        let adapters = alone(waiting, adapters::all).await;
        adapters.into_iter().map(|(info, _)| info).collect()
    }

    async fn find_waiting(choice: &AdapterChoice, waiting: Waiting) -> Result<AdapterInfo> {
        let mut adapters = Self::list_waiting(waiting).await;
        let index = choose(choice, &adapters)?;
        Ok(adapters.swap_remove(index))
    }

    async fn of_adapter(info: AdapterInfo, adapter: &wgpu::Adapter, options: &GpuDeviceOptions) -> Result<Self> {
        let mut features = adapter.features() & options.features();
        let cooperative = features.contains(cooperative::FEATURES) && cooperative::offers(adapter);
        if !cooperative {
            features.remove(cooperative::FEATURES);
        }
        if options.profile && !features.contains(wgpu::Features::TIMESTAMP_QUERY) {
            let reason = format!("{} has no timestamps", info.name);
            return Err(Error::Unavailable { what: "the time of each kernel".into(), reason });
        }
        // Requests the full limits of the adapter: the defaults are those of the weakest browser.
        let mut limits = adapter.limits();
        limits.max_storage_buffer_binding_size = most_bound(limits.max_storage_buffer_binding_size);
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
        let largest = limits.max_buffer_size;
        let inner = Inner {
            info,
            device,
            queue,
            #[cfg(not(target_arch = "wasm32"))]
            features,
            target: Target { limits, cooperative, precision: options.precision },
            capabilities,
            direct: features.contains(direct::FEATURES),
            trusting: !options.plain && !options.checks,
            profiling: options.profile,
            pipelines: Pipelines::default(),
            #[cfg(not(target_arch = "wasm32"))]
            pipeline_cache,
            uploads: Uploads::default(),
            readbacks: Readbacks::default(),
            shared: Shared::new(GRANULARITY, MOST_FREE, largest),
            lost,
        };
        Ok(Self { inner: Arc::new(inner) })
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))]
mod tests {
    use super::super::device::tests::device;
    use super::*;

    #[test]
    fn limits_are_those_of_the_adapter() {
        let Some(device) = device() else { return };
        let all = block_on(adapters::all());
        let (_, adapter) = all.iter().find(|(info, _)| info == device.adapter()).unwrap();
        let (most, opened) = (adapter.limits(), device.inner.device.limits());
        assert_eq!(opened.max_buffer_size, most.max_buffer_size);
        assert_eq!(opened.max_storage_buffer_binding_size, most_bound(most.max_storage_buffer_binding_size));
        assert_eq!(opened.max_compute_workgroup_storage_size, most.max_compute_workgroup_storage_size);
        assert_eq!(opened.max_compute_workgroups_per_dimension, most.max_compute_workgroups_per_dimension);
        let features = adapter.features() & GpuDeviceOptions::new().features();
        assert!(device.inner.device.features().contains(features - cooperative::FEATURES));
        assert!(wgpu::Limits::default().max_buffer_size <= opened.max_buffer_size);
    }

    #[test]
    fn bindings_are_smaller_than_what_shaders_can_count() {
        assert_eq!([1 << 40, 1 << 32, u32::MAX.into()].map(most_bound), [(1 << 32) - 16; 3]);
        assert_eq!([(1 << 31) - 1, 1 << 27].map(most_bound), [(1 << 31) - 16, 1 << 27]);
    }

    #[test]
    fn adapters_are_asked_for_once_to_know_whether_there_is_one() {
        let known = GpuDevice::is_available();
        let before = adapters::LISTINGS.get();
        (0..3).for_each(|_| assert_eq!(GpuDevice::is_available(), known));
        assert_eq!(adapters::LISTINGS.get(), before);
        assert_eq!(GpuDevice::find(&AdapterChoice::Best).is_ok(), known);
        assert_eq!(adapters::LISTINGS.get(), before + 1);
    }
}
