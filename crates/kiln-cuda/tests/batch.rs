//! Batches: recorded operations run once, together, and again without being compiled again.

mod support;

use kiln_cuda::{CudaCommandBatch, CudaDeviceOptions};
use kiln_ir::op::reference::Random;
use kiln_ir::op::{Elementwise, Matmul, QuantMatmul, Reduce, Reduction, RmsNorm};
use kiln_ir::{Data, Error, Operand, QuantFormat, Record};

#[test]
fn a_chain_is_one_kernel_and_gives_what_its_operations_give() {
    let Some(device) = support::device() else { return };
    let mut batch = CudaCommandBatch::new(device.clone());
    let x: Vec<f32> = (0..1001).map(|i| i as f32 / 100.0 - 5.0).collect();
    let bias: Vec<f32> = (0..7).map(|i| i as f32).collect();
    let a = batch.upload(&x, &[143, 7]).unwrap();
    let b = batch.upload(&bias, &[7]).unwrap();
    let sum = batch.add(a, b).unwrap();
    let scaled = batch.scale(sum, 0.5).unwrap();
    let y = batch.relu(scaled).unwrap();
    assert_eq!((batch.num_operations(), batch.num_tensors()), (3, 5));
    let results = batch.run(&[y]).unwrap();
    assert_eq!(device.compiled_kernels(), 1, "three functions, one kernel");
    let expected: Vec<f32> = x.iter().enumerate().map(|(i, x)| (0.5 * (x + bias[i % 7])).max(0.0)).collect();
    assert_eq!(results[0].as_data().f32(), expected);
}

/// The second execution is captured, the third replays what was.
#[test]
fn an_execution_is_replayed_with_new_inputs() {
    let Some(device) = support::device() else { return };
    let mut batch = CudaCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0; 12], &[3, 4]).unwrap();
    let w = batch.upload(&[0.5; 8], &[4, 2]).unwrap();
    let y = batch.matmul(x, w).unwrap();
    let y = batch.exp(y).unwrap();
    let y = batch.ln(y).unwrap();
    let sum = batch.sum(y).unwrap();
    let mut kernels = 0;
    for turn in 1..=6 {
        let value = turn as f32;
        batch.set(x, &[value; 12]).unwrap();
        if turn > 1 {
            assert!(matches!(batch.read(y), Err(Error::Parameter { .. })), "not computed from the new inputs yet");
            assert_eq!(device.compiled_kernels(), kernels);
        }
        batch.execute(&[y, sum]).unwrap();
        kernels = device.compiled_kernels();
        for got in batch.read(y).unwrap() {
            assert!((got - 2.0 * value).abs() < 1e-5, "turn {turn}: {got}");
        }
        assert!((batch.read(sum).unwrap()[0] - 12.0 * value).abs() < 1e-4, "turn {turn}");
        assert_eq!(batch.read(x).unwrap(), [value; 12]);
    }
}

/// A norm that nothing but products of few rows reads is computed in their kernels, and apart where it is wanted itself.
#[test]
fn products_that_normalise_their_rows_give_what_norm_and_product_give() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(81);
    for (format, rows) in [(QuantFormat::Q4K, 1), (QuantFormat::Q5K, 3), (QuantFormat::Q6K, 4), (QuantFormat::Q8_0, 2)]
    {
        let (n, k) = (200, 2048);
        let mut batch = CudaCommandBatch::new(device.clone());
        let x = batch.upload(&random.uniforms(rows * k, -1.0, 1.0), &[rows, k]).unwrap();
        let gamma = batch.upload(&random.uniforms(k, 0.5, 1.5), &[k]).unwrap();
        let normal = batch.record(RmsNorm::new(1e-5), &[x, gamma]).unwrap();
        let products = [0, 1].map(|_| {
            let mut blocks = vec![0; format.bytes(n * k).unwrap()];
            format.encode(&random.uniforms(n * k, -1.0, 1.0), &mut blocks).unwrap();
            let weights = batch.upload_blocks(&blocks, &[n, k], format).unwrap();
            batch.record(QuantMatmul { format }, &[normal, weights]).unwrap()
        });
        let kernels = device.compiled_kernels();
        let together = batch.run(&products).unwrap();
        assert_eq!(device.compiled_kernels(), kernels + 1, "{format:?}: one kernel for the norm and both products");
        let apart = batch.run(&[products[0], products[1], normal]).unwrap();
        for (found, expected) in together.iter().zip(&apart) {
            let (found, expected) = (found.as_data().f32(), expected.as_data().f32());
            let largest = expected.iter().fold(0.0f32, |most, x| most.max(x.abs()));
            for (found, expected) in found.iter().zip(expected) {
                assert!((found - expected).abs() <= 1e-4 * largest, "{format:?}: {found} for {expected}");
            }
        }
    }
}

