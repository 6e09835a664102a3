//! Known faults of GPU libraries. Each case gives the right result or a typed error, leaves what the host
//! has as it was, and leaves the device usable:
//!
//! - sums that end with a workgroup, and extents that are no multiple of a vector or exceed one dimension of a grid;
//! - a weight that means one thing for one row and another for several, or that is missing, or too large, and reported by
//!   silence;
//! - empty operands, results that are too short or too long, kernels larger than their image;
//! - attention whose threads race for a row of scores, at lengths and head sizes that a workgroup does not divide;
//! - rows of an earlier, larger problem that are computed again because the memory is large enough for them;
//! - parameters that a kernel has a constant of its own for;
//! - infinities and NaN in extremes;
//! - kernels compiled, memory taken and devices opened again for each call;
//! - tensors of other or bygone batches, taken for whatever has their number now;
//! - data that arrive earlier or later than the work that they were sent for;
//! - memory that is used again while work in flight reads it, or work that can run again needs it; threads and devices that share a process; devices that go.

mod support;

use kiln_ir::op::reference::{Input, Random};
use kiln_ir::op::{Attention, Convolve2d, ConvolveTranspose2d, Matmul, Padding, Reduce, Reduction, Resize2d, Rope};
use kiln_ir::{Error, Operand, Operations, Record, Result};
use kiln_wgpu::device_copy::DeviceCopy;
use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuMatmulCache, GpuTensor};

/// Checks that a device still computes.
fn still_usable(device: &GpuDevice) {
    let got = GpuBackend::on(device.clone()).scale(&[1.0, -2.0, 3.0], 2.0).unwrap();
    assert_eq!(got, [2.0, -4.0, 6.0]);
}

#[test]
fn a_dot_product_in_a_batch_is_whole_for_any_length() {
    let Some(device) = support::device() else { return };
    for n in [1, 4, 255, 256, 257, 1000, 65_537, 100_000] {
        let mut batch = GpuCommandBatch::new(device.clone());
        let ones = batch.upload(&vec![1.0; n], &[n]).unwrap();
        let twos = batch.scale(ones, 2.0).unwrap();
        let product = batch.dot(ones, twos).unwrap();
        assert_eq!(batch.run(&[product]).unwrap()[0].as_data().f32(), [2.0 * n as f32], "{n} elements");
    }
}

#[test]
fn inner_extents_that_are_no_whole_vectors_count_to_their_end() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    for k in (1..=10).chain([63, 65, 127, 129, 1023]) {
        let (ones, x) = (vec![1.0; 3 * k], vec![1.0; k]);
        assert_eq!(backend.matvec(&ones, &x, 3, k).unwrap(), [k as f32; 3], "k = {k}");
        for m in [1, 2, 5] {
            assert_eq!(backend.matmul(&vec![1.0; m * k], &ones, m, k, 3).unwrap(), vec![k as f32; 3 * m], "{m}, {k}");
        }
        let mut cache = GpuMatmulCache::new(device.clone());
        cache.upload_weight("w", &ones, 3, k).unwrap();
        assert_eq!(cache.matmul("w", &x).unwrap(), [k as f32; 3], "k = {k}");
    }
}

#[test]
fn more_rows_than_one_dimension_of_a_grid_has() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let (rows, k) = (65_535 * 2 + 7, 3);
    let a: Vec<f32> = (0..rows * k).map(|i| (i / k % 1000) as f32).collect();
    let want: Vec<f32> = (0..rows).map(|i| (3 * (i % 1000)) as f32).collect();
    assert!(backend.matvec(&a, &[1.0; 3], rows, k).unwrap() == want);
    assert!(backend.matmul(&a, &[1.0; 3], rows, k, 1).unwrap() == want);
    // Like the last layer of a language model: one row, and an output for each token of the vocabulary.
    let mut cache = GpuMatmulCache::new(device);
    cache.upload_weight("words", &a, rows, k).unwrap();
    assert!(cache.matmul("words", &[1.0; 3]).unwrap() == want);
    let three = cache.matmul("words", &[1.0; 9]).unwrap();
    assert!(three.chunks(rows).all(|row| row == want));
    let indices: Vec<u32> = (0..rows as u32).rev().collect();
    let turned = backend.gather(&a, k, &indices).unwrap();
    assert!(turned.chunks(k).eq(a.chunks(k).rev()));
}

