//! Layouts of elements in memory: views with strides, their partition into tiles, and reductions tile by tile.
//!
//! For programs that describe memory of their own, and for users of trueno, which has the same names. kiln-wgpu runs
//! the tiled reductions on a GPU and is tested against those here. Operations take contiguous tensors.

mod partition;
mod tiled;
mod view;

pub use partition::{PartitionView, TileInfo, TileIterator};
pub use tiled::{
    MaxOp, MinOp, ReduceOp, SumOp, TILE_SIZE, tiled_max_2d, tiled_min_2d, tiled_reduce_2d, tiled_reduce_partial,
    tiled_sum_2d,
};
pub use view::{MemoryLayout, TensorView};
