// Shared parts of the kernels of top-k and of sorting: candidates are a key and a position in the row, in descending order of keys,
// equals in ascending order of positions. WORKGROUP candidates times eight fit the memory of a workgroup.

const NOWHERE: u32 = 0xffffffffu;

struct Candidate {
    key: u32,
    position: u32,
}

fn before(a: Candidate, b: Candidate) -> bool {
    return (a.key > b.key) | ((a.key == b.key) & (a.position < b.position));
}
