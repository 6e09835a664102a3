//! Batches: results, what is kept from one execution to the next, and what is refused.

use std::thread;

use kiln_device::waiting::{Waiting, block_on};
use kiln_device::{Batch as BatchOf, GraphRunner, Statistics};
use kiln_ir::graph::{FusionLimits, Graph, NormLimits, TensorId};
use kiln_ir::op::{Custom, Elementwise, Matmul, Op, QuantMatmul, Reduction};
use kiln_ir::{Buffer, DType, Data, DataMut, Error, Operand, QuantFormat, Record, Shape, TensorType, f16};

use crate::support::{
    Batch, HostDevice, HostKernel, HostOptions, Twice, device, elements, numbers, poll_times, upload,
};

/// What the device did since `before`.
fn since(device: &HostDevice, before: Statistics) -> Statistics {
    device.statistics() - before
}

/// `relu(x w) + b` and intermediate results: inputs x, w, b; results product, sum, out.
fn layer(device: &HostDevice) -> (Batch, [TensorId; 3], [TensorId; 3]) {
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&[1.0, 2.0, -1.0, 0.5], &[2, 2]).unwrap();
    let w = batch.upload(&[1.0, 0.0, 2.0, -1.0], &[2, 2]).unwrap();
    let b = batch.upload(&[10.0, 20.0], &[2]).unwrap();
    let product = batch.matmul(x, w).unwrap();
    let sum = batch.add(product, b).unwrap();
    let out = batch.relu(sum).unwrap();
    (batch, [x, w, b], [product, sum, out])
}

const PRODUCT: [f32; 4] = [5.0, -2.0, 0.0, -0.5];
const OUT: [f32; 4] = [15.0, 18.0, 10.0, 19.5];

#[test]
fn results_are_right_whatever_is_fused() {
    for fusion in [FusionLimits::default(), FusionLimits::NONE] {
        let device = HostDevice::new(HostOptions { fusion, ..HostOptions::default() });
        let (mut batch, _, [product, sum, out]) = layer(&device);
        batch.execute(&[out]).unwrap();
        assert_eq!(batch.read(out).unwrap(), OUT);
        batch.execute(&[sum, product, out]).unwrap();
        assert_eq!(
            batch.read_many(&[product, out, sum]).unwrap(),
            [PRODUCT, OUT, OUT].map(|x| Buffer::F32(x.to_vec()))
        );
    }
}

#[test]
fn gates_and_norms_give_the_same_with_and_without_their_products() {
    let format = QuantFormat::Q4_0;
    let norms = NormLimits { rows: 2, formats: &[QuantFormat::Q4_0], many: usize::MAX, multiples: &[] };
    let results = |fusion: FusionLimits| {
        let device = HostDevice::new(HostOptions { fusion, ..HostOptions::default() });
        let mut batch = Batch::new(device);
        let x = batch.upload(&numbers(64), &[2, 32]).unwrap();
        let gamma = batch.upload(&numbers(96)[64..], &[32]).unwrap();
        let normal = batch.rms_norm(x, gamma, 1e-5).unwrap();
        let weights = [0, 7].map(|first| {
            let mut blocks = vec![0; format.bytes(5 * 32).unwrap()];
            format.encode(&numbers(160 + first)[first..], &mut blocks).unwrap();
            batch.upload_blocks(&blocks, &[5, 32], format).unwrap()
        });
        let ends = [x, normal].map(|x| {
            let [gate, up] = weights.map(|weights| batch.record(QuantMatmul { format }, &[x, weights]).unwrap());
            batch.swiglu(gate, up).unwrap()
        });
        batch.execute(&ends).unwrap();
        ends.map(|end| batch.read(end).unwrap())
    };
    let expected = results(FusionLimits::NONE);
    assert!(expected.iter().flatten().all(|y| y.is_finite()) && expected[0] != expected[1]);
    for norms in [None, Some(norms)] {
        assert_eq!(results(FusionLimits { gates: 2, norms, ..FusionLimits::default() }), expected);
    }
}

