//! Cutting a view into tiles.

use std::fmt;

use crate::{Error, Result, TensorView};

/// A tensor cut into tiles of one shape; those at the end of a dimension may be smaller.
pub struct PartitionView<T> {
    tensor: TensorView<T>,
    tile_shape: [usize; 4],
}

/// One tile of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct TileInfo {
    /// Position among the tiles, along each dimension.
    pub tile_idx: [usize; 4],
    /// First element, along each dimension.
    pub start: [usize; 4],
    /// Extents.
    pub size: [usize; 4],
    /// Whether the tile is smaller than a whole one.
    pub is_edge: bool,
}

impl<T> PartitionView<T> {
    /// Cuts a tensor into tiles of these extents.
    ///
    /// # Errors
    /// [`Error::View`] when an extent is zero, [`Error::Overflow`] when the elements of a tile cannot be counted.
    pub fn new(tensor: TensorView<T>, tile_shape: [usize; 4]) -> Result<Self> {
        if tile_shape.contains(&0) {
            return Err(Error::View {
                what: "partition",
                reason: format!("tiles of {tile_shape:?} are empty; use extents of 1 or more"),
            });
        }
        if tile_shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).is_none() {
            return Err(Error::Overflow { what: "tile", extents: tile_shape.to_vec() });
        }
        Ok(Self { tensor, tile_shape })
    }

    /// Cuts a tensor into tiles whose extents are powers of two, given by their logarithms.
    ///
    /// # Errors
    /// The errors of [`PartitionView::new`].
    pub fn new_power_of_two(tensor: TensorView<T>, tile_log2: [usize; 4]) -> Result<Self> {
        let extent = |log2: usize| u32::try_from(log2).ok().and_then(|log2| 1usize.checked_shl(log2));
        let [Some(a), Some(b), Some(c), Some(d)] = tile_log2.map(extent) else {
            let reason = format!("2 to the power of one of {tile_log2:?} is too large for an extent");
            return Err(Error::View { what: "partition", reason });
        };
        Self::new(tensor, [a, b, c, d])
    }

    /// Cuts the first two dimensions into tiles; the others into single indices.
    ///
    /// # Errors
    /// The errors of [`PartitionView::new`].
    pub fn new_2d(tensor: TensorView<T>, tile_rows: usize, tile_columns: usize) -> Result<Self> {
        Self::new(tensor, [tile_rows, tile_columns, 1, 1])
    }

    /// The tensor.
    pub fn tensor(&self) -> &TensorView<T> {
        &self.tensor
    }

    /// Extents of a whole tile.
    pub fn tile_shape(&self) -> &[usize; 4] {
        &self.tile_shape
    }

    /// Number of tiles along each dimension; 0 along an extent of zero.
    pub fn tile_count(&self) -> [usize; 4] {
        std::array::from_fn(|d| self.tensor.shape()[d].div_ceil(self.tile_shape[d]))
    }

    /// Number of tiles.
    pub fn total_tiles(&self) -> usize {
        // At most the number of elements unless a factor is zero, so it can overflow only if an extent is zero.
        let count = self.tile_count();
        if count.contains(&0) { 0 } else { count.iter().product() }
    }

    /// The tile at a position; `None` beyond the last tile.
    pub fn get_tile(&self, tile_idx: [usize; 4]) -> Option<TileInfo> {
        let count = self.tile_count();
        if (0..4).any(|d| tile_idx[d] >= count[d]) {
            return None;
        }
        let start = std::array::from_fn(|d| tile_idx[d] * self.tile_shape[d]);
        let size = std::array::from_fn(|d| self.tile_shape[d].min(self.tensor.shape()[d] - start[d]));
        Some(TileInfo { tile_idx, start, size, is_edge: size != self.tile_shape })
    }

    /// The elements of the tile at a position.
    ///
    /// # Errors
    /// [`Error::View`] when there is no such tile, and when it starts inside of a tile of a tiled memory layout.
    pub fn get_tile_view(&self, tile_idx: [usize; 4]) -> Result<TensorView<T>> {
        let Some(tile) = self.get_tile(tile_idx) else {
            let reason = format!("tile {tile_idx:?} is outside of {:?}", self.tile_count());
            return Err(Error::View { what: "tile", reason });
        };
        (0..4).try_fold(self.tensor, |view, d| view.slice_dim(d, tile.start[d]..tile.start[d] + tile.size[d]))
    }

    /// All tiles, the last dimension fastest.
    pub fn iter_tiles(&self) -> TileIterator<'_, T> {
        TileIterator { partition: self, next: 0, end: self.total_tiles() }
    }

    /// Whether every extent of a tile is a power of two.
    pub fn is_power_of_two_tiles(&self) -> bool {
        self.tile_shape.iter().all(|n| n.is_power_of_two())
    }

    /// Elements of a whole tile.
    pub fn elements_per_tile(&self) -> usize {
        self.tile_shape.iter().product()
    }

    /// A workgroup `(x, y, z)` for one tile on a GPU: x along the fastest dimension of more than one element, y and z
    /// along the next ones; at most 256 invocations, at most 16 along x and along y where there are both.
    ///
    /// These are limits that every WebGPU device keeps.
    pub fn recommended_workgroup_size(&self) -> (u32, u32, u32) {
        let mut extents = self.tile_shape.iter().rev().copied().filter(|&n| n > 1);
        let (x, y, z) = (extents.next().unwrap_or(1), extents.next().unwrap_or(1), extents.next().unwrap_or(1));
        if y == 1 {
            return (x.min(256) as u32, 1, 1);
        }
        let (x, y) = (x.min(16), y.min(16));
        (x as u32, y as u32, z.min(256 / (x * y)).min(64) as u32)
    }
}

