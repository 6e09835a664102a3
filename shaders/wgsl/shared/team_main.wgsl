// The beginning of kernels whose workgroups are cut into teams; their statements and a brace follow.
@compute @workgroup_size(${WORKGROUP})
fn main(
    @builtin(workgroup_id) group: vec3<u32>,
    @builtin(num_workgroups) groups: vec3<u32>,
    @builtin(local_invocation_index) local: u32,
#if SUBGROUP
    @builtin(subgroup_invocation_id) subgroup_place: u32,
    @builtin(subgroup_id) subgroup: u32,
    @builtin(num_subgroups) subgroup_count: u32,
#endif
) {
#if SUBGROUP
    place_in_subgroup = subgroup_place;
    subgroup_number = subgroup;
    subgroups = subgroup_count;
#endif
