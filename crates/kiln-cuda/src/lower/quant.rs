//! Quantised blocks.

use kiln_device::{Location, lower};
use kiln_ir::op::{Dequantize, Elementwise, MatmulExtents, Op, QuantMatmul, Quantize, RmsNorm};
use kiln_ir::{DType, QuantFormat, Result};
use kiln_ptx::kernels::matmul::{Epilogue, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::quant;
use kiln_ptx::{Launch, PtxType};

use super::matmul::{self, K_INNERMOST};
use super::{Launches, Lower, Lowering, Value, accepted, cast};
use crate::CudaDevice;
use crate::plan::{self, Code, Dispatch};

impl Lower<CudaDevice> for Quantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = quant::Quantize::new(self.format);
        let launch = kernel.launch(inputs[0].ty.shape.numel())?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}

impl Lower<CudaDevice> for Dequantize {
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let kernel = quant::Dequantize::new(self.format);
        let launch = kernel.launch(inputs[0].ty.shape.numel())?;
        plan.run(kernel, launch, &[inputs[0].at, outputs[0].at]);
        Ok(())
    }
}

/// Minimum rows of x for which reading weights once for up to 64 rows takes less time than reading them for every
/// eight; the same for blocks of 32 elements. Measured on an H100.
const TILED: usize = 5;
const TILED_OF_32: usize = 3;

/// The one of these that holds for a format.
fn tiled_from(format: QuantFormat) -> usize {
    if format.block_len() == 32 { TILED_OF_32 } else { TILED }
}

/// Minimum rows of x for which decoding the weights first takes less time than decoding them again for every eight
/// rows, and than unpacking them for every 64; and the same for weights rounded to bf16. Measured on an H100.
const MANY: usize = 64;
const MORE: usize = 768;
const ROUNDED: usize = 192;

/// Minimum rows of x for which products on warp groups take less time than others. Measured on an H100. From this many on, they do so
/// for every format that they support, and normalise the rows themselves.
pub(crate) const GROUPED: usize = 9;

/// The minimum of a format.
fn grouped_from(format: QuantFormat) -> usize {
    match format {
        QuantFormat::Q4_0 | QuantFormat::Q5_0 | QuantFormat::Q5_1 | QuantFormat::Mxfp4 => 2,
        QuantFormat::Q4_1 => 3,
        _ => GROUPED,
    }
}

/// Maximum bytes of scratch memory for decoded weights.
const MOST_SCRATCH: usize = 1 << 30;

/// Adds the product of many rows of x with weights that are decoded first, both split into two bf16 parts, on tensor
/// cores. Returns whether kernels support it.
fn decoded(
    plan: &mut Lowering<'_>,
    format: QuantFormat,
    [m, k, n]: [usize; 3],
    [x, weights, out]: [Location; 3],
) -> Result<bool> {
    let Some(split) = quant::SplitBlocks::new(format).filter(|_| plan.target.has_warp_groups()) else {
        return Ok(false);
    };
    let sizes =
        [n, m].map(|rows| rows.checked_mul(k).and_then(quant::plane_bytes).filter(|&bytes| bytes <= MOST_SCRATCH));
    let [Some(of_weights), Some(of_x)] = sizes else { return Ok(false) };
    let extents = MatmulExtents::of_one([m, k, n]);
    let multiprocessors = plan.target.multiprocessors;
    let tile = WarpGroupTile::for_planes(extents, PtxType::Bf16, multiprocessors);
    let product = WarpGroupGemm::of_planes(PtxType::Bf16, tile, Epilogue::PLAIN)?;
    let Some(launch) = accepted(product.launch(extents, [1.0, 0.0], multiprocessors))? else { return Ok(false) };
    let repair = quant::RepairRows::new(format);
    let (Some(splitting), Some(splitting_rows), Some(repairing)) =
        (accepted(split.launch(n * k))?, accepted(quant::SplitRows.launch(m, k))?, accepted(repair.launch(m, k, n))?)
    else {
        return Ok(false);
    };
    // The scratch memory for x comes first: products of a round share it.
    let [of_x, words, of_weights] = [of_x, 4 * m, of_weights].map(|bytes| plan.scratch_bytes(bytes));
    plan.run(quant::SplitRows, splitting_rows, &[x, of_x, words]);
    plan.run(split, splitting, &[weights, of_weights]);
    plan.run(product, launch, &[of_x, of_weights, out]);
    plan.run(repair, repairing, &[x, weights, words, out]);
    Ok(true)
}

