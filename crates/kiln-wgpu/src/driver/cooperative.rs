//! Cooperative matrices: blocks that the invocations of a subgroup multiply together, on units made for it (tensor cores).

/// The device features that the kernels require.
pub(crate) const FEATURES: wgpu::Features =
    wgpu::Features::EXPERIMENTAL_COOPERATIVE_MATRIX.union(wgpu::Features::SHADER_F16).union(wgpu::Features::SUBGROUP);

/// Bytes of workgroup memory that a kernel takes at most.
const MEMORY: u32 = 48 << 10;

/// Whether an adapter multiplies the blocks for which the kernels are written: 16 x 16 of f16 with sums in f32, in
/// subgroups of 32.
pub(crate) fn offers(adapter: &wgpu::Adapter) -> bool {
    use wgpu::CooperativeScalarType::{F16, F32};
    let info = adapter.get_info();
    let limits = adapter.limits();
    let right = |p: &wgpu::CooperativeMatrixProperties| {
        (p.m_size, p.n_size, p.k_size) == (16, 16, 16) && (p.ab_type, p.cr_type) == (F16, F32)
    };
    (info.subgroup_min_size, info.subgroup_max_size) == (32, 32)
        && limits.max_compute_workgroup_storage_size >= MEMORY
        && limits.max_compute_invocations_per_workgroup >= kiln_shaders::WORKGROUP
        && adapter.cooperative_matrix_properties().iter().any(right)
}