#[test]
fn steps_of_branches_give_the_same_side_by_side() {
    let results = |round: usize| {
        let fusion = FusionLimits { round, ..FusionLimits::default() };
        let device = HostDevice::new(HostOptions { fusion, ..HostOptions::default() });
        let mut batch = Batch::new(device.clone());
        let x = batch.upload(&numbers(24), &[4, 6]).unwrap();
        let mut ends = Vec::new();
        for branch in 0..5 {
            let w = batch.upload(&numbers(36 + branch)[branch..], &[6, 6]).unwrap();
            let product = batch.matmul(x, w).unwrap();
            let soft = batch.softmax(product).unwrap();
            let again = batch.matmul(soft, w).unwrap();
            ends.push(batch.transpose(again).unwrap());
        }
        let all = batch.concat(&ends, 0).unwrap();
        let before = device.statistics();
        batch.execute(&[all]).unwrap();
        (batch.read(all).unwrap(), since(&device, before).dispatches)
    };
    let (expected, one_by_one) = results(1);
    assert!(expected.iter().any(|&x| x != expected[0]));
    // The driver joins the products of a round: five that read x, and five that read results of branches.
    for (round, fewer) in [(2, 4), (4, 6), (16, 8)] {
        assert_eq!(results(round), (expected.clone(), one_by_one - fewer), "{round}");
    }
}

#[test]
fn a_chain_of_functions_is_one_kernel() {
    let device = device();
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(12), &[3, 4]).unwrap();
    let row = batch.upload(&[1.0, -2.0, 3.0, -4.0], &[4]).unwrap();
    let sum = batch.add(x, row).unwrap();
    let scaled = batch.scale(sum, 0.5).unwrap();
    let (kept, out) = (batch.relu(scaled).unwrap(), batch.mul(scaled, x).unwrap());
    let before = device.statistics();
    batch.execute(&[kept, out]).unwrap();
    assert_eq!(since(&device, before).dispatches, 1);
    let scaled = |i: usize| (numbers(12)[i] + [1.0, -2.0, 3.0, -4.0][i % 4]) * 0.5;
    let expected: Vec<f32> = (0..12).map(|i| scaled(i).max(0.0)).collect();
    assert_eq!(batch.read(kept).unwrap(), expected);
    let expected: Vec<f32> = (0..12).map(|i| scaled(i) * numbers(12)[i]).collect();
    assert_eq!(batch.read(out).unwrap(), expected);
}

#[test]
fn f16_and_quantised_inputs_are_computed_as_the_numbers_that_they_stand_for() {
    let mut batch = Batch::new(device());
    let halves: Vec<f16> = numbers(6).into_iter().map(f16::from_f32).collect();
    let x = batch.upload_operand(&Operand::elements(&halves, &[2, 3]).unwrap()).unwrap();
    let y = batch.upload(&numbers(6), &[2, 3]).unwrap();
    // Both operands are cast, each into scratch memory of its own, in addition to the scratch memory of the reduction.
    let sum = batch.add(x, x).unwrap();
    let product = batch.matmul_with(x, x, Matmul { transpose_b: true, ..Matmul::default() }).unwrap();
    let expected = batch.matmul_with(y, y, Matmul { transpose_b: true, ..Matmul::default() }).unwrap();
    let total = batch.sum(x).unwrap();
    let narrow = batch.cast(y, DType::F16).unwrap();
    batch.execute(&[sum, product, expected, total, narrow]).unwrap();
    assert_eq!(batch.read(sum).unwrap(), numbers(6).iter().map(|x| 2.0 * x).collect::<Vec<_>>());
    assert_eq!(batch.read(product).unwrap(), batch.read(expected).unwrap());
    assert_eq!(batch.read(total).unwrap(), [numbers(6).iter().sum::<f32>()]);
    assert_eq!(batch.read_buffer(narrow).unwrap(), Buffer::F16(halves));
    assert!(matches!(batch.read(narrow), Err(Error::Type { .. })));

    let mut one_block = vec![0; QuantFormat::Q8_0.block_bytes()];
    one_block[..2].copy_from_slice(&f16::from_f32(0.5).to_le_bytes());
    one_block[2..].fill(3);
    let blocks = batch.upload_blocks(&one_block, &[1, 32], QuantFormat::Q8_0).unwrap();
    let values = batch.dequantize(blocks, QuantFormat::Q8_0).unwrap();
    batch.execute(&[values]).unwrap();
    assert_eq!(batch.read(values).unwrap(), [1.5; 32]);
}

/// The requirement of every backend: what was uploaded once is never sent again because another result is wanted.
#[test]
fn another_set_of_wanted_results_uploads_nothing() {
    let device = device();
    let (mut batch, [x, ..], [product, sum, out]) = layer(&device);
    let before = device.statistics();
    batch.execute(&[out]).unwrap();
    for wanted in [&[product, sum][..], &[sum], &[out, x], &[]] {
        batch.execute(wanted).unwrap();
        wanted.iter().for_each(|&id| drop(batch.read(id).unwrap()));
        batch.run(wanted).unwrap();
    }
    let done = since(&device, before);
    assert_eq!((done.uploads, done.uploaded_bytes, done.upload_buffers), (0, 0, 0));
}