/// Adds the product of many rows of x with weights that are decoded first, both rounded to bf16. Returns whether
/// kernels support it.
fn rounded(
    plan: &mut Lowering<'_>,
    format: QuantFormat,
    extents: [usize; 3],
    [x, weights, out]: [Value; 3],
) -> Result<bool> {
    let [m, k, n] = extents;
    let Some(bytes) =
        n.checked_mul(k).and_then(|elements| elements.checked_mul(2)).filter(|&bytes| bytes <= MOST_SCRATCH)
    else {
        return Ok(false);
    };
    let extents = MatmulExtents::of_one([m, k, n]);
    let product = matmul::kernel(*plan.target, K_INNERMOST, PtxType::Bf16, extents)?;
    let Some((product, launch)) = product else { return Ok(false) };
    let round = quant::SplitBlocks::rounding(format);
    let Some(rounds) = accepted(round.launch(n * k))? else { return Ok(false) };
    // The scratch memory for x comes first: products of a round share it.
    let x = cast::of_type(plan, x, DType::Bf16)?;
    let of_weights = plan.scratch_bytes(bytes);
    plan.run(round, rounds, &[weights.at, of_weights]);
    plan.run(product, launch, &[x.at, of_weights, out.at]);
    Ok(true)
}

/// Rows of x of `depth` elements, which products with quantised weights multiply.
#[derive(Clone, Copy)]
struct Rows {
    at: Location,
    m: usize,
    depth: usize,
    /// With gamma, if they are normalised first.
    norm: Option<(RmsNorm, Location)>,
}

/// A product of rows with `n` rows of weights, and what is added to it.
#[derive(Clone, Copy)]
struct Product {
    weights: Location,
    out: Location,
    n: usize,
    addend: Option<Location>,
}

/// Runs launches as one where that is possible, others one by one.
fn run_together(plan: &mut Lowering<'_>, steps: Vec<Dispatch>) -> Result<()> {
    let steps = plan::together(plan.target, &steps)?.map_or(steps, |joined| vec![joined]);
    steps.into_iter().for_each(|step| plan.push(step));
    Ok(())
}

/// The launches of a product.
struct Cut {
    product: (Code, Launch),
    /// The kernel that adds up parts of the result, its launch, and the bytes of the parts.
    joining: Option<(quant::JoinParts, Launch, usize)>,
}

impl Cut {
    /// `None` if kernels do not support the extents.
    fn new(
        of_parts: Option<usize>,
        product: Result<(impl Into<Code>, Launch)>,
        joining: Result<Option<(quant::JoinParts, Launch)>>,
    ) -> Result<Option<Self>> {
        let (Some(of_parts), Some((code, launch)), Some(joining)) = (of_parts, accepted(product)?, accepted(joining)?)
        else {
            return Ok(None);
        };
        let joining = joining.map(|(joining, joins)| (joining, joins, of_parts));
        Ok(Some(Self { product: (code.into(), launch), joining }))
    }
}

/// The cuts of products by their tilings: `cut` makes one, given whether something is added to the product. `None` if kernels do not
/// support one of them.
fn cuts<T>(
    tilings: &[T],
    products: &[Product],
    cut: impl Fn(&T, bool) -> Result<Option<Cut>>,
) -> Result<Option<Vec<Cut>>> {
    tilings.iter().zip(products).map(|(tiling, product)| cut(tiling, product.addend.is_some())).collect()
}