#[test]
fn a_weight_that_is_missing_or_too_large_is_told_of() {
    let Some(device) = support::device() else { return };
    let mut cache = GpuMatmulCache::new(device.clone());
    let x = [1.0, 2.0];
    let mut out = [7.0, 7.0];
    assert!(matches!(cache.matmul_into("gate", &x, &mut out), Err(Error::Unavailable { .. })));
    assert_eq!(out, [7.0, 7.0]);
    // Zeros that the system has reserved and no code has touched.
    let large = kiln_ir::zeros(1 << 31).unwrap();
    let refused = cache.upload_weight("embedding", &large, 1 << 16, 1 << 15).unwrap_err();
    assert!(matches!(refused, Error::Limit { .. } | Error::OutOfMemory { .. }), "{refused}");
    assert!(cache.weight("embedding").is_none());
    assert!(matches!(cache.matmul("embedding", &vec![0.0; 1 << 15]), Err(Error::Unavailable { .. })));
    cache.upload_weight("gate", &[3.0, 4.0], 1, 2).unwrap();
    assert_eq!(cache.matmul("gate", &x).unwrap(), [11.0]);
}

#[test]
fn operands_without_elements() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    assert_eq!(backend.dot(&[], &[]).unwrap(), 0.0);
    assert_eq!(backend.sum(&[]).unwrap(), 0.0);
    assert_eq!(backend.max_element(&[]).unwrap(), f32::NEG_INFINITY);
    assert!(matches!(backend.argmax(&[]), Err(Error::Shape { .. })));
    assert_eq!(backend.matmul(&[], &[1.0; 6], 0, 2, 3).unwrap(), [0.0; 0]);
    assert_eq!(backend.matmul(&[], &[], 2, 0, 3).unwrap(), [0.0; 6]);
    assert_eq!(backend.matvec(&[], &[], 4, 0).unwrap(), [0.0; 4]);
    assert_eq!(backend.softmax(&[], 5).unwrap(), [0.0; 0]);
    assert_eq!(backend.gather(&[1.0, 2.0], 2, &[]).unwrap(), [0.0; 0]);
    assert!(matches!(backend.gather(&[], 2, &[0]), Err(Error::Index { .. })));
    assert!(matches!(backend.gather(&[], 2, &[]), Ok(rows) if rows.is_empty()));
    let nothing = device.upload(&Operand::vector(&[])).unwrap();
    assert!(nothing.read().unwrap().as_data().f32().is_empty());
    still_usable(&device);
}

#[test]
fn lengths_that_do_not_match_leave_the_result_alone() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let (a, b) = ([1.0, 2.0, 3.0], [4.0, 5.0, 6.0]);
    for mut out in [vec![9.0; 2], vec![9.0; 4]] {
        let before = out.clone();
        let refused = |done: Result<()>| matches!(done, Err(Error::Length { .. } | Error::Shape { .. }));
        assert!(refused(backend.add_into(&a, &b, &mut out)));
        assert!(refused(backend.matmul_into(&a, &b, 3, 1, 3, &mut out)));
        assert!(refused(backend.softmax_into(&a, 3, &mut out)));
        assert_eq!(out, before);
    }
    assert!(matches!(backend.add(&a, &b[..2]), Err(Error::Shape { .. })));
    assert!(backend.dot(&a, &b[..2]).is_err());
    assert!(matches!(backend.matmul(&a, &b, 2, 2, 2), Err(Error::Length { .. })));
    assert!(matches!(backend.matmul(&a, &b, usize::MAX, 2, 2), Err(Error::Overflow { .. })));
    assert!(matches!(backend.softmax(&a, 2), Err(Error::Shape { .. })));
    assert_eq!(backend.add(&a, &b).unwrap(), [5.0, 7.0, 9.0]);
}

