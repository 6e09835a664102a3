// An element of the result, from part `begin` to part `end`, product by product.
fn exact(row: u32, column: u32, begin: u32, end: u32) -> f32 {
    var sum = 0.0;
    for (var part = begin; part < end; part++) {
        let block = part / PARTS;
        let w = part_of(column * p.k_blocks + block, part % PARTS);
        let at = ((row * p.k_blocks + block) * LEN + place(part % PARTS)) / 4u;
        for (var i = 0u; i < 4u; i++) {
            sum = product(elements(w.low[i], w.steps.x, w.steps.y), x[at + i], sum);
            sum = product(elements(w.high[i], w.steps.z, w.steps.w), x[at + APART / 4u + i], sum);
        }
    }
    return finished(sum);
}
