//! Attention.

use kiln_ir::op::{Attention, AttentionExtents, AttentionOperands, Dequantize, Operation};
use kiln_ir::{DType, Error, Result, TensorType};
use kiln_ptx::kernels::attention::{
    self, AttentionPlan, CausalSight, FlashAttention, ScanAttention, TiledAttention, WarpGroupAttention,
};
use kiln_ptx::kernels::gather;
use kiln_ptx::{Launch, PtxType};

use super::{HALVES, Launches, Lower, Lowering, Value, accepted, cast, halves};
use crate::CudaDevice;
use crate::plan::{Code, Hardware};
use kiln_device::Location;

/// Attention of f16 on tensor cores.
pub(crate) enum OnTensorCores {
    WarpGroups(WarpGroupAttention, Launch),
    /// For causal queries whose positions or numbers of keys are operands.
    WithSight(WarpGroupAttention, Launch),
    Warps(AttentionPlan<FlashAttention>),
}

/// The kernels of f16 attention on tensor cores, if the device has any and their kernels support the options, the extents and
/// the scale.
///
/// # Errors
/// [`Error::Shape`] when the operands do not fit one another.
pub(crate) fn on_tensor_cores(
    hardware: Hardware,
    op: &Attention,
    inputs: &[TensorType],
) -> Result<Option<OnTensorCores>> {
    let extents = op.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape)?;
    let of_one_type = halves(&inputs[..3]).filter(|_| extents.d == extents.dv && hardware.has_tensor_cores());
    let Some(halves) = of_one_type else { return Ok(None) };
    let (types, multiprocessors) = ([halves, PtxType::F32], hardware.multiprocessors);
    let scale = op.scale(extents.d);
    if !op.is_plain() {
        if !reads_sight(op) || !hardware.has_warp_groups() {
            return Ok(None);
        }
        let with_sight = || -> Result<Option<OnTensorCores>> {
            let kernel = WarpGroupAttention::new(types, extents.d, true)?.with_sight();
            if kernel.tiles(&extents) < FEWEST_TILES {
                return Ok(None);
            }
            let launch = kernel.launch(&extents, scale, multiprocessors)?;
            Ok(Some(OnTensorCores::WithSight(kernel, launch)))
        };
        return Ok(accepted(with_sight())?.flatten());
    }
    let warp_groups = || -> Result<Option<OnTensorCores>> {
        let kernel = WarpGroupAttention::new(types, extents.d, op.causal)?;
        // If its tiles would leave more than half of a device idle, smaller tiles over parts of the keys are faster.
        if 2 * kernel.tiles(&extents) < multiprocessors as usize {
            return Ok(None);
        }
        let launch = kernel.launch(&extents, scale, multiprocessors)?;
        Ok(Some(OnTensorCores::WarpGroups(kernel, launch)))
    };
    if hardware.has_warp_groups()
        && let Some(found) = accepted(warp_groups())?.flatten()
    {
        return Ok(Some(found));
    }
    let warps = attention::plan(types, &extents, op.causal, scale, multiprocessors);
    Ok(accepted(warps)?.map(OnTensorCores::Warps))
}

/// Minimum tiles of queries for attention with positions on tensor cores. Chosen, not measured: a tile processes its
/// keys one after another, and fewer tiles leave nearly all of a device idle meanwhile.
const FEWEST_TILES: usize = 4;

/// Whether attention is causal and has no options other than positions and numbers of keys.
fn reads_sight(op: &Attention) -> bool {
    let given = AttentionOperands { positions: None, lengths: None, ..op.operands };
    op.causal && Attention { operands: given, ..*op }.is_plain()
}

/// Maximum number of queries that share a key head for which keys and values of types other than f32 are read directly.
const FEW: usize = 8;

impl Lower<CudaDevice> for Attention {
    const READS: &'static [DType] = HALVES;

    const FAULTS: bool = true;

