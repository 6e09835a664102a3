//! Kernels whose warps use tensor cores, run as text: products of fragments and of matrices against plain products, and
//! attention against the f64 reference.

use kiln_ir::op::reference::{Expected, Random};
use kiln_ir::op::{Attention as AttentionOp, ElementwiseKind, Matmul, MatmulExtents, Operation, Param};
use kiln_ir::{Error, Operand, f16};
use kiln_ptx::kernels::attention::{FlashAttention, FlashTile, plan};
use kiln_ptx::kernels::matmul::{Epilogue, WarpGemm, WarpTile};
use kiln_ptx::operands::{Groups, Sixteen};
use kiln_ptx::{
    Argument, Bf16, BlockOrder, Builder, F16, Fragment, Global, Kernel, Launch, Panels, Pointer, PtxKernel, PtxType,
    Shared, Target,
};

use crate::support::{Device, floats, to_bf16, words};

struct Written(PtxKernel);

impl Kernel for Written {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn build(&self) -> PtxKernel {
        self.0.clone()
    }
}

/// Numbers in a type, those of 16 bits one behind the other.
fn encode(ty: PtxType, numbers: &[f32]) -> Vec<u8> {
    match ty {
        PtxType::F16 => numbers.iter().flat_map(|&x| f16::from_f32(x).to_le_bytes()).collect(),
        PtxType::Bf16 => numbers.iter().flat_map(|&x| to_bf16(x).to_le_bytes()).collect(),
        _ => words(numbers),
    }
}

fn decode(ty: PtxType, bytes: &[u8]) -> Vec<f32> {
    let halves = || bytes.chunks_exact(2).map(|b| u16::from_le_bytes([b[0], b[1]]));
    match ty {
        PtxType::F16 => halves().map(|bits| f16::from_bits(bits).to_f32()).collect(),
        PtxType::Bf16 => halves().map(|bits| f32::from_bits(u32::from(bits) << 16)).collect(),
        _ => floats(bytes),
    }
}

/// Copies this many rows of 128 bytes to shared memory, by a warp.
fn bring<'k>(k: &'k Builder, from: Pointer<'k, Global, u32>, panels: Panels, rows: u32) -> Pointer<'k, Shared, u32> {
    let to = k.shared_bytes(panels.bytes(), Panels::ALIGN);
    for first in (0..rows).step_by(4) {
        let (row, piece) = ((k.tid_x() >> 3) + first, k.tid_x() & 7);
        k.cp_async(panels.piece(k, to, row, piece), from.index(k.mad(row, 32, piece * 4)), Sixteen(()), 16u32);
    }
    to
}

/// 16 by 16 sums of products of 128 bytes along k; `across`: A and B are stored with k outside.
fn product(ty: PtxType, across: bool) -> Written {
    Written(PtxKernel::new("product", [32, 1, 1], |k| {
        let [a, b] = ["a", "b"].map(|name| k.buffer::<u32>(name));
        let out = k.buffer::<f32>("out");
        let lane = k.tid_x();
        let rows = if across { 64 } else { 16 };
        let panels = Panels::new(ty, rows, 128 / ty.bytes());
        let [a, b] = [a, b].map(|from| bring(k, from, panels, rows));
        k.cp_async_commit_group::<u32>();
        k.cp_async_wait_group::<u32>(Groups(0));
        k.bar_sync(0u32);
        let orders =
            if across { [BlockOrder::Across, BlockOrder::Down] } else { [BlockOrder::Down, BlockOrder::Across] };
        let [a, b] = [(a, orders[0]), (b, orders[1])].map(|(at, order)| panels.blocks(k, at, lane, order));
        let sums = [0; 2].map(|_| [0; 4].map(|_| k.variable(0.0f32)));
        for step in 0..4 {
            let read = |from: kiln_ptx::MatrixBlocks<'_>| -> Fragment<'_, u32, 4> {
                let fragment = k.gather([0; 4].map(|_| k.constant(0u32)));
                match across {
                    true => k.ldmatrix_x4_trans::<u32>(fragment, from.at(step, 0)),
                    false => k.ldmatrix_x4::<u32>(fragment, from.at(0, step)),
                }
                fragment
            };
            let (a, b) = (read(a), read(b));
            for (half, sums) in sums.into_iter().enumerate() {
                let b = b.part::<2>(2 * half);
                match ty {
                    PtxType::F16 => k.mma_m16n8k16::<F16>(sums, a, b, sums),
                    PtxType::F32 => k.mma_m16n8k8::<f32>(sums, a, b, sums),
                    _ => k.mma_m16n8k16::<Bf16>(sums, a, b, sums),
                }
            }
        }
        let at = out.index(k.mad(lane >> 2, 16, (lane & 3) * 2));
        for (half, sums) in (0..).zip(sums) {
            for i in 0..4 {
                k.st(at.offset(8 * half + 128 * (i / 2) + i % 2), sums[i as usize]);
            }
        }
    }))
}

