//! The compiled kernels of a device, cached in memory and, if the options name a folder, in files for the next process.

use std::collections::{HashMap, HashSet};
use std::num::NonZero;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;

use kiln_device::store::{Kind, Unusable, fingerprint};
use kiln_ir::{Error, Result};
use kiln_ptx::{Kernel, PtxKernel, PtxModule, Target, Version};

use crate::driver::{Context, CudaVersion, Driver, Function, Image, compile};
use crate::plan::Code;

/// The files.
const FILES: Kind = Kind { magic: *b"kilncubi", version: 1 };

/// The kernels of a device.
#[derive(Debug)]
pub(crate) struct Kernels {
    context: Arc<Context>,
    /// The PTX version that the driver supports.
    version: Version,
    /// The target that kernels are written for.
    pub(crate) target: Target,
    /// The kind of device and driver for which machine code is compiled.
    machine: String,
    folder: Option<PathBuf>,
    compiled: Mutex<HashMap<Code, Arc<Function>>>,
}

/// The PTX version of a CUDA version.
fn ptx_version(cuda: CudaVersion) -> Version {
    Version::new(match (cuda.major, cuda.minor) {
        (0..=11, minor) => 7.0 + 0.1 * f64::from(minor.min(8)),
        (12, minor @ 0..=5) => 8.0 + 0.1 * f64::from(minor),
        (12, 6) => 8.5,
        (12, minor) => 7.9 + 0.1 * f64::from(minor.min(9)),
        (13, minor) => 9.0 + 0.1 * f64::from(minor.min(1)),
        _ => 9.1,
    })
}

/// Minimum PTX version of kernels for Hopper and later: it has asynchronous stores that barriers count.
const HOPPER: Version = Version::new(8.1);

/// The latest target that a device of this compute capability runs and its driver supports. A target with
/// architecture-specific features also needs tensor maps.
fn target_of((major, minor): (u32, u32), version: Version, tensor_maps: bool) -> Option<Target> {
    let capability = 10 * major + minor;
    let runs = |target: &&Target| {
        let number = target.name().trim_start_matches("sm_");
        let (number, alone) = (number.trim_end_matches('a'), number.ends_with('a'));
        let serves = |number: u32| if alone { number == capability && tensor_maps } else { number <= capability };
        let written_in = if **target >= Target::Sm90 { HOPPER.max(target.version()) } else { target.version() };
        number.parse().is_ok_and(serves) && written_in <= version
    };
    Target::ALL.iter().rev().find(runs).copied()
}

/// The part of the driver that compiles kernels for which there is no folder.
#[derive(Debug, Clone, Copy)]
enum Compiler {
    /// Compiles what it loads, one text after another whatever the number of threads, and keeps the code in a cache of its own.
    Loader,
    /// Compiles on every thread that calls it, and keeps nothing.
    Linker,
}

impl Kernels {
    /// # Errors
    /// [`Error::Unavailable`] for a device older than all targets.
    pub(crate) fn new(
        context: Arc<Context>,
        driver: &Driver,
        capability: (u32, u32),
        folder: Option<PathBuf>,
    ) -> Result<Self> {
        let version = ptx_version(driver.version);
        let (major, minor) = capability;
        let target = target_of(capability, version, driver.has_tensor_maps()).ok_or_else(|| Error::Unavailable {
            what: context.name().to_owned(),
            reason: format!("it has compute capability {major}.{minor}; kernels need {} or later", Target::ALL[0]),
        })?;
        let machine = format!("compute capability {major}.{minor}, CUDA {}", driver.version);
        Ok(Self { context, version, target, machine, folder, compiled: Mutex::default() })
    }

    /// Number of kernels compiled or loaded so far.
    pub(crate) fn len(&self) -> usize {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }

