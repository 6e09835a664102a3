// C = A B for a stack of matrices, in tiles; where `splits` is above 1, the sums over parts of k, one after another.
//
// Loads of rows and columns outside of the matrices are clamped to the edge; their results are not stored. Only k needs
// zeros, and only where its end is not that of a slice (EDGE). Without VECTORS rows of memory are of any length.
#trusted rows and columns are clamped or guarded, k is guarded (EDGE) or ends with a slice; k grows
#input a: array<ItemA>
#input b: array<ItemB>
#output c: array<Item>
#param m: u32
#param n: u32
#param k: u32
#param a_batch: u32
#param b_batch: u32
#param down: u32
#param across: u32
#param splits: u32
#param slice: u32
#param c_split: u32
#param total: u32
#constant TILE = 32, 64, 128
#constant TRANSPOSE_A = 0, 1
#constant TRANSPOSE_B = 0, 1
#constant VECTORS = 0, 1
#constant EDGE = 0, 1
#constant STORED_A = f32, f16, bf16
#constant STORED_B = f32, f16, bf16
#include common
#include storage
#include gemm

#if VECTORS
alias Item = vec4<f32>;
alias ItemA = Four_${STORED_A};
alias ItemB = Four_${STORED_B};
#else
alias Item = f32;
alias ItemA = One_${STORED_A};
alias ItemB = One_${STORED_B};
#endif

// The elements at a place of A and of B: four with VECTORS, else one.
fn at_a(at: u32) -> Item {
#if VECTORS
    return load_${STORED_A}(a[at / 4u]);
#else
    return element_${STORED_A}(a[at / PER_${STORED_A}], at);
#endif
}

fn at_b(at: u32) -> Item {
#if VECTORS
    return load_${STORED_B}(b[at / 4u]);
#else
    return element_${STORED_B}(b[at / PER_${STORED_B}], at);
#endif
}

// Four elements along k; without VECTORS those from `count` on are zeros.
fn along_a(at: u32, count: u32) -> vec4<f32> {
#if VECTORS
#if EDGE
    if count == 0u {
        return vec4<f32>();
    }
#endif
    return at_a(at);
#else
    var v = vec4<f32>();
    if count > 0u { v.x = at_a(at); }
    if count > 1u { v.y = at_a(at + 1u); }
    if count > 2u { v.z = at_a(at + 2u); }
    if count > 3u { v.w = at_a(at + 3u); }
    return v;
#endif
}

fn along_b(at: u32, count: u32) -> vec4<f32> {
#if VECTORS
#if EDGE
    if count == 0u {
        return vec4<f32>();
    }
#endif
    return at_b(at);
#else
    var v = vec4<f32>();
    if count > 0u { v.x = at_b(at); }
    if count > 1u { v.y = at_b(at + 1u); }
    if count > 2u { v.z = at_b(at + 2u); }
    if count > 3u { v.w = at_b(at + 3u); }
    return v;
#endif
}

// Four elements of one k; the last of them is `last` places on or beyond; zeros where no k is left.
fn across_a(at: u32, left: u32, last: u32) -> vec4<f32> {
#if VECTORS
#if EDGE
    if left == 0u {
        return vec4<f32>();
    }
#endif
    return at_a(at);
#else
    if left == 0u {
        return vec4<f32>();
    }
    return vec4<f32>(at_a(at), at_a(at + min(1u, last)), at_a(at + min(2u, last)), at_a(at + min(3u, last)));
#endif
}

fn across_b(at: u32, left: u32, last: u32) -> vec4<f32> {
#if VECTORS
#if EDGE
    if left == 0u {
        return vec4<f32>();
    }
#endif
    return at_b(at);
#else
    if left == 0u {
        return vec4<f32>();
    }
    return vec4<f32>(at_b(at), at_b(at + min(1u, last)), at_b(at + min(2u, last)), at_b(at + min(3u, last)));
#endif
}

// x - y, not below 0.
fn less(x: u32, y: u32) -> u32 {
    return x - min(x, y);
}

// The positions of the vectors of a block: in four rows of `p.k` elements, from the k `first` on.
fn rows_along(base: u32, row: u32, rows: u32, first: u32) -> vec4<u32> {
    let each = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(rows - 1u));
    return vec4<u32>(base + first) + each * p.k;
}

