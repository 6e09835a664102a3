// One k of a tile: the vector of A at `ia`, of B at `ib`, and their outer product added to the sums.
{
    let x = tile[ia];
#if TILE == 128
    let u = tile[ia + 16u];
#endif
    let y = tile[ib];
#if TILE == 128
    let v = tile[ib + 16u];
#endif
    r0 = fma(vec4<f32>(x.x), y, r0);
    r1 = fma(vec4<f32>(x.y), y, r1);
    r2 = fma(vec4<f32>(x.z), y, r2);
    r3 = fma(vec4<f32>(x.w), y, r3);
#if TILE == 128
    r4 = fma(vec4<f32>(u.x), y, r4);
    r5 = fma(vec4<f32>(u.y), y, r5);
    r6 = fma(vec4<f32>(u.z), y, r6);
    r7 = fma(vec4<f32>(u.w), y, r7);
    s0 = fma(vec4<f32>(x.x), v, s0);
    s1 = fma(vec4<f32>(x.y), v, s1);
    s2 = fma(vec4<f32>(x.z), v, s2);
    s3 = fma(vec4<f32>(x.w), v, s3);
    s4 = fma(vec4<f32>(u.x), v, s4);
    s5 = fma(vec4<f32>(u.y), v, s5);
    s6 = fma(vec4<f32>(u.z), v, s6);
    s7 = fma(vec4<f32>(u.w), v, s7);
#endif
    ia += QUARTERS;
    ib += QUARTERS;
}
