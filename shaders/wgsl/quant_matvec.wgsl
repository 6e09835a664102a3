// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for few rows of x: at the speed of memory.
//
// LANES neighbouring invocations share four rows of w; each takes every LANES-th part of them, so that what is read of x
// serves four rows, and every element of w serves ROWS rows of x. One row of x is read where it lies; several are laid into
// workgroup memory a piece at a time.
#trusted rows of x and w are clamped to the last one, results guarded; `spread` moves vectors within eights of a piece
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
#constant FORMAT = 0, 1, 2, 3
#constant ROWS = 1, 2, 4, 8
#constant LANES = 8, 32, 256
#include common
#include quantized

const ROWS: u32 = ${ROWS}u;
const LANES: u32 = ${LANES}u;
// Groups of lanes in a workgroup.
const SLOTS: u32 = ${WORKGROUP}u / LANES;

#if ROWS == 1
var<workgroup> shared_vectors: array<vec4<f32>, ${WORKGROUP}u>;
#else
// Vectors of a row of x that are laid out at a time.
const PIECE: u32 = 1024u / ROWS;
var<workgroup> shared_vectors: array<vec4<f32>, 1024u>;

// Where a vector of a piece lies: neighbouring lanes, which are whole parts or blocks apart, meet in different banks.
fn spread(at: u32) -> u32 {
    let turn = at >> 3u;
    return at ^ (((turn & 1u) * 6u) ^ (turn & 2u) ^ ((turn >> 2u) & 1u));
}
#endif

// For each row of x its sums with four rows of w.
var<private> sums: array<vec4<f32>, ROWS>;

// Adds the products of four elements of each row of w, from their words, with those of x from vector `at` on.
fn add(words: vec4<u32>, step: vec4<f32>, least: vec4<f32>, at: u32) {
    let w0 = elements(words.x, step.x, least.x);
    let w1 = elements(words.y, step.y, least.y);
    let w2 = elements(words.z, step.z, least.z);
    let w3 = elements(words.w, step.w, least.w);
#if ROWS == 1
    let v = x[at];
    sums[0] = vec4<f32>(product(w0, v, sums[0].x), product(w1, v, sums[0].y), product(w2, v, sums[0].z),
        product(w3, v, sums[0].w));
#else
    let laid = spread(at);
    for (var i = 0u; i < ROWS; i++) {
        let v = shared_vectors[i * PIECE + laid];
        let sum = sums[i];
        sums[i] = vec4<f32>(product(w0, v, sum.x), product(w1, v, sum.y), product(w2, v, sum.z), product(w3, v, sum.w));
    }
#endif
}

// Adds the products with part `part` of blocks `blocks_of`, one of each row of w, and x from vector `at` on.
fn add_part(blocks_of: vec4<u32>, part: u32, at: u32) {
    let a = part_of(blocks_of.x, part);
    let b = part_of(blocks_of.y, part);
    let c = part_of(blocks_of.z, part);
    let d = part_of(blocks_of.w, part);
    let step = vec4<f32>(a.steps.x, b.steps.x, c.steps.x, d.steps.x);
    let least = vec4<f32>(a.steps.y, b.steps.y, c.steps.y, d.steps.y);
    add(vec4<u32>(a.low.x, b.low.x, c.low.x, d.low.x), step, least, at);
    add(vec4<u32>(a.low.y, b.low.y, c.low.y, d.low.y), step, least, at + 1u);
    add(vec4<u32>(a.low.z, b.low.z, c.low.z, d.low.z), step, least, at + 2u);
    add(vec4<u32>(a.low.w, b.low.w, c.low.w, d.low.w), step, least, at + 3u);
    let high_step = vec4<f32>(a.steps.z, b.steps.z, c.steps.z, d.steps.z);
    let high_least = vec4<f32>(a.steps.w, b.steps.w, c.steps.w, d.steps.w);
    let high_at = at + APART / 4u;
    add(vec4<u32>(a.high.x, b.high.x, c.high.x, d.high.x), high_step, high_least, high_at);
    add(vec4<u32>(a.high.y, b.high.y, c.high.y, d.high.y), high_step, high_least, high_at + 1u);
    add(vec4<u32>(a.high.z, b.high.z, c.high.z, d.high.z), high_step, high_least, high_at + 2u);
    add(vec4<u32>(a.high.w, b.high.w, c.high.w, d.high.w), high_step, high_least, high_at + 3u);
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
    let first_row = (number % p.down) * ROWS;
    let lane = local % LANES;
    let column = ((number / p.down) * SLOTS + local / LANES) * 4u;
    // Rows beyond the last are the last again, and not written.
    let columns = min(vec4<u32>(column, column + 1u, column + 2u, column + 3u), vec4<u32>(p.n - 1u));
    let begin = columns * p.k_blocks;
    for (var i = 0u; i < ROWS; i++) {
        sums[i] = vec4<f32>(0.0);
    }
#if ROWS == 1
    let x_begin = first_row * p.k_blocks * (LEN / 4u);
    for (var i = lane; i < p.k_blocks * PARTS; i += LANES) {
        let block = i / PARTS;
        let part = i % PARTS;
        add_part(begin + block, part, x_begin + (block * LEN + place(part)) / 4u);
    }
#else
    let vectors = p.k_blocks * (LEN / 4u);
    for (var piece = 0u; piece < vectors; piece += PIECE) {
        let size = min(PIECE, vectors - piece);
        workgroupBarrier();
        for (var i = local; i < 1024u; i += ${WORKGROUP}u) {
            let within = i % PIECE;
            if within < size {
                let row = min(first_row + i / PIECE, p.m - 1u);
                shared_vectors[i - within + spread(within)] = x[row * vectors + piece + within];
            }
        }
        workgroupBarrier();
        let first_block = piece / (LEN / 4u);
        for (var i = lane; i < size / 8u; i += LANES) {
            let block = i / PARTS;
            let part = i % PARTS;
            add_part(begin + first_block + block, part, (block * LEN + place(part)) / 4u);
        }
    }
#endif
    for (var i = 0u; i < ROWS; i++) {
        workgroupBarrier();
        shared_vectors[local] = sums[i];
        for (var half = LANES / 2u; half > 0u; half /= 2u) {
            workgroupBarrier();
            if lane < half {
                shared_vectors[local] += shared_vectors[local + half];
            }
        }
        let row = first_row + i;
        if lane == 0u && row < p.m {
            let sum = shared_vectors[local];
            let at = row * p.out_row + p.out_first + column;
            for (var j = 0u; j < min(4u, p.n - min(column, p.n)); j++) {
                out[at + j] = finished(sum[j]);
            }
        }
    }
}
