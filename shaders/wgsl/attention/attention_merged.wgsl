// The statements of `attention_merge`, and with MORE those of `attention_merge_more`.
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
        let at = p.statistics + 2u * (split * p.rows + row);
#if MORE
        if parts[at + 1u] < 0.0 {
            continue;
        }
#endif
        key = max(key, key_of(parts[at]));
    }
#if MORE
    // No number has this key.
    let greatest_key = team_max(local, key);
    let sees = greatest_key != 0u;
    let sink = bitcast<f32>(sights[p.sinks + (p.first_head + row / p.s) % p.heads]);
    let greatest = max(bitcast<f32>(bits_of_key(select(key_of(LOWEST), greatest_key, sees))), sink);
#else
    let greatest = bitcast<f32>(bits_of_key(team_max(local, key)));
#endif
    var own = 0.0;
    for (var split = lane; split < p.splits; split += ${WORKGROUP}u) {
        let at = p.statistics + 2u * (split * p.rows + row);
#if MORE
        if parts[at + 1u] < 0.0 {
            continue;
        }
#endif
        own += weight(vec4<f32>(parts[at] - greatest)).x * parts[at + 1u];
    }
#if MORE
    let weights = team_sum(local, own) + weight(vec4<f32>(sink - greatest)).x;
#else
    let weights = team_sum(local, own);
#endif

    // 64 elements at a time, four invocations for each.
    for (var first = 0u; first < p.d; first += 64u) {
        let element = first + local % 64u;
        var sum = 0.0;
        if element < p.d {
            for (var split = local / 64u; split < p.splits; split += 4u) {
                let at = split * p.rows + row;
#if MORE
                if parts[p.statistics + 2u * at + 1u] < 0.0 {
                    continue;
                }
#endif
                let w = weight(vec4<f32>(parts[p.statistics + 2u * at] - greatest)).x;
                sum = fma(w, parts[at * p.d + element], sum);
            }
        }
        workgroupBarrier();
        elements[local] = sum;
        workgroupBarrier();
        if local < 64u && element < p.d {
            let all = (elements[local] + elements[local + 64u]) + (elements[local + 128u] + elements[local + 192u]);
#if MORE
            out[row * p.d + element] = select(0.0, mean_of(vec4<f32>(all), weights).x, sees);
#else
            out[row * p.d + element] = mean_of(vec4<f32>(all), weights).x;
#endif
        }
    }
}
