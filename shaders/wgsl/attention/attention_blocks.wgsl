// The statements of `attention`, and with MORE those of `attention_more`.
#include common
#include gemm
#include weight
#if MORE
#include attention_scores_of
#endif

// Vectors of a value in workgroup memory, and values there at a time.
const VECTORS_OF_VALUE: u32 = ${CHUNK}u / 4u;
const VALUES: u32 = 512u / VECTORS_OF_VALUE;

#if VECTORS
alias Item = vec4<f32>;

fn query(at: u32, count: u32) -> vec4<f32> {
    if count == 0u {
        return vec4<f32>();
    }
    return q[at / 4u];
}

fn key(at: u32, count: u32) -> vec4<f32> {
    if count == 0u {
        return vec4<f32>();
    }
    return k[at / 4u];
}

fn value(at: u32, count: u32) -> vec4<f32> {
    if count == 0u {
        return vec4<f32>();
    }
    return v[at / 4u];
}
#else
alias Item = f32;

fn query(at: u32, count: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if count > 0u { x.x = q[at]; }
    if count > 1u { x.y = q[at + 1u]; }
    if count > 2u { x.z = q[at + 2u]; }
    if count > 3u { x.w = q[at + 3u]; }
    return x;
}

fn key(at: u32, count: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if count > 0u { x.x = k[at]; }
    if count > 1u { x.y = k[at + 1u]; }
    if count > 2u { x.z = k[at + 2u]; }
    if count > 3u { x.w = k[at + 3u]; }
    return x;
}

fn value(at: u32, count: u32) -> vec4<f32> {
    var x = vec4<f32>();
    if count > 0u { x.x = v[at]; }
    if count > 1u { x.y = v[at + 1u]; }
    if count > 2u { x.z = v[at + 2u]; }
    if count > 3u { x.w = v[at + 3u]; }
    return x;
}
#endif

// x - y, not below 0.
fn less(x: u32, y: u32) -> u32 {
    return x - min(x, y);
}

struct Values {
    first: vec4<f32>,
    second: vec4<f32>,
}

// The two vectors of the values from `from_key` on that an invocation loads; only those before `end` exist.
fn load_values(base: u32, from_key: u32, end: u32, column: u32, local: u32) -> Values {
    let row = from_key + local / VECTORS_OF_VALUE;
    let next = row + VALUES / 2u;
    let count = less(p.dv, column);
    let at = base + row * p.dv + column;
    return Values(
        value(at, select(0u, count, row < end)),
        value(at + (VALUES / 2u) * p.dv, select(0u, count, next < end)),
    );
}

#if MORE
#else
// The number of keys that the queries of these rows see.
fn visible(row: vec4<u32>) -> vec4<u32> {
    return select(vec4<u32>(p.t), vec4<u32>(p.t - p.s + 1u) + row % p.s, vec4<bool>(p.causal != 0u));
}
#endif

