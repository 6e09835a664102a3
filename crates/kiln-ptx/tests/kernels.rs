//! Reductions, softmax, norms, transposes and matrix products, run as text, against the f64 reference.

use kiln_ir::op::reference::{self, Case, Input, Random};
use kiln_ir::op::{
    Attention, AttentionExtents, LayerNorm, LogSoftmax, Matmul, MatmulExtents, Op, Operation, Reduce, Reduction,
    RmsNorm, Softmax as SoftmaxOp, Transpose as TransposeOp,
};
use kiln_ir::{Buffer, Error, Operand, TensorType};
use kiln_ptx::kernels::attention::TiledAttention;
use kiln_ptx::kernels::matmul::{
    Gemm, MultistageGemm, MultistageTile, NaiveGemm, SplitSum, Tf32Planes, Tile, TiledGemm,
};
use kiln_ptx::kernels::norm::Norm;
use kiln_ptx::kernels::reduce;
use kiln_ptx::kernels::rows::RowsPlan;
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::kernels::transpose::Transpose;
use kiln_ptx::{Kernel, Launch, Target};

use crate::support::{Device, Sample, floats, words};

const TARGETS: [Target; 2] = [Target::Sm70, Target::Sm80];

/// Runs the cases of an operation that are small enough to be interpreted, and counts elements. With `KILN_SAMPLE` those with an operand
/// of more than a thousand elements are sampled.
fn conforms<O: Operation>(
    small: impl Fn(&Case) -> bool,
    run: impl Fn(&Op, &[Operand<'_>]) -> Result<Buffer, String>,
) -> usize {
    let (mut compared, mut sample) = (0, Sample::new());
    let is_large = |case: &Case| case.inputs.iter().any(|input| input.shape.numel() > 1000);
    for case in O::cases().iter().filter(|case| small(case) && sample.takes(is_large(case))) {
        let results = |op: &Op, inputs: &[Operand<'_>]| match run(op, inputs) {
            Ok(result) => Ok(vec![result]),
            Err(why) => panic!("{case}: {why}"),
        };
        compared += reference::conform(case, results).unwrap_or_else(|why| panic!("{why}")).compared;
    }
    compared
}

fn run_one(kernel: &dyn Kernel, launch: &Launch, inputs: &[&[f32]], len: usize) -> Result<Vec<f32>, String> {
    let mut device = Device::default();
    let mut buffers: Vec<usize> = inputs.iter().map(|x| device.upload(&words(x))).collect();
    buffers.push(device.allocate(4 * len));
    device.run(kernel, launch, &buffers)?;
    Ok(floats(device.download(buffers[inputs.len()])))
}

/// Results of a reduction, as words.
fn run_reduce(reduce: &Reduce, input: &Operand<'_>, target: Target) -> Result<Vec<u8>, String> {
    let (outer, along, inner) = reduce.extents(&input.shape()).unwrap();
    let plan = reduce::plan(reduce.reduction, [outer, along, inner], target).unwrap();
    let mut device = Device::default();
    let mut buffers = vec![device.upload(&words(input.data().f32())), device.allocate(4 * outer * inner)];
    buffers.extend(plan.scratch.map(|bytes| device.allocate(bytes)));
    for (kernel, launch) in &plan.steps {
        device.run(kernel, launch, &buffers)?;
    }
    Ok(device.download(buffers[1]).to_vec())
}

#[test]
fn reductions_keep_their_contract() {
    for target in TARGETS {
        let compared = conforms::<Reduce>(
            // Beyond the older target only the extremes differ.
            |case| {
                let extremes = ["max", "min", "norm_linf"].contains(&case.op.name());
                case.inputs[0].shape.numel() <= 10_000 && (target == TARGETS[0] || extremes)
            },
            |op, inputs| {
                let Op::Reduce(reduce) = op else { panic!("{op:?}") };
                let bytes = run_reduce(reduce, &inputs[0], target)?;
                let words = bytes.chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]]));
                Ok(match reduce.reduction.gives_index() {
                    true => Buffer::U32(words.collect()),
                    false => Buffer::F32(floats(&bytes)),
                })
            },
        );
        assert!(compared > 3000 / Sample::new().n, "{compared}");
    }
}