/// Integers, so that every sum is exact.
#[test]
fn fragments_lie_as_the_products_take_them() {
    for (ty, across) in [
        (PtxType::F16, false),
        (PtxType::F16, true),
        (PtxType::Bf16, false),
        (PtxType::Bf16, true),
        (PtxType::F32, false),
    ] {
        let depth = 128 / ty.bytes() as usize;
        let (rows, columns) = if across { (64, 64) } else { (16, depth) };
        let number = |i: usize, by: usize| ((i * 37 + i / 11) % by) as f32 - 5.0;
        let a: Vec<f32> = (0..rows * columns).map(|i| number(i, 13)).collect();
        let b: Vec<f32> = (0..rows * columns).map(|i| number(i, 11)).collect();
        let mut device = Device::default();
        let buffers = [device.upload(&encode(ty, &a)), device.upload(&encode(ty, &b)), device.allocate(4 * 256)];
        let launch = Launch { grid: [1; 3], arguments: (0..3).map(Argument::Buffer).collect() };
        device.run(&product(ty, across), &launch, &buffers).unwrap();
        let at = |row: usize, along: usize| if across { along * columns + row } else { row * columns + along };
        for (i, got) in floats(device.download(buffers[2])).into_iter().enumerate() {
            let sum: f32 = (0..depth).map(|along| a[at(i / 16, along)] * b[at(i % 16, along)]).sum();
            assert_eq!(got, sum, "{ty:?}, across {across}, element {i}");
        }
    }
}

