// One element of four queries at `ia` and of four keys at `ib`, and their outer product added to the scores.
{
    let x = tile[ia];
    let y = tile[ib];
    s0 = fma(x, vec4<f32>(y.x), s0);
    s1 = fma(x, vec4<f32>(y.y), s1);
    s2 = fma(x, vec4<f32>(y.z), s2);
    s3 = fma(x, vec4<f32>(y.w), s3);
    ia += QUARTERS;
    ib += QUARTERS;
}
