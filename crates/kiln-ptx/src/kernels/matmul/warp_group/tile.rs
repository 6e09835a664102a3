//! The tiles of C, and the choice of the fastest one.

use kiln_ir::op::MatmulExtents;
use kiln_ir::{Error, Result};

use super::{DEPTH_BYTES, GROUP, WARP_ROWS};
use crate::PtxType;

/// Shared memory of a block on Hopper.
const SHARED: u32 = 227 << 10;

/// The data that the blocks of a cluster share.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Cluster {
    Alone,
    /// B; each block has its own rows.
    Columns(u32),
    /// A tile; each block has a part of k.
    Tile(u32),
}

/// A tile of C, and the stages of its operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarpGroupTile {
    /// Warp groups that multiply.
    pub(super) groups: u32,
    /// Number of 64-row blocks of each of them.
    pub(super) blocks: u32,
    pub(super) columns: u32,
    pub(super) stages: u32,
    pub(super) cluster: Cluster,
}

impl WarpGroupTile {
    /// A tile of `groups` (1 or 2) warp groups with `blocks` times 64 rows each, `columns` (16, 32, 64, 128 or 256) and as many
    /// stages as shared memory holds, up to `stages`.
    ///
    /// # Errors
    /// [`Error::Parameter`] when registers or shared memory do not hold it.
    pub fn new(groups: u32, blocks: u32, columns: u32, stages: u32) -> Result<Self> {
        let tile = Self { groups, blocks, columns, stages, cluster: Cluster::Alone };
        let sound = matches!(groups, 1 | 2) && matches!(columns, 16 | 32 | 64 | 128 | 256);
        let rest = SHARED.saturating_sub(tile.staging_bytes() + 1024);
        let tile = Self { stages: stages.min(rest / (DEPTH_BYTES * (tile.rows() + columns))), ..tile };
        if !sound || blocks == 0 || blocks * columns > 256 || tile.stages < 2 {
            return Err(Error::Parameter {
                op: "matmul",
                reason: format!(
                    "a tile of {groups} warp groups with {blocks} blocks of 64 by {columns} and {stages} stages is not supported"
                ),
            });
        }
        Ok(tile)
    }

    /// The tile that takes the least time for these extents and elements of this type on a device of this many
    /// multiprocessors, by a simple count: of waves of tiles, of steps, and in a step of cycles, for the products or for what
    /// they read through the second-level cache, whichever are more. On an H200 its choices were within 3 % of the best of a
    /// dozen tiles, for squares of 1024 to 8192 and for 16 to 128 rows of matrices of 4096 x 4096 and 4096 x 14336.
    pub fn for_extents(extents: MatmulExtents, input: PtxType, multiprocessors: u32) -> Self {
        Self::least(extents, depth_of(input), multiprocessors, |_| true)
    }

    /// The same for matrices in planes.
    pub fn for_planes(extents: MatmulExtents, input: PtxType, multiprocessors: u32) -> Self {
        let best = Self::least(extents, depth_of(input), multiprocessors, Self::adds_chains);
        // Small tiles read so much that sharing is faster from few waves on: on an H200, by 10 % at 4096 in a cube, and
        // not at 2048.
        let many = 4 * u64::from(multiprocessors);
        if best.groups == 2 && best.columns == 128 && best.units(extents) > many { best.pairs() } else { best }
    }

    fn least(extents: MatmulExtents, depth: u32, multiprocessors: u32, serves: impl Fn(Self) -> bool) -> Self {
        let alone = |groups, columns, stages| Self { groups, blocks: 1, columns, stages, cluster: Cluster::Alone };
        let large = alone(2, 256, 4);
        let tiles = [large, alone(2, 128, 6), alone(1, 128, 8), alone(2, 64, 8), alone(1, 64, 12)];
        let all = tiles.into_iter().chain([alone(2, 64, 8).split(2)]);
        // No idle warp groups, and no parts of k without a step.
        let fits = |tile: &Self| {
            let (rows, steps) = (extents.m.div_ceil(64).max(1), extents.k.div_ceil(depth as usize));
            serves(*tile) && rows >= (tile.rows() / 64) as usize && steps >= tile.parts() as usize
        };
        let best = all.filter(fits).min_by_key(|tile| tile.cycles(extents, depth, multiprocessors));
        let best = best.unwrap_or(alone(1, 64, 12));
        // Sharing reads is faster if many tiles follow one another.
        let many = 8 * u64::from(multiprocessors);
        if best == large && best.units(extents) > many { best.pairs() } else { best }
    }