/// Runs a warp on a buffer of 128 words, and returns the words.
fn run(body: impl FnOnce(&Builder, Pointer<'_, Global, u32>, Pointer<'_, Shared, u32>)) -> Result<Vec<u32>, String> {
    let kernel = Written(PtxKernel::new("a_warp", [32, 1, 1], |k| {
        let x = k.buffer::<u32>("x");
        body(k, x, k.shared(128));
    }));
    let mut device = Device::default();
    let bytes: Vec<u8> = (1..=128u32).flat_map(|word| word.to_le_bytes()).collect();
    let buffer = device.upload(&bytes);
    device.run(&kernel, &Launch { grid: [1; 3], arguments: vec![Argument::Buffer(0)] }, &[buffer])?;
    Ok(device.download(buffer).chunks_exact(4).map(|b| u32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect())
}

#[test]
fn copies_bring_what_is_present_once_somebody_has_waited() {
    let copy = |k: &Builder, x: Pointer<'_, Global, u32>, to: Pointer<'_, Shared, u32>, present: u32| {
        let words = k.tid_x() * 4u32;
        k.cp_async(to.index(words), x.index(words), Sixteen(()), present);
        k.cp_async_commit_group::<u32>();
    };
    let got = run(|k, x, to| {
        copy(k, x, to, 8);
        k.cp_async_wait_group::<u32>(Groups(0));
        k.bar_sync(0u32);
        k.st_v(x.index(k.tid_x() * 4u32), k.ld_v::<_, _, 4>(to.index((31 - k.tid_x()) * 4u32)));
    });
    let wanted = (0..32u32).flat_map(|lane| [125 - 4 * lane, 126 - 4 * lane, 0, 0]);
    assert_eq!(got.unwrap(), wanted.collect::<Vec<_>>());

    let fault = |what: &str, got: Result<Vec<u32>, String>| {
        let said = got.expect_err(what);
        assert!(said.contains(what), "{said}");
    };
    fault(
        "a copy is on its way to",
        run(|k, x, to| {
            copy(k, x, to, 16);
            k.cp_async_wait_group::<u32>(Groups(1));
            k.st(x, k.ld(to.index(k.tid_x())));
        }),
    );
    fault("nobody has waited for", run(|k, x, to| copy(k, x, to, 16)));
    fault(
        "a race",
        run(|k, x, to| {
            copy(k, x, to, 16);
            k.cp_async_wait_group::<u32>(Groups(0));
            k.st(x, k.ld(to.index(k.tid_x())));
        }),
    );
    fault(
        "of a buffer",
        run(|k, x, to| {
            copy(k, x.offset(4), to, 16);
            k.cp_async_wait_group::<u32>(Groups(0));
        }),
    );
    fault(
        "lanes of a warp do not meet",
        run(|k, x, to| {
            k.if_(k.lt(k.tid_x(), 5), || {
                let fragment = k.gather([0; 4].map(|_| k.ld(x)));
                k.ldmatrix_x4::<u32>(fragment, to);
            });
        }),
    );
}

/// Extents of an attention, and its types.
#[derive(Clone, Copy)]
struct Case {
    batch: usize,
    heads: usize,
    kv_heads: usize,
    s: usize,
    t: usize,
    d: usize,
    causal: bool,
    types: [PtxType; 2],
}

/// Multiprocessors of an H200.
const MULTIPROCESSORS: u32 = 132;

impl Case {
    fn operation(&self, scale: Option<Param>) -> AttentionOp {
        AttentionOp { causal: self.causal, scale, ..AttentionOp::default() }
    }

    fn dims(&self) -> [[usize; 4]; 2] {
        [[self.batch, self.heads, self.s, self.d], [self.batch, self.kv_heads, self.t, self.d]]
    }

    /// Queries, keys and values that the type of the inputs has.
    fn inputs(&self, random: &mut Random, size: f32) -> [Vec<f32>; 3] {
        let [q, kv] = self.dims().map(|dims| dims.iter().product::<usize>());
        [(q, size), (kv, size), (kv, 1.0)].map(|(n, size)| {
            let numbers = random.uniforms(n, -size, size);
            decode(self.types[0], &encode(self.types[0], &numbers))
        })
    }

    /// Runs the launches of a plan. Memory ends with what nobody may write.
    fn run(&self, inputs: &[Vec<f32>; 3], scale: Option<Param>, multiprocessors: u32) -> (Vec<f32>, bool) {
        let [q, kv] = self.dims().map(|dims| kiln_ir::Shape::new(&dims).unwrap());
        let operation = self.operation(scale);
        let extents = operation.extents(&q, &kv, &kv).unwrap();
        let scale = operation.scale(self.d);
        let plan = plan(self.types, &extents, self.causal, scale, multiprocessors).unwrap();
        let mut device = Device::default();
        let mut buffers: Vec<usize> = inputs.iter().map(|x| device.upload(&encode(self.types[0], x))).collect();
        let out = device.allocate(inputs[0].len() * self.types[1].bytes() as usize);
        let (kernel, launch) = &plan.attention;
        match &plan.combine {
            None => {
                buffers.push(out);
                device.run(kernel, launch, &buffers).unwrap();
            }
            Some((combine, second, bytes)) => {
                let scratch = device.allocate(*bytes);
                buffers.push(scratch);
                device.run(kernel, launch, &buffers).unwrap();
                device.run(combine, second, &[scratch, out]).unwrap();
            }
        }
        (decode(self.types[1], device.download(out)), plan.combine.is_some())
    }

    /// Exact results and their magnitudes.
    fn expected(&self, [q, k, v]: [&[f32]; 3], scale: Option<Param>) -> [Vec<f64>; 2] {
        let [of_q, of_kv] = self.dims();
        let operand = |data, dims: [usize; 4]| Operand::f32(data, &dims).unwrap();
        let inputs = [operand(q, of_q), operand(k, of_kv), operand(v, of_kv)];
        let Some(Expected::F32 { values, magnitudes }) = self.operation(scale).reference(&inputs).pop() else {
            panic!()
        };
        [values, magnitudes]
    }

    /// Compares with the reference; the bound is that of [`FlashAttention`]. Returns whether keys were cut into parts.
    fn check(&self, random: &mut Random, size: f32, scale: Option<Param>, multiprocessors: u32) -> bool {
        let inputs = self.inputs(random, size);
        let (got, parts) = self.run(&inputs, scale, multiprocessors);
        let [q, k, v] = inputs.each_ref().map(Vec::as_slice);
        let [exact, magnitudes] = self.expected([q, k, v], scale);
        let sizes: Vec<f32> = v.iter().map(|x| x.abs()).collect();
        let [weighted, _] = self.expected([q, k, &sizes], scale);
        assert_eq!(got.len(), exact.len());
        let u = 2f64.powi(-24);
        let chain = 2.0 * u * (self.d as f64 / 16.0 + self.t as f64 / 16.0 + 16.0);
        // A row of one head sees values of one head.
        let rows = self.heads / self.kv_heads * self.s;
        for (i, &got) in got.iter().enumerate() {
            let (head, column) = (i / self.d / rows, i % self.d);
            let all: f64 = (0..self.t).map(|j| f64::from(sizes[(head * self.t + j) * self.d + column])).sum();
            let rounding = match self.types[0] {
                PtxType::F16 => 2f64.powi(-11) * weighted[i] + 2f64.powi(-40) * all,
                _ => 2f64.powi(-8) * weighted[i],
            };
            let bound = chain * magnitudes[i] + rounding;
            let of_result = match self.types[1] {
                PtxType::F16 => 2f64.powi(-11) * (exact[i].abs() + bound) + 2f64.powi(-25),
                PtxType::Bf16 => 2f64.powi(-8) * (exact[i].abs() + bound),
                _ => u * (exact[i].abs() + bound),
            };
            let error = (f64::from(got) - exact[i]).abs();
            assert!(error <= bound + of_result, "element {i} of {:?}: {got}, not {}", self.dims(), exact[i]);
        }
        parts
    }
}

const HALVES: [PtxType; 2] = [PtxType::F16, PtxType::F16];

/// One, few and many queries and keys, around tiles; grouped heads; every width and pair of types.
#[test]
fn attention_keeps_its_bound() {
    use PtxType::{Bf16, F16, F32};
    let mut random = Random::new(5);
    let mut case = |batch, heads, kv_heads, s, t, d, causal, types| {
        let case = Case { batch, heads, kv_heads, s, t, d, causal, types };
        case.check(&mut random, 2.0, None, 1)
    };
    case(1, 1, 1, 1, 1, 64, true, HALVES);
    case(1, 2, 1, 3, 200, 64, true, [F16, F32]);
    case(2, 4, 2, 70, 70, 64, true, [F16, F32]);
    case(1, 1, 1, 130, 131, 64, true, [Bf16, Bf16]);
    case(1, 1, 1, 9, 5, 64, false, [F16, Bf16]);
    case(1, 6, 2, 30, 65, 80, false, [Bf16, F32]);
    case(1, 1, 1, 65, 70, 96, true, [F16, F32]);
    case(1, 1, 1, 66, 64, 128, false, HALVES);
    case(1, 3, 1, 33, 129, 128, true, [Bf16, F16]);
    case(1, 1, 1, 17, 33, 256, true, [F16, F32]);
}

/// A row of each head, as in decoding: keys are cut into parts.
#[test]
fn parts_of_keys_are_added_up() {
    let mut random = Random::new(6);
    for (heads, kv_heads, s, t, d, causal, types) in [
        (8, 2, 1, 700, 64, true, HALVES),
        (2, 1, 3, 1030, 128, true, [PtxType::Bf16, PtxType::F32]),
        (1, 1, 1, 300, 256, false, [PtxType::F16, PtxType::Bf16]),
        (1, 1, 2, 515, 80, false, HALVES),
    ] {
        let case = Case { batch: 1, heads, kv_heads, s, t, d, causal, types };
        assert!(case.check(&mut random, 2.0, None, MULTIPROCESSORS), "{t} keys are cut");
    }
}

#[test]
fn scales_and_special_values_keep_their_contract() {
    let mut random = Random::new(7);
    let case = Case { batch: 1, heads: 1, kv_heads: 1, s: 20, t: 40, d: 64, causal: false, types: HALVES };
    case.check(&mut random, 6.0, Some(Param::from(0.3)), 1);
    // Scores as large as f16 allows, in one part and in several. One weight of a row is then 1 and all others are 0:
    // the bound, which grows with the scores, would allow anything, but the result is a row of values.
    let many = Case { s: 1, t: 700, ..case };
    for (case, multiprocessors) in [(case, 1), (many, MULTIPROCESSORS)] {
        let inputs = case.inputs(&mut random, 60_000.0);
        let (got, parts) = case.run(&inputs, None, multiprocessors);
        assert_eq!(parts, case.t == many.t);
        let [exact, _] = case.expected(inputs.each_ref().map(Vec::as_slice), None);
        for (got, exact) in got.into_iter().zip(exact) {
            assert!((f64::from(got) - exact).abs() <= 2f64.powi(-10) * exact.abs(), "{got}, not {exact}");
        }
    }
    // No keys at all.
    let none = Case { t: 0, ..case };
    let (zeros, _) = none.run(&[vec![1.0; 20 * 64], Vec::new(), Vec::new()], None, MULTIPROCESSORS);
    assert_eq!(zeros, vec![0.0; 20 * 64]);
    // A query of NaN, a score of +∞, and one key of NaN that only the later queries see.
    let case = Case { causal: true, s: 40, ..case };
    let nan = |q: Option<f32>, k: Option<f32>| {
        let mut inputs = case.inputs(&mut Random::new(8), 1.0);
        q.into_iter().for_each(|x| inputs[0][21 * 64 + 3] = x);
        k.into_iter().for_each(|x| inputs[1][21 * 64 + 3] = x);
        let (got, _) = case.run(&inputs, None, MULTIPROCESSORS);
        (0..40).filter(|row| got[row * 64..][..64].iter().all(|x| x.is_nan())).collect::<Vec<usize>>()
    };
    assert_eq!(nan(Some(f32::NAN), None), [21]);
    assert_eq!(nan(None, Some(f32::NAN)), (21..40).collect::<Vec<_>>());
    assert_eq!(nan(Some(f32::INFINITY), None), [21]);
    // A query whose scores are all -∞ gives NaN; among other scores one of -∞ has weight 0.
    let case = Case { causal: false, s: 3, t: 70, ..case };
    for unreachable in [66, 70] {
        let mut inputs = case.inputs(&mut random, 1.0);
        inputs[0].fill(1.0);
        inputs[1].fill(0.5);
        inputs[1][..unreachable * 64].fill(f32::NEG_INFINITY);
        let (got, _) = case.run(&inputs, None, MULTIPROCESSORS);
        let mean = |column: usize| inputs[2][66 * 64 + column..].iter().step_by(64).sum::<f32>() / 4.0;
        for (i, got) in got.into_iter().enumerate() {
            assert!(if unreachable == 70 { got.is_nan() } else { (got - mean(i % 64)).abs() < 1e-3 }, "{i}: {got}");
        }
    }
}

#[test]
fn what_attention_does_not_take_is_an_error() {
    let tile = FlashTile::for_extents(200, 128);
    let parameter = |got: Result<FlashAttention, Error>| matches!(got, Err(Error::Parameter { .. }));
    assert!(parameter(FlashAttention::new([PtxType::F32, PtxType::F32], 128, true, tile)));
    assert!(parameter(FlashAttention::new([PtxType::F16, PtxType::U32], 128, true, tile)));
    assert!(parameter(FlashAttention::new(HALVES, 72, true, tile)));
    assert!(parameter(FlashAttention::new(HALVES, 256, true, FlashTile::new(4, 2, 128).unwrap())));
    assert!(
        FlashTile::new(3, 1, 64).is_err() && FlashTile::new(4, 3, 64).is_err() && FlashTile::new(4, 1, 48).is_err()
    );
    let kernel = FlashAttention::new(HALVES, 128, true, tile).unwrap();
    let extents = kiln_ir::op::AttentionExtents { batch: 1, kv_heads: 1, group: 1, s: 1, t: 1, d: 128, dv: 128 };
    assert!(kernel.launch(&extents, 0.1).is_ok());
    for scale in [0.0, -1.0, f32::NAN, f32::INFINITY] {
        assert!(matches!(kernel.launch(&extents, scale), Err(Error::Parameter { .. })), "{scale}");
    }
    let wrong = kiln_ir::op::AttentionExtents { d: 64, ..extents };
    assert!(matches!(kernel.launch(&wrong, 0.1), Err(Error::Shape { .. })));
    for (group, s, t) in [(1, 1 << 31, 1 << 31), (1 << 16, 1 << 16, 1 << 20), (1, 1, 1 << 31)] {
        let large = kiln_ir::op::AttentionExtents { group, s, t, ..extents };
        assert!(matches!(kernel.launch(&large, 0.1), Err(Error::Limit { .. })));
    }
    assert!(plan(HALVES, &kiln_ir::op::AttentionExtents { d: 63, ..extents }, true, 0.1, 132).is_err());
}

/// A product of matrices, its types and how they are stored.
struct Product {
    extents: MatmulExtents,
    operation: Matmul,
    types: [PtxType; 2],
    tile: WarpTile,
}

impl Product {
    /// A and B of integers, or of other numbers that the type of the inputs has.
    fn operands(&self, integers: bool) -> [Vec<f32>; 2] {
        let MatmulExtents { batch, shared_a, shared_b, m, k, n } = self.extents;
        let [a, b] = [shared_a, shared_b].map(|shared| if shared { 1 } else { batch });
        [(a * m * k, 5), (b * k * n, 3)].map(|(len, by)| {
            let number =
                |i: usize| if integers { (i * 7 % by) as f32 - 2.0 } else { (i as f32 * 0.37 + by as f32).sin() };
            let numbers: Vec<f32> = (0..len).map(number).collect();
            // In TF32 the lower bits are not read.
            let cut = |x: f32| f32::from_bits(x.to_bits() & 0xffff_e000);
            decode(self.types[0], &encode(self.types[0], &numbers.into_iter().map(cut).collect::<Vec<_>>()))
        })
    }

    /// Runs `f(alpha A B + beta C + bias)` on the C and the bias that are given.
    fn run(
        &self,
        epilogue: Epilogue,
        [alpha, beta]: [f32; 2],
        operands: &[Vec<f32>; 2],
        c: &[f32],
        bias: &[f32],
    ) -> Vec<f32> {
        let kernel = WarpGemm::new(self.operation, self.types, self.tile, epilogue, Target::Sm80).unwrap();
        let mut device = Device::default();
        let mut buffers: Vec<usize> = operands.iter().map(|x| device.upload(&encode(self.types[0], x))).collect();
        buffers.push(device.upload(&encode(self.types[1], c)));
        buffers.push(device.upload(&words(bias)));
        let launch = kernel.launch(self.extents, [alpha, beta]).unwrap();
        device.run(&kernel, &launch, &buffers).unwrap();
        decode(self.types[1], device.download(buffers[2]))
    }

    /// The products of an element of C.
    fn products<'a>(&self, operands: &'a [Vec<f32>; 2], element: usize) -> impl Iterator<Item = f64> + use<'a> {
        let (MatmulExtents { shared_a, shared_b, m, k, n, .. }, Matmul { transpose_a, transpose_b }) =
            (self.extents, self.operation);
        let (product, i, j) = (element / (m * n), element / n % m, element % n);
        let first = |shared: bool, elements: usize| if shared { 0 } else { product * elements };
        let (first_a, first_b) = (first(shared_a, m * k), first(shared_b, k * n));
        (0..k).map(move |p| {
            let a = operands[0][first_a + if transpose_a { p * m + i } else { i * k + p }];
            let b = operands[1][first_b + if transpose_b { j * k + p } else { p * n + j }];
            f64::from(a) * f64::from(b)
        })
    }
}

