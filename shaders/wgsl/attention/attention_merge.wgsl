// Puts the parts of an attention over split keys together: a workgroup takes a query.
#input parts: array<f32>
#output out: array<f32>
#param d: u32
#param splits: u32
#param rows: u32
#param statistics: u32
#constant WIDTH = 1
#constant TEAM = 256
#include common
#include weight
#include precise
#include rows

var<workgroup> elements: array<f32, ${WORKGROUP}>;

#include rows_main
    let row = number;
    if row >= p.rows {
        return;
    }
    var key = 0u;
    for (var split = lane; split < p.splits; split += ${WORKGROUP}u) {
        key = max(key, key_of(parts[p.statistics + 2u * (split * p.rows + row)]));
    }
    let greatest = bitcast<f32>(bits_of_key(team_max(local, key)));
    var own = 0.0;
    for (var split = lane; split < p.splits; split += ${WORKGROUP}u) {
        let at = p.statistics + 2u * (split * p.rows + row);
        own += weight(vec4<f32>(parts[at] - greatest)).x * parts[at + 1u];
    }
    let weights = team_sum(local, own);

    // 64 elements at a time, four invocations for each.
    for (var first = 0u; first < p.d; first += 64u) {
        let element = first + local % 64u;
        var sum = 0.0;
        if element < p.d {
            for (var split = local / 64u; split < p.splits; split += 4u) {
                let at = split * p.rows + row;
                let w = weight(vec4<f32>(parts[p.statistics + 2u * at] - greatest)).x;
                sum = fma(w, parts[at * p.d + element], sum);
            }
        }
        workgroupBarrier();
        elements[local] = sum;
        workgroupBarrier();
        if local < 64u && element < p.d {
            let all = (elements[local] + elements[local + 64u]) + (elements[local + 128u] + elements[local + 192u]);
            out[row * p.d + element] = mean_of(vec4<f32>(all), weights).x;
        }
    }
}
