//! GPUs as places of an engine.

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
pub(crate) use present::{Gpu, OnGpu};

#[cfg(not(all(feature = "gpu", not(target_arch = "wasm32"))))]
pub(crate) use absent::{Gpu, OnGpu};

use std::path::Path;

use kiln_core::Result;
use kiln_route::{Backend, Link, Memory, Place, Profile, ProfileProblem, Roofline};

/// The memory of a GPU by its position among those of an engine.
pub(crate) fn memory(position: usize) -> Memory {
    // More than a profile has room for are refused there.
    Memory::new(u8::try_from(position + 1).unwrap_or(u8::MAX))
}

/// A GPU of which nothing has been measured: cautious constants.
pub(crate) fn assumed(name: &str, position: usize) -> (Place, Link) {
    let place = Place {
        name: name.to_owned(),
        backend: Backend::Gpu,
        // It keeps no thread of the CPU busy.
        threads: 0,
        memory: memory(position),
        launch: 0.0,
        compile: 0.0,
        roofline: Roofline { overhead: 100e-6, levels: vec![(u64::MAX, 100e9)], peak: 1e12 },
    };
    let link = Link { upload_latency: 50e-6, upload_bandwidth: 5e9, download_latency: 100e-6, download_bandwidth: 3e9 };
    (place, link)
}

/// The profile with these ways to the memories of devices.
pub(crate) fn linked(
    profile: Profile,
    links: impl IntoIterator<Item = (Memory, Link)>,
) -> Result<Profile, ProfileProblem> {
    links.into_iter().try_fold(profile, |profile, (memory, link)| profile.with_link(memory, link))
}

#[cfg(all(feature = "gpu", not(target_arch = "wasm32")))]
mod present {
    use std::collections::{HashMap, HashSet};
    use std::sync::atomic::{AtomicBool, Ordering};

    use kiln_core::graph::{Graph, TensorId};
    use kiln_core::op::{Elementwise, Op};
    use kiln_core::{Buffer, Data, DataMut, Error, Operand, Operations, Record};
    use kiln_wgpu::runtime::block_on;
    use kiln_wgpu::{
        AdapterChoice, AdapterInfo, AdapterKind, BufferId, DeviceOptions, GpuBackend, GpuCommandBatch, GpuDevice,
    };
    use web_time::Instant;

    use super::{Link, Path, Result};

    /// The least time of a few runs, the first of which makes everything ready.
    fn least(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
        /// Runs, the seconds after which three are enough, and those after which one is.
        const RUNS: usize = 12;
        const SECONDS: f64 = 5e-3;
        const LONG: f64 = 10e-3;
        run()?;
        let (start, mut least) = (Instant::now(), f64::INFINITY);
        for i in 0..RUNS {
            let sample = Instant::now();
            run()?;
            least = least.min(sample.elapsed().as_secs_f64());
            let spent = start.elapsed().as_secs_f64();
            if i >= 2 && spent > SECONDS || spent > LONG {
                break;
            }
        }
        Ok(least.max(1e-9))
    }

    /// A GPU of an engine. It is opened by the first operation that is sent to it.
    #[derive(Debug)]
    pub(crate) struct Gpu {
        name: String,
        backend: GpuBackend,
        /// Gone for good: nothing more is sent to it.
        gone: AtomicBool,
        /// Whether it was told that something ran elsewhere.
        told: AtomicBool,
    }

    impl Gpu {
        /// The adapter of this name, wherever it stands; compiled pipelines are kept in the folder.
        pub(crate) fn named(name: &str, pipeline_folder: Option<&Path>) -> Option<Self> {
            Some(Self::new(name.to_owned(), pipeline_folder))
        }

        fn new(name: String, pipeline_folder: Option<&Path>) -> Self {
            let options = DeviceOptions::new();
            let options = match pipeline_folder {
                Some(folder) => options.pipeline_folder(folder),
                None => options,
            };
            let backend = GpuBackend::with_adapter(AdapterChoice::Name(name.clone())).with_options(options);
            Self { name, backend, gone: AtomicBool::new(false), told: AtomicBool::new(false) }
        }

        /// The adapter that is meant.
        ///
        /// # Errors
        /// [`Error::Unavailable`] where it is not there, with what is.
        pub(crate) fn chosen(choice: &AdapterChoice, pipeline_folder: Option<&Path>) -> Result<Self> {
            Ok(Self::new(GpuDevice::find(choice)?.name, pipeline_folder))
        }

