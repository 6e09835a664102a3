use std::collections::{HashMap, HashSet};

use super::fuse::{Fused, FusionLimits, addend, gated, group};
use super::share::simplify;
use super::slots::{Slot, assign};
use super::step::Step;
use super::{Graph, TensorId};
use crate::Result;
use crate::op::Op;

/// Steps in an order in which they can run, and the memory for their intermediate results.
#[derive(Debug, Clone, PartialEq)]
pub struct Schedule {
    /// The steps.
    pub steps: Vec<Step>,
    /// Number of steps of each round, in their order. Steps of a round are independent: no step reads or writes memory that another one
    /// writes.
    pub rounds: Vec<usize>,
    /// Memory for intermediate results.
    pub slots: Vec<Slot>,
    /// The location of each tensor of the graph, in the order of their indices.
    memory: Vec<InMemory>,
    /// For each wanted result, in the order they were asked for, the tensor that holds its value. Its memory is that of
    /// [`Schedule::root`].
    pub results: Vec<TensorId>,
}

/// The location of the elements of a tensor.
#[derive(Debug, Clone, Copy, PartialEq)]
struct InMemory {
    /// The tensor whose memory this is: another one for results of reshapes that steps read or that are wanted, and for
    /// versions of states.
    root: TensorId,
    /// The slot of an intermediate result.
    slot: Option<usize>,
}

impl Schedule {
    /// The location of a tensor; `None` for a tensor of another graph.
    fn in_memory(&self, id: TensorId) -> Option<InMemory> {
        self.memory.get(id.index()).filter(|at| at.root.graph == id.graph).copied()
    }

    /// The slot of an intermediate result; `None` for inputs and for results that are wanted, which have memory of
    /// their own, and for the tensors that are these under other extents.
    pub fn slot(&self, id: TensorId) -> Option<usize> {
        self.in_memory(id)?.slot
    }

    /// The tensor whose memory a tensor uses: itself, except for the result of a reshape, which has other extents and the same
    /// elements, and for a later version of a state.
    pub fn root(&self, id: TensorId) -> TensorId {
        self.in_memory(id).map_or(id, |at| at.root)
    }
}