const NT: Matmul = Matmul { transpose_a: false, transpose_b: true };

/// Integers, so that every sum is exact: both tiles, every way to store operands, around tiles and stages, batches, and all
/// that can follow a product.
#[test]
fn products_of_matrices_scale_and_add() {
    use PtxType::{Bf16, F16, F32};
    let relu = Epilogue::PLAIN.adds().bias().activation(ElementwiseKind::Relu).unwrap();
    let mut number = 0;
    let stack = |[shared_a, shared_b]: [bool; 2], extents| {
        let one = MatmulExtents::of_one(extents);
        MatmulExtents { batch: 2, shared_a, shared_b, ..one }
    };
    for extents in [
        MatmulExtents::of_one([72, 8, 40]),
        stack([false, false], [16, 200, 8]),
        stack([false, true], [8, 72, 136]),
        stack([true, false], [72, 72, 8]),
        MatmulExtents::of_one([136, 64, 72]),
        MatmulExtents::of_one([8, 0, 8]),
    ] {
        let MatmulExtents { batch, m, n, .. } = extents;
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let types = [[F16, F16], [F16, F32], [Bf16, F32], [F16, Bf16]][number % 4];
            let tile = WarpTile::ALL[number / 4 % 2];
            let epilogue = [relu, Epilogue::PLAIN][number / 2 % 2];
            number += 1;
            let product = Product { extents, operation: Matmul { transpose_a, transpose_b }, types, tile };
            let operands = product.operands(true);
            let c: Vec<f32> = (0..batch * m * n).map(|i| (i * 7 % 11) as f32 - 5.0).collect();
            let bias: Vec<f32> = (0..n).map(|j| (j % 4) as f32).collect();
            let got = product.run(epilogue, [2.0, -3.0], &operands, &c, &bias);
            for (at, got) in got.into_iter().enumerate() {
                let sum = 2.0 * product.products(&operands, at).sum::<f64>() as f32;
                let whole = if epilogue == relu { (sum - 3.0 * c[at] + bias[at % n]).max(0.0) } else { sum };
                let rounded = decode(types[1], &encode(types[1], &[whole]))[0];
                assert_eq!(got, rounded, "{:?} {:?} {types:?}, element {at}", product.extents, product.operation);
            }
        }
    }
}