        /// Every adapter that is no software, each name once.
        pub(crate) fn hardware(pipeline_folder: Option<&Path>) -> Vec<Self> {
            let mut names: Vec<String> = Vec::new();
            for AdapterInfo { name, kind, .. } in GpuDevice::list_adapters() {
                if kind != AdapterKind::Software && !names.contains(&name) {
                    names.push(name);
                }
            }
            names.into_iter().map(|name| Self::new(name, pipeline_folder)).collect()
        }

        pub(crate) fn name(&self) -> &str {
            &self.name
        }

        pub(crate) fn is_gone(&self) -> bool {
            self.gone.load(Ordering::Relaxed)
        }

        /// The device, opened if it was not.
        ///
        /// # Errors
        /// As [`GpuBackend::device`].
        pub(crate) fn device(&self) -> Result<&GpuDevice> {
            self.backend.device()
        }

        /// Opens the device.
        ///
        /// # Errors
        /// As [`GpuBackend::device`].
        pub(crate) fn open(&self) -> Result<()> {
            self.device().map(drop)
        }

        /// Seconds that an operation takes on operands that lie on the device, its result staying there: the least of a
        /// few runs, each waited for.
        ///
        /// # Errors
        /// As [`GpuDevice::run`].
        pub(crate) fn resident_seconds(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<f64> {
            let device = self.device()?;
            let tensors = inputs.iter().map(|input| device.upload(input)).collect::<Result<Vec<_>>>()?;
            let mut operation = device.prepare(op, &tensors.iter().collect::<Vec<_>>())?;
            least(|| {
                operation.run()?;
                device.finish()
            })
        }

        /// Seconds that an operation takes from host to host.
        ///
        /// # Errors
        /// As [`Operations::run_into`], and errors of the device.
        pub(crate) fn host_seconds(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<f64> {
            least(|| self.backend.run_into(op, inputs, outputs))
        }

        /// Seconds that the device takes to start anything and to tell that it is done.
        ///
        /// # Errors
        /// Errors of the device.
        pub(crate) fn launch(&self) -> Result<f64> {
            self.resident_seconds(&Elementwise::neg().into(), &[Operand::vector(&[1.0; 64])])
        }

        /// The way to the device: what operations take from host to host beyond what they take on the device.
        ///
        /// # Errors
        /// Errors of the device.
        pub(crate) fn link(&self) -> Result<Link> {
            const LARGE: usize = 4 << 20;
            let device = self.device()?;
            let data = vec![1.0; LARGE];
            let mut out = vec![0.0; LARGE];
            let op = Op::from(Elementwise::scale(2.0));
            let mut beyond = |n: usize| -> Result<(f64, f64)> {
                let input = [Operand::vector(&data[..n])];
                let host = self.host_seconds(&op, &input, &mut [DataMut::F32(&mut out[..n])])?;
                let tensor = device.upload(&input[0])?;
                let read = least(|| tensor.read().map(drop))?;
                Ok(((host - self.resident_seconds(&op, &input)?).max(1e-9), read))
            };
            let (small, read_small) = beyond(256)?;
            let (large, read_large) = beyond(LARGE)?;
            let bytes = (4 * LARGE) as f64;
            let both = (large - small).max(1e-9);
            let down = (read_large - read_small).clamp(0.1 * both, 0.9 * both);
            Ok(Link {
                // The two happen in one submission and are waited for once.
                upload_latency: 0.0,
                upload_bandwidth: bytes / (both - down),
                download_latency: small,
                download_bandwidth: bytes / down,
            })
        }

        /// # Errors
        /// As [`Operations::run_into`], and errors of the device.
        pub(crate) fn run_into(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
            self.backend.run_into(op, inputs, outputs)
        }

        /// Whether an error is one of the device, so that the work can go elsewhere; told once.
        pub(crate) fn failed(&self, error: &Error) -> bool {
            let gone = matches!(error, Error::DeviceLost { .. } | Error::Unavailable { .. });
            let refused = matches!(error, Error::OutOfMemory { .. } | Error::Limit { .. } | Error::Driver { .. });
            if gone {
                self.gone.store(true, Ordering::Relaxed);
            }
            if (gone || refused) && !self.told.swap(true, Ordering::Relaxed) {
                tracing::warn!("{}: {error}; the work goes on elsewhere", self.name);
            }
            gone || refused
        }
    }

    /// A recorded graph on a GPU, ready to run again.
    #[derive(Debug)]
    pub(crate) struct OnGpu {
        batch: GpuCommandBatch,
        /// What was uploaded, under the names of both graphs.
        inputs: Vec<(TensorId, BufferId)>,
        wanted: Vec<BufferId>,
    }

    impl OnGpu {
        /// Records what the wanted tensors need, and uploads what that reads.
        ///
        /// # Errors
        /// Errors of the device.
        pub(crate) fn new(
            gpu: &Gpu,
            graph: &Graph,
            host: &HashMap<TensorId, Buffer>,
            wanted: &[TensorId],
        ) -> Result<Self> {
            let mut batch = GpuCommandBatch::new(gpu.device()?.clone());
            let mut needed: HashSet<TensorId> = wanted.iter().copied().collect();
            for node in graph.nodes().iter().rev() {
                if node.outputs.iter().any(|id| needed.contains(id)) {
                    needed.extend(&node.inputs);
                }
            }
            let mut inputs = Vec::new();
            for (&id, buffer) in host.iter().filter(|(id, _)| needed.contains(id)) {
                let operand = Operand::new(buffer.as_data(), graph.ty(id)?.shape)?;
                inputs.push((id, block_on(batch.upload_async(&operand))?));
            }
            let mut ids: HashMap<TensorId, BufferId> = inputs.iter().copied().collect();
            let find = |ids: &HashMap<TensorId, BufferId>, id: &TensorId| {
                ids.get(id).copied().ok_or(Error::ForeignTensor { index: id.index() })
            };
            for node in graph.nodes().iter().filter(|node| node.outputs.iter().any(|id| needed.contains(id))) {
                let read = node.inputs.iter().map(|id| find(&ids, id)).collect::<Result<Vec<_>>>()?;
                let made = batch.record_all(node.op, &read)?;
                ids.extend(node.outputs.iter().copied().zip(made));
            }
            let wanted = wanted.iter().map(|id| find(&ids, id)).collect::<Result<_>>()?;
            Ok(Self { batch, inputs, wanted })
        }

        /// Sends the elements of an input anew.
        ///
        /// # Errors
        /// Errors of the device.
        pub(crate) fn set(&mut self, id: TensorId, data: Data<'_>) -> Result<()> {
            match self.inputs.iter().find(|(name, _)| *name == id) {
                Some(&(_, sent)) => block_on(self.batch.set_async(sent, data)),
                None => Ok(()),
            }
        }

        /// Computes and reads the wanted tensors, in their order.
        ///
        /// # Errors
        /// Errors of the data and of the device.
        pub(crate) fn run(&mut self) -> Result<Vec<Buffer>> {
            self.batch.run(&self.wanted)
        }
    }
}

/// A build without GPUs has none.
#[cfg(not(all(feature = "gpu", not(target_arch = "wasm32"))))]
mod absent {
    use std::collections::HashMap;

