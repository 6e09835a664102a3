use super::share::Simplified;
use super::{Graph, TensorId};
use crate::op::{Cost, ElementwiseKind, Op, QuantMatmul, RmsNorm, total_bytes};
use crate::{DType, Error, QuantFormat, Result, Shape};

/// Limits of fused steps; a backend with few bindings lowers them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FusionLimits {
    /// Tensors read from memory.
    pub inputs: usize,
    /// Tensors written to memory.
    pub outputs: usize,
    /// Functions applied to each element.
    pub instructions: usize,
    /// Whether a product with quantised weights takes the tensor that is added to its result as a third operand.
    pub addends: bool,
    /// The products with quantised weights that normalise their rows themselves; `None` if every norm is a separate step.
    pub norms: Option<NormLimits>,
    /// Maximum number of rows of two products with quantised weights of one format that are one step with the gate that takes both, such as
    /// [`Elementwise::swiglu`](crate::op::Elementwise::swiglu); 0 keeps gates separate.
    pub gates: usize,
    /// Maximum number of steps of a round of the schedule: adjacent, independent steps of one operation, which a backend may run as one
    /// launch.
    pub round: usize,
    /// Whether products with quantised weights of different formats may be in one round.
    pub mixed_formats: bool,
}

impl FusionLimits {
    /// Every operation is a step of its own.
    pub const NONE: Self = Self {
        inputs: 0,
        outputs: 0,
        instructions: 1,
        addends: false,
        norms: None,
        gates: 0,
        round: 1,
        mixed_formats: false,
    };
}

impl Default for FusionLimits {
    fn default() -> Self {
        Self { inputs: 16, outputs: 8, instructions: 64, ..Self::NONE }
    }
}

/// The products that compute the [`RmsNorm`] of their rows in the same step. If all readers of a norm are such products, the norm is
/// not a separate step.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NormLimits {
    /// Maximum number of rows that count as few: each product computes the norm again.
    pub rows: usize,
    /// The formats of the weights for few rows.
    pub formats: &'static [QuantFormat],
    /// Minimum number of rows that count as many.
    pub many: usize,
    /// The formats of the weights for many rows, each with a number that the elements of a row must be a multiple of.
    pub multiples: &'static [(QuantFormat, usize)],
}

impl NormLimits {
    /// Whether a product of `rows` normalised rows of `columns` elements with weights of this format computes the norm.
    fn include(&self, format: QuantFormat, [rows, columns]: [usize; 2]) -> bool {
        let multiple = |&(of, number): &(QuantFormat, usize)| of == format && columns.is_multiple_of(number);
        let few = rows <= self.rows && self.formats.contains(&format);
        few || rows >= self.many && self.multiples.iter().any(multiple)
    }
}

/// The source of an operand of a fused instruction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Source {
    /// The `i`-th tensor that the step reads.
    Input(usize),
    /// The result of the `i`-th instruction.
    Result(usize),
}

/// One function of a fused step.
#[derive(Debug, Clone, PartialEq)]
pub struct Instruction {
    /// The function.
    pub kind: ElementwiseKind,
    /// Its parameters.
    pub params: [f32; 2],
    /// Its operands, as many as it takes.
    pub operands: Vec<Source>,
}

/// Element-wise functions applied one after another to each element, in one pass over memory.
#[derive(Debug, Clone, PartialEq)]
pub struct Fused {
    /// The shape of the first result; the others have as many elements, in the same order. An input has as many, or repeats along
    /// the outer dimensions.
    pub shape: Shape,
    /// Tensors read.
    pub inputs: Vec<TensorId>,
    /// The functions that are applied to each element, in order.
    pub instructions: Vec<Instruction>,
    /// Tensors written, and the instruction whose result each one is.
    pub outputs: Vec<(TensorId, usize)>,
}

/// A partition of the live nodes into steps that can run one after another.
pub(super) struct Groups {
    /// Nodes of each group, in recorded order; the groups are in an order in which they can run.
    pub(super) order: Vec<Vec<usize>>,
    /// Number of groups of each round, in this order.
    pub(super) rounds: Vec<usize>,
    pub(super) norms: Norms,
}

/// Norms that are part of the products that read them.
pub(super) struct Norms {
    /// For each node, the norm that it includes.
    of_product: Vec<Option<usize>>,
    /// For each node, whether other nodes include it.
    is_part: Vec<bool>,
}

