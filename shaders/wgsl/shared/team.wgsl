// Joins the values of the members of a team, TEAM invocations next to one another, and gives all of them the result.
// `S`, `join` and `subgroup_joined` are those of the reduction. All invocations of a workgroup must call it.

var<workgroup> cells: array<S, ${WORKGROUP}>;

fn tree(local: u32, own: S) -> S {
    cells[local] = own;
    workgroupBarrier();
    for (var half = ${TEAM}u / 2u; half > 0u; half >>= 1u) {
        if local % ${TEAM}u < half {
            cells[local] = join(cells[local], cells[local + half]);
        }
        workgroupBarrier();
    }
    return cells[local - local % ${TEAM}u];
}

#if SUBGROUP
// Devices assign invocations to subgroups in any way: only whole subgroups are joined.
var<private> place_in_subgroup: u32;
var<private> subgroup_number: u32;
var<private> subgroups: u32;

fn team_joined(local: u32, own: S) -> S {
#if TEAM == 1
    return own;
#else
#if TEAM == 256
    let part = subgroup_joined(own);
    if place_in_subgroup == 0u {
        cells[subgroup_number] = part;
    }
    workgroupBarrier();
    let most = subgroups - 1u;
    let none = lane(nothing(), 0u);
    var total = cells[0];
    for (var i = 1u; i < subgroups; i += 4u) {
        let b = cells[min(i + 1u, most)];
        let c = cells[min(i + 2u, most)];
        let d = cells[min(i + 3u, most)];
        let first = join(cells[i], chosen(none, b, i + 1u <= most));
        total = join(total, join(first, join(chosen(none, c, i + 2u <= most), chosen(none, d, i + 3u <= most))));
    }
    return total;
#else
    return tree(local, own);
#endif
#endif
}

fn chosen(no: S, yes: S, which: bool) -> S {
    if which {
        return yes;
    }
    return no;
}
#else
fn team_joined(local: u32, own: S) -> S {
#if TEAM == 1
    return own;
#else
    return tree(local, own);
#endif
}
#endif
