//! Several simulated devices that work as one.

use kiln_device::waiting::{Waiting, block_on};
use kiln_device::{Batch, Driver, Group, State, Tensor};
use kiln_ir::graph::FusionLimits;
use kiln_ir::op::{AllReduce, Matmul, Op};
use kiln_ir::{Buffer, DType, Data, Error, Operand, Record, Shape, TensorType, f16};

use crate::support;
use crate::support::{HostChoice, HostDevice, HostOptions, numbers};

type Devices = Group<HostDevice>;

fn group(devices: usize) -> Devices {
    group_with(devices, &HostOptions::default())
}

fn group_with(devices: usize, options: &HostOptions) -> Devices {
    let devices = (0..devices).map(|at| HostDevice::named(&format!("device {at}"), options.clone()));
    Group::new(devices.collect()).unwrap()
}

fn upload(group: &Devices, data: &[f32], dims: &[usize]) -> Tensor<Devices> {
    block_on(Tensor::upload(group, &Operand::f32(data, dims).unwrap())).unwrap()
}

/// A tensor with a part of its own on each device.
fn parts(group: &Devices, data: &[Vec<f32>], dims: &[usize]) -> kiln_ir::Result<Tensor<Devices>> {
    let operands = data.iter().map(|data| Operand::f32(data, dims)).collect::<kiln_ir::Result<Vec<_>>>()?;
    block_on(Tensor::upload_parts(group, &operands))
}

fn read(batch: &Batch<Devices>, id: kiln_device::BufferId) -> Vec<f32> {
    batch.read(id).unwrap()
}

/// `x W V`, where the columns of W and the rows of V are split over the devices: the sum of their products is that of the whole.
#[test]
fn two_split_products_give_what_the_whole_ones_give() {
    let (m, k, n, out) = (3, 8, 12, 5);
    let (x, w, v) = (numbers(m * k), numbers(k * n), numbers(n * out));
    let whole = {
        let device = support::device();
        let mut batch = Batch::new(device);
        let [x, w, v] =
            [(&x, [m, k]), (&w, [k, n]), (&v, [n, out])].map(|(data, dims)| batch.upload(data, &dims).unwrap());
        let h = batch.matmul(x, w).unwrap();
        let y = batch.matmul(h, v).unwrap();
        batch.execute(&[y]).unwrap();
        batch.read(y).unwrap()
    };
    for devices in [2, 3, 4] {
        let group = group(devices);
        let each = n / devices;
        let columns = |at: usize| (0..k).flat_map(|row| w[row * n + at * each..][..each].to_vec()).collect();
        let w: Vec<Vec<f32>> = (0..devices).map(columns).collect();
        let v: Vec<Vec<f32>> = v.chunks(each * out).map(<[f32]>::to_vec).collect();
        let mut batch = Batch::new(group.clone());
        let xs = batch.upload(&x, &[m, k]).unwrap();
        let w = batch.import(&parts(&group, &w, &[k, each]).unwrap()).unwrap();
        let v = batch.import(&parts(&group, &v, &[each, out]).unwrap()).unwrap();
        let h = batch.matmul(xs, w).unwrap();
        let y = batch.matmul(h, v).unwrap();
        let y = batch.record(AllReduce, &[y]).unwrap();
        // What follows a sum runs on all devices again.
        let twice = batch.scale(y, 2.0).unwrap();
        batch.execute(&[y, twice]).unwrap();
        assert_eq!(read(&batch, y), whole, "{devices} devices");
        let doubled: Vec<f32> = whole.iter().map(|y| 2.0 * y).collect();
        assert_eq!(read(&batch, twice), doubled);
        // Another execution with another input, by the same plan.
        let halved: Vec<f32> = x.iter().map(|x| 0.5 * x).collect();
        batch.set(xs, &halved).unwrap();
        batch.execute(&[y, twice]).unwrap();
        assert_eq!(read(&batch, twice), whole);
    }
}

#[test]
fn sums_are_in_the_order_of_the_devices() {
    let group = group(3);
    // (1 + 1e8) - 1e8 is 0 in f32, and 1 in any order that begins with the large ones.
    let x = parts(&group, &[vec![1.0], vec![1e8], vec![-1e8]], &[1]).unwrap();
    let sum = group_run(&group, &AllReduce.into(), &[&x]);
    assert_eq!(sum, [0.0]);
    let halves = [f16::from_f32(0.5), f16::from_f32(-2.0)];
    let halves = Operand::new(Data::F16(&halves), Shape::new(&[2]).unwrap()).unwrap();
    let x = block_on(Tensor::upload_parts(&group, &[halves; 3])).unwrap();
    assert_eq!(group_run(&group, &AllReduce.into(), &[&x]), [1.5, -6.0]);
}

