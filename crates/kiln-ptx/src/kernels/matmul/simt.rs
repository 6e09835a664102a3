//! The matrix product of f32 without tensor cores: `C = alpha A B + beta C`.
//!
//! A block computes a tile of C. Step by step along k, its threads bring a tile of A and one of B into shared memory, the
//! next while they multiply the last, and each adds the outer products of a few rows and columns in registers. A is stored
//! there with k outside, so that both are read in vectors, and padded, so that neither way of storing it meets banks twice.
//!
//! Every product is added by one multiply-add, in the order of k; after every 1024 of them the sum so far goes to C, which bounds
//! the length of a chain, and the error of long products with it: roundings add up as the root of that length.

use kiln_ir::Result;
use kiln_ir::op::{Matmul, MatmulExtents};

use crate::kernel::{MAX_GRID_X, extent};
use crate::kernels::math::F32;
use crate::{Argument, Builder, Global, Kernel, Launch, Pointer, PtxKernel, Shared, Value, Variable};

/// Products in a chain. A multiple of the depth of every tile.
const CHAIN: u32 = 1024;
/// Padding elements after each row of a tile in shared memory.
const PAD: u32 = 4;
/// Elements of a vector in shared memory.
const VECTOR: u32 = 4;
/// Maximum extents, so that the end of the last tile fits 32 bits.
const MOST: u64 = (1 << 31) - 1;

/// A tile of C.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Tile {
    /// Rows and columns of C of a block.
    block: u32,
    /// Products of a step.
    depth: u32,
    /// Rows and columns of C of a thread.
    thread: u32,
    /// Blocks that a multiprocessor must be able to run at once. By itself the assembler of CUDA 12.9 gives the small
    /// tile 80 registers on Volta, for three blocks, and spills.
    resident: u32,
}

impl Tile {
    /// 128 by 128, 64 elements a thread: for matrices that fill a device with such tiles.
    pub const LARGE: Self = Self { block: 128, depth: 8, thread: 8, resident: 1 };
    /// 64 by 64, 16 elements a thread.
    pub const SMALL: Self = Self { block: 64, depth: 16, thread: 4, resident: 2 };
    /// Every tile.
    pub const ALL: [Self; 2] = [Self::LARGE, Self::SMALL];

    /// Threads along a side of the block.
    const fn side(self) -> u32 {
        self.block / self.thread
    }

    const fn threads(self) -> u32 {
        self.side() * self.side()
    }

    /// Elements of a tile of A or B that a thread copies.
    const fn brings(self) -> u32 {
        self.block * self.depth / self.threads()
    }

    /// Elements of a row of a tile in shared memory.
    const fn pitch(self) -> u32 {
        self.block + PAD
    }
}

/// The matrix product, of any extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gemm {
    operation: Matmul,
    tile: Tile,
}

impl Gemm {
    /// With this tile. The operation says which operands are stored transposed.
    pub fn new(operation: Matmul, tile: Tile) -> Self {
        Self { operation, tile }
    }

    /// The launch for these extents. Buffers: A, B, C. With `beta` 0 C is not read.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³¹ - 1 for an extent or the tiles of all products.
    pub fn launch(&self, extents: MatmulExtents, alpha: f32, beta: f32) -> Result<Launch> {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = extents;
        let [rows, depth, columns] = [("m", m), ("k", k), ("n", n)].map(|(what, asked)| extent(what, asked, MOST));
        let (rows, depth, columns) = (rows?, depth?, columns?);
        let tiles = |n: u32| n.div_ceil(self.tile.block) as usize;
        // Along one dimension: the others end at 65 535 blocks.
        let blocks = batch.saturating_mul(tiles(rows).saturating_mul(tiles(columns)));
        let grid = [extent("tiles of all products", blocks, MAX_GRID_X)?, 1, 1];
        let arguments = vec![
            Argument::Buffer(0),
            Argument::Buffer(1),
            Argument::Buffer(2),
            Argument::U32(rows),
            Argument::U32(columns),
            Argument::U32(depth),
            Argument::U32(u32::from(!shared_a)),
            Argument::U32(u32::from(!shared_b)),
            Argument::F32(alpha),
            Argument::F32(beta),
        ];
        Ok(Launch { grid, arguments })
    }
}

