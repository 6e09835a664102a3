// For long rows: the shared values of a row, from its parts.
#trusted rows are guarded, i is below the number of parts
#input parts: array<vec2<u32>>
#output out: array<vec2<f32>>
#param parts_of_row: u32
#param rows: u32
#constant WIDTH = 1
#constant TEAM = 256
#constant LOG = 0, 1
#include common
#include math
#include precise
#include rows
#include exponentials
#include rows_main
    if number >= p.rows {
        return;
    }
    let first = number * p.parts_of_row;
    var own = 0u;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        own = max(own, parts[first + i].x);
    }
    let key = team_max(local, own);
    let m = common_of(key, 1.0).greatest;
    var sum = 0.0;
    for (var i = lane; i < p.parts_of_row; i += ${TEAM}u) {
        let part = parts[first + i];
        // A part of -infinity alone has no sum.
        let below = bitcast<f32>(bits_of_key(part.x)) - m;
        if part.x > 0x007fffffu {
            sum += bitcast<f32>(part.y) * (lifted_exp(below) * LOWER);
        }
    }
    let row_common = common_of(key, team_sum(local, sum));
    if local == 0u {
        out[number] = vec2<f32>(row_common.greatest, row_common.rest);
    }
}