#[test]
fn four_sets_of_wanted_results_stay_ready() {
    let device = device();
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&numbers(8), &[8]).unwrap();
    let results: Vec<TensorId> = (1..=5).map(|n| batch.scale(x, n as f32).unwrap()).collect();
    let made = |batch: &mut Batch, at: usize| {
        let before = device.statistics();
        batch.execute(&[results[at]]).unwrap();
        assert_eq!(batch.read(results[at]).unwrap()[0], numbers(1)[0] * (at + 1) as f32);
        since(&device, before).bind_groups
    };
    assert_eq!([0, 1, 2, 3].map(|at| made(&mut batch, at)), [1; 4]);
    assert_eq!([3, 0, 1, 2].map(|at| made(&mut batch, at)), [0; 4]);
    // The fifth replaces the least recently used one.
    assert_eq!(made(&mut batch, 4), 1);
    assert_eq!([0, 1, 2, 4].map(|at| made(&mut batch, at)), [0; 4]);
    assert_eq!(made(&mut batch, 3), 1);
}

#[test]
fn running_again_makes_nothing() {
    let device = device();
    let (mut batch, [x, ..], [_, _, out]) = layer(&device);
    batch.execute(&[out]).unwrap();
    let (before, allocations, compilations) = (device.statistics(), device.allocations(), device.compilations());
    for _ in 0..3 {
        batch.set(x, &[0.0; 4]).unwrap();
        batch.execute(&[out]).unwrap();
    }
    assert_eq!(since(&device, before).made(), 0);
    assert_eq!((device.allocations(), device.compilations()), (allocations, compilations));
}

#[test]
fn equal_operations_run_once_and_dead_ones_never() {
    let device = device();
    let mut batch = Batch::new(device.clone());
    let x = batch.upload(&[1.0, 4.0], &[2]).unwrap();
    let (a, b) = (batch.sqrt(x).unwrap(), batch.sqrt(x).unwrap());
    batch.exp(x).unwrap();
    let before = device.statistics();
    batch.execute(&[a, b]).unwrap();
    assert_eq!(since(&device, before).dispatches, 1);
    assert_eq!((batch.read(a).unwrap(), batch.read(b).unwrap()), (vec![1.0, 2.0], vec![1.0, 2.0]));
}

#[test]
fn wanted_tensors_may_be_inputs_and_may_repeat() {
    for host_results in [false, true] {
        let device = HostDevice::new(HostOptions { host_results, ..HostOptions::default() });
        let (mut batch, [x, _, b], [product, _, out]) = layer(&device);
        let all = [out, b, out, x, product, b];
        let results = batch.run(&all).unwrap();
        let expected = [&OUT[..], &[10.0, 20.0], &OUT, &[1.0, 2.0, -1.0, 0.5], &PRODUCT, &[10.0, 20.0]];
        assert_eq!(results, expected.map(|x| Buffer::F32(x.to_vec())));
        batch.execute(&all).unwrap();
        assert_eq!(batch.read_many(&all).unwrap(), results);
        // Only inputs are wanted, so nothing runs.
        assert_eq!(batch.run(&[b, b]).unwrap(), [results[1].clone(), results[1].clone()]);
        assert!(batch.run(&[]).unwrap().is_empty());
    }
}

#[test]
fn results_are_read_into_slices_that_fit() {
    for host_results in [false, true] {
        let device = HostDevice::new(HostOptions { host_results, ..HostOptions::default() });
        let (mut batch, _, [product, _, out]) = layer(&device);
        let (mut a, mut b) = ([0.0; 4], [0.0; 4]);
        batch.run_into(&[out, product], &mut [DataMut::F32(&mut a), DataMut::F32(&mut b)]).unwrap();
        assert_eq!((a, b), (OUT, PRODUCT));
        // Reading a result leaves it resident.
        assert_eq!(batch.read(out).unwrap(), OUT);
        let one = batch.run_into(&[out, product], &mut [DataMut::F32(&mut a)]);
        assert!(matches!(one, Err(Error::Arity { .. })), "{one:?}");
        let short = batch.run_into(&[out], &mut [DataMut::F32(&mut a[..3])]);
        assert!(matches!(short, Err(Error::Length { .. })), "{short:?}");
        let other = batch.run_into(&[out], &mut [DataMut::U32(&mut [0; 4])]);
        assert!(matches!(other, Err(Error::Type { .. })), "{other:?}");
    }
}

#[test]
fn leaves_are_computed_by_default() {
    let (mut batch, ..) = layer(&device());
    let other = batch.upload(&[3.0], &[1]).and_then(|x| batch.neg(x)).unwrap();
    batch.execute_all().unwrap();
    assert_eq!(batch.read(other).unwrap(), [-3.0]);
    assert_eq!(batch.num_operations(), 4);
    assert_eq!(batch.num_tensors(), 8);
}

