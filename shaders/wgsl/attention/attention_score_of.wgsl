// What queries see and what is added to their scores, from what `attention_sights` wrote.

// The score of a key that is not seen. It is the greatest number, which no other score is.
const HIDDEN: u32 = 0x7f7fffffu;

// The bits of -infinity: an entry of a mask that hides a key.
const HIDING: u32 = 0xff800000u;

struct Query {
    first: u32,
    end: u32,
    position: u32,
    // Its entry of the mask for the first key.
    mask: u32,
    slope: f32,
}

// Query i of a head.
fn query_of(head: u32, i: u32) -> Query {
    let sequence = head / p.heads;
    let in_sequence = head % p.heads;
    let at = 3u * (sequence * p.s + i);
    let entry = sequence * p.mask_sequence + in_sequence * p.mask_head + i * p.mask_query;
    return Query(sights[at], sights[at + 1u], sights[at + 2u], entry, bitcast<f32>(sights[p.slopes + in_sequence]));
}

// The keys that some queries see together: from the first that any sees to the last, and those that all see.
struct Bounds {
    first: u32,
    end: u32,
    all_from: u32,
    all_end: u32,
}

// Those of the queries i of a head from one to another.
fn bounds_of(head: u32, first_query: u32, last_query: u32) -> Bounds {
    var bounds = Bounds(0xffffffffu, 0u, 0u, 0xffffffffu);
    for (var i = first_query; i <= last_query; i++) {
        let at = 3u * ((head / p.heads) * p.s + i);
        let first = sights[at];
        let end = sights[at + 1u];
        if first < end {
            bounds.first = min(bounds.first, first);
            bounds.end = max(bounds.end, end);
        }
        bounds.all_from = max(bounds.all_from, first);
        bounds.all_end = min(bounds.all_end, end);
    }
    return bounds;
}

fn capped(x: vec4<f32>) -> vec4<f32> {
    if p.cap == 0.0 {
        return x;
    }
    return p.cap * tanh_of(x / p.cap);
}

// What a mask adds to a score.
fn entry_of_mask(at: u32) -> u32 {
    if p.mask_kind == MASK_NONE {
        return 0u;
    }
    if p.mask_kind == MASK_ADDED {
        return mask[at];
    }
    return select(HIDING, 0u, ((mask[at / 4u] >> (8u * (at % 4u))) & 0xffu) != 0u);
}

// The score of a query for a key from the scaled, capped product of both.
fn score_of(product: f32, query: Query, key: u32) -> f32 {
    if key < query.first || key >= query.end {
        return bitcast<f32>(HIDDEN);
    }
    let entry = entry_of_mask(query.mask + key * p.mask_key);
    if entry == HIDING {
        return bitcast<f32>(HIDDEN);
    }
    let away = f32(bitcast<i32>(key - query.position));
    let score = product + query.slope * away + bitcast<f32>(entry);
    return select(score, bitcast<f32>(HIDDEN - 1u), bitcast<u32>(score) == HIDDEN);
}

fn hidden(scores: vec4<f32>) -> vec4<bool> {
    return bitcast<vec4<u32>>(scores) == vec4<u32>(HIDDEN);
}

const MASK_NONE: u32 = 0u;
const MASK_ADDED: u32 = 1u;
