// out[i] = x[i] as an element of another type. An invocation casts four.
//
// Numbers are cast by way of f32, integers to integers are not. To f16 and bf16 they are rounded to nearest, ties to
// even; to integers towards zero, saturating, NaN to 0; every number but zero is true.
#trusted i is below `n`, and buffers are whole vectors long
#input x: array<From>
#output out: array<To>
#param n: u32
#constant FROM_TYPE = all
#constant TO_TYPE = all
#include common
#include storage

alias From = Four_${FROM_TYPE};
alias To = Four_${TO_TYPE};
alias Numbers = Numbers_${FROM_TYPE};

#if TO_TYPE == f32, f16, bf16
fn floats(x: Numbers) -> vec4<f32> {
#if FROM_TYPE == f32, f16, bf16
    return x;
#else
    // Both parts are exact: it is rounded once, by the sum, to nearest.
#if FROM_TYPE == i32, i8
    return vec4<f32>(x >> vec4<u32>(16u)) * 65536.0 + vec4<f32>(x & vec4<i32>(0xffff));
#else
    return vec4<f32>(x >> vec4<u32>(16u)) * 65536.0 + vec4<f32>(x & vec4<u32>(0xffffu));
#endif
#endif
}
#endif

#if FROM_TYPE == f32, f16, bf16
// Numbers that are not NaN, which is 0.
fn ordered(x: vec4<f32>) -> vec4<f32> {
    let magnitude = bitcast<vec4<u32>>(x) & vec4<u32>(0x7fffffffu);
    return select(x, vec4<f32>(), magnitude > vec4<u32>(0x7f800000u));
}
#endif

fn signed(x: Numbers) -> vec4<i32> {
#if FROM_TYPE == f32, f16, bf16
    let y = ordered(x);
    let inside = vec4<i32>(clamp(y, vec4<f32>(-2147483648.0), vec4<f32>(2147483520.0)));
    return select(inside, vec4<i32>(0x7fffffff), y >= vec4<f32>(2147483648.0));
#endif
#if FROM_TYPE == i32, i8
    return x;
#endif
#if FROM_TYPE == u32, u8, bool
    return bitcast<vec4<i32>>(min(x, vec4<u32>(0x7fffffffu)));
#endif
}

fn unsigned(x: Numbers) -> vec4<u32> {
#if FROM_TYPE == f32, f16, bf16
    let y = ordered(x);
    let inside = vec4<u32>(clamp(y, vec4<f32>(), vec4<f32>(4294967040.0)));
    return select(inside, vec4<u32>(0xffffffffu), y >= vec4<f32>(4294967296.0));
#endif
#if FROM_TYPE == i32, i8
    return bitcast<vec4<u32>>(max(x, vec4<i32>()));
#endif
#if FROM_TYPE == u32, u8, bool
    return x;
#endif
}

#include halves

// The lower bytes of four words, the first lowest.
fn packed(bytes: vec4<u32>) -> u32 {
    let b = bytes & vec4<u32>(0xffu);
    return b.x | (b.y << 8u) | (b.z << 16u) | (b.w << 24u);
}

fn stored(x: Numbers) -> To {
#if TO_TYPE == f32
    return floats(x);
#endif
#if TO_TYPE == f16, bf16
    return paired(halves(floats(x)));
#endif
#if TO_TYPE == i32
    return signed(x);
#endif
#if TO_TYPE == u32
    return unsigned(x);
#endif
#if TO_TYPE == i8
    return packed(bitcast<vec4<u32>>(clamp(signed(x), vec4<i32>(-128), vec4<i32>(127))));
#endif
#if TO_TYPE == u8
    return packed(min(unsigned(x), vec4<u32>(255u)));
#endif
#if TO_TYPE == bool
    var bits = bitcast<vec4<u32>>(x);
#if FROM_TYPE == f32, f16, bf16
    // Both zeros are zero; a comparison of floats may take subnormal numbers for it, too.
    bits = bits & vec4<u32>(0x7fffffffu);
#endif
    return packed(min(bits, vec4<u32>(1u)));
#endif
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i < p.n {
        out[i] = stored(load_${FROM_TYPE}(x[i]));
    }
}
