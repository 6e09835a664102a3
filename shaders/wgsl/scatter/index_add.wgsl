// Rows added to those of a table, in the order of their positions: `sorted` are the indices in ascending order, `position` says which
// row of the source each belongs to, in ascending order among equal indices. The table may be a part of a larger one, from
// `first_row` on.
#input table: array<Item>
#input sorted: array<u32>
#input position: array<u32>
#input source: array<Item>
#output out: array<Item>
#param first_row: u32
#param columns: u32
#param count: u32
#param n: u32
#constant STORED = f32, u32
#include common

// Integers of either sign are words: their sums have the same bits.
#if STORED == f32
alias Item = f32;
#else
alias Item = u32;
#endif

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    let i = group_number(group, groups) * ${WORKGROUP}u + local;
    if i >= p.n {
        return;
    }
    let column = i % p.columns;
    let row = p.first_row + i / p.columns;
    var low = 0u;
    var high = p.count;
    while low < high {
        let middle = (low + high) / 2u;
        if sorted[middle] < row {
            low = middle + 1u;
        } else {
            high = middle;
        }
    }
    var sum = table[i];
    while low < p.count {
        if sorted[low] != row {
            break;
        }
        sum += source[position[low] * p.columns + column];
        low += 1u;
    }
    out[i] = sum;
}
