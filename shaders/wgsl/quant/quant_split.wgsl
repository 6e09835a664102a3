// Rows of x for products through cooperative matrices: numbers in f16, unless PASSES is one also what they leave, and the unit of each
// row.
//
// A workgroup takes a row. If PASSES is not one, the numbers of four elements are followed by their rests. If it is two, sixteen rows of
// 64 neighbours lie together, and four neighbours are in the order 0, 2, 1, 3. The sums of sixteens come after all rows, four together:
// a sixteenth of each sum, and 2^11 times what f16 leaves of it, with sixteen rows of 256 neighbours together. The unit is a power of two,
// so that the largest magnitude is from 2^14 to 2^15. It is NaN if the row has to be multiplied element by element: if not all of it is
// finite, if it is tiny or huge, or if the rests of four neighbours would vanish beside the largest of the row.
#trusted rows and vectors are guarded
#input x: array<vec4<f32>>
#output planes: array<vec2<u32>>
#output units: array<f32>
#param rows: u32
#param vectors: u32
#param total: u32
#constant PASSES = 1, 2, 3
#include common

var<workgroup> most: atomic<u32>;
// The smallest of the largest magnitudes of four that are not zero.
var<workgroup> least: atomic<u32>;

fn top_of(v: vec4<f32>) -> u32 {
    let m = bitcast<vec4<u32>>(v) & vec4<u32>(0x7fffffffu);
    return max(max(m.x, m.y), max(m.z, m.w));
}

fn halves(v: vec4<f32>) -> vec2<u32> {
    return vec2<u32>(pack2x16float(v.xy), pack2x16float(v.zw));
}

#if PASSES == 2
var<workgroup> sums: array<vec2<f32>, ${WORKGROUP}>;
#endif

#if PASSES == 2, 3
// Stores a vector of numbers and their rests: the bits that an f16 has, and the others.
fn split(at: u32, v: vec4<f32>) {
    let number = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
    planes[2u * at] = halves(number);
    planes[2u * at + 1u] = halves(v - number);
}
#endif

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group_number(group, groups);
    if row >= p.rows {
        return;
    }
    let first = row * p.vectors;
    if local == 0u {
        atomicStore(&most, 0u);
        atomicStore(&least, INFINITY_BITS);
    }
    workgroupBarrier();
    var high = 0u;
    var low = INFINITY_BITS;
    for (var i = local; i < p.vectors; i += ${WORKGROUP}u) {
        let top = top_of(x[first + i]);
        high = max(high, top);
        low = min(low, select(top, INFINITY_BITS, top == 0u));
    }
    atomicMax(&most, high);
    atomicMin(&least, low);
    workgroupBarrier();
    let top = atomicLoad(&most);
    // From 2^-80 to 2^100, and all neighbours from 2^-21 of the largest.
    let fits = top == 0u || (top >= 0x17800000u && top < 0x71800000u && top - atomicLoad(&least) <= 0x0a800000u);
    let exponent = select(127u, top >> 23u, fits && top != 0u);
    let scale = bitcast<f32>((127u + 14u + 127u - exponent) << 23u);
    if local == 0u {
        // Weights are in units of 2^-7.
        units[row] = bitcast<f32>(select(NAN_BITS, (exponent - 14u - 7u) << 23u, fits));
    }
    let factor = select(0.0, scale, fits);
#if PASSES == 2
    let slices = p.vectors / 16u;
    let together = row / 16u;
    for (var start = 0u; start < p.vectors / 4u; start += ${WORKGROUP}u) {
        // Sixteen elements each.
        let i = start + local;
        if i < p.vectors / 4u {
            var four = vec4<f32>(0.0);
            for (var j = 0u; j < 4u; j++) {
                let v = x[first + 4u * i + j] * factor;
                split(256u * (together * slices + i / 4u) + 16u * (row % 16u) + 4u * (i % 4u) + j, v.xzyw);
                four += v;
            }
            let sum = ((four.x + four.y) + (four.z + four.w)) * 0.0625;
            let number = bitcast<f32>(bitcast<u32>(sum) & 0xffffe000u);
            sums[local] = vec2<f32>(number, (sum - number) * 2048.0);
        }
        workgroupBarrier();
        let slice = start / 4u + local;
        if local < ${WORKGROUP}u / 4u && slice < slices {
            let a = sums[4u * local];
            let b = sums[4u * local + 1u];
            let c = sums[4u * local + 2u];
            let d = sums[4u * local + 3u];
            let all = 256u * slices * ((p.rows + 15u) / 16u);
            let at = all + 64u * (together * (slices / 4u) + slice / 4u) + 4u * (row % 16u) + slice % 4u;
            planes[2u * at] = halves(vec4<f32>(a.x, b.x, c.x, d.x));
            planes[2u * at + 1u] = halves(vec4<f32>(a.y, b.y, c.y, d.y));
        }
        workgroupBarrier();
    }
#else
    for (var i = local; i < p.vectors; i += ${WORKGROUP}u) {
        let v = x[first + i] * factor;
#if PASSES == 3
        split(first + i, v);
#else
        planes[first + i] = halves(v);
#endif
    }
#endif
}
