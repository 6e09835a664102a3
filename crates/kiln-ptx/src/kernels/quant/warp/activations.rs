//! Rows of x as the second operand of products of bytes.

use super::super::Word;
use super::super::rounding::{GROUP, Rounded, VECTOR};
use super::Shape;
use crate::kernels::experts::Chosen;
use crate::kernels::math::F32;
use crate::kernels::team::{self, WARP};
use crate::{Builder, Global, Pointer, Shared, Value, Variable};

/// Adjacent vectors of a chunk of x that a thread loads, and their destination.
struct Place<'k> {
    row: Word<'k>,
    /// The row of x, if rows are not consecutive.
    chosen: Option<Word<'k>>,
    /// The first element in the chunk.
    element: Word<'k>,
    vectors: Vec<[Variable<'k, f32>; VECTOR as usize]>,
    /// With a norm, the same vectors of gamma.
    gammas: Vec<[Variable<'k, f32>; VECTOR as usize]>,
    /// With a norm, the sum of the squares of the thread's elements of the row, from the first pass over it.
    squares: Option<Variable<'k, f32>>,
}

/// Chunks of the rows of x in shared memory: 16-bit elements as a plane of upper and one of lower bytes, and for every
/// 32 elements the factor of their integers, and the sum of these.
///
/// Elements that are not finite, or tiny, have no such integers: the scale is then NaN.
pub(super) struct Activations<'k> {
    k: &'k Builder,
    shape: Shape,
    x: Pointer<'k, Global, f32>,
    gamma: Option<Pointer<'k, Global, f32>>,
    /// The first row, the number of rows, elements of a row.
    extents: [Word<'k>; 3],
    planes: Pointer<'k, Shared, u32>,
    scales: Pointer<'k, Shared, f32>,
    places: Vec<Place<'k>>,
    /// With a norm, sums of squares of each warp and place.
    squares: Option<Pointer<'k, Shared, f32>>,
}

/// The addresses from which a lane reads planes and scales.
pub(super) struct Reader<'k> {
    pub(super) plane: Pointer<'k, Shared, u32>,
    pub(super) scale: Pointer<'k, Shared, f32>,
}

