// Rows of x, of w and of the result, for tiles of ROWS rows of x.
fn is_here(tile: u32) -> bool {
    return true;
}

// The row of x that is row `i` of a tile, and of the result. Rows beyond the last are the last again, and not written.
fn row_of_x(tile: u32, i: u32) -> u32 {
    return min(tile * ROWS + i, p.m - 1u);
}

fn row_of_result(tile: u32, i: u32) -> u32 {
    return tile * ROWS + i;
}

// Rows of w likewise.
fn weight_rows(tile: u32, columns: vec4<u32>) -> vec4<u32> {
    return min(columns, vec4<u32>(p.n - 1u));
}

fn is_written(tile: u32, row: u32, column: u32) -> bool {
    return row < p.m && column < p.n;
}
