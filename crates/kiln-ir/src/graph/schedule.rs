use std::collections::{HashMap, HashSet};

use super::fuse::{Fused, FusionLimits, group};
use super::share::simplify;
use super::slots::{Slot, assign};
use super::{Graph, TensorId};
use crate::Result;
use crate::op::{Cost, Op};

/// One thing that a backend runs.
#[derive(Debug, Clone, PartialEq)]
pub enum Step {
    /// An operation.
    Run {
        /// The operation.
        op: Op,
        /// What it reads.
        inputs: Vec<TensorId>,
        /// What it writes.
        outputs: Vec<TensorId>,
    },
    /// A fused element-wise chain.
    Fused(Fused),
}

impl Step {
    /// Tensors that the step reads.
    pub fn inputs(&self) -> &[TensorId] {
        match self {
            Self::Run { inputs, .. } => inputs,
            Self::Fused(fused) => &fused.inputs,
        }
    }

    /// Tensors that the step writes.
    pub fn outputs(&self) -> impl Iterator<Item = TensorId> + '_ {
        let (run, fused): (&[TensorId], &[(TensorId, usize)]) = match self {
            Self::Run { outputs, .. } => (outputs, &[]),
            Self::Fused(fused) => (&[], &fused.outputs),
        };
        run.iter().copied().chain(fused.iter().map(|&(id, _)| id))
    }

    /// The work of the step.
    ///
    /// # Errors
    /// As the shape rule of the operation.
    pub fn cost(&self, graph: &Graph) -> Result<Cost> {
        match self {
            Self::Run { op, inputs, .. } => {
                let types = inputs.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<_>>>()?;
                op.cost(&types)
            }
            Self::Fused(fused) => Ok(fused.cost(graph)),
        }
    }
}

/// Steps in an order in which they can run, and the memory for what passes between them.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The steps.
    pub steps: Vec<Step>,
    /// Memory for intermediate results.
    pub slots: Vec<Slot>,
    slot_of: HashMap<TensorId, usize>,
    /// For each wanted result, in the order they were asked for, the tensor that holds its value.
    pub results: Vec<TensorId>,
}

impl Schedule {
    /// The slot of an intermediate result; `None` for inputs and for results that are wanted, which have memory of
    /// their own.
    pub fn slot(&self, id: TensorId) -> Option<usize> {
        self.slot_of.get(&id).copied()
    }
}