/// Runs products with the same rows, and what adds up their parts. Each reads `own` operands, before its weights and its result and
/// last.
fn run_products(
    plan: &mut Lowering<'_>,
    cuts: Vec<Cut>,
    [own, last]: [&[Location]; 2],
    rows: Rows,
    products: &[Product],
) -> Result<()> {
    let (mut runs, mut joins) = (Vec::new(), Vec::new());
    for (Cut { product: (code, launch), joining }, product) in cuts.into_iter().zip(products) {
        let &Product { weights, out, addend, .. } = product;
        let addend: Vec<Location> = addend.into_iter().collect();
        let result = match joining {
            Some((joining, launch, of_parts)) => {
                let parts = plan.scratch_bytes(of_parts);
                let buffers = [&[parts, out, rows.at, weights], &addend[..]].concat();
                joins.push(Dispatch { code: joining.into(), launch, buffers });
                vec![parts]
            }
            None => [&[out, rows.at], &addend[..]].concat(),
        };
        runs.push(Dispatch { code, launch, buffers: [own, &[weights], &result, last].concat() });
    }
    run_together(plan, runs)?;
    run_together(plan, joins)
}

/// Adds products of more than a few rows of x, which are rounded first. Returns whether kernels support them.
fn tiled(plan: &mut Lowering<'_>, format: QuantFormat, rows: Rows, products: &[Product]) -> Result<bool> {
    let n: Vec<usize> = products.iter().map(|product| product.n).collect();
    let hardware = *plan.target;
    let tilings = quant::Tiling::of_round(format, [rows.m, rows.depth], &n, hardware.target, hardware.multiprocessors);
    let Some(tilings @ [first, ..]) = tilings.as_deref() else { return Ok(false) };
    let Some([of_x, of_units]) = first.rounded_bytes() else { return Ok(false) };
    let Some((rounding, rounds)) = accepted(first.rounding())? else { return Ok(false) };
    let cut = |of: &quant::Tiling, adds| Cut::new(of.parts_bytes(), of.product(adds), of.joining(adds));
    let Some(cuts) = cuts(tilings, products, cut)? else { return Ok(false) };
    let own = [of_x, of_units].map(|bytes| plan.scratch_bytes(bytes));
    plan.run(rounding, rounds, &[&[rows.at], &own[..]].concat());
    run_products(plan, cuts, [&own, &[]], rows, products)?;
    Ok(true)
}

/// Adds products of rows that are rounded to f16, with weights that are decoded in registers, on warp groups. Returns whether
/// kernels support them.
fn on_warp_groups(plan: &mut Lowering<'_>, format: QuantFormat, rows: Rows, products: &[Product]) -> Result<bool> {
    let n: Vec<usize> = products.iter().map(|product| product.n).collect();
    let hardware = *plan.target;
    let Rows { at, m, depth, norm } = rows;
    let multiprocessors = hardware.multiprocessors;
    let tilings =
        quant::WarpGroupTiling::of_round(format, [m, depth], &n, hardware.rounds(), hardware.target, multiprocessors);
    let Some(tilings @ [first, ..]) = tilings.as_deref() else { return Ok(false) };
    let Some([of_x, of_units, of_sums]) = first.rounded_bytes() else { return Ok(false) };
    let Some((rounding, rounds)) = accepted(first.rounding(norm.map(|(norm, _)| norm)))? else { return Ok(false) };
    let cut = |of: &quant::WarpGroupTiling, adds| Cut::new(of.parts_bytes(), of.product(adds), of.joining(adds));
    let Some(cuts) = cuts(tilings, products, cut)? else { return Ok(false) };
    let own = [of_x, of_units].map(|bytes| plan.scratch_bytes(bytes));
    let sums: Vec<Location> = first.has_sums().then(|| plan.scratch_bytes(of_sums)).into_iter().collect();
    let (read, normal) = match norm {
        None => (vec![at], at),
        Some((_, gamma)) => {
            let normal = plan.scratch_bytes(4 * m * depth);
            (vec![at, gamma, normal], normal)
        }
    };
    plan.run(rounding, rounds, &[&read, &own[..], &sums].concat());
    run_products(plan, cuts, [&own, &sums], Rows { at: normal, ..rows }, products)?;
    Ok(true)
}

