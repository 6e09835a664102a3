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