/// Three levels of rows, and of columns; the sum of ones is exact.
#[test]
fn long_reductions_take_several_launches() {
    for (dims, axis, levels) in [(&[70_001usize][..], 0usize, 2usize), (&[1100, 2], 0, 3), (&[2, 9000], 1, 2)] {
        let ones = vec![1.0f32; dims.iter().product()];
        let input = Operand::f32(&ones, dims).unwrap();
        let reduce = Reduce::along(Reduction::Sum, axis);
        let (outer, along, inner) = reduce.extents(&input.shape()).unwrap();
        assert_eq!(reduce::plan(Reduction::Sum, [outer, along, inner], Target::Sm70).unwrap().steps.len(), levels);
        let sums = floats(&run_reduce(&reduce, &input, Target::Sm70).unwrap());
        assert_eq!(sums, vec![dims[axis] as f32; outer * inner], "{dims:?}");
    }
}

fn run_softmax(logarithm: bool, input: &Operand<'_>, target: Target) -> Result<Buffer, String> {
    let x = input.data().f32();
    let columns = if input.shape().rank() == 0 { 1 } else { input.shape().columns() };
    let rows = x.len().checked_div(columns).unwrap_or(0);
    let plan = Softmax::plan(rows, columns, logarithm, target).unwrap();
    run_rows(&plan, &[x], x.len()).map(Buffer::F32)
}

fn run_rows<K: Kernel>(plan: &RowsPlan<K>, inputs: &[&[f32]], len: usize) -> Result<Vec<f32>, String> {
    let mut device = Device::default();
    let mut buffers: Vec<usize> = inputs.iter().map(|x| device.upload(&words(x))).collect();
    buffers.extend([4 * len, plan.scratch].map(|bytes| device.allocate(bytes)));
    for (kernel, launch) in &plan.steps {
        device.run(kernel, launch, &buffers)?;
    }
    Ok(floats(device.download(buffers[inputs.len()])))
}

#[test]
fn softmax_keeps_its_contract() {
    let small = |case: &Case| case.inputs[0].shape.numel() <= 10_000;
    for target in TARGETS {
        assert!(conforms::<SoftmaxOp>(small, |_, inputs| run_softmax(false, &inputs[0], target)) > 30_000);
        assert!(conforms::<LogSoftmax>(small, |_, inputs| run_softmax(true, &inputs[0], target)) > 30_000);
    }
}

