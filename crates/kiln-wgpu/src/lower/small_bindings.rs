//! Operations on a device whose bindings hold less than their operands: tests of what is cut into pieces.

use std::collections::HashMap;
use std::sync::Arc;

use kiln_ir::op::{
    BroadcastTo, Comparison, Concat, Elementwise, Matmul, Op, Pad, Permute, Reduce, Reduction, Slice, Sort, TopK,
    Transpose,
};
use kiln_ir::{Operand, Record, Shape, TensorType, f16};

use crate::plan::Target;
use crate::{AdapterChoice, GpuCommandBatch, GpuDevice};
use kiln_device::waiting::{Waiting, block_on};
use kiln_device::{Driver, Executable, Plan};

/// Runs an operation with bindings of at most this many bytes, which its plan must not exceed. Returns the number of
/// dispatches and the results.
pub(super) fn run(device: &GpuDevice, op: Op, inputs: &[(TensorType, Vec<u8>)], most: Option<u64>) -> (usize, Vec<u8>) {
    let mut limits = device.target().limits.clone();
    let most = most.unwrap_or(limits.max_storage_buffer_binding_size);
    limits.max_storage_buffer_binding_size = most;
    let target = Target { limits, cooperative: false, ..device.target().clone() };
    let types: Vec<TensorType> = inputs.iter().map(|input| input.0).collect();
    let (ids, plan) = Plan::<GpuDevice>::of_operation(&op, &types, &target).unwrap();
    for slice in plan.steps.iter().flat_map(|dispatch| &dispatch.buffers) {
        assert!(slice.bytes <= most, "{op:?}: {slice:?}");
    }
    let (dispatches, result) = (plan.steps.len(), plan.results[0].1);
    let mut executable = block_on(Executable::new(device, plan, &HashMap::new())).unwrap();
    for (id, (_, bytes)) in ids.iter().zip(inputs) {
        device.write(executable.input(*id).unwrap(), bytes).unwrap();
    }
    let mut got = vec![0; result as usize];
    block_on(executable.run(vec![(0, &mut got)], Waiting::Here)).unwrap();
    (dispatches, got)
}

/// A tensor of small integers, whose sums of products are exact in any order.
fn tensor(dims: &[usize], half: bool) -> (TensorType, Vec<u8>) {
    let shape = Shape::new(dims).unwrap();
    let numbers = (0..shape.numel()).map(|i| (i * i % 13) as f32 - 6.0);
    if half {
        let bits = |x: f32| f16::from_f32(x).to_le_bytes();
        (TensorType::f16(shape), numbers.flat_map(bits).collect())
    } else {
        (TensorType::f32(shape), numbers.flat_map(f32::to_le_bytes).collect())
    }
}

/// The operation in pieces has the same bits, and more dispatches.
fn same(device: &GpuDevice, op: Op, inputs: &[(TensorType, Vec<u8>)], most: u64) {
    let (one, whole) = run(device, op, inputs, None);
    let (many, cut) = run(device, op, inputs, Some(most));
    let dims: Vec<_> = inputs.iter().map(|input| input.0.shape).collect();
    assert!(many > one, "{op:?} of {dims:?}: {one} and {many} dispatches");
    assert!(cut == whole, "{op:?} of {dims:?}");
}

fn device() -> Option<GpuDevice> {
    let device = GpuDevice::open(&AdapterChoice::Any).ok();
    if device.is_none() {
        eprintln!("skipped: no device");
    }
    device
}

#[test]
fn operands_that_are_repeated_go_on_where_the_piece_before_ended() {
    let Some(device) = device() else { return };
    for half in [false, true] {
        let x = tensor(&[70, 123, 7], half);
        // A scalar, columns that are whole vectors or not, several rows; shorter and longer than a piece.
        for dims in [&[][..], &[7], &[123, 7]] {
            same(&device, Elementwise::sub().into(), &[x.clone(), tensor(dims, half)], 8192);
        }
        let wide = [tensor(&[70, 124], half), tensor(&[124], false), tensor(&[], half)];
        same(&device, Elementwise::fma().into(), &wide, 4096);
    }
}

