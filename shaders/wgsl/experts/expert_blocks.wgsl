// out[r, j] = sum over k of x[r / used, k] w[e, j, k] with quantised w, e the expert of r: each tile has the products of one expert.
#trusted tiles of no expert are left out; rows of x and w are clamped to those that are there, results guarded; `slots` has ROWS a tile
#input x: array<vec4<f32>>
#input blocks: array<vec4<u32>>
#input chosen: array<u32>
#input slots: array<u32>
#output out: array<f32>
#param products: u32
#param used: u32
#param experts: u32
#param n: u32
#param k_blocks: u32
#param out_row: u32
#param out_first: u32
#param first_weight: u32
#param weights: u32
#param down: u32
#param total: u32
#constant FORMAT = all
#constant ROWS = 1, 8
#constant LANES = 16
#include common
#include quantized
#include quant_rows
#include chosen

fn product_of(tile: u32, i: u32) -> u32 {
#if ROWS == 1
    return tile;
#else
    return slots[tile * ROWS + i];
#endif
}

fn row_of_x(tile: u32, i: u32) -> u32 {
    return row_of_product(product_of(tile, i));
}

fn row_of_result(tile: u32, i: u32) -> u32 {
    return product_of(tile, i);
}

fn weight_rows(tile: u32, columns: vec4<u32>) -> vec4<u32> {
    return rows_of_weights(tile, columns);
}

fn is_written(tile: u32, row: u32, column: u32) -> bool {
    return is_product(tile, row, column);
}
