//! Compiled pipelines that outlive the process, in a file for each adapter and driver.
//!
//! The file is written when the device is dropped, and by a thread of its own once nothing was compiled for a while: a
//! process that is ended drops nothing, and one that compiles should not wait for a disk. It is written only if it lacks
//! a pipeline that was compiled since.

mod file;

use std::collections::BTreeSet;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use file::{Contents, Unusable, fingerprint};

use crate::trusted;

/// A file beyond this is not used.
const MOST_BYTES: u64 = 256 << 20;

/// Once nothing was compiled for so long, the file is written.
const QUIET: Duration = Duration::from_secs(1);

/// The compiled pipelines of a device, and their file.
#[derive(Debug)]
pub(crate) struct PipelineCache {
    raw: wgpu::PipelineCache,
    path: PathBuf,
    /// Whose pipelines they are.
    key: String,
    state: Mutex<State>,
    /// Held while the file is written.
    writing: Mutex<()>,
}

#[derive(Debug, Default)]
struct State {
    /// Fingerprints of the shaders whose pipelines are there.
    held: BTreeSet<u64>,
    /// How many pipelines were compiled that the file lacked.
    compiled: u64,
    /// How many of them it has.
    written: u64,
    /// Whether a thread waits to write it.
    waiting: bool,
}

impl PipelineCache {
    /// The cache of an adapter in a folder; `None` where its driver has none.
    pub(crate) async fn open(device: &wgpu::Device, folder: &Path) -> Option<Arc<Self>> {
        let info = device.adapter_info();
        let adapter = wgpu::util::pipeline_cache_key(&info)?;
        let driver = format!("{adapter} {} {} {}", info.name, info.driver, info.driver_info);
        let path = folder.join(format!("pipelines-{:016x}.bin", fingerprint(driver.as_bytes())));
        let key = format!("{driver}, kiln {}, {} bits", env!("CARGO_PKG_VERSION"), usize::BITS);
        let bytes = read(&path).unwrap_or_else(|error| {
            match error.kind() {
                std::io::ErrorKind::NotFound => {}
                _ => tracing::warn!("compiled pipelines in {} cannot be read: {error}", path.display()),
            }
            None
        });
        let contents = bytes.as_deref().and_then(|bytes| match file::decode(bytes, &key) {
            Ok(contents) => Some(contents),
            Err(Unusable::Corrupt) => {
                tracing::warn!("compiled pipelines in {} are made anew: {}", path.display(), Unusable::Corrupt);
                None
            }
            Err(foreign) => {
                tracing::info!("compiled pipelines in {} are made anew: {foreign}", path.display());
                None
            }
        });
        let (held, data) = contents.map_or_else(Default::default, |contents| (contents.held, Some(contents.data)));
        let (raw, held) = match created(device, data).await {
            Ok(raw) => (raw, held),
            Err(error) => {
                tracing::warn!("compiled pipelines in {} are made anew: {error}", path.display());
                (created(device, None).await.ok()?, BTreeSet::new())
            }
        };
        let state = Mutex::new(State { held, ..State::default() });
        Some(Arc::new(Self { raw, path, key, state, writing: Mutex::new(()) }))
    }

    /// What pipelines are compiled with.
    pub(crate) fn raw(&self) -> &wgpu::PipelineCache {
        &self.raw
    }

    /// Takes note of a pipeline that was compiled from this shader, with or without checks.
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
                    // Whoever dropped the device wrote the file.
                    let Some(cache) = cache.upgrade() else { return };
                    let mut state = cache.state();
                    if std::mem::replace(&mut seen, state.compiled) == state.compiled {
                        state.waiting = false;
                        drop(state);
                        return cache.save();
                    }
                }
            };
            // Without the thread the file is written when the device is dropped.
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
        // A device that is lost has nothing to give.
        let Some(data) = self.raw.get_data() else { return };
        match write(&self.path, &file::encode(&self.key, &Contents { held, data: &data })) {
            Ok(()) => self.state().written = compiled,
            Err(error) => {
                tracing::warn!("compiled pipelines cannot be kept in {}: {error}", self.path.display());
            }
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A cache with these data, or what the device says about them.
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

/// The bytes of a file; `None` for one that is too large.
fn read(path: &Path) -> std::io::Result<Option<Vec<u8>>> {
    let mut bytes = Vec::new();
    std::fs::File::open(path)?.take(MOST_BYTES + 1).read_to_end(&mut bytes)?;
    Ok((bytes.len() as u64 <= MOST_BYTES).then_some(bytes))
}

/// Writes a file with its folder: into a temporary file beside it, which then takes its name, so that no reader sees half
/// of it.
fn write(path: &Path, bytes: &[u8]) -> std::io::Result<()> {
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)?;
    // Devices of one process may write at the same time, too.
    static WRITTEN: AtomicU64 = AtomicU64::new(0);
    let number = WRITTEN.fetch_add(1, Ordering::Relaxed);
    let temporary = path.with_extension(format!("{}-{number}.tmp", std::process::id()));
    let written = std::fs::write(&temporary, bytes).and_then(|()| std::fs::rename(&temporary, path));
    if written.is_err() {
        // The error to report is the first one; a temporary file that stays behind harms nobody.
        let _ = std::fs::remove_file(&temporary);
    }
    written
}