impl Graph {
    /// Simplifies what was recorded into steps that compute the wanted tensors.
    ///
    /// # Errors
    /// [`crate::Error::ForeignTensor`] for an id of another graph, [`crate::Error::Parameter`] for a version of a state that is
    /// not the latest.
    pub fn schedule(&self, wanted: &[TensorId], limits: FusionLimits) -> Result<Schedule> {
        wanted.iter().try_for_each(|&id| self.ty(id).and_then(|_| self.states.check_latest("execute", id)))?;
        let simplified = simplify(self, wanted);
        let results: Vec<TensorId> = wanted.iter().map(|id| simplified.same_as[id.index()]).collect();
        let groups = group(self, &simplified, &results, limits);
        let memory = |id: TensorId| simplified.memory(id);

        let group_of: HashMap<usize, usize> =
            groups.order.iter().enumerate().flat_map(|(g, nodes)| nodes.iter().map(move |&n| (n, g))).collect();
        // A result must be in memory when it is wanted or when another group reads it.
        let mut kept: HashSet<TensorId> = results.iter().map(|&id| memory(id)).collect();
        for (at, nodes) in groups.order.iter().enumerate() {
            for id in nodes.iter().flat_map(|&node| groups.norms.operands(self, node)) {
                let id = memory(id);
                if self.producer(id).is_some_and(|node| group_of.get(&node) != Some(&at)) {
                    kept.insert(id);
                }
            }
        }

        let mut steps = Vec::with_capacity(groups.order.len());
        for nodes in &groups.order {
            if let &[product, sum] = &nodes[..]
                && let Some(addend) = addend(self, &simplified, product, sum)
            {
                let (op, inputs) = (self.nodes[product].op, &self.nodes[product].inputs);
                let inputs = inputs.iter().chain([&addend]).map(|id| simplified.same_as[id.index()]).collect();
                steps.push(Step::Run { op, norm: None, gate: None, inputs, outputs: self.nodes[sum].outputs.clone() });
                continue;
            }
            if let &[_, _, last] = &nodes[..]
                && let Op::Elementwise(gate) = self.nodes[last].op
                && let Some([first, second]) = gated(self, &simplified, &groups.norms, last)
                && nodes.contains(&first)
            {
                let mut inputs = groups.norms.operands(self, first);
                inputs.insert(2, self.nodes[second].inputs[1]);
                steps.push(Step::Run {
                    op: self.nodes[first].op,
                    norm: groups.norms.of(self, first),
                    gate: Some(gate),
                    inputs: inputs.into_iter().map(|id| simplified.same_as[id.index()]).collect(),
                    outputs: self.nodes[last].outputs.clone(),
                });
                continue;
            }
            let fused =
                if nodes.len() > 1 { Fused::new(self, &simplified, nodes, |id| kept.contains(&id)) } else { None };
            match fused {
                Some(fused) => steps.push(Step::Fused(fused)),
                None => steps.extend(nodes.iter().map(|&at| {
                    let node = &self.nodes[at];
                    let inputs =
                        groups.norms.operands(self, at).iter().map(|id| simplified.same_as[id.index()]).collect();
                    let norm = groups.norms.of(self, at);
                    Step::Run { op: node.op, norm, gate: None, inputs, outputs: node.outputs.clone() }
                })),
            }
        }
        let wanted: Vec<TensorId> = results.iter().map(|&id| memory(id)).collect();
        let (slots, slot_of) = assign(self, &steps, &groups.rounds, &wanted, memory);
        let mut in_memory: Vec<InMemory> = (0..self.tensors() as u32)
            .map(|index| InMemory { root: TensorId { graph: self.id, index }, slot: None })
            .collect();
        let used = steps.iter().flat_map(|step| step.inputs().iter().copied().chain(step.outputs()));
        for id in used.chain(results.iter().copied()) {
            in_memory[id.index()] = InMemory { root: memory(id), slot: slot_of.get(&memory(id)).copied() };
        }
        Ok(Schedule { steps, rounds: groups.rounds, slots, memory: in_memory, results })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::graph::{Location, NormLimits, Source};
    use crate::op::{
        AllReduce, Elementwise, Matmul, Op, Permute, QuantMatmul, Reduce, Reduction, Reshape, RmsNorm, Slice, Softmax,
        WriteRows,
    };
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
        let limits = FusionLimits { inputs: 4, outputs: 2, instructions: 100, ..FusionLimits::default() };
        let schedule = g.schedule(&partial[1..], limits).unwrap();
        for step in &schedule.steps {
            assert!(step.inputs().len() <= 4 && step.outputs().count() <= 2, "{step:?}");
        }
    }

    fn reshape(graph: &mut Graph, x: TensorId, dims: &[usize]) -> TensorId {
        push(graph, Reshape::to(dims).unwrap(), &[x])
    }

    #[test]
    fn a_reshape_is_no_step_and_its_result_is_the_memory_of_its_operand() {
        let mut g = Graph::new();
        let x = g.input(vector(12));
        let matrix = reshape(&mut g, x, &[3, 4]);
        let soft = push(&mut g, Softmax, &[matrix]);
        let flat = reshape(&mut g, soft, &[12]);
        let turned = reshape(&mut g, flat, &[4, 3]);
        let out = push(&mut g, Softmax, &[turned]);
        let shown = reshape(&mut g, out, &[2, 6]);
        let schedule = g.schedule(&[shown, matrix], FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 2);
        // Types belong to the names, memory belongs to the roots.
        assert_eq!(schedule.steps[0].inputs(), [matrix]);
        assert_eq!(schedule.steps[1].inputs(), [turned]);
        assert_eq!((schedule.root(matrix), schedule.root(turned), schedule.root(shown)), (x, soft, out));
        assert_eq!(schedule.location(&g, matrix).unwrap(), Location::Input(x));
        assert_eq!(schedule.location(&g, turned).unwrap(), Location::Slot(0));
        assert_eq!(schedule.location(&g, soft).unwrap(), Location::Slot(0));
        assert_eq!(schedule.location(&g, shown).unwrap(), Location::Result(out));
        assert_eq!(schedule.location(&g, out).unwrap(), Location::Result(out));
        assert_eq!(schedule.inputs(&g).unwrap(), [x]);
        assert_eq!((schedule.results.as_slice(), schedule.slots.len()), (&[shown, matrix][..], 1));
        // Only reshapes.
        let schedule = g.schedule(&[matrix], FusionLimits::default()).unwrap();
        assert!(schedule.steps.is_empty() && schedule.slots.is_empty());
        assert_eq!(schedule.location(&g, matrix).unwrap(), Location::Input(x));
        assert_eq!(schedule.inputs(&g).unwrap(), [x]);
    }