#[test]
fn a_kernel_larger_than_its_picture() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let (picture, kernel) = ([1.0, 2.0, 3.0, 4.0], [1.0; 9]);
    let valid = backend.convolve2d(&picture, (2, 2), &kernel, (3, 3), Padding::Valid);
    assert!(matches!(valid, Err(Error::Shape { .. })));
    // Surrounded by zeros, the kernel sees the whole image at every position.
    assert_eq!(backend.convolve2d(&picture, (2, 2), &kernel, (3, 3), Padding::Same).unwrap(), [10.0; 4]);
    assert!(backend.convolve2d(&picture, (2, 2), &[], (0, 0), Padding::Same).is_err());
    // Rows and columns beyond 32 bits.
    for (padding, stride, dilation) in [
        (Padding::around(1 << 40, 1), (1 << 40, 1), (1, 1)),
        (Padding::around(1, 1 << 31), (1, 1 << 31), (1, 1)),
        (Padding::Same, (1, 1), (1, 1 << 33)),
    ] {
        let op = Convolve2d { padding, stride, dilation, groups: 1 };
        let error = backend.convolve2d_with(&picture, &[2, 2], &kernel, &[3, 3], op).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{op:?}: {error}");
    }
    let (stride, padding) = ((1 << 33, 1), Padding::Sides { top: 1 << 33, bottom: 0, left: 0, right: 0 });
    let op = ConvolveTranspose2d { padding, stride, ..ConvolveTranspose2d::default() };
    let error = backend.convolve_transpose2d(&picture, &[2, 2], &kernel, &[3, 3], op).unwrap_err();
    assert!(matches!(error, Error::Limit { .. }), "{error}");
    // Coordinates that they do not count.
    let row = vec![1.0; 65_537];
    for op in [Resize2d::nearest((1, 65_539)), Resize2d::bilinear((1, 65_539))] {
        let error = backend.resize2d(&row, &[1, 65_537], op).unwrap_err();
        assert!(matches!(error, Error::Limit { .. }), "{op:?}: {error}");
    }
    let smaller = backend.max_pool2d(&picture, &[2, 2], (3, 3), (1, 1));
    assert!(matches!(smaller, Err(Error::Shape { .. })));
    still_usable(&device);
}

#[test]
fn attention_at_lengths_and_head_sizes_that_no_workgroup_divides() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let mut random = Random::new(77);
    let shapes = [1, 8, 9, 33, 40, 65].into_iter().flat_map(|s| [64, 80, 96, 112, 129, 160].map(|d| (s, d)));
    for (s, d) in shapes.chain([(2065, 16)]) {
        let mut tensor = || Input::f32(random.uniforms(2 * s * d, -0.7, 0.7), &[2, s, d]);
        support::conform(&backend, Attention::causal(), vec![tensor(), tensor(), tensor()]);
    }
}

#[test]
fn one_row_after_many_is_one_row() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let (columns, gamma) = (96, vec![2.0; 96]);
    let many = vec![3.0; 2048 * columns];
    assert_eq!(backend.rms_norm(&many, &gamma, 0.0).unwrap(), vec![2.0; 2048 * columns]);
    // The memory of the many rows is free now, and still contains them.
    let before = device.statistics();
    let one = backend.rms_norm(&many[..columns], &gamma, 0.0).unwrap();
    let spent = device.statistics() - before;
    assert_eq!(one, vec![2.0; columns]);
    assert_eq!((spent.dispatches, spent.downloaded_bytes), (1, 4 * columns as u64));
}

#[test]
fn parameters_reach_the_kernel() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    // Pairs (1, 0) are rotated by an angle: the result is its cosine and its sine.
    let x = batch.upload(&[1.0, 1.0, 0.0, 0.0], &[1, 4]).unwrap();
    let thetas = [10_000.0f32, 1_000_000.0, 4.0];
    let turned =
        thetas.map(|theta| batch.rope(x, Rope { theta: theta.into(), position: 2, ..Rope::default() }).unwrap());
    for (theta, result) in thetas.iter().zip(batch.run(&turned).unwrap()) {
        let angles = [2.0, 2.0 / theta.sqrt()];
        let want = [angles[0].cos(), angles[1].cos(), angles[0].sin(), angles[1].sin()];
        for (got, want) in result.as_data().f32().iter().zip(want) {
            assert!((got - want).abs() < 1e-5, "theta {theta}: {got}, not {want}");
        }
    }
    let mut scaled = |factor| {
        let y = batch.scale(x, factor).unwrap();
        batch.run(&[y]).unwrap()[0].as_data().f32()[0]
    };
    assert_eq!([scaled(2.0), scaled(3.0)], [2.0, 3.0]);
    // One compiled kernel serves every eps: rows of 1 and 3 have variance 1.
    let backend = GpuBackend::on(device.clone());
    let normed = |eps: f32| backend.layer_norm(&[1.0, 3.0, 1.0, 3.0], &[1.0; 4], &[0.0; 4], eps).unwrap();
    normed(0.5);
    let kernels = device.compiled_kernels();
    for eps in [0.0f32, 3.0, 8.0, 1e-5] {
        let want = 1.0 / (1.0 + eps).sqrt();
        for (got, want) in normed(eps).iter().zip([-want, want, -want, want]) {
            assert!((got - want).abs() < 1e-6, "eps {eps}: {got}, not {want}");
        }
    }
    assert_eq!(device.compiled_kernels(), kernels);
}

