const END: f32 = 127.0;
const SPACING: f32 = 2.0;

// Halfway between two numbers counts for the lower.
fn nearest(y: vec4<f32>) -> vec4<f32> {
    var q = vec4<f32>(-127.0);
    q = select(q, vec4<f32>(-104.0), y > vec4<f32>(-115.5));
    q = select(q, vec4<f32>(-83.0), y > vec4<f32>(-93.5));
    q = select(q, vec4<f32>(-65.0), y > vec4<f32>(-74.0));
    q = select(q, vec4<f32>(-49.0), y > vec4<f32>(-57.0));
    q = select(q, vec4<f32>(-35.0), y > vec4<f32>(-42.0));
    q = select(q, vec4<f32>(-22.0), y > vec4<f32>(-28.5));
    q = select(q, vec4<f32>(-10.0), y > vec4<f32>(-16.0));
    q = select(q, vec4<f32>(1.0), y > vec4<f32>(-4.5));
    q = select(q, vec4<f32>(13.0), y > vec4<f32>(7.0));
    q = select(q, vec4<f32>(25.0), y > vec4<f32>(19.0));
    q = select(q, vec4<f32>(38.0), y > vec4<f32>(31.5));
    q = select(q, vec4<f32>(53.0), y > vec4<f32>(45.5));
    q = select(q, vec4<f32>(69.0), y > vec4<f32>(61.0));
    q = select(q, vec4<f32>(89.0), y > vec4<f32>(79.0));
    q = select(q, vec4<f32>(113.0), y > vec4<f32>(101.0));
    return q;
}

// The places of four numbers, a byte each.
fn integers_of(q: vec4<f32>) -> u32 {
    var place = vec4<f32>(0.0);
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-115.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-93.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-74.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-57.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-42.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-28.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-16.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(-4.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(7.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(19.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(31.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(45.5));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(61.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(79.0));
    place += select(vec4<f32>(0.0), vec4<f32>(1.0), q > vec4<f32>(101.0));
    return packed(place);
}
