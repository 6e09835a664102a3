// Candidates in the memory of a workgroup, sorted in groups.

var<workgroup> keys: array<u32, 2048>;
var<workgroup> positions: array<u32, 2048>;

fn held(i: u32) -> Candidate {
    return Candidate(keys[i], positions[i]);
}

fn hold(i: u32, candidate: Candidate) {
    keys[i] = candidate.key;
    positions[i] = candidate.position;
}

// Sorts the first `count` candidates in groups of `size`, both powers of two, by a network that merges runs of opposite
// order. A barrier comes before it.
fn sort(local: u32, count: u32, size: u32) {
    for (var run = 2u; run <= size; run <<= 1u) {
        for (var gap = run >> 1u; gap > 0u; gap >>= 1u) {
            for (var pair = local; pair < count / 2u; pair += ${WORKGROUP}u) {
                let i = 2u * pair - (pair & (gap - 1u));
                let a = held(i);
                let b = held(i + gap);
                // The last runs, which are the groups, are all in descending order.
                let descending = (i & (size - 1u) & run) == 0u;
                if before(b, a) == descending {
                    hold(i, b);
                    hold(i + gap, a);
                }
            }
            workgroupBarrier();
        }
    }
}
