//! Dispatches: kernels with their parameters, on memory that is named and not allocated yet.

use kiln_device::memory::VECTOR_BYTES;
use kiln_device::{Location, Value};
use kiln_ir::Precision;
use kiln_shaders::elementwise::Chain;
use kiln_shaders::{Capabilities, Head, Kernel, Together};

/// The properties of a device that plans depend on.
#[derive(Debug, Clone)]
pub struct Target {
    pub(crate) limits: wgpu::Limits,
    /// Whether kernels may multiply cooperative matrices.
    pub(crate) cooperative: bool,
    /// With what precision products may read their operands.
    pub(crate) precision: Precision,
}

impl Target {
    /// Whether kernels may multiply cooperative matrices. Browsers do not offer them, so modules for browsers leave these kernels out.
    pub(crate) fn is_cooperative(&self) -> bool {
        cfg!(not(target_arch = "wasm32")) && self.cooperative
    }

    /// Whether products with quantised weights may round their operands to f16.
    pub(crate) fn rounds(&self) -> bool {
        self.is_cooperative() && matches!(self.precision, Precision::Tf32 | Precision::Bf16 | Precision::Int8)
    }
}

/// Bytes between the word pairs that report faults: the binding alignment of every device.
pub(crate) const FAULT_STRIDE: u64 = 256;

/// One 32-bit parameter of a kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Word(pub(crate) u32);

impl From<u32> for Word {
    fn from(value: u32) -> Self {
        Self(value)
    }
}

impl From<usize> for Word {
    /// Extents fit 32 bits: a binding, and so the elements that a kernel indexes, is smaller.
    fn from(value: usize) -> Self {
        Self(u32::try_from(value).unwrap_or(u32::MAX))
    }
}

impl From<f32> for Word {
    fn from(value: f32) -> Self {
        Self(value.to_bits())
    }
}

/// Part of a buffer, no more than what a kernel uses: memory that is shared may be larger than a binding can be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) at: Location,
    /// First byte; a multiple of the alignment that the device requires.
    pub(crate) offset: u64,
    /// Number of bytes: whole vectors, at least one.
    pub(crate) bytes: u64,
}

impl Slice {
    /// The first bytes of a buffer.
    pub(crate) fn new(at: Location, bytes: usize) -> Self {
        Self { at, offset: 0, bytes: 0 }.part(0, bytes)
    }

    /// The words of a kind of fault.
    pub(crate) fn fault(at: Location) -> Self {
        Self { at, offset: 0, bytes: FAULT_STRIDE }
    }

    /// The bytes from `offset` on.
    pub(crate) fn part(self, offset: usize, bytes: usize) -> Self {
        let bytes = (bytes as u64).max(1).next_multiple_of(VECTOR_BYTES);
        Self { offset: self.offset + offset as u64, bytes, ..self }
    }
}

impl From<Value> for Slice {
    fn from(value: Value) -> Self {
        Self::new(value.at, value.ty.bytes())
    }
}

/// The number of workgroups.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Grid(u64);

impl Grid {
    /// This many workgroups.
    pub(crate) fn groups_of(groups: usize) -> Self {
        Self(groups as u64)
    }

    /// The workgroups for this many invocations.
    pub(crate) fn invocations(invocations: usize) -> Self {
        Self((invocations as u64).div_ceil(u64::from(kiln_shaders::WORKGROUP)))
    }

    /// The grid, folded into two dimensions if one would be too long. The last row may exceed the end.
    pub(crate) fn folded(self, most: u32) -> [u32; 3] {
        let rows = self.0.div_ceil(u64::from(most)).max(1);
        let columns = self.0.div_ceil(rows);
        [columns, rows, 1].map(|n| u32::try_from(n).unwrap_or(u32::MAX))
    }
}

/// The code of a dispatch without its parameters, from which a pipeline is compiled.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) enum Code {
    /// A kernel with constants.
    Kernel(Kernel, Vec<(&'static str, u32)>),
    /// A chain of element-wise functions.
    Chain(Chain),
    /// Several kernels, each in workgroups of its own.
    Together(Together),
}

impl Code {
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Kernel(kernel, _) => kernel.name,
            Self::Chain(_) => "elementwise",
            Self::Together(together) => together.name(),
        }
    }

    pub(crate) fn head(&self) -> Head {
        match self {
            Self::Kernel(kernel, _) => kernel.head(),
            Self::Chain(chain) => chain.head(),
            Self::Together(together) => together.head(),
        }
    }

    pub(crate) fn text(&self, capabilities: Capabilities) -> String {
        match self {
            Self::Kernel(kernel, constants) => kernel.text(constants, capabilities),
            Self::Chain(chain) => chain.text(capabilities),
            Self::Together(together) => together.text(capabilities),
        }
    }
}

/// One run of a kernel.
#[derive(Debug, Clone)]
pub struct Dispatch {
    pub(crate) code: Code,
    pub(crate) buffers: Vec<Slice>,
    pub(crate) params: Vec<u32>,
    pub(crate) groups: [u32; 3],
}