    /// Whether the registers hold the sums twice.
    pub(super) fn adds_chains(self) -> bool {
        self.blocks * self.columns <= 128
    }

    /// Number of tiles, or of groups of tiles that share columns.
    pub(super) fn units(self, extents: MatmulExtents) -> u64 {
        let along = |extent: usize, tile: u32| (extent as u64).div_ceil(tile.into());
        let tiles = along(extents.m, self.rows() * self.sharing()).saturating_mul(along(extents.n, self.columns));
        tiles.saturating_mul(extents.batch as u64)
    }

    /// Approximate cycles of a product.
    fn cycles(self, extents: MatmulExtents, depth: u32, multiprocessors: u32) -> u64 {
        /// Bytes along k by rows and columns that a multiprocessor multiplies in a cycle.
        const PRODUCTS: u64 = 4096;
        /// Bytes that it reads per cycle: slightly less than the peak.
        const BYTES: u64 = 63;
        /// Cycles for summing the parts of a cluster.
        const ADDING: u64 = 2000;
        let [rows, columns, parts] = [self.rows(), self.columns, self.parts()].map(u64::from);
        let bytes = u64::from(DEPTH_BYTES);
        let step = (rows * columns * bytes / PRODUCTS).max((rows + columns) * bytes / BYTES);
        let steps = (extents.k as u64).div_ceil(u64::from(depth) * parts);
        let waves = self.units(extents).div_ceil((u64::from(multiprocessors) / u64::from(self.cluster())).max(1));
        // The writes of the last wave do not overlap with computation.
        let last = rows * columns / 16 + if parts > 1 { ADDING } else { 0 };
        waves.saturating_mul(steps).saturating_mul(step).saturating_add(last)
    }

    /// Two blocks one below the other share their B.
    pub fn pairs(self) -> Self {
        Self { cluster: Cluster::Columns(2), ..self }
    }

    /// This many blocks share a tile, each with a part of k.
    pub fn split(self, blocks: u32) -> Self {
        Self { cluster: Cluster::Tile(blocks), ..self }
    }

    /// Rows of a tile.
    pub fn rows(self) -> u32 {
        64 * self.blocks * self.groups
    }

    /// Columns of a tile.
    pub fn columns(self) -> u32 {
        self.columns
    }

    /// Blocks of a cluster.
    pub fn cluster(self) -> u32 {
        match self.cluster {
            Cluster::Alone => 1,
            Cluster::Columns(blocks) | Cluster::Tile(blocks) => blocks,
        }
    }

    /// Blocks that share columns.
    pub(super) fn sharing(self) -> u32 {
        if let Cluster::Columns(blocks) = self.cluster { blocks } else { 1 }
    }

    /// Parts that k is cut into.
    pub(super) fn parts(self) -> u32 {
        if let Cluster::Tile(blocks) = self.cluster { blocks } else { 1 }
    }

    pub(super) fn threads(self) -> u32 {
        GROUP * (1 + self.groups)
    }

    /// Whether the multiplying warp groups need registers of the copying one. Otherwise the kernel moves none: for a
    /// kernel that moves any the assembler gives a thread too few.
    pub(super) fn moves_registers(self) -> bool {
        self.groups == 2 && self.blocks * self.columns > 128
    }

    /// Every warp has two buffers for 16 rows of a panel.
    pub(super) fn staging_bytes(self) -> u32 {
        4 * self.groups * 2 * WARP_ROWS * 128
    }
}

/// Products of a stage along k.
pub(super) fn depth_of(input: PtxType) -> u32 {
    DEPTH_BYTES / input.bytes()
}
