// Reductions along an axis that others lie inside of: out[o, part, i] of x[o, .., i].
//
// A workgroup takes `across` neighbouring columns (of WIDTH elements), 256 / across invocations one below the other for
// each; a part of the axis has at most 64 elements for each of them. With FROM the elements are partial results, with
// INTO partial results are written.
#trusted rows are below `end` and columns guarded; rows grow, `half` shrinks to `across`
#input x: array<E>
#output out: array<R>
#param outer: u32
#param along: u32
#param columns: u32
#param parts: u32
#param span: u32
#param across: u32
#param tiles: u32
#param base: u32
#param first: u32
#param stride: u32
#param count: u32
#constant REDUCTION = all
#constant WIDTH = 1, 4
#constant FROM = 0, 1
#constant INTO = 0, 1
#include common
#include reduction

#if FROM
alias E = A;
#else
alias E = F;
#endif
#if INTO
alias R = A;
#else
alias R = U;
#endif

var<workgroup> cells: array<A, ${WORKGROUP}>;

fn at(first: u32, row: u32) -> A {
#if FROM
    return x[first + row * p.columns];
#else
    return element(x[first + row * p.columns], U(p.base + row));
#endif
}

@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
) {
    // Neighbouring workgroups take neighbouring columns.
    let number = group_number(group, groups);
    if number >= p.outer * p.parts * p.tiles {
        return;
    }
    let outer = number / p.tiles / p.parts;
    let part = number / p.tiles % p.parts;
    let column = number % p.tiles * p.across + local % p.across;
    let down = ${WORKGROUP}u / p.across;
    let start = part * p.span;
    let end = select(0u, min(start + p.span, p.along), column < p.columns);
    let first = outer * p.along * p.columns + column;

    var sum = nothing();
    var row = start + local / p.across;
    for (; row + 7u * down < end; row += 8u * down) {
        let a = at(first, row);
        let b = at(first, row + down);
        let c = at(first, row + 2u * down);
        let d = at(first, row + 3u * down);
        let e = at(first, row + 4u * down);
        let f = at(first, row + 5u * down);
        let g = at(first, row + 6u * down);
        let h = at(first, row + 7u * down);
        sum = joined(sum, joined(joined(joined(a, b), joined(c, d)), joined(joined(e, f), joined(g, h))));
    }
    var rest = nothing();
    for (; row < end; row += down) {
        rest = joined(rest, at(first, row));
    }
    sum = joined(sum, rest);
    if down > 1u {
        cells[local] = sum;
        workgroupBarrier();
        for (var half = ${WORKGROUP}u / 2u; half >= p.across; half >>= 1u) {
            if local < half {
                cells[local] = joined(cells[local], cells[local + half]);
            }
            workgroupBarrier();
        }
        sum = cells[local % p.across];
    }
    if local < p.across && column < p.columns {
        let place = (p.first + outer * p.stride + part) * p.columns + column;
#if INTO
        out[place] = sum;
#else
        out[place] = finished(sum, p.count);
#endif
    }
}