impl Norms {
    fn find(graph: &Graph, simplified: &Simplified, results: &[TensorId], limits: Option<NormLimits>) -> Self {
        let count = graph.nodes.len();
        let mut norms = Self { of_product: vec![None; count], is_part: vec![false; count] };
        let Some(limits) = limits else { return norms };
        let mut readers: Vec<Vec<usize>> = vec![Vec::new(); graph.nodes.len()];
        for &reader in &simplified.live {
            for node in graph.nodes[reader].inputs.iter().filter_map(|&id| graph.producer(simplified.elements(id))) {
                readers[node].push(reader);
            }
        }
        let wanted: Vec<usize> = results.iter().filter_map(|&id| graph.producer(simplified.elements(id))).collect();
        for &node in &simplified.live {
            let norm = &graph.nodes[node];
            let (Op::RmsNorm(_), &[out]) = (norm.op, &norm.outputs[..]) else { continue };
            let is_f32 = norm.inputs.iter().all(|&id| graph.type_of(id).dtype == DType::F32);
            let shape = graph.type_of(out).shape;
            let extents = [shape.rows(), shape.columns()];
            let takes = |&reader: &usize| {
                let product = &graph.nodes[reader];
                let (Op::QuantMatmul(op), &[x, weights]) = (product.op, &product.inputs[..]) else { return false };
                let same = |id: TensorId| simplified.same_as[id.index()];
                limits.include(op.format, extents) && same(x) == out && same(weights) != out
            };
            if is_f32
                && !wanted.contains(&node)
                && !simplified.reads_before_a_write(node)
                && readers[node].iter().all(takes)
            {
                readers[node].iter().for_each(|&product| norms.of_product[product] = Some(node));
                norms.is_part[node] = true;
            }
        }
        norms
    }

    /// The norm that a product includes.
    pub(super) fn of(&self, graph: &Graph, product: usize) -> Option<RmsNorm> {
        match self.of_product[product].map(|norm| graph.nodes[norm].op) {
            Some(Op::RmsNorm(norm)) => Some(norm),
            _ => None,
        }
    }

    /// Whether other nodes include this one.
    fn has(&self, node: usize) -> bool {
        self.is_part[node]
    }

    /// The operands of a node's step: those of the node, or, if it includes a norm, the norm's operand, the weights and
    /// gamma.
    pub(super) fn operands(&self, graph: &Graph, node: usize) -> Vec<TensorId> {
        let inputs = &graph.nodes[node].inputs;
        match self.of_product[node].map(|norm| &graph.nodes[norm].inputs[..]) {
            Some(&[x, gamma]) => vec![x, inputs[1], gamma],
            _ => inputs.clone(),
        }
    }
}

/// The operand that a sum adds to a product with quantised weights, or to a sum over devices, both of f32 and the same extents;
/// `None` if this is another kind of sum.
pub(super) fn addend(graph: &Graph, simplified: &Simplified, product: usize, sum: usize) -> Option<TensorId> {
    let [product, sum] = [product, sum].map(|node| &graph.nodes[node]);
    let (Op::QuantMatmul(_) | Op::AllReduce(_), [of_product], [a, b]) =
        (product.op, &product.outputs[..], &sum.inputs[..])
    else {
        return None;
    };
    let [a, b] = [a, b].map(|id| simplified.same_as[id.index()]);
    let other = match [a == *of_product, b == *of_product] {
        [true, false] => b,
        [false, true] => a,
        _ => return None,
    };
    let ty = graph.type_of(*of_product);
    (graph.type_of(other) == ty && ty.dtype == DType::F32).then_some(other)
}

/// The two products that a gate takes, in the order of its operands, if they have quantised weights of one type and the same rows.
pub(super) fn gated(graph: &Graph, simplified: &Simplified, norms: &Norms, node: usize) -> Option<[usize; 2]> {
    let (Op::Elementwise(gate), &[first, second]) = (graph.nodes[node].op, &graph.nodes[node].inputs[..]) else {
        return None;
    };
    if !ElementwiseKind::GATES.contains(&gate.kind()) {
        return None;
    }
    let product = |id: TensorId| {
        let product = graph.producer(simplified.same_as[id.index()])?;
        let is_product = matches!(graph.nodes[product].op, Op::QuantMatmul(_));
        (is_product && !simplified.reads_before_a_write(product)).then_some(product)
    };
    let products = [product(first)?, product(second)?];
    let same = |id: TensorId| simplified.same_as[id.index()];
    let [(x, weights), others] =
        products.map(|product| (same(graph.nodes[product].inputs[0]), graph.type_of(graph.nodes[product].inputs[1])));
    let [norm, other_norm] = products.map(|product| norms.of_product[product]);
    (products[0] != products[1] && (x, weights) == others && norm == other_norm).then_some(products)
}

