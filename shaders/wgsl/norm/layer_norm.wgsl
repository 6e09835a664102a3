// out = (x - mean) / sqrt(variance + eps) gamma + beta along rows.
#trusted i is below the length of the row, and no row is past the last
#input x: array<F>
#input gamma: array<F>
#input beta: array<F>
#output out: array<F>
#param rows: u32
#param vectors: u32
#param eps: f32
#param large_eps: f32
#param small_eps: f32
#param small_back: f32
#constant WIDTH = 1, 4
#constant TEAM = 1, 16, 256
#constant HELD = 1, 4
#constant FULL = 0, 1
#constant LAYER = 1
#include norm_row