    #[test]
    fn products_take_the_norm_that_only_they_read() {
        let format = crate::QuantFormat::Q4K;
        let formats = &[crate::QuantFormat::Q4K];
        let [of_256, of_512] = [&[(crate::QuantFormat::Q4K, 256)], &[(crate::QuantFormat::Q4K, 512)]];
        // Rows, whether another node reads the norm, what many rows of 256 elements are multiples of, and the expected number of steps.
        for (rows, reads_norm, multiples, expected) in [
            (4, false, of_256, 2),
            (5, false, of_256, 3),
            (2, true, of_256, 4),
            (8, false, of_256, 3),
            (9, false, of_256, 2),
            (9, false, of_512, 3),
        ] {
            let limits = FusionLimits {
                addends: true,
                norms: Some(NormLimits { rows: 4, formats, many: 9, multiples }),
                round: 4,
                ..FusionLimits::default()
            };
            let mut g = Graph::new();
            let weights = TensorType::blocks(format, Shape::new(&[256, 256]).unwrap()).unwrap();
            let x = g.input(TensorType::f32(Shape::new(&[rows, 256]).unwrap()));
            let (gamma, a, b) = (g.input(vector(256)), g.input(weights), g.input(weights));
            let norm = RmsNorm::new(1e-5);
            let normal = push(&mut g, norm, &[x, gamma]);
            let products = [a, b].map(|w| push(&mut g, QuantMatmul { format }, &[normal, w]));
            let sums = products.map(|product| push(&mut g, Elementwise::add(), &[product, x]));
            let mut wanted = sums.to_vec();
            if reads_norm {
                wanted.push(push(&mut g, Softmax, &[normal]));
            }
            let schedule = g.schedule(&wanted, limits).unwrap();
            let normed: Vec<_> = schedule
                .steps
                .iter()
                .filter_map(|step| match step {
                    Step::Run { norm: Some(norm), inputs, .. } => Some((*norm, inputs.clone())),
                    _ => None,
                })
                .collect();
            if expected == 2 {
                assert_eq!(normed, [(norm, vec![x, a, gamma]), (norm, vec![x, b, gamma])]);
                assert_eq!(schedule.rounds[0], 2, "products of one norm are placed side by side");
                assert_eq!(schedule.inputs(&g).unwrap().len(), 4);
            } else {
                assert!(normed.is_empty(), "{rows} rows");
                let norms = schedule.steps.iter().filter(|step| matches!(step, Step::Run { op: Op::RmsNorm(_), .. }));
                assert_eq!(norms.count(), 1);
            }
        }
    }

