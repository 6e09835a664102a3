//! Kernels of one launch, run as text, against the f64 reference: the cases that are small enough to be interpreted.

use kiln_ir::op::reference::{self, Case, Expected, Input};
use kiln_ir::op::{
    Arithmetic as ArithmeticOp, Attention as AttentionOp, BatchNorm, Bound, Cast as CastOp, Compare as CompareOp,
    Convolve2d, ConvolveTranspose2d, Cumsum as CumsumOp, Dequantize as DequantizeOp,
    MatmulByExpert as MatmulByExpertOp, Op, Operation, Pool2d, QuantMatmul as QuantMatmulOp, Quantize as QuantizeOp,
    Resize2d, RmsNorm, Rope as RopeOp, Select as SelectOp, Sort as SortOp, TopK as TopKOp, channels_of,
};
use kiln_ir::{Buffer, DType, Data, Error, Operand, QuantFormat, Result as CoreResult, Shape, TensorType};
use kiln_ptx::kernels::attention::{Attention, ScanAttention};
use kiln_ptx::kernels::cast::Cast;
use kiln_ptx::kernels::channels::Channels;
use kiln_ptx::kernels::compare::{Arithmetic, Compare, Select};
use kiln_ptx::kernels::conv::{Convolve, ConvolveTranspose, Unfold};
use kiln_ptx::kernels::cumsum::Cumsum;
use kiln_ptx::kernels::experts::{ExpertGemm, GroupByExpert};
use kiln_ptx::kernels::pooling::Pool;
use kiln_ptx::kernels::quant::{Dequantize, QuantMatmul, Quantize, Tiling, WarpQuantMatmul};
use kiln_ptx::kernels::resize::Resize;
use kiln_ptx::kernels::rope::Rope;
use kiln_ptx::kernels::sort::{self, MergeRuns, SortRuns};
use kiln_ptx::kernels::topk::TopK;
use kiln_ptx::{Kernel, Launch, PtxType, Target, Together};

use crate::support::{Device, Sample, floats, words};

