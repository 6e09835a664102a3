// The reduction of a window.
#if MAX
// The order of numbers as that of integers, -0 below +0; every NaN is the greatest.
const NOTHING: i32 = -2147483647;

fn element(bits: u32) -> i32 {
    let order = bitcast<i32>(bits ^ ((bits >> 31u) * 0x7fffffffu));
    return select(order, 0x7fffffff, (bits & 0x7fffffffu) > INFINITY_BITS);
}

fn joined(a: i32, b: i32) -> i32 {
    return max(a, b);
}

fn pooled(order: i32, area: f32) -> u32 {
    let bits = bitcast<u32>(order);
    return bits ^ ((bits >> 31u) * 0x7fffffffu);
}
#else
const NOTHING: f32 = 0.0;

fn element(bits: u32) -> f32 {
    return bitcast<f32>(bits);
}

fn joined(a: f32, b: f32) -> f32 {
    return a + b;
}

fn pooled(sum: f32, area: f32) -> u32 {
    return bitcast<u32>(sum / area);
}
#endif
