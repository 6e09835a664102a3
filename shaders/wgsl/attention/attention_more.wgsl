// Attention of 64 queries at a time whose queries see what `attention_sights` says, as `attention` else. Sums and weights are
// stored as they are, and `attention_merge_more` follows.
#input q: array<Item>
#input k: array<Item>
#input v: array<Item>
#output out: array<f32>
#input sights: array<u32>
#input mask: array<u32>
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
#param first_head: u32
#param heads: u32
#param slopes: u32
#param cap: f32
#param mask_kind: u32
#param mask_sequence: u32
#param mask_head: u32
#param mask_query: u32
#param mask_key: u32
#constant TILE = 64
#constant CHUNK = 64, 128
#constant VECTORS = 0, 1
#constant MORE = 1
#include attention_blocks
