// The beginning of the kernels of operations on rows; their statements and a brace follow.
#include team_main
    let number = group_number(group, groups);
    let lane = local % ${TEAM}u;
