//! Reductions and operations on rows, longer than the cases of kiln-ir: what is cut into parts, and its order.

mod support;

use kiln_device::conformance::sample;
use kiln_ir::op::reference::{Input, Random};
use kiln_ir::op::{Dot, LayerNorm, LogSoftmax, Op, Reduce, Reduction, RmsNorm, Softmax, TopK};
use kiln_ir::{Buffer, Operand, Operations};
use kiln_wgpu::GpuBackend;

fn backend() -> Option<GpuBackend> {
    support::device().map(GpuBackend::on)
}

/// All of these. A sample that takes every n-th case takes a quarter, and for each number another one.
fn quarter<T>(all: impl IntoIterator<Item = T>, number: usize) -> impl Iterator<Item = T> {
    let step = sample().min(4);
    all.into_iter().skip(number % step).step_by(step)
}

fn words(results: &[Buffer]) -> Vec<u32> {
    let words = results.iter().flat_map(|result| result.as_data().as_bytes().as_chunks().0);
    words.map(|&word| u32::from_ne_bytes(word)).collect()
}

#[test]
fn long_reductions_keep_their_contract() {
    let Some(backend) = backend() else { return };
    let mut random = Random::new(1);
    let shapes: [(&[usize], Option<usize>); 16] = [
        (&[65_537], None),
        (&[3_000_001], None),
        (&[3, 300_001], Some(1)),
        (&[5, 70_000], Some(1)),
        (&[40, 70_004], Some(1)),
        (&[300_000, 3], Some(1)),
        (&[100_000, 16], Some(1)),
        (&[600, 2000], Some(1)),
        (&[100_000, 8], Some(0)),
        (&[2, 30_000, 5], Some(1)),
        (&[3, 7, 50_001], Some(1)),
        (&[3, 7, 50_000], Some(1)),
        (&[500_000, 3], Some(0)),
        (&[1000, 1000], Some(0)),
        (&[2, 1000, 132], Some(1)),
        // More workgroups than one dimension of a grid allows.
        (&[66_000, 2, 65], Some(1)),
    ];
    for (number, (dims, axis)) in shapes.into_iter().enumerate() {
        let uniform = random.uniforms(dims.iter().product(), -1.0, 1.0);
        let factors: Vec<f32> = uniform.iter().map(|v| (1e-3 * v).exp()).collect();
        for &reduction in quarter(Reduction::ALL, number) {
            let data = if reduction == Reduction::Prod { &factors } else { &uniform };
            support::conform(&backend, Reduce { reduction, axis }, vec![Input::f32(data.clone(), dims)]);
        }
    }
    for n in [65_537, 1_000_000, 2_000_003] {
        let inputs = [(); 2].map(|()| Input::f32(random.uniforms(n, -1.0, 1.0), &[n]));
        support::conform(&backend, Dot, inputs.to_vec());
    }
}

#[test]
fn norms_of_any_magnitude() {
    let Some(backend) = backend() else { return };
    let spread = Random::new(2).uniforms(200_000, 0.5, 1.0);
    for factor in [1e-44, 1e-40, 1e-30, 1e-19, 1e-10, 1.0, 1e13, 1e15, 1e30, 3e35] {
        let mut data: Vec<f32> = spread.iter().map(|v| v * factor).collect();
        for other in [None, Some(1e-45), Some(1e-25), Some(3e-3), Some(1e20)] {
            data[70_000] = other.unwrap_or(data[70_000]);
            for (dims, axis) in [(vec![200_000], None), (vec![2, 100_000], Some(1)), (vec![20_000, 10], Some(0))] {
                support::conform(
                    &backend,
                    Reduce { reduction: Reduction::NormL2, axis },
                    vec![Input::f32(data.clone(), &dims)],
                );
            }
        }
    }
}

