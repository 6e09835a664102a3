//! Reductions of matrices tile by tile: the tree that a GPU with one workgroup a tile follows, in plain Rust.
//!
//! A tile is 16 by 16; beyond the matrix it is filled with the identity. Each row of a tile is folded in halves
//! (columns 8.. onto 0..8, then 4.., 2.., 1..), then the first column likewise. The results of the tiles, row by row,
//! are folded in halves too: the upper half onto the lower, the middle one of an odd number left as it is.

use crate::{Error, PartitionView, Result, TensorView};

/// Rows and columns of a tile.
pub const TILE_SIZE: usize = 16;

/// The operation of a reduction.
pub trait ReduceOp {
    /// The neutral element: `combine(identity, x)` is `x`.
    fn identity() -> f32;
    /// Combines two values into one.
    fn combine(a: f32, b: f32) -> f32;
}

/// The sum; 0 of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SumOp;

/// The largest value; NaN if any is NaN, -0 below +0, minus infinity of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MaxOp;

/// The smallest value; NaN if any is NaN, -0 below +0, infinity of nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MinOp;

impl ReduceOp for SumOp {
    fn identity() -> f32 {
        0.0
    }
    fn combine(a: f32, b: f32) -> f32 {
        a + b
    }
}

impl ReduceOp for MaxOp {
    fn identity() -> f32 {
        f32::NEG_INFINITY
    }
    fn combine(a: f32, b: f32) -> f32 {
        match a.partial_cmp(&b) {
            None => f32::NAN,
            Some(std::cmp::Ordering::Less) => b,
            Some(std::cmp::Ordering::Greater) => a,
            // Equal values have equal bits except for zeros; the positive zero is the larger one.
            Some(std::cmp::Ordering::Equal) => f32::from_bits(a.to_bits() & b.to_bits()),
        }
    }
}

impl ReduceOp for MinOp {
    fn identity() -> f32 {
        f32::INFINITY
    }
    fn combine(a: f32, b: f32) -> f32 {
        -MaxOp::combine(-a, -b)
    }
}

/// Folds the upper half onto the lower until one element is left. The first element is the result.
fn fold<Op: ReduceOp>(values: &mut [f32]) -> f32 {
    let mut n = values.len();
    while n > 1 {
        let half = n.div_ceil(2);
        for i in half..n {
            values[i - half] = Op::combine(values[i - half], values[i]);
        }
        n = half;
    }
    values.first().copied().unwrap_or_else(Op::identity)
}

/// The results of the tiles of a row-major matrix, row by row.
///
/// # Errors
/// [`Error::Length`] when the data are not `width * height`, [`Error::Overflow`] when that cannot be counted.
pub fn tiled_reduce_partial<Op: ReduceOp>(data: &[f32], width: usize, height: usize) -> Result<Vec<f32>> {
    let view = TensorView::<f32>::new_2d(height, width)?;
    if view.numel() != data.len() {
        return Err(Error::Length {
            op: "tiled reduction",
            operand: "data",
            expected: view.numel(),
            found: data.len(),
        });
    }
    let tiles = PartitionView::new_2d(view, TILE_SIZE, TILE_SIZE)?;
    let reduce = |tile: crate::TileInfo| {
        let mut column = [Op::identity(); TILE_SIZE];
        for (y, folded) in column.iter_mut().enumerate().take(tile.size[0]) {
            let from = (tile.start[0] + y) * width + tile.start[1];
            let mut row = [Op::identity(); TILE_SIZE];
            row[..tile.size[1]].copy_from_slice(&data[from..from + tile.size[1]]);
            *folded = fold::<Op>(&mut row);
        }
        fold::<Op>(&mut column)
    };
    Ok(tiles.iter_tiles().map(reduce).collect())
}

/// A row-major matrix reduced to one value.
///
/// # Errors
/// The errors of [`tiled_reduce_partial`].
pub fn tiled_reduce_2d<Op: ReduceOp>(data: &[f32], width: usize, height: usize) -> Result<f32> {
    Ok(fold::<Op>(&mut tiled_reduce_partial::<Op>(data, width, height)?))
}

/// The sum of a row-major matrix.
///
/// # Errors
/// The errors of [`tiled_reduce_partial`].
pub fn tiled_sum_2d(data: &[f32], width: usize, height: usize) -> Result<f32> {
    tiled_reduce_2d::<SumOp>(data, width, height)
}

