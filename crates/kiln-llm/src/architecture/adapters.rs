//! Adapters beside the weights of a decoder: the matrices of all adapters of a session are stacked, so that its graphs are recorded
//! once, and the choice of adapters is data.

use std::ops::Range;
use std::sync::Arc;

use kiln::graph::TensorId;
use kiln::op::RopeStyle;
use kiln::{Batch, DType, Tensor};

use super::Architecture;
use super::modules::ADAPTED;
use super::projection::{LowRank, Projection};
use super::weights::{Layer, Weights};
use crate::adapter::{Adapter, Matrix, RowOrder};
use crate::config::Config;
use crate::{Error, Result};

/// The matrices of some adapters, stacked for the projections of a model.
#[derive(Debug)]
pub(crate) struct AdapterSet {
    adapters: Vec<Adapter>,
    /// The stacks of each layer, in the order of [`ADAPTED`].
    layers: Vec<[Option<Stack>; 7]>,
    /// The owners of the stacks' rows. Most projections share one pattern.
    patterns: Vec<Vec<Rows>>,
}

/// A and B of all adapters for one projection: A `[rank, inputs]` stacks their rows, B `[outputs, rank]` joins their
/// columns.
#[derive(Debug)]
struct Stack {
    a: Tensor,
    b: Tensor,
    /// Index into the patterns.
    pattern: usize,
}

/// The rows of A that belong to one adapter.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Rows {
    /// Index of the adapter.
    adapter: usize,
    rank: usize,
    factor: f32,
}

/// The update that one adapter makes to a projection.
struct Part<'a> {
    rows: Rows,
    a: &'a Matrix,
    b: &'a Matrix,
    /// The rows of B, in the order of the model.
    of_b: Vec<usize>,
}

/// The rows of queries or keys as heads, and how the elements of a head are rotated.
#[derive(Debug, Clone, Copy)]
struct Heads {
    head: usize,
    rotated: usize,
}

impl Heads {
    /// Maps a row in the order for neighbour rotations to its row in the order for half rotations.
    fn half(self, row: usize) -> usize {
        let (first, i) = (row - row % self.head, row % self.head);
        first + if i < self.rotated { i % 2 * (self.rotated / 2) + i / 2 } else { i }
    }

    /// The inverse of [`Heads::half`].
    fn neighbour(self, row: usize) -> usize {
        let (first, i, half) = (row - row % self.head, row % self.head, self.rotated / 2);
        first + if i < self.rotated { i % half * 2 + i / half } else { i }
    }
}

impl AdapterSet {
    /// Stacks adapters for a model.
    ///
    /// # Errors
    /// [`Error::AdapterArchitecture`], [`Error::AdapterShape`]; [`Error::Adapter`] for a layer that the model does not
    /// have, and for a duplicate adapter; [`Error::Kiln`] if memory runs out.
    pub(crate) fn new(config: &Config, weights: &Weights, adapters: &[Adapter]) -> Result<Self> {
        let name = config.architecture.name;
        for (i, adapter) in adapters.iter().enumerate() {
            if let Some(found) = adapter.architecture().filter(|&found| found != name) {
                let (adapter, found) = (adapter.name().to_owned(), found.escape_debug().to_string());
                return Err(Error::AdapterArchitecture { adapter, found, model: name });
            }
            let layers = weights.layers.len();
            if let Some(module) = adapter.modules().find(|module| module.layer >= layers) {
                let reason = format!("it changes layer {}, counted from 0, and the model has {layers}", module.layer);
                return Err(Error::adapter(adapter.name(), reason));
            }
            if adapters[..i].iter().any(|other| other.is(adapter)) {
                return Err(Error::adapter(adapter.name(), "it is given twice; set another scale instead"));
            }
        }
        let mut set = Self { adapters: adapters.to_vec(), layers: Vec::new(), patterns: Vec::new() };
        for (i, layer) in weights.layers.iter().enumerate() {
            let mut stacks = [const { None }; 7];
            // [outputs, inputs] of the projections.
            let extents = |projection: &mut Projection| {
                let shape = projection.weight.shape();
                [shape.dims()[0], shape.dims()[1]]
            };
            let all: Vec<[usize; 2]> = layer.clone().adapted().into_iter().map(extents).collect();
            let lacking = ADAPTED[all.len()..]
                .iter()
                .find_map(|name| Some((name, adapters.iter().find(|a| a.find(i, name).is_some())?)));
            if let Some((name, adapter)) = lacking {
                let reason = format!("it changes {name} of layer {i}, which has experts in its place");
                return Err(Error::adapter(adapter.name(), reason));
            }
            for (at, stack) in stacks.iter_mut().enumerate().take(all.len()) {
                let parts = adapters.iter().enumerate();
                let parts = parts.map(|(number, adapter)| Part::find(config, (number, adapter), i, at, &all));
                let parts: Vec<Part> = parts.filter_map(Result::transpose).collect::<Result<_>>()?;
                if !parts.is_empty() {
                    *stack = Some(set.stack(&parts)?);
                }
            }
            set.layers.push(stacks);
        }
        Ok(set)
    }