    #[test]
    fn a_product_takes_what_is_added_to_it() {
        let format = crate::QuantFormat::Q4K;
        let mut g = Graph::new();
        let rows = TensorType::f32(Shape::new(&[2, 256]).unwrap());
        let weights = TensorType::blocks(format, Shape::new(&[256, 256]).unwrap()).unwrap();
        let (x, w, bias) = (g.input(rows), g.input(weights), g.input(vector(256)));
        let op = QuantMatmul { format };
        let product = push(&mut g, op, &[x, w]);
        let sum = push(&mut g, Elementwise::add(), &[x, product]);
        let second = push(&mut g, op, &[sum, w]);
        let out = push(&mut g, Elementwise::add(), &[second, sum]);
        let limits = FusionLimits { addends: true, ..FusionLimits::default() };
        let schedule = g.schedule(&[out], limits).unwrap();
        let steps: Vec<_> =
            schedule.steps.iter().map(|step| (step.inputs(), step.outputs().collect::<Vec<_>>())).collect();
        assert_eq!(steps, [(&[x, w, x][..], vec![sum]), (&[sum, w, sum][..], vec![out])]);
        assert_eq!(g.schedule(&[out], FusionLimits::default()).unwrap().steps.len(), 4);
        // A sum over devices takes an addend, too; then the product before it takes none.
        let over_devices = push(&mut g, AllReduce, &[product]);
        let residual = push(&mut g, Elementwise::add(), &[x, over_devices]);
        let schedule = g.schedule(&[residual], limits).unwrap();
        let steps: Vec<_> = schedule.steps.iter().map(Step::inputs).collect();
        assert_eq!(steps, [&[x, w][..], &[product, x]]);
        // No fusion if the product itself is wanted or read elsewhere, is added to itself, or has other extents than
        // the addend.
        assert_eq!(g.schedule(&[out, product], limits).unwrap().steps.len(), 3);
        let twice = push(&mut g, Elementwise::add(), &[product, product]);
        assert_eq!(g.schedule(&[twice], limits).unwrap().steps.len(), 2);
        let biased = push(&mut g, Elementwise::add(), &[product, bias]);
        assert_eq!(g.schedule(&[biased], limits).unwrap().steps.len(), 2);
        // The addend depends on a reader of the product, so the product cannot include the sum.
        let soft = push(&mut g, Softmax, &[product]);
        let late = push(&mut g, Elementwise::add(), &[product, soft]);
        assert_eq!(g.schedule(&[late], limits).unwrap().steps.len(), 3);
    }

