//! The backends and GPUs that an engine lacks, with the reasons.

use kiln_ir::Error;
use kiln_route::Backend;

use super::Engine;
use crate::Absent;
use crate::gpus;
#[cfg(not(browser_gpu))]
use crate::gpus::Gpu;

impl Engine {
    /// Returns the backends without a placement in this engine, and the GPUs that it lost or that failed while they were measured, each
    /// with the reason.
    ///
    /// Looks for GPUs, which making an engine does not do: the first call of a process may take as long as starting their
    /// drivers. A missing backend is also logged through `tracing`, once per process.
    pub fn absent(&self) -> Vec<Absent> {
        let lost = self.gpus.iter().filter_map(|gpu| Some(Absent::gpu(gpu, gpu.gone()?)));
        let mut absent: Vec<Absent> = lost.chain(self.left_out.iter().cloned()).collect();
        for backend in [Backend::Scalar, Backend::Simd, Backend::Gpu, Backend::Cuda] {
            if !self.places().iter().any(|place| place.backend == backend) {
                // An entry for an excluded device already gives the reason for its backend.
                if !absent.iter().any(|known| known.backend == backend) {
                    absent.push(Absent { backend, place: None, reason: self.why_without(backend) });
                }
            }
        }
        absent
    }

    /// The error for a backend without a placement.
    fn why_without(&self, backend: Backend) -> Error {
        #[cfg(browser_gpu)]
        if let (Backend::Gpu, Some(problem)) = (backend, &self.gpu_problem) {
            return problem.clone();
        }
        let because = |reason: String| Error::Unavailable { what: backend.to_string(), reason };
        if !backend.is_gpu() {
            let sets: Vec<&str> = self.cpu.iter().map(|simd| simd.isa().name()).collect();
            let mut sets = sets.iter().enumerate().filter(|&(i, set)| !sets[..i].contains(set)).map(|(_, set)| *set);
            let first = sets.next().unwrap_or_default().to_owned();
            return because(format!("the engine has {}", sets.fold(first, |all, set| all + ", " + set)));
        }
        let in_browser = cfg!(browser_gpu) && backend == Backend::Gpu;
        if !gpus::KINDS.contains(&backend) && !in_browser {
            let features = if backend == Backend::Cuda { "`cuda`" } else { "`gpu`, and `gpu-wasm` in browsers" };
            return because(format!("this build does not include it: enable the feature {features}"));
        }
        #[cfg(not(browser_gpu))]
        if self.find_gpus.contains(&backend) {
            return match Gpu::hardware(backend, &gpus::Opening::default()) {
                Err(why) => why,
                Ok(found) => {
                    let names: Vec<&str> = found.iter().map(Gpu::name).collect();
                    because(format!(
                        "call `Engine::calibrate`, or request it in the builder; found {}",
                        names.join(", ")
                    ))
                }
            };
        }
        because("the builder of the engine requested other GPUs, or other backends".into())
    }
}