/// One of A and B, for a block: its rows, if it is A, or its columns.
struct Side<'k> {
    at: Pointer<'k, Global, f32>,
    /// Rows of A, columns of B.
    extent: Value<'k, u32>,
    /// The first row or column of the tile.
    first: Value<'k, u32>,
    /// Whether elements are contiguous along k; otherwise along rows or columns.
    along: bool,
    /// Two tiles in shared memory: one is read while the other is written.
    tiles: Pointer<'k, Shared, f32>,
}

/// An element of every tile that a thread copies.
struct Element<'k> {
    /// Its address for k = 0.
    from: Pointer<'k, Global, f32>,
    /// Whether its row or column exists.
    there: Value<'k, bool>,
    /// Its k in the tile.
    depth: Value<'k, u32>,
    /// Its address in the first of the tiles in shared memory.
    to: Pointer<'k, Shared, f32>,
}

impl<'k> Side<'k> {
    /// The elements that a thread copies. Adjacent threads copy adjacent elements.
    fn elements(&self, k: &'k Builder, tile: Tile, depth: Value<'k, u32>) -> Vec<Element<'k>> {
        let thread = k.tid_x();
        let element = |i: u32| {
            let (place, kk) = if self.along {
                let (place, kk) = (thread >> tile.depth.ilog2(), thread & (tile.depth - 1));
                (place + i * (tile.threads() / tile.depth), kk)
            } else {
                let (place, kk) = (thread & (tile.block - 1), thread >> tile.block.ilog2());
                (place, kk + i * (tile.threads() / tile.block))
            };
            let outside = self.first + place;
            let from = if self.along {
                self.at.index_wide(k.mad_wide(outside, depth, k.cvt_u64(kk)))
            } else {
                self.at.index_wide(k.mad_wide(kk, self.extent, k.cvt_u64(outside)))
            };
            let to = self.tiles.index(k.mad(kk, tile.pitch(), place));
            Element { from, there: k.lt(outside, self.extent), depth: kk, to }
        };
        (0..tile.brings()).map(element).collect()
    }

    /// The thread's elements of the tile that begins at `k0`; zeros from `end` on.
    fn load(&self, k: &'k Builder, elements: &[Element<'k>], k0: Value<'k, u32>, end: Value<'k, u32>) -> Vec<F32<'k>> {
        let load = |element: &Element<'k>| {
            let there = k.and(element.there, k.lt(k0 + element.depth, end));
            let from = element.from;
            let from = if self.along { from.index(k0) } else { from.index_wide(k.mul_wide(k0, self.extent)) };
            k.ld_if(there, from, 0.0)
        };
        elements.iter().map(load).collect()
    }

    /// Rows or columns of a thread for one k: vectors of four, a side of the block apart. `from` is the first for k =
    /// 0.
    fn fragment(k: &'k Builder, tile: Tile, from: Pointer<'k, Shared, f32>, kk: u32) -> Vec<F32<'k>> {
        let vector = |v: u32| k.ld_v::<_, _, 4>(from.offset((kk * tile.pitch() + v * tile.side() * VECTOR) as i32));
        (0..tile.thread / VECTOR).flat_map(vector).collect()
    }
}

