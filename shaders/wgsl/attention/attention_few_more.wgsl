// Attention of at most eight queries that see what `attention_sights` says, as `attention_few` else, over keys and values of any
// type of floats (STORED) or in blocks of Q8_0 (BLOCKS), which are read as they are. Sums and weights are stored as they are, and
// `attention_merge_more` follows.
#trusted queries and keys are clamped or guarded; `slice` is at most KEYS, d and dv whole vectors; entries of masks are of keys that are seen
#input q: array<vec4<f32>>
#input k: array<Stored>
#input v: array<Stored>
#output out: array<f32>
#input sights: array<u32>
#input mask: array<u32>
#param rows: u32
#param t: u32
#param d: u32
#param dv: u32
#param s: u32
#param scale: f32
#param splits: u32
#param slice: u32
#param out_split: u32
#param statistics: u32
#param total: u32
#param first_head: u32
#param heads: u32
#param slopes: u32
#param cap: f32
#param mask_kind: u32
#param mask_sequence: u32
#param mask_head: u32
#param mask_query: u32
#param mask_key: u32
#constant ROWS = 1, 4, 8
#constant LANES = 8, 32, 64
#constant STORED = f32, f16, bf16
#constant BLOCKS = 0, 1
#constant MORE = 1
#include attention_scan