    fn lower(&self, plan: &mut Lowering<'_>, inputs: &[Value], outputs: &[Value]) -> Result<()> {
        let types: Vec<TensorType> = inputs.iter().map(|input| input.ty).collect();
        let extents = self.extents(&types[0].shape, &types[1].shape, &types[2].shape)?;
        let out = outputs[0].at;
        if outputs[0].ty.shape.is_empty() {
            return self.places().lengths.map_or(Ok(()), |place| check_lengths(self, plan, inputs[place], extents.t));
        }
        let is_plain = self.is_plain() && extents.d == extents.dv;
        let as_stored = types[1..3].iter().any(|ty| ty.dtype != DType::F32) && extents.group * extents.s <= FEW;
        match on_tensor_cores(*plan.target, self, &types)? {
            Some(OnTensorCores::WarpGroups(kernel, launch)) => {
                plan.run(kernel, launch, &[inputs[0].at, inputs[1].at, inputs[2].at, out]);
            }
            Some(OnTensorCores::WithSight(kernel, launch)) => {
                with_sight(self, &extents, plan, inputs, (kernel, launch), out)?
            }
            Some(OnTensorCores::Warps(planned)) => {
                run_parts(plan, planned, [0, 1, 2].map(|i: usize| inputs[i].at), out)
            }
            None if is_plain && !as_stored => lower_f32(self, plan, inputs, out)?,
            None => scan(self, &extents, plan, inputs, out)?,
        }
        Ok(())
    }
}

/// Runs a kernel, and, if it writes partial results, the one that combines them.
fn run_parts<K: Into<Code>>(
    plan: &mut Lowering<'_>,
    AttentionPlan { attention: (kernel, launch), combine }: AttentionPlan<K>,
    [q, k, v]: [Location; 3],
    out: Location,
) {
    let Some((combine, adding, bytes)) = combine else { return plan.run(kernel, launch, &[q, k, v, out]) };
    let parts = plan.scratch_bytes(bytes);
    plan.run(kernel, launch, &[q, k, v, parts]);
    plan.run(combine, adding, &[parts, out]);
}

/// Reports the first length above `t` keys, as a gather reports an index outside of `t + 1` rows.
fn check_lengths(op: &Attention, plan: &mut Lowering<'_>, lengths: Value, t: usize) -> Result<()> {
    let kernel = gather::Gather::new(0);
    let launch = kernel.launch(lengths.ty.shape.numel(), t + 1, 0)?;
    let report = plan.fault(op.name(), t + 1);
    plan.run(kernel, launch, &[lengths.at, lengths.at, lengths.at, report]);
    Ok(())
}

/// Floats or blocks as f32: unchanged, or a copy for the duration of this step.
fn as_f32(plan: &mut Lowering<'_>, value: Value) -> Result<Value> {
    let DType::Blocks(format) = value.ty.dtype else { return cast::widened(plan, value) };
    let wide = plan.scratch(TensorType::f32(value.ty.shape));
    if !value.ty.shape.is_empty() {
        Dequantize { format }.lower(plan, &[value], &[wide])?;
    }
    Ok(wide)
}

/// Attention on tensor cores for queries whose positions or numbers of keys are operands.
fn with_sight(
    op: &Attention,
    extents: &AttentionExtents,
    plan: &mut Lowering<'_>,
    inputs: &[Value],
    (kernel, launch): (WarpGroupAttention, Launch),
    out: Location,
) -> Result<()> {
    let places = op.places();
    let blocks = kernel.sight_blocks(extents);
    let counts = places.map(|place| inputs[place].ty.shape.numel());
    let counting = CausalSight.launch(extents, blocks, &counts)?;
    let bytes = CausalSight::bytes(extents, blocks).ok_or(Error::OutOfMemory { bytes: usize::MAX })?;
    let sight = plan.scratch_bytes(bytes);
    // Missing operands are not read.
    let operand = |place: Option<usize>| place.map_or(sight, |place| inputs[place].at);
    let report = match places.lengths {
        Some(_) => plan.fault(op.name(), extents.t + 1),
        None => sight,
    };
    plan.run(CausalSight, counting, &[operand(places.positions), operand(places.lengths), sight, report]);
    let [q, k, v] = [0, 1, 2].map(|i: usize| inputs[i].at);
    plan.run(kernel, launch, &[q, k, v, out, sight]);
    Ok(())
}