#[test]
fn norms_of_small_rows_with_large_gammas() {
    let Some(backend) = backend() else { return };
    let spread = Random::new(4).uniforms(400, 0.5, 1.0);
    let scaled = |by: f32, n: usize| spread[..n].iter().map(|v| v * by).collect::<Vec<f32>>();
    for (x, gamma, eps) in [(9e-13, 1e18, 1e-12), (9e-13, 1e8, 1e-12), (1e-30, 1e37, 1e-12), (1e-30, 1e25, 1e10)] {
        let inputs = vec![Input::f32(scaled(x, 400), &[4, 100]), Input::f32(scaled(gamma, 100), &[100])];
        support::conform(&backend, RmsNorm::new(eps), inputs);
    }
}

#[test]
fn positions_are_the_first_across_parts() {
    let Some(backend) = backend() else { return };
    let position =
        |x: &[f32], reduction| words(&backend.run(&Reduce::all(reduction).into(), &[Operand::vector(x)]).unwrap());
    let mut x = vec![-1.0f32; 1_000_000];
    for at in [999_999, 700_001, 300_000, 4096, 4095, 5, 0] {
        x[at] = 2.0;
        assert_eq!(position(&x, Reduction::ArgMax), [at as u32]);
    }
    for at in [999_999, 400_000, 131_072, 131_071, 3] {
        x[at] = f32::NAN;
        assert_eq!(position(&x, Reduction::ArgMax), [at as u32]);
        assert_eq!(position(&x, Reduction::ArgMin), [at as u32]);
    }
    assert_eq!(position(&[f32::INFINITY; 90_000], Reduction::ArgMin), [0]);
    assert_eq!(position(&[f32::NEG_INFINITY; 90_000], Reduction::ArgMax), [0]);
}

#[test]
fn more_than_a_kernel_can_see_at_once_is_reduced_in_pieces() {
    let Some(backend) = backend() else { return };
    // Beyond 128 MiB, the maximum that every device offers.
    let n = 34_000_000;
    let mut x = vec![1.0f32; n];
    x[n - 3] = 5.0;
    let run = |op: Op, dims: &[usize]| words(&backend.run(&op, &[Operand::f32(&x, dims).unwrap()]).unwrap());
    assert_eq!(run(Reduce::all(Reduction::Sum).into(), &[n]), [(n as f32 + 4.0).to_bits()]);
    assert_eq!(run(Reduce::all(Reduction::ArgMax).into(), &[n]), [(n - 3) as u32]);
    let rows = run(Reduce::along(Reduction::Sum, 1).into(), &[n / 1000, 1000]);
    assert_eq!(rows[0], 1000f32.to_bits());
    assert_eq!(rows[n / 1000 - 1], 1004f32.to_bits());
    let columns = run(Reduce::along(Reduction::ArgMax, 0).into(), &[n / 8, 8]);
    assert_eq!(columns, [0, 0, 0, 0, 0, (n / 8 - 1) as u32, 0, 0]);
    let operands = [Operand::vector(&x), Operand::vector(&x)];
    assert_eq!(words(&backend.run(&Dot.into(), &operands).unwrap()), [(n as f32 + 24.0).to_bits()]);
}

#[test]
fn long_rows_keep_their_contract() {
    let Some(backend) = backend() else { return };
    let mut random = Random::new(3);
    let shapes =
        [(2, 300_001), (3, 400_000), (1, 16_388), (700, 3000), (600, 16_500), (70_000, 5), (1, 4099)].into_iter();
    for (number, (rows, columns)) in shapes.enumerate() {
        let dims = [rows, columns];
        let x = Input::f32(random.uniforms(rows * columns, -9.0, 9.0), &dims);
        let far = Input::f32(random.uniforms(rows * columns, 1e6, 1e6 + 100.0), &dims);
        let gamma = Input::f32(random.uniforms(columns, -2.0, 2.0), &[columns]);
        let beta = Input::f32(random.uniforms(columns, -2.0, 2.0), &[columns]);
        let cases: [(Op, Vec<Input>); 5] = [
            (Softmax.into(), vec![x.clone()]),
            (LogSoftmax.into(), vec![x.clone()]),
            (RmsNorm::new(1e-5).into(), vec![x.clone(), gamma.clone()]),
            (LayerNorm::new(1e-5).into(), vec![x, gamma.clone(), beta.clone()]),
            (LayerNorm::new(1e-5).into(), vec![far, gamma, beta]),
        ];
        // With KILN_SAMPLE every other one, and in the next shape the others: each has shapes of one part and of several.
        let step = sample().min(2);
        for (op, inputs) in cases.into_iter().skip(number % step).step_by(step) {
            support::conform(&backend, op, inputs);
        }
    }
}