fn group_run(group: &Devices, op: &Op, inputs: &[&Tensor<Devices>]) -> Vec<f32> {
    let results = block_on(kiln_device::bodies::run(group, op, inputs, Waiting::Here)).unwrap();
    results[0].read().unwrap().as_data().f32().to_vec()
}

#[test]
fn states_stay_alike_and_views_are_those_of_every_device() {
    let group = group(2);
    let ty = TensorType::f32(Shape::new(&[4, 2]).unwrap());
    let state = State::zeros(&group, ty).unwrap();
    let mut batch = Batch::new(group.clone());
    let rows = batch.state(&state).unwrap();
    let new = batch.import(&parts(&group, &[vec![1.0, 2.0], vec![10.0, 20.0]], &[1, 2]).unwrap()).unwrap();
    let at = batch.upload_indices(&[2], &[1]).unwrap();
    let rows = batch.write_rows(rows, new, at).unwrap();
    let sums = batch.sum_axis(rows, 0).unwrap();
    let sums = batch.record(AllReduce, &[sums]).unwrap();
    batch.execute(&[sums]).unwrap();
    assert_eq!(read(&batch, sums), [11.0, 22.0]);
    batch.set_data(at, Data::U32(&[0])).unwrap();
    batch.execute(&[sums]).unwrap();
    assert_eq!(read(&batch, sums), [22.0, 44.0]);
    // The first device's share.
    assert_eq!(state.read().unwrap().as_data().f32(), [1.0, 2.0, 0.0, 0.0, 1.0, 2.0, 0.0, 0.0]);

    let x = upload(&group, &numbers(16), &[4, 4]);
    let cut = x.slice(1..3).unwrap();
    assert_eq!(
        group_run(&group, &AllReduce.into(), &[&cut]),
        numbers(16)[4..12].iter().map(|x| 2.0 * x).collect::<Vec<_>>()
    );
}

#[test]
fn an_index_outside_of_its_table_is_reported_although_sums_follow() {
    let group = group(2);
    let mut batch = Batch::new(group.clone());
    let table = batch.upload(&numbers(6), &[3, 2]).unwrap();
    let at = batch.upload_indices(&[1, 5], &[2]).unwrap();
    let rows = batch.gather(table, at).unwrap();
    let rows = batch.record(AllReduce, &[rows]).unwrap();
    let rows = batch.exp(rows).unwrap();
    let refused = batch.execute(&[rows]);
    assert!(matches!(refused, Err(Error::Index { op: "gather", position: 1, index: 5, bound: 3 })), "{refused:?}");
    batch.set_data(at, Data::U32(&[1, 2])).unwrap();
    batch.execute(&[rows]).unwrap();
}

#[test]
fn operations_of_rounds_are_joined_on_every_device_and_empty_sums_add_nothing() {
    let fusion = FusionLimits { round: 2, ..FusionLimits::default() };
    let group = group_with(2, &HostOptions { fusion, ..HostOptions::default() });
    let mut batch = Batch::new(group.clone());
    let x = batch.upload(&numbers(12), &[3, 4]).unwrap();
    let [a, b] = [0, 1].map(|seed| batch.upload(&numbers(16 + seed)[seed..], &[4, 4]).unwrap());
    let op = Matmul { transpose_b: true, ..Matmul::default() };
    let (p, q) = (batch.matmul_with(x, a, op).unwrap(), batch.matmul_with(x, b, op).unwrap());
    let sum = batch.add(p, q).unwrap();
    let empty = batch.upload(&[], &[0, 4]).unwrap();
    let none = batch.record(AllReduce, &[empty]).unwrap();
    let dispatches = || [0, 1].map(|at: usize| group.devices()[at].statistics().dispatches);
    let before = dispatches();
    batch.execute(&[sum, none]).unwrap();
    let after = dispatches();
    assert_eq!([0, 1].map(|at: usize| after[at] - before[at]), [2; 2], "both products, and their sum");
    assert_eq!(read(&batch, none), [0.0; 0]);
    let product = |w: &[f32]| -> Vec<f32> {
        let x = numbers(12);
        let dot = |row: usize, column: usize| (0..4).map(|k| x[4 * row + k] * w[4 * column + k]).sum();
        (0..12).map(|i| dot(i / 4, i % 4)).collect()
    };
    let whole: Vec<f32> = product(&numbers(16)).iter().zip(product(&numbers(17)[1..])).map(|(a, b)| a + b).collect();
    assert_eq!(read(&batch, sum), whole);
}

