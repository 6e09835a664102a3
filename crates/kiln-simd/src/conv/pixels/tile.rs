//! The register tile: a row of results times one or two vectors of output channels.

use crate::Isa;
use crate::matmul::{each_row, for_rows};
use crate::vector::{Registers, Routine, Vector, by_isa, routine};

/// Maximum number of results of a tile for any instruction set.
const MOST: usize = 14;

/// Maximum results of a tile of this many vectors such that sums, a row of the kernels and a pixel fit the registers;
/// an unfused product needs one more register.
const fn rows(registers: usize, fused: bool, vectors: usize) -> usize {
    match (registers >= 32, fused && registers >= 16) {
        (true, _) => MOST,
        (_, true) => 12 / vectors,
        _ => 8 / vectors,
    }
}

/// The work of a tile: for each result `i` the sum over channels and kernel positions of `x[i + offset]` times a row of
/// the kernels.
pub(super) struct Tile {
    /// The pixel at offset 0 for the first result.
    pub(super) x: *const f32,
    /// Distance between channels.
    pub(super) plane: usize,
    /// Number of channels.
    pub(super) channels: usize,
    /// The offsets of the kernel positions to include.
    pub(super) offsets: *const [u64],
    /// The row of the first position of the first channel.
    pub(super) kernels: *const f32,
    /// Elements between the last position of a channel and the first of the next one.
    pub(super) skip: usize,
    /// The sums, a row for each result.
    pub(super) sums: *mut f32,
    /// Whether they are added to the existing ones.
    pub(super) add: bool,
    /// Memory that is read later: this many cache lines of it are prefetched into the L2 cache with each channel.
    pub(super) ahead: *const f32,
    /// Number of these cache lines for each channel.
    pub(super) lines: usize,
}

/// The tile of `R` results and `C` vectors.
struct Pixels<const R: usize, const C: usize>;

impl<const R: usize, const C: usize> Routine for Pixels<R, C> {
    type Args = Tile;

    /// # Safety
    /// All memory that the tile describes is readable, its sums are writable, and nothing else accesses them.
    #[inline(always)]
    unsafe fn run<V: Vector>(t: &Tile) {
        // Never called; returning here keeps the rest from being compiled.
        if const { R > rows(V::REGISTERS, V::FUSED, C) } {
            return;
        }
        // SAFETY: the contract of this function.
        unsafe {
            let zero = V::splat(0.0);
            let mut acc = for_rows!([zero, zero]);
            let (mut x, mut kernels, mut ahead) = (t.x, t.kernels, t.ahead);
            for _ in 0..t.channels {
                for _ in 0..t.lines {
                    V::prefetch_far(ahead);
                    ahead = ahead.wrapping_add(16);
                }
                for &offset in &*t.offsets {
                    let pixels = x.add(offset as usize);
                    let first = V::load(kernels);
                    let second = if const { C > 1 } { V::load(kernels.add(V::LANES)) } else { zero };
                    each_row!(R, I => {
                        let pixel = V::splat(*pixels.add(I));
                        acc[I][0] = pixel.mul_add(first, acc[I][0]);
                        if const { C > 1 } {
                            acc[I][1] = pixel.mul_add(second, acc[I][1]);
                        }
                    });
                    kernels = kernels.add(C * V::LANES);
                }
                x = x.wrapping_add(t.plane);
                kernels = kernels.wrapping_add(t.skip);
            }
            each_row!(R, I => {
                for v in 0..C {
                    let p = t.sums.add((I * C + v) * V::LANES);
                    let sum = if t.add { V::load(p) + acc[I][v] } else { acc[I][v] };
                    sum.store(p);
                }
            });
        }
    }
}

type TileFn = unsafe fn(&Tile);

/// The tiles of an instruction set.
#[derive(Clone, Copy)]
pub(super) struct TileSet {
    /// Results of the largest tile, by vectors minus one.
    rows: [usize; 2],
    /// Lanes of a vector.
    pub(super) lanes: usize,
    /// Tile functions by vectors minus one, and results minus one.
    fns: [[TileFn; MOST]; 2],
}

impl TileSet {
    pub(super) fn of(isa: Isa) -> &'static Self {
        static SETS: [TileSet; Isa::ALL.len()] = by_isa!(TileSet::new);
        &SETS[isa as usize]
    }

    const fn new(isa: Isa) -> Self {
        macro_rules! heights {
            ($c:literal, $($r:literal)*) => { [$(routine::<Pixels<$r, $c>>(isa)),*] };
        }
        let fns = [heights!(1, 1 2 3 4 5 6 7 8 9 10 11 12 13 14), heights!(2, 1 2 3 4 5 6 7 8 9 10 11 12 13 14)];
        let Registers { lanes, count, fused, .. } = isa.registers();
        Self { rows: [rows(count, fused, 1), rows(count, fused, 2)], lanes, fns }
    }

    /// Maximum results of a tile of this many vectors.
    pub(super) fn most(&self, vectors: usize) -> usize {
        self.rows[vectors - 1]
    }

    /// The tile of this many results and vectors.
    pub(super) fn get(&self, results: usize, vectors: usize) -> TileFn {
        self.fns[vectors - 1][results - 1]
    }
}
