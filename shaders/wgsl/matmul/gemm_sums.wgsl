    // Row i of the block, in the quarter of columns of this invocation; in the largest tile r4..r7 are half a tile below,
    // s0..s7 half a tile to the right.
    var r0 = vec4<f32>();
    var r1 = vec4<f32>();
    var r2 = vec4<f32>();
    var r3 = vec4<f32>();
#if TILE == 128
    var r4 = vec4<f32>();
    var r5 = vec4<f32>();
    var r6 = vec4<f32>();
    var r7 = vec4<f32>();
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
#endif