/// Maximum rows of x of products that run at once. A product of more rows has enough tiles by itself.
const OF_BLOCK: usize = 64;

/// Adds products with weights of one format to a plan, if they read the same rows and kernels run them at once. If `norm` is given,
/// the last operand of each is gamma.
pub(crate) fn lower_round(
    format: QuantFormat,
    norm: Option<&RmsNorm>,
    plan: &mut Lowering<'_>,
    operands: &[[Vec<Value>; 2]],
) -> Result<bool> {
    let Some([inputs, _]) = operands.first() else { return Ok(false) };
    let (x, gamma) = (inputs[0], inputs.get(2).map(|gamma| gamma.at));
    let norm = norm.copied().zip(gamma);
    let rows = Rows { at: x.at, m: x.ty.shape.rows(), depth: x.ty.shape.columns(), norm };
    let product = |[inputs, outputs]: &[Vec<Value>; 2]| {
        let count = if norm.is_some() { 3 } else { 2 };
        let reads_same = inputs.len() == count && inputs[0].at == x.at && inputs.get(2).map(|gamma| gamma.at) == gamma;
        (reads_same && !outputs[0].ty.shape.is_empty()).then(|| Product {
            weights: inputs[1].at,
            out: outputs[0].at,
            n: inputs[1].ty.shape.rows(),
            addend: None,
        })
    };
    let products: Option<Vec<Product>> = operands.iter().map(product).collect();
    let Some(products) = products.filter(|_| x.ty.dtype == DType::F32 && rows.m <= OF_BLOCK) else {
        return Ok(false);
    };
    Ok(rows.m >= grouped_from(format) && on_warp_groups(plan, format, rows, &products)?
        || rows.m >= tiled_from(format) && norm.is_none() && tiled(plan, format, rows, &products)?)
}

impl Lower<CudaDevice> for QuantMatmul {
    /// A third operand is added to the result: the device requests
    /// [`FusionLimits::addends`](kiln_ir::graph::FusionLimits::addends).
    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let (x, weights) = (inputs[0].ty.shape, inputs[1].ty.shape);
        let extents @ [m, depth, n] = [x.rows(), weights.columns(), weights.rows()];
        let operands @ [x, weights, out] = [inputs[0], inputs[1], outputs[0]];
        let buffers = operands.map(|operand| operand.at);
        let addend = inputs.get(2).copied();
        let hardware = *plan.target;
        let rows = Rows { at: x.at, m, depth, norm: None };
        let product = Product { weights: weights.at, out: out.at, n, addend: addend.map(|addend| addend.at) };
        if m >= grouped_from(self.format) && on_warp_groups(plan, self.format, rows, &[product])? {
            return Ok(());
        }
        let rounds = m >= ROUNDED && hardware.rounds() && hardware.has_warp_groups();
        let few = quant::WarpQuantMatmul::new(self.format, m, hardware.target);
        let decodes = m >= MORE && quant::SplitBlocks::new(self.format).is_some();
        if (m >= tiled_from(self.format) || few.is_none())
            && !decodes
            && !rounds
            && tiled(plan, self.format, rows, &[product])?
        {
            return Ok(());
        }
        if let Some(addend) = addend {
            let Some(kernel) = few.filter(|_| m < MANY) else {
                let product = plan.scratch(out.ty);
                self.lower(plan, &[x, weights], &[product])?;
                return Elementwise::add().lower(plan, &[product, addend], outputs);
            };
            let kernel = kernel.adding();
            let launch = kernel.launch(m, depth, n, hardware.multiprocessors)?;
            plan.run(kernel, launch, &[x.at, weights.at, out.at, addend.at]);
            return Ok(());
        }
        if rounds && rounded(plan, self.format, extents, operands)?
            || m >= MANY && decoded(plan, self.format, extents, buffers)?
        {
            return Ok(());
        }
        match few {
            Some(kernel) => plan.run(kernel, kernel.launch(m, depth, n, hardware.multiprocessors)?, &buffers),
            None => {
                let kernel = quant::QuantMatmul::new(self.format, m);
                plan.run(kernel, kernel.launch(m, depth, n)?, &buffers);
            }
        }
        Ok(())
    }
}

