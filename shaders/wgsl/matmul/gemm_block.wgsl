    // What this invocation loads of the next slice. As a structure that functions return it would lie in memory, not in
    // registers, on some drivers: products then take a third longer.
    var v0: vec4<f32>;
    var v1: vec4<f32>;
    var v2: vec4<f32>;
    var v3: vec4<f32>;