impl<T> Clone for PartitionView<T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for PartitionView<T> {}

impl<T> fmt::Debug for PartitionView<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PartitionView").field("tensor", &self.tensor).field("tile_shape", &self.tile_shape).finish()
    }
}

/// The tiles of a partition, the last dimension fastest.
#[derive(Debug, Clone)]
pub struct TileIterator<'a, T> {
    partition: &'a PartitionView<T>,
    next: usize,
    end: usize,
}

impl<T> Iterator for TileIterator<'_, T> {
    type Item = TileInfo;

    fn next(&mut self) -> Option<TileInfo> {
        if self.next == self.end {
            return None;
        }
        let [_, b, c, d] = self.partition.tile_count();
        let i = self.next;
        self.next += 1;
        self.partition.get_tile([i / d / c / b, i / d / c % b, i / d % c, i % d])
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.end - self.next, Some(self.end - self.next))
    }
}

impl<T> ExactSizeIterator for TileIterator<'_, T> {}
impl<T> std::iter::FusedIterator for TileIterator<'_, T> {}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn matrix(rows: usize, columns: usize, tile: [usize; 2]) -> PartitionView<f32> {
        PartitionView::new_2d(TensorView::new_2d(rows, columns).unwrap(), tile[0], tile[1]).unwrap()
    }

    #[test]
    fn edge_tiles_are_smaller() {
        let partition = matrix(33, 16, [16, 16]);
        assert_eq!((partition.tile_count(), partition.total_tiles()), ([3, 1, 1, 1], 3));
        let tile = partition.get_tile([2, 0, 0, 0]).unwrap();
        assert_eq!((tile.start, tile.size, tile.is_edge), ([32, 0, 0, 0], [1, 16, 1, 1], true));
        assert!(!partition.get_tile([1, 0, 0, 0]).unwrap().is_edge);
        assert!(partition.get_tile([3, 0, 0, 0]).is_none());
        let view = partition.get_tile_view([2, 0, 0, 0]).unwrap();
        assert_eq!((view.offset(), view.shape()), (512, &[1, 16, 1, 1]));
        assert!(matches!(partition.get_tile_view([0, 1, 0, 0]), Err(Error::View { .. })));
    }

    #[test]
    fn the_length_of_the_iterator_is_right_at_all_times() {
        let partition = matrix(5, 7, [2, 3]);
        let mut tiles = partition.iter_tiles();
        for left in (0..9).rev() {
            assert_eq!(tiles.len(), left + 1);
            assert!(tiles.next().is_some());
            assert_eq!(tiles.len(), left);
        }
        assert!(tiles.next().is_none() && tiles.next().is_none());
        assert_eq!(tiles.len(), 0);
        assert_eq!(matrix(0, 7, [2, 3]).iter_tiles().count(), 0);
    }

    #[test]
    fn tiles_that_make_no_sense_are_refused() {
        let tensor = TensorView::<f32>::new_2d(4, 4).unwrap();
        assert!(matches!(PartitionView::new(tensor, [1, 0, 1, 1]), Err(Error::View { .. })));
        assert!(matches!(PartitionView::new(tensor, [usize::MAX, 2, 1, 1]), Err(Error::Overflow { .. })));
        assert!(matches!(PartitionView::new_power_of_two(tensor, [1, 64, 0, 0]), Err(Error::View { .. })));
        let partition = PartitionView::new_power_of_two(tensor, [1, 3, 0, 0]).unwrap();
        assert_eq!((partition.tile_shape(), partition.elements_per_tile()), (&[2, 8, 1, 1], 16));
        assert!(partition.is_power_of_two_tiles() && !matrix(4, 4, [3, 4]).is_power_of_two_tiles());
    }

    #[test]
    fn workgroups_follow_the_tile() {
        let size = |tile| {
            PartitionView::new(TensorView::<f32>::new([64; 4]).unwrap(), tile).unwrap().recommended_workgroup_size()
        };
        assert_eq!(size([16, 16, 1, 1]), (16, 16, 1));
        assert_eq!(size([8, 64, 1, 1]), (16, 8, 1));
        assert_eq!(size([1000, 1, 1, 1]), (256, 1, 1));
        assert_eq!(size([1, 1, 1, 1]), (1, 1, 1));
        assert_eq!(size([4, 8, 8, 1]), (8, 8, 4));
        assert_eq!(size([64, 2, 2, 64]), (16, 2, 2));
    }

    #[cfg(not(target_arch = "wasm32"))] // proptest is unavailable on this target
    mod properties {
        use super::*;
        use proptest::prelude::*;

        proptest! {
            #[test]
            fn tiles_cover_every_element_once(
                shape in prop::array::uniform4(0usize..6), tile in prop::array::uniform4(1usize..4),
            ) {
                let tensor = TensorView::<f32>::new(shape).unwrap();
                let partition = PartitionView::new(tensor, tile).unwrap();
                let mut seen = vec![0; tensor.numel()];
                for tile in partition.iter_tiles() {
                    let view = partition.get_tile_view(tile.tile_idx).unwrap();
                    prop_assert_eq!(view.shape(), &tile.size);
                    prop_assert_eq!(tile.is_edge, tile.size != *partition.tile_shape());
                    let [a, b, c, d] = tile.size;
                    for i in 0..a * b * c * d {
                        let index = [i / (b * c * d), i / (c * d) % b, i / d % c, i % d];
                        seen[view.linear_index(index).unwrap()] += 1;
                    }
                }
                prop_assert!(seen.iter().all(|&n| n == 1));
            }
        }
    }
}