#[test]
fn operations_recorded_later_run_too() {
    let (mut batch, _, [product, _, out]) = layer(&device());
    batch.execute(&[out]).unwrap();
    let later = batch.neg(product).unwrap();
    assert_eq!(batch.read(out).unwrap(), OUT, "recording leaves the results alone");
    batch.execute(&[later]).unwrap();
    assert_eq!(batch.read(later).unwrap(), PRODUCT.map(|x| -x));
}

#[test]
fn set_writes_in_place_and_results_of_old_inputs_are_gone() {
    let device = device();
    let (mut batch, [x, ..], [product, _, out]) = layer(&device);
    batch.execute(&[product, out]).unwrap();
    let allocations = device.allocations();
    batch.set(x, &[1.0, 0.0, 0.0, 1.0]).unwrap();
    assert!(matches!(batch.read(product), Err(Error::Parameter { .. })));
    assert_eq!(batch.read(x).unwrap(), [1.0, 0.0, 0.0, 1.0]);
    let before = device.statistics();
    batch.execute(&[product, out]).unwrap();
    assert_eq!(batch.read(product).unwrap(), [1.0, 0.0, 2.0, -1.0]);
    let done = since(&device, before);
    assert_eq!((done.bind_groups, device.allocations()), (0, allocations), "bound to the same memory");
}

#[test]
fn set_leaves_an_input_alone_that_others_hold() {
    let device = device();
    let (mut batch, [x, ..], [product, _, out]) = layer(&device);
    batch.execute(&[product, out]).unwrap();
    let held = batch.tensor(x).unwrap();
    let before = device.statistics();
    batch.set(x, &[1.0, 0.0, 0.0, 1.0]).unwrap();
    batch.execute(&[product, out]).unwrap();
    assert_eq!(batch.read(product).unwrap(), [1.0, 0.0, 2.0, -1.0]);
    assert_eq!(elements(&held), [1.0, 2.0, -1.0, 0.5]);
    let done = since(&device, before);
    assert!(done.bind_groups > 0 && done.uploaded_bytes == 16, "{done}");
    // The new memory belongs to this batch: the next write is in place.
    let before = device.statistics();
    batch.set(x, &[0.0; 4]).unwrap();
    batch.execute(&[product, out]).unwrap();
    assert_eq!((batch.read(product).unwrap(), since(&device, before).bind_groups), (vec![0.0; 4], 0));
}

#[test]
fn set_refuses_what_does_not_fit() {
    let (mut batch, [x, ..], [product, _, out]) = layer(&device());
    batch.execute(&[out]).unwrap();
    assert!(matches!(batch.set(x, &[0.0; 3]), Err(Error::Length { .. })));
    assert!(matches!(batch.set_data(x, Data::U32(&[0; 4])), Err(Error::Type { .. })));
    assert!(matches!(batch.set(product, &[0.0; 4]), Err(Error::Parameter { op: "set", .. })));
    assert_eq!(batch.read(out).unwrap(), OUT, "a refused replacement changes nothing");
}

#[test]
fn two_batches_share_weights_without_an_upload() {
    let device = device();
    let weight = upload(&device, &[1.0, 0.0, 2.0, -1.0], &[2, 2]).unwrap();
    let live = device.memory_use().live;
    let mut batches = [Batch::new(device.clone()), Batch::new(device.clone())];
    let before = device.statistics();
    let ids = batches.each_mut().map(|batch| batch.import(&weight).unwrap());
    assert_eq!((since(&device, before).uploads, device.memory_use().live), (0, live));
    // Replacing it in one batch does not change the other.
    batches[0].set(ids[0], &[5.0; 4]).unwrap();
    for (batch, id) in batches.iter_mut().zip(ids) {
        let x = batch.upload(&[1.0, 1.0], &[1, 2]).unwrap();
        let product = batch.matmul(x, id).unwrap();
        batch.execute(&[product]).unwrap();
        let expected = if batch.read(id).unwrap()[0] == 5.0 { [10.0, 10.0] } else { [3.0, -1.0] };
        assert_eq!(batch.read(product).unwrap(), expected);
    }
    assert_eq!(elements(&weight), [1.0, 0.0, 2.0, -1.0]);
    // The batches keep the weight alive after its handle is dropped.
    drop(weight);
    assert_eq!(batches[1].read(ids[1]).unwrap(), [1.0, 0.0, 2.0, -1.0]);
}

