// The inner product: as the sum of a row, of products.
#trusted as reduce_rows
#input x: array<E>
#input y: array<E>
#output out: array<R>
#param rows: u32
#param vectors: u32
#param n: u32
#param parts: u32
#param span: u32
#param base: u32
#param first: u32
#param count: u32
#constant REDUCTION = REDUCE_SUM
#constant DOT = 1
#constant WIDTH = 4
#constant TEAM = 256
#constant FROM = 0
#constant INTO = 0, 1
#include common
#include reduction
#include reduce_row