impl<'k> Activations<'k> {
    /// `extents` are the first row, the number of rows and the elements of a row. With a tile the rows are those of its
    /// products.
    pub(super) fn new(
        k: &'k Builder,
        shape: Shape,
        (x, gamma): (Pointer<'k, Global, f32>, Option<Pointer<'k, Global, f32>>),
        extents: [Word<'k>; 3],
        tile: Option<Chosen<'k>>,
    ) -> Self {
        let planes = k.shared::<u32>(shape.slots() * shape.slot_bytes() / 4);
        let scales = k.shared::<f32>(shape.slots() * Self::slot_scales(shape));
        let (of_row, threads) = (Self::places_of_row(shape), shape.threads());
        let thread = k.tid_x();
        let place = |turn: u32| {
            let first = turn * threads;
            let row = (thread >> of_row.ilog2()) + first / of_row;
            let element = ((thread & (of_row - 1)) + first % of_row) * (VECTOR * Self::vectors(shape));
            let vectors = (0..Self::vectors(shape)).map(|_| [0.0; 4].map(|zero| k.variable(zero)));
            // Places after the last row read some row, whose values are not used.
            let chosen = tile.map(|tile| tile.row(tile.product(k.min(row, shape.rows - 1))));
            let gammas = gamma.map_or(0, |_| Self::vectors(shape));
            let gammas = (0..gammas).map(|_| [0.0; 4].map(|zero| k.variable(zero))).collect();
            let squares = gamma.map(|_| k.variable(0.0f32));
            Place { row, chosen, element, vectors: vectors.collect(), gammas, squares }
        };
        let places = (0..(shape.rows * of_row).div_ceil(threads)).map(place).collect();
        let squares = gamma.map(|_| k.shared::<f32>(Self::warps_of_row(shape) * shape.rows));
        Self { k, shape, x, gamma, extents, planes, scales, places, squares }
    }

    /// Vectors of a place: with many rows, the more elements of a group a thread has, the fewer it exchanges.
    fn vectors(shape: Shape) -> u32 {
        shape.rows.min(4)
    }

    fn places_of_row(shape: Shape) -> u32 {
        shape.chunk() / (VECTOR * Self::vectors(shape))
    }

    /// The number of warps that load a row.
    fn warps_of_row(shape: Shape) -> u32 {
        Self::places_of_row(shape) / WARP
    }

    /// Numbers per group: its scale, and the sum for formats with minima.
    fn width(shape: Shape) -> u32 {
        if shape.step.has_minima { 2 } else { 1 }
    }

    fn row_scales(shape: Shape) -> u32 {
        shape.chunk() / GROUP * Self::width(shape)
    }

    pub(super) fn slot_scales(shape: Shape) -> u32 {
        shape.rows * Self::row_scales(shape)
    }

    /// Starts loading a chunk if `wanted`, with zeros beyond the rows.
    pub(super) fn load(&self, chunk: Word<'k>, wanted: Value<'k, bool>) {
        let k = self.k;
        let [first, m, depth] = self.extents;
        for place in &self.places {
            let element = k.mad(chunk, self.shape.chunk(), place.element);
            let there = k.and(wanted, k.lt(element, depth));
            // Missing rows are read as the last one.
            let row = place.chosen.unwrap_or_else(|| k.min(first + place.row, m - 1));
            let from = self.x.index_wide(k.mad_wide(row, depth, k.cvt_u64(element)));
            for (i, vector) in (0..).zip(&place.vectors) {
                let read = k.ld_v_if::<_, _, 4>(there, from.offset(i * VECTOR as i32), 0.0f32);
                vector.iter().zip(read).for_each(|(variable, value)| variable.set(value));
            }
            let Some(gamma) = self.gamma else { continue };
            for (i, vector) in (0..).zip(&place.gammas) {
                let read = k.ld_v_if::<_, _, 4>(there, gamma.index(element).offset(i * VECTOR as i32), 0.0f32);
                vector.iter().zip(read).for_each(|(variable, value)| variable.set(value));
            }
        }
    }

    /// Writes the loaded chunk to a slot; `first` says whether this is the first pass.
    pub(super) fn store(&self, slot: Word<'k>, first: Value<'k, bool>) {
        let k = self.k;
        let is_short = self.shape.rows * Self::places_of_row(self.shape) < self.shape.threads();
        for place in &self.places {
            // The rows end with a whole warp.
            match is_short {
                true => k.if_(k.lt(place.row, self.shape.rows), || self.store_place(slot, place, first)),
                false => self.store_place(slot, place, first),
            }
        }
    }

    fn store_place(&self, slot: Word<'k>, place: &Place<'k>, first: Value<'k, bool>) {
        let k = self.k;
        let mut x: Vec<_> = place.vectors.iter().map(|vector| vector.map(|value| value.get())).collect();
        if let Some(squares) = place.squares {
            let all = x.iter().flatten().fold(squares.get(), |sum, &x| k.fma(x, x, sum));
            squares.set(k.selp(all, squares.get(), first));
            for (x, gamma) in x.iter_mut().zip(&place.gammas) {
                *x = std::array::from_fn(|i| x[i] * gamma[i].get());
            }
        }
        // Includes the other lanes that share the group.
        let lanes = [1, 2, 4].into_iter().filter(|&mask| mask * VECTOR * Self::vectors(self.shape) < GROUP);
        let lanes: Vec<u32> = lanes.collect();
        let Some(rounded) = Rounded::new(k, &x, &lanes) else { return };
        let row = k.mad(slot, self.shape.rows, place.row);
        let to = self.planes.byte_index(k.mad(row, 2 * self.shape.pitch(), place.element));
        self.write(to, rounded.upper());
        self.write(to.bytes(self.shape.pitch() as i32), rounded.lower());
        let width = Self::width(self.shape);
        let to = self.scales.index(k.mad(row, Self::row_scales(self.shape), (place.element / GROUP) * width));
        let is_first = k.eq(place.element & (GROUP - 1), 0);
        k.st_if(is_first, to, rounded.unit);
        if width == 2 {
            k.st_if(is_first, to.offset(1), rounded.sum());
        }
    }

    fn write(&self, to: Pointer<'k, Shared, u32>, words: Vec<Word<'k>>) {
        match words[..] {
            [a, b, c, d] => self.k.st_v(to, [a, b, c, d]),
            [a, b] => self.k.st_v(to, [a, b]),
            _ => words.iter().zip(0..).for_each(|(&word, i)| self.k.st(to.offset(i), word)),
        }
    }

    /// Writes the sums of squares of this thread's warp to shared memory, with a norm. A barrier must follow.
    pub(super) fn share_squares(&self) {
        let (k, Some(shared)) = (self.k, self.squares) else { return };
        let thread = k.tid_x();
        let warps = Self::warps_of_row(self.shape) * self.shape.rows;
        for (turn, place) in (0..).zip(&self.places) {
            let Some(squares) = place.squares else { continue };
            let sum = team::butterfly(squares.get(), WARP, |a, b| a + b);
            let warp = (thread >> WARP.ilog2()) + turn * (self.shape.threads() / WARP);
            k.st_if(k.and(k.eq(thread & (WARP - 1), 0), k.lt(warp, warps)), shared.index(warp), sum);
        }
    }

    /// The sum of the squares of a row, which [`Self::share_squares`] has written; zero without a norm.
    pub(super) fn squares(&self, row: Word<'k>) -> F32<'k> {
        let k = self.k;
        let warps = Self::warps_of_row(self.shape);
        let of_warp = |shared: Pointer<'k, Shared, f32>, warp: u32| k.ld(shared.index(row * warps).offset(warp as i32));
        let sums = self
            .squares
            .and_then(|shared| team::tree((0..warps).map(|warp| of_warp(shared, warp)).collect(), |a, b| a + b));
        sums.unwrap_or_else(|| k.constant(0.0))
    }

    /// The addresses of lane (g, t) for this step of a chunk: as columns of the operand, and of the result.
    pub(super) fn reader(&self, [g, t]: [Word<'k>; 2], step: Word<'k>) -> Reader<'k> {
        let (k, shape) = (self.k, self.shape);
        let across = shape.across();
        let group = shape.step.group;
        let pair = g >> 1;
        let plane = (pair & (across - 1)) * 2u32 + (g & 1u32);
        let bytes = step * shape.step.elements + (pair >> across.ilog2()) * group + t * (shape.step.adjacent / 4);
        let plane = self.planes.byte_index(k.mad(plane, shape.pitch(), bytes));
        // Groups of sixteen elements have pairs of scales.
        let number = t >> across.ilog2();
        let number = if group == GROUP { number } else { number >> 1 };
        let first = step * (shape.step.elements / GROUP) + number;
        let scale = k.mad(t & (across - 1), Self::row_scales(shape), first * Self::width(shape));
        Reader { plane, scale: self.scales.index(scale) }
    }

    /// The same place of a slot.
    pub(super) fn of_slot(&self, reader: &Reader<'k>, slot: Word<'k>) -> Reader<'k> {
        let plane = reader.plane.byte_index(slot * self.shape.slot_bytes());
        Reader { plane, scale: reader.scale.index(slot * Self::slot_scales(self.shape)) }
    }

    /// The bytes of columns of a set of groups, for the group of four rows `four`.
    pub(super) fn bytes(&self, reader: &Reader<'k>, set: u32, four: u32) -> Vec<Word<'k>> {
        let (k, shape) = (self.k, self.shape);
        let group = shape.step.group;
        let at = reader.plane.bytes((set * shape.groups_at_once() * group + four * 8 * shape.pitch()) as i32);
        match (group, shape.step.adjacent) {
            (GROUP, GROUP) => k.ld_v::<_, _, 2>(at).to_vec(),
            (GROUP, adjacent) => vec![k.ld(at), k.ld(at.bytes(adjacent as i32))],
            _ => vec![k.ld(at)],
        }
    }

    /// The scale of a set of groups, and the sum of the integers.
    pub(super) fn scale(&self, reader: &Reader<'k>, set: u32, four: u32) -> (F32<'k>, Option<F32<'k>>) {
        let (k, shape) = (self.k, self.shape);
        let group = set * shape.groups_at_once() * shape.step.group / GROUP;
        let at = reader.scale.offset((group * Self::width(shape) + four * 4 * Self::row_scales(shape)) as i32);
        if shape.step.has_minima {
            let [scale, sum] = k.ld_v::<_, _, 2>(at);
            (scale, Some(sum))
        } else {
            (k.ld(at), None)
        }
    }
}
