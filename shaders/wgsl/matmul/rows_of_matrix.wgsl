// The products of the rows of a matrix x with COUNT vectors v, at the speed of memory. A source that includes this has
// buffers x, v and out, parameters k, out_row, across and total, constants COUNT, LANES, VECTORS and STORED, and
// defines for each batch `is_here`, `matrix_rows`, `vector_at`, `result_at` and `is_written`.
//
// LANES neighbouring invocations share four rows of x and all vectors; each sums every LANES-th vector of four elements.
// Their sums are added through workgroup memory, first to eight for each result, then to one; where a whole workgroup shares
// rows and the device has subgroups, first within those.

const LANES: u32 = ${LANES}u;
const SLOTS: u32 = ${WORKGROUP}u / LANES;
#if COUNT == 8
const AT_ONCE: u32 = 4u;
#else
const AT_ONCE: u32 = ${COUNT}u;
#endif

#if VECTORS
alias Item = vec4<f32>;
alias Stored = Four_${STORED};
const UNIT: u32 = 4u;
#else
alias Item = f32;
alias Stored = One_${STORED};
const UNIT: u32 = 1u;
#endif

fn at_x(i: u32) -> Item {
#if VECTORS
    return load_${STORED}(x[i]);
#else
    return element_${STORED}(x[i / PER_${STORED}], i);
#endif
}

// The sums of four rows with each vector.
var<workgroup> sums: array<vec4<f32>, AT_ONCE * ${WORKGROUP}u>;

#if VECTORS
fn products(x: Item, v: Item, sum: f32) -> f32 {
    return fma(x.x, v.x, fma(x.y, v.y, fma(x.z, v.z, fma(x.w, v.w, sum))));
}
#else
fn products(x: Item, v: Item, sum: f32) -> f32 {
    return fma(x, v, sum);
}
#endif

fn add(x0: Item, x1: Item, x2: Item, x3: Item, v: Item, sum: vec4<f32>) -> vec4<f32> {
    return vec4<f32>(products(x0, v, sum.x), products(x1, v, sum.y), products(x2, v, sum.z), products(x3, v, sum.w));
}

#if LANES == 256
#if SUBGROUP
// Devices assign invocations to subgroups in any way: only whole workgroups are added like this.
var<private> place_in_subgroup: u32;
var<private> subgroup_number: u32;
var<private> subgroups: u32;
#endif
#endif

// Stores the sum of an invocation for vector `number` of those that are finished together.
fn keep(number: u32, sum: vec4<f32>, local: u32) {
#if LANES == 256
#if SUBGROUP
    let joined = subgroupAdd(sum);
    if place_in_subgroup == 0u {
        sums[number * ${WORKGROUP}u + subgroup_number] = joined;
    }
#else
    sums[number * ${WORKGROUP}u + local] = sum;
#endif
#else
    sums[number * ${WORKGROUP}u + local] = sum;
#endif
}

// The sum for result `number` of a workgroup, of those that were kept.
fn kept(number: u32) -> vec4<f32> {
    let at = number * LANES;
#if LANES == 256
#if SUBGROUP
    var sum = sums[at];
    for (var i = 1u; i < subgroups; i++) {
        sum += sums[at + i];
    }
    return sum;
#else
    return eight(at);
#endif
#else
    return eight(at);
#endif
}

fn eight(at: u32) -> vec4<f32> {
    let low = (sums[at] + sums[at + 1u]) + (sums[at + 2u] + sums[at + 3u]);
    return low + ((sums[at + 4u] + sums[at + 5u]) + (sums[at + 6u] + sums[at + 7u]));
}

// Folds the sums in workgroup memory to eight for each result. All invocations must call it.
fn fold_to_eight(local: u32) {
    let each = local / 8u;
    if each < AT_ONCE * SLOTS {
        let begin = each * LANES + local % 8u;
        var sum = sums[begin];
        for (var i = 8u; i < LANES; i += 8u) {
            sum += sums[begin + i];
        }
        sums[begin] = sum;
    }
    workgroupBarrier();
}

// Adds the sums of the invocations of a slot and writes the results for the vectors from `first` on.
fn finish(first: u32, batch: u32, row: u32, local: u32) {
    workgroupBarrier();
#if LANES == 256
#if SUBGROUP
#else
    fold_to_eight(local);
#endif
#else
#if LANES == 8
#else
    fold_to_eight(local);
#endif
#endif
    if local < AT_ONCE * SLOTS {
        let sum = kept(local);
        let vector = first + local / SLOTS;
        let r = row + 4u * (local % SLOTS);
        let to = result_at(batch, vector) + r * p.out_row;
        if is_written(batch, vector, r) { out[to] = sum.x; }
        if is_written(batch, vector, r + 1u) { out[to + p.out_row] = sum.y; }
        if is_written(batch, vector, r + 2u) { out[to + 2u * p.out_row] = sum.z; }
        if is_written(batch, vector, r + 3u) { out[to + 3u * p.out_row] = sum.w; }
    }
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#if LANES == 256
#if SUBGROUP
    @builtin(subgroup_invocation_id) subgroup_place: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroup_count: u32,
#endif
#endif
) {
#if LANES == 256
#if SUBGROUP
    place_in_subgroup = subgroup_place;
    subgroup_number = subgroup;
    subgroups = subgroup_count;
#endif
#endif
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
    let batch = number / p.across;
    if !is_here(batch) {
        return;
    }
    let row = (number % p.across) * (4u * SLOTS);
    let lane = local % LANES;
    let length = p.k / UNIT;
    let x_at = matrix_rows(batch, row + 4u * (local / LANES), length);
    let v_at = vector_at(batch, 0u, length);
#if COUNT == 1
#else
    let v1 = vector_at(batch, 1u, length);
    let v2 = vector_at(batch, 2u, length);
    let v3 = vector_at(batch, 3u, length);
#endif
#if COUNT == 8
    let v4 = vector_at(batch, 4u, length);
    let v5 = vector_at(batch, 5u, length);
    let v6 = vector_at(batch, 6u, length);
    let v7 = vector_at(batch, 7u, length);
#endif
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
    for (var i = lane; i < length; i += LANES) {
        let x0 = at_x(x_at.x + i);
        let x1 = at_x(x_at.y + i);
        let x2 = at_x(x_at.z + i);
        let x3 = at_x(x_at.w + i);
        s0 = add(x0, x1, x2, x3, v[v_at + i], s0);
#if COUNT == 1
#else
        s1 = add(x0, x1, x2, x3, v[v1 + i], s1);
        s2 = add(x0, x1, x2, x3, v[v2 + i], s2);
        s3 = add(x0, x1, x2, x3, v[v3 + i], s3);
#endif
#if COUNT == 8
        s4 = add(x0, x1, x2, x3, v[v4 + i], s4);
        s5 = add(x0, x1, x2, x3, v[v5 + i], s5);
        s6 = add(x0, x1, x2, x3, v[v6 + i], s6);
        s7 = add(x0, x1, x2, x3, v[v7 + i], s7);
#endif
    }
    keep(0u, s0, local);
#if COUNT == 1
#else
    keep(1u, s1, local);
    keep(2u, s2, local);
    keep(3u, s3, local);
#endif
    finish(0u, batch, row, local);
#if COUNT == 8
    workgroupBarrier();
    keep(0u, s4, local);
    keep(1u, s5, local);
    keep(2u, s6, local);
    keep(3u, s7, local);
    finish(4u, batch, row, local);
#endif
}