#[test]
fn a_tensor_of_a_batch_never_changes() {
    for host_results in [false, true] {
        let device = HostDevice::new(HostOptions { host_results, ..HostOptions::default() });
        let (mut batch, [x, ..], [product, sum, out]) = layer(&device);
        batch.run(&[product]).unwrap();
        let first = batch.tensor(product).unwrap();
        // The same wanted tensors with other inputs, other wanted tensors, and the first ones again.
        batch.set(x, &[0.0; 4]).unwrap();
        for wanted in [product, product, out, sum, product] {
            batch.execute(&[wanted]).unwrap();
            batch.run(&[wanted]).unwrap();
            assert_eq!(elements(&first), PRODUCT);
        }
        assert_eq!(batch.read(product).unwrap(), [0.0; 4]);
        drop(batch);
        assert_eq!(elements(&first), PRODUCT);
        // Other work reads its memory as an input.
        let mut other = Batch::new(device);
        let y = other.import(&first).and_then(|y| other.neg(y)).unwrap();
        other.execute(&[y]).unwrap();
        assert_eq!(other.read(y).unwrap(), PRODUCT.map(|x| -x));
    }
}

#[test]
fn only_what_the_last_execution_computed_is_read() {
    let (mut batch, [x, ..], [product, sum, out]) = layer(&device());
    let not_computed = |result: Result<Vec<f32>, Error>| {
        assert!(matches!(result, Err(Error::Parameter { op: "read", .. })), "{result:?}");
    };
    not_computed(batch.read(out));
    assert!(batch.tensor(out).is_err() && batch.read_many(&[x, out]).is_err());
    assert_eq!(batch.read(x).unwrap().len(), 4, "an input is always there");
    batch.execute(&[product]).unwrap();
    batch.execute(&[sum]).unwrap();
    not_computed(batch.read(product));
    assert_eq!(batch.read(sum).unwrap(), OUT);
}

#[test]
fn preparing_another_set_leaves_results_alone() {
    let device = device();
    let (mut batch, _, [product, _, out]) = layer(&device);
    batch.execute(&[out]).unwrap();
    batch.prepare(&[product]).unwrap();
    batch.prepare(&[out]).unwrap();
    assert_eq!(batch.read(out).unwrap(), OUT, "nothing else was executed since");
    batch.prepare(&[product]).unwrap();
    assert_eq!(batch.read(out).unwrap(), OUT);
    let before = device.statistics();
    batch.execute(&[product]).unwrap();
    assert_eq!(since(&device, before).made(), 0, "it was prepared");
    assert_eq!(batch.read(product).unwrap(), PRODUCT);
    assert!(batch.read(out).is_err());
}

#[test]
fn tensors_of_other_batches_and_devices_are_refused() {
    let (mut batch, [x, ..], [_, _, out]) = layer(&device());
    let (mut other, [foreign, ..], [foreign_result, ..]) = layer(&device());
    let is_foreign =
        |result: Result<(), Error>| assert!(matches!(result, Err(Error::ForeignTensor { .. })), "{result:?}");
    other.execute(&[foreign_result]).unwrap();
    is_foreign(batch.execute(&[out, foreign]));
    is_foreign(batch.prepare(&[foreign_result]));
    is_foreign(batch.run(&[foreign]).map(drop));
    is_foreign(batch.run_into(&[foreign], &mut [DataMut::F32(&mut [0.0; 4])]));
    is_foreign(batch.read(foreign).map(drop));
    is_foreign(batch.read_many(&[x, foreign]).map(drop));
    is_foreign(batch.tensor(foreign).map(drop));
    is_foreign(batch.set(foreign, &[0.0; 4]));
    is_foreign(batch.ty(foreign).map(drop));
    is_foreign(batch.add(x, foreign).map(drop));
    let refused = batch.import(&other.tensor(foreign).unwrap());
    assert!(
        matches!(&refused, Err(Error::Unavailable { what, .. }) if what.contains("the test device")),
        "{refused:?}"
    );
    batch.execute(&[out]).unwrap();
    assert_eq!(batch.read(out).unwrap(), OUT);
}

