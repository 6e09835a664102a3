// One key: its weights for four queries at `ip`, its value at `iv`, and their outer product added to the sums.
{
    let x = tile[ip];
    let v = tile[iv];
    b0 = fma(vec4<f32>(x.x), v, b0);
    b1 = fma(vec4<f32>(x.y), v, b1);
    b2 = fma(vec4<f32>(x.z), v, b2);
    b3 = fma(vec4<f32>(x.w), v, b3);
#if CHUNK == 128
    let u = tile[iv + 16u];
    b4 = fma(vec4<f32>(x.x), u, b4);
    b5 = fma(vec4<f32>(x.y), u, b5);
    b6 = fma(vec4<f32>(x.z), u, b6);
    b7 = fma(vec4<f32>(x.w), u, b7);
#endif
    ip += QUARTERS;
    iv += VECTORS_OF_VALUE;
}
