// The source of each row of a result of scatter: a row of the table, or with CHOOSE, counted after those, the last row
// of the source whose index names it. An index outside of the table is ignored.
#trusted i is below the elements of what it is the place in, and an index is compared with them
#input index: array<u32>
#output sources: array<atomic<u32>>
#param rows: u32
#param n: u32
#constant CHOOSE = 0, 1
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
#if CHOOSE
    let row = index[i];
    if row < p.rows {
        atomicMax(&sources[row], p.rows + i);
    }
#else
    atomicStore(&sources[i], i);
#endif
}