    use kiln_core::graph::{Graph, TensorId};
    use kiln_core::op::Op;
    use kiln_core::{Buffer, Data, DataMut, Error, Operand};

    use super::{Link, Path, Result};

    #[derive(Debug)]
    pub(crate) enum Gpu {}

    impl Gpu {
        pub(crate) fn named(_: &str, _: Option<&Path>) -> Option<Self> {
            None
        }

        pub(crate) fn hardware(_: Option<&Path>) -> Vec<Self> {
            Vec::new()
        }

        pub(crate) fn name(&self) -> &str {
            match *self {}
        }

        pub(crate) fn is_gone(&self) -> bool {
            match *self {}
        }

        pub(crate) fn open(&self) -> Result<()> {
            match *self {}
        }

        pub(crate) fn resident_seconds(&self, _: &Op, _: &[Operand<'_>]) -> Result<f64> {
            match *self {}
        }

        pub(crate) fn host_seconds(&self, _: &Op, _: &[Operand<'_>], _: &mut [DataMut<'_>]) -> Result<f64> {
            match *self {}
        }

        pub(crate) fn launch(&self) -> Result<f64> {
            match *self {}
        }

        pub(crate) fn link(&self) -> Result<Link> {
            match *self {}
        }

        pub(crate) fn run_into(&self, _: &Op, _: &[Operand<'_>], _: &mut [DataMut<'_>]) -> Result<()> {
            match *self {}
        }

        pub(crate) fn failed(&self, _: &Error) -> bool {
            match *self {}
        }
    }

    #[derive(Debug)]
    pub(crate) enum OnGpu {}

    impl OnGpu {
        pub(crate) fn new(gpu: &Gpu, _: &Graph, _: &HashMap<TensorId, Buffer>, _: &[TensorId]) -> Result<Self> {
            match *gpu {}
        }

        pub(crate) fn set(&mut self, _: TensorId, _: Data<'_>) -> Result<()> {
            match *self {}
        }

        pub(crate) fn run(&mut self) -> Result<Vec<Buffer>> {
            match *self {}
        }
    }
}
