    // The tile of this workgroup: its first row and column, and its layer (a product of a batch, or a part of k). Tiles are taken in bands
    // of eight rows of them, so that those that run at the same time share operands.
    //
    // The same as `group_number`, inline: naga treats the result of a function as one that differs between invocations.
    let number = group.y * groups.x + group.x;
    if number >= p.total {
        return;
    }
    let tiles = p.down * p.across;
    let layer = number / tiles;
    let within = number % tiles;
    let band = within / (8u * p.across);
    let height = min(8u, p.down - 8u * band);
    let place_in_band = within - 8u * p.across * band;
    let first_row = (8u * band + place_in_band % height) * ROWS;
    let first_column = (place_in_band / height) * COLUMNS;
