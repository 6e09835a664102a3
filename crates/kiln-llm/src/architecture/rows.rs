//! The graph of the last tokens of several sequences, and the graph that copies keys and values between them.

use std::ops::Range;

use kiln::graph::TensorId;
use kiln::op::WriteRows;
use kiln::waiting::{Arriving, WAITING, wait};
use kiln::{Batch, Buffer, DType, Data, Engine, Record, State};

use super::Weights;
use super::cached::{Cached, Each, Routes};
use super::candidates::Ranked;
use super::decoder::Inputs;
use super::outcome::{Outcome, likeliest};
use crate::Result;
use crate::config::Config;
use crate::placement::Placing;

/// The layout of the caches of several sequences, which are `[slots * kv_heads * context, size]`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Layout {
    pub(crate) slots: usize,
    pub(crate) kv_heads: usize,
    /// Tokens per slot.
    pub(crate) context: usize,
}

impl Layout {
    /// The rows of a cache, or `None` if they exceed 32 bits.
    pub(crate) fn rows(&self) -> Option<usize> {
        let rows = self.slots.checked_mul(self.kv_heads)?.checked_mul(self.context)?;
        Some(rows).filter(|&rows| rows < WriteRows::SKIPPED as usize)
    }

    /// The caches of each layer, with this many rows: those of [`Layout::rows`].
    pub(crate) fn caches(config: &Config, dtype: DType, rows: usize) -> Result<Vec<[State; 2]>> {
        let state = |size: usize| State::zeros(dtype, &[rows, size]);
        config.layers.iter().map(|_| Ok([state(config.head)?, state(config.value_head)?])).collect()
    }

    /// The cache rows of one position of a slot, one for each head.
    fn of(self, slot: usize, position: usize) -> impl Iterator<Item = u32> {
        (0..self.kv_heads).map(move |head| ((slot * self.kv_heads + head) * self.context + position) as u32)
    }
}

/// The last token of a sequence, which is to be computed.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Row {
    pub(crate) slot: usize,
    pub(crate) token: u32,
    /// Its position: the number of the slot's tokens in the caches.
    pub(crate) position: usize,
}

/// The graph of one token of each of several sequences, and of their predictions. Unused rows are computed and
/// discarded.
#[derive(Debug)]
pub(crate) struct Rows<'e> {
    batch: Batch<'e>,
    rows: usize,
    heads: usize,
    layout: Layout,
    tokens: TensorId,
    each: Each,
    outcome: Outcome,
}

impl<'e> Rows<'e> {
    /// The time of each kernel of the last execution.
    #[cfg(not(browser_gpu))]
    pub(crate) fn profile(&self) -> Result<kiln::KernelProfile> {
        Ok(self.batch.profile()?)
    }

    /// Records the graph of this many sequences, which must not exceed the number of slots.
    pub(crate) fn record(
        engine: &'e Engine,
        config: &Config,
        weights: &Weights,
        caches: &[[State; 2]],
        placing: &Placing,
        layout: Layout,
        rows: usize,
    ) -> Result<Self> {
        let mut batch = engine.batch();
        let mut upload = |count: usize, dims: &[usize]| batch.upload_indices(&vec![0; count], dims);
        let (heads, slots) = (config.heads, layout.slots);
        let [of_rows, of_heads, of_keys] = [rows, rows * heads, rows * layout.kv_heads];
        let tokens = upload(of_rows, &[of_rows])?;
        let each = Each {
            slots,
            of_queries: upload(of_heads, &[of_heads])?,
            of_keys: upload(of_keys, &[of_keys])?,
            written: upload(of_keys, &[of_keys])?,
            positions: upload(slots, &[slots, 1])?,
            lengths: upload(slots, &[slots])?,
            routes: match rows < slots {
                true => Some(Routes { to_slots: upload(slots, &[slots])?, to_rows: upload(rows, &[rows])? }),
                false => None,
            },
        };
        let inputs =
            Inputs::new(&mut batch, config, weights, layout.context, rows, Cached::Each(each), placing.clone());
        let x = inputs.embedded(&mut batch, weights, tokens)?;
        let x = inputs.blocks(&mut batch, &weights.layers, 0, caches, x)?;
        let outcome = Outcome::record(&mut batch, x, rows, config, weights)?;
        Ok(Self { batch, rows, heads, layout, tokens, each, outcome })
    }