    #[test]
    fn a_gate_takes_the_products_that_only_it_reads() {
        let [format, other] = [crate::QuantFormat::Q4K, crate::QuantFormat::Q6K];
        let formats = &[crate::QuantFormat::Q4K];
        let norms = Some(NormLimits { rows: 2, formats, many: usize::MAX, multiples: &[] });
        let limits = FusionLimits { addends: true, gates: 2, norms, round: 4, ..FusionLimits::default() };
        let mut g = Graph::new();
        let matrix = |rows: usize| Shape::new(&[rows, 256]).unwrap();
        let weights = |g: &mut Graph, format, rows| g.input(TensorType::blocks(format, matrix(rows)).unwrap());
        let [x, three] = [2, 3].map(|rows| g.input(TensorType::f32(matrix(rows))));
        let (gamma, w, u) = (g.input(vector(256)), weights(&mut g, format, 256), weights(&mut g, format, 256));
        let product = |g: &mut Graph, x, w| push(g, QuantMatmul { format }, &[x, w]);
        let gate_of = |g: &mut Graph, kind: Elementwise, x: TensorId, [w, u]: [TensorId; 2]| {
            let products = [w, u].map(|weights| product(g, x, weights));
            (push(g, kind, &products), products)
        };
        let steps = |g: &Graph, wanted: &[TensorId]| {
            let schedule = g.schedule(wanted, limits).unwrap();
            assert_eq!(schedule.rounds.iter().sum::<usize>(), schedule.steps.len());
            schedule.steps
        };
        // The gate's operands are in its order; a sum that reads the gate's result is not part of it.
        let normal = push(&mut g, RmsNorm::new(1e-5), &[x, gamma]);
        for gate in [Elementwise::swiglu(), Elementwise::geglu(), Elementwise::geglu_tanh()] {
            let (plain, _) = gate_of(&mut g, gate, x, [w, u]);
            let (normed, _) = gate_of(&mut g, gate, normal, [u, w]);
            let sum = push(&mut g, Elementwise::add(), &[plain, x]);
            let run = |norm, inputs: &[TensorId], out| Step::Run {
                op: QuantMatmul { format }.into(),
                norm,
                gate: Some(gate),
                inputs: inputs.to_vec(),
                outputs: vec![out],
            };
            assert_eq!(steps(&g, &[plain]), [run(None, &[x, w, u], plain)]);
            assert_eq!(steps(&g, &[normed]), [run(Some(RmsNorm::new(1e-5)), &[x, u, w, gamma], normed)]);
            assert_eq!(steps(&g, &[sum]).len(), 2);
            // Its first operand was recorded last.
            let products = [u, w].map(|weights| product(&mut g, x, weights));
            let turned = push(&mut g, gate, &products);
            assert_eq!(steps(&g, &[turned]), [run(None, &[x, u, w], turned)]);
            assert_eq!(g.schedule(&[plain], FusionLimits::default()).unwrap().steps.len(), 3);
        }
        // Not if a product is wanted or read elsewhere, if rows, formats or norms differ, of more rows, or for another function.
        let (gate, [first, _]) = gate_of(&mut g, Elementwise::swiglu(), x, [w, u]);
        assert_eq!(steps(&g, &[gate, first]).len(), 3);
        let soft = push(&mut g, Softmax, &[first]);
        assert_eq!(steps(&g, &[gate, soft]).len(), 4);
        let (of_three, _) = gate_of(&mut g, Elementwise::swiglu(), three, [w, u]);
        let (product_of_two, _) = gate_of(&mut g, Elementwise::mul(), x, [w, u]);
        let q6 = weights(&mut g, other, 256);
        let of_q6 = push(&mut g, QuantMatmul { format: other }, &[x, q6]);
        let mixed = push(&mut g, Elementwise::swiglu(), &[first, of_q6]);
        let normed = product(&mut g, normal, u);
        let half = push(&mut g, Elementwise::swiglu(), &[first, normed]);
        let twice = push(&mut g, Elementwise::swiglu(), &[first, first]);
        for (wanted, expected) in [(of_three, 3), (product_of_two, 3), (mixed, 3), (half, 3), (twice, 2)] {
            let found = steps(&g, &[wanted]);
            assert_eq!(found.len(), expected, "{found:?}");
        }
    }

    #[test]
    fn steps_of_one_operation_that_could_run_at_once_are_one_round() {
        let format = crate::QuantFormat::Q4K;
        let mut g = Graph::new();
        let x = g.input(TensorType::f32(Shape::new(&[2, 256]).unwrap()));
        let weights = TensorType::blocks(format, Shape::new(&[256, 256]).unwrap()).unwrap();
        let op = QuantMatmul { format };
        let project = |g: &mut Graph, x| {
            let w = g.input(weights);
            push(g, op, &[x, w])
        };
        // Three products of x with steps of other operations between them, and a product of their results.
        let first = project(&mut g, x);
        let soft = push(&mut g, Softmax, &[first]);
        let second = project(&mut g, x);
        let other = push(&mut g, Softmax, &[second]);
        let third = project(&mut g, x);
        let behind = project(&mut g, third);
        let all = [soft, other, behind];
        let of = |round| {
            let limits = FusionLimits { round, ..FusionLimits::default() };
            let schedule = g.schedule(&all, limits).unwrap();
            assert_eq!(schedule.rounds.iter().sum::<usize>(), schedule.steps.len());
            let outputs = |steps: &[Step]| steps.iter().flat_map(Step::outputs).collect::<Vec<_>>();
            (schedule.rounds.clone(), outputs(&schedule.steps), schedule)
        };
        assert_eq!(of(1).0, [1; 6]);
        let (rounds, outputs, schedule) = of(4);
        assert_eq!((rounds, outputs), (vec![3, 2, 1], vec![first, second, third, soft, other, behind]));
        // A round does not overwrite its own inputs.
        let slots = [first, second, third].map(|id| schedule.slot(id).unwrap());
        assert!(slots[0] != slots[1] && slots[1] != slots[2] && slots[0] != slots[2]);
        assert_eq!(of(2).0, [2, 2, 1, 1]);
    }

