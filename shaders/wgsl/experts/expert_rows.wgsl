// out[r, j] = sum over k of v[r / used, k] x[e, j, k], x the matrices of experts and e that of r: each batch is a tile, with the products
// of one expert.
#trusted tiles of no expert are left out; rows are clamped to those that are there, results guarded; `slots` has COUNT a tile
#input v: array<Item>
#input x: array<Stored>
#input chosen: array<u32>
#input slots: array<u32>
#output out: array<f32>
#param products: u32
#param used: u32
#param experts: u32
#param n: u32
#param k: u32
#param out_row: u32
#param first_weight: u32
#param weights: u32
#param across: u32
#param total: u32
#constant COUNT = 1, 8
#constant LANES = 8, 32, 256
#constant VECTORS = 0, 1
#constant STORED = f32, f16, bf16
#include common
#include storage
#include rows_of_matrix
#include chosen

fn product_of(tile: u32, i: u32) -> u32 {
#if COUNT == 1
    return tile;
#else
    return slots[tile * ${COUNT}u + i];
#endif
}

fn matrix_rows(tile: u32, row: u32, length: u32) -> vec4<u32> {
    return rows_of_weights(tile, vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u)) * length;
}

fn vector_at(tile: u32, i: u32, length: u32) -> u32 {
    return row_of_product(product_of(tile, i)) * length;
}

fn result_at(tile: u32, i: u32) -> u32 {
    return product_of(tile, i) * p.n;
}

fn is_written(tile: u32, i: u32, row: u32) -> bool {
    return is_product(tile, product_of(tile, i), row);
}
