// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for many rows of x.
//
// A workgroup makes 16 TALL rows of 64 results, an invocation TALL rows of four. Sixteen elements of each row, of x and
// decoded ones of w, are in workgroup memory at a time; parts of w are decoded once for both of their halves.
#trusted rows of x and w are clamped to the last one, parts are below `parts`, results guarded
#input x: array<vec4<f32>>
#input blocks: array<vec4<u32>>
#output out: array<f32>
#param m: u32
#param n: u32
#param k_blocks: u32
#param out_row: u32
#param out_first: u32
#param down: u32
#param total: u32
#constant FORMAT = all
#constant TALL = 2, 4, 8
#include common
#include quantized

const TALL: u32 = ${TALL}u;
// Vectors of x that an invocation lays out at a time.
#if TALL == 8
const LOADS: u32 = 2u;
#else
const LOADS: u32 = 1u;
#endif

// Four vectors a row, in an order in which neighbouring rows meet in different banks.
var<workgroup> x_tile: array<vec4<f32>, 64u * TALL>;
var<workgroup> w_tile: array<vec4<f32>, 256u>;

fn place_in_tile(row: u32, i: u32) -> u32 {
    return 4u * row + (i ^ ((row >> 1u) & 3u));
}

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
    // Neighbouring workgroups share rows of w.
    let first_row = (number % p.down) * 16u * TALL;
    let first_column = (number / p.down) * 64u;
    let vectors = p.k_blocks * (LEN / 4u);
    // The vectors that this invocation stores: vector `i` of a row of w and of every 64th row of x, loaded one step
    // ahead. Rows beyond the last are clamped to it, and their results are not written.
    let slot = local / 4u;
    let i = local % 4u;
    let w_begin = min(first_column + slot, p.n - 1u) * p.k_blocks;
    let x_begin = vec2<u32>(min(first_row + slot, p.m - 1u), min(first_row + slot + 64u, p.m - 1u)) * vectors + i;
    let parts = p.k_blocks * PARTS;
    var low: vec4<f32>;
    var high: vec4<f32>;
    var ahead: array<vec4<f32>, LOADS>;
    if parts > 0u {
        let read = part_of(w_begin, 0u);
        low = elements(read.low[i], read.steps.x, read.steps.y);
        high = elements(read.high[i], read.steps.z, read.steps.w);
        for (var load = 0u; load < LOADS; load++) {
            ahead[load] = x[x_begin[load]];
        }
    }
    let down = local / 16u;
    let across = local % 16u;
    var sums: array<vec4<f32>, TALL>;
    for (var r = 0u; r < TALL; r++) {
        sums[r] = vec4<f32>(0.0);
    }
    for (var at = 0u; at < parts; at++) {
        for (var side = 0u; side < 2u; side++) {
            workgroupBarrier();
            w_tile[place_in_tile(slot, i)] = select(low, high, side != 0u);
#if TALL == 2
            if slot < 32u {
                x_tile[place_in_tile(slot, i)] = ahead[0];
            }
#else
            for (var load = 0u; load < LOADS; load++) {
                x_tile[place_in_tile(slot + 64u * load, i)] = ahead[load];
            }
#endif
            workgroupBarrier();
            let next = min(at + side, parts - 1u);
            let x_at = ((next / PARTS) * LEN + place(next % PARTS) + (1u - side) * APART) / 4u;
            for (var load = 0u; load < LOADS; load++) {
                ahead[load] = x[x_begin[load] + x_at];
            }
            if side == 1u {
                let read = part_of(w_begin + next / PARTS, next % PARTS);
                low = elements(read.low[i], read.steps.x, read.steps.y);
                high = elements(read.high[i], read.steps.z, read.steps.w);
            }
            for (var v = 0u; v < 4u; v++) {
                let b0 = w_tile[place_in_tile(across, v)];
                let b1 = w_tile[place_in_tile(across + 16u, v)];
                let b2 = w_tile[place_in_tile(across + 32u, v)];
                let b3 = w_tile[place_in_tile(across + 48u, v)];
                for (var r = 0u; r < TALL; r++) {
                    let a = x_tile[place_in_tile(down + 16u * r, v)];
                    let sum = sums[r];
                    sums[r] = vec4<f32>(product(a, b0, sum.x), product(a, b1, sum.y), product(a, b2, sum.z),
                        product(a, b3, sum.w));
                }
            }
        }
    }
    for (var r = 0u; r < TALL; r++) {
        let row = first_row + down + 16u * r;
        if row < p.m {
            for (var c = 0u; c < 4u; c++) {
                let column = first_column + across + 16u * c;
                if column < p.n {
                    out[row * p.out_row + p.out_first + column] = finished(sums[r][c]);
                }
            }
        }
    }
}