#[test]
fn tensors_stay_on_the_device_and_what_is_held_is_left_alone() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap()).unwrap();
    let doubled = device.run(&Elementwise::scale(2.0).into(), &[&x]).unwrap().remove(0);
    let mut batch = CudaCommandBatch::new(device.clone());
    let input = batch.import(&doubled).unwrap();
    let y = batch.scale(input, 10.0).unwrap();
    batch.execute(&[y]).unwrap();
    let held = batch.tensor(y).unwrap();
    batch.set(input, &[1.0; 4]).unwrap();
    batch.execute(&[y]).unwrap();
    assert_eq!(batch.read(y).unwrap(), [10.0; 4]);
    assert_eq!(held.read().unwrap().as_data().f32(), [20.0, 40.0, 60.0, 80.0]);
    assert_eq!(doubled.read().unwrap().as_data().f32(), [2.0, 4.0, 6.0, 8.0]);
    assert_eq!(doubled.reshape(&[4]).unwrap().shape().dims(), [4]);
    assert!(doubled.reshape(&[5]).is_err());
}

#[test]
fn what_is_not_needed_is_dropped_and_results_may_be_inputs() {
    let Some(device) = support::device() else { return };
    let mut batch = CudaCommandBatch::new(device);
    let x = batch.upload(&[1.0, -1.0], &[2]).unwrap();
    let wanted = batch.abs(x).unwrap();
    let same = batch.abs(x).unwrap();
    let dead = batch.exp(x).unwrap();
    let results = batch.run(&[wanted, x, same, wanted]).unwrap();
    let expected = [[1.0, 1.0], [1.0, -1.0], [1.0, 1.0], [1.0, 1.0]];
    assert!(results.iter().zip(expected).all(|(got, want)| got.as_data().f32() == want), "{results:?}");
    assert!(matches!(batch.read(dead), Err(Error::Parameter { .. })));
}

/// Slots are shared by what is alive at different times, through many launches.
#[test]
fn a_long_batch_reuses_its_memory_and_stays_right() {
    let Some(device) = support::device() else { return };
    let n = 65;
    let identity: Vec<f32> = (0..n * n).map(|i| if i % (n + 1) == 0 { 1.0 } else { 0.0 }).collect();
    let start: Vec<f32> = (0..n * n).map(|i| (i % 17) as f32).collect();
    let mut batch = CudaCommandBatch::new(device);
    let w = batch.upload(&identity, &[n, n]).unwrap();
    let mut x = batch.upload(&start, &[n, n]).unwrap();
    for _ in 0..100 {
        x = batch.matmul_with(x, w, Matmul { transpose_a: false, transpose_b: true }).unwrap();
        x = batch.transpose(x).unwrap();
    }
    for _ in 0..3 {
        assert_eq!(batch.run(&[x]).unwrap()[0].as_data().f32(), start, "an even number of transposes");
    }
}

#[test]
fn what_cannot_be_set_is_refused() {
    let Some(device) = support::device() else { return };
    let mut batch = CudaCommandBatch::new(device.clone());
    let x = batch.upload(&[1.0, 2.0], &[2]).unwrap();
    let y = batch.neg(x).unwrap();
    assert!(matches!(batch.set(y, &[0.0, 0.0]), Err(Error::Parameter { .. })));
    assert!(matches!(batch.set(x, &[0.0]), Err(Error::Length { .. })));
    assert!(matches!(batch.set_data(x, Data::U32(&[1, 2])), Err(Error::Type { .. })));
    let other = CudaCommandBatch::new(device);
    assert!(matches!(other.read(x), Err(Error::ForeignTensor { .. })));
    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), [-1.0, -2.0]);
}