fn put(row: u32, column: u32, base: u32, sum: vec4<f32>) {
    if row < p.rows && column < p.dv {
        let at = base + row * p.dv + column;
        out[at] = sum.x;
        if column + 1u < p.dv { out[at + 1u] = sum.y; }
        if column + 2u < p.dv { out[at + 2u] = sum.z; }
        if column + 3u < p.dv { out[at + 3u] = sum.w; }
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
    // Blocks of causal queries see the more keys the later they are: the long ones begin first.
    let chunk = number % p.chunks;
    let above = number / p.chunks;
    let row0 = (p.blocks - 1u - above % p.blocks) * 64u;
    let part = above / p.blocks;
    let split = part % p.splits;
    let unit = part / p.splits;
    let q_base = unit * p.rows * p.d;
    let k_base = (unit / p.sharing) * p.t * p.d;
    let v_base = (unit / p.sharing) * p.t * p.dv;

    // The bounds of the keys that the queries of the block see; where it holds queries of two heads, those of all
    // queries of a head.
    let row1 = min(row0 + 63u, p.rows - 1u);
    let one_head = row0 / p.s == row1 / p.s;
#if MORE
    let head = p.first_head + unit * (p.rows / p.s);
    let bounds = bounds_of(head, select(0u, row0 % p.s, one_head), select(p.s - 1u, row1 % p.s, one_head));
    let first = max(split * p.slice, bounds.first / 64u * 64u);
    let end = min(split * p.slice + p.slice, bounds.end);
#else
    let most = select(p.t, visible(vec4<u32>(row1)).x, one_head);
    let least = select(visible(vec4<u32>(0u)).x, visible(vec4<u32>(row0)).x, one_head);
    let first = split * p.slice;
    let end = min(first + p.slice, most);
#endif

    let here = position(local);
    let rows = vec4<u32>(row0 + 4u * here.y) + vec4<u32>(0u, 1u, 2u, 3u);
#if MORE
    let queries = queries_of(head, rows);
    // The number of keys of this invocation that the queries see.
    var seen_keys = vec4<f32>();
#else
    let sees = visible(rows);
#endif

    // The data that this invocation loads: a block of four by four of the queries or of the keys, and two vectors of the values.
    let keys = local >= 128u;
    let quarter = (local % 128u) / ALONG;
    let along = 4u * (local % ALONG);
    let q_rows = min(vec4<u32>(row0 + 4u * quarter) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.rows - 1u));
    let q_at = vec4<u32>(q_base + along) + q_rows * p.d;
    let column = chunk * ${CHUNK}u + 4u * (local % VECTORS_OF_VALUE);

    var greatest = vec4<f32>(LOWEST);
    // Of the keys of this invocation alone, until the end.
    var weights = vec4<f32>();
    var o0 = vec4<f32>();
    var o1 = vec4<f32>();
    var o2 = vec4<f32>();
    var o3 = vec4<f32>();
#if CHUNK == 128
    var o4 = vec4<f32>();
    var o5 = vec4<f32>();
    var o6 = vec4<f32>();
    var o7 = vec4<f32>();
#endif
    for (var from_key = first; from_key < end; from_key += 64u) {
        // Keys past the end are the last one, read again: their scores are not used.
        let k_rows = min(vec4<u32>(from_key + 4u * quarter) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.t - 1u));
        var at = select(q_at, vec4<u32>(k_base + along) + k_rows * p.d, keys);
        var count = less(p.d, along);
#include gemm_block
#include attention_load
        var s0 = vec4<f32>();
        var s1 = vec4<f32>();
        var s2 = vec4<f32>();
        var s3 = vec4<f32>();
        var element = 0u;
        loop {
            workgroupBarrier();
            store_along(select(0u, 512u, keys), quarter, along, v0, v1, v2, v3);
            workgroupBarrier();
            element += DEPTH;
            if element < p.d {
                at += vec4<u32>(DEPTH);
                count = less(p.d, element + along);
#include attention_load
            }
            for (var i = 0u; i < DEPTH; i += 4u) {
                var ia = i * QUARTERS + place(here.y, i);
                var ib = 512u + i * QUARTERS + place(here.x, i);
#include attention_score
#include attention_score
#include attention_score
#include attention_score
            }
            if element >= p.d {
                break;
            }
        }
        var values = load_values(v_base, from_key, end, column, local);

        s0 *= p.scale;
        s1 *= p.scale;
        s2 *= p.scale;
        s3 *= p.scale;
        let my_key = from_key + 4u * here.x;
#if MORE
        let masked = p.mask_kind != 0u || from_key < bounds.all_from || from_key + 64u > bounds.all_end;
        s0 = scores_of(capped(s0), queries, my_key);
        s1 = scores_of(capped(s1), queries, my_key + 1u);
        s2 = scores_of(capped(s2), queries, my_key + 2u);
        s3 = scores_of(capped(s3), queries, my_key + 3u);
        let h0 = hidden(s0);
        let h1 = hidden(s1);
        let h2 = hidden(s2);
        let h3 = hidden(s3);
        let one = vec4<f32>(1.0);
        seen_keys += (select(one, vec4<f32>(), h0) + select(one, vec4<f32>(), h1)) + (select(one, vec4<f32>(), h2) + select(one, vec4<f32>(), h3));
        s0 = select(s0, vec4<f32>(LOWEST), h0);
        s1 = select(s1, vec4<f32>(LOWEST), h1);
        s2 = select(s2, vec4<f32>(LOWEST), h2);
        s3 = select(s3, vec4<f32>(LOWEST), h3);
#else
        let masked = from_key + 64u > min(least, end);
        if masked {
            let limit = min(sees, vec4<u32>(end));
            s0 = select(vec4<f32>(LOWEST), s0, vec4<u32>(my_key) < limit);
            s1 = select(vec4<f32>(LOWEST), s1, vec4<u32>(my_key + 1u) < limit);
            s2 = select(vec4<f32>(LOWEST), s2, vec4<u32>(my_key + 2u) < limit);
            s3 = select(vec4<f32>(LOWEST), s3, vec4<u32>(my_key + 3u) < limit);
        }
#endif
        workgroupBarrier();
        tile[512u + here.x * 16u + here.y] = max(max(s0, s1), max(s2, s3));
        workgroupBarrier();
        var now = greatest;
        for (var i = 0u; i < 16u; i++) {
            now = max(now, tile[512u + i * 16u + here.y]);
        }
        let fading = weight(greatest - now);
        greatest = now;
        s0 = weight(s0 - now);
        s1 = weight(s1 - now);
        s2 = weight(s2 - now);
        s3 = weight(s3 - now);
#if MORE
        s0 = select(s0, vec4<f32>(), h0);
        s1 = select(s1, vec4<f32>(), h1);
        s2 = select(s2, vec4<f32>(), h2);
        s3 = select(s3, vec4<f32>(), h3);
#else
        if masked {
            let limit = min(sees, vec4<u32>(end));
            s0 = select(vec4<f32>(), s0, vec4<u32>(my_key) < limit);
            s1 = select(vec4<f32>(), s1, vec4<u32>(my_key + 1u) < limit);
            s2 = select(vec4<f32>(), s2, vec4<u32>(my_key + 2u) < limit);
            s3 = select(vec4<f32>(), s3, vec4<u32>(my_key + 3u) < limit);
        }
#endif
        weights = fma(weights, fading, (s0 + s1) + (s2 + s3));
#if MORE
        if masked {
            // The sign marks keys that a query does not see.
            s0 = select(s0, vec4<f32>(-1.0), h0);
            s1 = select(s1, vec4<f32>(-1.0), h1);
            s2 = select(s2, vec4<f32>(-1.0), h2);
            s3 = select(s3, vec4<f32>(-1.0), h3);
        }
#endif

        // The sums of this block apart from those before it, so that chains stay short.
        var b0 = vec4<f32>();
        var b1 = vec4<f32>();
        var b2 = vec4<f32>();
        var b3 = vec4<f32>();
#if CHUNK == 128
        var b4 = vec4<f32>();
        var b5 = vec4<f32>();
        var b6 = vec4<f32>();
        var b7 = vec4<f32>();
#endif
        for (var done = 0u; done < 64u; done += VALUES) {
            if from_key + done >= end {
                break;
            }
            workgroupBarrier();
            if done % 32u == 0u && done / 32u == here.x / 8u {
                let in_half = 4u * (here.x % 8u);
                let to = in_half * QUARTERS + place(here.y, in_half);
                tile[to] = s0;
                tile[to + QUARTERS] = s1;
                tile[to + 2u * QUARTERS] = s2;
                tile[to + 3u * QUARTERS] = s3;
            }
            tile[512u + local] = values.first;
            tile[768u + local] = values.second;
            workgroupBarrier();
            if done + VALUES < 64u {
                values = load_values(v_base, from_key + done + VALUES, end, column, local);
            }
            if masked {
                // Keys that a query does not see are left out of its sums: zero times infinity would be NaN.
                for (var i = 0u; i < VALUES; i++) {
                    let in_half = done % 32u + i;
                    let x = tile[in_half * QUARTERS + place(here.y, in_half)];
                    let y = tile[512u + i * VECTORS_OF_VALUE + here.x];
#if MORE
                    let seen = vec4<bool>(!(x.x < 0.0), !(x.y < 0.0), !(x.z < 0.0), !(x.w < 0.0));
#else
                    let seen = vec4<u32>(from_key + done + i) < sees;
#endif
                    b0 = select(b0, fma(vec4<f32>(x.x), y, b0), seen.x);
                    b1 = select(b1, fma(vec4<f32>(x.y), y, b1), seen.y);
                    b2 = select(b2, fma(vec4<f32>(x.z), y, b2), seen.z);
                    b3 = select(b3, fma(vec4<f32>(x.w), y, b3), seen.w);
#if CHUNK == 128
                    let u = tile[528u + i * VECTORS_OF_VALUE + here.x];
                    b4 = select(b4, fma(vec4<f32>(x.x), u, b4), seen.x);
                    b5 = select(b5, fma(vec4<f32>(x.y), u, b5), seen.y);
                    b6 = select(b6, fma(vec4<f32>(x.z), u, b6), seen.z);
                    b7 = select(b7, fma(vec4<f32>(x.w), u, b7), seen.w);
#endif
                }
            } else {
                for (var i = 0u; i < VALUES; i += 4u) {
                    let in_half = done % 32u + i;
                    var ip = in_half * QUARTERS + place(here.y, in_half);
                    var iv = 512u + i * VECTORS_OF_VALUE + here.x;
#include attention_step
#include attention_step
#include attention_step
#include attention_step
                }
            }
        }
        o0 = fma(o0, vec4<f32>(fading.x), b0);
        o1 = fma(o1, vec4<f32>(fading.y), b1);
        o2 = fma(o2, vec4<f32>(fading.z), b2);
        o3 = fma(o3, vec4<f32>(fading.w), b3);
#if CHUNK == 128
        o4 = fma(o4, vec4<f32>(fading.x), b4);
        o5 = fma(o5, vec4<f32>(fading.y), b5);
        o6 = fma(o6, vec4<f32>(fading.z), b6);
        o7 = fma(o7, vec4<f32>(fading.w), b7);
#endif
    }

    workgroupBarrier();
    tile[here.x * 16u + here.y] = weights;
    workgroupBarrier();
    var total = vec4<f32>();
    for (var i = 0u; i < 16u; i++) {
        total += tile[i * 16u + here.y];
    }
