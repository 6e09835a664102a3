// The scores of four queries for one key. A single query has no branch of its own: the compilers of software drivers
// take minutes for sixteen copies of one.
#include attention_seen

struct Queries {
    first: vec4<u32>,
    end: vec4<u32>,
    position: vec4<u32>,
    // Their entries of the mask for the first key.
    mask: vec4<u32>,
    slope: vec4<f32>,
}

// Queries by their rows, which are those of the heads from one on. Rows past the last are the last one.
fn queries_of(head: u32, rows: vec4<u32>) -> Queries {
    let row = min(rows, vec4<u32>(p.rows - 1u));
    let of_head = vec4<u32>(head) + row / p.s;
    let i = row % p.s;
    let sequence = of_head / p.heads;
    let in_sequence = of_head % p.heads;
    let at = 3u * (sequence * p.s + i);
    let slope = vec4<u32>(p.slopes) + in_sequence;
    return Queries(
        vec4<u32>(sights[at.x], sights[at.y], sights[at.z], sights[at.w]),
        vec4<u32>(sights[at.x + 1u], sights[at.y + 1u], sights[at.z + 1u], sights[at.w + 1u]),
        vec4<u32>(sights[at.x + 2u], sights[at.y + 2u], sights[at.z + 2u], sights[at.w + 2u]),
        sequence * p.mask_sequence + in_sequence * p.mask_head + i * p.mask_query,
        bitcast<vec4<f32>>(vec4<u32>(sights[slope.x], sights[slope.y], sights[slope.z], sights[slope.w])),
    );
}

// The numbers that a mask adds to scores.
fn entries_of_mask(at: vec4<u32>) -> vec4<u32> {
    if p.mask_kind == MASK_NONE {
        return vec4<u32>();
    }
    // Words of four booleans, or numbers.
    let added = p.mask_kind == MASK_ADDED;
    let word = select(at / 4u, at, vec4<bool>(added));
    let entries = vec4<u32>(mask[word.x], mask[word.y], mask[word.z], mask[word.w]);
    let truths = (entries >> (8u * (at % 4u))) & vec4<u32>(0xffu);
    return select(select(vec4<u32>(HIDING), vec4<u32>(), truths != vec4<u32>()), entries, vec4<bool>(added));
}

// The scores of queries for a key from the scaled, capped products of both.
fn scores_of(products: vec4<f32>, queries: Queries, key: u32) -> vec4<f32> {
    // Keys past the end are not seen, and have no entry.
    let entries = entries_of_mask(queries.mask + vec4<u32>(min(key, p.t - 1u) * p.mask_key));
    let away = vec4<f32>(bitcast<vec4<i32>>(vec4<u32>(key) - queries.position));
    let scores = products + queries.slope * away + bitcast<vec4<f32>>(entries);
    let taken = bitcast<vec4<u32>>(scores) == vec4<u32>(HIDDEN);
    let at = vec4<u32>(key);
    let seen = (at >= queries.first) & (at < queries.end) & (entries != vec4<u32>(HIDING));
    return select(bitcast<vec4<f32>>(vec4<u32>(HIDDEN)), select(scores, bitcast<vec4<f32>>(vec4<u32>(HIDDEN - 1u)), taken), seen);
}

fn hidden(scores: vec4<f32>) -> vec4<bool> {
    return bitcast<vec4<u32>>(scores) == vec4<u32>(HIDDEN);
}