/// A product of rows that its kernels normalise.
pub(crate) fn lower_normed(
    norm: &RmsNorm,
    op: &Op,
    plan: &mut Lowering<'_>,
    inputs: &[Value],
    outputs: &[Value],
) -> Result<()> {
    let (&Op::QuantMatmul(QuantMatmul { format }), &[x, weights, gamma]) = (op, inputs) else {
        return lower::normed(norm, op, plan, inputs, outputs);
    };
    let (m, shape) = (x.ty.shape.rows(), weights.ty.shape);
    let rows = Rows { at: x.at, m, depth: shape.columns(), norm: Some((*norm, gamma.at)) };
    let product = Product { weights: weights.at, out: outputs[0].at, n: shape.rows(), addend: None };
    if m >= grouped_from(format) && on_warp_groups(plan, format, rows, &[product])? {
        return Ok(());
    }
    let kernel = quant::WarpQuantMatmul::new(format, m, plan.target.target);
    let Some(kernel) = kernel.and_then(|kernel| kernel.normed(*norm)) else {
        return lower::normed(norm, op, plan, inputs, outputs);
    };
    let launch = kernel.launch(m, shape.columns(), shape.rows(), plan.target.multiprocessors)?;
    plan.run(kernel, launch, &[x.at, weights.at, outputs[0].at, gamma.at]);
    Ok(())
}

#[cfg(test)]
mod tests {
    use kiln_device::Plan;
    use kiln_ir::graph::Graph;
    use kiln_ir::{Record, Shape, TensorType};
    use kiln_ptx::Target;

    use super::*;
    use crate::plan::Hardware;
    use kiln_ir::Precision;

    fn hardware(target: Target) -> Hardware {
        Hardware { target, multiprocessors: 132, precision: Precision::Contract }
    }

    fn kernels(target: Target, format: QuantFormat, m: usize, adds: bool) -> Vec<String> {
        kernels_of(hardware(target), format, m, adds)
    }

    /// The kernels of a product of `m` rows, to which a tensor is added if `adds`.
    fn kernels_of(hardware: Hardware, format: QuantFormat, m: usize, adds: bool) -> Vec<String> {
        let mut graph = Graph::new();
        let shape = |rows| Shape::new(&[rows, 256]).unwrap();
        let x = graph.input(TensorType::f32(shape(m)));
        let weights = graph.input(TensorType::blocks(format, shape(256)).unwrap());
        let mut y = graph.record(QuantMatmul { format }, &[x, weights]).unwrap();
        if adds {
            y = graph.record(Elementwise::add(), &[y, x]).unwrap();
        }
        let plan = Plan::<CudaDevice>::new(&graph, &[y], &hardware).unwrap();
        plan.steps.iter().map(|step| step.code.kernel().name()).collect()
    }

