//! Recorded graphs: random programs of all operations, each step against the f64 reference within its contract.
//!
//! Operations, parameters and operands come from the cases that every backend is tested on ([`all_cases`]). A step takes results of
//! earlier steps where their types fit, so that operations meet in graphs as no case has them.

use std::sync::OnceLock;

use kiln::graph::TensorId;
use kiln::op::{Bound, ElementwiseKind, Op, Reduce, Reduction};
use kiln::{Batch, DType, Data, Engine, Record, Result, TensorType};
use kiln_ir::op::all_cases;
use kiln_ir::op::reference::{Case, Input, Random, conform_within};

use super::engine;

/// The elements of the operands of a case that is taken, and of any result.
const MOST_ELEMENTS: usize = 4096;

/// The steps of a program.
const MOST_STEPS: usize = 16;

/// Bytes that choose. Programs of every operation come up among a few hundred.
pub(crate) fn seeds() -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    (0..16).map(|_| (0..96).map(|_| random.bits() as u8).collect()).collect()
}

/// Small cases of all operations.
fn cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(|| {
        let elements = |case: &Case| case.inputs.iter().map(|input| input.shape.numel()).sum::<usize>();
        all_cases().into_iter().filter(|case| elements(case) <= MOST_ELEMENTS).collect()
    })
}

/// The cases of each operation by its name: some have a hundred times as many as others.
fn families() -> &'static [Vec<&'static Case>] {
    static FAMILIES: OnceLock<Vec<Vec<&'static Case>>> = OnceLock::new();
    FAMILIES.get_or_init(|| {
        let mut families = std::collections::BTreeMap::<&str, Vec<&Case>>::new();
        cases().iter().for_each(|case| families.entry(case.op.name()).or_default().push(case));
        families.into_values().collect()
    })
}

/// Choices made by the bytes of a case; zeros after their end.
struct Choices<'a>(std::slice::Iter<'a, u8>);

impl Choices<'_> {
    fn below(&mut self, bound: usize) -> usize {
        let mut byte = || usize::from(self.0.next().copied().unwrap_or_default());
        let number = if bound <= 256 { byte() } else { byte() << 8 | byte() };
        number % bound.max(1)
    }

    fn is_over(&self) -> bool {
        self.0.len() == 0
    }
}

/// Whether elements are mostly indices, which have to be below an extent when the program runs.
fn may_be_indices(dtype: DType) -> bool {
    dtype == DType::U32
}

/// A program in a batch: its tensors, and the elements of those that were uploaded.
struct Program {
    batch: Batch<'static>,
    tensors: Vec<(TensorId, TensorType)>,
    uploaded: Vec<(TensorId, Input)>,
}

impl Program {
    /// Records the program that the bytes choose.
    fn new(engine: &'static Engine, bytes: &[u8]) -> Self {
        let mut program = Self { batch: engine.batch(), tensors: Vec::new(), uploaded: Vec::new() };
        let mut choices = Choices(bytes.iter());
        for _ in 0..MOST_STEPS {
            if choices.is_over() {
                break;
            }
            // What does not fit is an error that names it, and the program goes on.
            let step = match choices.below(4) {
                0 | 1 => program.case(&mut choices),
                2 => program.elementwise(&mut choices),
                _ => program.other(&mut choices),
            };
            if let Err(error) = step {
                super::message(error);
            }
        }
        program
    }

    /// An operation of a case; some of its operands are results of the same type.
    fn case(&mut self, choices: &mut Choices<'_>) -> Result<()> {
        let families = families();
        let family = &families[choices.below(families.len())];
        let case = family[choices.below(family.len())];
        let mut operands = Vec::new();
        for input in &case.inputs {
            let ty = input.operand()?.ty();
            let fits = |other: &&(TensorId, TensorType)| other.1 == ty && !may_be_indices(ty.dtype);
            let fitting: Vec<TensorId> = self.tensors.iter().filter(fits).map(|tensor| tensor.0).collect();
            let chosen = choices.below(2 * fitting.len() + 1);
            operands.push(match fitting.get(chosen) {
                Some(&id) => id,
                None => self.upload(input)?,
            });
        }
        self.record(case.op, &operands)
    }

    /// An element-wise function of any tensors.
    fn elementwise(&mut self, choices: &mut Choices<'_>) -> Result<()> {
        let kind = ElementwiseKind::ALL[choices.below(ElementwiseKind::ALL.len())];
        let operands = self.any(kind.arity(), choices);
        self.record(kind.with_params([-0.5, 1.25]).into(), &operands)
    }

    /// The operation of a case on any tensors, which mostly do not fit.
    fn other(&mut self, choices: &mut Choices<'_>) -> Result<()> {
        let families = families();
        let family = &families[choices.below(families.len())];
        let case = family[choices.below(family.len())];
        if case.inputs.iter().any(|input| may_be_indices(input.buffer.as_data().dtype())) {
            return Ok(());
        }
        let operands = self.any(case.inputs.len(), choices);
        self.record(case.op, &operands)
    }

    fn any(&self, count: usize, choices: &mut Choices<'_>) -> Vec<TensorId> {
        let count = if self.tensors.is_empty() { 0 } else { count };
        (0..count).map(|_| self.tensors[choices.below(self.tensors.len())].0).collect()
    }

