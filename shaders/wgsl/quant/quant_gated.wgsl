// out[i] = GATE(sum over k of x[k] w[i, k], sum over k of x[k] u[i, k]) for one row of x, with w in `blocks` and u in `ups`, quantised, at
// the speed of memory. If NORMED, x is divided by the root of its mean square plus eps first, and multiplied by gamma, which is `more`.
#trusted rows of w and u are clamped to the last one, results guarded; `spread` moves what is laid out within eights of it
#input x: array<vec4<f32>>
#input blocks: array<vec4<u32>>
#input ups: array<vec4<u32>>
#output out: array<f32>
#input more: array<vec4<f32>>
#param m: u32
#param n: u32
#param k_blocks: u32
#param out_row: u32
#param out_first: u32
#param down: u32
#param total: u32
#param eps: f32
#constant FORMAT = all
#constant ROWS = 1
#constant LANES = 8, 32, 64
#constant NORMED = 0, 1
#constant GATED = 1
#constant GATE = all
#include common
#include functions
#include quantized
#include quant_rows
#include few_rows