impl Gemm {
    fn write(&self, k: &Builder) {
        let tile = self.tile;
        k.resident_blocks(tile.resident);
        let [a, b, c] = ["a", "b", "c"].map(|name| k.buffer::<f32>(name));
        let [m, n, depth, batched_a, batched_b] =
            ["m", "n", "k", "batched_a", "batched_b"].map(|name| k.parameter::<u32>(name));
        let [alpha, beta] = ["alpha", "beta"].map(|name| k.parameter::<f32>(name));
        // The columns of tiles first, then their rows.
        let [rows, columns] = [m, n].map(|extent| (extent + (tile.block - 1)) >> tile.block.ilog2());
        let (column, rest) = (k.ctaid_x() % columns, k.ctaid_x() / columns);
        let (row, product) = (rest % rows, rest / rows);
        let stage = tile.depth * tile.pitch();
        let sides = [
            Side {
                at: a.index_wide(k.cvt_u64(product * batched_a) * k.mul_wide(m, depth)),
                extent: m,
                first: row * tile.block,
                along: !self.operation.transpose_a,
                tiles: k.shared(2 * stage),
            },
            Side {
                at: b.index_wide(k.cvt_u64(product * batched_b) * k.mul_wide(depth, n)),
                extent: n,
                first: column * tile.block,
                along: self.operation.transpose_b,
                tiles: k.shared(2 * stage),
            },
        ];
        let c = c.index_wide(k.cvt_u64(product) * k.mul_wide(m, n));
        let elements = [0, 1].map(|side: usize| sides[side].elements(k, tile, depth));
        let load = |k0, end| [0, 1].map(|side: usize| sides[side].load(k, &elements[side], k0, end));
        let store = |brought: [Vec<F32<'_>>; 2], stage: Value<'_, u32>| {
            for (elements, brought) in elements.iter().zip(brought) {
                for (element, x) in elements.iter().zip(brought) {
                    k.st(element.to.index(stage), x);
                }
            }
        };
        let thread = k.tid_x();
        // The first row and column of the thread in the block.
        let mine = [thread >> tile.side().ilog2(), thread & (tile.side() - 1)].map(|at| at * VECTOR);

        let beta = k.variable(beta);
        // Without products one iteration writes beta C.
        k.for_(0, k.max(depth, 1), CHAIN, |begin| {
            let end = k.min(depth, begin + CHAIN);
            let sums: Vec<_> = (0..tile.thread * tile.thread).map(|_| k.variable(0.0f32)).collect();
            let at = k.variable(0u32);
            store(load(begin, end), at.get());
            k.bar_sync(0u32);
            k.for_(begin, end, tile.depth, |k0| {
                let next = load(k0 + tile.depth, end);
                let from = [0, 1].map(|side: usize| sides[side].tiles.index(mine[side] + at));
                let mut added: Vec<F32<'_>> = Vec::new();
                for kk in 0..tile.depth {
                    let [rows, columns] = from.map(|from| Side::fragment(k, tile, from, kk));
                    let products = rows.iter().flat_map(|&row| columns.iter().map(move |&column| (row, column)));
                    added = if kk == 0 {
                        products.zip(&sums).map(|((row, column), &sum)| k.fma(row, column, sum)).collect()
                    } else {
                        products.zip(&added).map(|((row, column), &sum)| k.fma(row, column, sum)).collect()
                    };
                }
                sums.iter().zip(added).for_each(|(sum, added)| sum.set(added));
                let other = at.get() ^ stage;
                store(next, other);
                at.set(other);
                // No thread reads the other tile before it is complete, nor writes this one before all have read it.
                k.bar_sync(0u32);
            });
            self.add(k, c, [m, n], [sides[0].first + mine[0], sides[1].first + mine[1]], &sums, alpha, beta.get());
            beta.set(1.0);
        });
    }

    /// `C = alpha sums + beta C`, for the elements of a thread. `first` are their first row and column.
    fn add<'k>(
        &self,
        k: &'k Builder,
        c: Pointer<'k, Global, f32>,
        [m, n]: [Value<'k, u32>; 2],
        first: [Value<'k, u32>; 2],
        sums: &[Variable<'k, f32>],
        alpha: F32<'k>,
        beta: F32<'k>,
    ) {
        let tile = self.tile;
        let place = |i: u32| i / VECTOR * tile.side() * VECTOR + i % VECTOR;
        let reads = k.not(k.eq(beta, 0.0));
        let there: Vec<_> = (0..tile.thread).map(|j| k.lt(first[1] + place(j), n)).collect();
        let read: Vec<_> = there.iter().map(|&there| k.and(there, reads)).collect();
        for (i, sums) in (0..).zip(sums.chunks(tile.thread as usize)) {
            let row = first[0] + place(i);
            k.if_(k.lt(row, m), || {
                let row = c.index_wide(k.mad_wide(row, n, k.cvt_u64(first[1])));
                for (j, &sum) in (0..).zip(sums) {
                    let at = row.offset(place(j) as i32);
                    let old = k.ld_if(read[j as usize], at, 0.0);
                    k.st_if(there[j as usize], at, k.fma(alpha, sum, beta * old));
                }
            });
        }
    }
}

impl Kernel for Gemm {
    fn name(&self) -> String {
        let stored = |transposed: bool| if transposed { 't' } else { 'n' };
        let Matmul { transpose_a, transpose_b } = self.operation;
        let Tile { block, depth, .. } = self.tile;
        format!("gemm_{}{}_{block}x{block}x{depth}", stored(transpose_a), stored(transpose_b))
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [self.tile.threads(), 1, 1], |k| self.write(k))
    }
}