    #[test]
    fn products_of_several_formats_are_one_round_if_allowed() {
        let mut g = Graph::new();
        let x = g.input(TensorType::f32(Shape::new(&[1, 256]).unwrap()));
        let products = [crate::QuantFormat::Q4K, crate::QuantFormat::Q6K, crate::QuantFormat::Q4K].map(|format| {
            let weights = TensorType::blocks(format, Shape::new(&[256, 256]).unwrap()).unwrap();
            let w = g.input(weights);
            push(&mut g, QuantMatmul { format }, &[x, w])
        });
        let rounds = |mixed_formats| {
            let limits = FusionLimits { round: 4, mixed_formats, ..FusionLimits::default() };
            let schedule = g.schedule(&products, limits).unwrap();
            // The steps keep the format of their own weights.
            for step in &schedule.steps {
                let Step::Run { op: Op::QuantMatmul(QuantMatmul { format }), inputs, .. } = step else { panic!() };
                assert_eq!(g.ty(inputs[1]).unwrap().dtype, crate::DType::Blocks(*format));
            }
            schedule.rounds
        };
        assert_eq!((rounds(false), rounds(true)), (vec![2, 1], vec![3]));
    }

    #[test]
    fn rounds_keep_results_that_they_read() {
        let mut g = Graph::new();
        let square = TensorType::f32(Shape::new(&[8, 8]).unwrap());
        let inputs: Vec<TensorId> = (0..4).map(|_| g.input(square)).collect();
        let mut ends: Vec<TensorId> = inputs.iter().map(|&x| push(&mut g, Softmax, &[x])).collect();
        for _ in 0..3 {
            ends.iter_mut().for_each(|x| *x = push(&mut g, Softmax, &[*x]));
        }
        let last = push(&mut g, crate::op::Concat { axis: 0 }, &ends);
        let schedule = g.schedule(&[last], FusionLimits { round: 4, ..FusionLimits::default() }).unwrap();
        assert_eq!(schedule.rounds, [4, 4, 4, 4, 1]);
        let mut steps = &schedule.steps[..];
        for &count in &schedule.rounds {
            let (round, left) = steps.split_at(count);
            let slots = |ids: Vec<TensorId>| ids.into_iter().filter_map(|id| schedule.slot(id)).collect::<HashSet<_>>();
            let read = slots(round.iter().flat_map(|step| step.inputs().to_vec()).collect());
            let written = slots(round.iter().flat_map(Step::outputs).collect());
            assert!(read.is_disjoint(&written), "{round:?}");
            steps = left;
        }
    }

    #[test]
    fn what_moves_no_element_is_no_step() {
        let mut g = Graph::new();
        let x = g.input(TensorType::f32(Shape::new(&[1, 6, 4]).unwrap()));
        let heads = push(&mut g, Permute::new(&[1, 0, 2]).unwrap(), &[x]);
        let whole = push(&mut g, Slice::along(0, 0..6, 1).unwrap(), &[heads]);
        let soft = push(&mut g, Softmax, &[whole]);
        let back = push(&mut g, Permute::new(&[1, 0, 2]).unwrap(), &[soft]);
        let turned = push(&mut g, Permute::new(&[0, 2, 1]).unwrap(), &[back]);
        let part = push(&mut g, Slice::along(1, 0..4, 2).unwrap(), &[turned]);
        let schedule = g.schedule(&[part, back], FusionLimits::default()).unwrap();
        let outputs: Vec<TensorId> = schedule.steps.iter().flat_map(Step::outputs).collect();
        assert_eq!(outputs, [soft, turned, part]);
        assert_eq!((schedule.root(heads), schedule.root(back)), (x, soft));
        // The same for a state: a write to it is visible under the other extents.
        let (state, row, at) = state(&mut g);
        let same = push(&mut g, Slice::WHOLE, &[state]);
        let written = push(&mut g, WriteRows, &[same, row, at]);
        assert_eq!(g.state_of(written), Some(state));
    }

