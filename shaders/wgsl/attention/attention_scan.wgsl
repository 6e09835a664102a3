// The statements of `attention_few`, and with MORE those of `attention_few_more`.
#include common
#include weight
#if MORE
#include attention_score_of
#include attention_stored
#endif

const ROWS: u32 = ${ROWS}u;
const LANES: u32 = ${LANES}u;
const GROUPS: u32 = ${WORKGROUP}u / LANES;
// The most keys of a workgroup.
#if ROWS == 8
const KEYS: u32 = 128u;
#else
const KEYS: u32 = 256u;
#endif

// Scores, then weights: those of a query beside one another.
var<workgroup> scores: array<f32, ROWS * KEYS>;
var<workgroup> words: array<f32, ROWS * ${WORKGROUP}u>;
var<workgroup> sums: array<vec4<f32>, ${WORKGROUP}>;

fn products(x: vec4<f32>, y: vec4<f32>, sum: f32) -> f32 {
    return fma(x.x, y.x, fma(x.y, y.y, fma(x.z, y.z, fma(x.w, y.w, sum))));
}

// Adds up the sums of query `row` and writes them, and its statistics.
fn finish(row: u32, sum: vec4<f32>, greatest: f32, weights: f32, unit: u32, split: u32, local: u32) {
    workgroupBarrier();
    sums[local] = sum;
    workgroupBarrier();
    #if MORE
    let d = p.dv;
    let parts = true;
#else
    let d = p.d;
    let parts = p.splits > 1u;
#endif
    if local < LANES && 4u * local < d {
        var all = sums[local];
        for (var i = 1u; i < GROUPS; i++) {
            all += sums[local + i * LANES];
        }
        if !parts {
            all = mean_of(all, weights);
        } else if local == 0u {
            let at = p.statistics + 2u * (split * (p.out_split / d) + unit * p.rows + row);
            out[at] = greatest;
            out[at + 1u] = weights;
        }
        let to = split * p.out_split + (unit * p.rows + row) * d + 4u * local;
        out[to] = all.x;
        out[to + 1u] = all.y;
        out[to + 2u] = all.z;
        out[to + 3u] = all.w;
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
    let split = number % p.splits;
    let unit = number / p.splits;
    let length = p.d / 4u;
    let first = split * p.slice;
    var count = min(p.slice, p.t - first);
    let q_base = unit * p.rows * length;
    let kv_base = (unit * p.t + first) * length;
#if MORE
    let deep = p.dv / 4u;
    let v_base = (unit * p.t + first) * deep;
    let head = p.first_head + unit * (p.rows / p.s);
    let bounds = bounds_of(head, 0u, p.s - 1u);
    if first >= bounds.end || first + count <= bounds.first {
        if local < p.rows {
            let at = p.statistics + 2u * (split * (p.out_split / p.dv) + unit * p.rows + local);
            out[at] = LOWEST;
            out[at + 1u] = -1.0;
        }
        return;
    }
    // No query sees a key past the end.
    count = min(count, bounds.end - first);
#else
    let deep = length;
    let v_base = kv_base;
#endif

    let last = p.rows - 1u;
    for (var before = 0u; before < count; before += 32u) {
        // Keys past the end are the last one, read again: their scores are not used.
        let k_at = kv_base + min(before + local / 8u, count - 1u) * length;
        var d0 = 0.0;
        var d1 = 0.0;
        var d2 = 0.0;
        var d3 = 0.0;
        var d4 = 0.0;
        var d5 = 0.0;
        var d6 = 0.0;
        var d7 = 0.0;
        for (var i = local % 8u; i < length; i += 8u) {
            #if MORE
            let x = key(k_at + i);
#else
            let x = k[k_at + i];
#endif
            d0 = products(x, q[q_base + i], d0);
#if ROWS == 1
#else
            d1 = products(x, q[q_base + min(1u, last) * length + i], d1);
            d2 = products(x, q[q_base + min(2u, last) * length + i], d2);
            d3 = products(x, q[q_base + min(3u, last) * length + i], d3);
#endif
#if ROWS == 8
            d4 = products(x, q[q_base + min(4u, last) * length + i], d4);
            d5 = products(x, q[q_base + min(5u, last) * length + i], d5);
            d6 = products(x, q[q_base + min(6u, last) * length + i], d6);
            d7 = products(x, q[q_base + min(7u, last) * length + i], d7);
#endif
        }
        workgroupBarrier();
        words[local] = d0;
#if ROWS == 1
#else
        words[local + ${WORKGROUP}u] = d1;
        words[local + 2u * ${WORKGROUP}u] = d2;
        words[local + 3u * ${WORKGROUP}u] = d3;
#endif
#if ROWS == 8
        words[local + 4u * ${WORKGROUP}u] = d4;
        words[local + 5u * ${WORKGROUP}u] = d5;
        words[local + 6u * ${WORKGROUP}u] = d6;
        words[local + 7u * ${WORKGROUP}u] = d7;
#endif
        workgroupBarrier();
        if local < 32u * ROWS {
            let at = (local / 32u) * ${WORKGROUP}u + 8u * (local % 32u);
            let low = (words[at] + words[at + 1u]) + (words[at + 2u] + words[at + 3u]);
            let high = (words[at + 4u] + words[at + 5u]) + (words[at + 6u] + words[at + 7u]);
#if MORE
            let of_row = min(local / 32u, last);
            let query = query_of(head + of_row / p.s, of_row % p.s);
            let product = capped(vec4<f32>((low + high) * p.scale)).x;
            scores[(local / 32u) * KEYS + before + local % 32u] = score_of(product, query, first + before + local % 32u);
#else
            scores[(local / 32u) * KEYS + before + local % 32u] = (low + high) * p.scale;
#endif
        }
    }
    workgroupBarrier();

    // 32 invocations for each query find the greatest score, and make weights of the scores.
    let row = local / 32u;
    let lane = local % 32u;
    if row < ROWS {
        var mine = LOWEST;
        for (var i = lane; i < count; i += 32u) {
#if MORE
            if bitcast<u32>(scores[row * KEYS + i]) == HIDDEN {
                continue;
            }
#endif
            mine = max(mine, scores[row * KEYS + i]);
        }
        words[row * ${WORKGROUP}u + lane] = mine;
    }
    workgroupBarrier();
    if row < ROWS {
        var greatest = LOWEST;
        for (var i = 0u; i < 32u; i++) {
            greatest = max(greatest, words[row * ${WORKGROUP}u + i]);
        }
        var sum = 0.0;
#if MORE
        var seen = 0.0;
#endif
        for (var i = lane; i < count; i += 32u) {
#if MORE
            if bitcast<u32>(scores[row * KEYS + i]) == HIDDEN {
                // The sign marks keys that a query does not see.
                scores[row * KEYS + i] = -1.0;
                continue;
            }
            seen = 1.0;
#endif
            let w = weight(vec4<f32>(scores[row * KEYS + i] - greatest)).x;
            scores[row * KEYS + i] = w;
            sum += w;
        }
        words[row * ${WORKGROUP}u + 64u + lane] = sum;
#if MORE
        words[row * ${WORKGROUP}u + 96u + lane] = seen;
#endif
        if lane == 0u {
            words[row * ${WORKGROUP}u + 32u] = greatest;
        }
    }
    workgroupBarrier();
    if row < ROWS && lane == 0u {
        var sum = 0.0;
        for (var i = 0u; i < 32u; i++) {
            sum += words[row * ${WORKGROUP}u + 64u + i];
        }
#if MORE
        var seen = 0.0;
        for (var i = 0u; i < 32u; i++) {
            seen += words[row * ${WORKGROUP}u + 96u + i];
        }
        sum = select(sum, -1.0, seen == 0.0);
#endif
        words[row * ${WORKGROUP}u + 33u] = sum;
    }
    workgroupBarrier();

    var s0 = vec4<f32>();
    var s1 = vec4<f32>();
    var s2 = vec4<f32>();
    var s3 = vec4<f32>();
    var s4 = vec4<f32>();
    var s5 = vec4<f32>();
    var s6 = vec4<f32>();
    var s7 = vec4<f32>();
    let element = local % LANES;
    if element < deep {
        for (var i = local / LANES; i < count; i += GROUPS) {
            #if MORE
            let y = value(v_base + i * deep + element);
#else
            let y = v[v_base + i * deep + element];
#endif
            #if MORE
            s0 = added(s0, scores[i], y);
#else
            s0 = fma(vec4<f32>(scores[i]), y, s0);
#endif
#if ROWS == 1
#else
            #if MORE
            s1 = added(s1, scores[i + KEYS], y);
#else
            s1 = fma(vec4<f32>(scores[i + KEYS]), y, s1);
#endif
            #if MORE
            s2 = added(s2, scores[i + 2u * KEYS], y);
#else
            s2 = fma(vec4<f32>(scores[i + 2u * KEYS]), y, s2);
#endif
            #if MORE
            s3 = added(s3, scores[i + 3u * KEYS], y);
#else
            s3 = fma(vec4<f32>(scores[i + 3u * KEYS]), y, s3);
#endif
#endif
#if ROWS == 8
            #if MORE
            s4 = added(s4, scores[i + 4u * KEYS], y);
#else
            s4 = fma(vec4<f32>(scores[i + 4u * KEYS]), y, s4);
#endif
            #if MORE
            s5 = added(s5, scores[i + 5u * KEYS], y);
#else
            s5 = fma(vec4<f32>(scores[i + 5u * KEYS]), y, s5);
#endif
            #if MORE
            s6 = added(s6, scores[i + 6u * KEYS], y);
#else
            s6 = fma(vec4<f32>(scores[i + 6u * KEYS]), y, s6);
#endif
            #if MORE
            s7 = added(s7, scores[i + 7u * KEYS], y);
#else
            s7 = fma(vec4<f32>(scores[i + 7u * KEYS]), y, s7);
#endif
#endif
        }
    }
    // Compilers do not unroll this loop: less code takes less time, because multiprocessors fetch it first.
    for (var r = 0u; r < p.rows; r++) {
        var sum = s0;
#if ROWS == 1
#else
        sum = select(sum, s1, r == 1u);
        sum = select(sum, s2, r == 2u);
        sum = select(sum, s3, r == 3u);
#endif
#if ROWS == 8
        sum = select(sum, s4, r == 4u);
        sum = select(sum, s5, r == 5u);
        sum = select(sum, s6, r == 6u);
        sum = select(sum, s7, r == 7u);
#endif
        finish(r, sum, words[r * ${WORKGROUP}u + 32u], words[r * ${WORKGROUP}u + 33u], unit, split, local);
    }
}
