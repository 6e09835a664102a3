// e^x for x <= 0; below 2^-126 it is 0.
#include math

fn weight(x: vec4<f32>) -> vec4<f32> {
    let split = reduced(max(x, V(-87.3)));
    let y = (exp_m1_of(split.r) + 1.0) * power_of_two(vec4<i32>(split.n));
    return keeping_nan(select(y, V(0.0), x < V(-87.3)), x);
}

// Lower than any score but -infinity, so that differences from it are never infinity minus infinity.
const LOWEST: f32 = -3.4028234e38;

// A sum of weighted values divided by the sum of their weights: NaN where all weights are zero.
fn mean_of(sum: vec4<f32>, weights: f32) -> vec4<f32> {
    return select(sum / weights, nan_of(sum), V(weights) == V(0.0));
}
