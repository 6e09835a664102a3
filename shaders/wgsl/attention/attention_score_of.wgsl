// The score of one query for one key.
#include attention_seen

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

// The number that a mask adds to a score.
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
