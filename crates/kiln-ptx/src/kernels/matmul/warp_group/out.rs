//! The output of the multiplying warp groups: each writes its part of a tile.

use super::tile::WarpGroupTile;
use super::{GROUP, WARP_ROWS};
use crate::kernels::half::pack;
use crate::kernels::math::F32;
use crate::kernels::matmul::epilogue::{Elements, Finish};
use crate::operands::Groups;
use crate::{Builder, Panels, Pointer, Shared, TensorParameter, Value};

/// The output of a multiplying thread: its part of a tile.
pub(super) struct Out<'k> {
    pub(super) k: &'k Builder,
    pub(super) tile: WarpGroupTile,
    pub(super) finish: Finish<'k>,
    /// m and n.
    pub(super) extents: [Value<'k, u32>; 2],
    /// The first row of the warp and the first column of the tile.
    pub(super) first: [Value<'k, u32>; 2],
    /// Row and column of the first value of the thread.
    pub(super) mine: [Value<'k, u32>; 2],
}

impl<'k> Out<'k> {
    /// Applies the epilogue to the values of 8 columns of a block: two adjacent ones in each of two rows.
    pub(super) fn finish(&self, sums: [F32<'k>; 4], row: Value<'k, u32>, column: Value<'k, u32>) -> [[F32<'k>; 2]; 2] {
        let k = self.k;
        let [m, n] = self.extents;
        let there = k.lt(column, n);
        let bias = self.finish.bias(there, column);
        [0, 1].map(|i: usize| {
            let row = row + i as u32 * (WARP_ROWS / 2);
            let there = k.and(there, k.lt(row, m));
            self.finish.apply(there, [row, column], bias, [sums[2 * i], sums[2 * i + 1]])
        })
    }

    /// Stores by copies, a panel at a time.
    pub(super) fn store(
        &self,
        values: &[F32<'k>],
        panels: Panels,
        staging: Pointer<'k, Shared, u32>,
        stores: TensorParameter<'k>,
        batch: Value<'k, u32>,
        lane: Value<'k, u32>,
    ) {
        let (k, tile) = (self.k, self.tile);
        let half = panels.width() == 64;
        // The addresses of this lane in a panel: rows of 8 columns for `stmatrix`, or pairs.
        let places: Vec<_> = (0..4u32)
            .map(|i| match half {
                true => panels.piece(k, staging, lane & 15, (lane >> 4) + 2 * i),
                false => {
                    let pair = lane & 3;
                    panels.piece(k, staging, lane >> 2, (pair >> 1) + 2 * i).byte_index((pair & 1) << 3)
                }
            })
            .collect();
        let chunks = tile.columns / panels.width();
        // With an even number of panels per tile, the two buffers alternate.
        let pending = 1 - (tile.blocks * chunks) % 2;
        for block in 0..tile.blocks {
            let values = &values[(block * tile.columns / 2) as usize..];
            for chunk in 0..chunks {
                let place = (block * chunks + chunk) % 2 * panels.panel_bytes();
                k.if_(k.eq(lane, 0), || k.cp_async_bulk_wait_group_read::<u32>(Groups(pending)));
                k.bar_warp_sync(u32::MAX);
                let first = chunk * panels.width();
                let finished: Vec<_> = (0..panels.width() / 8)
                    .map(|j| {
                        let at = ((first / 8 + j) * 4) as usize;
                        let sums = [values[at], values[at + 1], values[at + 2], values[at + 3]];
                        self.finish(sums, self.mine[0] + block * 64, self.mine[1] + (first + 8 * j))
                    })
                    .collect();
                for (i, &to) in places.iter().enumerate() {
                    let to = to.bytes(place as i32);
                    if half {
                        let eights = [finished[2 * i], finished[2 * i + 1]].as_flattened().to_vec();
                        let packed: Vec<_> = eights.iter().map(|&pair| pack(k, self.finish.output, pair)).collect();
                        k.stmatrix_x4::<u32>(to, k.gather([packed[0], packed[1], packed[2], packed[3]]));
                    } else {
                        let [upper, lower] = finished[i];
                        k.st_v(to.cast::<f32>(), upper);
                        k.st_v(to.cast::<f32>().bytes((WARP_ROWS / 2 * 128) as i32), lower);
                    }
                }
                k.fence_proxy_async::<u32>();
                k.bar_warp_sync(u32::MAX);
                k.if_(k.eq(lane, 0), || {
                    let to = stores.at([self.first[1] + first, self.first[0] + block * 64, batch]);
                    k.cp_async_bulk_tensor_store::<u32>(to, staging.bytes(place as i32));
                    k.cp_async_bulk_commit_group::<u32>();
                });
            }
        }
    }

    /// Stores directly from threads; values in fours, beginning with the one of this number.
    pub(super) fn direct(&self, c: Elements<'k>, four: Value<'k, u32>, sums: [F32<'k>; 4]) {
        let k = self.k;
        let [m, n] = self.extents;
        let eights = self.tile.columns / 8;
        let column = self.mine[1] + ((four & (eights - 1)) << 3);
        let row = self.mine[0] + ((four >> eights.ilog2()) << 6);
        let values = self.finish(sums, row, column);
        for (i, values) in (0..).zip(values) {
            let row = row + i * (WARP_ROWS / 2);
            c.store(k.and(k.lt(column, n), k.lt(row, m)), row, column, values);
        }
    }

    /// Sums the partial tiles of the blocks of the cluster, each block one part of the tile, and stores that.
    pub(super) fn reduce(
        &self,
        values: &[F32<'k>],
        scratch: Pointer<'k, Shared, u32>,
        [rank, thread]: [Value<'k, u32>; 2],
        c: Elements<'k>,
        meet: &dyn Fn(),
    ) {
        let (k, tile) = (self.k, self.tile);
        let threads = GROUP * tile.groups;
        let scratch = scratch.cast::<f32>().byte_index(thread << 4);
        // The other warp group may still multiply the data there.
        k.bar_sync_some(1u32, threads);
        for (four, values) in (0..).zip(values.chunks_exact(4)) {
            let to = scratch.bytes(four * threads as i32 * 16);
            k.st_v(to, [values[0], values[1], values[2], values[3]]);
        }
        meet();
        let share = values.len() as u32 / 4 / tile.parts();
        let first = rank * share;
        let parts: Vec<_> =
            (0..tile.parts()).map(|part| scratch.of_block(part).byte_index(first * (threads * 16))).collect();
        for four in 0..share {
            let parts = parts.iter().map(|part| k.ld_v::<_, _, 4>(part.bytes((four * threads * 16) as i32)));
            let sums = parts.reduce(|a, b| [0, 1, 2, 3].map(|i: usize| a[i] + b[i]));
            self.direct(c, first + four, sums.expect("a tile has parts"));
        }
    }
}
