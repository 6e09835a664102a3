//! Compiles the kernels of plans, on several threads.

use std::borrow::Cow;
use std::collections::HashSet;
#[cfg(not(target_arch = "wasm32"))]
use std::num::NonZero;
use std::sync::Arc;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, PoisonError};
#[cfg(target_arch = "wasm32")]
use std::task::Poll;

use kiln_ir::{Error, Result};
use kiln_shaders::{Access, Capabilities};

use super::device::Inner;
use super::pipelines::Pipeline;
use crate::plan::Code;
use crate::{GpuDevice, trusted};
#[cfg(not(target_arch = "wasm32"))]
use kiln_device::waiting::{Signal, block_on};

impl GpuDevice {
    /// Compiles those of the codes that are new, on as many threads as there are processors.
    ///
    /// # Errors
    /// [`Error::Driver`] for a kernel that the driver refuses, [`Error::DeviceLost`], [`Error::OutOfMemory`].
    pub(crate) async fn compile_new(&self, codes: impl IntoIterator<Item = &Code>) -> Result<()> {
        let mut seen = HashSet::new();
        let unknown = codes.into_iter().filter(|code| self.inner.pipelines.find(code).is_none());
        let missing: Vec<&Code> = unknown.filter(|&code| seen.insert(code)).collect();
        self.compile_all(&missing).await
    }

    /// The pipeline of a code that was compiled.
    ///
    /// # Errors
    /// [`Error::Unavailable`] if it was not compiled.
    pub(crate) fn pipeline(&self, code: &Code) -> Result<Arc<Pipeline>> {
        let missing = || Error::Unavailable { what: code.name().into(), reason: "not compiled".into() };
        self.inner.pipelines.find(code).ok_or_else(missing)
    }

    #[cfg(not(target_arch = "wasm32"))]
    async fn compile_all(&self, codes: &[&Code]) -> Result<()> {
        if codes.is_empty() {
            return Ok(());
        }
        let done = Signal::new();
        let compilation = Arc::new(Compilation {
            device: Some(self.clone()),
            codes: codes.iter().map(|&code| code.clone()).collect(),
            next: AtomicUsize::new(0),
            compiled: AtomicUsize::new(0),
            failed: Mutex::new(None),
            done: done.clone(),
        });
        let threads = std::thread::available_parallelism().map_or(1, NonZero::get).min(codes.len());
        let spawn = |_| {
            let compilation = compilation.clone();
            std::thread::Builder::new().name("kiln-gpu-compile".into()).spawn(move || compilation.work()).ok()
        };
        // If a thread cannot be started, the others do its work; if none can, this thread does it.
        if (0..threads).filter_map(spawn).count() == 0 {
            compilation.work();
        }
        drop(compilation);
        done.await
    }

    #[cfg(target_arch = "wasm32")]
    async fn compile_all(&self, codes: &[&Code]) -> Result<()> {
        // The browser compiles them in parallel if all are requested before the first is awaited.
        let mut running: Vec<_> = codes.iter().map(|code| Some(Box::pin(self.compile(code)))).collect();
        let mut done = Ok(());
        std::future::poll_fn(move |context| {
            for slot in &mut running {
                if let Some(Poll::Ready(result)) = slot.as_mut().map(|future| future.as_mut().poll(context)) {
                    *slot = None;
                    done = std::mem::replace(&mut done, Ok(())).and(result);
                }
            }
            match running.iter().all(Option::is_none) {
                true => Poll::Ready(std::mem::replace(&mut done, Ok(()))),
                false => Poll::Pending,
            }
        })
        .await
    }

    async fn compile(&self, code: &Code) -> Result<()> {
        let what = format!("compiling {}", code.name());
        let pipeline = self.scoped_work(&what, 0, || Ok(compile(&self.inner, code))).await?;
        self.inner.pipelines.keep(code, pipeline);
        Ok(())
    }
}

/// Kernels that several threads compile. The last thread that drops it reports the result, even if one panicked.
#[cfg(not(target_arch = "wasm32"))]
struct Compilation {
    /// `Some` until the end.
    device: Option<GpuDevice>,
    codes: Vec<Code>,
    next: AtomicUsize,
    compiled: AtomicUsize,
    failed: Mutex<Option<Error>>,
    done: Signal<Result<()>>,
}

#[cfg(not(target_arch = "wasm32"))]
impl Compilation {
    fn work(&self) {
        let Some(device) = &self.device else { return };
        while let Some(code) = self.codes.get(self.next.fetch_add(1, Ordering::Relaxed)) {
            // Error scopes are per thread, so each compilation has its own.
            match block_on(device.compile(code)) {
                Ok(()) => _ = self.compiled.fetch_add(1, Ordering::Relaxed),
                Err(error) => {
                    self.failed.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(error);
                    return;
                }
            }
        }
    }
}

#[cfg(not(target_arch = "wasm32"))]
impl Drop for Compilation {
    fn drop(&mut self) {
        let name = self.device.as_ref().map(|device| device.adapter().name.clone()).unwrap_or_default();
        // The waiting caller may drop the device next, and relies on its reference being the last.
        self.device = None;
        let failed = self.failed.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let all = *self.compiled.get_mut() == self.codes.len();
        let stopped = || Error::Driver {
            what: "compiling kernels".into(),
            device: name,
            message: "a compiling thread ended before its work was done".into(),
        };
        self.done.set(match failed {
            Some(error) => Err(error),
            None if all => Ok(()),
            None => Err(stopped()),
        });
    }
}

fn compile(inner: &Inner, code: &Code) -> Pipeline {
    let (device, capabilities) = (&inner.device, inner.capabilities);
    let head = code.head();
    let bytes = 4 * head.params.len() as u32;
    let immediates = capabilities.immediates && bytes <= inner.target.limits.max_immediate_size;
    let text = code.text(Capabilities { immediates, ..capabilities });
    let label = Some(code.name());
    let descriptor = wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(Cow::Borrowed(&text)) };
    let trusted = head.trusted && inner.trusting;
    let module = match trusted {
        true => trusted::shader_module(device, descriptor),
        false => device.create_shader_module(descriptor),
    };

    let buffer = |binding: u32, ty| wgpu::BindGroupLayoutEntry {
        binding,
        visibility: wgpu::ShaderStages::COMPUTE,
        ty: wgpu::BindingType::Buffer { ty, has_dynamic_offset: false, min_binding_size: None },
        count: None,
    };
    let mut entries: Vec<wgpu::BindGroupLayoutEntry> = (0..)
        .zip(&head.bindings)
        .map(|(number, binding)| {
            let read_only = binding.access == Access::Read;
            buffer(number, wgpu::BufferBindingType::Storage { read_only })
        })
        .collect();
    if bytes > 0 && !immediates {
        entries.push(buffer(head.bindings.len() as u32, wgpu::BufferBindingType::Uniform));
    }
    let layout = device.create_bind_group_layout(&wgpu::BindGroupLayoutDescriptor { label, entries: &entries });
    let pipeline_layout = device.create_pipeline_layout(&wgpu::PipelineLayoutDescriptor {
        label,
        bind_group_layouts: &[Some(&layout)],
        immediate_size: if immediates { bytes } else { 0 },
    });
    let raw = device.create_compute_pipeline(&wgpu::ComputePipelineDescriptor {
        label,
        layout: Some(&pipeline_layout),
        module: &module,
        entry_point: Some("main"),
        compilation_options: wgpu::PipelineCompilationOptions {
            // Kernels read no workgroup memory before writing it.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: inner.pipeline_cache(),
    });
    inner.compiled(&text, trusted);
    Pipeline { raw, layout, immediates }
}
