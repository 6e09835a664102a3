// Functions that most kernels need.

const INFINITY_BITS: u32 = 0x7f800000u;
const NAN_BITS: u32 = 0x7fc00000u;

// The number of a workgroup in a grid that may be folded into two dimensions.
fn group_number(id: vec3<u32>, count: vec3<u32>) -> u32 {
    return id.y * count.x + id.x;
}

// By bits: a compiler may take x != x for false.
fn is_nan(x: f32) -> bool {
    return (bitcast<u32>(x) & 0x7fffffffu) > INFINITY_BITS;
}
