// out[i, j] = table[index[i], j]: bits are copied. The unit is a vector where rows are whole vectors, a word where they
// are whole words, and otherwise two bytes or one; an invocation then writes all units of a word. An index outside of
// the table gives zeros and is a fault.
//
// The table may be a part of a larger one, from `first_row` on, and the indices too, from `first` on.
//
// The fault that counts is the first. With SCAN the first workgroup looks through all indices for it; else every row
// reports its own, and `gather_fault` finds the index that belongs to the first.
#input table: array<Item>
#input index: array<u32>
#output out: array<Item>
#output fault: array<atomic<u32>>
#param first_row: u32
#param part: u32
#param rows: u32
#param columns: u32
#param first: u32
#param count: u32
#param n: u32
#constant UNIT = 1, 2, 4, 16
#constant SCAN = 0, 1
#include common

#if UNIT == 16
alias Item = vec4<u32>;
#else
alias Item = u32;
#endif

#if SCAN
var<workgroup> least: atomic<u32>;

fn scan(local: u32) {
    if local == 0u {
        atomicStore(&least, 0xffffffffu);
    }
    workgroupBarrier();
    for (var i = local; i < p.count; i += ${WORKGROUP}u) {
        if index[i] >= p.rows {
            atomicMin(&least, i);
            break;
        }
    }
    workgroupBarrier();
    if local == 0u {
        let position = atomicLoad(&least);
        if position < p.count {
            if p.first + position < atomicLoad(&fault[0]) {
                atomicStore(&fault[0], p.first + position);
                atomicStore(&fault[1], index[position]);
            }
        }
    }
}
#endif

#if UNIT == 1, 2
const PER: u32 = 4u / ${UNIT}u;
const BITS: u32 = 8u * ${UNIT}u;
const MASK: u32 = 0xffffffffu >> (32u - BITS);
#endif

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let number = group_number(group, groups);
#if SCAN
    if number == 0u {
        scan(local);
    }
#endif
    let i = number * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
#if UNIT == 4, 16
    let position = i / p.columns;
    let chosen = index[position];
    // Before the part the difference wraps around.
    let row = chosen - p.first_row;
    if row < p.part {
        out[i] = table[row * p.columns + (i - position * p.columns)];
    } else if chosen >= p.rows {
        out[i] = Item();
#if SCAN
#else
        atomicMin(&fault[0], p.first + position);
#endif
    }
#else
    // Other units of the word may be of rows of another part of the table.
    var word = out[i];
    for (var unit = 0u; unit < PER; unit += 1u) {
        let to = PER * i + unit;
        let position = to / p.columns;
        if position >= p.count {
            break;
        }
        let chosen = index[position];
        let row = chosen - p.first_row;
        var bits = 0u;
        if row < p.part {
            let place = row * p.columns + (to - position * p.columns);
            bits = (table[place / PER] >> (BITS * (place % PER))) & MASK;
        } else if chosen >= p.rows {
#if SCAN
#else
            atomicMin(&fault[0], p.first + position);
#endif
        } else {
            continue;
        }
        word = (word & ~(MASK << (BITS * unit))) | (bits << (BITS * unit));
    }
    out[i] = word;
#endif
}