/// Groups under construction: a forest of merged nodes.
struct Builder<'a> {
    graph: &'a Graph,
    simplified: &'a Simplified,
    limits: FusionLimits,
    norms: Norms,
    /// For each node, how many live nodes read its result; one more when it is wanted itself.
    readers: Vec<usize>,
    /// The group of each node; `usize::MAX` for dead nodes.
    group_of: Vec<usize>,
    /// Nodes of each group, in recorded order; empty once merged into another.
    members: Vec<Vec<usize>>,
}

/// Groups element-wise nodes with equal numbers of elements that feed one another, directly or through reshapes.
///
/// Merging two groups is valid unless a path leads from one to the other through a third group, which would have to run
/// both after and before the merged group.
pub(super) fn group(graph: &Graph, simplified: &Simplified, results: &[TensorId], limits: FusionLimits) -> Groups {
    let mut builder = Builder {
        graph,
        simplified,
        limits,
        norms: Norms::find(graph, simplified, results, limits.norms),
        readers: vec![0; graph.nodes.len()],
        group_of: vec![usize::MAX; graph.nodes.len()],
        members: Vec::new(),
    };
    let live: Vec<usize> = simplified.live.iter().copied().filter(|&node| !builder.norms.has(node)).collect();
    for &node in &live {
        for feeder in builder.feeders(node) {
            builder.readers[feeder] += 1;
        }
    }
    for node in results.iter().filter_map(|&id| graph.producer(simplified.elements(id))) {
        builder.readers[node] += 1;
    }
    for &node in &live {
        builder.group_of[node] = builder.members.len();
        builder.members.push(vec![node]);
        for feeder in builder.feeders(node) {
            builder.try_merge(builder.group_of[feeder], builder.group_of[node]);
        }
        if limits.addends {
            builder.try_add(node);
        }
        if limits.gates > 0 {
            builder.try_gate(node);
        }
    }
    let order = builder.order();
    let (order, rounds) = match limits.round {
        0 | 1 => {
            let rounds = vec![1; order.len()];
            (order, rounds)
        }
        _ => builder.rounds(&order),
    };
    let order = order.into_iter().map(|group| std::mem::take(&mut builder.members[group])).collect();
    Groups { order, rounds, norms: builder.norms }
}

/// How many later groups are searched for further steps of the same operation.
const AHEAD: usize = 16;