#[test]
fn empty_tensors_are_computed() {
    let mut batch = Batch::new(device());
    let nothing = batch.upload(&[], &[0, 3]).unwrap();
    let row = batch.upload(&[1.0, 2.0, 3.0], &[3]).unwrap();
    let wide = batch.upload(&[], &[2, 0]).unwrap();
    let sum = batch.add(nothing, row).unwrap();
    let again = batch.relu(sum).unwrap();
    let zeros = batch.matmul(wide, nothing).unwrap();
    let soft = batch.softmax(nothing).unwrap();
    let total = batch.sum(nothing).unwrap();
    let columns = batch.sum_axis(nothing, 0).unwrap();
    let wanted = [sum, again, zeros, soft, total, columns, nothing];
    let expected = [0, 0, 6, 0, 1, 3, 0].map(|n| Buffer::F32(vec![0.0; n]));
    assert_eq!(batch.run(&wanted).unwrap(), expected);
    batch.execute(&wanted).unwrap();
    assert_eq!(batch.read_many(&wanted).unwrap(), expected);
    batch.set(nothing, &[]).unwrap();
    batch.execute(&[again]).unwrap();
    assert!(batch.tensor(again).unwrap().read().unwrap().as_data().f32().is_empty());
}

#[test]
fn kernels_are_timed_where_that_is_asked_for() {
    let (mut batch, ..) = layer(&device());
    batch.execute_all().unwrap();
    assert!(matches!(batch.profile(), Err(Error::Unavailable { .. })));
    let (mut batch, [x, ..], [product, _, out]) =
        layer(&HostDevice::new(HostOptions { profiles: true, ..HostOptions::default() }));
    assert!(matches!(batch.profile(), Err(Error::Parameter { .. })), "nothing has run");
    batch.execute(&[out]).unwrap();
    let profile = batch.profile().unwrap();
    let names: Vec<&str> = profile.kernels.iter().map(|kernel| &*kernel.name).collect();
    assert_eq!((names, profile.nanoseconds()), (vec!["matmul", "fused"], 3000.0));
    batch.prepare(&[product]).unwrap();
    assert_eq!(batch.profile().unwrap(), profile, "preparing is not executing");
    batch.set(x, &[0.0; 4]).unwrap();
    assert!(matches!(batch.profile(), Err(Error::Parameter { .. })), "an input changed");
    batch.execute(&[out]).unwrap();
    assert_eq!(batch.profile().unwrap(), profile);
    assert!(profile.to_string().contains("total"));
}

#[test]
fn a_batch_is_used_from_asynchronous_code() {
    let options = HostOptions { suspends: true, ..HostOptions::default() };
    let mut batch = BatchOf::new(HostDevice::new(options));
    let read = block_on(async {
        let x = batch.upload_async(&[1.0, -2.0], &[2]).await?;
        let y = batch.relu(x)?;
        batch.execute_async(&[y]).await?;
        batch.read_async(y).await
    });
    assert_eq!(read.unwrap(), [1.0, 0.0]);
}

#[test]
fn futures_may_be_dropped_at_every_poll() {
    for host_results in [false, true] {
        let options = HostOptions { suspends: true, host_results, ..HostOptions::default() };
        let device = HostDevice::new(options);
        let (mut batch, [x, ..], [product, sum, out]) = layer(&device);
        let held = batch.tensor(x).unwrap();
        let mut completed = 0;
        for polls in (0..8).step_by(if cfg!(miri) { 3 } else { 1 }) {
            let _ = poll_times(batch.set_async(x, &[9.0; 4]), polls);
            let _ = poll_times(batch.upload_async(&[1.0; 4], &[4]), polls);
            let _ = poll_times(batch.prepare_async(&[product]), polls);
            let _ = poll_times(batch.execute_async(&[product, out]), polls);
            let _ = poll_times(batch.run_async(&[sum]), polls);
            let _ = poll_times(batch.read_async(x), polls);
            let mut into = [0.0; 4];
            let mut slices = [DataMut::F32(&mut into)];
            completed += usize::from(poll_times(batch.run_into_async(&[out], &mut slices), polls).is_some());
            // Later executions are correct, whatever was dropped.
            batch.set(x, &[1.0, 2.0, -1.0, 0.5]).unwrap();
            batch.execute(&[product, out]).unwrap();
            assert_eq!(batch.read(product).unwrap(), PRODUCT, "{polls} polls");
            assert_eq!(batch.run(&[out]).unwrap()[0], Buffer::F32(OUT.to_vec()), "{polls} polls");
        }
        assert!((1..8).contains(&completed), "{completed} were polled to the end");
        assert_eq!(elements(&held), [1.0, 2.0, -1.0, 0.5]);
        drop((batch, held));
        assert_eq!(device.memory_use().live, 0);
        device.trim();
        assert_eq!(device.allocated(), 0);
    }
}

