// Every word of out is one value.
#trusted i is below the number of vectors, and buffers are whole vectors long
#output out: array<vec4<u32>>
#param value: u32
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
        out[i] = vec4<u32>(p.value);
    }
}
