// The index that belongs to the first fault of a gather.
#input index: array<u32>
#output fault: array<u32>
#include common

@compute @workgroup_size(${WORKGROUP})
fn main(@builtin(local_invocation_index) local: u32) {
    if local == 0u && fault[0] != 0xffffffffu {
        fault[1] = index[fault[0]];
    }
}