#[test]
fn strided_copies_are_cut_to_what_bindings_hold() {
    let Some(device) = device() else { return };
    for half in [false, true] {
        // Vectors, words, and elements that are not contiguous on one side or the other.
        for (axes, dims) in [
            (&[1, 0, 2][..], &[64, 48, 16][..]),
            (&[1, 0, 2], &[64, 48, 15]),
            (&[2, 1, 0], &[40, 32, 36]),
            (&[2, 0, 3, 1], &[5, 31, 17, 21]),
        ] {
            same(&device, Permute::new(axes).unwrap().into(), &[tensor(dims, half)], 20_000);
        }
        same(&device, Slice::along(1, 1..usize::MAX, 3).unwrap().into(), &[tensor(&[150, 301], half)], 20_000);
        same(&device, BroadcastTo::new(&[60, 7, 301]).unwrap().into(), &[tensor(&[7, 1], half)], 20_000);
        same(&device, Pad::new(&[(1, 2), (3, 0)], 2.0).unwrap().into(), &[tensor(&[101, 203], half)], 20_000);
        let parts = [[90, 101], [90, 7], [90, 64]].map(|dims| tensor(&dims, half));
        same(&device, Concat { axis: 1 }.into(), &parts, 20_000);
    }
    // Stacks that repeat.
    let op = Op::from(Matmul::default());
    same(&device, op, &[tensor(&[1, 24, 20], false), tensor(&[30, 20, 28], false)], 20_000);
    same(&device, op, &[tensor(&[5, 1, 24, 20], false), tensor(&[6, 20, 28], false)], 20_000);
}

#[test]
fn small_operands_are_bound_alone_where_large_ones_were_before() {
    let Some(mut device) = device() else { return };
    let most = 1 << 14;
    Arc::get_mut(&mut device.inner).unwrap().target.limits.max_storage_buffer_binding_size = most;
    let mut batch = GpuCommandBatch::new(device.clone());
    let mut bytes = |n: usize| {
        let elements: Vec<u8> = (0..n).map(|i| (i % 200) as u8).collect();
        batch.upload_operand(&Operand::elements(&elements, &[n]).unwrap()).unwrap()
    };
    let [large, small] = [1 << 15, 100].map(&mut bytes);
    let x = batch.upload(&[1.0; 1 << 14], &[1 << 10, 16]).unwrap();
    // Comparisons of bytes have scratch memory, which they share.
    let compared = [large, small].map(|x| batch.compare(x, x, Comparison::Eq).unwrap());
    // An intermediate result takes the place of a larger one.
    let columns = batch.transpose(x).unwrap();
    let sums = batch.record(Reduce { reduction: Reduction::Sum, axis: Some(1) }, &[columns]).unwrap();
    let normal = batch.softmax(sums).unwrap();
    let greatest = batch.record(Reduce { reduction: Reduction::Max, axis: Some(0) }, &[normal]).unwrap();
    let wanted = [compared[0], compared[1], greatest];
    let plan = Plan::<GpuDevice>::new(batch.graph(), &wanted, device.target()).unwrap();
    assert!([&plan.slots, &plan.scratch].into_iter().all(|sizes| sizes.iter().any(|&bytes| bytes > most)), "{plan:?}");
    let results = batch.run(&wanted).unwrap();
    assert!(results[..2].iter().all(|result| result.as_data().as_bytes().iter().all(|&byte| byte == 1)));
    assert_eq!(results[2].as_data().f32(), [1.0 / 16.0]);
}

#[test]
fn rows_are_sorted_in_pieces_that_leave_room_for_runs() {
    let Some(device) = device() else { return };
    let order = |rows: usize, n: usize| tensor(&[rows, n], false);
    // A row with scratch memory that would be larger as a power of two of runs.
    let n = 5056;
    for op in [Op::from(Sort { axis: 1, descending: false }), TopK { k: 1536 }.into()] {
        let (_, whole) = run(&device, op, &[order(1, n)], None);
        let (_, small) = run(&device, op, &[order(1, n)], Some(4 * n as u64));
        assert!(whole == small, "{op:?}");
        for rows in [7, 40] {
            same(&device, op, &[order(rows, n)], 100_000);
        }
    }
    // More levels, with a last run that is alone.
    for n in [2112, 4096, 3 * 4096 + 64] {
        same(&device, Sort { axis: 1, descending: true }.into(), &[order(6, n)], 1 << 16);
    }
}

#[test]
fn matrices_are_turned_in_blocks() {
    let Some(device) = device() else { return };
    for dims in [&[256, 192][..], &[64, 1024], &[1088, 64], &[3, 128, 64], &[5, 32, 33]] {
        same(&device, Op::from(Transpose), &[tensor(dims, false)], 20_000);
    }
}

#[test]
fn products_of_matrices_of_which_none_fits() {
    let Some(device) = device() else { return };
    let most = 1 << 16;
    for half in [false, true] {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            // A, B, both, and the result too large; few rows and few columns.
            for (m, k, n) in
                [(512, 128, 64), (64, 128, 512), (320, 256, 384), (192, 64, 256), (3, 256, 512), (512, 256, 2)]
            {
                let a = if transpose_a { [k, m] } else { [m, k] };
                let b = if transpose_b { [n, k] } else { [k, n] };
                let op = Op::from(Matmul { transpose_a, transpose_b });
                same(&device, op, &[tensor(&a, half), tensor(&b, half)], most);
            }
        }
        // A stack whose matrices are each too large.
        let stack = [tensor(&[3, 256, 128], half), tensor(&[3, 128, 192], half)];
        same(&device, Op::from(Matmul::default()), &stack, most);
    }
}
