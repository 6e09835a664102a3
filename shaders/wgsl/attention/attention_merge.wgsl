// Puts the parts of an attention over split keys together: a workgroup takes a query.
#input parts: array<f32>
#output out: array<f32>
#param d: u32
#param splits: u32
#param rows: u32
#param statistics: u32
#constant WIDTH = 1
#constant TEAM = 256
#include attention_merged