    /// The bytes that computing the likeliest tokens takes at a placement in addition to weights and caches.
    #[cfg(not(browser_gpu))]
    pub(crate) fn planned_bytes(&self, place: &str) -> Result<u64> {
        Ok(self.batch.planned_bytes(&self.outcome.greatest_wanted(), place)?)
    }

    /// Maximum number of sequences.
    pub(crate) fn rows(&self) -> usize {
        self.rows
    }

    /// Sets the inputs, and returns the graph row of each token.
    fn set(&mut self, rows: &[Row]) -> Result<Vec<usize>> {
        // Without routes row i belongs to slot i.
        let place = |(i, row): (usize, &Row)| if self.each.routes.is_some() { i } else { row.slot };
        let places: Vec<usize> = rows.iter().enumerate().map(place).collect();
        let mut tokens = vec![0; self.rows];
        for (&at, row) in places.iter().zip(rows) {
            tokens[at] = row.token;
        }
        self.batch.set_data(self.tokens, Data::U32(&tokens))?;
        self.set_places(rows, &places)?;
        Ok(places)
    }

    /// Sets the inputs except the tokens, given the graph row of each.
    fn set_places(&mut self, rows: &[Row], places: &[usize]) -> Result<()> {
        let Self { rows: all, heads, layout, each, .. } = *self;
        let Layout { slots, kv_heads, .. } = layout;
        let (mut of_queries, mut of_keys) = (vec![0; all * heads], vec![0; all * kv_heads]);
        let mut written = vec![WriteRows::SKIPPED; all * kv_heads];
        let (mut positions, mut lengths) = (vec![0; slots], vec![0; slots]);
        let (mut to_slots, mut to_rows) = (vec![0; slots], vec![0; all]);
        for (&at, row) in places.iter().zip(rows) {
            let position = row.position as u32;
            of_queries[at * heads..][..heads].fill(position);
            of_keys[at * kv_heads..][..kv_heads].fill(position);
            for (to, cached) in written[at * kv_heads..].iter_mut().zip(layout.of(row.slot, row.position)) {
                *to = cached;
            }
            positions[row.slot] = position;
            lengths[row.slot] = position + 1;
            to_slots[row.slot] = at as u32;
            to_rows[at] = row.slot as u32;
        }
        let mut set = |id: TensorId, data: &[u32]| self.batch.set_data(id, Data::U32(data));
        set(each.of_queries, &of_queries)?;
        set(each.of_keys, &of_keys)?;
        set(each.written, &written)?;
        set(each.positions, &positions)?;
        set(each.lengths, &lengths)?;
        if let Some(routes) = each.routes {
            set(routes.to_slots, &to_slots)?;
            set(routes.to_rows, &to_rows)?;
        }
        Ok(())
    }

    /// Begins to add the tokens to the caches and to choose the likeliest token after each. With `places`, the tokens are the results of the
    /// last execution, which this function began and which may still run; `places` are the graph rows of the same sequences in it, and
    /// [`Row::token`] is not read. `None` if nothing was computed: see [`Batch::begin_waiting`].
    pub(crate) fn begin(&mut self, rows: &[Row], places: Option<Vec<usize>>) -> Result<Option<ArrivingRows>> {
        let places = match places {
            Some(places) => {
                self.set_places(rows, &places)?;
                places
            }
            None => self.set(rows)?,
        };
        let begun = wait(self.outcome.begin_likeliest(&mut self.batch, self.tokens, WAITING))?;
        Ok(begun.map(|results| ArrivingRows { places, results }))
    }

    /// Adds the tokens to the caches, and returns the likeliest token after each, or an error if its logits are not
    /// numbers.
    pub(crate) fn greatest(&mut self, rows: &[Row]) -> Result<Vec<Result<u32>>> {
        let places = self.set(rows)?;
        wait(self.outcome.greatest(&mut self.batch, &places, WAITING))
    }

    /// The same, and the `count` likeliest tokens after each.
    pub(crate) fn candidates(&mut self, rows: &[Row], count: usize) -> Result<Vec<Result<Ranked>>> {
        let places = self.set(rows)?;
        wait(self.outcome.candidates(&mut self.batch, count, &places, WAITING))
    }