#[test]
fn parts_that_do_not_fit_are_refused() {
    let group = group(2);
    let of = |data: &[Vec<f32>], dims: &[usize]| parts(&group, data, dims).unwrap_err();
    assert!(matches!(of(&[vec![1.0]], &[1]), Error::Arity { expected: 2, found: 1, .. }));
    assert!(matches!(of(&[], &[1]), Error::Arity { expected: 2, found: 0, .. }));
    let [narrow, wide] = [Operand::f32(&[1.0], &[1]).unwrap(), Operand::f32(&[1.0, 2.0], &[2]).unwrap()];
    assert!(matches!(block_on(Tensor::upload_parts(&group, &[narrow, wide])), Err(Error::Shape { .. })));
    let words = Operand::new(Data::U32(&[1]), Shape::new(&[1]).unwrap()).unwrap();
    let refused = block_on(Tensor::upload_parts(&group, &[narrow, words]));
    assert!(matches!(refused, Err(Error::Type { index: 1, expected: DType::F32, found: DType::U32, .. })));
    let device = HostDevice::new(HostOptions::default());
    for devices in [vec![], vec![device.clone()], vec![device.clone(), device]] {
        assert!(matches!(Group::new(devices), Err(Error::Parameter { op: "group", .. })));
    }
}

#[test]
fn the_loss_of_one_device_is_that_of_the_group() {
    let devices = group(2);
    let x = upload(&devices, &[1.0, 2.0], &[2]);
    devices.devices()[1].lose();
    let lost = block_on(kiln_device::bodies::run(&devices, &AllReduce.into(), &[&x], Waiting::Here)).unwrap_err();
    assert!(matches!(&lost, Error::DeviceLost { device, .. } if device == "device 1"), "{lost:?}");

    // At every submission of a run with sums in it.
    for at in 0.. {
        let devices = group(2);
        let mut batch = Batch::new(devices.clone());
        let x = batch.upload(&numbers(4), &[4]).unwrap();
        let y = batch.exp(x).unwrap();
        let y = batch.record(AllReduce, &[y]).unwrap();
        let y = batch.scale(y, 2.0).unwrap();
        devices.devices()[1].lose_at(at);
        match batch.execute(&[y]).and_then(|()| batch.read(y)) {
            Ok(_) => {
                assert!(at > 2, "{at}");
                break;
            }
            Err(error) => assert!(matches!(error, Error::DeviceLost { .. }), "{error:?}"),
        }
    }
}

#[test]
fn memory_is_taken_on_every_device_and_given_back() {
    let devices = group_with(2, &HostOptions { memory: 4096, most_free: 0, ..HostOptions::default() });
    let x = upload(&devices, &numbers(64), &[64]);
    let allocated = || devices.devices().iter().map(HostDevice::allocated).collect::<Vec<_>>();
    assert_eq!(allocated(), [256, 256]);
    devices.devices()[1].limit_memory(300);
    let operand = numbers(64);
    let refused = block_on(Tensor::upload(&devices, &Operand::f32(&operand, &[64]).unwrap()));
    assert!(matches!(refused, Err(Error::OutOfMemory { .. })), "{refused:?}");
    assert_eq!(allocated(), [256, 256], "what was allocated on the first device is freed");
    drop(x);
    assert_eq!(allocated(), [0, 0]);
}