#[test]
fn sums_have_the_same_bits_each_time() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(78);
    for n in [1000, 65_537, 3_000_001] {
        let (x, y) = (random.uniforms(n, -1.0, 1.0), random.uniforms(n, -1.0, 1.0));
        let bits = |device: &GpuDevice| {
            let backend = GpuBackend::on(device.clone());
            let matrix = Operand::f32(&x[..n / 8 * 8], &[n / 8, 8]).unwrap();
            let columns = backend.run(&Reduce::along(Reduction::Sum, 0).into(), &[matrix]).unwrap().remove(0);
            let single = [backend.sum(&x), backend.dot(&x, &y), backend.norm_l2(&x), backend.mean(&y)];
            let single = single.map(Result::unwrap);
            single.iter().chain(columns.as_data().f32()).map(|v| v.to_bits()).collect::<Vec<_>>()
        };
        let first = bits(&device);
        for _ in 0..5 {
            assert_eq!(bits(&device), first, "{n} elements");
        }
        let Some(other) = support::device() else { return };
        assert_eq!(bits(&other), first, "{n} elements, on another device of the same adapter");
    }
}

#[test]
fn extremes_know_infinities_and_nan() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let (low, high) = (f32::NEG_INFINITY, f32::INFINITY);
    for n in [1, 256, 257, 100_000] {
        assert_eq!(backend.max_element(&vec![low; n]).unwrap(), low);
        assert_eq!(backend.min_element(&vec![high; n]).unwrap(), high);
        assert_eq!(backend.norm_linf(&vec![low; n]).unwrap(), high);
        for at in [0, n / 2, n - 1] {
            let mut x = vec![1.0; n];
            x[at] = f32::NAN;
            assert!(backend.max_element(&x).unwrap().is_nan() && backend.min_element(&x).unwrap().is_nan());
            assert_eq!(backend.argmax(&x).unwrap(), at as u32);
        }
    }
}

#[test]
fn a_call_made_again_makes_nothing_anew() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let call = |x: f32| backend.matmul(&[x; 12], &[1.0; 20], 3, 4, 5).unwrap();
    assert_eq!(call(1.0), [4.0; 15]);
    let (kernels, before) = (device.compiled_kernels(), device.statistics());
    assert_eq!(call(2.0), [8.0; 15]);
    let spent = device.statistics() - before;
    assert_eq!((device.compiled_kernels(), spent.submissions, spent.uploads, spent.downloads), (kernels, 1, 2, 1));
    // Other extents, the same kernels.
    let long: Vec<f32> = backend.scale(&[1.0; 1000], 2.0).unwrap();
    let kernels = device.compiled_kernels();
    assert_eq!(backend.scale(&long, 4.0).unwrap()[999], 8.0);
    assert_eq!(backend.scale(&[1.0; 77], 4.0).unwrap(), [4.0; 77]);
    assert_eq!(device.compiled_kernels(), kernels);
}

#[test]
fn tensors_of_other_batches_and_of_bygone_ones() {
    let Some(device) = support::device() else { return };
    let mut batch = GpuCommandBatch::new(device.clone());
    let stale = {
        let mut bygone = GpuCommandBatch::new(device.clone());
        bygone.upload(&[1.0, 2.0], &[2]).unwrap()
    };
    // A tensor of the new batch has the number that the stale one had.
    let x = batch.upload(&[5.0, 6.0], &[2]).unwrap();
    assert_eq!(x.index(), stale.index());
    let foreign = |error: Option<Error>| matches!(error, Some(Error::ForeignTensor { .. }));
    assert!(foreign(batch.add(x, stale).err()));
    assert!(foreign(batch.run(&[stale]).err()));
    assert!(foreign(batch.read(stale).err()));
    assert!(foreign(batch.set(stale, &[1.0, 2.0]).err()));
    assert!(foreign(batch.tensor(stale).err()));
    assert!(foreign(batch.ty(stale).err()));
    let y = batch.relu(x).unwrap();
    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), [5.0, 6.0]);
}