    #[test]
    fn what_is_wanted_under_two_shapes_is_one_result() {
        let mut g = Graph::new();
        let x = g.input(vector(12));
        let y = push(&mut g, Softmax, &[x]);
        let one = reshape(&mut g, y, &[2, 6]);
        let same = reshape(&mut g, y, &[2, 6]);
        let back = reshape(&mut g, one, &[12]);
        let schedule = g.schedule(&[y, one, same, back], FusionLimits::default()).unwrap();
        assert_eq!((schedule.steps.len(), schedule.slots.len()), (1, 0));
        assert_eq!(schedule.results, [y, one, one, y]);
        assert!(schedule.results.iter().all(|&id| schedule.location(&g, id).unwrap() == Location::Result(y)));
    }

    #[test]
    fn chains_and_common_nodes_see_through_reshapes() {
        let mut g = Graph::new();
        let (x, bias) = (g.input(vector(12)), g.input(vector(4)));
        let e = push(&mut g, Elementwise::exp(), &[x]);
        let matrix = reshape(&mut g, e, &[3, 4]);
        let biased = push(&mut g, Elementwise::add(), &[matrix, bias]);
        let again = reshape(&mut g, e, &[3, 4]);
        let same = push(&mut g, Elementwise::add(), &[again, bias]);
        let flat = reshape(&mut g, biased, &[2, 6]);
        let out = push(&mut g, Elementwise::relu(), &[flat]);
        let schedule = g.schedule(&[out, same, matrix], FusionLimits::default()).unwrap();
        let [Step::Fused(fused)] = &schedule.steps[..] else { panic!("{:?}", schedule.steps) };
        assert_eq!((fused.inputs.as_slice(), fused.instructions.len()), ([x, bias].as_slice(), 3));
        assert_eq!(fused.instructions[1].operands, [Source::Result(0), Source::Input(1)]);
        // Outputs are named by the tensor that owns the memory: the exponentials are wanted as a matrix.
        assert_eq!(fused.outputs, [(e, 0), (biased, 1), (out, 2)]);
        assert_eq!(schedule.results, [out, biased, matrix]);
        let unfused = g.schedule(&[out, same, matrix], FusionLimits::NONE).unwrap();
        assert_eq!(unfused.steps.len(), 3);
    }

    #[test]
    fn a_slot_lives_as_long_as_any_name_of_it() {
        let mut g = Graph::new();
        let x = g.input(TensorType::f32(Shape::new(&[4, 6]).unwrap()));
        let first = push(&mut g, Softmax, &[x]);
        let named = reshape(&mut g, first, &[6, 4]);
        let mut y = first;
        for _ in 0..4 {
            y = push(&mut g, Softmax, &[y]);
            let flat = reshape(&mut g, y, &[24]);
            y = reshape(&mut g, flat, &[4, 6]);
        }
        let turned = push(&mut g, Permute::new(&[1, 0]).unwrap(), &[named]);
        let out = push(&mut g, Elementwise::add(), &[turned, y]);
        let schedule = g.schedule(&[out], FusionLimits::default()).unwrap();
        // The first result until the permutation, and two alternating slots.
        assert_eq!(schedule.slots.len(), 3);
        let held = schedule.slot(named).unwrap();
        assert_eq!(schedule.slot(first), Some(held));
        let permuted = schedule.steps.iter().position(|step| step.inputs() == [named]).unwrap();
        for step in &schedule.steps[1..permuted] {
            assert!(step.outputs().all(|id| schedule.slot(id) != Some(held)));
        }
    }

    /// A state of four rows, one new row and its position.
    fn state(g: &mut Graph) -> (TensorId, TensorId, TensorId) {
        let state = g.state(TensorType::f32(Shape::new(&[4, 3]).unwrap()));
        let row = g.input(TensorType::f32(Shape::new(&[1, 3]).unwrap()));
        (state, row, g.input(TensorType::u32(Shape::new(&[1]).unwrap())))
    }