/// Elements of the result.
fn elements(inputs: &[Operand<'_>], op: &Op) -> usize {
    let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
    op.infer(&types).map_or(0, |out| out[0].shape.numel())
}

/// The launch of an operation on operands.
fn lower(op: &Op, inputs: &[Operand<'_>], target: Target) -> CoreResult<(Box<dyn Kernel>, Launch)> {
    let shapes: Vec<_> = inputs.iter().map(Operand::shape).collect();
    fn of(kernel: impl Kernel + 'static, launch: Launch) -> (Box<dyn Kernel>, Launch) {
        (Box::new(kernel), launch)
    }
    Ok(match op {
        Op::Cast(op) => {
            let kernel = Cast::new(inputs[0].ty().dtype, op.to)?;
            of(kernel, kernel.launch(shapes[0].numel())?)
        }
        Op::Compare(op) => {
            let kernel = Compare::new(op.comparison, inputs[0].ty().dtype);
            let lengths = [0, 1].map(|i: usize| shapes[i].numel());
            of(kernel, kernel.launch(elements(inputs, &Op::from(*op)), lengths)?)
        }
        Op::Select(op) => {
            let lengths = [0, 1, 2].map(|i: usize| shapes[i].numel());
            of(Select, Select.launch(elements(inputs, &Op::from(*op)), lengths)?)
        }
        Op::Arithmetic(op) => {
            let kernel = Arithmetic::new(op.function, inputs[0].ty().dtype);
            let lengths = [0, 1].map(|i: usize| shapes[i].numel());
            of(kernel, kernel.launch(elements(inputs, &Op::from(*op)), lengths)?)
        }
        Op::Cumsum(op) => {
            let [rows, n, _] = op.extents(&inputs[0].ty())?;
            let kernel = Cumsum::rows(inputs[0].ty().dtype);
            of(kernel, kernel.launch(rows, n, n)?)
        }
        Op::BatchNorm(op) => {
            let kernel = Channels::new(true);
            of(kernel, kernel.launch(channels_of(&inputs[0].ty()), op.eps.get())?)
        }
        Op::Sort(op) => {
            let (rows, n) = (shapes[0].rows(), shapes[0].columns());
            let kernel = SortRuns::new(inputs[0].ty().dtype, op.descending, n);
            of(kernel, kernel.launch(rows, n)?)
        }
        Op::TopK(op) => of(TopK, TopK.launch(shapes[0].rows(), shapes[0].columns(), op.k)?),
        Op::Pool2d(op) => {
            let kernel = Pool::new(op.pooling, Target::Sm80);
            of(kernel, kernel.launch(op, &op.extents(&shapes[0])?)?)
        }
        Op::Convolve2d(op) => {
            let extents = op.extents(&shapes[0], &shapes[1])?;
            let kernel = Convolve::new(&extents);
            of(kernel, kernel.launch(op, &extents)?)
        }
        Op::ConvolveTranspose2d(op) => {
            of(ConvolveTranspose, ConvolveTranspose.launch(&op.extents(&shapes[0], &shapes[1])?)?)
        }
        Op::Resize2d(op) => {
            let kernel = Resize::new(op.mode);
            of(kernel, kernel.launch(&op.extents(&shapes[0])?)?)
        }
        Op::Rope(op) => {
            let [.., positions, columns] = *shapes[0].dims() else { panic!("{}", shapes[0]) };
            let types: Vec<TensorType> = inputs.iter().map(Operand::ty).collect();
            let kernel = Rope::new(op.style, RopeOp::operands(&types));
            of(kernel, kernel.launch(op, shapes[0].rows(), positions, columns)?)
        }
        Op::Quantize(op) => {
            let kernel = Quantize::new(op.format);
            of(kernel, kernel.launch(shapes[0].numel())?)
        }
        Op::Dequantize(op) => {
            let kernel = Dequantize::new(op.format);
            of(kernel, kernel.launch(shapes[0].numel())?)
        }
        Op::QuantMatmul(op) if let Some(kernel) = WarpQuantMatmul::new(op.format, shapes[0].rows(), target) => {
            // Of one multiprocessor, so that blocks of threads have more than one group of rows.
            of(kernel, kernel.launch(shapes[0].rows(), shapes[1].columns(), shapes[1].rows(), 1)?)
        }
        Op::QuantMatmul(op) => {
            let kernel = QuantMatmul::new(op.format, shapes[0].rows());
            of(kernel, kernel.launch(shapes[0].rows(), shapes[1].columns(), shapes[1].rows())?)
        }
        Op::Attention(op) => {
            let extents = op.extents(&shapes[0], &shapes[1], &shapes[2])?;
            let kernel = Attention::new(extents.d, op.causal, Target::Sm80);
            of(kernel, kernel.launch(&extents, op.scale(extents.d))?)
        }
        op => panic!("{op:?}"),
    })
}

/// Runs an operation; memory ends with a word that nobody may write, and blocks with one that is only read.
fn run(op: &Op, inputs: &[Operand<'_>], target: Target) -> Result<Vec<Buffer>, String> {
    let mut device = Device::default();
    let mut buffers: Vec<usize> = Vec::new();
    for input in inputs {
        let bytes = input.data().as_bytes();
        let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len() + 4];
        buffers.push(device.upload(&[bytes, &padding].concat()));
    }
    let types = op.infer(&inputs.iter().map(Operand::ty).collect::<Vec<_>>()).unwrap();
    buffers.extend(types.iter().map(|ty| device.allocate(ty.bytes().next_multiple_of(4))));
    let mut results: Vec<Buffer> = types.iter().map(|ty| Buffer::zeros(ty).unwrap()).collect();
    if types.iter().all(|ty| ty.shape.is_empty()) {
        return Ok(results);
    }
    let (kernel, launch) = lower(op, inputs, target).unwrap();
    device.run(&*kernel, &launch, &buffers)?;
    for (result, &buffer) in results.iter_mut().zip(&buffers[inputs.len()..]) {
        let mut data = result.as_mut();
        let bytes = data.as_bytes();
        let n = bytes.len();
        bytes.copy_from_slice(&device.download(buffer)[..n]);
    }
    Ok(results)
}

/// The work of a case: its operations or bytes, whichever are more.
fn cost(case: &Case) -> u64 {
    let types: Vec<_> = case.inputs.iter().map(|input| input.operand().unwrap().ty()).collect();
    let cost = case.op.cost(&types).unwrap();
    cost.flops.max(cost.bytes())
}

/// Runs the cases of an operation whose work is at most so much, and counts elements. With `KILN_SAMPLE` those of more than an eighth of
/// that work are sampled.
fn conforms<O: Operation>(most: u64, target: Target) -> usize {
    let small = |case: &&Case| {
        let types: Vec<_> = case.inputs.iter().map(|input| input.operand().unwrap().ty()).collect();
        // Other kernels turn bytes into words, which are then compared.
        let here = match case.op {
            Op::Compare(_) => types[0].dtype.size() == 4,
            // Other kinds of attention take two launches.
            Op::Attention(op) => {
                let widths = [1, 2].map(|i: usize| types[i].shape.columns());
                op.is_plain() && widths[0] == widths[1] && types.iter().all(|ty| ty.dtype == DType::F32)
            }
            // Other kernels move the dimension of the sum to the end.
            Op::Cumsum(op) => op.axis + 1 >= types[0].shape.rank(),
            // Only sorting of words, and of rows that are one run.
            Op::Sort(op) => {
                let shape = types[0].shape;
                op.axis + 1 == shape.rank() && shape.columns() <= SortRuns::LONGEST && types[0].dtype.size() == 4
            }
            _ => true,
        };
        here && cost(case) <= most
    };
    let cases = O::cases();
    let mut sample = Sample::new();
    let is_taken = |case: &&Case| sample.takes(cost(case) > most / 8);
    let cases: Vec<&Case> = cases.iter().filter(small).filter(is_taken).collect();
    let mut compared = 0;
    for case in cases {
        let results =
            |op: &Op, inputs: &[Operand<'_>]| Ok(run(op, inputs, target).unwrap_or_else(|why| panic!("{case}: {why}")));
        let bound = |op: &Op, inputs: &[TensorType]| match op {
            Op::Pool2d(op) => Ok(Pool::bound(op)),
            op => op.bound(inputs),
        };
        compared +=
            reference::conform_within(case, bound, false, results).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    compared
}

macro_rules! conformance {
    ($($name:ident $operation:ident $target:ident $most:literal $least:literal;)*) => {
        $(#[test]
        fn $name() {
            let compared = conforms::<$operation>($most, Target::$target);
            assert!(compared > $least / Sample::new().n, "{compared}");
        })*
    };
}

/// The convolution of unfolded images, as a product in f64, is that of the images.
#[test]
fn unfolded_images_are_what_convolutions_multiply() {
    let mut compared = 0;
    for case in Convolve2d::cases() {
        let Op::Convolve2d(op) = case.op else { panic!("{case}") };
        let operands: Vec<Operand<'_>> = case.inputs.iter().map(|input| input.operand().unwrap()).collect();
        if operands.iter().any(|operand| operand.ty().dtype != DType::F32) {
            continue;
        }
        let e = op.extents(&operands[0].shape(), &operands[1].shape()).unwrap();
        let pixels = e.out_h * e.out_w;
        let unfolded = e.batch * e.c_in * e.kh * e.kw * pixels;
        if unfolded == 0 || unfolded > 4_000 || e.terms() == 0 {
            continue;
        }
        let mut device = Device::default();
        let buffers = [device.upload(&words(operands[0].data().f32())), device.allocate(4 * unfolded)];
        device.run(&Unfold, &Unfold.launch(&op, &e).unwrap(), &buffers).unwrap();
        let columns = floats(device.download(buffers[1]));
        if Unfold::is_identity(&op, &e) {
            assert_eq!(columns.len(), operands[0].data().f32().len());
        }
        let (rows, terms, weights) = (e.c_out / e.groups, e.terms(), operands[1].data().f32());
        let mut result = Vec::with_capacity(e.batch * e.c_out * pixels);
        for stack in 0..e.batch * e.groups {
            for row in 0..rows {
                let weights = &weights[(stack % e.groups * rows + row) * terms..][..terms];
                result.extend((0..pixels).map(|pixel| {
                    let column = columns[stack * terms * pixels..].iter().skip(pixel).step_by(pixels);
                    let products = weights.iter().zip(column).map(|(&w, &x)| f64::from(w) * f64::from(x));
                    products.sum::<f64>() as f32
                }));
            }
        }
        let accuracy = reference::conform(&case, |_, _| Ok(vec![Buffer::F32(result.clone())]));
        compared += accuracy.unwrap_or_else(|why| panic!("{why}")).compared;
    }
    assert!(compared > 1_000, "{compared}");
}

conformance! {
    cast_keeps_its_contract CastOp Sm80 400_000 100_000;
    compare_keeps_its_contract CompareOp Sm80 60_000 20_000;
    arithmetic_keeps_its_contract ArithmeticOp Sm80 60_000 20_000;
    cumsum_keeps_its_contract CumsumOp Sm80 200_000 20_000;
    batch_norm_keeps_its_contract BatchNorm Sm80 200_000 5_000;
    select_keeps_its_contract SelectOp Sm80 60_000 3_000;
    sort_keeps_its_contract SortOp Sm80 100_000 5_000;
    top_k_keeps_its_contract TopKOp Sm80 10_000 500;
    pooling_keeps_its_contract Pool2d Sm80 20_000 2_000;
    convolution_keeps_its_contract Convolve2d Sm80 60_000 2_000;
    transposed_convolution_keeps_its_contract ConvolveTranspose2d Sm80 60_000 2_000;
    resizing_keeps_its_contract Resize2d Sm80 40_000 5_000;
    rope_keeps_its_contract RopeOp Sm80 60_000 10_000;
    quantisation_keeps_its_contract QuantizeOp Sm70 1_000_000 20_000;
    dequantisation_keeps_its_contract DequantizeOp Sm80 200_000 20_000;
    quantised_products_keep_their_contract QuantMatmulOp Sm70 300_000 500;
    quantised_products_on_tensor_cores_keep_their_contract QuantMatmulOp Sm80 300_000 500;
    quantised_products_beside_launches_in_front_keep_their_contract QuantMatmulOp Sm90 300_000 500;
    attention_keeps_its_contract AttentionOp Sm80 300_000 5_000;
}

/// Attention over keys and values as they are stored, and what adds up its parts.
fn run_scan(op: &AttentionOp, inputs: &[Operand<'_>], multiprocessors: u32) -> Result<Vec<Buffer>, String> {
    let shapes: Vec<Shape> = inputs.iter().map(Operand::shape).collect();
    let extents = op.extents(&shapes[0], &shapes[1], &shapes[2]).unwrap();
    let result = op.infer(&inputs.iter().map(Operand::ty).collect::<Vec<_>>()).unwrap()[0];
    if result.shape.is_empty() {
        return Ok(vec![Buffer::zeros(&result).unwrap()]);
    }
    let mut device = Device::default();
    let mut types = Vec::new();
    let mut buffers = Vec::new();
    for (index, input) in inputs.iter().enumerate() {
        let dtype = input.ty().dtype;
        let read = match index {
            1 => ScanAttention::reads(dtype, extents.d),
            2 => ScanAttention::reads(dtype, extents.dv),
            _ => !dtype.is_float() || dtype == DType::F32,
        };
        let mut wide = vec![0.0f32; if read { 0 } else { input.shape().numel() }];
        match input.data() {
            _ if read => {}
            Data::Blocks(format, blocks) => format.decode(blocks, &mut wide).unwrap(),
            floats => kiln_ir::widen(floats, &mut wide),
        }
        types.push(if read { dtype } else { DType::F32 });
        let bytes = if read { input.data().as_bytes() } else { Data::F32(&wide).as_bytes() };
        let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len() + 4];
        buffers.push(device.upload(&[bytes, &padding].concat()));
    }
    let places = op.places();
    let kernel = ScanAttention::new(&extents, [types[1], types[2]], Target::Sm80, 2).unwrap();
    let mask = places.mask.map(|place| (types[place], shapes[place]));
    let counts = places.map(|place| shapes[place].numel());
    let planned = kernel.plan(op, &extents, mask, &counts, multiprocessors).unwrap();
    let (scratch, out) = (device.allocate(planned.scratch), device.allocate(result.bytes()));
    let report = device.upload(&[0xff; 8]);
    let of = |place: Option<usize>| buffers[place.unwrap_or(0)];
    let beside = [of(places.positions), of(places.lengths), of(places.slopes), of(places.mask), report];
    device.run(&planned.attention.0, &planned.attention.1, &[&buffers[..3], &[scratch], &beside].concat())?;
    device.run(&planned.combine.0, &planned.combine.1, &[scratch, out, of(places.sinks)])?;
    let words: Vec<u32> =
        device.download(report).chunks(4).map(|word| u32::from_le_bytes(word.try_into().unwrap())).collect();
    if words != [u32::MAX; 2] {
        let error = Error::Index {
            op: "attention",
            position: words[1] as usize,
            index: words[0] as usize,
            bound: extents.t + 1,
        };
        return Err(error.to_string());
    }
    let mut results = Buffer::zeros(&result).unwrap();
    results.as_mut().as_bytes().copy_from_slice(&device.download(out)[..result.bytes()]);
    Ok(vec![results])
}

/// Every case of attention that is small enough, plain ones too, with keys in one part and in several. With `KILN_SAMPLE` the larger
/// ones are sampled.
#[test]
fn attention_over_stored_keys_keeps_its_contract() {
    let (mut compared, mut sample) = (0, Sample::new());
    for case in AttentionOp::cases() {
        let types: Vec<_> = case.inputs.iter().map(|input| input.operand().unwrap().ty()).collect();
        let Op::Attention(op) = case.op else { panic!("{case}") };
        let most = if types[1].shape.numel() > 16_384 { 600_000 } else { 100_000 };
        let cost = cost(&case);
        if cost > most || !sample.takes(cost > 20_000) {
            continue;
        }
        // Few keys are one part on every device.
        let keys = types[1].shape.dims()[types[1].shape.rank() - 2];
        for &multiprocessors in if keys > 128 { &[1, 40][..] } else { &[40] } {
            let results = |_: &Op, inputs: &[Operand<'_>]| {
                Ok(run_scan(&op, inputs, multiprocessors).unwrap_or_else(|why| panic!("{case}: {why}")))
            };
            let bound = |op: &Op, inputs: &[TensorType]| op.bound(inputs);
            let conforms = reference::conform_within(&case, bound, false, results);
            compared += conforms.unwrap_or_else(|why| panic!("{why}")).compared;
        }
    }
    assert!(compared > 50_000 / sample.n, "{compared}");
}

/// The first length of more keys than there are is reported, and taken to be all keys.
#[test]
fn lengths_of_more_keys_than_there_are_are_reported() {
    let (q, kv) = (vec![0.5f32; 3 * 8], vec![0.25f32; 3 * 5 * 8]);
    let lengths = [5u32, 6, 9];
    let [q, kv] = [(&q, [3, 1, 1, 8]), (&kv, [3, 1, 5, 8])].map(|(x, dims)| Operand::f32(x, &dims).unwrap());
    let lengths = Operand::elements(&lengths, &[3]).unwrap();
    let more = kiln_ir::op::AttentionOperands { lengths: Some(lengths), ..Default::default() };
    let error = run_scan(&AttentionOp::full().with(&more), &[q, kv, kv, lengths], 1).unwrap_err();
    assert!(error.contains("index 6 at position 1 is outside of 0..6"), "{error}");
}

/// Products by expert, where there are many in tiles that are put together first.
fn run_by_expert(inputs: &[Operand<'_>], target: Target) -> Result<Vec<Buffer>, String> {
    let [x, weights, indices] = [0, 1, 2].map(|i| inputs[i]);
    let e = MatmulByExpertOp.extents(&x.shape(), &weights.shape(), &indices.shape()).unwrap();
    let result = MatmulByExpertOp.infer(&inputs.iter().map(Operand::ty).collect::<Vec<_>>()).unwrap()[0];
    if result.shape.is_empty() {
        return Ok(vec![Buffer::zeros(&result).unwrap()]);
    }
    let mut wide = vec![0.0f32; x.shape().numel()];
    kiln_ir::widen(x.data(), &mut wide);
    let mut device = Device::default();
    let mut upload = |bytes: &[u8]| {
        let padding = vec![0; bytes.len().next_multiple_of(4) - bytes.len() + 4];
        device.upload(&[bytes, &padding].concat())
    };
    let [x, w, index] =
        [Data::F32(&wide).as_bytes(), weights.data().as_bytes(), indices.data().as_bytes()].map(&mut upload);
    let out = device.allocate(result.bytes());
    let tiles = e.tiles();
    let (mut chosen, mut slots) = (index, index);
    if tiles.are_grouped() {
        (slots, chosen) = (device.allocate(4 * GroupByExpert::slots(tiles)), device.allocate(4 * tiles.count));
        device.run(&GroupByExpert, &GroupByExpert.launch(&e, tiles).unwrap(), &[index, slots, chosen])?;
    }
    let buffers = [x, w, out, chosen, slots];
    match weights.ty().dtype {
        DType::Blocks(format) => match WarpQuantMatmul::by_expert(format, tiles, target) {
            // Of one multiprocessor, so that blocks of threads have more than one group of rows.
            Some(kernel) => device.run(&kernel, &kernel.launch_by_expert(&e, tiles, 1).unwrap(), &buffers)?,
            None => {
                let kernel = QuantMatmul::by_expert(format, tiles);
                device.run(&kernel, &kernel.launch_by_expert(&e, tiles).unwrap(), &buffers)?;
            }
        },
        dtype => {
            let ty = match dtype {
                DType::F16 => PtxType::F16,
                DType::Bf16 => PtxType::Bf16,
                _ => PtxType::F32,
            };
            let kernel = ExpertGemm::new(ty, e.k, tiles);
            device.run(&kernel, &kernel.launch(&e, tiles).unwrap(), &buffers)?;
        }
    }
    let mut results = Buffer::zeros(&result).unwrap();
    results.as_mut().as_bytes().copy_from_slice(&device.download(out)[..result.bytes()]);
    Ok(vec![results])
}

#[test]
fn products_by_expert_keep_their_contract() {
    let (mut compared, mut sample) = ([0; 2], Sample::new());
    for case in MatmulByExpertOp::cases() {
        let types: Vec<_> = case.inputs.iter().map(|input| input.operand().unwrap().ty()).collect();
        let cost = cost(&case);
        if cost > 100_000 || !sample.takes(cost > 20_000) {
            continue;
        }
        // Kernels of floats are the same on both targets.
        let targets = [Target::Sm70, Target::Sm80];
        let targets = if types[1].dtype.is_float() { &targets[1..] } else { &targets };
        for &target in targets {
            let results = |_: &Op, inputs: &[Operand<'_>]| {
                Ok(run_by_expert(inputs, target).unwrap_or_else(|why| panic!("{case}: {why}")))
            };
            let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
            compared[usize::from(types[1].dtype.is_float())] += accuracy.compared;
        }
    }
    assert!(compared.iter().all(|&compared| compared > 2_000 / sample.n), "{compared:?}");
}

/// Rows of x for which there is no room at once are rounded again for every group of rows of weights.
#[test]
fn quantised_products_of_long_rows_keep_their_contract() {
    let mut random = reference::Random::new(53);
    for format in QuantFormat::ALL {
        let (m, n, k) = (3, 35, 4096 + 256);
        let blocks: Vec<u8> = {
            let w = random.uniforms(n * k, -1.0, 1.0);
            let mut blocks = vec![0; format.bytes(w.len()).unwrap()];
            format.encode(&w, &mut blocks).unwrap();
            blocks
        };
        let x = Input::f32(random.uniforms(m * k, -1.0, 1.0), &[m, k]);
        let weights = Input::new(Buffer::Blocks(format, blocks), &[n, k]);
        let case = Case::new(QuantMatmulOp { format }, vec![x, weights]);
        let results =
            |op: &Op, inputs: &[Operand<'_>]| Ok(run(op, inputs, Target::Sm80).unwrap_or_else(|why| panic!("{why}")));
        let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(accuracy.compared, m * n);
    }
}

/// The product of rows that are rounded first, with what is added to it if anything is, on a device of this many multiprocessors.
fn run_tiled(
    format: QuantFormat,
    inputs: &[Operand<'_>],
    addend: Option<&[f32]>,
    multiprocessors: u32,
) -> Result<Vec<Buffer>, String> {
    let mut device = Device::default();
    let [x, weights] = [0, 1].map(|input: usize| {
        let bytes = inputs[input].data().as_bytes();
        device.upload(&[bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len() + 4]].concat())
    });
    let addend = addend.map(|x| device.upload(&x.iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<_>>())).into_iter();
    let extents @ [m, _, n] =
        [inputs[0].ty().shape.rows(), inputs[1].ty().shape.columns(), inputs[1].ty().shape.rows()];
    let tiling = Tiling::new(format, extents, Target::Sm80, multiprocessors).unwrap();
    let [rounded, units] = tiling.rounded_bytes().unwrap().map(|bytes| device.allocate(bytes));
    let out = device.allocate(4 * m * n);
    let (rounding, launch) = tiling.rounding().unwrap();
    device.run(&rounding, &launch, &[x, rounded, units])?;
    let adds = addend.len() > 0;
    let (product, launch) = tiling.product(adds).unwrap();
    if let Some((joining, joins)) = tiling.joining(adds).unwrap() {
        let parts = device.allocate(tiling.parts_bytes().unwrap());
        device.run(&product, &launch, &[rounded, units, weights, parts])?;
        let buffers: Vec<usize> = [parts, out, x, weights].into_iter().chain(addend).collect();
        device.run(&joining, &joins, &buffers)?;
    } else {
        let buffers: Vec<usize> = [rounded, units, weights, out, x].into_iter().chain(addend).collect();
        device.run(&product, &launch, &buffers)?;
    }
    let words = device.download(out).as_chunks::<4>().0[..m * n].iter().map(|word| f32::from_le_bytes(*word));
    Ok(vec![Buffer::F32(words.collect())])
}

/// Whole and in parts, with rows, columns and elements that fill no tile, and with what has no unit.
#[test]
fn quantised_products_of_tiles_keep_their_contract() {
    let mut random = reference::Random::new(57);
    let all = [(9, 35, 2, 1), (16, 130, 5, 9), (33, 7, 1, 1)];
    for (format, cases) in [
        (QuantFormat::Q4K, &all[..]),
        (QuantFormat::Q5K, &all[..1]),
        (QuantFormat::Q6K, &all[1..2]),
        (QuantFormat::Q8_0, &all[..1]),
        (QuantFormat::Q4_0, &all[..1]),
        (QuantFormat::Q5_1, &all[..1]),
        (QuantFormat::Iq4Nl, &all[..1]),
        (QuantFormat::Iq4Xs, &all[..1]),
        (QuantFormat::Mxfp4, &all[..1]),
    ] {
        for &(m, n, chunks, multiprocessors) in cases {
            let k = chunks * 256 - if format.block_len() == 32 { 96 } else { 0 };
            let mut blocks = vec![0; format.bytes(n * k).unwrap()];
            format.encode(&random.uniforms(n * k, -1.0, 1.0), &mut blocks).unwrap();
            if format == QuantFormat::Mxfp4 {
                // Exponents: the least, great ones, those of elements beyond f32, and the one that is no number.
                for (row, e) in [(0, 0), (1, 1), (2, 190), (3, 253), (4, 254), (5, 255)] {
                    blocks[row * k / 32 * format.block_bytes()] = e;
                }
            }
            let mut x = random.uniforms(m * k, -1.0, 1.0);
            for (row, value) in [(1, f32::NAN), (2, f32::INFINITY), (3, 2e38), (4, 1e-40)] {
                x[row * k + k - 1] = value;
            }
            x[5 * k..6 * k].fill(0.0);
            x[6 * k..7 * k].iter_mut().for_each(|x| *x *= 1e-30);
            let addend = random.uniforms(m * n, -9.0, 9.0);
            let inputs =
                || vec![Input::f32(x.clone(), &[m, k]), Input::new(Buffer::Blocks(format, blocks.clone()), &[n, k])];
            let case = Case::new(QuantMatmulOp { format }, inputs());
            let results = |addend: Option<&[f32]>, inputs: &[Operand<'_>]| {
                run_tiled(format, inputs, addend, multiprocessors).unwrap_or_else(|why| panic!("{format:?} {m}: {why}"))
            };
            let accuracy = reference::conform(&case, |_: &Op, inputs: &[Operand<'_>]| Ok(results(None, inputs)));
            assert_eq!(accuracy.unwrap_or_else(|why| panic!("{why}")).compared, m * n);
            let inputs = inputs();
            let inputs: Vec<Operand<'_>> = inputs.iter().map(|input| input.operand().unwrap()).collect();
            let (Buffer::F32(sums), Buffer::F32(products)) =
                (results(Some(&addend), &inputs).remove(0), results(None, &inputs).remove(0))
            else {
                panic!("results of f32");
            };
            let expected = products.iter().zip(&addend).map(|(product, addend)| (product + addend).to_bits());
            assert!(sums.iter().map(|sum| sum.to_bits()).eq(expected), "{format:?} {m}");
        }
    }
}

/// Rows of ordinary, large, tiny and no size at all, and one with what is no number.
#[test]
fn quantised_products_normalise_their_rows() {
    let mut random = reference::Random::new(58);
    for (format, m, n, k) in [
        (QuantFormat::Q4K, 1, 35, 512),
        (QuantFormat::Q5K, 2, 20, 4096 + 256),
        (QuantFormat::Q6K, 4, 35, 2048 + 256),
        (QuantFormat::Q8_0, 3, 33, 1056),
    ] {
        for (size, eps) in [(1.0, 1e-5), (1e25, 1e-5), (1e-25, 0.0), (0.0, 1e-6), (f32::NAN, 1e-5)] {
            let mut x = random.uniforms(m * k, -1.0, 1.0);
            x[(m - 1) * k..].iter_mut().for_each(|x| *x *= size);
            let gamma = random.uniforms(k, 0.5, 2.0);
            let mut blocks = vec![0; format.bytes(n * k).unwrap()];
            format.encode(&random.uniforms(n * k, -1.0, 1.0), &mut blocks).unwrap();
            let [rows, vector] = [&x, &gamma].map(|x| Input::f32(x.clone(), &[x.len() / k, k]));
            let vector = Input::f32(vector.operand().unwrap().data().f32().to_vec(), &[k]);
            let norm = RmsNorm::new(eps);
            let operands = [rows.operand().unwrap(), vector.operand().unwrap()];
            let Expected::F32 { values, .. } = Op::from(norm).reference(&operands).unwrap().remove(0) else {
                panic!("a norm of f32");
            };
            let normal = Input::f32(values.iter().map(|&x| x as f32).collect(), &[m, k]);
            let weights = Input::new(Buffer::Blocks(format, blocks.clone()), &[n, k]);
            let op = Op::from(QuantMatmulOp { format });
            let operands = [normal.operand().unwrap(), weights.operand().unwrap()];
            let expected = op.reference(&operands).unwrap();
            let Bound::Magnitude(units) = op.bound(&operands.each_ref().map(Operand::ty)).unwrap() else {
                panic!("a product");
            };
            let kernel = WarpQuantMatmul::new(format, m, Target::Sm90).unwrap().normed(norm).unwrap();
            let mut device = Device::default();
            blocks.resize(blocks.len().next_multiple_of(16) + 16, 0);
            let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
            let buffers = [bytes(&x), blocks, vec![0; 4 * m * n], bytes(&gamma)].map(|x| device.upload(&x));
            device.run(&kernel, &kernel.launch(m, k, n, 1).unwrap(), &buffers).unwrap();
            let words = device.download(buffers[2]).as_chunks::<4>().0[..m * n].iter();
            let found = Buffer::F32(words.map(|word| f32::from_le_bytes(*word)).collect());
            // Those of the norm, and of the rounding of its result above.
            let accuracy = reference::check(Bound::Magnitude(units + 16.0), &expected, &[found.as_data()]);
            accuracy.unwrap_or_else(|why| panic!("{format:?}, {size}: {why}"));
        }
    }
}

#[test]
fn what_is_added_to_quantised_products_is_added_to_their_results() {
    let mut random = reference::Random::new(54);
    let bytes = |x: &[f32]| -> Vec<u8> { x.iter().flat_map(|x| x.to_le_bytes()).collect() };
    for (format, m) in [(QuantFormat::Q4K, 1), (QuantFormat::Q6K, 2), (QuantFormat::Q8_0, 9)] {
        let (n, k) = (35, 512);
        let mut blocks = vec![0; format.bytes(n * k).unwrap()];
        format.encode(&random.uniforms(n * k, -1.0, 1.0), &mut blocks).unwrap();
        blocks.resize(blocks.len().next_multiple_of(16), 0);
        let (x, addend) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(m * n, -9.0, 9.0));
        let result = |adds: bool| -> Vec<f32> {
            let kernel = WarpQuantMatmul::new(format, m, Target::Sm80).unwrap();
            let kernel = if adds { kernel.adding() } else { kernel };
            let mut device = Device::default();
            let buffers = [bytes(&x), blocks.clone(), vec![0; 4 * m * n], bytes(&addend)].map(|x| device.upload(&x));
            device.run(&kernel, &kernel.launch(m, k, n, 1).unwrap(), &buffers).unwrap();
            device.download(buffers[2]).as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)).collect()
        };
        let sums: Vec<f32> = result(false).iter().zip(&addend).map(|(product, addend)| product + addend).collect();
        assert_eq!(result(true)[..m * n], sums[..m * n], "{format:?}");
    }
}

/// The results of operations that run the same kernel, one launch after the other or all as one, on a device of one multiprocessor.
fn side_by_side(ops: &[(Op, Vec<Operand<'_>>)], target: Target, together: bool) -> Vec<Vec<u8>> {
    let mut device = Device::default();
    let (mut buffers, mut launches, mut kernels) = (Vec::new(), Vec::new(), Vec::new());
    for (op, inputs) in ops {
        let mut own: Vec<usize> = Vec::new();
        for input in inputs {
            let bytes = input.data().as_bytes();
            own.push(device.upload(&[bytes, &vec![0; bytes.len().next_multiple_of(4) - bytes.len() + 4]].concat()));
        }
        let types = op.infer(&inputs.iter().map(Operand::ty).collect::<Vec<_>>()).unwrap();
        own.push(device.allocate(types[0].bytes()));
        buffers.push(own);
        let (kernel, launch) = lower(op, inputs, target).unwrap();
        kernels.push(kernel);
        launches.push(launch);
    }
    if together {
        let all: Vec<&Launch> = launches.iter().collect();
        let (kernel, launch) = Together::new(kernels.remove(0), &all, 1).unwrap().expect("launches of one kernel");
        device.run(&kernel, &launch, &buffers.concat()).unwrap();
    } else {
        for ((kernel, launch), own) in kernels.iter().zip(&launches).zip(&buffers) {
            device.run(&**kernel, launch, own).unwrap();
        }
    }
    buffers.iter().filter_map(|own| own.last()).map(|&result| device.download(result).to_vec()).collect()
}

#[test]
fn launches_as_one_give_what_each_gives() {
    let mut random = reference::Random::new(57);
    let numbers = random.uniforms(70 * 512, -1.0, 1.0);
    for (format, m, target) in [(QuantFormat::Q4K, 1, Target::Sm90), (QuantFormat::Q8_0, 9, Target::Sm80)] {
        // Fewer, as many and more rows of weights than a block takes at once.
        let weights: Vec<Vec<u8>> = [5, 32, 70]
            .into_iter()
            .map(|n| {
                let mut blocks = vec![0; format.bytes(n * 512).unwrap()];
                format.encode(&numbers[..n * 512], &mut blocks).unwrap();
                blocks
            })
            .collect();
        let x = random.uniforms(m * 512, -1.0, 1.0);
        let mut ops = Vec::new();
        for blocks in &weights {
            let n = blocks.len() / format.bytes(512).unwrap();
            let x = Operand::f32(&x, &[m, 512]).unwrap();
            let operands = vec![x, Operand::blocks(blocks, &[n, 512], format).unwrap()];
            ops.push((QuantMatmulOp { format }.into(), operands));
        }
        let each = side_by_side(&ops, target, false);
        assert_eq!(side_by_side(&ops, target, true), each, "{format:?}");
        assert_eq!(side_by_side(&ops[1..], target, true), each[1..], "{format:?}");
    }
    // Extents and counts of blocks of its own for each launch.
    let rope = |rows: usize, theta: f32| {
        let op = RopeOp { theta: theta.into(), ..RopeOp::default() };
        (Op::from(op), vec![Operand::f32(&numbers[..rows * 64], &[rows, 64]).unwrap()])
    };
    let ops = [rope(3, 10_000.0), rope(40, 500.0), rope(1, 10_000.0)];
    assert_eq!(side_by_side(&ops, Target::Sm80, true), side_by_side(&ops, Target::Sm80, false));
}

#[test]
fn launches_that_differ_stay_apart() {
    let x = vec![0.5f32; 64 * 64];
    let of = |op: Op, rows: usize, columns: usize| {
        lower(&op, &[Operand::f32(&x[..rows * columns], &[rows, columns]).unwrap()], Target::Sm80).unwrap()
    };
    let (_, launch) = of(RopeOp::default().into(), 4, 64);
    let lower_again = || of(RopeOp::default().into(), 4, 64).0;
    let (_, other) = of(TopKOp { k: 2 }.into(), 4, 64);
    let empty = Launch { grid: [0, 1, 1], ..launch.clone() };
    let deep = Launch { grid: [launch.grid[0], 2, 1], ..launch.clone() };
    for launches in [&[][..], &[&launch], &[&launch, &other], &[&launch, &empty], &[&launch, &deep]] {
        assert!(Together::new(lower_again(), launches, 1).unwrap().is_none(), "{launches:?}");
    }
}

/// Blocks of all magnitudes that f32 has, some with an element far above the others, some of one sign, some with zeros.
#[test]
fn blocks_of_all_magnitudes_are_quantised_to_the_same_bytes() {
    let mut random = reference::Random::new(59);
    for format in QuantFormat::ALL {
        let (len, blocks) = (format.block_len(), 67);
        let mut x = Vec::new();
        for block in 0..blocks {
            let magnitude = f32::powi(2.0, 4 * block - 140);
            let lo = [-magnitude, 0.0, 0.9 * magnitude][block as usize % 3];
            let mut values = random.uniforms(len, lo, magnitude);
            values[block as usize % len] *= [1.0, 30.0, 0.0][block as usize / 3 % 3];
            x.extend(values);
        }
        let mut expected = vec![0; format.bytes(x.len()).unwrap()];
        format.encode(&x, &mut expected).unwrap();
        let operand = Operand::f32(&x, &[x.len()]).unwrap();
        let results = run(&QuantizeOp { format }.into(), &[operand], Target::Sm70).unwrap();
        let [Buffer::Blocks(_, bytes)] = &results[..] else { panic!("{results:?}") };
        let chunks = bytes.chunks(format.block_bytes()).zip(expected.chunks(format.block_bytes()));
        let wrong = chunks.enumerate().find(|(_, (got, wanted))| got != wanted);
        assert_eq!(wrong, None, "{}", format.name());
    }
}

/// Rows in parts: totals, their sums, and the parts.
#[test]
fn cumulative_sums_in_parts_keep_their_contract() {
    let mut random = reference::Random::new(83);
    let (rows, n, part) = (3, 9001, 4096);
    let op = CumsumOp { axis: 1 };
    for dtype in [DType::F32, DType::I32] {
        let input = match dtype {
            DType::F32 => Input::f32(random.uniforms(rows * n, -1.0, 1.0), &[rows, n]),
            _ => Input::any(dtype, &[rows, n], &mut random),
        };
        let case = Case::new(op, vec![input]);
        let results = |_: &Op, inputs: &[Operand<'_>]| {
            let mut device = Device::default();
            let bytes = inputs[0].data().as_bytes();
            let x = device.upload(bytes);
            let parts = n.div_ceil(part);
            let [totals, before] = [0; 2].map(|_| device.allocate(4 * rows * parts));
            let y = device.allocate(bytes.len());
            let [of_rows, of_parts, of_totals] = [Cumsum::rows(dtype), Cumsum::parts(dtype), Cumsum::totals(dtype)];
            device.run(&of_totals, &of_totals.launch(rows, n, part)?, &[x, totals]).unwrap();
            device.run(&of_rows, &of_rows.launch(rows, parts, parts)?, &[totals, before]).unwrap();
            device.run(&of_parts, &of_parts.launch(rows, n, part)?, &[x, before, y]).unwrap();
            let mut result = Buffer::with_bytes(dtype, bytes.len())?;
            result.as_mut().as_bytes().copy_from_slice(device.download(y));
            Ok(vec![result])
        };
        let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(accuracy.compared, rows * n);
    }
}

/// Rows of several runs, with a short one at the end: sorted runs, and two levels of merging.
#[test]
fn long_rows_are_sorted_by_merging_runs() {
    let mut random = reference::Random::new(89);
    let (rows, n) = (2, 2 * SortRuns::LONGEST + 77);
    for descending in [false, true] {
        let x = (0..rows * n).map(|_| random.below(700) as f32 - 300.0).collect();
        let case = Case::new(SortOp { axis: 1, descending }, vec![Input::f32(x, &[rows, n])]);
        let results = |_: &Op, inputs: &[Operand<'_>]| {
            let mut device = Device::default();
            let bytes = inputs[0].data().as_bytes();
            let x = device.upload(bytes);
            let [mut candidates, mut next] = [0; 2].map(|_| device.allocate(8 * sort::candidates(rows, n)));
            let [values, positions] = [0; 2].map(|_| device.allocate(bytes.len()));
            let runs = SortRuns::new(DType::F32, descending, n);
            device.run(&runs, &runs.launch(rows, n)?, &[x, candidates]).unwrap();
            for size in [SortRuns::LONGEST, 2 * SortRuns::LONGEST] {
                let merge = MergeRuns::new(size, n);
                let out: &[usize] = if size == SortRuns::LONGEST {
                    &[x, candidates, next]
                } else {
                    &[x, candidates, values, positions]
                };
                device.run(&merge, &merge.launch(rows, n, size)?, out).unwrap();
                std::mem::swap(&mut candidates, &mut next);
            }
            let mut found = [DType::F32, DType::U32].map(|dtype| Buffer::with_bytes(dtype, bytes.len()).unwrap());
            for (found, buffer) in found.iter_mut().zip([values, positions]) {
                found.as_mut().as_bytes().copy_from_slice(device.download(buffer));
            }
            Ok(found.to_vec())
        };
        let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
        assert_eq!(accuracy.compared, 2 * rows * n);
    }
}