#[test]
fn long_rows_of_every_kind() {
    let Some(backend) = backend() else { return };
    let n = 200_001;
    let spread = Random::new(4).uniforms(n, -1.0, 1.0);
    let with = |at: usize, value: f32| {
        let mut x = spread.clone();
        x[at] = value;
        x
    };
    let far: Vec<f32> = spread.iter().enumerate().map(|(i, v)| if i < 64 { -1e6 } else { 1e4 + v }).collect();
    let scaled = |factor: f32| spread.iter().map(|v| v * factor).collect::<Vec<f32>>();
    // Parts whose numbers have different scales.
    let steps = [1e-42, 1e-25, 1e-11, 1e-9, 1.0, 1e14, 1e17, 1e37];
    let mixed = |a: usize, b: usize| -> Vec<f32> {
        spread.iter().enumerate().map(|(i, v)| v * if i < n / 2 { steps[a] } else { steps[b] }).collect()
    };
    let mut rows = vec![far, scaled(1e30), scaled(1e-30), scaled(3e38), scaled(1e-40), vec![3.0; n], vec![1e30; n]];
    rows.extend([f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45].map(|value| with(150_000, value)));
    rows.extend((0..steps.len() - 1).flat_map(|a| [mixed(a, a + 1), mixed(a + 1, a)]));
    rows.push((0..n).map(|i| if i < 150_000 { f32::NEG_INFINITY } else { -200.0 }).collect());
    rows.push(vec![f32::NEG_INFINITY; n]);
    let (ones, zeros) = (Input::f32(vec![1.0; n], &[n]), Input::f32(vec![0.0; n], &[n]));
    for x in quarter(rows, 0) {
        let x = Input::f32(x, &[n]);
        support::conform(&backend, Softmax, vec![x.clone()]);
        support::conform(&backend, LogSoftmax, vec![x.clone()]);
        for eps in [0.0, 1e-30, 1e-5] {
            support::conform(&backend, RmsNorm::new(eps), vec![x.clone(), ones.clone()]);
            support::conform(&backend, LayerNorm::new(eps), vec![x.clone(), ones.clone(), zeros.clone()]);
        }
    }
}

#[test]
fn the_greatest_of_long_rows() {
    let Some(backend) = backend() else { return };
    let mut random = Random::new(5);
    let shapes: [(&[usize], &[usize]); 6] = [
        (&[300_000], &[1, 50, 1024, 1025, 5000]),
        (&[3, 9000], &[7, 1000, 2000, 9000]),
        (&[2049], &[1, 1024, 2049]),
        (&[700, 5000], &[3]),
        (&[4096, 64], &[8]),
        (&[2_000_000], &[100]),
    ];
    for (number, (dims, ks)) in shapes.into_iter().enumerate() {
        let n: usize = dims.iter().product();
        let coarse: Vec<f32> = (0..n).map(|_| random.below(9) as f32 - 4.0).collect();
        let ascending: Vec<f32> = (0..n).map(|i| i as f32).collect();
        let mut uniform = random.uniforms(n, -1.0, 1.0);
        for special in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, 1e-45, -1e-45, f32::NAN] {
            let at = random.below(n);
            uniform[at] = special;
        }
        for data in quarter([coarse, ascending, uniform], number % 3) {
            for &k in ks {
                support::conform(&backend, TopK { k }, vec![Input::f32(data.clone(), dims)]);
            }
        }
    }
}
