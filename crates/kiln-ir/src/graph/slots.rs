use std::collections::HashMap;

use super::step::Step;
use super::{Graph, TensorId};
use crate::DType;

/// Memory that several results use in turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slot {
    /// The element type; a slot never changes it.
    pub dtype: DType,
    /// Bytes of the largest result that it holds.
    pub bytes: usize,
}

/// Assigns a slot to every intermediate result; results whose lifetimes do not overlap share one.
///
/// A result lives from the step that writes it to the round of the last step that reads it. The inputs of a round are
/// alive while it writes, so no step writes a slot that it or another step of its round reads. A step may read a tensor
/// under other extents: `memory` returns the tensor that owns the memory.
pub(super) fn assign(
    graph: &Graph,
    steps: &[Step],
    rounds: &[usize],
    wanted: &[TensorId],
    memory: impl Fn(TensorId) -> TensorId,
) -> (Vec<Slot>, HashMap<TensorId, usize>) {
    let mut last_read = HashMap::new();
    for (at, step) in steps.iter().enumerate() {
        for &id in step.inputs() {
            last_read.insert(memory(id), at);
        }
    }
    let mut slots: Vec<Slot> = Vec::new();
    let mut free: Vec<usize> = Vec::new();
    let mut slot_of = HashMap::new();
    let mut ends = rounds.iter().scan(0, |end, steps| {
        *end += steps;
        Some(*end)
    });
    let mut end = 0;
    let mut over = Vec::new();
    for (at, step) in steps.iter().enumerate() {
        if at == end {
            free.append(&mut over);
            end = ends.next().unwrap_or(steps.len());
        }
        for id in step.outputs() {
            // A wanted result has its own memory, and a version of a state uses that of the state.
            if wanted.contains(&id) || memory(id) != id {
                continue;
            }
            let ty = graph.type_of(id);
            // The best free slot: the smallest that is large enough, else the largest, which then grows.
            let best = free
                .iter()
                .enumerate()
                .filter(|&(_, &slot)| slots[slot].dtype == ty.dtype)
                .min_by_key(|&(_, &slot)| {
                    let bytes = slots[slot].bytes;
                    if bytes >= ty.bytes() { (0, bytes) } else { (1, usize::MAX - bytes) }
                })
                .map(|(position, _)| position);
            let slot = match best {
                Some(position) => free.swap_remove(position),
                None => {
                    slots.push(Slot { dtype: ty.dtype, bytes: 0 });
                    slots.len() - 1
                }
            };
            slots[slot].bytes = slots[slot].bytes.max(ty.bytes());
            slot_of.insert(id, slot);
            if !last_read.contains_key(&id) {
                over.push(slot);
            }
        }
        let mut ended: Vec<TensorId> =
            step.inputs().iter().map(|&id| memory(id)).filter(|id| last_read.get(id) == Some(&at)).collect();
        ended.sort_unstable_by_key(|id| id.index());
        ended.dedup();
        over.extend(ended.iter().filter_map(|id| slot_of.get(id)));
    }
    (slots, slot_of)
}