    /// Compiles those of the kernels that are new, on as many threads as there are processors.
    ///
    /// # Errors
    /// The errors of [`Kernels::get`].
    pub(crate) fn compile<'a>(&self, codes: impl Iterator<Item = &'a Code>) -> Result<()> {
        let missing: Vec<&Code> = {
            let compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            let mut seen = HashSet::new();
            codes.filter(|&code| !compiled.contains_key(code) && seen.insert(code)).collect()
        };
        if missing.is_empty() {
            return Ok(());
        }
        let next = AtomicUsize::new(0);
        let by = if missing.len() > 1 { Compiler::Linker } else { Compiler::Loader };
        let work = || {
            while let Some(code) = missing.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.get_by(by, code)?;
            }
            Ok(())
        };
        let threads = thread::available_parallelism().map_or(1, NonZero::get).min(missing.len());
        thread::scope(|scope| {
            let named = || thread::Builder::new().name("kiln-cuda-compile".into());
            // If a thread cannot be started, the others do its work.
            let others: Vec<_> = (1..threads).filter_map(|_| named().spawn_scoped(scope, work).ok()).collect();
            others.into_iter().fold(work(), |done, other| {
                done.and(other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            })
        })
    }

    /// The kernel, compiled if it is not cached.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if the driver is too old for it, [`Error::Driver`] with the compiler's message,
    /// [`Error::DeviceLost`].
    pub(crate) fn get(&self, code: &Code) -> Result<Arc<Function>> {
        self.get_by(Compiler::Loader, code)
    }

    fn get_by(&self, compiler: Compiler, code: &Code) -> Result<Arc<Function>> {
        if let Some(function) = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(code) {
            return Ok(function.clone());
        }
        // Two threads that need the same kernel compile it twice, which is rare, and better than blocking all others.
        let function = Arc::new(self.make_by(compiler, code.kernel())?);
        let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(compiled.entry(code.clone()).or_insert(function).clone())
    }

    /// A kernel, compiled or from its file.
    ///
    /// # Errors
    /// The errors of [`Kernels::get`].
    pub(crate) fn make(&self, kernel: &dyn Kernel) -> Result<Function> {
        self.make_by(Compiler::Loader, kernel)
    }

    fn make_by(&self, compiler: Compiler, kernel: &dyn Kernel) -> Result<Function> {
        let kernel = kernel.build_for(self.target);
        let needed = kernel.gate().version;
        if needed > self.version {
            return Err(Error::Unavailable {
                what: format!("the kernel {}", kernel.name()),
                reason: format!(
                    "it needs PTX {needed}, but the driver supports PTX {} ({}): install a newer driver",
                    self.version, self.machine
                ),
            });
        }
        let text = PtxModule::from(kernel.clone()).to_string();
        // The linker, the only part of the driver that returns machine code, ignores this instruction, and without it
        // registers spill. The driver keeps what it compiles otherwise in a cache of its own.
        let moves_registers = text.contains("setmaxnreg");
        match (&self.folder, compiler) {
            (Some(_), _) if !moves_registers => self.make_or_find(kernel, &text),
            (None, Compiler::Linker) if !moves_registers => {
                let cubin = compile(&self.context, kernel.name(), &text)?;
                Function::load(&self.context, kernel, Image::Cubin(&cubin))
            }
            _ => Function::load(&self.context, kernel, Image::Ptx(&text)),
        }
    }

    /// Loads a kernel from its file, if that is valid and the driver accepts it; else compiles it and writes the file.
    fn make_or_find(&self, kernel: PtxKernel, text: &str) -> Result<Function> {
        let key = format!("{}, kiln {}\n{text}", self.machine, env!("CARGO_PKG_VERSION"));
        let name =
            format!("{}-{:016x}.cubin", kernel.name().get(..64).unwrap_or(kernel.name()), fingerprint(key.as_bytes()));
        let path = self.folder.as_ref().map(|folder| folder.join(name)).unwrap_or_default();
        match FILES.load(&path, &key) {
            Ok(cubin) => match Function::load(&self.context, kernel.clone(), Image::Cubin(&cubin)) {
                Err(Error::Driver { message, .. }) => {
                    tracing::warn!("the kernel in {} is compiled again: {message}", path.display());
                }
                loaded => return loaded,
            },
            Err(Unusable::Missing) => {}
            Err(why) => tracing::warn!("the kernel in {} is compiled again: {why}", path.display()),
        }
        let cubin = compile(&self.context, kernel.name(), text)?;
        if let Err(error) = FILES.save(&path, &key, &cubin) {
            tracing::warn!("a compiled kernel cannot be saved in {}: {error}", path.display());
        }
        Function::load(&self.context, kernel, Image::Cubin(&cubin))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_driver_takes_the_ptx_that_came_with_it() {
        let of = |major, minor| ptx_version(CudaVersion { major, minor }).to_string();
        let known = [
            ((11, 4), "7.4"),
            ((11, 8), "7.8"),
            ((12, 0), "8.0"),
            ((12, 5), "8.5"),
            ((12, 6), "8.5"),
            ((12, 7), "8.6"),
            ((12, 8), "8.7"),
            ((12, 9), "8.8"),
            ((13, 0), "9.0"),
            ((13, 1), "9.1"),
            ((14, 0), "9.1"),
        ];
        known.iter().for_each(|&((major, minor), ptx)| assert_eq!(of(major, minor), ptx, "CUDA {major}.{minor}"));
    }

    #[test]
    fn kernels_are_for_the_latest_target_that_device_and_driver_know() {
        let of = |capability, version| target_of(capability, Version::new(version), true).map(Target::name);
        assert_eq!(of((7, 0), 9.0), Some("sm_70"));
        assert_eq!(of((7, 2), 9.0), Some("sm_70"));
        assert_eq!(of((8, 7), 9.0), Some("sm_86"));
        assert_eq!(of((9, 0), 9.0), Some("sm_90a"));
        assert_eq!(of((9, 0), 8.0), Some("sm_89"), "a driver before stores that barriers count");
        assert_eq!(target_of((9, 0), Version::new(9.0), false), Some(Target::Sm90));
        assert_eq!(of((9, 0), 7.4), Some("sm_86"), "a driver that does not know the device");
        assert_eq!(of((10, 3), 9.0), Some("sm_100"));
        assert_eq!(of((6, 1), 9.0), None);
    }
}