    #[test]
    fn weights_are_decoded_once_for_many_rows() {
        let of = |target, format, m| kernels(target, format, m, false);
        let many = of(Target::Sm90a, QuantFormat::Q2K, MANY);
        assert_eq!(many[..2], ["split_rows", "split_blocks_q2_K"]);
        assert!(many[2].starts_with("gemm_nt_3xbf16_f32"), "{many:?}");
        assert_eq!(many[3..], ["repair_rows_q2_K"]);
        // Too few rows, and a device without warp groups.
        for (target, m) in [(Target::Sm90a, MANY - 1), (Target::Sm90, MANY)] {
            let one = of(target, QuantFormat::Q2K, m);
            assert!(one.len() == 1 && one[0].contains("quant_matmul"), "{one:?}");
        }
    }

    #[test]
    fn weights_are_decoded_in_registers_where_warp_groups_multiply() {
        let of = |format, m, adds| kernels(Target::Sm90a, format, m, adds);
        for (m, columns) in [(GROUPED, "16"), (17, "32"), (64, "64"), (65, "128_pairs"), (4096, "128_pairs")] {
            let product = format!("warp_group_quant_matmul_q4_K_{columns}");
            assert_eq!(of(QuantFormat::Q4K, m, false), ["half_rows_32_twice_summing", &product]);
            assert_eq!(of(QuantFormat::Q4K, m, true), ["half_rows_32_twice_summing", &format!("{product}_adding")]);
        }
        assert_eq!(of(QuantFormat::Q8_0, 64, false), ["half_rows_32_twice", "warp_group_quant_matmul_q8_0_64"]);
        // Rows of one block are no multiple of 16 bytes, as copies need.
        for format in [QuantFormat::Q6K, QuantFormat::Mxfp4] {
            let tiled = of(format, 64, false);
            assert!(tiled[1].starts_with("tiled_quant_matmul"), "{tiled:?}");
        }
        assert!(of(QuantFormat::Q4K, GROUPED - 1, false)[1].starts_with("tiled_quant_matmul"));
        assert_eq!(of(QuantFormat::Q4_0, 2, false), ["half_rows_16_twice", "warp_group_quant_matmul_q4_0_16"]);
        assert_eq!(of(QuantFormat::Q4_0, 1, false), ["warp_quant_matmul_q4_0_1_overlapping"]);
    }

    #[test]
    fn weights_are_read_once_for_the_rows_of_a_tile() {
        let of = |target, m, adds| kernels(target, QuantFormat::Q4K, m, adds);
        for (m, rows) in [(TILED, "8"), (9, "16"), (64, "64"), (MORE - 1, "64")] {
            let found = of(Target::Sm90, m, false);
            assert_eq!(found[0], "round_rows_32");
            assert!(found[1].starts_with(&format!("tiled_quant_matmul_q4_K_{rows}_")), "{found:?}");
        }
        // k is one chunk, so there are no partial results, and the product's kernel adds the tensor.
        assert_eq!(of(Target::Sm90, 9, true), ["round_rows_32", "tiled_quant_matmul_q4_K_16_overlapping_adding"]);
        assert_eq!(of(Target::Sm80, 64, false), ["round_rows_32", "tiled_quant_matmul_q4_K_64"]);
        // With less shared memory per block, tiles have fewer rows, and other kernels do not fit.
        assert_eq!(of(Target::Sm89, 64, false), ["round_rows_32", "tiled_quant_matmul_q4_K_32"]);
        assert_eq!(of(Target::Sm89, 1, false), ["round_rows_32", "tiled_quant_matmul_q4_K_8"]);
    }

    #[test]
    fn products_that_read_the_same_rows_prepare_them_once() {
        let (q4_k, q2_k) = (QuantFormat::Q4K, QuantFormat::Q2K);
        let normed_halves = "half_rows_32_twice_summing_normed";
        for (target, format, m, first, all) in [
            (Target::Sm80, q4_k, 16, &["rms_norm_rows32x32", "round_rows_32"][..], 3),
            (Target::Sm90a, q4_k, 16, &[normed_halves], 2),
            (Target::Sm90a, q4_k, OF_BLOCK + 1, &[normed_halves], 3),
            (Target::Sm90a, q2_k, MORE, &["rms_norm_rows32x32", "split_rows"], 8),
        ] {
            let steps = normed(target, format, m);
            assert_eq!(steps[..first.len()], *first);
            let last = first[first.len() - 1];
            assert_eq!(steps.iter().filter(|step| *step == last).count(), 1, "{steps:?}");
            assert_eq!(steps.len(), all, "{steps:?}");
            let at_once = m <= OF_BLOCK;
            assert_eq!(steps[first.len()].ends_with("_together_2"), at_once, "{steps:?}");
        }
    }

