// out[i] = sum over s of x[s, i], in vectors: the end of an operation that was split into parts.
//
// Eight invocations share a vector and take the parts in turn; the eight sums are then added in a fixed order. Of few parts one
// invocation adds all. If ADDS, more[i] is added to the sum.
#trusted i and part are guarded
#input x: array<vec4<f32>>
#input more: array<vec4<f32>>
#output out: array<vec4<f32>>
#param n: u32
#param parts: u32
#param total: u32
#constant SHARE = 1, 8
#constant ADDS = 0, 1
#include common

#if SHARE == 8
var<workgroup> sums: array<vec4<f32>, ${WORKGROUP}>;
#endif

fn result(sum: vec4<f32>, i: u32) -> vec4<f32> {
#if ADDS
    return sum + more[i];
#else
    return sum;
#endif
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
#if SHARE == 1
    let i = number * ${WORKGROUP}u + local;
    if i < p.n {
        var sum = x[i];
        for (var part = 1u; part < p.parts; part++) {
            sum += x[part * p.n + i];
        }
        out[i] = result(sum, i);
    }
#else
    let i = number * 32u + local % 32u;
    var sum = vec4<f32>();
    if i < p.n {
        for (var part = local / 32u; part < p.parts; part += 8u) {
            sum += x[part * p.n + i];
        }
    }
    sums[local] = sum;
    workgroupBarrier();
    if local < 32u && i < p.n {
        let low = (sums[local] + sums[local + 32u]) + (sums[local + 64u] + sums[local + 96u]);
        let high = (sums[local + 128u] + sums[local + 160u]) + (sums[local + 192u] + sums[local + 224u]);
        out[i] = result(low + high, i);
    }
#endif
}
