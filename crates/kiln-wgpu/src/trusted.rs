//! The unsafe functions of wgpu, which trust their caller instead of checking. All unsafe code of the crate is here.
#![allow(unsafe_code)]

/// The module of a kernel that needs no runtime checks: its indices are inside their buffers and arrays, and its loops
/// terminate. Its divisions stay checked.
pub(crate) fn shader_module(device: &wgpu::Device, descriptor: wgpu::ShaderModuleDescriptor<'_>) -> wgpu::ShaderModule {
    let checked = wgpu::ShaderRuntimeChecks::checked();
    let checks = wgpu::ShaderRuntimeChecks { bounds_checks: false, force_loop_bounding: false, ..checked };
    // SAFETY: the only caller passes texts of kiln-shaders, and only those whose head is marked `#trusted`. The line of
    // the mark says why every index is in bounds and every loop terminates, given the parameters, the grid and the
    // buffers that the lowering of the operation computes from shapes that the shape rule accepted. No such index comes
    // from the data.
    unsafe { device.create_shader_module_trusted(descriptor, checks) }
}

/// Permission to use features that wgpu calls experimental.
pub(crate) fn experiments() -> wgpu::ExperimentalFeatures {
    // SAFETY: wgpu requires this because such features may have gaps in its validation. The only such feature that kiln
    // uses besides, cooperative matrices, occurs only in kernels of kiln-shaders, whose loads and stores stay inside
    // their arrays and buffers, and which all invocations of a subgroup execute together.
    unsafe { wgpu::ExperimentalFeatures::enabled() }
}

/// A cache of compiled pipelines, initialised with the data of an earlier one.
///
/// `data` were returned by [`wgpu::PipelineCache::get_data`] for this adapter and driver.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) fn pipeline_cache(device: &wgpu::Device, data: Option<&[u8]>) -> wgpu::PipelineCache {
    let descriptor = wgpu::PipelineCacheDescriptor { label: Some("pipelines"), data, fallback: true };
    // SAFETY: the only caller reads `data` from a file to which kiln writes only the output of `get_data`. A checksum
    // over the whole file shows that it is unchanged, and its key shows that it was written for this adapter and this
    // driver. Forging such a file requires write access to a folder of the user.
    unsafe { device.create_pipeline_cache(&descriptor) }
}

/// The reason why the Vulkan loader or its drivers cannot be used; `None` if they can.
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
        // SAFETY: this loads the Vulkan library, as creating the instance of the process did, and creates an instance
        // that is dropped before anything is created from it. It is as safe as the system's library.
        let instance = unsafe { <<api::Vulkan as Api>::Instance as Instance>::init(&descriptor) };
        instance.err()
    }
}