    fn upload(&mut self, input: &Input) -> Result<TensorId> {
        let id = self.batch.upload_operand(&input.operand()?)?;
        self.tensors.push((id, input.operand()?.ty()));
        self.uploaded.push((id, input.clone()));
        Ok(id)
    }

    fn record(&mut self, op: Op, operands: &[TensorId]) -> Result<()> {
        let graph = self.batch.graph();
        let types = operands.iter().map(|&id| graph.ty(id)).collect::<Result<Vec<_>>>()?;
        let outputs = op.infer(&types)?;
        if outputs.iter().any(|ty| ty.shape.numel() > MOST_ELEMENTS) {
            return Ok(());
        }
        let recorded = self.batch.record_all(op, operands)?;
        self.tensors.extend(recorded.into_iter().zip(outputs.iter().copied()));
        Ok(())
    }

    /// Runs it and compares each result with what exact arithmetic gives for the operands that it had, as they were computed; then
    /// runs it again for the last result alone, which other kernels may compute.
    fn check(mut self, name: &str, flushes: bool, bound: impl Fn(&Op, &[TensorType]) -> Result<Bound>) {
        let nodes = self.batch.graph().nodes().to_vec();
        let mut wanted: Vec<TensorId> = nodes.iter().flat_map(|node| node.outputs.clone()).collect();
        wanted.dedup();
        if wanted.is_empty() {
            return;
        }
        let results = self.batch.run(&wanted).unwrap_or_else(|error| panic!("{name}: {error}"));
        let mut values: std::collections::HashMap<TensorId, Input> = self.uploaded.iter().cloned().collect();
        for (&id, buffer) in wanted.iter().zip(&results) {
            let shape = self.batch.shape(id).expect("it was recorded");
            values.insert(id, Input { buffer: buffer.clone(), shape });
        }
        for node in &nodes {
            if overflows(node.op, &values[&node.inputs[0]]) {
                continue;
            }
            let case = Case { op: node.op, inputs: node.inputs.iter().map(|id| values[id].clone()).collect() };
            let got = node.outputs.iter().map(|id| values[id].buffer.clone()).collect();
            if let Err(why) = conform_within(&case, &bound, flushes, |_, _| Ok(got)) {
                panic!("{name}: {why}\n{:#?}", nodes.iter().map(|node| node.op).collect::<Vec<_>>());
            }
        }
        let last = wanted.len() - 1;
        let alone = self.batch.run(&wanted[last..]).unwrap_or_else(|error| panic!("{name}: {error}"));
        let recorded = || nodes.iter().map(|node| (node.op, &node.inputs, &node.outputs)).collect::<Vec<_>>();
        let same = same(alone[0].as_data(), results[last].as_data());
        assert!(flushes || same, "{name}: alone the last result is another: {:?}", recorded());
    }
}

/// Whether partial products of these elements may leave the range of f32: a product that does depends on the order.
fn overflows(op: Op, input: &Input) -> bool {
    let Op::Reduce(Reduce { reduction: Reduction::Prod, .. }) = op else { return false };
    let data = input.buffer.as_data();
    let logarithms = (0..input.shape.numel()).map(|at| f64::from(data.load(at)).abs().log2());
    let magnitude: f64 = logarithms.map(|x| if x.is_nan() { 0.0 } else { x.abs() }).sum();
    magnitude > 120.0
}

/// Whether elements are the same bits, or both NaN: which of two NaN is passed on is not specified.
fn same(a: Data<'_>, b: Data<'_>) -> bool {
    let same = |at| {
        let (a, b) = (a.load(at), b.load(at));
        a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
    };
    match a.dtype().is_float() && a.dtype() == b.dtype() && a.bytes() == b.bytes() {
        true => (0..a.bytes() / a.dtype().size()).all(same),
        false => a.dtype() == b.dtype() && a.as_bytes() == b.as_bytes(),
    }
}

/// Records and runs a program on the CPU.
pub(crate) fn run(bytes: &[u8]) {
    Program::new(engine(), bytes).check("cpu", false, Op::worst);
}

/// Records and runs a program on the GPU that `KILN_ADAPTER` names, or any.
///
/// # Errors
/// [`kiln::Error::Unavailable`] without a GPU.
#[cfg(feature = "gpu")]
pub fn on_a_gpu(bytes: &[u8]) -> Result<()> {
    use kiln::Backend;
    use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice, numerics};

    static ENGINE: OnceLock<Result<(Engine, GpuDevice)>> = OnceLock::new();
    let opened = ENGINE.get_or_init(|| {
        let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
        let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
        let choice = AdapterChoice::Name(GpuDevice::find(&choice)?.label);
        let builder = || Engine::builder().without_profile().adapter(choice.clone());
        let engine = builder().build()?;
        let place = engine.places().iter().find(|place| place.backend == Backend::Gpu).expect("it was asked for");
        let engine = builder().force(&place.name).build()?;
        let device = engine.gpu_devices()?.remove(0);
        Ok((engine, device))
    });
    let (engine, device) = opened.as_ref().map_err(Clone::clone)?;
    Program::new(engine, bytes).check("gpu", true, |op, types| numerics::bound_on(device, op, types));
    Ok(())
}
