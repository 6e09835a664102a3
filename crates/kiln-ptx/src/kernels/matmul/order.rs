//! The order in which blocks take tiles of C.

use crate::{Builder, Value};

/// Vertically adjacent tiles, or pairs of tiles, that blocks process together, so that those in progress at once cover
/// about a square. 4 and 16 were no faster on an H200.
const BAND: u32 = 8;

/// The order of tiles: bands of [`BAND`] vertically adjacent tiles, each processed column by column.
pub(in crate::kernels) struct Order<'k> {
    pub(in crate::kernels) along: Value<'k, u32>,
    pub(in crate::kernels) down: Value<'k, u32>,
}

impl<'k> Order<'k> {
    /// The product and the tile of a number.
    pub(in crate::kernels) fn place(&self, k: &'k Builder, unit: Value<'k, u32>) -> [Value<'k, u32>; 3] {
        let tiles = self.down * self.along;
        let (batch, tile) = (unit / tiles, unit % tiles);
        let band = self.along * BAND;
        let (number, rest) = (tile / band, tile % band);
        let first = number * BAND;
        let height = k.min(BAND, self.down - first);
        [batch, first + rest % height, rest / height]
    }
}
