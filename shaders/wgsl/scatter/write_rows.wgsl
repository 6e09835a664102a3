// out[m, position[m / sharing, i]] = rows[m, i] for every matrix m, counted from `first` on, and each of its `s` new rows: bits are
// copied, in vectors or words where rows are whole ones, and else in units of two bytes or of one, which replace their part of
// a word without touching the others. A workgroup copies a row. If TO_TYPE is not f32, rows are f32, and fours of them are
// rounded to it.
//
// Every workgroup looks through all positions first. If one is out of range, nothing is written, and the first workgroup
// reports it. A row whose position a later row of its matrix has is not written, nor one whose position is SKIPPED.
#input rows: array<From>
#input position: array<u32>
#output out: array<To>
#output fault: array<u32>
#param first: u32
#param sharing: u32
#param n: u32
#param s: u32
#param units: u32
#param positions: u32
#param count: u32
#constant UNIT = 1, 2, 4, 16
#constant TO_TYPE = f32, f16, bf16
#include common
#if TO_TYPE == f16, bf16
#include halves
#endif

#if TO_TYPE == f16, bf16
alias From = vec4<f32>;
alias To = vec2<u32>;
#else
#if UNIT == 16
alias From = vec4<u32>;
alias To = vec4<u32>;
#endif
#if UNIT == 4
alias From = u32;
alias To = u32;
#endif
#if UNIT == 1, 2
alias From = u32;
alias To = atomic<u32>;
const PER: u32 = 4u / ${UNIT}u;
const BITS: u32 = 8u * ${UNIT}u;
const MASK: u32 = 0xffffffffu >> (32u - BITS);
#endif
#endif

const SKIPPED: u32 = 0xffffffffu;

var<workgroup> stray: atomic<u32>;
var<workgroup> is_replaced: atomic<u32>;

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    if local == 0u {
        atomicStore(&stray, 0xffffffffu);
        atomicStore(&is_replaced, 0u);
    }
    workgroupBarrier();
    // A folded grid has workgroups past the last row.
    let number = group_number(group, groups);
    let is_row = number < p.count;
    let row = select(0u, number, is_row);
    let matrix = row / p.s;
    let from_set = (p.first + matrix) / p.sharing * p.s;
    let at = from_set + (row - matrix * p.s);
    let chosen = position[at];
    for (var i = local; i < p.positions; i += ${WORKGROUP}u) {
        let other = position[i];
        if other >= p.n && other != SKIPPED {
            atomicMin(&stray, i);
        }
        if other == chosen && i > at && i < from_set + p.s {
            atomicStore(&is_replaced, 1u);
        }
    }
    workgroupBarrier();
    let found = atomicLoad(&stray);
    if found < p.positions {
        if number == 0u && local == 0u {
            fault[0] = found;
            fault[1] = position[found];
        }
        return;
    }
    if !is_row || chosen == SKIPPED || atomicLoad(&is_replaced) != 0u {
        return;
    }
    let source = row * p.units;
    let target_row = (matrix * p.n + chosen) * p.units;
    for (var unit = local; unit < p.units; unit += ${WORKGROUP}u) {
#if TO_TYPE == f16, bf16
        out[target_row + unit] = paired(halves(rows[source + unit]));
#else
#if UNIT == 4, 16
        out[target_row + unit] = rows[source + unit];
#else
        let read = source + unit;
        let to = target_row + unit;
        let bits = (rows[read / PER] >> (BITS * (read % PER))) & MASK;
        let shift = BITS * (to % PER);
        atomicAnd(&out[to / PER], ~(MASK << shift));
        atomicOr(&out[to / PER], bits << shift);
#endif
#endif
    }
}