impl Builder<'_> {
    /// Live nodes whose results a node reads.
    fn feeders(&self, node: usize) -> Vec<usize> {
        let inputs = self.norms.operands(self.graph, node).into_iter();
        inputs.filter_map(|id| self.graph.producer(self.simplified.elements(id))).collect()
    }

    /// The groups that must run before a group: those that it reads from, and those that read a state before it writes
    /// to it.
    fn reads(&self, group: usize) -> impl Iterator<Item = usize> + '_ {
        let before = |&node: &usize| self.feeders(node).into_iter().chain(self.simplified.before(node).iter().copied());
        let nodes = self.members[group].iter().flat_map(before);
        nodes.map(|node| self.group_of[node]).filter(move |&other| other != group)
    }

    /// Elements of each result. An operand that repeats has fewer elements, so its producer is never in the group of
    /// its reader.
    fn elements_if_elementwise(&self, group: usize) -> Option<usize> {
        let node = &self.graph.nodes[*self.members[group].first()?];
        // A fused chain reads only f32.
        let wide = || node.inputs.iter().all(|&id| self.graph.type_of(id).dtype == DType::F32);
        (matches!(node.op, Op::Elementwise(_)) && wide()).then(|| self.graph.type_of(node.outputs[0]).shape.numel())
    }

    fn try_merge(&mut self, a: usize, b: usize) {
        let fits = a != b
            && self.members[a].len() + self.members[b].len() <= self.limits.instructions
            && self.elements_if_elementwise(a).is_some()
            && self.elements_if_elementwise(a) == self.elements_if_elementwise(b)
            && self.memory_fits(a, b)
            && !self.leads_through_third(a, b)
            && !self.leads_through_third(b, a);
        if fits {
            self.merge(a, b);
        }
    }

    /// Merges a sum that is a group of its own with the product that it adds to, if nothing else reads the product.
    fn try_add(&mut self, node: usize) {
        let at = self.group_of[node];
        let Op::Elementwise(sum) = self.graph.nodes[node].op else { return };
        if sum.kind() != ElementwiseKind::Add || self.members[at].len() > 1 {
            return;
        }
        for feeder in self.feeders(node) {
            let product = self.group_of[feeder];
            if product != at
                && self.members[product].len() == 1
                && self.readers[feeder] == 1
                && self.norms.of(self.graph, feeder).is_none()
                && addend(self.graph, self.simplified, feeder, node).is_some()
                && !self.leads_through_third(at, product)
            {
                return self.merge(product, at);
            }
        }
    }

    /// Merges a gate that is a group of its own with the two products that it takes, if nothing else reads them. Then no path leads from
    /// one of them to another through a third group.
    fn try_gate(&mut self, node: usize) {
        if self.members[self.group_of[node]].len() > 1 {
            return;
        }
        let Some(products) = gated(self.graph, self.simplified, &self.norms, node) else { return };
        let is_own = |&product: &usize| self.members[self.group_of[product]].len() == 1 && self.readers[product] == 1;
        let rows = self.graph.type_of(self.graph.nodes[node].outputs[0]).shape.rows();
        if rows <= self.limits.gates && products.iter().all(is_own) {
            products.into_iter().for_each(|product| self.merge(self.group_of[product], self.group_of[node]));
        }
    }

    fn merge(&mut self, a: usize, b: usize) {
        let moved = std::mem::take(&mut self.members[b]);
        for &node in &moved {
            self.group_of[node] = a;
        }
        self.members[a].extend(moved);
        self.members[a].sort_unstable();
    }

    /// Whether the tensors that the merged group reads and writes stay within the limits. Later readers that may still
    /// join count as outside readers.
    fn memory_fits(&self, a: usize, b: usize) -> bool {
        let nodes: Vec<usize> = self.members[a].iter().chain(&self.members[b]).copied().collect();
        let mut inputs = Vec::new();
        let mut inside_readers = vec![0; nodes.len()];
        for &node in &nodes {
            for &id in &self.graph.nodes[node].inputs {
                let id = self.simplified.memory(id);
                let position = self.graph.producer(id).and_then(|from| nodes.iter().position(|&n| n == from));
                match position {
                    Some(position) => inside_readers[position] += 1,
                    None => inputs.push(id.index()),
                }
            }
        }
        inputs.sort_unstable();
        inputs.dedup();
        let written = nodes.iter().zip(&inside_readers).filter(|&(&node, &inside)| self.readers[node] > inside).count();
        inputs.len() <= self.limits.inputs && written <= self.limits.outputs
    }

    /// Whether `from` depends on a result of `to` through at least one other group.
    fn leads_through_third(&self, from: usize, to: usize) -> bool {
        // Nodes read only earlier nodes: a group whose last member precedes the first of `to` cannot depend on it.
        let Some(&earliest) = self.members[to].first() else { return false };
        let mut seen = vec![false; self.members.len()];
        let mut pending: Vec<usize> = self.reads(from).filter(|&group| group != to).collect();
        while let Some(group) = pending.pop() {
            if std::mem::replace(&mut seen[group], true) || self.members[group].last() < Some(&earliest) {
                continue;
            }
            for next in self.reads(group) {
                if next == to {
                    return true;
                }
                pending.push(next);
            }
        }
        false
    }

    /// Orders the groups so that each reads only earlier ones: depth first, in recorded order.
    fn order(&self) -> Vec<usize> {
        let mut order = Vec::new();
        let mut placed = vec![false; self.members.len()];
        for root in 0..self.members.len() {
            // A group is visited twice: first to place its inputs, then to place it.
            let mut stack = vec![(root, false)];
            while let Some((group, ready)) = stack.pop() {
                if placed[group] || self.members[group].is_empty() {
                    continue;
                }
                if ready {
                    placed[group] = true;
                    order.push(group);
                } else {
                    stack.push((group, true));
                    stack.extend(self.reads(group).map(|other| (other, false)));
                }
            }
        }
        order
    }
}