/// The largest element of a row-major matrix; NaN if any is NaN.
///
/// # Errors
/// The errors of [`tiled_reduce_partial`].
pub fn tiled_max_2d(data: &[f32], width: usize, height: usize) -> Result<f32> {
    tiled_reduce_2d::<MaxOp>(data, width, height)
}

/// The smallest element of a row-major matrix; NaN if any is NaN.
///
/// # Errors
/// The errors of [`tiled_reduce_partial`].
pub fn tiled_min_2d(data: &[f32], width: usize, height: usize) -> Result<f32> {
    tiled_reduce_2d::<MinOp>(data, width, height)
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn lengths_must_agree() {
        assert!(matches!(tiled_sum_2d(&[1.0; 5], 2, 3), Err(Error::Length { expected: 6, found: 5, .. })));
        assert!(matches!(tiled_sum_2d(&[1.0; 7], 2, 3), Err(Error::Length { .. })));
        assert!(matches!(tiled_sum_2d(&[], usize::MAX, 2), Err(Error::Overflow { .. })));
    }

    #[test]
    fn nothing_gives_the_identity() {
        assert_eq!(tiled_sum_2d(&[], 0, 5).unwrap(), 0.0);
        assert_eq!(tiled_max_2d(&[], 5, 0).unwrap(), f32::NEG_INFINITY);
        assert_eq!(tiled_min_2d(&[], 0, 0).unwrap(), f32::INFINITY);
        assert!(tiled_reduce_partial::<SumOp>(&[], 0, 5).unwrap().is_empty());
    }

    #[test]
    fn infinities_and_nan() {
        let mut data = [f32::NEG_INFINITY; 17 * 18];
        assert_eq!(tiled_max_2d(&data, 17, 18).unwrap(), f32::NEG_INFINITY);
        data.fill(f32::INFINITY);
        assert_eq!(tiled_min_2d(&data, 17, 18).unwrap(), f32::INFINITY);
        for at in [0, 16, 17 * 16 + 3, 17 * 18 - 1] {
            let mut data = [1.0; 17 * 18];
            data[at] = f32::NAN;
            assert!(tiled_max_2d(&data, 17, 18).unwrap().is_nan() && tiled_min_2d(&data, 17, 18).unwrap().is_nan());
        }
        for zeros in [[0.0, -0.0], [-0.0, 0.0]] {
            assert!(tiled_max_2d(&zeros, 2, 1).unwrap().is_sign_positive());
            assert!(tiled_min_2d(&zeros, 2, 1).unwrap().is_sign_negative());
        }
    }

    #[test]
    fn one_partial_result_a_tile() {
        let data: Vec<f32> = (0..20 * 33).map(|i| (i % 20) as f32).collect();
        let partial = tiled_reduce_partial::<MaxOp>(&data, 20, 33).unwrap();
        assert_eq!(partial, [15.0, 19.0, 15.0, 19.0, 15.0, 19.0]);
        assert_eq!(tiled_reduce_partial::<SumOp>(&data, 20, 33).unwrap()[0], 16.0 * 120.0);
    }

    #[test]
    fn the_tree_is_the_one_described() {
        // 1 is lost beside 1e8 unless its neighbours in the tree are added to it first.
        let mut row = [0.0; 16];
        (row[0], row[8], row[1], row[9]) = (1e8, -1e8, 1.0, 3.0);
        assert_eq!(tiled_sum_2d(&row, 16, 1).unwrap(), 4.0);
        assert_eq!(fold::<SumOp>(&mut [1.0, 2.0, 4.0, 8.0, 16.0]), 31.0);
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn agrees_with_exact_arithmetic(width in 0usize..50, height in 0usize..50, seed in any::<u32>()) {
                let n = width * height;
                let data = (0..n as u32).map(|i| (i.wrapping_mul(seed | 1) >> 8) as f32 / 1e6 - 8.0);
                let data: Vec<f32> = data.collect();
                let exact: f64 = data.iter().map(|&v| f64::from(v)).sum();
                let magnitude: f64 = data.iter().map(|&v| f64::from(v).abs()).sum();
                let sum = f64::from(tiled_sum_2d(&data, width, height).unwrap());
                // A term passes through eight additions in its tile and four over the tiles.
                prop_assert!((sum - exact).abs() <= 12.0 * magnitude * f64::powi(2.0, -24));
                let max = data.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                let min = data.iter().copied().fold(f32::INFINITY, f32::min);
                prop_assert_eq!(tiled_max_2d(&data, width, height).unwrap(), max);
                prop_assert_eq!(tiled_min_2d(&data, width, height).unwrap(), min);
            }
        }
    }
}