// The same in four rows of `length` elements each of one k.
fn rows_across(base: u32, column: u32, length: u32, first: u32) -> vec4<u32> {
    return vec4<u32>(base + first * length + column) + vec4<u32>(0u, 1u, 2u, 3u) * (AT_ONCE * length);
}

// The first of four columns, all of them inside where columns come in fours.
fn column_inside(column: u32, length: u32) -> u32 {
#if VECTORS
    return min(column, length - 4u);
#else
    return min(column, length - 1u);
#endif
}

fn put(base: u32, row: u32, column: u32, sum: vec4<f32>, again: bool) {
    if row >= p.m || column >= p.n {
        return;
    }
    let at = base + row * p.n + column;
#if VECTORS
    if again {
        c[at / 4u] += sum;
    } else {
        c[at / 4u] = sum;
    }
#else
    put_one(at, sum.x, again);
    if column + 1u < p.n { put_one(at + 1u, sum.y, again); }
    if column + 2u < p.n { put_one(at + 2u, sum.z, again); }
    if column + 3u < p.n { put_one(at + 3u, sum.w, again); }
#endif
}

#if VECTORS
#else
fn put_one(at: u32, sum: f32, again: bool) {
    if again {
        c[at] += sum;
    } else {
        c[at] = sum;
    }
}
#endif

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
    let tiles = p.down * p.across;
    let origin = tile_origin(number % tiles, p.down, p.across);
    let part = number / tiles;
    let split = part % p.splits;
    let batch = part / p.splits;
    let here = position(local);
    let base = split * p.c_split + batch * p.m * p.n;
    let first = split * p.slice;
    let end = min(first + p.slice, p.k);

    let second = local >= 128u;
    let mine = local % 128u;
    let a_base = batch * p.a_batch;
    let b_base = batch * p.b_batch;
    // The quarter and the first k within a slice of the block that this invocation loads.
    let quarter_along = mine / ALONG;
    let k_along = 4u * (mine % ALONG);
    let quarter_across = mine % QUARTERS;
    let k_across = mine / QUARTERS;
    var places: vec4<u32>;
    var step = DEPTH;
    var k_mine = k_along;
    var last = 0u;
    if second {
#if TRANSPOSE_B
        places = rows_along(b_base, origin.x + 4u * quarter_along, p.n, first + k_along);
#else
        let column = column_inside(origin.x + 4u * quarter_across, p.n);
        places = rows_across(b_base, column, p.n, first + k_across);
        step = DEPTH * p.n;
        k_mine = k_across;
        last = p.n - 1u - column;
#endif
    } else {
#if TRANSPOSE_A
        let column = column_inside(origin.y + 4u * quarter_across, p.m);
        places = rows_across(a_base, column, p.m, first + k_across);
        step = DEPTH * p.m;
        k_mine = k_across;
        last = p.m - 1u - column;
#else
        places = rows_along(a_base, origin.y + 4u * quarter_along, p.m, first + k_along);
#endif
    }

    var again = false;
    var at = places.x;
    let apart = places.yzw - vec3<u32>(at);
    var left = end - first;
#include gemm_block
#include matmul_load
    var k = first;
    // At least once: a product over no k at all stores zeros.
    loop {
        let chain_end = min(k + CHAIN, end);
#include gemm_sums
        loop {
            workgroupBarrier();
            if second {
#if TRANSPOSE_B
                store_along(512u, quarter_along, k_along, v0, v1, v2, v3);
#else
                store_across(512u, quarter_across, k_across, v0, v1, v2, v3);
#endif
            } else {
#if TRANSPOSE_A
                store_across(0u, quarter_across, k_across, v0, v1, v2, v3);
#else
                store_along(0u, quarter_along, k_along, v0, v1, v2, v3);
#endif
            }
            workgroupBarrier();
            k += DEPTH;
            if k < end {
                at += step;
                left = end - k;
#include matmul_load
            }
#include gemm_multiply
            if k >= chain_end {
                break;
            }
        }
#include gemm_finish
        if k >= end {
            break;
        }
        again = true;
    }
}
