//! Kernels of kiln-ptx launched by hand: one that is written here, and those of bf16, which no operation asks for.
#![allow(unsafe_code)] // launches by hand

mod support;

use kiln_cuda::{CudaDevice, CudaTensor};
use kiln_ir::op::Bound;
use kiln_ir::op::reference::{Random, check};
use kiln_ir::op::{Attention, Matmul, Op};
use kiln_ir::{Data, Error, Operand, Shape};
use kiln_ptx::kernels::attention::WarpGroupAttention;
use kiln_ptx::kernels::gemm::{Epilogue, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::{Argument, Kernel, Launch, PtxKernel, PtxType};

/// `y = a x + y`.
struct Axpy;

impl Kernel for Axpy {
    fn name(&self) -> String {
        "axpy".into()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [128, 1, 1], |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer::<f32>("y"));
            let (n, a) = (k.parameter::<u32>("n"), k.parameter::<f32>("a"));
            let i = k.mad(k.ctaid_x(), 128, k.tid_x());
            k.if_(k.lt(i, n), || k.st(y.index(i), k.fma(a, k.ld(x.index(i)), k.ld(y.index(i)))));
        })
    }
}

#[test]
fn a_kernel_of_ones_own_runs_as_often_as_it_is_launched() {
    let Some(device) = support::device() else { return };
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let [x, y] = [x, vec![1.0; 1000]].map(|data| device.upload(&Operand::vector(&data)).unwrap());
    let launch = |n: u32, a: f32| Launch {
        grid: [n.div_ceil(128), 1, 1],
        arguments: vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n), Argument::F32(a)],
    };
    // SAFETY: it guards its accesses by the length of both tensors, and this thread alone uses them.
    let mut axpy = unsafe { device.prepare_kernel(&Axpy, launch(1000, 0.5), &[&x, &y]) }.unwrap();
    (0..3).for_each(|_| axpy.run().unwrap());
    let got = y.read().unwrap();
    assert!(got.as_data().f32().iter().enumerate().all(|(i, &y)| y == 1.5 * i as f32 + 1.0));

    let mut misfit = launch(1000, 0.5);
    misfit.arguments.pop();
    // SAFETY: what the kernel does not take is refused before it is launched.
    let mut refused = unsafe { device.prepare_kernel(&Axpy, misfit, &[&x, &y]) }.unwrap();
    assert!(matches!(refused.run(), Err(Error::Driver { .. })));
    let other = support::device().unwrap();
    // SAFETY: it is refused, and not launched.
    let refused = unsafe { other.prepare_kernel(&Axpy, launch(1, 0.5), &[&x, &y]) };
    assert!(matches!(refused, Err(Error::Unavailable { .. })));
}

/// Random numbers that bf16 has, in -1..1.
fn numbers(random: &mut Random, n: usize) -> Vec<f32> {
    random.uniforms(n, -1.0, 1.0).into_iter().map(|x| f32::from_bits(x.to_bits() & 0xffff_0000)).collect()
}

/// As bf16, two to a word.
fn stored(device: &CudaDevice, numbers: &[f32]) -> CudaTensor {
    let word = |pair: &[f32]| pair[0].to_bits() >> 16 | pair[1].to_bits();
    let words: Vec<u32> = numbers.chunks_exact(2).map(word).collect();
    device.upload(&Operand::new(Data::U32(&words), Shape::new(&[words.len()]).unwrap()).unwrap()).unwrap()
}

/// A result of so many f32, which are NaN at first.
fn unwritten(device: &CudaDevice, n: usize) -> CudaTensor {
    device.upload(&Operand::vector(&vec![f32::NAN; n])).unwrap()
}

fn on_warp_groups() -> Option<CudaDevice> {
    let device = support::device()?;
    if device.target() != "sm_90a" {
        eprintln!("left out: {} has no warp groups", device.target());
        return None;
    }
    Some(device)
}