    /// Stacks the matrices of one projection.
    fn stack(&mut self, parts: &[Part<'_>]) -> Result<Stack> {
        let pattern: Vec<Rows> = parts.iter().map(|part| part.rows).collect();
        let pattern = match self.patterns.iter().position(|known| *known == pattern) {
            Some(known) => known,
            None => {
                self.patterns.push(pattern);
                self.patterns.len() - 1
            }
        };
        let rank = parts.iter().map(|part| part.rows.rank).sum();
        let outputs = parts[0].of_b.len();
        let dtype = |of: fn(&Part<'_>) -> DType| {
            let first = of(&parts[0]);
            if parts.iter().all(|part| of(part) == first) { first } else { DType::F32 }
        };
        let a = Matrix {
            rows: rank,
            columns: parts[0].a.columns,
            values: parts.iter().flat_map(|part| &part.a.values).copied().collect(),
            dtype: dtype(|part| part.a.dtype),
        };
        let row = |row: usize| parts.iter().flat_map(move |part| part.b.row(part.of_b[row]));
        let b = Matrix {
            rows: outputs,
            columns: rank,
            values: (0..outputs).flat_map(row).copied().collect(),
            dtype: dtype(|part| part.b.dtype),
        };
        Ok(Stack { a: a.into_tensor()?, b: b.into_tensor()?, pattern })
    }

    /// The adapters.
    pub(crate) fn adapters(&self) -> &[Adapter] {
        &self.adapters
    }
}

impl<'a> Part<'a> {
    /// The update that an adapter makes to projection `at` of [`ADAPTED`] in a layer whose projections have these
    /// extents, `[outputs, inputs]`.
    fn find(
        config: &Config,
        (number, adapter): (usize, &'a Adapter),
        layer: usize,
        at: usize,
        all: &[[usize; 2]],
    ) -> Result<Option<Self>> {
        let [outputs, inputs] = all[at];
        // Projections that the adapter has fused are split like fused weights of files.
        let (fused, before, whole) = match at {
            0..=2 => {
                let rows = |range: Range<usize>| all[range].iter().map(|[outputs, _]| outputs).sum::<usize>();
                ("attn_qkv", rows(0..at), rows(0..3))
            }
            4 => ("ffn_up", 0, outputs + all[5][0]),
            5 => ("ffn_up", all[4][0], outputs + all[4][0]),
            _ => ("", 0, 0),
        };
        let fused = adapter.find(layer, fused).filter(|module| at < 3 || module.b.rows == whole);
        let (module, before, whole, projection) = match (fused, adapter.find(layer, ADAPTED[at])) {
            (Some(_), Some(_)) if at != 5 => {
                let reason = format!("it changes {} of layer {layer} twice, alone and with others in one", ADAPTED[at]);
                return Err(Error::adapter(adapter.name(), reason));
            }
            (Some(module), _) => (module, before, whole, if at < 3 { "attn_qkv" } else { "ffn_up" }),
            (None, Some(module)) => (module, 0, outputs, ADAPTED[at]),
            (None, None) => return Ok(None),
        };
        let (a, b) = (&module.a, &module.b);
        let (found, expected) = ([a.columns, b.rows], [inputs, whole]);
        if found != expected {
            let adapter = adapter.name().to_owned();
            return Err(Error::AdapterShape { adapter, layer, projection, found, expected });
        }
        let heads = Heads { head: config.head, rotated: config.rotated };
        let theirs = match adapter.order() {
            RowOrder::Halves => RopeStyle::HalfSplit,
            RowOrder::Gguf => Architecture::find(config.architecture.name)?.rope,
            RowOrder::Model => config.architecture.rope,
        };
        let is_rotated = at < 2;
        let of_model = |row: usize| match (theirs, config.architecture.rope) {
            (RopeStyle::HalfSplit, RopeStyle::Interleaved) if is_rotated => heads.half(row),
            (RopeStyle::Interleaved, RopeStyle::HalfSplit) if is_rotated => heads.neighbour(row),
            _ => row,
        };
        let rows = Rows { adapter: number, rank: a.rows, factor: module.factor };
        Ok(Some(Self { rows, a, b, of_b: (0..outputs).map(|row| before + of_model(row)).collect() }))
    }
}

/// The adapters of a session with their scales.
#[derive(Debug)]
pub(crate) struct ActiveAdapters {
    set: Arc<AdapterSet>,
    /// The scale of each adapter, 0 for inactive ones.
    scales: Vec<f32>,
}

impl ActiveAdapters {
    /// All adapters inactive.
    pub(crate) fn new(set: Arc<AdapterSet>) -> Self {
        Self { scales: vec![0.0; set.adapters.len()], set }
    }