/// Attention over keys and values as stored, with options and optional operands.
fn scan(
    op: &Attention,
    extents: &AttentionExtents,
    plan: &mut Lowering<'_>,
    inputs: &[Value],
    out: Location,
) -> Result<()> {
    let places = op.places();
    let q = as_f32(plan, inputs[0])?;
    let stored = |plan: &mut Lowering<'_>, value: Value, width: usize| {
        if ScanAttention::reads(value.ty.dtype, width) { Ok(value) } else { as_f32(plan, value) }
    };
    let (k, v) = (stored(plan, inputs[1], extents.d)?, stored(plan, inputs[2], extents.dv)?);
    // Missing operands are not read: the queries take their place.
    let operand = |plan: &mut Lowering<'_>, place: Option<usize>| match place.map(|place| inputs[place]) {
        Some(value) if value.ty.dtype.is_float() => as_f32(plan, value),
        other => Ok(other.unwrap_or(q)),
    };
    let positions = operand(plan, places.positions)?;
    let lengths = operand(plan, places.lengths)?;
    let slopes = operand(plan, places.slopes)?;
    let sinks = operand(plan, places.sinks)?;
    let mask = operand(plan, places.mask)?;
    let kernel =
        ScanAttention::new(extents, [k.ty.dtype, v.ty.dtype], plan.target.target, plan.target.multiprocessors)?;
    let counts = places.map(|place| inputs[place].ty.shape.numel());
    let of_mask = places.mask.map(|_| (mask.ty.dtype, mask.ty.shape));
    let planned = kernel.plan(op, extents, of_mask, &counts, plan.target.multiprocessors)?;
    let parts = plan.scratch_bytes(planned.scratch);
    let report = match places.lengths {
        Some(_) => plan.fault(op.name(), extents.t + 1),
        None => parts,
    };
    let ((kernel, launch), (combine, adding)) = (planned.attention, planned.combine);
    let buffers = [q, k, v].map(|value| value.at);
    let beside = [positions, lengths, slopes, mask].map(|value| value.at);
    plan.run(kernel, launch, &[&buffers[..], &[parts], &beside, &[report]].concat());
    plan.run(combine, adding, &[parts, out, sinks.at]);
    Ok(())
}

/// Attention on f32 units.
fn lower_f32(op: &Attention, plan: &mut Lowering<'_>, inputs: &[Value], out: Location) -> Result<()> {
    let wide = inputs.iter().map(|&input| as_f32(plan, input)).collect::<Result<Vec<_>>>()?;
    let extents = op.extents(&wide[0].ty.shape, &wide[1].ty.shape, &wide[2].ty.shape)?;
    let (scale, hardware) = (op.scale(extents.d), *plan.target);
    let operands = [0, 1, 2].map(|i: usize| wide[i].at);
    if let Some(tiled) = TiledAttention::plan(&extents, op.causal, scale, hardware.target, hardware.multiprocessors)? {
        run_parts(plan, tiled, operands, out);
        return Ok(());
    }
    let kernel = attention::Attention::new(extents.d, op.causal, plan.target.target);
    let planned = kernel.plan(&extents, scale, hardware.multiprocessors)?;
    run_parts(plan, planned, operands, out);
    Ok(())
}

#[cfg(test)]
mod tests {
    use kiln_ir::Shape;
    use kiln_ir::op::{AttentionOperands, Op, Param};
    use kiln_ptx::Target;

    use super::*;
    use kiln_device::Plan;
    use kiln_ir::Precision;