#[test]
fn products_of_bf16_are_within_those_of_exact_sums() {
    let Some(device) = on_warp_groups() else { return };
    let (mut random, multiprocessors) = (Random::new(79), device.info().multiprocessors);
    for [m, k, n] in [[64, 64, 64], [104, 72, 136], [136, 1024, 264], [16, 2048, 256], [2960, 40, 1480]] {
        for transpose_b in [false, true] {
            let op = Matmul { transpose_a: false, transpose_b };
            let dims = [[m, k], if transpose_b { [n, k] } else { [k, n] }];
            let data = dims.map(|[rows, columns]| numbers(&mut random, rows * columns));
            let operands = [0, 1].map(|i: usize| Operand::f32(&data[i], &dims[i]).unwrap());
            let extents = op.extents(&operands[0].shape(), &operands[1].shape()).unwrap();
            let tile = WarpGroupTile::for_extents(extents, PtxType::Bf16, multiprocessors);
            let kernel = WarpGroupGemm::new(op, [PtxType::Bf16, PtxType::F32], tile, Epilogue::PLAIN).unwrap();
            let launch = kernel.launch(extents, [1.0, 0.0], multiprocessors).unwrap();
            let [a, b] = data.each_ref().map(|data| stored(&device, data));
            let c = unwritten(&device, m * n);
            // SAFETY: the launch is for these extents, and this thread alone uses the tensors.
            unsafe { device.prepare_kernel(&kernel, launch, &[&a, &b, &c]) }.unwrap().run().unwrap();
            let expected = Op::from(op).reference(&operands).unwrap();
            let got = c.read().unwrap();
            // Products are exact, and sums are cut off as those of f16 are.
            let bound = Bound::Magnitude(k as f64 / 8.0 + 16.0);
            let accuracy = check(bound, &expected, &[got.as_data()]);
            println!("{op:?} of {m} x {k} x {n}: {accuracy:?}");
            accuracy.unwrap();
        }
    }
}

#[test]
fn attention_of_bf16_rounds_weights_alone() {
    let Some(device) = on_warp_groups() else { return };
    let (mut random, multiprocessors) = (Random::new(83), device.info().multiprocessors);
    for (dims, t) in [([1, 2, 200, 128], 200), ([2, 3, 130, 128], 517), ([1, 4, 384, 64], 384)] {
        for op in [Attention::full(), Attention::causal()] {
            let [batch, heads, _, d] = dims;
            let keys = [batch, heads, t, d];
            let all = [dims, keys, keys];
            let data = all.map(|dims| numbers(&mut random, dims.iter().product()));
            let operands = [0, 1, 2].map(|i: usize| Operand::f32(&data[i], &all[i]).unwrap());
            let [q, k, v] = operands.each_ref().map(|operand| operand.shape());
            let extents = op.extents(&q, &k, &v).unwrap();
            let kernel = WarpGroupAttention::new([PtxType::Bf16, PtxType::F32], d, op.causal).unwrap();
            let launch = kernel.launch(&extents, op.scale(d), multiprocessors).unwrap();
            let [q, k, v] = data.each_ref().map(|data| stored(&device, data));
            let out = unwritten(&device, dims.iter().product());
            // SAFETY: the launch is for these extents, and this thread alone uses the tensors.
            unsafe { device.prepare_kernel(&kernel, launch, &[&q, &k, &v, &out]) }.unwrap().run().unwrap();
            let expected = Op::from(op).reference(&operands).unwrap();
            let got = out.read().unwrap();
            // As that of f16, but for weights: they are rounded by 2⁻⁸ of each at most.
            let bound = Bound::Magnitude(f64::from(1 << 16) + (d + t) as f64 / 8.0 + 34.0);
            let accuracy = check(bound, &expected, &[got.as_data()]);
            println!("{op:?} of {dims:?}, {t} keys: {accuracy:?}");
            accuracy.unwrap();
        }
    }
}
