// Reductions along rows, and of everything: out[row, part] of x[row, ..].
#trusted i is below `end`, which is within the row, and places of results within their number; i grows
#input x: array<E>
#output out: array<R>
#param rows: u32
#param vectors: u32
#param n: u32
#param parts: u32
#param span: u32
#param base: u32
#param first: u32
#param count: u32
#constant REDUCTION = all
#constant WIDTH = 1, 4
#constant TEAM = 1, 16, 256
#constant FROM = 0, 1
#constant INTO = 0, 1
#include common
#include reduction
#include reduce_row
