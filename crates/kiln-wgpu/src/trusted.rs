//! What is unsafe about wgpu: where it trusts its caller instead of checking. All unsafe code of the crate stands here.
#![allow(unsafe_code)]

/// The module of a kernel that needs no checks at run time: its indices are within their buffers and arrays, and its loops
/// end. Its divisions stay checked.
pub(crate) fn shader_module(device: &wgpu::Device, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    let checked = wgpu::ShaderRuntimeChecks::checked();
    let checks = wgpu::ShaderRuntimeChecks { bounds_checks: false, force_loop_bounding: false, ..checked };
    // SAFETY: the one caller passes texts of kiln-shaders whose head is marked `#trusted` alone. The line of the mark says
    // why every index is in bounds and every loop ends, given the parameters, the grid and the buffers that the lowering of
    // the operation computes from shapes that the shape rule accepted. No such index comes from the data.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// Leave to use features that wgpu calls experimental.
pub(crate) fn experiments() -> wgpu::ExperimentalFeatures {
    // SAFETY: wgpu asks for it because such features may have gaps in its validation. The one that kiln asks for beside it,
    // cooperative matrices, is used by kernels of kiln-shaders alone, whose loads and stores stay within their arrays and
    // buffers, and which all invocations of a subgroup run through together.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// A cache of compiled pipelines, with what an earlier one held.
///
/// `data` are bytes that [`wgpu::PipelineCache::get_data`] gave, for this adapter and driver.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn pipeline_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data, fallback: true };
    // SAFETY: the one caller reads `data` from a file that kiln writes with what `get_data` gave and nothing else. A checksum
    // over the whole file shows that it is what was written, and the key in it that it was written for this adapter and
    // this driver. Who forges such a file writes to a folder that is the user's own.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// Why the loader of Vulkan or its drivers cannot be used; `None` where they can.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn refusal_of_vulkan() -> Option<wgpu::hal::InstanceError> {
    #[cfg(target_vendor = "apple")]
    return None;
    #[cfg(not(target_vendor = "apple"))]
    {
        use wgpu::hal::{Api, Instance, InstanceDescriptor, api};
        let descriptor = InstanceDescriptor {
            name: "kiln",
            flags: wgpu::InstanceFlags::empty(),
            memory_budget_thresholds: wgpu::MemoryBudgetThresholds::default(),
            backend_options: wgpu::BackendOptions::default(),
            telemetry: None,
            display: None,
        };
        // SAFETY: it loads the library of Vulkan, as making the instance of the process did, and makes an instance that is
        // dropped here, before anything is made from it. That is unsafe as far as the library of the system is.
        let instance = unsafe { <<api::Vulkan as Api>::Instance as Instance>::init(&descriptor) };
        instance.err()
    }
}
