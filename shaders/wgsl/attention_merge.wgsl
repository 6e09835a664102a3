// Puts the parts of an attention over split keys together: a workgroup takes a query.
#input parts: array<f32>
#output out: array<f32>
#param d: u32
#param splits: u32
#param rows: u32
#param statistics: u32
#include common
#include weight

var<workgroup> shared_words: array<f32, ${WORKGROUP}>;
var<workgroup> sums: array<f32, ${WORKGROUP}>;

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let row = group_number(group, groups);
    if row >= p.rows {
        return;
    }
    var greatest = LOWEST;
    for (var split = local; split < p.splits; split += ${WORKGROUP}u) {
        greatest = max(greatest, parts[p.statistics + 2u * (split * p.rows + row)]);
    }
    shared_words[local] = greatest;
    for (var half = ${WORKGROUP}u / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            shared_words[local] = max(shared_words[local], shared_words[local + half]);
        }
    }
    workgroupBarrier();
    greatest = shared_words[0];
    workgroupBarrier();
    var weights = 0.0;
    for (var split = local; split < p.splits; split += ${WORKGROUP}u) {
        let at = p.statistics + 2u * (split * p.rows + row);
        weights += weight(vec4<f32>(parts[at] - greatest)).x * parts[at + 1u];
    }
    shared_words[local] = weights;
    for (var half = ${WORKGROUP}u / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if local < half {
            shared_words[local] += shared_words[local + half];
        }
    }
    workgroupBarrier();
    weights = shared_words[0];

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
        sums[local] = sum;
        workgroupBarrier();
        if local < 64u && element < p.d {
            let all = (sums[local] + sums[local + 64u]) + (sums[local + 128u] + sums[local + 192u]);
            out[row * p.d + element] = mean_of(vec4<f32>(all), weights).x;
        }
    }
}