#[test]
fn data_are_those_of_the_moment_they_were_sent() {
    let Some(device) = support::device() else { return };
    let n = 1 << 16;
    let mut host = vec![1.0; n];
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&host, &[n]).unwrap();
    let y = batch.mish(x).unwrap();
    let y = batch.softmax(y).unwrap();
    host.fill(-1.0);
    // Without waiting between: each execution must see the uploads before it, and none after it.
    let mut held: Vec<GpuTensor> = Vec::new();
    for round in 0..8 {
        let mut ramp = vec![0.0; n];
        ramp[round] = 100.0;
        batch.set(x, &ramp).unwrap();
        ramp.fill(50.0);
        batch.execute(&[y]).unwrap();
        held.push(batch.tensor(y).unwrap());
    }
    for (round, tensor) in held.iter().enumerate() {
        let result = tensor.read().unwrap();
        let greatest = result.as_data().f32().iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).unwrap();
        assert_eq!((greatest.0, *greatest.1), (round, 1.0));
    }
    assert!(host.iter().all(|v| *v == -1.0));
}

#[test]
fn memory_that_work_in_flight_reads_is_not_written() {
    let Some(device) = support::device() else { return };
    let n = 1 << 18;
    let (ones, mut results) = (vec![1.0f32; n], Vec::new());
    for round in 0..12 {
        let mut batch = GpuCommandBatch::new(device.clone());
        let x = batch.upload(&ones, &[n]).unwrap();
        let mut y = batch.scale(x, round as f32).unwrap();
        for _ in 0..8 {
            let sum = batch.sum(x).unwrap();
            let share = batch.div(x, sum).unwrap();
            y = batch.add(y, share).unwrap();
        }
        batch.execute(&[y]).unwrap();
        results.push(batch.tensor(y).unwrap());
        // The batch is dropped while it runs; the next one takes the memory of its inputs and writes to it.
        drop(batch);
        let noise = device.upload(&Operand::f32(&vec![-7.0; n], &[n]).unwrap()).unwrap();
        drop(noise);
    }
    for (round, tensor) in results.iter().enumerate() {
        let want = round as f32 + 8.0 / n as f32;
        let result = tensor.read().unwrap();
        assert!(result.as_data().f32().iter().all(|v| (v - want).abs() < 1e-4), "round {round}");
    }
}

#[test]
fn memory_between_kernels_is_nobody_elses_while_they_can_run_again() {
    let Some(device) = support::device() else { return };
    let (rows, columns) = (7, 100);
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&vec![2.0; rows * columns], &[rows, columns]).unwrap();
    let square = batch.mul(x, x).unwrap();
    let sums = batch.sum_axis(square, 1).unwrap();
    batch.prepare(&[sums]).unwrap();
    let mut softmax = {
        let long = device.upload(&Operand::f32(&vec![1.0; 1 << 18], &[1, 1 << 18]).unwrap()).unwrap();
        device.prepare(&kiln_ir::op::Softmax.into(), &[&long]).unwrap()
    };
    // As large as the intermediate results of the batch and the softmax, and some more.
    let held: Vec<GpuTensor> = [4, 8, 16, 64, 256, rows * columns, 1024, 2048, 4096]
        .map(|n| device.upload(&Operand::f32(&vec![5.0; n], &[n]).unwrap()).unwrap())
        .into();
    for _ in 0..2 {
        assert_eq!(batch.run(&[sums]).unwrap()[0].as_data().f32(), vec![400.0; rows]);
        softmax.run().unwrap();
    }
    for tensor in held {
        assert!(
            tensor.read().unwrap().as_data().f32().iter().all(|v| *v == 5.0),
            "{} elements",
            tensor.shape().numel()
        );
    }
}

