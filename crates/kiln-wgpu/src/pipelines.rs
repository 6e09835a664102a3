//! Compiled kernels, each made once for a device.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

use kiln_shaders::{Access, Capabilities};

use crate::plan::Code;

/// A compiled kernel.
#[derive(Debug)]
pub(crate) struct Pipeline {
    pub(crate) raw: wgpu::ComputePipeline,
    pub(crate) layout: wgpu::BindGroupLayout,
    /// Whether parameters are immediates; otherwise they are a uniform buffer.
    pub(crate) immediates: bool,
}

/// The compiled kernels of a device, by what was baked into them.
#[derive(Debug, Default)]
pub(crate) struct Pipelines {
    compiled: Mutex<HashMap<Code, Arc<Pipeline>>>,
}

impl Pipelines {
    /// The pipeline of a code, compiled if it is new.
    pub(crate) fn get(&self, device: &wgpu::Device, capabilities: Capabilities, code: &Code) -> Arc<Pipeline> {
        let held = self.compiled.lock().unwrap_or_else(PoisonError::into_inner).get(code).cloned();
        // Compiled without the lock: others go on meanwhile, and at worst two compile the same.
        held.unwrap_or_else(|| {
            let pipeline = Arc::new(compile(device, capabilities, code));
            let mut compiled = self.compiled.lock().unwrap_or_else(PoisonError::into_inner);
            compiled.entry(code.clone()).or_insert(pipeline).clone()
        })
    }

    /// Forgets a code whose compilation failed.
    pub(crate) fn forget(&self, code: &Code) {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).remove(code);
    }

    /// Number of compiled kernels.
    pub(crate) fn len(&self) -> usize {
        self.compiled.lock().unwrap_or_else(PoisonError::into_inner).len()
    }
}

fn compile(device: &wgpu::Device, capabilities: Capabilities, code: &Code) -> Pipeline {
    let head = code.head();
    let bytes = 4 * head.params.len() as u32;
    let immediates = capabilities.immediates && bytes <= device.limits().max_immediate_size;
    let text = code.text(Capabilities { immediates, ..capabilities });
    let label = Some(code.name());
    let module = device
        .create_shader_module(wgpu::ShaderModuleDescriptor { label, source: wgpu::ShaderSource::Wgsl(text.into()) });

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
            // No kernel reads workgroup memory that it has not written.
            zero_initialize_workgroup_memory: false,
            ..Default::default()
        },
        cache: None,
    });
    Pipeline { raw, layout, immediates }
}