    /// The same, and the logits after each: those of all rows of the graph, and the rows of the tokens.
    pub(crate) fn logits(&mut self, rows: &[Row]) -> Result<(Vec<f32>, Vec<usize>)> {
        let places = self.set(rows)?;
        Ok((wait(self.outcome.logits(&mut self.batch, WAITING))?, places))
    }
}

/// The likeliest tokens after rows of a graph, on their way to the host.
pub(crate) struct ArrivingRows {
    /// The graph row of each.
    places: Vec<usize>,
    results: Arriving<Vec<Buffer>>,
}

impl ArrivingRows {
    /// The graph rows of the kept rows.
    pub(crate) fn places(&self, is_kept: &[bool]) -> Vec<usize> {
        self.places.iter().zip(is_kept).filter(|(_, is_kept)| **is_kept).map(|(&place, _)| place).collect()
    }

    /// Waits for the tokens of the kept rows; for each an error if its logits are not numbers.
    pub(crate) fn arrive(self, is_kept: &[bool]) -> Result<Vec<Result<u32>>> {
        let places = self.places(is_kept);
        Ok(likeliest(&wait(self.results)?, &places))
    }
}

impl std::fmt::Debug for ArrivingRows {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ArrivingRows").field("places", &self.places).finish_non_exhaustive()
    }
}

/// Number of tokens whose keys and values are copied at once.
const COPIED: usize = 256;

/// The graph that copies keys and values of tokens from slots of some caches to slots of others.
#[derive(Debug)]
pub(crate) struct Copying<'e> {
    batch: Batch<'e>,
    layouts: [Layout; 2],
    from: TensorId,
    to: TensorId,
}

impl<'e> Copying<'e> {
    /// Records the copies from the first caches to the second, which are either the same or all different.
    pub(crate) fn record(
        engine: &'e Engine,
        caches: [&[[State; 2]]; 2],
        placing: &Placing,
        layouts: [Layout; 2],
    ) -> Result<Self> {
        let mut batch = engine.batch();
        let rows = COPIED * layouts[0].kv_heads;
        let from = batch.upload_indices(&vec![0; rows], &[rows])?;
        let to = batch.upload_indices(&vec![WriteRows::SKIPPED; rows], &[rows])?;
        let states = |caches: &'_ [[State; 2]]| -> Vec<State> { caches.iter().flatten().cloned().collect() };
        for (number, (source, target)) in states(caches[0]).iter().zip(&states(caches[1])).enumerate() {
            placing.pin_layer(&mut batch, number / 2)?;
            let all = batch.state(source);
            let all = batch.reshape(all, &[source.shape().rows(), source.shape().columns()])?;
            // 16-bit elements are cast to f32 and back, which is exact.
            let copied = batch.gather(all, from)?;
            let target = batch.state(target);
            batch.write_rows(target, copied, to)?;
        }
        Ok(Self { batch, layouts, from, to })
    }

    /// Copies the keys and values of these positions from one slot to another.
    pub(crate) fn copy(&mut self, positions: Range<usize>, [from, to]: [usize; 2]) -> Result<()> {
        let rows = COPIED * self.layouts[0].kv_heads;
        let filled = |rest: u32, of: &mut dyn Iterator<Item = u32>| -> Vec<u32> {
            of.chain(std::iter::repeat(rest)).take(rows).collect()
        };
        for start in positions.clone().step_by(COPIED) {
            let part = start..positions.end.min(start + COPIED);
            let read = filled(0, &mut part.clone().flat_map(|position| self.layouts[0].of(from, position)));
            let written = filled(WriteRows::SKIPPED, &mut part.flat_map(|position| self.layouts[1].of(to, position)));
            self.batch.set_data(self.from, Data::U32(&read))?;
            self.batch.set_data(self.to, Data::U32(&written))?;
            wait(self.batch.execute_waiting(&[], WAITING))?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn the_rows_of_caches_are_counted_by_32_bits() {
        let layout = Layout { slots: 64, kv_heads: 8, context: 4096 };
        assert_eq!(layout.rows(), Some(1 << 21));
        assert_eq!(layout.of(1, 3).collect::<Vec<_>>(), (0..8).map(|head| (8 + head) * 4096 + 3).collect::<Vec<_>>());
        assert_eq!(Layout { context: 1 << 23, ..layout }.rows(), None);
        assert_eq!(Layout { context: usize::MAX, ..layout }.rows(), None);
    }
}