impl Builder<'_> {
    /// The property that the groups of a round share: the operation of a group that is a single node and not element-wise, and the
    /// norm that it includes. If a round may have products with weights of several formats, all of them count as the first format.
    fn single(&self, group: usize) -> Option<(Op, Option<RmsNorm>)> {
        let &[node] = &self.members[group][..] else { return None };
        let op = match self.graph.nodes[node].op {
            Op::QuantMatmul(_) if self.limits.mixed_formats => QuantMatmul { format: QuantFormat::ALL[0] }.into(),
            op => op,
        };
        (!matches!(op, Op::Elementwise(_))).then(|| (op, self.norms.of(self.graph, node)))
    }

    /// Reorders the groups so that groups of one operation are adjacent if they could all run before the first of them.
    /// Also returns the number of groups of each round.
    fn rounds(&self, order: &[usize]) -> (Vec<usize>, Vec<usize>) {
        let mut placed = vec![false; self.members.len()];
        let (mut all, mut rounds) = (Vec::with_capacity(order.len()), Vec::new());
        for (at, &first) in order.iter().enumerate() {
            if placed[first] {
                continue;
            }
            let begin = all.len();
            all.push(first);
            if let Some(op) = self.single(first) {
                let ahead = order[at + 1..].iter().copied().take(AHEAD).filter(|&group| !placed[group]);
                // Groups of this round are not marked as placed yet, so their readers cannot join it.
                let could_run =
                    |&group: &usize| self.single(group) == Some(op) && self.reads(group).all(|other| placed[other]);
                all.extend(ahead.filter(could_run).take(self.limits.round - 1));
            }
            all[begin..].iter().for_each(|&group| placed[group] = true);
            rounds.push(all.len() - begin);
        }
        (all, rounds)
    }
}

impl Fused {
    /// Turns a group of nodes into one step; `kept` says which results other steps read.
    pub(super) fn new(
        graph: &Graph,
        simplified: &Simplified,
        nodes: &[usize],
        kept: impl Fn(TensorId) -> bool,
    ) -> Option<Self> {
        let shape = graph.type_of(*graph.nodes[*nodes.first()?].outputs.first()?).shape;
        let mut fused = Self { shape, inputs: Vec::new(), instructions: Vec::new(), outputs: Vec::new() };
        let mut results: Vec<TensorId> = Vec::new();
        for &node in nodes {
            let node = &graph.nodes[node];
            let Op::Elementwise(op) = node.op else { return None };
            let mut operands = Vec::with_capacity(node.inputs.len());
            for &id in &node.inputs {
                let id = simplified.memory(id);
                operands.push(match results.iter().position(|&r| r == id) {
                    Some(at) => Source::Result(at),
                    None => {
                        let known = fused.inputs.iter().position(|&i| i == id);
                        Source::Input(known.unwrap_or_else(|| {
                            fused.inputs.push(id);
                            fused.inputs.len() - 1
                        }))
                    }
                });
            }
            let out = *node.outputs.first()?;
            if kept(out) {
                fused.outputs.push((out, fused.instructions.len()));
            }
            results.push(out);
            fused.instructions.push(Instruction { kind: op.kind(), params: op.params(), operands });
        }
        Some(fused)
    }

    /// Checks that the step can run. Steps of a graph always can, but the fields are public.
    ///
    /// # Errors
    /// [`Error::Arity`] when an instruction has another number of operands than its function, [`Error::Parameter`] when an
    /// operand or a tensor written does not exist at that point, or a result is written twice.
    pub fn check(&self) -> Result<()> {
        const OP: &str = "fused chain";
        let absent = |what: String| Err(Error::Parameter { op: OP, reason: format!("{what} does not exist") });
        for (at, instruction) in self.instructions.iter().enumerate() {
            let (expected, found) = (instruction.kind.arity(), instruction.operands.len());
            if expected != found {
                return Err(Error::Arity { op: OP, expected, found });
            }
            for operand in &instruction.operands {
                match *operand {
                    Source::Input(i) if i >= self.inputs.len() => return absent(format!("input {i}")),
                    Source::Result(i) if i >= at => return absent(format!("result {i} before instruction {at}")),
                    _ => {}
                }
            }
        }
        for (i, (_, result)) in self.outputs.iter().enumerate() {
            if *result >= self.instructions.len() {
                return absent(format!("result {result}"));
            }
            if self.outputs[..i].iter().any(|(_, other)| other == result) {
                return Err(Error::Parameter { op: OP, reason: format!("result {result} is written twice") });
            }
        }
        Ok(())
    }

    /// The work of the step: all flops, but only the bytes of what is read and written in memory.
    pub fn cost(&self, graph: &Graph) -> Cost {
        let n = self.shape.numel() as u64;
        let flops: u64 = self.instructions.iter().map(|i| i.kind.flops()).sum();
        Cost {
            flops: n.saturating_mul(flops),
            bytes_read: total_bytes(self.inputs.iter().map(|&id| graph.type_of(id).bytes() as u64)),
            bytes_written: n.saturating_mul(4 * self.outputs.len() as u64),
        }
    }
}