impl Graph {
    /// Simplifies what was recorded into steps that compute the wanted tensors.
    ///
    /// # Errors
    /// [`crate::Error::ForeignTensor`] for an id of another graph.
    pub fn schedule(&self, wanted: &[TensorId], limits: FusionLimits) -> Result<Schedule> {
        wanted.iter().try_for_each(|&id| self.ty(id).map(drop))?;
        let simplified = simplify(self, wanted);
        let results: Vec<TensorId> = wanted.iter().map(|id| simplified.same_as[id.index()]).collect();
        let groups = group(self, &simplified, &results, limits);

        let group_of: HashMap<usize, usize> =
            groups.order.iter().enumerate().flat_map(|(g, nodes)| nodes.iter().map(move |&n| (n, g))).collect();
        // A result must be in memory when it is wanted or when another group reads it.
        let mut kept: HashSet<TensorId> = results.iter().copied().collect();
        for (at, nodes) in groups.order.iter().enumerate() {
            for id in nodes.iter().flat_map(|&node| &self.nodes[node].inputs) {
                let id = simplified.same_as[id.index()];
                if self.producer(id).is_some_and(|node| group_of.get(&node) != Some(&at)) {
                    kept.insert(id);
                }
            }
        }

        let mut steps = Vec::with_capacity(groups.order.len());
        for nodes in &groups.order {
            let fused =
                if nodes.len() > 1 { Fused::new(self, &simplified, nodes, |id| kept.contains(&id)) } else { None };
            match fused {
                Some(fused) => steps.push(Step::Fused(fused)),
                None => steps.extend(nodes.iter().map(|&node| {
                    let node = &self.nodes[node];
                    let inputs = node.inputs.iter().map(|id| simplified.same_as[id.index()]).collect();
                    Step::Run { op: node.op, inputs, outputs: node.outputs.clone() }
                })),
            }
        }
        let (slots, slot_of) = assign(self, &steps, &results);
        Ok(Schedule { steps, slots, slot_of, results })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::op::{Elementwise, Matmul, Reduce, Reduction};
    use crate::{Error, Record, Shape, TensorType};
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn vector(n: usize) -> TensorType {
        TensorType::f32(Shape::new(&[n]).unwrap())
    }

    fn push(graph: &mut Graph, op: impl Into<Op>, inputs: &[TensorId]) -> TensorId {
        graph.record(op, inputs).unwrap()
    }

    #[test]
    fn a_chain_becomes_one_step_that_writes_only_what_is_wanted() {
        let mut g = Graph::new();
        let (a, b) = (g.input(vector(10)), g.input(vector(10)));
        let sum = push(&mut g, Elementwise::add(), &[a, b]);
        let scaled = push(&mut g, Elementwise::scale(2.0), &[sum]);
        let out = push(&mut g, Elementwise::relu(), &[scaled]);
        let schedule = g.schedule(&[out], FusionLimits::default()).unwrap();
        let [Step::Fused(fused)] = &schedule.steps[..] else { panic!("{:?}", schedule.steps) };
        assert_eq!((fused.inputs.as_slice(), fused.instructions.len()), ([a, b].as_slice(), 3));
        assert_eq!(fused.outputs, [(out, 2)]);
        assert!(schedule.slots.is_empty());
        assert_eq!(g.schedule(&[out], FusionLimits::NONE).unwrap().steps.len(), 3);
    }

    #[test]
    fn dead_nodes_are_dropped_and_common_ones_shared() {
        let mut g = Graph::new();
        let a = g.input(vector(4));
        let _dead = push(&mut g, Elementwise::exp(), &[a]);
        let one = push(&mut g, Elementwise::scale(3.0), &[a]);
        let same = push(&mut g, Elementwise::scale(3.0), &[a]);
        let other = push(&mut g, Elementwise::scale(-0.0), &[a]);
        let zero = push(&mut g, Elementwise::scale(0.0), &[a]);
        let schedule = g.schedule(&[one, same, other, zero], FusionLimits::NONE).unwrap();
        assert_eq!(schedule.steps.len(), 3, "0.0 and -0.0 are different factors");
        assert_eq!(schedule.results, [one, one, other, zero]);
    }

    #[test]
    fn groups_never_close_a_cycle_through_another_step() {
        // a -> exp -> e; e -> sum (a reduction) -> s; e * s needs the sum, which needs e: e and the product must not fuse.
        let mut g = Graph::new();
        let a = g.input(vector(8));
        let e = push(&mut g, Elementwise::exp(), &[a]);
        let s = push(&mut g, Reduce::all(Reduction::Sum), &[e]);
        let scaled = push(&mut g, Elementwise::mul(), &[e, s]);
        let out = push(&mut g, Elementwise::relu(), &[scaled]);
        let schedule = g.schedule(&[out], FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 3);
        assert!(matches!(&schedule.steps[2], Step::Fused(f) if f.instructions.len() == 2));
        assert_eq!(schedule.slots.len(), 2);
    }

    #[test]
    fn steps_read_only_what_is_there_and_slots_are_reused() {
        let mut g = Graph::new();
        let square = TensorType::f32(Shape::new(&[6, 6]).unwrap());
        let w = g.input(square);
        let mut x = g.input(square);
        for _ in 0..20 {
            x = push(&mut g, Matmul::default(), &[x, w]);
            x = push(&mut g, Elementwise::tanh(), &[x]);
        }
        let schedule = g.schedule(&[x], FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 40);
        assert_eq!(schedule.slots.len(), 2, "one is read while the other is written");
        let mut there: HashSet<TensorId> = (0..g.tensors() as u32)
            .map(|index| TensorId { graph: g.id, index })
            .filter(|&id| g.is_input(id).unwrap())
            .collect();
        for step in &schedule.steps {
            assert!(step.inputs().iter().all(|id| there.contains(id)));
            there.extend(step.outputs());
            let read: Vec<usize> = step.inputs().iter().filter_map(|&id| schedule.slot(id)).collect();
            assert!(step.outputs().filter_map(|id| schedule.slot(id)).all(|slot| !read.contains(&slot)));
        }
    }

    #[test]
    fn limits_bound_what_a_fused_step_reads_and_writes() {
        let mut g = Graph::new();
        let inputs: Vec<TensorId> = (0..9).map(|_| g.input(vector(4))).collect();
        let mut partial = vec![inputs[0]];
        for &i in &inputs[1..] {
            partial.push(push(&mut g, Elementwise::add(), &[partial[partial.len() - 1], i]));
        }
        let limits = FusionLimits { inputs: 4, outputs: 2, instructions: 100 };
        let schedule = g.schedule(&partial[1..], limits).unwrap();
        for step in &schedule.steps {
            assert!(step.inputs().len() <= 4 && step.outputs().count() <= 2, "{step:?}");
        }
    }

    #[test]
    fn ids_of_another_graph_are_refused() {
        let (mut g, mut other) = (Graph::new(), Graph::new());
        let foreign = other.input(vector(3));
        assert!(matches!(g.record(Elementwise::relu(), &[foreign]), Err(Error::ForeignTensor { .. })));
        assert!(matches!(g.schedule(&[foreign], FusionLimits::default()), Err(Error::ForeignTensor { .. })));
        assert!(g.record(Elementwise::add(), &[]).is_err());
    }
}
