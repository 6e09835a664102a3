// out[r, j] = sum over k of x[r, k] v[j, k] for few vectors v: products of the rows of a large matrix, at the speed of
// memory. Stacks of matrices too.
#trusted rows and vectors are clamped to the last one, results guarded; i grows to `length`
#input x: array<Stored>
#input v: array<Item>
#output out: array<f32>
#param rows: u32
#param k: u32
#param vectors: u32
#param x_batch: u32
#param v_batch: u32
#param out_batch: u32
#param out_row: u32
#param out_vector: u32
#param across: u32
#param total: u32
#constant COUNT = 1, 4, 8
#constant LANES = 8, 32, 256
#constant VECTORS = 0, 1
#constant STORED = f32, f16, bf16
#include common
#include storage
#include rows_of_matrix

fn is_here(batch: u32) -> bool {
    return true;
}

// The four rows of x from `row` on, and where each begins. Rows and vectors past the end are the last one, read again.
fn matrix_rows(batch: u32, row: u32, length: u32) -> vec4<u32> {
    let rows = min(vec4<u32>(row) + vec4<u32>(0u, 1u, 2u, 3u), vec4<u32>(p.rows - 1u));
    return vec4<u32>(batch * p.x_batch / UNIT) + rows * length;
}

fn vector_at(batch: u32, i: u32, length: u32) -> u32 {
    return batch * p.v_batch / UNIT + min(i, p.vectors - 1u) * length;
}

// The position of the result for row 0 and a vector.
fn result_at(batch: u32, vector: u32) -> u32 {
    return batch * p.out_batch + vector * p.out_vector;
}

fn is_written(batch: u32, vector: u32, row: u32) -> bool {
    return vector < p.vectors && row < p.rows;
}
