// Puts the parts of an attention together as `attention_merge` does, with sinks. A query that sees no key gives zeros. A part
// whose sum of weights is below zero has no key that the query sees, and is left out.
#input parts: array<f32>
#output out: array<f32>
#input sights: array<u32>
#param d: u32
#param splits: u32
#param rows: u32
#param statistics: u32
#param s: u32
#param first_head: u32
#param heads: u32
#param sinks: u32
#constant WIDTH = 1
#constant TEAM = 256
#constant MORE = 1
#include attention_merged
