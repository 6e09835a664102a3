// RMS normalisation of parts of long rows.
#trusted parts are below `total`, i is below the length of the row
#input x: array<F>
#input gamma: array<F>
#input rows_known: array<vec4<f32>>
#output out: array<F>
#param vectors: u32
#param parts: u32
#param total: u32
#param eps: f32
#param large_eps: f32
#param small_eps: f32
#param small_back: f32
#constant WIDTH = 1, 4
#constant TEAM = 256
#constant HELD = 4
#constant FULL = 0, 1
#constant LAYER = 0
#include norm_apply
