//! Several devices at once: here two of one adapter, which is all that a machine without GPUs has.

mod support;

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Dot, Elementwise, LayerNorm, Matmul, Matvec, Op, Reduce, Reduction, TopK};
use kiln_ir::{Buffer, Data, Error, Operand, Operations, Record, Result, Shape, TensorType};
use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuDevicePool, GpuPoolBatch, GpuPoolTensor};

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 1009) as f32 / 512.0 - 1.0).collect()
}

#[test]
fn large_work_is_shared_and_gives_what_one_device_gives() {
    let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
    let pool = GpuDevicePool::of(vec![one.clone(), two.clone()]).unwrap();
    let alone = GpuBackend::on(one.clone());
    let (rows, columns) = (2051, 1024);
    let x = values(rows * columns);
    let gamma = values(columns);
    let x = Operand::f32(&x, &[rows, columns]).unwrap();
    let w = values(columns * 300);
    let long = Operand::vector(x.data().f32());
    let reductions = Reduction::ALL.iter().filter(|&&reduction| reduction != Reduction::NormL2);
    let reductions = reductions.map(|&reduction| (Op::from(Reduce::all(reduction)), vec![x]));
    let stack = Operand::f32(&x.data().f32()[..7 * 512 * 512], &[7, 512, 512]).unwrap();
    let cases: [(Op, Vec<Operand<'_>>); 10] = [
        (Matmul { transpose_a: true, transpose_b: false }.into(), vec![stack, stack]),
        (Dot.into(), vec![long, long]),
        (Dot.into(), vec![x, x]),
        (Matvec::default().into(), vec![x, Operand::vector(&gamma)]),
        (Elementwise::add().into(), vec![Operand::vector(&gamma), x]),
        (Elementwise::add().into(), vec![x, x]),
        (LayerNorm::new(1e-5).into(), vec![x, Operand::vector(&gamma), Operand::vector(&gamma)]),
        (Reduce::along(Reduction::ArgMax, 1).into(), vec![x]),
        (TopK { k: 3 }.into(), vec![x]),
        (Matmul::default().into(), vec![x, Operand::f32(&w, &[columns, 300]).unwrap()]),
    ];
    for (op, operands) in cases.into_iter().chain(reductions) {
        let before = [one.statistics().dispatches, two.statistics().dispatches];
        let shared = pool.run(&op, &operands).unwrap();
        let after = [one.statistics().dispatches, two.statistics().dispatches];
        assert!(before[0] < after[0] && before[1] < after[1], "{}: both took part", op.name());
        let whole = alone.run(&op, &operands).unwrap();
        for (shared, whole) in shared.iter().zip(&whole) {
            match (shared, whole) {
                // The number of rows determines how a row is split, and so the order of its sums.
                (Buffer::F32(shared), Buffer::F32(whole)) => {
                    let close = |(a, b): (&f32, &f32)| a == b || (a - b).abs() <= 1e-3 + 1e-5 * b.abs();
                    assert!(shared.iter().zip(whole).all(close), "{}", op.name());
                }
                _ => assert!(shared == whole, "{}", op.name()),
            }
        }
    }
}

#[test]
fn places_count_from_the_first_element_and_nan_comes_first() {
    let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
    let pool = GpuDevicePool::of(vec![one, two]).unwrap();
    let n = 1 << 21;
    let mut x = vec![0.0; n];
    x[n - 5] = 2.0;
    x[n - 3] = 2.0;
    assert_eq!(pool.argmax(&x).unwrap() as usize, n - 5);
    assert_eq!(pool.argmin(&x).unwrap(), 0);
    assert_eq!((pool.sum(&x).unwrap(), pool.mean(&x).unwrap()), (4.0, 4.0 / n as f32));
    x[n / 2 + 9] = f32::NAN;
    x[n - 2] = f32::NAN;
    assert_eq!((pool.argmax(&x).unwrap() as usize, pool.argmin(&x).unwrap() as usize), (n / 2 + 9, n / 2 + 9));
    assert!(pool.max_element(&x).unwrap().is_nan() && pool.sum(&x).unwrap().is_nan());
}

#[test]
fn batches_go_to_the_device_with_the_least_in_flight() {
    let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
    let pool = GpuDevicePool::of(vec![one, two]).unwrap();
    let (mut first, busy) = pool.batch(100).unwrap();
    let (mut second, also) = pool.batch(10).unwrap();
    for batch in [&mut first, &mut second] {
        let x = batch.upload(&[1.0, 2.0], &[2]).unwrap();
        let y = batch.scale(x, 2.0).unwrap();
        assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), [2.0, 4.0]);
    }
    assert!(first.import(&second.device().upload(&Operand::vector(&[1.0])).unwrap()).is_err(), "two devices");
    drop(also);
    let (third, _) = pool.batch(1).unwrap();
    assert!(second.import(&third.device().upload(&Operand::vector(&[1.0])).unwrap()).is_ok(), "the same again");
    drop(busy);
}