#[test]
fn threads_run_batches_of_one_device_at_once() {
    let device = device();
    let weight = upload(&device, &numbers(16), &[4, 4]).unwrap();
    let rounds = if cfg!(miri) { 2 } else { 50 };
    let run = |seed: usize| {
        let mut batch = Batch::new(device.clone());
        let w = batch.import(&weight).unwrap();
        let x = batch.upload(&[0.0; 4], &[1, 4]).unwrap();
        let product = batch.matmul(x, w).unwrap();
        let (sum, out) = (batch.add(product, x).unwrap(), batch.sum(product).unwrap());
        let w = numbers(16);
        for round in 0..rounds {
            let row: Vec<f32> = (0..4).map(|i| (seed + round + i) as f32).collect();
            batch.set(x, &row).unwrap();
            let wanted = if round % 3 == 0 { vec![product] } else { vec![product, sum, out] };
            batch.execute(&wanted).unwrap();
            let expected: Vec<f32> = (0..4).map(|c| (0..4).map(|r| row[r] * w[4 * r + c]).sum()).collect();
            assert_eq!(batch.read(product).unwrap(), expected);
            if wanted.len() > 1 {
                assert_eq!(batch.run(&[out]).unwrap(), [Buffer::F32(vec![expected.iter().sum()])]);
            }
        }
    };
    let run = &run;
    thread::scope(|scope| [0, 1000].map(|seed| scope.spawn(move || run(seed))).into_iter().for_each(drop));
    assert_eq!(elements(&weight), numbers(16));
    drop(weight);
    assert_eq!(device.memory_use().live, 0);
}

/// Compiled for all element types that can be uploaded.
#[test]
fn every_element_type_is_uploaded_and_read() {
    let mut batch = Batch::new(device());
    let indices = batch.upload_indices(&[2, 0], &[2]).unwrap();
    let table = batch.upload_operand(&Operand::f32(&numbers(6), &[3, 2]).unwrap()).unwrap();
    let rows = batch.gather(table, indices).unwrap();
    let places = batch.record(Op::from(kiln_ir::op::Reduce::all(Reduction::ArgMax)), &[rows]).unwrap();
    batch.execute(&[rows, places]).unwrap();
    let t = numbers(6);
    assert_eq!(batch.read(rows).unwrap(), [t[4], t[5], t[0], t[1]]);
    let read = batch.read(rows).unwrap();
    let greatest = (0..4).max_by(|&a, &b| read[a].total_cmp(&read[b])).unwrap();
    assert_eq!(batch.read_buffer(places).unwrap(), Buffer::U32(vec![greatest as u32]));
    assert_eq!(batch.read_buffer(indices).unwrap(), Buffer::U32(vec![2, 0]));
}

#[test]
fn a_custom_operation_runs_by_its_kernel_and_is_never_fused() {
    static KNOWN: Twice = Twice::new(Some(HostKernel));
    static UNKNOWN: Twice = Twice::new(None);
    let mut batch = Batch::new(device());
    let x = batch.upload(&[1.0, -2.0], &[2]).unwrap();
    let negated = batch.neg(x).unwrap();
    let twice = batch.record(Custom::new(&KNOWN, &[]).unwrap(), &[negated]).unwrap();
    let out = batch.relu(twice).unwrap();
    batch.execute(&[out]).unwrap();
    assert_eq!(batch.read(out).unwrap(), [0.0, 4.0]);
    let lacking = batch.record(Custom::new(&UNKNOWN, &[]).unwrap(), &[x]).unwrap();
    assert!(matches!(batch.execute(&[lacking]), Err(Error::Unsupported { op: "twice", .. })));
    batch.execute(&[out]).unwrap();
}

/// A graph whose operand is what another one computed: the memory is the same, and executing both again binds nothing.
#[test]
fn a_graph_reads_what_another_one_left_on_the_device() {
    let device = device();
    let mut runner = GraphRunner::new(device.clone());
    let square = TensorType::f32(Shape::new(&[2, 2]).unwrap());
    let (mut first, mut second) = (Graph::new(), Graph::new());
    let x = first.input(square);
    let y = first.record(Elementwise::neg(), &[x]).unwrap();
    let read = second.input(square);
    let z = second.record(Elementwise::scale(2.0), &[read]).unwrap();
    block_on(runner.upload(x, &Operand::f32(&[1.0, 2.0, 3.0, 4.0], &[2, 2]).unwrap())).unwrap();
    let run = |runner: &mut GraphRunner<HostDevice>| {
        let before = device.statistics();
        block_on(runner.execute(&first, &[y], Waiting::Here)).unwrap();
        runner.alias(y, &first, y).unwrap();
        runner.alias(read, &first, y).unwrap();
        block_on(runner.execute(&second, &[z], Waiting::Here)).unwrap();
        let results = [(&first, y), (&second, z)].map(|(graph, id)| {
            let read = block_on(runner.read(graph, &[id], Waiting::Here)).unwrap();
            read[0].as_data().f32().to_vec()
        });
        (results, since(&device, before))
    };
    let (results, _) = run(&mut runner);
    assert_eq!(results, [vec![-1.0, -2.0, -3.0, -4.0], vec![-2.0, -4.0, -6.0, -8.0]]);
    block_on(runner.set(&first, x, Data::F32(&[1.0; 4]))).unwrap();
    let (results, done) = run(&mut runner);
    assert_eq!(results, [vec![-1.0; 4], vec![-2.0; 4]]);
    assert_eq!(done.bind_groups, 0, "both are bound to the memory they had");
    // A result that the caller holds is not overwritten: new memory replaces it for both.
    let held = runner.tensor(&first, y).unwrap();
    block_on(runner.set(&first, x, Data::F32(&[5.0; 4]))).unwrap();
    let (results, _) = run(&mut runner);
    assert_eq!(results, [vec![-5.0; 4], vec![-10.0; 4]]);
    assert_eq!(elements(&held), [-1.0; 4]);
    // Released memory is free.
    drop(held);
    let live = device.memory_use().live;
    runner.release(&[y, read]);
    assert!(device.memory_use().live < live && !runner.has(y) && !runner.has(read) && runner.has(x));
    let stranger = second.input(square);
    assert!(matches!(runner.alias(read, &second, stranger), Err(Error::Parameter { .. })));
}

