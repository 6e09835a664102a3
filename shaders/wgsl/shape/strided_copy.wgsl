// out[out_first + sum of i_d out_d] = x[x_first + sum of i_d x_d] for every index below the extents, dimension 0 innermost: bits are
// copied, a word or a vector of four at a time.
#trusted indices are below `n`, and the host has checked that both sides hold the units that they stand for
#input x: array<Unit>
#output out: array<Unit>
#param n: u32
#param x_first: u32
#param out_first: u32
#param extent_0: u32
#param x_0: u32
#param out_0: u32
#param extent_1: u32
#param x_1: u32
#param out_1: u32
#param extent_2: u32
#param x_2: u32
#param out_2: u32
#param extent_3: u32
#param x_3: u32
#param out_3: u32
#param extent_4: u32
#param x_4: u32
#param out_4: u32
#param x_5: u32
#param out_5: u32
#constant RANK = 1, 2, 3, 6
#constant VECTORS = 0, 1
#include common
#include strided

#if VECTORS
alias Unit = vec4<u32>;
#else
alias Unit = u32;
#endif

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
    let at = places(i);
    out[at.y] = x[at.x];
}
