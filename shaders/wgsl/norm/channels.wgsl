// out = (x - mean) / sqrt(variance + eps) gamma + beta, all but x those of the channel; without STATISTICS out = x gamma + beta. A
// channel is `plane` neighbours. An invocation computes four elements, from the element `first` of the tensor on.
#trusted i is below `n`, buffers are whole vectors long, and a channel is taken modulo their number
#input x: array<vec4<f32>>
#input gamma: array<f32>
#input beta: array<f32>
#input mean: array<f32>
#input variance: array<f32>
#output out: array<vec4<f32>>
#param n: u32
#param first: u32
#param plane: u32
#param channels: u32
#param eps: f32
#constant STATISTICS = 0, 1
#include common

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
    var four = x[i];
    for (var lane = 0u; lane < 4u; lane += 1u) {
        let channel = (p.first + 4u * i + lane) / p.plane % p.channels;
#if STATISTICS
        let factor = 1.0 / sqrt(variance[channel] + p.eps) * gamma[channel];
        four[lane] = (four[lane] - mean[channel]) * factor + beta[channel];
#else
        four[lane] = four[lane] * gamma[channel] + beta[channel];
#endif
    }
    out[i] = four;
}
