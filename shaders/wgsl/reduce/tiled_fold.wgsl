// All results of tiles folded in halves, the upper half onto the lower, by one workgroup. `folded` has room for half of
// them, and for one; its first word is the result.
#trusted both i and half + i are below n; n shrinks
#input partial: array<u32>
#output folded: array<u32>
#param count: u32
#constant REDUCTION = REDUCE_SUM, REDUCE_MAX, REDUCE_MIN
#include common
#include fold

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(local_invocation_index) local: u32) {
    var n = p.count;
    var half = (n + 1u) / 2u;
    for (var i = local; i < half; i += ${WORKGROUP}u) {
        var value = partial[i];
        if half + i < n {
            value = bitcast<u32>(combined(bitcast<f32>(value), bitcast<f32>(partial[half + i])));
        }
        folded[i] = value;
    }
    storageBarrier();
    for (n = half; n > 1u; n = half) {
        half = (n + 1u) / 2u;
        for (var i = local; half + i < n; i += ${WORKGROUP}u) {
            folded[i] = bitcast<u32>(combined(bitcast<f32>(folded[i]), bitcast<f32>(folded[half + i])));
        }
        storageBarrier();
    }
    if local == 0u && p.count == 0u {
        folded[0] = bitcast<u32>(identity());
    }
}