#[test]
fn small_work_goes_to_the_device_with_the_least_in_flight() {
    let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
    let pool = GpuDevicePool::of(vec![one.clone(), two.clone()]).unwrap();
    assert_eq!(pool.devices().count(), 2);
    let busy = pool.least_loaded(1 << 40).unwrap();
    let before = busy.device().statistics();
    assert_eq!(pool.scale(&[1.0, 2.0], 2.0).unwrap(), [2.0, 4.0]);
    assert_eq!(busy.device().statistics(), before, "the other one did it");
    drop(busy);
    one.destroy();
    for _ in 0..4 {
        assert_eq!(pool.scale(&[1.0, 2.0], 2.0).unwrap(), [2.0, 4.0], "a lost device gets no work");
    }
    two.destroy();
    assert!(matches!(pool.scale(&[1.0], 2.0), Err(Error::DeviceLost { .. })));
}

#[test]
fn what_a_device_was_lost_in_is_done_again_by_the_others() {
    let n = 1 << 21;
    let x = values(n);
    for microseconds in [0, 200, 1000, 3000, 6000] {
        let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
        let pool = GpuDevicePool::of(vec![one.clone(), two]).unwrap();
        let doubled = std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(std::time::Duration::from_micros(microseconds));
                one.destroy();
            });
            pool.scale(&x, 2.0).unwrap()
        });
        assert!(doubled.iter().zip(&x).all(|(y, x)| *y == 2.0 * x), "lost after {microseconds} us");
    }
}

#[test]
fn a_pool_of_no_device_is_refused() {
    assert!(matches!(GpuDevicePool::with(&[]), Err(Error::Parameter { .. })));
}

#[test]
fn small_work_of_several_threads_is_fewer_submissions() {
    let Some(device) = support::device() else { return };
    let pool = GpuDevicePool::of(vec![device.clone()]).unwrap();
    let (threads, calls) = (8, 60);
    let table = values(64);
    let before = device.statistics();
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (pool, table) = (&pool, &table);
            scope.spawn(move || {
                for round in 0..calls {
                    let x = (thread * calls + round) as f32;
                    match thread % 4 {
                        0 => assert_eq!(pool.add(&[x; 5], &[1.0; 5]).unwrap(), [x + 1.0; 5]),
                        1 => assert_eq!(pool.sum(&[x, 1.0, 2.0]).unwrap(), x + 3.0),
                        2 => assert_eq!(pool.matmul(&[x, 1.0], &[1.0, 2.0], 1, 2, 1).unwrap(), [x + 2.0]),
                        _ => {
                            let rows = [round as u32 % 32, 7];
                            let row = |row: u32| &table[2 * row as usize..][..2];
                            assert_eq!(pool.gather(table, 2, &rows).unwrap(), [row(rows[0]), row(rows[1])].concat());
                            let outside = pool.gather(table, 2, &[3, 32]);
                            assert!(matches!(outside, Err(Error::Index { position: 1, index: 32, .. })), "{outside:?}");
                        }
                    }
                }
            });
        }
    });
    let spent = device.statistics() - before;
    let work = (threads * calls + threads / 4 * calls) as u64;
    assert!(spent.dispatches >= work && spent.submissions < work, "{work} operations: {spent}");
    println!("{work} operations: {spent}");
}

