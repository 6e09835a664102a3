// out[b, j, i] = x[b, i, j] of a block of each matrix, through tiles of workgroup memory so that reads and writes are both in rows.
#trusted rows and columns are guarded; tiles are indexed by less than 32
#input x: array<f32>
#output out: array<f32>
// The block; elements of a matrix, of a row of x and of a row of out; and where the block begins in rows of x and of out.
#param rows: u32
#param columns: u32
#param matrix: u32
#param x_stride: u32
#param out_stride: u32
#param x_first: u32
#param out_first: u32
#param across: u32
#param tiles: u32
#param total: u32
#include common

// One column more than a tile has, so that a column of it lies in different banks.
var<workgroup> tile: array<array<f32, 33>, 32>;

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
    let matrix = (number / p.tiles) * p.matrix;
    let within = number % p.tiles;
    let row = (within / p.across) * 32u;
    let column = (within % p.across) * 32u;
    let lane = local % 32u;
    let first = local / 32u;
    for (var i = first; i < 32u; i += ${WORKGROUP}u / 32u) {
        if row + i < p.rows && column + lane < p.columns {
            tile[i][lane] = x[matrix + (row + i) * p.x_stride + p.x_first + column + lane];
        }
    }
    workgroupBarrier();
    for (var i = first; i < 32u; i += ${WORKGROUP}u / 32u) {
        if column + i < p.columns && row + lane < p.rows {
            out[matrix + (column + i) * p.out_stride + p.out_first + row + lane] = tile[lane][i];
        }
    }
}
