//! Shared parts of operations on rows: the view of a slice as rows, the cost, the reference and the test inputs.

use crate::{Error, Result, Shape, TensorType};

/// `flops` for each element of the first operand.
pub(super) fn per_element(inputs: &[TensorType], flops: u64) -> u64 {
    super::product(&[inputs[0].shape.numel()]).saturating_mul(flops)
}

/// Calls `row` for every row; it appends values and magnitudes.
#[cfg(feature = "reference")]
pub(super) fn by_rows(
    inputs: &[crate::Operand<'_>],
    row: impl Fn(&[f64], &mut Vec<f64>, &mut Vec<f64>),
) -> Vec<super::reference::Expected> {
    let x: Vec<f64> = inputs[0].data().f32().iter().map(|&v| f64::from(v)).collect();
    let (mut values, mut magnitudes) = (Vec::with_capacity(x.len()), Vec::with_capacity(x.len()));
    // Without columns there are no rows.
    for r in x.chunks_exact(inputs[0].shape().columns().max(1)) {
        row(r, &mut values, &mut magnitudes);
    }
    vec![super::reference::Expected::F32 { values, magnitudes }]
}

/// Test inputs of every operation on rows: shapes, then special values among ordinary ones.
#[cfg(feature = "reference")]
pub(super) fn row_inputs(seed: u64) -> Vec<super::reference::Input> {
    use super::reference::{Input, LENGTHS, Random, SPECIAL};
    let mut random = Random::new(seed);
    let mut inputs: Vec<Input> = LENGTHS.into_iter().map(|n| Input::f32(random.uniforms(n, -9.0, 9.0), &[n])).collect();
    let shapes: [&[usize]; 8] =
        [&[3, 5], &[17, 64], &[2, 5000], &[4, 3, 7], &[0, 5], &[5, 0], &[40, 2049], &[2, 2, 1, 33]];
    // Longer than the part of a row that any kernel holds in registers; so is the longest of the lengths.
    let long: [&[usize]; 3] = [&[2, 9001], &[2, 20_000], &[1, 131_073]];
    for dims in shapes.into_iter().chain(long) {
        inputs.push(Input::f32(random.uniforms(dims.iter().product(), -9.0, 9.0), dims));
    }
    // Ranges: narrow around a large offset, wide, small.
    for (lo, hi) in [(1000.0, 1010.0), (-1000.0, 1000.0), (-1e-3, 1e-3), (0.0, 0.1)] {
        inputs.push(Input::f32(random.uniforms(7 * 300, lo, hi), &[7, 300]));
    }
    for special in SPECIAL {
        for (n, at) in [(3, 1), (100, 0), (100, 99), (5000, 2100)] {
            let mut data = random.uniforms(n, -1.0, 1.0);
            data[at] = special;
            inputs.push(Input::f32(data, &[1, n]));
        }
        inputs.push(Input::f32(vec![special; 33], &[33]));
    }
    inputs.push(Input::f32(vec![f32::NEG_INFINITY; 5000], &[5000]));
    // One finite number after more than a block of -∞.
    let mut late = vec![f32::NEG_INFINITY; 5000];
    late[4900] = -200.0;
    inputs.push(Input::f32(late, &[5000]));
    inputs
}

/// The shape of `data` seen as rows of `columns`, for callers that hold a slice.
///
/// # Errors
/// [`Error::Shape`] when the data are not whole rows.
pub fn rows_of(op: &'static str, data: &[f32], columns: usize) -> Result<Shape> {
    let whole = if columns == 0 { data.is_empty() } else { data.len().is_multiple_of(columns) };
    if !whole {
        return Err(Error::Shape { op, reason: format!("{} elements are not whole rows of {columns}", data.len()) });
    }
    Shape::new(&[data.len() / columns.max(1), columns])
}