    #[test]
    fn writes_to_a_state_stay_in_its_memory_and_in_their_order() {
        let mut g = Graph::new();
        let (first, row, at) = state(&mut g);
        // Read before the write, and recorded after it is scheduled: the write waits for both readers.
        let before = push(&mut g, Elementwise::exp(), &[first]);
        let written = push(&mut g, WriteRows, &[first, row, at]);
        let after = push(&mut g, Softmax, &[written]);
        let again = push(&mut g, WriteRows, &[written, row, at]);
        let both = push(&mut g, Elementwise::add(), &[before, after]);
        let schedule = g.schedule(&[both, again], FusionLimits::default()).unwrap();
        let position =
            |id: TensorId| schedule.steps.iter().position(|step| step.outputs().any(|out| out == id)).unwrap();
        assert!(position(before) < position(written), "{:?}", schedule.steps);
        assert!(position(written) < position(after) && position(after) < position(again));
        for version in [first, written, again] {
            assert_eq!(schedule.location(&g, version).unwrap(), Location::State(first));
        }
        assert_eq!(schedule.slot(written), None);
        assert_eq!(schedule.inputs(&g).unwrap().len(), 3);
        assert_eq!((g.writes(), g.state_of(again), g.state_of(both)), (2, Some(first), None));
    }

    #[test]
    fn writes_run_whatever_is_wanted_and_none_is_shared() {
        let mut g = Graph::new();
        let (first, row, at) = state(&mut g);
        let written = push(&mut g, WriteRows, &[first, row, at]);
        let other = push(&mut g, Elementwise::exp(), &[row]);
        let same = push(&mut g, WriteRows, &[written, row, at]);
        let schedule = g.schedule(&[other], FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 3);
        assert_eq!(schedule.location(&g, same).unwrap(), Location::State(first));
        // For tensors that are not states, a write is an ordinary operation.
        let (x, mut pure) = (g.input(g.ty(first).unwrap()), Vec::new());
        for _ in 0..2 {
            pure.push(push(&mut g, WriteRows, &[x, row, at]));
        }
        let schedule = g.schedule(&pure, FusionLimits::default()).unwrap();
        assert_eq!((schedule.steps.len(), schedule.results[0] == schedule.results[1]), (3, true));
        assert_eq!(schedule.location(&g, pure[0]).unwrap(), Location::Result(pure[0]));
    }

    #[test]
    fn a_version_that_was_replaced_cannot_be_read() {
        let mut g = Graph::new();
        let (first, row, at) = state(&mut g);
        let flat = reshape(&mut g, first, &[12]);
        let early = push(&mut g, Elementwise::exp(), &[flat]);
        let written = push(&mut g, WriteRows, &[first, row, at]);
        for old in [first, flat] {
            let Err(Error::Parameter { reason, .. }) = g.record(Elementwise::exp(), &[old]) else { panic!("{old:?}") };
            assert!(reason.contains(&format!("tensor {}", written.index())), "{reason}");
            assert!(matches!(g.schedule(&[old], FusionLimits::NONE), Err(Error::Parameter { .. })));
        }
        let late = reshape(&mut g, written, &[12]);
        let after = push(&mut g, Elementwise::exp(), &[late]);
        // The same function of the same memory, before and after a write.
        let schedule = g.schedule(&[early, after], FusionLimits::default()).unwrap();
        assert_eq!(schedule.steps.len(), 3);
        assert_eq!(schedule.steps[0].outputs().collect::<Vec<_>>(), [early]);
        assert_eq!((schedule.steps[2].inputs(), schedule.root(late)), (&[late][..], first));
        let onto_itself = g.record(WriteRows, &[written, written, at]);
        assert!(matches!(onto_itself, Err(Error::Parameter { .. } | Error::Shape { .. })));
        let rows = reshape(&mut g, written, &[4, 3]);
        let four = g.input(TensorType::u32(Shape::new(&[4]).unwrap()));
        assert!(matches!(g.record(WriteRows, &[written, rows, four]), Err(Error::Parameter { .. })));
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
