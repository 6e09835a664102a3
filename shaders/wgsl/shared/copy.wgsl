// out = x: the fastest pass that reads every byte once and writes it once.
#trusted i is below the number of vectors
#input x: array<vec4<u32>>
#output out: array<vec4<u32>>
#param vectors: u32
#include common

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i < p.vectors {
        out[i] = x[i];
    }
}
