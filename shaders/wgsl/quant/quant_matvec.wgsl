// out[i, j] = sum over k of x[i, k] w[j, k] with quantised w, for few rows of x: at the speed of memory. If ADDS, more[i, j] is
// added to it. If NORMED, which needs m = 1 and ROWS = 1, x is divided by the root of its mean square plus eps first, and multiplied by
// gamma, which is `more`.
#trusted rows of x and w are clamped to the last one, results guarded; `spread` moves what is laid out within eights of it
#input x: array<vec4<f32>>
#input blocks: array<vec4<u32>>
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
#constant ROWS = 1, 2, 4, 8
#constant LANES = 8, 16, 32, 64
#constant ADDS = 0, 1
#constant NORMED = 0, 1
#include common
#include quantized
#include quant_rows
#include few_rows
