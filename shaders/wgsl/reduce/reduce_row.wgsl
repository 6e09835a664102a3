// The kernel of reductions along rows. `WIDTH` elements are read at once. A row is cut into parts; a team of TEAM
// invocations takes a part. With FROM rows are of partial results, with INTO partial results are written. A chain of
// additions has at most eight links, each of a tree of eight: see the bound of sums in kiln-ir.

#if FROM
alias E = A;
#else
alias E = F;
#endif
#if INTO
alias R = S;
#else
alias R = u32;
#endif

#include team

// The element at place i of a row that begins at `first`, counted in E.
fn at(first: u32, i: u32) -> A {
#if FROM
    return x[first + i];
#else
#if WIDTH == 4
    let positions = U(p.base + 4u * i) + U(0u, 1u, 2u, 3u);
#else
    let positions = p.base + i;
#endif
#if DOT
    return x[first + i] * y[first + i];
#else
    return element(x[first + i], positions);
#endif
#endif
}

// The same where the last vector may cross the end of the row.
fn at_end(first: u32, i: u32) -> A {
#if WIDTH == 4
    let left = p.n - 4u * i;
    if left < 4u {
        let there = vec4<bool>(true, left > 1u, left > 2u, false);
        return only(at(first, i), there);
    }
#endif
    return at(first, i);
}

#include team_main
    let team = group_number(group, groups) * (${WORKGROUP}u / ${TEAM}u);
    let total = p.rows * p.parts;
    if team >= total {
        return;
    }
    let unit = team + local / ${TEAM}u;
    let row = unit / p.parts;
    let start = (unit % p.parts) * p.span;
    let end = select(0u, min(start + p.span, p.vectors), unit < total);
    // Vectors that are in the row as a whole.
#if WIDTH == 4
    let whole = min(end, p.n / 4u);
#else
    let whole = end;
#endif
    let first = row * p.vectors;

    var sum = nothing();
    var i = start + local % ${TEAM}u;
    for (; i + 7u * ${TEAM}u < whole; i += 8u * ${TEAM}u) {
        let a = at(first, i);
        let b = at(first, i + ${TEAM}u);
        let c = at(first, i + 2u * ${TEAM}u);
        let d = at(first, i + 3u * ${TEAM}u);
        let e = at(first, i + 4u * ${TEAM}u);
        let f = at(first, i + 5u * ${TEAM}u);
        let g = at(first, i + 6u * ${TEAM}u);
        let h = at(first, i + 7u * ${TEAM}u);
        sum = joined(sum, joined(joined(joined(a, b), joined(c, d)), joined(joined(e, f), joined(g, h))));
    }
    var rest = nothing();
    for (; i < end; i += ${TEAM}u) {
        rest = joined(rest, at_end(first, i));
    }
    let result = team_joined(local, folded(joined(sum, rest)));
    if local % ${TEAM}u == 0u && unit < total {
#if INTO
        out[p.first + unit] = result;
#else
        out[p.first + unit] = first_word(finished(spread(result), p.count));
#endif
    }
}
