// out[i] = x[i] as another type: f32, or f16 two in a word. An invocation converts four.
#trusted i is below `n`, and buffers are whole vectors long
#input x: array<From>
#output out: array<To>
#param n: u32
#constant FROM_HALF = 0, 1
#constant TO_HALF = 0, 1
#include common
#include halves

#if FROM_HALF
alias From = vec2<u32>;
#else
alias From = vec4<f32>;
#endif
#if TO_HALF
alias To = vec2<u32>;
#else
alias To = vec4<f32>;
#endif

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
#if FROM_HALF
    let four = widened(x[i]);
#else
    let four = x[i];
#endif
#if TO_HALF
    out[i] = narrowed(four);
#else
    out[i] = four;
#endif
}
