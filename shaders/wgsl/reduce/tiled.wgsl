// The results of tiles of 16 by 16, row by row of tiles, in the tree of kiln-ir's tiled reductions: the rows of a tile are
// folded in halves, then their results. A workgroup takes 16 tiles, an invocation one row of a tile.
#trusted tiles, rows and columns are guarded; `half` shrinks
#input x: array<F>
#output partial: array<u32>
#param width: u32
#param height: u32
#param across: u32
#param total: u32
#param first_tile: u32
#constant REDUCTION = REDUCE_SUM, REDUCE_MAX, REDUCE_MIN
#constant WIDTH = 1, 4
#include common
#include fold

#if WIDTH == 4
alias F = vec4<f32>;
#else
alias F = f32;
#endif

var<workgroup> rows: array<f32, ${WORKGROUP}>;

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let first = group_number(group, groups) * 16u;
    if first >= p.total {
        return;
    }
    // Neighbouring invocations take neighbouring tiles.
    let tile = first + local % 16u;
    let y = tile / p.across * 16u + local / 16u;
    let column = tile % p.across * 16u;
    var v: array<vec4<f32>, 4>;
    for (var i = 0u; i < 4u; i += 1u) {
        v[i] = vec4<f32>(identity());
        if tile < p.total && y < p.height {
            let at = column + 4u * i;
#if WIDTH == 4
            if at < p.width {
                v[i] = x[(y * p.width + at) / 4u];
            }
#else
            for (var j = 0u; j < 4u; j += 1u) {
                if at + j < p.width {
                    v[i][j] = x[y * p.width + at + j];
                }
            }
#endif
        }
    }
    let quarter = combined4(combined4(v[0], v[2]), combined4(v[1], v[3]));
    rows[local] = combined(combined(quarter.x, quarter.z), combined(quarter.y, quarter.w));
    workgroupBarrier();
    for (var half = ${WORKGROUP}u / 2u; half >= 16u; half >>= 1u) {
        if local < half {
            rows[local] = combined(rows[local], rows[local + half]);
        }
        workgroupBarrier();
    }
    if local < 16u && tile < p.total {
        partial[p.first_tile + tile] = bitcast<u32>(rows[local]);
    }
}