    /// The kernels of causal attention for these heads, queries, keys and row elements, without the tile suffixes; and
    /// the bytes of scratch memory.
    fn planned(
        target: Target,
        [dtype, values]: [DType; 2],
        [heads, s, t, d]: [usize; 4],
        scale: Option<Param>,
    ) -> (Vec<String>, usize) {
        let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
        let ty = |dtype, dims: [usize; 3]| TensorType::of(dtype, Shape::new(&dims).unwrap()).unwrap();
        let types = [ty(dtype, [heads, s, d]), ty(dtype, [2, t, d]), ty(values, [2, t, d])];
        let (_, plan) =
            Plan::<CudaDevice>::of_operation(&Op::from(Attention { scale, ..Attention::causal() }), &types, &hardware)
                .unwrap();
        let is_tile = |word: &&str| word.starts_with(|first: char| first.is_ascii_digit());
        let name = |name: String| name.split('_').take_while(|word| !is_tile(word)).collect::<Vec<_>>().join("_");
        let names = plan.steps.iter().map(|dispatch| name(dispatch.code.kernel().name())).collect();
        (names, plan.scratch.iter().sum::<u64>() as usize)
    }

    #[test]
    fn halves_go_to_tensor_cores() {
        for target in [Target::Sm80, Target::Sm90, Target::Sm120] {
            let (names, scratch) = planned(target, [DType::F16; 2], [32, 512, 512, 64], None);
            assert_eq!((&*names.join(" "), scratch), ("flash_attention_causal_f16_f32", 0), "{target}");
        }
        let (names, scratch) = planned(Target::Sm90a, [DType::F16; 2], [32, 512, 512, 64], None);
        assert_eq!((&*names.join(" "), scratch), ("flash_attention_causal_f16_f32_groups", 0));
        let widened = ["cast_f16_f32", "cast_f16_f32", "cast_f16_f32", "attention_causal_tiles64"];
        assert_eq!(planned(Target::Sm75, [DType::F16; 2], [32, 512, 512, 64], None).0, widened);
        // Rows without a kernel, and scales that would reverse the order of scores.
        assert_eq!(planned(Target::Sm80, [DType::F16; 2], [32, 512, 512, 40], None).0, widened);
        assert_eq!(planned(Target::Sm80, [DType::F16; 2], [32, 512, 512, 64], Some(Param::from(-0.5))).0, widened);
        // One of them is f32, and there are many queries.
        let names = planned(Target::Sm80, [DType::F32, DType::F16], [32, 512, 512, 64], None).0;
        assert_eq!(names, ["cast_f16_f32", "attention_causal_tiles64"]);
    }

    #[test]
    fn queries_at_positions_go_to_the_tensor_cores_of_hopper() {
        let names = |target, op: Attention, s: usize| {
            let hardware = Hardware { target, multiprocessors: 132, precision: Precision::Contract };
            let half = |dims: [usize; 3]| TensorType::of(DType::F16, Shape::new(&dims).unwrap()).unwrap();
            let word = |n| TensorType::u32(Shape::new(&[n]).unwrap());
            let types = [half([32, s, 64]), half([4, 4096, 64]), half([4, 4096, 64]), word(s), word(1)];
            let given = AttentionOperands { positions: Some(()), lengths: Some(()), ..AttentionOperands::default() };
            let (_, plan) = Plan::<CudaDevice>::of_operation(&Op::from(op.with(&given)), &types, &hardware).unwrap();
            (plan.steps.iter().map(|step| step.code.kernel().name()).collect::<Vec<_>>(), plan.faults.len())
        };
        let (flash, faults) = names(Target::Sm90a, Attention::causal(), 64);
        assert_eq!((&*flash[0], flash.len(), faults), ("attention_causal_sight", 2, 1));
        assert!(flash[1].starts_with("flash_attention_sight_f16_f32"), "{flash:?}");
        // Other options, queries that are not causal, and devices without warp groups.
        for (target, op) in [
            (Target::Sm90a, Attention::causal().windowed(9)),
            (Target::Sm90a, Attention::full()),
            (Target::Sm90, Attention::causal()),
        ] {
            let (scan, _) = names(target, op, 64);
            assert!(scan.iter().any(|name| name.starts_with("attention_scan")), "{scan:?}");
        }
    }