#if MORE
    workgroupBarrier();
    tile[here.x * 16u + here.y] = seen_keys;
    workgroupBarrier();
    var seen = vec4<f32>();
    for (var i = 0u; i < 16u; i++) {
        seen += tile[i * 16u + here.y];
    }
    total = select(total, vec4<f32>(-1.0), seen == vec4<f32>());
#endif
    let base = unit * p.rows * p.dv + split * p.out_split;
#if MORE
    let parts = true;
#else
    let parts = p.splits > 1u;
#endif
    if parts {
        if here.x == 0u && chunk == 0u {
            let at = p.statistics + 2u * (split * (p.out_split / p.dv) + unit * p.rows + rows.x);
            if rows.x < p.rows { out[at] = greatest.x; out[at + 1u] = total.x; }
            if rows.y < p.rows { out[at + 2u] = greatest.y; out[at + 3u] = total.y; }
            if rows.z < p.rows { out[at + 4u] = greatest.z; out[at + 5u] = total.z; }
            if rows.w < p.rows { out[at + 6u] = greatest.w; out[at + 7u] = total.w; }
        }
    } else if p.t > 0u {
        o0 = mean_of(o0, total.x);
        o1 = mean_of(o1, total.y);
        o2 = mean_of(o2, total.z);
        o3 = mean_of(o3, total.w);
#if CHUNK == 128
        o4 = mean_of(o4, total.x);
        o5 = mean_of(o5, total.y);
        o6 = mean_of(o6, total.z);
        o7 = mean_of(o7, total.w);
#endif
    }
    let to = chunk * ${CHUNK}u + 4u * here.x;
    put(rows.x, to, base, o0);
    put(rows.y, to, base, o1);
    put(rows.z, to, base, o2);
    put(rows.w, to, base, o3);
#if CHUNK == 128
    put(rows.x, to + 64u, base, o4);
    put(rows.y, to + 64u, base, o5);
    put(rows.z, to + 64u, base, o6);
    put(rows.w, to + 64u, base, o7);
#endif
}
