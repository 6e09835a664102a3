// out[r, j] = sum over k of x[k, r] v[j, k] for few vectors v: products of the columns of a large matrix, at the speed of
// memory. Stacks of matrices too; where `splits` is above 1, the sums over parts of k, one after another.
//
// Of a workgroup, 32 invocations take 128 neighbouring columns, and eight such groups share the k, four at a time.
#trusted columns and vectors are clamped to the last one, results guarded; k grows to `end`
#input x: array<Stored>
#input v: array<Item>
#output out: array<f32>
#param columns: u32
#param k: u32
#param vectors: u32
#param x_batch: u32
#param v_batch: u32
#param out_batch: u32
#param out_column: u32
#param out_vector: u32
#param across: u32
#param splits: u32
#param slice: u32
#param out_split: u32
#param total: u32
#constant COUNT = 1, 4, 8
#constant VECTORS = 0, 1
#constant STORED = f32, f16, bf16
#include common
#include storage

#if COUNT == 8
const AT_ONCE: u32 = 4u;
#else
const AT_ONCE: u32 = ${COUNT}u;
#endif

#if VECTORS
alias Item = vec4<f32>;
alias Stored = Four_${STORED};
#else
alias Item = f32;
alias Stored = One_${STORED};
#endif

// The elements at a place of x: four with VECTORS, else one.
fn at_x(at: u32) -> Item {
#if VECTORS
    return load_${STORED}(x[at / 4u]);
#else
    return element_${STORED}(x[at / PER_${STORED}], at);
#endif
}

// The sums of four columns with each vector.
var<workgroup> sums: array<vec4<f32>, AT_ONCE * ${WORKGROUP}u>;

// Four columns of one k; the last of them is `last` places on or beyond.
fn row_of(at: u32, last: u32) -> vec4<f32> {
#if VECTORS
    return at_x(at);
#else
    return vec4<f32>(at_x(at), at_x(at + min(1u, last)), at_x(at + min(2u, last)), at_x(at + min(3u, last)));
#endif
}

// Four elements of a vector; without VECTORS those from `count` on are zeros.
fn elements(at: u32, count: u32) -> vec4<f32> {
#if VECTORS
    return v[at / 4u];
#else
    var y = vec4<f32>(v[at], 0.0, 0.0, 0.0);
    if count > 1u { y.y = v[at + 1u]; }
    if count > 2u { y.z = v[at + 2u]; }
    if count > 3u { y.w = v[at + 3u]; }
    return y;
#endif
}

fn add(x0: vec4<f32>, x1: vec4<f32>, x2: vec4<f32>, x3: vec4<f32>, y: vec4<f32>, sum: vec4<f32>) -> vec4<f32> {
    return fma(x3, vec4<f32>(y.w), fma(x2, vec4<f32>(y.z), fma(x1, vec4<f32>(y.y), fma(x0, vec4<f32>(y.x), sum))));
}

// Adds the sums of the eight groups and writes the results for the vectors from `first` on, `base` being the place of the
// first vector.
fn finish(first: u32, base: u32, column: u32, local: u32) {
    workgroupBarrier();
    let vector = first + local / 32u;
    if local < AT_ONCE * 32u && vector < p.vectors {
        let at = (local / 32u) * ${WORKGROUP}u + local % 32u;
        let low = (sums[at] + sums[at + 32u]) + (sums[at + 64u] + sums[at + 96u]);
        let high = (sums[at + 128u] + sums[at + 160u]) + (sums[at + 192u] + sums[at + 224u]);
        let sum = low + high;
        let to = base + vector * p.out_vector + column * p.out_column;
        if column < p.columns { out[to] = sum.x; }
        if column + 1u < p.columns { out[to + p.out_column] = sum.y; }
        if column + 2u < p.columns { out[to + 2u * p.out_column] = sum.z; }
        if column + 3u < p.columns { out[to + 3u * p.out_column] = sum.w; }
    }
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
    if number >= p.total {
        return;
    }
    let column = (number % p.across) * 128u + 4u * (local % 32u);
    let part = number / p.across;
    let split = part % p.splits;
    let batch = part / p.splits;
    let end = min((split + 1u) * p.slice, p.k);
    // Columns and vectors past the end are the last one, read again.
#if VECTORS
    let inside = min(column, p.columns - 4u);
#else
    let inside = min(column, p.columns - 1u);
#endif
    let last = p.columns - 1u - inside;
    let x_at = batch * p.x_batch + inside;
    let v_at = batch * p.v_batch;
#if COUNT == 1
#else
    let v1 = v_at + min(1u, p.vectors - 1u) * p.k;
    let v2 = v_at + min(2u, p.vectors - 1u) * p.k;
    let v3 = v_at + min(3u, p.vectors - 1u) * p.k;
#endif
#if COUNT == 8
    let v4 = v_at + min(4u, p.vectors - 1u) * p.k;
    let v5 = v_at + min(5u, p.vectors - 1u) * p.k;
    let v6 = v_at + min(6u, p.vectors - 1u) * p.k;
    let v7 = v_at + min(7u, p.vectors - 1u) * p.k;
#endif
    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
    for (var k = split * p.slice + 4u * (local / 32u); k < end; k += 32u) {
        let at = x_at + k * p.columns;
        let x0 = row_of(at, last);
#if VECTORS
        let count = 4u;
        let x1 = row_of(at + p.columns, last);
        let x2 = row_of(at + 2u * p.columns, last);
        let x3 = row_of(at + 3u * p.columns, last);
#else
        let count = end - k;
        var x1 = vec4<f32>();
        var x2 = vec4<f32>();
        var x3 = vec4<f32>();
        if count > 1u { x1 = row_of(at + p.columns, last); }
        if count > 2u { x2 = row_of(at + 2u * p.columns, last); }
        if count > 3u { x3 = row_of(at + 3u * p.columns, last); }
#endif
        s0 = add(x0, x1, x2, x3, elements(v_at + k, count), s0);
#if COUNT == 1
#else
        s1 = add(x0, x1, x2, x3, elements(v1 + k, count), s1);
        s2 = add(x0, x1, x2, x3, elements(v2 + k, count), s2);
        s3 = add(x0, x1, x2, x3, elements(v3 + k, count), s3);
#endif
#if COUNT == 8
        s4 = add(x0, x1, x2, x3, elements(v4 + k, count), s4);
        s5 = add(x0, x1, x2, x3, elements(v5 + k, count), s5);
        s6 = add(x0, x1, x2, x3, elements(v6 + k, count), s6);
        s7 = add(x0, x1, x2, x3, elements(v7 + k, count), s7);
#endif
    }
    let base = split * p.out_split + batch * p.out_batch;
    sums[local] = s0;
#if COUNT == 1
#else
    sums[local + ${WORKGROUP}u] = s1;
    sums[local + 2u * ${WORKGROUP}u] = s2;
    sums[local + 3u * ${WORKGROUP}u] = s3;
#endif
    finish(0u, base, column, local);
#if COUNT == 8
    workgroupBarrier();
    sums[local] = s4;
    sums[local + ${WORKGROUP}u] = s5;
    sums[local + 2u * ${WORKGROUP}u] = s6;
    sums[local + 3u * ${WORKGROUP}u] = s7;
    finish(4u, base, column, local);
#endif
}