    #[test]
    fn few_queries_of_f32_take_parts_of_many_keys() {
        let (names, scratch) = planned(Target::Sm80, [DType::F32; 2], [8, 1, 4096, 64], None);
        assert_eq!(names, ["attention_causal_rows64_parts", "flash_combine_f32"]);
        // For each of the 8 rows sums and two words from 128 parts.
        assert_eq!(scratch, 128 * 8 * (64 + 2) * 4);
        for few in [[8, 1, 20, 64], [64, 512, 4096, 64], [8, 1, 4096, 63], [8, 1, 4096, 300]] {
            let (names, _) = planned(Target::Sm80, [DType::F32; 2], few, None);
            assert_eq!(names.len(), 1, "{few:?} {names:?}");
        }
    }

    #[test]
    fn few_queries_take_parts_of_many_keys() {
        for target in [Target::Sm80, Target::Sm90a] {
            let (names, scratch) = planned(target, [DType::F16; 2], [8, 1, 8192, 128], None);
            assert_eq!(names, ["flash_attention_causal_f16_parts", "flash_combine_f32"]);
            // For each of the 8 rows a sum of 128 elements and two words, from 32 parts.
            assert_eq!(scratch, 32 * 8 * (128 + 2) * 4);
        }
    }

    #[test]
    fn few_queries_read_keys_as_they_are_stored() {
        let hardware = Hardware { target: Target::Sm90a, multiprocessors: 132, precision: Precision::Contract };
        let plan = |op: Attention, q: [usize; 3], kv: [usize; 3], stored: DType, beside: &[TensorType]| {
            let of = |dtype, dims: [usize; 3]| TensorType::of(dtype, Shape::new(&dims).unwrap()).unwrap();
            let types = [&[of(DType::F32, q), of(stored, kv), of(stored, kv)], beside].concat();
            let (_, plan) = Plan::<CudaDevice>::of_operation(&Op::from(op), &types, &hardware).unwrap();
            let names: Vec<String> = plan.steps.iter().map(|dispatch| dispatch.code.kernel().name()).collect();
            let grid = plan.steps.first().map(|dispatch| dispatch.launch.grid);
            (names, grid, plan.faults)
        };
        let q8_0 = DType::Blocks(kiln_ir::QuantFormat::Q8_0);
        for (stored, word) in [(DType::F16, "f16"), (DType::Bf16, "bf16"), (q8_0, "q8_0")] {
            let (names, grid, faults) = plan(Attention::causal(), [32, 1, 128], [8, 8192, 128], stored, &[]);
            let scan = format!("attention_scan_{word}_128_{word}_128_queries4_keys128");
            assert_eq!((names, faults), (vec![scan, "attention_scan_combine".to_owned()], vec![]));
            // A block for each of eight heads and of 64 parts of 128 keys.
            assert_eq!(grid, Some([8, 64, 1]));
        }
        // Other formats and odd rows are cast to f32 first, and so are keys for many queries.
        let q4_0 = DType::Blocks(kiln_ir::QuantFormat::Q4_0);
        let names = plan(Attention::causal(), [32, 1, 128], [8, 256, 128], q4_0, &[]).0;
        assert!(names.len() == 4 && names[2].starts_with("attention_scan_f32"), "{names:?}");
        let names = plan(Attention::causal(), [32, 1, 100], [8, 256, 100], DType::F16, &[]).0;
        assert!(names.len() == 4 && names[2].starts_with("attention_scan_f32"), "{names:?}");
        let names = plan(Attention::causal(), [32, 64, 128], [8, 256, 128], DType::F16, &[]).0;
        assert_eq!(names[2..], ["attention_causal_tiles128_parts", "flash_combine_f32_128"]);
        // Lengths may be invalid even if there is nothing to compute.
        let lengths = TensorType::u32(Shape::new(&[1]).unwrap());
        let op = Attention::causal().with(&AttentionOperands { lengths: Some(()), ..AttentionOperands::default() });
        let (_, _, faults) = plan(op, [32, 1, 128], [8, 256, 128], DType::F16, &[lengths]);
        assert_eq!((faults.len(), faults[0].bound), (1, 257));
        let (names, _, faults) = plan(op, [32, 0, 128], [8, 256, 128], DType::F16, &[lengths]);
        assert_eq!((names, faults.len()), (vec!["gather_nothing".to_owned()], 1));
    }
}