    /// Activates exactly these adapters with these scales. Returns whether that changes anything.
    ///
    /// # Errors
    /// [`Error::Adapter`] for an adapter outside of the set, for a duplicate, and for a scale that is not finite.
    /// Nothing changes then.
    pub(crate) fn choose(&mut self, used: &[(&Adapter, f32)]) -> Result<bool> {
        let mut scales = vec![None; self.scales.len()];
        for &(adapter, scale) in used {
            let wrong = |reason: String| Err(Error::adapter(adapter.name(), reason));
            if adapter.modules().any(|module| !(module.factor * scale).is_finite()) {
                return wrong(format!("its scale is {scale}, which gives factors that are not finite"));
            }
            let Some(at) = self.set.adapters.iter().position(|known| known.is(adapter)) else {
                return Err(Self::not_given(adapter));
            };
            if scales[at].replace(scale).is_some() {
                return wrong("it is named twice".to_owned());
            }
        }
        let scales: Vec<f32> = scales.into_iter().map(Option::unwrap_or_default).collect();
        let changes = scales != self.scales;
        self.scales = scales;
        Ok(changes)
    }

    /// The error for an adapter outside of the set.
    pub(crate) fn not_given(adapter: &Adapter) -> Error {
        Error::adapter(adapter.name(), "this session was made without it: give it to Model::with_adapters first")
    }

    /// The scales of the rows of each pattern.
    pub(super) fn patterns(&self) -> impl Iterator<Item = Vec<f32>> {
        self.set.patterns.iter().map(|rows| {
            let of = |rows: &Rows| std::iter::repeat_n(rows.factor * self.scales[rows.adapter], rows.rank);
            rows.iter().flat_map(of).collect()
        })
    }

    /// The matrices of a layer.
    pub(crate) fn of_layer(&self, layer: usize) -> impl Iterator<Item = &Tensor> {
        self.set.layers.get(layer).into_iter().flatten().flatten().flat_map(|Stack { a, b, .. }| [a, b])
    }

    /// The layers with the updates of the adapters, for the graph of a batch, and the inputs of the batch that hold
    /// [`Self::patterns`].
    pub(super) fn record(&self, batch: &mut Batch<'_>, layers: &[Layer]) -> Result<(Vec<Layer>, Vec<TensorId>)> {
        let inputs = self.patterns().map(|scales| batch.upload(&scales, &[scales.len()]));
        let inputs: Vec<TensorId> = inputs.collect::<kiln::Result<_>>()?;
        let layers = layers.iter().zip(&self.set.layers).map(|(layer, stacks)| {
            let mut layer = layer.clone();
            for (projection, stack) in layer.adapted().into_iter().zip(stacks) {
                projection.low_rank = stack.as_ref().map(|Stack { a, b, pattern }| LowRank {
                    a: a.clone(),
                    b: b.clone(),
                    scales: inputs[*pattern],
                });
            }
            layer
        });
        Ok((layers.collect(), inputs))
    }
}

#[cfg(test)]
mod tests {
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use super::*;

    #[test]
    fn rows_of_heads_go_from_halves_to_neighbours_and_back() {
        let heads = Heads { head: 8, rotated: 6 };
        let halves: Vec<usize> = (0..16).map(|row| heads.half(row)).collect();
        assert_eq!(halves, [0, 3, 1, 4, 2, 5, 6, 7, 8, 11, 9, 12, 10, 13, 14, 15]);
        assert!((0..16).all(|row| heads.neighbour(heads.half(row)) == row));
    }
}