#[test]
fn slices_of_tensors_are_tensors() {
    let Some(device) = support::device() else { return };
    let data: Vec<f32> = (0..35).map(|i| i as f32).collect();
    let x = device.upload(&Operand::f32(&data, &[7, 5]).unwrap()).unwrap();
    for range in [0..7, 4..6, 1..3, 6..6, 0..1] {
        let slice = x.slice(range.clone()).unwrap();
        let wanted = &data[5 * range.start..5 * range.end];
        assert_eq!(slice.read().unwrap().as_data().f32(), wanted, "{range:?}");
        let sum = device.run(&Reduce::all(Reduction::Sum).into(), &[&slice]).unwrap();
        assert_eq!(sum[0].read().unwrap().as_data().f32(), [wanted.iter().sum::<f32>()], "{range:?}");
    }
    #[allow(clippy::reversed_empty_ranges)]
    for range in [5..8, 3..2] {
        assert!(matches!(x.slice(range), Err(Error::View { .. })));
    }
}

#[test]
fn kernels_are_measured_where_it_was_asked_for() {
    let Some(device) = support::device_with(&CudaDeviceOptions::new().profile()) else { return };
    let mut batch = CudaCommandBatch::new(device);
    let x = batch.upload(&vec![1.0; 1 << 20], &[1024, 1024]).unwrap();
    let y = batch.matmul(x, x).unwrap();
    let y = batch.softmax(y).unwrap();
    assert!(matches!(batch.profile(), Err(Error::Parameter { .. })));
    batch.execute(&[y]).unwrap();
    let profile = batch.profile().unwrap();
    let names: Vec<&str> = profile.kernels.iter().map(|kernel| kernel.name.as_str()).collect();
    // If the product is split among blocks, its parts are summed in between.
    let [product, .., softmax] = names[..] else { panic!("{names:?}") };
    assert!(product.starts_with("gemm_nn") && softmax.starts_with("softmax") && names.len() <= 3, "{names:?}");
    assert!(profile.kernels.iter().all(|kernel| kernel.nanoseconds > 0.0), "{profile}");
    let device = support::device().unwrap();
    let mut batch = CudaCommandBatch::new(device);
    let x = batch.upload(&[1.0], &[1]).unwrap();
    let y = batch.neg(x).unwrap();
    batch.execute(&[y]).unwrap();
    assert!(matches!(batch.profile(), Err(Error::Unavailable { .. })));
}

/// Blocks that stay for the work of others are as many as the device holds at once, and their number is reported.
#[test]
fn measured_grids_are_those_that_ran() {
    // Rows so long that clusters hold them.
    const DIMS: [usize; 2] = [256, 1 << 16];
    let Some(device) = support::device_with(&CudaDeviceOptions::new().profile()) else { return };
    if device.target() != "sm_90a" {
        return eprintln!("skipped: on {} no blocks stay", device.target());
    }
    let multiprocessors = device.info().multiprocessors;
    let mut batch = CudaCommandBatch::new(device);
    let x = batch.upload(&vec![1.0; DIMS[0] * DIMS[1]], &DIMS).unwrap();
    let y = batch.softmax(x).unwrap();
    batch.execute(&[y]).unwrap();
    let profile = batch.profile().unwrap();
    let [softmax] = &profile.kernels[..] else { panic!("{profile}") };
    assert!(softmax.grid[0] <= softmax.resident_blocks.unwrap() * multiprocessors, "{profile}");
}

/// What NVML tells, where it is there, is of this device and plausible.
#[test]
fn a_device_tells_how_it_is() {
    let Some(device) = support::device() else { return };
    match device.readings().unwrap() {
        None => eprintln!("skipped: NVML is not there, or does not know {}", device.info()),
        Some(readings) => {
            println!("{readings:?}");
            assert!(readings.temperature.is_none_or(|degrees| (1..130).contains(&degrees)), "{readings:?}");
            assert!(readings.utilization.is_none_or(|percent| percent <= 100), "{readings:?}");
            assert!(readings.clock.is_none_or(|mhz| mhz < 10_000), "{readings:?}");
        }
    }
}
