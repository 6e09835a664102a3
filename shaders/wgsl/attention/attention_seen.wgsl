// The keys that queries see and the addends of their scores, from the output of `attention_sights`.

// The score of a key that is not seen. It is the greatest number, which no other score is.
const HIDDEN: u32 = 0x7f7fffffu;

// The bits of -infinity: an entry of a mask that hides a key.
const HIDING: u32 = 0xff800000u;

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

const MASK_NONE: u32 = 0u;
const MASK_ADDED: u32 = 1u;