/// Each allocation of each device fails, and all later ones, as drivers report it: at once, or later to the scope that it was made in.
#[test]
fn a_device_without_memory_is_an_error_of_the_group() {
    for (late_errors, suspends) in [(false, false), (true, false), (true, true)] {
        for device in 0..3 {
            let mut n = 0;
            loop {
                let options = HostOptions { late_errors, suspends, ..HostOptions::default() };
                let devices: Vec<HostDevice> = (0..3).map(|_| HostDevice::new(options.clone())).collect();
                let group = Group::new(devices.clone()).unwrap();
                devices[device].fail_allocation(Some(n), true);
                let run = || {
                    let x = parts(&group, &[vec![1.0, 2.0], vec![4.0, 8.0], vec![16.0, 32.0]], &[2])?;
                    let mut batch = Batch::new(group.clone());
                    let (x, ones) = (batch.import(&x)?, batch.upload(&[1.0; 2], &[2])?);
                    let sum = batch.record(AllReduce, &[x])?;
                    let sum = batch.add(sum, ones)?;
                    batch.execute(&[sum])?;
                    batch.read(sum)
                };
                let whole = Ok(vec![22.0, 43.0]);
                let found = run();
                devices[device].fail_allocation(None, false);
                assert_eq!(run(), whole, "after allocation {n} of device {device}");
                if found == whole {
                    break;
                }
                assert!(matches!(found, Err(Error::OutOfMemory { .. })), "allocation {n}: {found:?}");
                n += 1;
            }
            assert!(n >= 3, "{n} allocations of device {device}");
        }
    }
}

#[test]
fn groups_are_opened_by_choices_and_named_after_their_devices() {
    let choice = |name: &str| HostChoice { name: name.to_owned(), ..HostChoice::default() };
    let opened =
        block_on(Devices::open_device(&vec![choice("a"), choice("b")], &HostOptions::default(), Waiting::Here));
    assert_eq!(opened.unwrap().label(), "a + b");
    let missing = HostChoice { missing: true, ..choice("b") };
    let opened = block_on(Devices::open_device(&vec![choice("a"), missing], &HostOptions::default(), Waiting::Here));
    assert!(matches!(opened, Err(Error::Unavailable { what, .. }) if what == "b"));
}

#[test]
fn kernels_are_timed_on_the_first_device() {
    let group = group_with(2, &HostOptions { profiles: true, ..HostOptions::default() });
    let mut batch = Batch::new(group.clone());
    let x = batch.upload(&numbers(4), &[4]).unwrap();
    let y = batch.exp(x).unwrap();
    let y = batch.record(AllReduce, &[y]).unwrap();
    let y = batch.softmax(y).unwrap();
    batch.execute(&[y]).unwrap();
    let names: Vec<String> = batch.profile().unwrap().kernels.into_iter().map(|kernel| kernel.name).collect();
    assert_eq!(names.first().map(String::as_str), Some("exp"), "{names:?}");
    assert!(names.iter().any(|name| name == "softmax"), "{names:?}");
}

/// Every operation gives on a group what it gives on one device.
#[test]
fn operations_conform_on_a_group() {
    let group = group(2);
    for case in kiln_ir::op::all_cases().into_iter().step_by(11) {
        // The sum over devices that hold the same is a multiple, not a copy.
        if matches!(case.op, Op::AllReduce(_)) || case.inputs.iter().any(|input| input.shape.numel() > 1 << 12) {
            continue;
        }
        let results = |op: &Op, inputs: &[Operand<'_>]| {
            let tensors = inputs.iter().map(|input| block_on(Tensor::upload(&group, input)));
            let tensors = tensors.collect::<kiln_ir::Result<Vec<_>>>()?;
            let tensors: Vec<_> = tensors.iter().collect();
            block_on(kiln_device::bodies::run(&group, op, &tensors, Waiting::Here))?
                .iter()
                .map(Tensor::read)
                .collect::<kiln_ir::Result<Vec<Buffer>>>()
        };
        kiln_ir::op::reference::conform(&case, results).unwrap_or_else(|why| panic!("{why}"));
    }
}

#[test]
fn what_is_added_to_a_sum_is_added_once() {
    let fusion = FusionLimits { addends: true, ..FusionLimits::default() };
    for options in [HostOptions::default(), HostOptions { fusion, ..HostOptions::default() }] {
        let group = group_with(3, &options);
        let mut batch = Batch::new(group.clone());
        let x = parts(&group, &[vec![1.0, 2.0], vec![10.0, 20.0], vec![100.0, 200.0]], &[2]).unwrap();
        let x = batch.import(&x).unwrap();
        let addend = batch.upload(&[0.5, 0.25], &[2]).unwrap();
        let sum = batch.record(AllReduce, &[x]).unwrap();
        let y = batch.add(addend, sum).unwrap();
        batch.execute(&[y]).unwrap();
        assert_eq!(read(&batch, y), [111.5, 222.25]);
    }
}
