// The sum of each part of a row.
#trusted places are below the end of the part, which is within its row, and those of sums are below ${WORKGROUP}
#input x: array<Item>
#output y: array<Item>
#param n: u32
#param part: u32
#param parts: u32
#param total: u32
#constant STORED = f32, u32
#include common
#include scan

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
    let row = number / p.parts * p.n;
    let start = (number % p.parts) * p.part;
    let end = min(start + p.part, p.n);
    var all = Item();
    for (var tile = start; tile < end; tile += TILE) {
        let first = tile + local * EACH;
        var sum = Item();
        for (var i = 0u; i < EACH; i += 1u) {
            if first + i < end {
                sum += x[row + first + i];
            }
        }
        all += sum;
    }
    sums[local] = all;
    workgroupBarrier();
    for (var gap = ${WORKGROUP}u / 2u; gap > 0u; gap >>= 1u) {
        if local < gap {
            sums[local] += sums[local + gap];
        }
        workgroupBarrier();
    }
    if local == 0u {
        y[number] = sums[0];
    }
}