/// A layer of 64 x 96 with softmax: its batch, its input and its result.
fn layer(pool: &GpuDevicePool, weights: &GpuPoolTensor) -> Result<(GpuPoolBatch, TensorId, TensorId)> {
    let mut batch = GpuPoolBatch::new(pool);
    let x = batch.input(TensorType::f32(Shape::new(&[16, 64])?));
    let w = batch.import(weights)?;
    let y = batch.matmul(x, w)?;
    let y = batch.relu(y)?;
    let y = batch.softmax(y)?;
    Ok((batch, x, y))
}

/// The result of such a layer on one device.
fn alone(device: &GpuDevice, weights: &[f32], x: &[f32]) -> Vec<f32> {
    let mut batch = GpuCommandBatch::new(device.clone());
    let (x, w) = (batch.upload(x, &[16, 64]).unwrap(), batch.upload(weights, &[64, 96]).unwrap());
    let y = batch.matmul(x, w).unwrap();
    let y = batch.relu(y).unwrap();
    let y = batch.softmax(y).unwrap();
    batch.run(&[y]).unwrap()[0].as_data().f32().to_vec()
}

#[test]
fn batches_of_several_threads_give_the_bits_of_one_device() {
    let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
    let (inputs, w) = (values(16 * 64 + 20), values(64 * 96));
    let expected: Vec<Vec<f32>> = (0..20).map(|from| alone(&one, &w, &inputs[from..][..16 * 64])).collect();
    let pool = GpuDevicePool::of(vec![one.clone(), two.clone()]).unwrap();
    let weights = pool.upload(&Operand::f32(&w, &[64, 96]).unwrap()).unwrap();
    let before = [one.statistics().dispatches, two.statistics().dispatches];
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                let (mut batch, x, y) = layer(&pool, &weights).unwrap();
                batch.prepare(&[y]).unwrap();
                for (from, expected) in expected.iter().enumerate() {
                    let given = [(x, Data::F32(&inputs[from..][..16 * 64]))];
                    assert!(batch.run_with(&given, &[y]).unwrap()[0].as_data().f32() == expected, "input {from}");
                }
            });
        }
    });
    let after = [one.statistics().dispatches, two.statistics().dispatches];
    assert!(before[0] < after[0] && before[1] < after[1], "both took part");
}

#[test]
fn batches_that_a_device_is_lost_in_are_repeated() {
    let (inputs, w) = (values(16 * 64), values(64 * 96));
    for microseconds in [0, 300, 1000, 3000, 9000, 20000] {
        let (Some(one), Some(two)) = (support::device(), support::device()) else { return };
        let expected = alone(&two, &w, &inputs);
        let pool = GpuDevicePool::of(vec![one.clone(), two.clone()]).unwrap();
        let weights = pool.upload(&Operand::f32(&w, &[64, 96]).unwrap()).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    let (mut batch, x, y) = layer(&pool, &weights).unwrap();
                    for round in 0..20 {
                        let found = batch.run_with(&[(x, Data::F32(&inputs))], &[y]);
                        let found = found.unwrap_or_else(|error| panic!("round {round}: {error:?}"));
                        assert!(found[0].as_data().f32() == expected, "lost after {microseconds} us, round {round}");
                    }
                });
            }
            std::thread::sleep(std::time::Duration::from_micros(microseconds));
            one.destroy();
        });
        two.destroy();
        let (mut batch, x, y) = layer(&pool, &weights).unwrap();
        let lost = batch.run_with(&[(x, Data::F32(&inputs))], &[y]);
        assert!(matches!(lost, Err(Error::DeviceLost { .. })), "{lost:?}");
    }
}
