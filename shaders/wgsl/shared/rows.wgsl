// Shared parts of the kernels of operations on rows. A row belongs to a team of TEAM invocations next to one another, which
// holds it in registers, HELD vectors of WIDTH elements each. The functions named `team_` give every member the same; all
// invocations of a workgroup must call them. math.wgsl and precise.wgsl come first.

#if WIDTH == 4
alias F = vec4<f32>;
alias U = vec4<u32>;
alias I = vec4<i32>;
alias B = vec4<bool>;
fn lanes_sum(v: F) -> f32 { return (v.x + v.y) + (v.z + v.w); }
fn lanes_max(v: U) -> u32 { return max(max(v.x, v.y), max(v.z, v.w)); }
#else
alias F = f32;
alias U = u32;
alias I = i32;
alias B = bool;
fn lanes_sum(v: F) -> f32 { return v; }
fn lanes_max(v: U) -> u32 { return v; }
#endif

// Whether there is a vector i where there are `count`. With FULL every place that an invocation holds has one.
fn there(i: u32, count: u32) -> bool {
#if FULL
    return true;
#else
    return i < count;
#endif
}

// The larger the number, the larger the key; that of NaN is the largest, and no key is zero.
fn key_of(x: F) -> U {
    let b = bitcast<U>(x);
    let rising = b ^ ((U(0u) - (b >> U(31u))) | U(0x80000000u));
    return select(rising, U(0xffffffffu), (b & U(0x7fffffffu)) > U(INFINITY_BITS));
}

// The bits of the number with this key.
fn bits_of_key(key: u32) -> u32 {
    return select(select(~key, key ^ 0x80000000u, key >= 0x80000000u), NAN_BITS, key == 0xffffffffu);
}

#if HELD
// The sum of what an invocation holds, in pairs: a chain would lose more where terms are alike.
fn pairwise(values: array<F, ${HELD}>) -> F {
    var terms = values;
    for (var half = ${HELD}u / 2u; half > 0u; half >>= 1u) {
        for (var i = 0u; i < half; i += 1u) {
            terms[i] += terms[i + half];
        }
    }
    return terms[0];
}
#endif

var<workgroup> sums: array<f32, ${WORKGROUP}>;
var<workgroup> keys: array<u32, ${WORKGROUP}>;

fn tree_sum(local: u32, own: f32) -> f32 {
    sums[local] = own;
    workgroupBarrier();
    for (var half = ${TEAM}u / 2u; half > 0u; half >>= 1u) {
        if local % ${TEAM}u < half {
            sums[local] += sums[local + half];
        }
        workgroupBarrier();
    }
    let total = sums[local - local % ${TEAM}u];
    workgroupBarrier();
    return total;
}

fn tree_max(local: u32, own: u32) -> u32 {
    keys[local] = own;
    workgroupBarrier();
    for (var half = ${TEAM}u / 2u; half > 0u; half >>= 1u) {
        if local % ${TEAM}u < half {
            keys[local] = max(keys[local], keys[local + half]);
        }
        workgroupBarrier();
    }
    let greatest = keys[local - local % ${TEAM}u];
    workgroupBarrier();
    return greatest;
}

#if SUBGROUP
// Devices assign invocations to subgroups in any way: only whole subgroups are joined.
var<private> place_in_subgroup: u32;
var<private> subgroup_number: u32;
var<private> subgroups: u32;

fn subgroups_sum(own: f32) -> f32 {
    let part = subgroupAdd(own);
    if place_in_subgroup == 0u {
        sums[subgroup_number] = part;
    }
    workgroupBarrier();
    let most = subgroups - 1u;
    var total = vec4<f32>(0.0);
    for (var i = vec4<u32>(0u, 1u, 2u, 3u); i.x < subgroups; i += 4u) {
        let at = min(i, vec4<u32>(most));
        total += select(vec4<f32>(0.0), vec4<f32>(sums[at.x], sums[at.y], sums[at.z], sums[at.w]), i <= vec4<u32>(most));
    }
    workgroupBarrier();
    return (total.x + total.y) + (total.z + total.w);
}

fn subgroups_max(own: u32) -> u32 {
    let part = subgroupMax(own);
    if place_in_subgroup == 0u {
        keys[subgroup_number] = part;
    }
    workgroupBarrier();
    var greatest = 0u;
    for (var i = 0u; i < subgroups; i += 1u) {
        greatest = max(greatest, keys[i]);
    }
    workgroupBarrier();
    return greatest;
}
#endif

#if TEAM == 1
fn team_sum(local: u32, own: f32) -> f32 { return own; }
fn team_max(local: u32, own: u32) -> u32 { return own; }
#else
#if SUBGROUP
#if TEAM == 256
fn team_sum(local: u32, own: f32) -> f32 { return subgroups_sum(own); }
fn team_max(local: u32, own: u32) -> u32 { return subgroups_max(own); }
#else
fn team_sum(local: u32, own: f32) -> f32 { return tree_sum(local, own); }
fn team_max(local: u32, own: u32) -> u32 { return tree_max(local, own); }
#endif
#else
fn team_sum(local: u32, own: f32) -> f32 { return tree_sum(local, own); }
fn team_max(local: u32, own: u32) -> u32 { return tree_max(local, own); }
#endif
#endif
