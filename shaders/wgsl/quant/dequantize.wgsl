// The elements of blocks. Four invocations share a part: each writes four of its low and four of its high elements, so
// that neighbours write neighbouring vectors.
#trusted parts are guarded; the words of a part lie in its block, or in the vector that ends the last one
#input blocks: array<vec4<u32>>
#output out: array<vec4<f32>>
#param parts: u32
#constant FORMAT = all
#include common
#include quantized

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups) * (${WORKGROUP}u / 4u) + local / 4u;
    if number >= p.parts {
        return;
    }
    let block = number / PARTS;
    let part = number % PARTS;
    let i = local % 4u;
    let read = part_of(block, part);
    let at = (block * LEN + place(part)) / 4u + i;
    out[at] = elements(read.low[i], read.steps.x, read.steps.y);
    out[at + APART / 4u] = elements(read.high[i], read.steps.z, read.steps.w);
}
