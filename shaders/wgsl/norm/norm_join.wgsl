// Joins the statistics of the parts of long rows: center, the difference of the mean from it, the inverse of the
// deviation, the greatest magnitude.
#trusted rows are guarded, i is below the number of parts; no part has a lower level than its row
#input parts: array<vec4<f32>>
#output out: array<vec4<f32>>
#param parts_of_row: u32
#param rows: u32
#param n: u32
#param length: u32
#param eps: f32
#param large_eps: f32
#param small_eps: f32
#param small_back: f32
#constant WIDTH = 1
#constant TEAM = 256
#constant LAYER = 0, 1
#include common
#include math
#include precise
#include rows
#include norm_scale

// The number of factors of 2^90 that a part or a row of this magnitude is scaled by, plus one.
fn level(magnitude: u32) -> u32 {
    return select(select(1u, 0u, magnitude >= 0x58800000u), 2u, magnitude < 0x2b800000u);
}

// A part, scaled as the row is: each step between their levels is a factor.
fn part_of(at: u32, row_level: u32) -> vec4<f32> {
    var part = parts[at];
    var steps = level(bitcast<u32>(part.w)) - row_level;
    for (; steps > 0u; steps -= 1u) {
        let down = 8.077935669463161e-28;
        part = vec4<f32>(part.xyz * down, part.w);
        part.z = kept(part).z * down;
    }
    return part;
}

#include rows_main
    if number >= p.rows {
        return;
    }
    let first = number * p.parts_of_row;
    var greatest = 0u;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        greatest = max(greatest, bitcast<u32>(parts[first + i].w));
    }
    let magnitude = team_max(local, greatest);
    let scale = scale_of(magnitude);
    let row_level = level(magnitude);
    var sum = 0.0;
#if LAYER
    var high = 0u;
    var low = 0u;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        let part = part_of(first + i, row_level);
        // All parts are `length` long but the last.
        let share = f32(min(p.length, p.n - i * p.length)) / f32(p.n);
        sum += share * part.x;
        high = max(high, key_of(part.x));
        low = max(low, ~key_of(part.x));
    }
    let estimate = team_sum(local, sum);
    let most = bitcast<f32>(bits_of_key(team_max(local, high)));
    let least = bitcast<f32>(bits_of_key(~team_max(local, low)));
    let center = clamp(estimate, min(least, most), most);
    sum = 0.0;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        let part = part_of(first + i, row_level);
        sum += f32(min(p.length, p.n - i * p.length)) * ((part.x - center) + part.y);
    }
    let delta = team_sum(local, sum) / f32(p.n);
    sum = 0.0;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        let part = part_of(first + i, row_level);
        let apart = ((part.x - center) + part.y) - delta;
        sum += part.z + f32(min(p.length, p.n - i * p.length)) * (apart * apart);
    }
#else
    let center = 0.0;
    let delta = 0.0;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        sum += part_of(first + i, row_level).z;
    }
#endif
    let inverse = inverse_deviation(team_sum(local, sum), p.n, scale, magnitude);
    if local == 0u {
        out[number] = vec4<f32>(center, delta, inverse, bitcast<f32>(magnitude));
    }
}