    #[test]
    fn weights_are_rounded_for_many_rows_where_that_is_asked_for() {
        let of = |format, m, precision| kernels_of(Hardware { precision, ..hardware(Target::Sm90a) }, format, m, false);
        for precision in [Precision::Bf16, Precision::Int8] {
            let rounded = of(QuantFormat::Q2K, ROUNDED, precision);
            assert_eq!(rounded[..2], ["cast_f32_bf16", "round_blocks_q2_K"]);
            assert!(rounded[2].starts_with("gemm_nt_bf16_f32") && rounded.len() == 3, "{rounded:?}");
            let fewer = |precision| of(QuantFormat::Q2K, ROUNDED - 1, precision);
            assert_eq!(fewer(precision), fewer(Precision::Contract));
            let halves = of(QuantFormat::Q4K, ROUNDED, precision);
            assert_eq!(halves, ["half_rows_32_summing", "warp_group_quant_matmul_q4_K_128_pairs_rounding"]);
        }
        let [tf32, contract] =
            [Precision::Tf32, Precision::Contract].map(|precision| of(QuantFormat::Q4K, ROUNDED, precision));
        assert_eq!(tf32, contract);
    }

    /// The kernels of a norm and of two products that read it.
    fn normed(target: Target, format: QuantFormat, m: usize) -> Vec<String> {
        let hardware = hardware(target);
        let mut graph = Graph::new();
        let shape = |rows| Shape::new(&[rows, 256]).unwrap();
        let x = graph.input(TensorType::f32(shape(m)));
        let gamma = graph.input(TensorType::f32(Shape::new(&[256]).unwrap()));
        let normal = graph.record(RmsNorm::new(1e-5), &[x, gamma]).unwrap();
        let products: Vec<_> = (0..2)
            .map(|_| {
                let weights = graph.input(TensorType::blocks(format, shape(256)).unwrap());
                graph.record(QuantMatmul { format }, &[normal, weights]).unwrap()
            })
            .collect();
        let plan = Plan::<CudaDevice>::new(&graph, &products, &hardware).unwrap();
        plan.steps.iter().map(|step| step.code.kernel().name()).collect()
    }

    #[test]
    fn norms_are_part_of_the_products_of_few_rows_that_read_them() {
        let both = normed(Target::Sm90a, QuantFormat::Q4K, 1);
        assert_eq!(both, ["warp_quant_matmul_q4_K_1_overlapping_normed_together_2"]);
        let many = normed(Target::Sm90a, QuantFormat::Q4K, 5);
        assert!(many[0].starts_with("rms_norm"), "{many:?}");
        let without_kernel = normed(Target::Sm90a, QuantFormat::Q2K, 1);
        assert!(without_kernel[0].starts_with("rms_norm"), "{without_kernel:?}");
        assert!(normed(Target::Sm70, QuantFormat::Q4K, 1)[0].starts_with("rms_norm"));
    }

    #[test]
    fn sums_join_products_of_few_rows() {
        let few = kernels(Target::Sm90a, QuantFormat::Q4K, 1, true);
        assert_eq!(few, ["warp_quant_matmul_q4_K_1_overlapping_adding"]);
        let many = kernels(Target::Sm90a, QuantFormat::Q2K, MORE, true);
        assert_eq!(many.len(), 5, "{many:?}");
        assert!(many[4].starts_with("elementwise_add"), "{many:?}");
    }
}
