    // The elements that this invocation loads of the next slice. They are variables because some drivers keep a
    // structure that functions return in memory, not in registers: products then take a third longer.
    var v0: vec4<f32>;
    var v1: vec4<f32>;
    var v2: vec4<f32>;
    var v3: vec4<f32>;
