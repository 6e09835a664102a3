// Which products a tile has, and the rows of the weights of their expert. `chosen` has the expert of each tile, and is no expert where a
// tile has no products. Of the weights of all experts, rows from `first_weight` on are here, `weights` of them. Who includes this says
// which product `product_of` a tile is; a number past the last is none.

fn row_of_product(product: u32) -> u32 {
    return min(product, p.products - 1u) / p.used;
}

fn is_here(tile: u32) -> bool {
    let expert = chosen[tile];
    let first = expert * p.n;
    return expert < p.experts && first < p.first_weight + p.weights && first + p.n > p.first_weight;
}

// Where rows of the expert of a tile are among those that are here. Others are the nearest one, read and not written.
fn rows_of_weights(tile: u32, rows: vec4<u32>) -> vec4<u32> {
    let first = vec4<u32>(p.first_weight);
    let last = vec4<u32>(p.first_weight + p.weights - 1u);
    return clamp(vec4<u32>(chosen[tile] * p.n) + rows, first, last) - first;
}

fn is_product(tile: u32, product: u32, row: u32) -> bool {
    // Before the first row the difference wraps around.
    return product < p.products && row < p.n && chosen[tile] * p.n + row - p.first_weight < p.weights;
}
