// Brings products with the same expert together, in tiles of ROWS: `slots` has the products of each tile, in their order, and 2^32 - 1
// where there are no more, and `chosen` the expert of each tile, or 2^32 - 1 for a tile without products.
//
// A workgroup has the products of one expert. With b products of experts before e, its tiles begin at b / ROWS + e: whatever the
// numbers of products are, they end before those of the next expert begin, so no workgroup waits for another.
#trusted loops end at counts; an expert's products end before the tiles of the next begin, those of the last at `tiles`
#input index: array<u32>
#output slots: array<u32>
#output chosen: array<u32>
#param count: u32
#param experts: u32
#param tiles: u32
#constant ROWS = 8
#include common

const NONE: u32 = 0xffffffffu;
const ROWS: u32 = ${ROWS}u;

var<workgroup> before: atomic<u32>;
// For each invocation how many products it and those before it have.
var<workgroup> ranks: array<u32, ${WORKGROUP}u>;

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let expert = group_number(group, groups);
    if expert >= p.experts {
        return;
    }
    if local == 0u {
        atomicStore(&before, 0u);
    }
    let each = (p.count + ${WORKGROUP}u - 1u) / ${WORKGROUP}u;
    let begin = min(local * each, p.count);
    let end = min(begin + each, p.count);
    var less = 0u;
    var own = 0u;
    for (var i = begin; i < end; i++) {
        let other = index[i];
        less += u32(other < expert);
        own += u32(other == expert);
    }
    ranks[local] = own;
    workgroupBarrier();
    atomicAdd(&before, less);
    for (var step = 1u; step < ${WORKGROUP}u; step *= 2u) {
        workgroupBarrier();
        var earlier = 0u;
        if local >= step {
            earlier = ranks[local - step];
        }
        workgroupBarrier();
        ranks[local] += earlier;
    }
    workgroupBarrier();
    let first = atomicLoad(&before) / ROWS + expert;
    let total = ranks[${WORKGROUP}u - 1u];
    var last = (atomicLoad(&before) + total) / ROWS + expert + 1u;
    if expert + 1u == p.experts {
        last = p.tiles;
    }
    var to = first * ROWS + ranks[local] - own;
    for (var i = begin; i < end; i++) {
        if index[i] == expert {
            slots[to] = i;
            to += 1u;
        }
    }
    for (var i = first * ROWS + total + local; i < last * ROWS; i += ${WORKGROUP}u) {
        slots[i] = NONE;
    }
    let filled = first + (total + ROWS - 1u) / ROWS;
    for (var tile = first + local; tile < last; tile += ${WORKGROUP}u) {
        chosen[tile] = select(NONE, expert, tile < filled);
    }
}