fn run_norm(op: &Op, inputs: &[Operand<'_>], target: Target) -> Result<Buffer, String> {
    let x = inputs[0].data().f32();
    let columns = inputs[0].shape().columns();
    let rows = x.len().checked_div(columns).unwrap_or(0);
    let plan = match op {
        Op::LayerNorm(norm) => Norm::layer(rows, columns, norm.eps.get(), target),
        Op::RmsNorm(norm) => Norm::rms(rows, columns, norm.eps.get(), target),
        _ => panic!("{op:?}"),
    };
    let data: Vec<&[f32]> = inputs.iter().map(|input| input.data().f32()).collect();
    run_rows(&plan.unwrap(), &data, x.len()).map(Buffer::F32)
}

#[test]
fn norms_keep_their_contract() {
    let small = |case: &Case| case.inputs[0].shape.numel() <= 10_000;
    let run = |op: &Op, inputs: &[Operand<'_>]| run_norm(op, inputs, Target::Sm70);
    assert!(conforms::<LayerNorm>(small, run) > 30_000);
    assert!(conforms::<RmsNorm>(small, run) > 30_000);
}

/// What a row is shifted by is its first element, however far off that is.
#[test]
fn rows_that_begin_far_off_are_normalised() {
    let mut random = Random::new(71);
    for (columns, first) in [(300, 1e7), (300, -3e38), (9000, -1e7), (9000, 2e-38)] {
        let mut x = random.uniforms(columns, 99.0, 100.0);
        x[0] = first;
        let [gamma, beta] = [0, 1].map(|_| Input::f32(random.uniforms(columns, -2.0, 2.0), &[columns]));
        let case = Case::new(LayerNorm::new(1e-5), vec![Input::f32(x, &[1, columns]), gamma, beta]);
        let results = |op: &Op, inputs: &[Operand<'_>]| Ok(vec![run_norm(op, inputs, Target::Sm80).unwrap()]);
        let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{first}: {why}"));
        assert_eq!(accuracy.compared, columns);
    }
}

/// Rows that a large block, the blocks of a cluster, or nobody holds.
#[test]
fn long_rows_keep_their_contract() {
    let mut random = Random::new(61);
    // A length for each way to hold rows, and one beyond.
    let (sm80, sm90) = ([16_384, 20_001, 32_769].as_slice(), [8_193, 20_001, 40_001, 65_541].as_slice());
    let hopper = [20_004, 40_004, 65_540].as_slice();
    for (target, lengths) in [(Target::Sm80, sm80), (Target::Sm90, sm90), (Target::Sm90a, hopper)] {
        for &columns in lengths {
            let rows = if columns < 30_000 { 2 } else { 1 };
            let x = Input::f32(random.uniforms(rows * columns, 50.0, 60.0), &[rows, columns]);
            let [gamma, beta] = [0, 1].map(|_| Input::f32(random.uniforms(columns, -2.0, 2.0), &[columns]));
            for case in [
                Case::new(SoftmaxOp, vec![x.clone()]),
                Case::new(LogSoftmax, vec![x.clone()]),
                Case::new(LayerNorm::new(1e-5), vec![x.clone(), gamma.clone(), beta]),
                Case::new(RmsNorm::new(1e-5), vec![x.clone(), gamma]),
            ] {
                let results = |op: &Op, inputs: &[Operand<'_>]| {
                    let result = match op {
                        Op::Softmax(_) => run_softmax(false, &inputs[0], target),
                        Op::LogSoftmax(_) => run_softmax(true, &inputs[0], target),
                        op => run_norm(op, inputs, target),
                    };
                    Ok(vec![result.unwrap_or_else(|why| panic!("{case}: {why}"))])
                };
                let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{target}: {why}"));
                assert_eq!(accuracy.compared, rows * columns);
            }
        }
    }
}

/// Rows of several parts, some without an element that adds to the sum, and rows that are not numbers.
#[test]
fn softmax_of_rows_in_parts_keeps_its_contract() {
    const COLUMNS: usize = 40_961;
    let row = |value: &dyn Fn(usize) -> f32| -> Vec<f32> { (0..COLUMNS).map(value).collect() };
    let wave = |i: usize| (i as f32 * 0.01).sin() * 30.0;
    let finite_at_the_end = row(&|i| if i < 30_000 { f32::NEG_INFINITY } else { wave(i) });
    let falling = row(&|i| -(i as f32) * 0.01);
    for (what, x, defined) in [
        ("negative infinities first", finite_at_the_end, true),
        ("a great element in the first part alone", falling, true),
        ("negative infinities alone", vec![f32::NEG_INFINITY; COLUMNS], false),
        ("an infinity", row(&|i| if i == 39_000 { f32::INFINITY } else { wave(i) }), false),
        ("a NaN", row(&|i| if i == 17 { f32::NAN } else { wave(i) }), false),
    ] {
        for op in [Op::from(SoftmaxOp), Op::from(LogSoftmax)] {
            let logarithm = matches!(op, Op::LogSoftmax(_));
            let x = Input::f32(x.clone(), &[1, COLUMNS]);
            let result = run_softmax(logarithm, &x.operand().unwrap(), Target::Sm80).unwrap();
            if defined {
                let case = Case::new(op, vec![x]);
                let accuracy = reference::conform(&case, |_, _| Ok(vec![result.clone()]));
                assert_eq!(accuracy.unwrap_or_else(|why| panic!("{what}: {why}")).compared, COLUMNS, "{what}");
            } else {
                let Buffer::F32(result) = result else { panic!("not f32") };
                assert!(result.iter().all(|y| y.is_nan()), "{what}");
            }
        }
    }
}

/// Blocks that stay do the work of others: what one cluster gives for all rows, many give for some each.
#[test]
fn blocks_that_stay_take_row_after_row() {
    let mut random = Random::new(67);
    // Rows in pairs too; the last pair lacks a row.
    let (rows, columns) = (5, [32_780, 16_388]);
    let mut compare = |(kernel, launch): (&dyn Kernel, &Launch), columns: usize, vectors: usize| {
        let operands = [rows * columns].into_iter().chain(vec![columns; vectors]);
        let operands: Vec<Vec<f32>> = operands.map(|len| random.uniforms(len, -2.0, 3.0)).collect();
        let operands: Vec<&[f32]> = operands.iter().map(Vec::as_slice).collect();
        let written = kernel.build();
        assert!(written.blocks_stay() && launch.grid[0] >= 3 * written.cluster(), "{:?}", launch.grid);
        let [one, two] = [1, 2].map(|n| Launch { grid: [n * written.cluster(), 1, 1], ..launch.clone() });
        let launches = [launch.clone(), one, two];
        let results = launches.map(|launch| run_one(kernel, &launch, &operands, rows * columns).unwrap());
        assert!(results[0].iter().all(|y| y.is_finite()));
        assert!(results[1] == results[0] && results[2] == results[0], "{}", kernel.name());
    };
    let softmax = Softmax::plan(rows, columns[0], false, Target::Sm90a).unwrap();
    let (kernel, launch) = &softmax.steps[0];
    compare((kernel, launch), columns[0], 0);
    let layer = Norm::layer(rows, columns[1], 1e-5, Target::Sm90a);
    let rms = Norm::rms(rows, columns[1], 1e-5, Target::Sm90a);
    for (plan, vectors) in [(layer.unwrap(), 2), (rms.unwrap(), 1)] {
        let (kernel, launch) = &plan.steps[0];
        compare((kernel, launch), columns[1], vectors);
    }
}

fn run_tiled(op: &Attention, inputs: &[Operand<'_>], multiprocessors: u32) -> Result<Buffer, String> {
    let extents = op.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape()).unwrap();
    let plan = TiledAttention::plan(&extents, op.causal, op.scale(extents.d), Target::Sm80, multiprocessors);
    let plan = plan.unwrap().ok_or("no tiles")?;
    let mut device = Device::default();
    let [q, k, v] = [0, 1, 2].map(|i: usize| device.upload(&words(inputs[i].data().f32())));
    let out = device.allocate(4 * inputs[0].shape().numel());
    let (kernel, launch) = &plan.attention;
    match &plan.combine {
        None => device.run(kernel, launch, &[q, k, v, out])?,
        Some((combine, adding, bytes)) => {
            let scratch = device.allocate(*bytes);
            device.run(kernel, launch, &[q, k, v, scratch])?;
            device.run(combine, adding, &[scratch, out])?;
        }
    }
    Ok(Buffer::F32(floats(device.download(out))))
}

/// Tiles that lack rows, columns or keys; groups of heads; keys in parts and whole.
#[test]
fn attention_in_tiles_keeps_its_contract() {
    let mut random = Random::new(73);
    for (kv_heads, group, s, t, d) in
        [(2, 2, 40, 70, 64), (1, 1, 33, 200, 20), (1, 2, 64, 64, 128), (2, 1, 100, 100, 36), (1, 1, 65, 129, 100)]
    {
        for causal in [false, true] {
            let heads = kv_heads * group;
            let mut input = |dims: [usize; 3]| Input::f32(random.uniforms(dims.iter().product(), -2.0, 2.0), &dims);
            let inputs = vec![input([heads, s, d]), input([kv_heads, t, d]), input([kv_heads, t, d])];
            let op = Attention { causal, ..Attention::full() };
            let case = Case::new(op, inputs);
            for multiprocessors in [1, 16] {
                let results = |_: &Op, inputs: &[Operand<'_>]| {
                    Ok(vec![run_tiled(&op, inputs, multiprocessors).unwrap_or_else(|why| panic!("{case}: {why}"))])
                };
                let accuracy = reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
                assert_eq!(accuracy.compared, heads * s * d, "{case}");
            }
        }
    }
}

/// Keys and values that a query does not see change nothing, whatever they are.
#[test]
fn attention_in_tiles_leaves_out_what_is_not_seen() {
    const N: usize = 70;
    const D: usize = 24;
    let mut random = Random::new(79);
    let mut matrix = || random.uniforms(N * D, -2.0, 2.0);
    let (q, k, v) = (matrix(), matrix(), matrix());
    let run = |k: &[f32], v: &[f32]| {
        let operands = [&q[..], k, v].map(|x| Operand::f32(x, &[1, N, D]).unwrap());
        let Ok(Buffer::F32(result)) = run_tiled(&Attention::causal(), &operands, 1) else { panic!("no f32") };
        result
    };
    let expected = run(&k, &v);
    let (mut other_k, mut other_v) = (k.clone(), v.clone());
    let last = (N - 3) * D;
    other_k[last..].fill(f32::NAN);
    other_v[last..].fill(f32::INFINITY);
    let result = run(&other_k, &other_v);
    assert!(expected[..last].iter().all(|x| x.is_finite()));
    assert!(result[..last] == expected[..last]);
    assert!(result[last..].iter().all(|x| x.is_nan()));
}

/// Few queries and rows that are no whole vectors are left to other kernels.
#[test]
fn attention_takes_tiles_for_many_queries() {
    let plan = |s, d| {
        let extents = AttentionExtents { batch: 2, kv_heads: 4, group: 1, s, t: 1024, d, dv: d };
        TiledAttention::plan(&extents, true, 0.1, Target::Sm80, 132).unwrap()
    };
    assert!(plan(31, 64).is_none() && plan(64, 65).is_none() && plan(64, 132).is_none() && plan(64, 0).is_none());
    let (kernel, launch) = plan(1024, 64).unwrap().attention;
    assert_eq!((kernel.name().as_str(), launch.grid), ("attention_causal_tiles64_parts", [128, 2, 1]));
    let (kernel, launch) = plan(4096, 128).unwrap().attention;
    assert_eq!((kernel.name().as_str(), launch.grid), ("attention_causal_tiles128", [512, 1, 1]));
}

#[test]
fn transposes_keep_every_bit() {
    let small = |case: &Case| case.inputs[0].shape.numel() <= 20_000;
    let compared = conforms::<TransposeOp>(small, |op, inputs| {
        let Op::Transpose(transpose) = op else { panic!("{op:?}") };
        let (matrices, m, n) = transpose.extents(&inputs[0].shape()).unwrap();
        let x = inputs[0].data().f32();
        Ok(Buffer::F32(run_one(&Transpose, &Transpose.launch(matrices, m, n).unwrap(), &[x], x.len())?))
    });
    assert!(compared > 30_000 / Sample::new().n, "{compared}");
}

/// Whether a product is one of f32 that has as many matrices on each side as results, or one: what the kernels take. A backend
/// copies stacks that broadcast before it runs them, and widens other elements.
fn whole_stacks(case: &Case) -> bool {
    if case.inputs.iter().any(|input| !matches!(input.buffer, Buffer::F32(_))) {
        return false;
    }
    let Op::Matmul(matmul) = case.op else { panic!("{:?}", case.op) };
    let [a, b] = [0, 1].map(|i| TensorType::f32(case.inputs[i].shape));
    matmul.repeats(&a, &b).is_ok_and(|repeats| repeats.iter().all(Option::is_none))
}

#[test]
fn products_keep_their_contract() {
    for tile in Tile::ALL {
        let small = |case: &Case| {
            let [a, b] = [&case.inputs[0].shape, &case.inputs[1].shape];
            let few = a.numel() * b.dims()[b.rank() - 1] <= 200_000;
            a.numel() <= 20_000 && b.numel() <= 20_000 && few && whole_stacks(case)
        };
        let compared = conforms::<Matmul>(small, |op, inputs| {
            let Op::Matmul(matmul) = op else { panic!("{op:?}") };
            let e = matmul.extents(&inputs[0].shape(), &inputs[1].shape()).unwrap();
            let kernel = Gemm::new(*matmul, tile);
            let launch = kernel.launch(e, 1.0, 0.0).unwrap();
            let data = [inputs[0].data().f32(), inputs[1].data().f32()];
            Ok(Buffer::F32(run_one(&kernel, &launch, &data, e.batch * e.m * e.n)?))
        });
        assert!(compared > 1000 / Sample::new().n, "{compared}");
    }
}

/// Integers, so that every sum is exact: transposes, batches, alpha and beta, and a k of more than one chain.
#[test]
fn products_scale_and_add() {
    for ([m, k, n], batch, shared) in [
        ([3, 5, 7], 2, [false, true]),
        ([3, 5, 7], 2, [true, false]),
        ([3, 5, 7], 2, [false, false]),
        ([65, 17, 130], 1, [true, true]),
        ([1, 0, 3], 1, [true, true]),
        ([2, 16_400, 3], 1, [true, true]),
    ] {
        let [shared_a, shared_b] = shared;
        let of = |shared: bool, product: usize| if shared { 0 } else { product };
        let count = |shared: bool| of(shared, batch - 1) + 1;
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            // Each operand is read both ways; the interpreter takes seconds for a long k.
            if k > 1000 && transpose_a == transpose_b {
                continue;
            }
            let value = |i: usize, by: usize| (i * 7 % by) as f32 - 2.0;
            let a: Vec<f32> = (0..count(shared_a) * m * k).map(|i| value(i, 5)).collect();
            let b: Vec<f32> = (0..count(shared_b) * k * n).map(|i| value(i, 3)).collect();
            let c: Vec<f32> = (0..batch * m * n).map(|i| value(i, 11)).collect();
            let tile = Tile::ALL[(m + n) % 2];
            let kernel = Gemm::new(Matmul { transpose_a, transpose_b }, tile);
            let extents = MatmulExtents { batch, shared_a, shared_b, m, k, n };
            let mut device = Device::default();
            let buffers = [&a, &b, &c].map(|x| device.upload(&words(x)));
            device.run(&kernel, &kernel.launch(extents, 2.0, -3.0).unwrap(), &buffers).unwrap();
            let got = floats(device.download(buffers[2]));
            for (at, got) in got.into_iter().enumerate() {
                let (product, i, j) = (at / (m * n), at / n % m, at % n);
                let [of_a, of_b] = [shared_a, shared_b].map(|shared| of(shared, product));
                let a = |p: usize| a[of_a * m * k + if transpose_a { p * m + i } else { i * k + p }];
                let b = |p: usize| b[of_b * k * n + if transpose_b { j * k + p } else { p * n + j }];
                let sum: f32 = (0..k).map(|p| a(p) * b(p)).sum();
                assert_eq!(got, 2.0 * sum - 3.0 * c[at], "{extents:?}, element {at}");
            }
        }
    }
}

/// Runs a product in stages with k in this many parts.
fn run_stages(op: Matmul, tile: MultistageTile, parts: usize, e: MatmulExtents, [a, b]: [&[f32]; 2]) -> Vec<f32> {
    let kernel = MultistageGemm::new(op, tile);
    let elements = e.batch * e.m * e.n;
    let split = run_one(&kernel, &kernel.launch(e, parts).unwrap(), &[a, b], parts * elements).unwrap();
    if parts == 1 {
        return split;
    }
    let sum = SplitSum::new(parts, elements);
    run_one(&sum, &sum.launch(elements).unwrap(), &[&split], elements).unwrap()
}

#[test]
fn products_in_stages_keep_their_contract() {
    let small = |case: &Case| {
        let [a, b] = [&case.inputs[0].shape, &case.inputs[1].shape];
        let few = a.numel() * b.dims()[b.rank() - 1] <= 100_000;
        a.numel() <= 20_000 && b.numel() <= 20_000 && few && whole_stacks(case)
    };
    let compared = conforms::<Matmul>(small, |op, inputs| {
        let Op::Matmul(matmul) = op else { panic!("{op:?}") };
        let e = matmul.extents(&inputs[0].shape(), &inputs[1].shape()).unwrap();
        // Those of few threads: there are many cases.
        let tile = MultistageTile::ALL[[2, 4][(e.m + e.n) % 2]];
        let data = [inputs[0].data().f32(), inputs[1].data().f32()];
        Ok(Buffer::F32(run_stages(*matmul, tile, 1, e, data)))
    });
    assert!(compared > 1000 / Sample::new().n, "{compared}");
}

/// Integers, so that every sum is exact: transposes, batches, tiles and rows that are not whole, parts of k, a k of more than one
/// chain, and none.
#[test]
fn products_in_stages_are_exact() {
    let narrow = MultistageTile::ALL[2];
    let one = |extents| MatmulExtents::of_one(extents);
    let stack =
        |[shared_a, shared_b]: [bool; 2], extents| MatmulExtents { batch: 2, shared_a, shared_b, ..one(extents) };
    let all = MultistageTile::ALL.map(|tile| (tile, one([130, 35, 20]), 1));
    let more = [
        (MultistageTile::ALL[3], stack([false, false], [3, 5, 7]), 1),
        (MultistageTile::ALL[3], stack([true, false], [3, 5, 7]), 1),
        (MultistageTile::ALL[4], stack([false, false], [5, 100, 39]), 3),
        (MultistageTile::ALL[4], stack([true, false], [5, 100, 39]), 3),
        (MultistageTile::ALL[4], stack([false, true], [5, 100, 39]), 3),
        (narrow, one([17, 70, 132]), 4),
        (narrow, one([2, 1100, 8]), 1),
        (narrow, one([2, 1100, 7]), 1),
        (narrow, one([1, 0, 3]), 1),
    ];
    for (tile, e, parts) in all.into_iter().chain(more) {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = e;
        let of = |shared: bool, product: usize| if shared { 0 } else { product };
        let count = |shared: bool| of(shared, batch - 1) + 1;
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let value = |i: usize, by: usize| (i * 7 % by) as f32 - 2.0;
            let a: Vec<f32> = (0..count(shared_a) * m * k).map(|i| value(i, 5)).collect();
            let b: Vec<f32> = (0..count(shared_b) * k * n).map(|i| value(i, 11)).collect();
            let got = run_stages(Matmul { transpose_a, transpose_b }, tile, parts, e, [&a, &b]);
            for (at, got) in got.into_iter().enumerate() {
                let (product, i, j) = (at / (m * n), at / n % m, at % n);
                let [of_a, of_b] = [shared_a, shared_b].map(|shared| of(shared, product));
                let a = |p: usize| a[of_a * m * k + if transpose_a { p * m + i } else { i * k + p }];
                let b = |p: usize| b[of_b * k * n + if transpose_b { j * k + p } else { p * n + j }];
                let sum: f32 = (0..k).map(|p| a(p) * b(p)).sum();
                assert_eq!(got, sum, "{tile:?}, {e:?}, {transpose_a} {transpose_b}, element {at}");
            }
        }
    }
}

/// The cut depends on extents and device alone, and no part of it is empty.
#[test]
fn products_are_cut_for_a_device() {
    let nt = Matmul { transpose_a: false, transpose_b: true };
    let cut = |[m, k, n]: [usize; 3]| {
        let (kernel, parts) = MultistageGemm::for_extents(nt, MatmulExtents::of_one([m, k, n]), 132);
        (kernel.name().rsplit('_').next().unwrap().to_owned(), parts)
    };
    assert_eq!(cut([8192, 8192, 8192]), ("128x128x16x3".into(), 1));
    assert_eq!(cut([64, 4096, 4096]), ("64x128x16x3".into(), 8));
    assert_eq!(cut([4096, 4096, 16]), ("128x32x16x3".into(), 8));
    assert_eq!(cut([1, 0, 1]).1, 1);
    for k in 1..2000 {
        let (_, parts) = cut([16, k, 300]);
        let share = k.div_ceil(parts).next_multiple_of(16);
        assert!((parts - 1) * share < k, "{parts} parts of {k}");
    }
}

/// Integers, so that every sum is exact: whole tiles, parts of them, and no products at all.
#[test]
fn products_of_textbooks_are_exact() {
    for [m, k, n] in [[1, 1, 1], [16, 16, 16], [17, 33, 31], [3, 50, 64], [33, 0, 2]] {
        let value = |i: usize, by: usize| (i * 7 % by) as f32 - 2.0;
        let a: Vec<f32> = (0..m * k).map(|i| value(i, 5)).collect();
        let b: Vec<f32> = (0..k * n).map(|i| value(i, 11)).collect();
        let sum = |at: usize| (0..k).map(|p| a[at / n * k + p] * b[p * n + at % n]).sum();
        let expected: Vec<f32> = (0..m * n).map(sum).collect();
        let naive = run_one(&NaiveGemm, &NaiveGemm.launch([m, k, n]).unwrap(), &[&a, &b], m * n).unwrap();
        assert_eq!(naive, expected, "naive, {m} {k} {n}");
        let tiled = run_one(&TiledGemm, &TiledGemm.launch([m, k, n]).unwrap(), &[&a, &b], m * n).unwrap();
        assert_eq!(tiled, expected, "tiled, {m} {k} {n}");
    }
}

#[test]
fn extents_beyond_a_kernel_are_refused() {
    let most = u32::MAX as usize;
    let limit = |result: Result<Launch, Error>| matches!(result, Err(Error::Limit { .. }));
    let extents = MatmulExtents::of_one([1, 1, 1]);
    let gemm = Gemm::new(Matmul::default(), Tile::LARGE);
    assert!(limit(gemm.launch(MatmulExtents { k: most, ..extents }, 1.0, 0.0)));
    assert!(limit(gemm.launch(MatmulExtents { batch: 1 << 31, ..extents }, 1.0, 0.0)));
    assert!(
        gemm.launch(MatmulExtents { batch: 70_000, m: 1 << 20, ..extents }, 1.0, 0.0)
            .is_ok_and(|launch| launch.grid == [70_000 << 13, 1, 1])
    );
    let staged = MultistageGemm::new(Matmul::default(), MultistageTile::ALL[0]);
    assert!(limit(staged.launch(MatmulExtents { k: (1 << 24) + 1, ..extents }, 1)));
    assert!(limit(staged.launch(MatmulExtents { batch: 1 << 31, ..extents }, 1)));
    assert!(limit(SplitSum::new(2, most).launch(most)));
    assert!(limit(TiledGemm.launch([1, most, 1])));
    assert!(limit(NaiveGemm.launch([16 * 65_536, 1, 1])));
    let softmax = |rows, columns| Softmax::plan(rows, columns, false, Target::Sm70);
    assert!(matches!(softmax(1, most), Err(Error::Limit { .. })));
    assert!(matches!(softmax(1 << 31, 1 << 17), Err(Error::Limit { .. })));
    assert!(matches!(reduce::plan(Reduction::ArgMax, [1, 0, 1], Target::Sm70), Err(Error::Shape { .. })));
    assert!(matches!(reduce::plan(Reduction::Sum, [most, 2, 2], Target::Sm70), Err(Error::Limit { .. })));
}

/// Every element is in two parts, both in TF32, side by side with others along k; what fills a row up is 0.
#[test]
fn planes_add_up_to_the_matrix() {
    for (matrices, rows, k) in [(1usize, 1usize, 1usize), (2, 33, 35), (3, 5, 64), (1, 70, 7), (2, 4, 0)] {
        let values: Vec<f32> =
            (0..matrices * rows * k).map(|i| (i as f32 * 0.37).sin() * 10f32.powi(i as i32 % 30)).collect();
        for transposes in [false, true] {
            let kernel = Tf32Planes::new(transposes);
            let pitch = k.div_ceil(4) * 4;
            assert_eq!(Tf32Planes::bytes(matrices, rows, k), Some(4 * 2 * matrices * rows * pitch));
            let launch = kernel.launch(matrices, rows, k).unwrap();
            let planes = run_one(&kernel, &launch, &[&values], 2 * matrices * rows * pitch).unwrap();
            for (i, pair) in planes.chunks_exact((2 * rows * pitch).max(1)).enumerate() {
                let (hi, lo) = pair.split_at(rows * pitch);
                for (at, (hi, lo)) in hi.iter().zip(lo).enumerate() {
                    let (row, along) = (at / pitch, at % pitch);
                    let index = if transposes { along * rows + row } else { row * k + along };
                    let x = if along < k { values[i * rows * k + index] } else { 0.0 };
                    assert_eq!(hi.to_bits() & 0x1fff, 0, "{hi}");
                    assert_eq!(lo.to_bits() & 0x1fff, 0, "{lo}");
                    let error = (f64::from(*hi) + f64::from(*lo) - f64::from(x)).abs();
                    assert!(error <= f64::from(x).abs() * 2f64.powi(-23), "{x} as {hi} + {lo}");
                }
            }
        }
    }
    assert!(Tf32Planes::new(false).launch(1, 1 << 31, 4).is_err());
    assert_eq!(Tf32Planes::bytes(usize::MAX, 2, 2), None);
}
