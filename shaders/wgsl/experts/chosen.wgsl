// The products of a tile, and the rows of the weights of their expert. `chosen` has the expert of each tile, and a
// number beyond the experts where a tile has no products. Of the weights of all experts the kernel has `weights` rows,
// from `first_weight` on. A source that includes this defines `product_of`, the product at a position in a tile; a number
// past the last is not a product.

fn row_of_product(product: u32) -> u32 {
    return min(product, p.products - 1u) / p.used;
}

fn is_here(tile: u32) -> bool {
    let expert = chosen[tile];
    let first = expert * p.n;
    return expert < p.experts && first < p.first_weight + p.weights && first + p.n > p.first_weight;
}

// The places of rows of the expert of a tile among these rows. A row that the kernel does not have is replaced by the
// nearest one, read and not written.
fn rows_of_weights(tile: u32, rows: vec4<u32>) -> vec4<u32> {
    let first = vec4<u32>(p.first_weight);
    let last = vec4<u32>(p.first_weight + p.weights - 1u);
    return clamp(vec4<u32>(chosen[tile] * p.n) + rows, first, last) - first;
}

fn is_product(tile: u32, product: u32, row: u32) -> bool {
    // Before the first row the difference wraps around.
    return product < p.products && row < p.n && chosen[tile] * p.n + row - p.first_weight < p.weights;
}