/// Maximum workgroups of joined dispatches: with more, what a dispatch costs by itself is a small share. Chosen, not measured.
const MOST_JOINED: u32 = 4096;

/// Joins dispatches of a round into as few as the bindings allow, if each operation has one, and if they use no scratch memory,
/// which the operations of a round share.
pub(crate) fn join(target: &Target, steps: &mut Vec<Dispatch>, begins: &[usize]) {
    let Some(&begin) = begins.first().filter(|&&begin| begins.iter().copied().eq(begin..steps.len())) else { return };
    let is_own = |step: &Dispatch| !step.buffers.iter().any(|slice| matches!(slice.at, Location::Scratch(_)));
    let groups: u32 =
        steps[begin..].iter().map(|step| step.groups[0].saturating_mul(step.groups[1])).fold(0, u32::saturating_add);
    if groups > MOST_JOINED.min(target.limits.max_compute_workgroups_per_dimension)
        || !steps[begin..].iter().all(is_own)
    {
        return;
    }
    let mut joined: Vec<Dispatch> = Vec::new();
    let mut held: Vec<Dispatch> = Vec::new();
    for step in steps.drain(begin..) {
        held.push(step);
        if together(target, &held).is_none()
            && let Some(step) = held.pop()
        {
            joined.extend(flushed(target, &mut held));
            held.push(step);
        }
    }
    joined.extend(flushed(target, &mut held));
    steps.extend(joined);
}

/// Some dispatches as one if they can be, and as they are otherwise; `held` is then empty.
fn flushed(target: &Target, held: &mut Vec<Dispatch>) -> Vec<Dispatch> {
    match together(target, held) {
        Some(joined) if held.len() > 1 => {
            held.clear();
            vec![joined]
        }
        _ => std::mem::take(held),
    }
}

/// Several dispatches as one, unless it would have too many bindings.
fn together(target: &Target, steps: &[Dispatch]) -> Option<Dispatch> {
    let kernel = |step: &Dispatch| match &step.code {
        Code::Kernel(kernel, constants) => Some((*kernel, constants.clone())),
        _ => None,
    };
    let kernels = steps.iter().map(kernel).collect::<Option<Vec<_>>>()?;
    let slice = |[step, buffer]: [usize; 2]| steps[step].buffers[buffer];
    let together = Together::new(&kernels, |a, b| slice(a) == slice(b))?;
    let buffers: Vec<Slice> = together.bindings().into_iter().map(slice).collect();
    if buffers.len() > target.limits.max_storage_buffers_per_shader_stage as usize {
        return None;
    }
    let counts = steps.iter().map(|step| step.groups[0] * step.groups[1]);
    let ends = counts.scan(0, |end, count| {
        *end += count;
        Some(*end)
    });
    let mut ends: Vec<u32> = ends.collect();
    let total = ends.pop()?;
    let params = steps.iter().flat_map(|step| &step.params).chain(&ends).copied().collect();
    Some(Dispatch { code: Code::Together(together), buffers, params, groups: [total, 1, 1] })
}

#[cfg(test)]
mod tests {
    use kiln_device::Plan;
    use kiln_ir::graph::Graph;
    use kiln_ir::op::{Attention, AttentionOperands, QuantMatmul, Softmax};
    use kiln_ir::{DType, QuantFormat, Record, Shape, TensorType};

    use super::*;

    /// The dispatches of four products of one row with weights of these formats, and of something that is computed from each.
    fn products(limits: wgpu::Limits) -> Vec<(&'static str, usize, usize)> {
        let mut graph = Graph::new();
        let x = graph.input(TensorType::f32(Shape::new(&[1, 256]).unwrap()));
        let formats = [QuantFormat::Q4K, QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0];
        let wanted = formats.map(|format| {
            let weights = graph.input(TensorType::of(DType::Blocks(format), Shape::new(&[256, 256]).unwrap()).unwrap());
            let y = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
            graph.record(Softmax, &[y]).unwrap()
        });
        let target = Target { limits, cooperative: false, precision: Precision::Contract };
        let steps = Plan::<crate::GpuDevice>::new(&graph, &wanted, &target).unwrap().steps;
        let kernels = |step: &Dispatch| match &step.code {
            Code::Together(together) => {
                together.head().params.iter().filter(|(name, _)| name.starts_with("end_")).count() + 1
            }
            _ => 1,
        };
        for step in &steps {
            assert_eq!(step.params.len(), step.code.head().params.len());
            assert_eq!(step.buffers.len(), step.code.head().bindings.len());
        }
        steps.iter().map(|step| (step.code.name(), kernels(step), step.buffers.len())).collect()
    }