#[test]
fn two_threads_record_compile_and_read_on_one_device_while_others_come_and_go() {
    let Some(device) = support::device() else { return };
    std::thread::scope(|scope| {
        for thread in 0..2u32 {
            let device = device.clone();
            scope.spawn(move || {
                let mut cache = GpuMatmulCache::new(device.clone());
                let factor = (thread + 1) as f32;
                cache.upload_weight("w", &vec![factor; 33 * 17], 33, 17).unwrap();
                for n in 1..20 {
                    let mut batch = GpuCommandBatch::new(device.clone());
                    let x = batch.upload(&vec![factor; 100 * n], &[n, 100]).unwrap();
                    let square = batch.mul(x, x).unwrap();
                    let y = batch.sum_axis(square, 1).unwrap();
                    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), vec![100.0 * factor * factor; n]);
                    assert_eq!(cache.matmul("w", &vec![1.0; 17 * n]).unwrap(), vec![17.0 * factor; 33 * n]);
                }
            });
        }
        scope.spawn(|| {
            for _ in 0..5 {
                let Some(other) = support::device() else { return };
                still_usable(&other);
                other.destroy();
            }
        });
    });
    still_usable(&device);
}

#[test]
fn a_device_destroyed_in_the_middle_of_a_batch_takes_nothing_else_along() {
    let (Some(device), Some(other)) = (support::device(), support::device()) else { return };
    let host: Vec<f32> = (0..1 << 16).map(|i| i as f32).collect();
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&host, &[1 << 16]).unwrap();
    let y = batch.scale(x, 2.0).unwrap();
    batch.execute(&[y]).unwrap();
    // Recorded, and one half executed.
    let z = batch.scale(y, 2.0).unwrap();
    device.destroy();
    let lost = |error: Option<Error>| matches!(error, Some(Error::DeviceLost { .. }));
    assert!(lost(batch.run(&[z]).err()) && lost(batch.execute(&[z]).err()) && lost(batch.read(y).err()));
    assert!(lost(device.finish().err()) && lost(device.upload(&Operand::vector(&host)).err()));
    assert!(host.iter().enumerate().all(|(i, v)| *v == i as f32));
    drop(batch);
    still_usable(&other);
    // The same work from the same data on another device.
    let mut again = GpuCommandBatch::new(other);
    let x = again.upload(&host, &[1 << 16]).unwrap();
    let y = again.scale(x, 4.0).unwrap();
    assert!(again.run(&[y]).unwrap()[0].as_data().f32().iter().zip(&host).all(|(y, x)| *y == 4.0 * x));
}

#[test]
fn more_than_can_be_had_leaves_what_there_is() {
    let Some(device) = support::device() else { return };
    let n = 1 << 20;
    let host = vec![1.5; n];
    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&host, &[n]).unwrap();
    let column = batch.import(&device.upload(&Operand::f32(&host, &[n, 1]).unwrap()).unwrap()).unwrap();
    let row = batch.upload(&host, &[1, n]).unwrap();
    let outer = batch.matmul_with(column, row, Matmul::default()).unwrap();
    let small = batch.scale(x, 2.0).unwrap();
    let refused = batch.run(&[outer, small]).unwrap_err();
    assert!(matches!(refused, Error::Limit { .. } | Error::OutOfMemory { .. }), "{refused}");
    // The batch itself continues with work that fits, from earlier uploads.
    assert_eq!(batch.run(&[small]).unwrap()[0].as_data().f32()[n - 1], 3.0);
    assert_eq!(batch.read(x).unwrap(), host);
    still_usable(&device);
}

#[test]
fn a_copy_within_the_device_is_counted_and_ends_with_it() {
    let Some(device) = support::device() else { return };
    let tensor = device.upload(&Operand::vector(&[1.0; 300])).unwrap();
    let mut copy = DeviceCopy::of(&tensor).unwrap();
    assert_eq!(copy.bytes(), 1200);
    let before = device.statistics();
    copy.run().and_then(|()| copy.run()).unwrap();
    device.finish().unwrap();
    let spent = device.statistics() - before;
    assert_eq!((spent.submissions, spent.dispatches, spent.uploads, spent.downloads), (2, 2, 0, 0));
    device.destroy();
    assert!(matches!(copy.run(), Err(Error::DeviceLost { .. })));
}
