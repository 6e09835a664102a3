// Attention of 64 queries at a time: a workgroup goes through the keys in blocks of 64 and keeps, for each query, the
// greatest score so far, the sum of the weights relative to it, and the sum of the weighted values.
//
// Scores are a product in tiles of 64, as in `gemm`, a thread having four queries and four keys. The weights then take the
// place of the queries in workgroup memory, half of the keys at a time, and the values that of the keys, a few at a time.
// A thread sums four queries by 4 (CHUNK 64) or 8 elements of the values; longer values take several workgroups.
//
// Neighbouring heads that share keys are one sequence of `rows` queries where a head has few of them. Where the keys are
// split, sums and weights are stored as they are, and `attention_merge` follows.
#input q: array<Item>
#input k: array<Item>
#input v: array<Item>
#output out: array<f32>
#param rows: u32
#param s: u32
#param t: u32
#param d: u32
#param dv: u32
#param scale: f32
#param causal: u32
#param sharing: u32
#param blocks: u32
#param chunks: u32
#param splits: u32
#param slice: u32
#param out_split: u32
#param statistics: u32
#param total: u32
#constant TILE = 64
#constant CHUNK = 64, 128
#constant VECTORS = 0, 1
#include attention_blocks