    #[test]
    fn dispatches_of_a_round_are_joined_as_far_as_bindings_allow() {
        let limits = |most| wgpu::Limits { max_storage_buffers_per_shader_stage: most, ..wgpu::Limits::default() };
        // x and for each product its weights and its result.
        assert_eq!(products(limits(10)), [("quant_matvec", 4, 9), ("softmax", 4, 8)]);
        assert_eq!(products(limits(8)), [("quant_matvec", 3, 7), ("quant_matvec", 1, 4), ("softmax", 4, 8)]);
        assert_eq!(products(limits(4)).len(), 4 + 2);
    }

    #[test]
    fn a_plan_for_measurements_joins_no_dispatches() {
        let mut graph = Graph::new();
        let ty = TensorType::f32(Shape::new(&[3, 100]).unwrap());
        let wanted = [0; 5].map(|_| {
            let x = graph.input(ty);
            graph.record(Softmax, &[x]).unwrap()
        });
        let target = Target { limits: wgpu::Limits::default(), cooperative: false, precision: Precision::Contract };
        let joined = Plan::<crate::GpuDevice>::new(&graph, &wanted, &target).unwrap();
        assert!(joined.steps.len() < 5, "{}", joined.steps.len());
        let plan = Plan::<crate::GpuDevice>::one_by_one(&graph, &wanted, &target).unwrap();
        assert_eq!(plan.steps.len(), 5);
        assert!(plan.steps.iter().all(|step| matches!(step.code, Code::Kernel(..))));
    }

    #[test]
    fn attentions_with_the_same_positions_share_what_queries_see() {
        let mut graph = Graph::new();
        let rows = |dims: &[usize]| TensorType::f32(Shape::new(dims).unwrap());
        let [positions, lengths] = [0; 2].map(|_| graph.input(TensorType::u32(Shape::new(&[1]).unwrap())));
        let mut attention = |window: Option<u32>| {
            let [q, k, v] = [&[4, 1, 64][..], &[2, 32, 64], &[2, 32, 64]].map(|dims| graph.input(rows(dims)));
            let of = AttentionOperands { positions: Some(positions), lengths: Some(lengths), ..Default::default() };
            let causal = Attention::causal();
            let op = window.map_or(causal, |window| causal.windowed(window));
            graph.attention_with(q, k, v, of, op).unwrap()
        };
        let wanted = [attention(None), attention(None), attention(Some(8)), attention(None)];
        let target = Target { limits: wgpu::Limits::default(), cooperative: false, precision: Precision::Contract };
        let plan = Plan::<crate::GpuDevice>::new(&graph, &wanted, &target).unwrap();
        let sights = plan.steps.iter().filter(|step| step.code.name() == "attention_sights");
        // One for all layers without a window, one for the others.
        assert_eq!((sights.count(), plan.kept.len(), plan.faults.len()), (2, 2, 2));
    }

    #[test]
    fn dispatches_with_scratch_memory_or_many_workgroups_stay_apart() {
        let of = |groups: u32, at: Location| Dispatch {
            code: Code::Kernel(kiln_shaders::COPY, Vec::new()),
            buffers: [at, Location::Slot(1)].map(|at| Slice::new(at, 16)).to_vec(),
            params: Vec::new(),
            groups: [groups, 1, 1],
        };
        let target = Target { limits: wgpu::Limits::default(), cooperative: false, precision: Precision::Contract };
        for (groups, at, expected) in
            [(MOST_JOINED, Location::Slot(0), 2), (1, Location::Scratch(0), 2), (1, Location::Slot(0), 1)]
        {
            let mut steps = vec![of(groups, at), of(groups, Location::Slot(2))];
            join(&target, &mut steps, &[0, 1]);
            assert_eq!(steps.len(), expected, "{groups} {at:?}");
        }
    }

    #[test]
    fn a_grid_that_is_too_long_is_folded_and_has_every_group() {
        let most = 65_535;
        assert_eq!(Grid::groups_of(0).folded(most), [0, 1, 1]);
        assert_eq!(Grid::groups_of(1).folded(most), [1, 1, 1]);
        assert_eq!(Grid::groups_of(65_535).folded(most), [65_535, 1, 1]);
        assert_eq!(Grid::groups_of(65_536).folded(most), [32_768, 2, 1]);
        for groups in [65_537, 131_070, 131_071, 1_000_003, 65_535 * 65_535 - 7, 65_535 * 65_535] {
            let [x, y, z] = Grid::groups_of(groups).folded(most);
            assert!(x <= most && y <= most && z == 1, "{groups}: {x} {y} {z}");
            let all = x as usize * y as usize;
            // Only the last row may exceed the end.
            assert!(all >= groups && all - groups < x as usize, "{groups}: {x} {y}");
        }
        let workgroup = kiln_shaders::WORKGROUP as usize;
        assert_eq!(Grid::invocations(workgroup * 65_535).folded(most), [65_535, 1, 1]);
        assert_eq!(Grid::invocations(workgroup * 65_535 + 1).folded(most), [32_768, 2, 1]);
    }
}