/// `-x` of four elements.
fn negated() -> (Graph, TensorId, TensorId) {
    let mut graph = Graph::new();
    let x = graph.input(TensorType::f32(Shape::new(&[4]).unwrap()));
    let y = graph.record(Elementwise::neg(), &[x]).unwrap();
    (graph, x, y)
}

#[test]
fn an_input_in_memory_of_a_result_that_the_caller_holds_is_not_written() {
    let mut runner = GraphRunner::new(device());
    let (first, x, y) = negated();
    let (second, read, z) = negated();
    block_on(runner.upload(x, &Operand::vector(&[1.0; 4]))).unwrap();
    block_on(runner.execute(&first, &[y], Waiting::Here)).unwrap();
    let held = runner.tensor(&first, y).unwrap();
    runner.alias(read, &first, y).unwrap();
    block_on(runner.set(&second, read, Data::F32(&[7.0; 4]))).unwrap();
    assert_eq!(elements(&held), [-1.0; 4]);
    block_on(runner.execute(&second, &[z], Waiting::Here)).unwrap();
    let result = block_on(runner.read(&second, &[z], Waiting::Here)).unwrap();
    assert_eq!(result[0].as_data().f32(), [-7.0; 4]);
}

#[test]
fn an_input_that_is_uploaded_again_replaces_the_one_before() {
    let device = device();
    let mut runner = GraphRunner::new(device.clone());
    let (graph, x, y) = negated();
    let read = |runner: &GraphRunner<HostDevice>| block_on(runner.read(&graph, &[y], Waiting::Here));
    let first = upload(&device, &[1.0; 4], &[4]).unwrap();
    runner.import(x, &first).unwrap();
    block_on(runner.execute(&graph, &[y], Waiting::Here)).unwrap();
    assert_eq!(read(&runner).unwrap()[0].as_data().f32(), [-1.0; 4]);
    block_on(runner.upload(x, &Operand::vector(&[2.0; 4]))).unwrap();
    assert!(matches!(read(&runner), Err(Error::Parameter { .. })), "a result of the old input");
    block_on(runner.execute(&graph, &[y], Waiting::Here)).unwrap();
    assert_eq!(read(&runner).unwrap()[0].as_data().f32(), [-2.0; 4]);
    // Its memory is the runner's own.
    let before = device.statistics();
    block_on(runner.set(&graph, x, Data::F32(&[3.0; 4]))).unwrap();
    block_on(runner.execute(&graph, &[y], Waiting::Here)).unwrap();
    assert_eq!(read(&runner).unwrap()[0].as_data().f32(), [-3.0; 4]);
    assert_eq!(since(&device, before).bind_groups, 0);
    assert_eq!(elements(&first), [1.0; 4]);
}

#[test]
fn what_was_not_begun_is_no_execution() {
    let mut runner = GraphRunner::new(device());
    let (mut graph, x, y) = negated();
    let next = graph.input(graph.ty(y).unwrap());
    for input in [x, next] {
        block_on(runner.upload(input, &Operand::vector(&[1.0; 4]))).unwrap();
    }
    let begun = block_on(runner.begin(&graph, &[y], [y, next], Waiting::Here)).unwrap();
    assert!(begun.is_none());
    let read = block_on(runner.read(&graph, &[y], Waiting::Here));
    assert!(matches!(read, Err(Error::Parameter { .. })), "{read:?}");
}