/// Sums of 32 bytes of products are rounded towards zero, and so is every sum of sums.
#[test]
fn products_of_matrices_keep_their_bound() {
    for (types, m, k, n) in [([PtxType::F32; 2], 33, 100, 66), ([PtxType::Bf16, PtxType::F32], 20, 520, 10)] {
        for tile in WarpTile::ALL {
            let extents = MatmulExtents::of_one([m, k, n]);
            let product = Product { extents, operation: NT, types, tile };
            let operands = product.operands(false);
            let got = product.run(Epilogue::PLAIN, [1.0, 0.0], &operands, &vec![f32::NAN; m * n], &[]);
            let steps = (k * types[0].bytes() as usize).div_ceil(32) as f64;
            for (at, got) in got.into_iter().enumerate() {
                let [exact, magnitude] =
                    [product.products(&operands, at).sum::<f64>(), product.products(&operands, at).map(f64::abs).sum()];
                let bound = (steps + 1.0) * 2f64.powi(-23) * magnitude;
                assert!((f64::from(got) - exact).abs() <= bound, "{types:?}, element {at}: {got}, not {exact}");
            }
        }
    }
}

#[test]
fn what_products_on_warps_do_not_take_is_an_error() {
    let new = |operation, types, target| WarpGemm::new(operation, types, WarpTile::SMALL, Epilogue::PLAIN, target);
    let kernel = new(NT, HALVES, Target::Sm80).unwrap();
    let extents = |m, k, n| MatmulExtents::of_one([m, k, n]);
    for (m, k, n) in [(8, 12, 8), (8, 8, 9)] {
        assert!(matches!(kernel.launch(extents(m, k, n), [1.0, 0.0]), Err(Error::Shape { .. })), "{m} x {k} x {n}");
    }
    assert!(kernel.launch(extents(3, 8, 2), [1.0, 0.0]).is_ok());
    assert!(matches!(kernel.launch(extents(1 << 31, 8, 8), [1.0, 0.0]), Err(Error::Limit { .. })));
    let nn = Matmul { transpose_a: false, transpose_b: false };
    assert!(matches!(new(nn, [PtxType::F32; 2], Target::Sm80), Err(Error::Parameter { .. })));
    assert!(matches!(new(NT, [PtxType::F64, PtxType::F32], Target::Sm80), Err(Error::Parameter { .. })));
    assert!(matches!(new(NT, HALVES, Target::Sm75), Err(Error::Parameter { .. })));
    assert_eq!(WarpTile::for_extents(extents(4096, 64, 4096), 132), WarpTile::LARGE);
    assert_eq!(WarpTile::for_extents(extents(16, 4096, 4096), 132), WarpTile::SMALL);
}
