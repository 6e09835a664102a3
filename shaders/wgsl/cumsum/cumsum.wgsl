// Sums of all elements up to each of a part of a row: a workgroup goes through the part tile by tile. With PARTS it begins with the
// sum of the parts in front: `before` holds for each part the sum of it and of those in front of it in its row.
#trusted places are below the end of the part, which is within its row, and those of sums are below twice ${WORKGROUP}
#input x: array<Item>
#input before: array<Item>
#output y: array<Item>
#param n: u32
#param part: u32
#param parts: u32
#param total: u32
#constant STORED = f32, u32
#constant PARTS = 0, 1
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
    var carried = Item();
#if PARTS
    if number % p.parts > 0u {
        carried = before[number - 1u];
    }
#endif
    for (var tile = start; tile < end; tile += TILE) {
        let first = tile + local * EACH;
        var own: array<Item, EACH>;
        var sum = Item();
        for (var i = 0u; i < EACH; i += 1u) {
            if first + i < end {
                sum += x[row + first + i];
            }
            own[i] = sum;
        }
        sums[local] = sum;
        workgroupBarrier();
        // Every step joins twice as many neighbours, from one half of the memory to the other.
        var side = 0u;
        for (var gap = 1u; gap < ${WORKGROUP}u; gap <<= 1u) {
            var joined = sums[side + local];
            if local >= gap {
                joined = sums[side + local - gap] + joined;
            }
            side = ${WORKGROUP}u - side;
            sums[side + local] = joined;
            workgroupBarrier();
        }
        var in_front = Item();
        if local > 0u {
            in_front = sums[side + local - 1u];
        }
        for (var i = 0u; i < EACH; i += 1u) {
            if first + i < end {
                y[row + first + i] = carried + (in_front + own[i]);
            }
        }
        carried += sums[side + ${WORKGROUP}u - 1u];
        // Before the next tile writes sums.
        workgroupBarrier();
    }
}
