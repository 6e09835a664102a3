//! Compiled pipelines that outlive the process, in a file for each adapter and driver.
//!
//! The file is written when the device is dropped, and by a thread of its own once nothing was compiled for a while: a
//! process that is ended drops nothing, and one that compiles should not wait for a disk. It is written only if it lacks
//! a pipeline that was compiled since.

mod contents;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use contents::Contents;
use kiln_device::store::{Kind, Unusable, fingerprint};

use crate::trusted;

/// The files.
const FILES: Kind = Kind { magic: *b"kilnpipe", version: 2 };

/// The file is written after this long without a compilation.
const QUIET: Duration = Duration::from_secs(1);

/// The compiled pipelines of a device, and their file.
#[derive(Debug)]
pub(crate) struct PipelineCache {
    raw: wgpu::PipelineCache,
    path: PathBuf,
    /// The adapter and driver of the pipelines.
    key: String,
    state: Mutex<State>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Fingerprints of the shaders whose pipelines are in the file.
    held: BTreeSet<u64>,
    /// Number of compiled pipelines that the file lacked.
    compiled: u64,
    /// The value of `compiled` when the file was last written.
    written: u64,
    /// Whether a thread is waiting to write the file.
    waiting: bool,
}

impl PipelineCache {
    /// The cache of an adapter in a folder; `None` if its driver has no cache.
    pub(crate) async fn open(device: &wgpu::Device, folder: &Path) -> Option<Arc<Self>> {
        let info = device.adapter_info();
        let adapter = wgpu::util::pipeline_cache_key(&info)?;
        let driver = format!("{adapter} {} {} {}", info.name, info.driver, info.driver_info);
        let path = folder.join(format!("pipelines-{:016x}.bin", fingerprint(driver.as_bytes())));
        let key = format!("{driver}, kiln {}, {} bits", env!("CARGO_PKG_VERSION"), usize::BITS);
        let loaded = FILES.load(&path, &key).and_then(|bytes| match Contents::decode(&bytes) {
            Some(Contents { held, data }) => Ok((held, data.to_vec())),
            None => Err(Unusable::Corrupt),
        });
        let (held, data) = match loaded {
            Ok((held, data)) => (held, Some(data)),
            Err(why) => {
                match &why {
                    Unusable::Missing => {}
                    Unusable::Foreign { .. } => {
                        tracing::info!("the pipelines in {} are compiled again: {why}", path.display());
                    }
                    _ => tracing::warn!("the pipelines in {} are compiled again: {why}", path.display()),
                }
                (BTreeSet::new(), None)
            }
        };
        let (raw, held) = match created(device, data.as_deref()).await {
            Ok(raw) => (raw, held),
            Err(error) => {
                tracing::warn!("the pipelines in {} are compiled again: {error}", path.display());
                (created(device, None).await.ok()?, BTreeSet::new())
            }
        };
        let state = Mutex::new(State { held, ..State::default() });
        Some(Arc::new(Self { raw, path, key, state, writing: Mutex::new(()) }))
    }

    /// The cache object for compiling pipelines.
    pub(crate) fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Records that a pipeline was compiled from this shader, with or without checks.
    pub(crate) fn compiled(self: &Arc<Self>, shader: &str, trusted: bool) {
        let mut state = self.state();
        if !state.held.insert(fingerprint(shader.as_bytes()) ^ u64::from(trusted)) {
            return;
        }
        state.compiled += 1;
        if !std::mem::replace(&mut state.waiting, true) {
            let cache = Arc::downgrade(self);
            let mut seen = state.compiled;
            let wait = move || {
                loop {
                    std::thread::sleep(QUIET);
                    // Dropping the device has written the file.
                    let Some(cache) = cache.upgrade() else { return };
                    let mut state = cache.state();
                    if std::mem::replace(&mut seen, state.compiled) == state.compiled {
                        state.waiting = false;
                        drop(state);
                        return cache.save();
                    }
                }
            };
            // If there is no thread, the file is written when the device is dropped.
            let spawned = std::thread::Builder::new().name("kiln-gpu-pipelines".into()).spawn(wait);
            state.waiting = spawned.is_ok();
        }
    }

    /// Writes the file if it lacks a pipeline.
    pub(crate) fn save(&self) {
        let _writing = self.writing.lock().unwrap_or_else(PoisonError::into_inner);
        let (held, compiled) = {
            let state = self.state();
            if state.compiled == state.written {
                return;
            }
            (state.held.clone(), state.compiled)
        };
        // A lost device returns no data.
        let Some(data) = self.raw.get_data() else { return };
        match FILES.save(&self.path, &self.key, &Contents { held, data: &data }.encode()) {
            Ok(()) => self.state().written = compiled,
            Err(error) => {
                tracing::warn!("compiled pipelines cannot be saved in {}: {error}", self.path.display());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Creates a cache with these data, or returns the device's error.
async fn created(device: &wgpu::Device, data: Option<&[u8]>) -> Result<wgpu::PipelineCache, wgpu::Error> {
    let (cache, validation, memory) = {
        let memory = device.push_error_scope(wgpu::ErrorFilter::OutOfMemory);
        let validation = device.push_error_scope(wgpu::ErrorFilter::Validation);
        let cache = trusted::pipeline_cache(device, data);
        (cache, validation.pop(), memory.pop())
    };
    match validation.await.or(memory.await) {
        Some(error) => Err(error),
        None => Ok(cache),
    }
}
