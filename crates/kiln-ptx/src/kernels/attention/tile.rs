//! The tiles of attention on tensor cores.

use kiln_ir::{Error, Result};

use crate::kernels::team::WARP;
use crate::{Panels, PtxType};

/// Rows of a product.
const ROWS: u32 = 16;
/// Number of buffers for keys and values, so that the next ones are copied while these are used.
pub(super) const STAGES: u32 = 2;
/// Maximum shared memory of a block, on devices that have little.
const SHARED: u32 = 99 << 10;
/// f32 registers of a thread for fragments: the rest of 255 is for addresses, operands and sums of weights.
const REGISTERS: u32 = 208;

/// The queries of a block and the keys that it takes at a time. Where a warp has 32 queries of 80 elements or more, 32 of 64
/// and 128 keys, or 16 of 256, a thread uses all of its 255 registers, and the assembler moves some addresses out of the way of
/// the loop, into memory: of kernels for smaller tiles it moves none.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct FlashTile {
    warps: u32,
    blocks: u32,
    keys: u32,
}

impl FlashTile {
    /// A tile of `warps` (4 or 8) warps with `blocks` (1 or 2) times 16 queries each, and `keys` (32, 64 or 128) keys at a time.
    ///
    /// # Errors
    /// [`Error::Parameter`] for other numbers.
    pub fn new(warps: u32, blocks: u32, keys: u32) -> Result<Self> {
        if matches!(warps, 4 | 8) && matches!(blocks, 1 | 2) && matches!(keys, 32 | 64 | 128) {
            return Ok(Self { warps, blocks, keys });
        }
        let reason = format!(
            "a tile has 4 or 8 warps, 1 or 2 blocks of {ROWS} queries and 32, 64 or 128 keys, not {warps}, {blocks} and {keys}"
        );
        Err(Error::Parameter { op: "attention", reason })
    }

    /// For `rows` queries that share keys, of `width` elements. On an H200 none of half a dozen other tiles was faster for long
    /// rows of 64 and 128 elements, but for causal ones of 128 at 2048 keys, where half as many keys at a time took 2 % less.
    pub fn for_extents(rows: usize, width: u32) -> Self {
        let blocks = if width > 128 || rows <= 4 * ROWS as usize { 1 } else { 2 };
        let keys = match width {
            64 if blocks == 2 => 128,
            0..=128 => 64,
            _ => 32,
        };
        Self { warps: 4, blocks, keys }
    }

    /// Whether shared memory and registers suffice for rows of `width` elements, and its threads copy whole rows.
    pub(super) fn holds(self, width: u32) -> bool {
        // Pieces of a row in its last panel.
        let pieces = match width / 8 % 8 {
            0 => 8,
            rest => rest,
        };
        let step = self.threads() / pieces;
        self.shared_bytes(width) <= SHARED && self.fragments(width) <= REGISTERS && self.keys.is_multiple_of(step)
    }

    /// Registers of a thread for results and scores.
    fn fragments(self, width: u32) -> u32 {
        self.blocks * (width + self.keys) / 2
    }

    /// Whether there are registers to keep the queries; otherwise they are read again for every tile of keys.
    pub(super) fn keeps_queries(self, width: u32) -> bool {
        self.fragments(width) + self.blocks * width / 4 <= REGISTERS
    }

    fn shared_bytes(self, width: u32) -> u32 {
        self.panels(self.rows(), width).bytes() + 2 * STAGES * self.panels(self.keys, width).bytes()
    }

    /// This many rows of 16-bit numbers in shared memory.
    pub(super) fn panels(self, rows: u32, width: u32) -> Panels {
        const PANEL: u32 = 64;
        Panels::new(PtxType::F16, rows, width.next_multiple_of(PANEL))
    }

    /// Queries of a block.
    pub fn rows(self) -> u32 {
        ROWS * self.blocks * self.warps
    }

    /// Queries of a warp.
    pub(super) fn warp_rows(self) -> u32 {
        ROWS * self.blocks
    }

    /// Blocks of 16 queries of a warp.
    pub(super) fn blocks(self) -> u32 {
        self.blocks
    }

    /// Keys at a time.
    pub fn keys(self) -> u32 {
        self.keys
    }

    pub(super) fn threads(self) -> u32 {
        self.warps * WARP
    }
}
