// out[i] = a[i] where condition[i] holds, else b[i]: bits are copied. An invocation chooses four. Operands repeat, from the element
// `first` on.
#trusted i is below `n`, buffers are whole vectors long, and the place in an operand is taken modulo its length
#input condition: array<u32>
#input a: array<u32>
#input b: array<u32>
#output out: array<vec4<u32>>
#param n: u32
#param length_condition: u32
#param first_condition: u32
#param length_a: u32
#param first_a: u32
#param length_b: u32
#param first_b: u32
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
    var four = vec4<u32>();
    for (var lane = 0u; lane < 4u; lane += 1u) {
        let at = 4u * i + lane;
        let place = (at + p.first_condition) % p.length_condition;
        let holds = ((condition[place / 4u] >> (8u * (place % 4u))) & 0xffu) != 0u;
        let x = a[(at + p.first_a) % p.length_a];
        let y = b[(at + p.first_b) % p.length_b];
        four[lane] = select(y, x, holds);
    }
    out[i] = four;
}
