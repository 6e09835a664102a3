const SPACING: f32 = 0.125;

fn nearest(y: vec4<f32>) -> vec4<f32> {
    return round(clamp(y, vec4<f32>(-END), vec4<f32>(END - 1.0)));
}

// The integers of four numbers of the grid, a byte each.
fn integers_of(q: vec4<f32>) -> u32 {
    return packed(q + END);
}
