// Rows of x for `quant_cooperative`: numbers in f16, of three passes also what they leave, and the unit of each row.
//
// A workgroup takes a row. With three passes the numbers of four elements are followed by their rests. The unit is a power of
// two, so that the largest magnitude is from 2^14 to 2^15. It is NaN if the row has to be multiplied element by element: if not
// all of it is finite, if it is tiny or huge, or if the rests of four neighbours would vanish beside the largest of the row.
#trusted rows and vectors are guarded
#input x: array<vec4<f32>>
#output planes: array<vec2<u32>>
#output units: array<f32>
#param rows: u32
#param vectors: u32
#param total: u32
#constant PASSES = 1, 3
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
    for (var i = local; i < p.vectors; i += ${WORKGROUP}u) {
        let v = x[first + i] * select(0.0, scale, fits);
#if PASSES == 3
        // The bits that an f16 has, and the others.
        let number = bitcast<vec4<f32>>(bitcast<vec4<u32>>(v) & vec4<u32>(0xffffe000u));
        planes[2u * (first + i)] = halves(number);
        planes[2u * (first + i) + 1u] = halves(v - number);
#else
        planes[first + i] = halves(v);
#endif
    }
}
