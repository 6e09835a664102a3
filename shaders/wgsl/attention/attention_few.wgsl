// Attention of at most eight queries that see all keys: reading keys and values takes all the time. A workgroup takes up to
// 256 keys, 128 for eight queries.
//
// First the scores, 32 keys at a time, eight invocations for each key; then the weights; then the sums of the values, an
// invocation for each vector of them and as many groups of these as the workgroup has. Where the keys are split, sums and
// weights are stored as they are, and `attention_merge` follows.
#trusted queries and keys are clamped or guarded; `slice` is at most KEYS, d whole vectors
#input q: array<vec4<f32>>
#input k: array<vec4<f32>>
#input v: array<vec4<f32>>
#output out: array<f32>
#param rows: u32
#param t: u32
#param d: u32
#param scale: f32
#param splits: u32
#param slice: u32
#param out_split: u32
#param statistics: u32
#param total: u32
#constant ROWS = 1, 4, 8
#constant LANES = 8, 32, 64
#include attention_scan
