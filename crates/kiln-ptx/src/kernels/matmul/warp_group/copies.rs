//! The warp group that fills stages with copies.

use super::DEPTH_BYTES;
use crate::operands::Blocks;
use crate::{Builder, Panels, Pointer, Shared, TensorParameter, Value};

/// The thread that fills stages with copies.
pub(super) struct Copies<'k> {
    pub(super) k: &'k Builder,
    pub(super) panels: [Panels; 2],
    pub(super) across: [bool; 2],
    pub(super) maps: [TensorParameter<'k>; 2],
    /// Number of blocks that share their tiles of B, and the index of this one.
    pub(super) sharing: u32,
    pub(super) rank: Value<'k, u32>,
}

impl<'k> Copies<'k> {
    /// Copies the tiles of A and B that begin at a row, at a column and at a k, for these products.
    pub(super) fn load(
        &self,
        stages: [Pointer<'k, Shared, u32>; 2],
        full: Pointer<'k, Shared, u64>,
        [row, column]: [Value<'k, u32>; 2],
        depth: Value<'k, u32>,
        batches: [Value<'k, u32>; 2],
    ) {
        let [to_a, to_b] = stages;
        self.bring(0, to_a, full, row, depth, batches[0]);
        if self.sharing == 1 {
            return self.bring(1, to_b, full, column, depth, batches[1]);
        }
        let bytes = self.panels[1].bytes();
        let columns = bytes / DEPTH_BYTES;
        self.bring(1, to_b.byte_index(self.rank * bytes), full, column + self.rank * columns, depth, batches[1]);
    }

    fn bring(
        &self,
        operand: usize,
        to: Pointer<'k, Shared, u32>,
        full: Pointer<'k, Shared, u64>,
        outside: Value<'k, u32>,
        depth: Value<'k, u32>,
        batch: Value<'k, u32>,
    ) {
        let (k, panels) = (self.k, self.panels[operand]);
        for panel in 0..panels.count() {
            let to = to.bytes((panel * panels.panel_bytes()) as i32);
            let along = panel * panels.width();
            let coordinates = match self.across[operand] {
                true => [outside + along, depth, batch],
                false => [depth + along, outside, batch],
            };
            let from = self.maps[operand].at(coordinates);
            if operand == 1 && self.sharing > 1 {
                k.cp_async_bulk_tensor_multicast::<u32>(to, from, full, Blocks((1 << self.sharing) - 1));
            } else {
                k.cp_async_bulk_tensor_load::<u32>(to, from, full);
            }
        }
    }
}
