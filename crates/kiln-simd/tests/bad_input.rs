//! Hostile inputs: whatever is handed in, there is a right result or one typed error. Nothing panics, nothing wraps.

#![cfg(not(target_arch = "wasm32"))] // panics are caught, which WebAssembly does not support

mod support;

use std::collections::BTreeMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::OnceLock;

use kiln_ir::op::reference::{Case, Random};
use kiln_ir::op::{
    BroadcastTo, Concat, Convolve2d, Cumsum, Op, Pad, Padding, Permute, Reshape, RmsNorm, Slice, WriteRows, all_cases,
};
use kiln_ir::{Buffer, DType, Data, DataMut, Error, MAX_RANK, Operand, QuantFormat, Shape, TensorType};
use kiln_simd::{Isa, Operations, Simd};

/// The smallest case that has elements, of every operation with every set of parameters; with `KILN_SAMPLE=n` of every n-th.
fn smallest_cases() -> &'static [Case] {
    static CASES: OnceLock<Vec<Case>> = OnceLock::new();
    CASES.get_or_init(find_smallest_cases)
}

fn find_smallest_cases() -> Vec<Case> {
    let mut smallest = BTreeMap::<String, Case>::new();
    let size = |case: &Case| case.inputs.iter().map(|input| input.shape.numel()).sum::<usize>();
    for case in all_cases() {
        if case.inputs.iter().any(|input| input.shape.is_empty()) {
            continue;
        }
        match smallest.entry(format!("{:?}", case.op)) {
            std::collections::btree_map::Entry::Vacant(slot) => {
                slot.insert(case);
            }
            std::collections::btree_map::Entry::Occupied(mut slot) => {
                if size(&case) < size(slot.get()) {
                    slot.insert(case);
                }
            }
        }
    }
    support::sampled(smallest.into_values()).collect()
}

/// Every operand has to be there: kernels read as many elements as its type says.
#[test]
fn operands_without_elements_are_an_error() {
    let simd = Simd::new().unwrap();
    for case in smallest_cases() {
        for without in 0..case.inputs.len() {
            let mut inputs = case.operands().unwrap();
            inputs[without] = Operand::of_type(inputs[without].ty());
            let found = simd.run(&case.op, &inputs);
            assert!(matches!(found, Err(Error::Length { found: 0, .. })), "{case}, operand {without}: {found:?}");
        }
    }
    let (x, gamma) = ([1.0; 64], Operand::of_type(TensorType::f32(Shape::new(&[64]).unwrap())));
    let (mut y, op) = ([0.0; 64], RmsNorm::new(1e-5).into());
    let found = simd.update(&op, &[Operand::vector(&x), gamma], DataMut::F32(&mut y));
    assert!(matches!(found, Err(Error::Parameter { .. })), "{found:?}");
    let (rows, positions) = (Operand::f32(&x, &[1, 64]).unwrap(), Operand::of_type(position()));
    let state = Operand::of_type(TensorType::f32(Shape::new(&[1, 64]).unwrap()));
    let found = simd.update(&WriteRows.into(), &[state, rows, positions], DataMut::F32(&mut y));
    assert!(matches!(found, Err(Error::Length { found: 0, .. })), "{found:?}");
}

fn position() -> TensorType {
    TensorType::of(DType::U32, Shape::new(&[1]).unwrap()).unwrap()
}

fn buffers(case: &Case) -> Vec<(Buffer, Vec<usize>)> {
    case.inputs.iter().map(|input| (input.buffer.clone(), input.shape.dims().to_vec())).collect()
}

fn dtypes() -> impl Iterator<Item = DType> {
    DType::ALL.iter().copied().chain(QuantFormat::ALL.map(DType::Blocks))
}

/// Elements of any kind: the bits are random, so floats are NaN, infinite or huge and indices are out of their tables.
fn noise(dtype: DType, dims: &[usize], random: &mut Random) -> Option<(Buffer, Vec<usize>)> {
    let shape = Shape::new(dims).ok()?;
    let mut buffer = Buffer::zeros(&TensorType::of(dtype, shape).ok()?).ok()?;
    buffer.as_mut().as_bytes().fill_with(|| random.bits() as u8);
    Some((buffer, dims.to_vec()))
}

/// Shapes near `dims` and far from it.
fn other_shapes(dims: &[usize]) -> Vec<Vec<usize>> {
    let fixed: &[&[usize]] = &[
        &[],
        &[0],
        &[1],
        &[2],
        &[256],
        &[0, 0],
        &[3, 0],
        &[0, 7],
        &[5, 7],
        &[1, 256],
        &[2, 3, 4],
        &[2, 0, 4],
        &[1, 2, 3, 4],
        &[0; 4],
        &[2, 1, 3, 2, 1, 2],
        &[2, 1, 0, 3, 1, 2],
    ];
    let mut shapes: Vec<Vec<usize>> = fixed.iter().map(|s| s.to_vec()).collect();
    for axis in 0..dims.len() {
        for change in [0, dims[axis] - 1, dims[axis] + 1, 2 * dims[axis]] {
            let mut near = dims.to_vec();
            near[axis] = change;
            shapes.push(near);
        }
        let mut less = dims.to_vec();
        less.remove(axis);
        shapes.push(less);
        let mut more = dims.to_vec();
        more.insert(axis, 1);
        shapes.push(more);
    }
    shapes.push(dims.iter().rev().copied().collect());
    shapes
}

/// Runs `f`; a panic becomes an entry of `faults`.
fn survive<T>(faults: &mut Vec<String>, what: impl Fn() -> String, f: impl FnOnce() -> T) -> Option<T> {
    let result = catch_unwind(AssertUnwindSafe(f));
    if result.is_err() {
        faults.push(format!("{} panicked", what()));
    }
    result.ok()
}

fn assert_none(faults: &[String]) {
    let shown = faults.iter().take(20).map(String::as_str).collect::<Vec<_>>().join("\n");
    assert!(faults.is_empty(), "{} faults, first:\n{shown}", faults.len());
}

/// Runs an operation; where it takes the inputs, the results must have the types that its shape rule names.
fn attempt(faults: &mut Vec<String>, simd: &Simd, op: &Op, inputs: &[(Buffer, Vec<usize>)]) {
    let describe = || {
        let shapes: Vec<String> = inputs.iter().map(|(b, dims)| format!("{} {dims:?}", b.as_data().dtype())).collect();
        format!("{op:?} on {}", shapes.join(", "))
    };
    let operands: Vec<Operand<'_>> = inputs
        .iter()
        .map(|(buffer, dims)| Operand::new(buffer.as_data(), Shape::new(dims).unwrap()).unwrap())
        .collect();
    let Some(result) = survive(faults, describe, || simd.run(op, &operands)) else { return };
    let types: Vec<TensorType> = operands.iter().map(Operand::ty).collect();
    match (result, op.infer(&types)) {
        (Ok(results), Ok(expected)) => {
            let same = results.len() == expected.len()
                && results
                    .iter()
                    .zip(expected.iter())
                    .all(|(r, ty)| r.as_data().dtype() == ty.dtype && r.as_data().bytes() == ty.bytes());
            if !same {
                faults.push(format!("{}: results are not of the inferred types", describe()));
            }
            if survive(faults, || format!("cost of {}", describe()), || op.cost(&types)).is_some_and(|c| c.is_err()) {
                faults.push(format!("{}: runs but has no cost", describe()));
            }
        }
        (Ok(_), Err(error)) => faults.push(format!("{}: ran although {error}", describe())),
        (Err(error), _) if error.to_string().is_empty() => faults.push(format!("{}: says nothing", describe())),
        (Err(_), _) => {}
    }
}

fn instruction_sets() -> Vec<Simd> {
    // One set with and one without masked memory access are enough: the checks precede the kernels.
    let best = Simd::new().unwrap();
    let slowest = Simd::with_isa(Isa::available().next().unwrap()).unwrap();
    if best == slowest { vec![best] } else { vec![best, slowest] }
}

#[test]
fn wrong_numbers_of_operands_are_refused() {
    let simd = Simd::new().unwrap();
    let mut faults = Vec::new();
    for case in smallest_cases() {
        let inputs = buffers(case);
        // Concatenation takes any number of operands up to the maximum.
        let taken = |n: usize| match case.op {
            Op::Concat(_) => (1..=Concat::MOST).contains(&n),
            _ => n == inputs.len(),
        };
        for n in (0..12).filter(|&n| !taken(n)) {
            let wrong: Vec<_> = inputs.iter().cycle().take(n).cloned().collect();
            attempt(&mut faults, &simd, &case.op, &wrong);
            let operands: Vec<_> = wrong
                .iter()
                .map(|(buffer, dims)| Operand::new(buffer.as_data(), Shape::new(dims).unwrap()).unwrap())
                .collect();
            if simd.run(&case.op, &operands).is_ok() {
                faults.push(format!("{}: {n} operands are taken", case));
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn operands_of_other_types_and_shapes_give_results_or_errors() {
    let mut random = Random::new(11);
    let mut faults = Vec::new();
    for simd in instruction_sets() {
        for case in smallest_cases() {
            let inputs = buffers(case);
            for position in 0..inputs.len() {
                let (buffer, dims) = &inputs[position];
                let own = buffer.as_data().dtype();
                let mut variants: Vec<_> =
                    other_shapes(dims).iter().filter_map(|dims| noise(own, dims, &mut random)).collect();
                variants.extend(dtypes().filter_map(|dtype| noise(dtype, dims, &mut random)));
                variants.extend(dtypes().filter_map(|dtype| noise(dtype, &[2, 256], &mut random)));
                for variant in variants {
                    let mut changed = inputs.clone();
                    changed[position] = variant;
                    attempt(&mut faults, &simd, &case.op, &changed);
                }
            }
            // All operands are changed alike, so that they still agree with one another.
            for dims in other_shapes(&inputs[0].1) {
                let all: Option<Vec<_>> =
                    inputs.iter().map(|(buffer, _)| noise(buffer.as_data().dtype(), &dims, &mut random)).collect();
                if let Some(all) = all {
                    attempt(&mut faults, &simd, &case.op, &all);
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn outputs_that_do_not_fit_are_refused_and_left_alone() {
    let simd = Simd::new().unwrap();
    let mut faults = Vec::new();
    for case in smallest_cases() {
        let operands = case.operands().unwrap();
        let types: Vec<TensorType> = operands.iter().map(Operand::ty).collect();
        let right = case.op.infer(&types).unwrap().iter().map(Buffer::zeros).collect::<Result<Vec<_>, _>>().unwrap();
        let mut wrong: Vec<Vec<Buffer>> = vec![vec![], [right.clone(), right.clone(), right.clone()].concat()];
        wrong.push(right[..right.len() - 1].to_vec());
        for position in 0..right.len() {
            let n = right[position].as_data().bytes() / 4;
            let mut with = |buffer: Buffer| {
                let mut changed = right.clone();
                changed[position] = buffer;
                wrong.push(changed);
            };
            [n.saturating_sub(1), n + 1, 2 * n, 0].into_iter().filter(|&len| len != n).for_each(|len| {
                with(Buffer::F32(vec![7.0; len]));
                with(Buffer::U32(vec![7; len]));
                with(Buffer::Blocks(QuantFormat::Q8_0, vec![7; 4 * len]));
            });
            match &right[position] {
                Buffer::F32(_) => with(Buffer::U32(vec![7; n])),
                _ => with(Buffer::F32(vec![7.0; n])),
            }
        }
        for buffers in wrong {
            let mut written = buffers.clone();
            let mut outputs: Vec<DataMut<'_>> = written.iter_mut().map(Buffer::as_mut).collect();
            let describe =
                || format!("{case} into {:?}", buffers.iter().map(|b| b.as_data().dtype()).collect::<Vec<_>>());
            match survive(&mut faults, describe, || simd.run_into(&case.op, &operands, &mut outputs)) {
                Some(Ok(())) => faults.push(format!("{} is taken", describe())),
                Some(Err(_)) if written != buffers => faults.push(format!("{} is written to", describe())),
                _ => {}
            }
        }
    }
    assert_none(&faults);
}

#[test]
fn absurd_extents_are_errors_of_the_shape_rule() {
    let mut faults = Vec::new();
    // Nothing is allocated here: types describe how large a tensor would be.
    let large = [1usize << 20, 1 << 28, (1 << 31) - 1, 1 << 31, 1 << 32, 1 << 40, 1 << 56, usize::MAX >> 4];
    for case in smallest_cases() {
        let types: Vec<TensorType> = case.operands().unwrap().iter().map(Operand::ty).collect();
        for position in 0..=types.len() {
            for extent in large {
                for axis in 0..=MAX_RANK {
                    let mut changed = types.clone();
                    let mut possible = true;
                    for (i, ty) in changed.iter_mut().enumerate() {
                        // The last position means all operands at once; the last axis means all extents but the last.
                        if position != i && position != types.len() {
                            continue;
                        }
                        let mut dims = ty.shape.dims().to_vec();
                        let rank = dims.len();
                        for (d, value) in dims.iter_mut().enumerate() {
                            if d == axis {
                                *value = extent;
                            } else if axis == MAX_RANK {
                                *value = if d + 1 == rank { *value } else { extent };
                            }
                        }
                        match Shape::new(&dims) {
                            Ok(shape) => ty.shape = shape,
                            Err(Error::Overflow { .. }) => possible = false,
                            Err(error) => faults.push(format!("{dims:?}: {error}")),
                        }
                    }
                    if !possible {
                        continue;
                    }
                    let describe = || format!("{:?} on {changed:?}", case.op);
                    let inferred = survive(&mut faults, describe, || case.op.infer(&changed));
                    if let Some(Ok(outputs)) = inferred {
                        if outputs.iter().any(|ty| Shape::new(ty.shape.dims()).is_err()) {
                            faults.push(format!("{}: an unsound shape", describe()));
                        }
                        survive(&mut faults, describe, || case.op.cost(&changed));
                    }
                }
            }
        }
    }
    assert_none(&faults);
}

#[test]
#[allow(clippy::reversed_empty_ranges)]
fn shapes_that_make_no_sense_are_typed_errors() {
    type Run<'a> = Box<dyn Fn(&Simd) -> kiln_ir::Result<Vec<f32>> + 'a>;
    const MAX: usize = usize::MAX;
    let (x, dims) = ([1.0; 12], [3, 4]);
    let run = |op: kiln_ir::Result<Op>, dims: &'static [usize]| -> Run<'_> {
        Box::new(move |simd: &Simd| {
            let op = op.clone()?;
            simd.run_f32(&op, &[Operand::f32(&x[..dims.iter().product()], dims)?])
        })
    };
    let permute = |axes: &[usize]| Permute::new(axes).map(Op::from);
    let slice = |axis, range, step| Slice::along(axis, range, step).map(Op::from);
    let broadcast = |dims: &[usize]| BroadcastTo::new(dims).map(Op::from);
    let pad = |widths: &[(usize, usize)]| Pad::new(widths, 0.0).map(Op::from);
    let reshape = |dims: &[usize]| Reshape::to(dims).map(Op::from);
    let cases: Vec<(&str, Run<'_>)> = vec![
        ("parameter", run(permute(&[0, 0]), &[3, 4])),
        ("parameter", run(permute(&[0, 2]), &[3, 4])),
        ("parameter", run(permute(&[1, 2]), &[3, 4])),
        ("parameter", run(permute(&[MAX, 0]), &[3, 4])),
        ("parameter", run(permute(&[0, 1, 2, 3, 4, 5, 6]), &[3, 4])),
        ("shape", run(permute(&[0]), &[3, 4])),
        ("shape", run(permute(&[0, 1, 2]), &[3, 4])),
        ("shape", run(permute(&[]), &[3, 4])),
        ("parameter", run(slice(0, 0..1, 0), &[3, 4])),
        ("view", run(slice(0, 2..1, 1), &[3, 4])),
        ("view", run(slice(0, 0..4, 1), &[3, 4])),
        ("view", run(slice(0, 4..MAX, 1), &[3, 4])),
        ("view", run(slice(1, MAX - 1..MAX, MAX), &[3, 4])),
        ("view", run(slice(2, 0..1, 1), &[3, 4])),
        ("view", run(slice(MAX, 0..1, 1), &[3, 4])),
        ("view", run(slice(0, 0..1, 1), &[])),
        ("shape", run(broadcast(&[4]), &[3, 4])),
        ("shape", run(broadcast(&[3, 5]), &[3, 4])),
        ("shape", run(broadcast(&[4, 3]), &[3, 4])),
        ("shape", run(broadcast(&[0, 4]), &[3, 4])),
        ("shape", run(broadcast(&[1; 7]), &[1])),
        ("overflow", run(broadcast(&[MAX, MAX, 4]), &[4])),
        ("memory", run(broadcast(&[1 << 56, 4]), &[4])),
        ("view", run(pad(&[(0, 0), (0, 0), (1, 0)]), &[3, 4])),
        ("shape", run(pad(&[(0, 0); 7]), &[3, 4])),
        ("overflow", run(pad(&[(MAX, 1)]), &[3, 4])),
        ("overflow", run(pad(&[(MAX, MAX)]), &[0])),
        ("overflow", run(pad(&[(1 << 62, 1 << 62)]), &[3, 4])),
        ("memory", run(pad(&[(1 << 56, 0)]), &[3, 4])),
        ("shape", run(reshape(&[5]), &[3, 4])),
        ("shape", run(reshape(&[]), &[3, 4])),
        ("shape", run(reshape(&[0]), &[3, 4])),
        ("shape", run(reshape(&[1; 7]), &[1])),
        ("overflow", run(reshape(&[MAX, MAX]), &[3, 4])),
        ("shape", run(Ok(Reshape::Squeeze(0).into()), &[3, 4])),
        ("view", run(Ok(Reshape::Squeeze(2).into()), &[3, 4])),
        ("view", run(Ok(Reshape::Unsqueeze(3).into()), &[3, 4])),
        ("view", run(Ok(Reshape::Unsqueeze(MAX).into()), &[3, 4])),
        ("view", run(Ok(Reshape::Unsqueeze(0).into()), &[1, 1, 3, 1, 2, 2])),
        ("view", run(Ok(Cumsum { axis: 2 }.into()), &[3, 4])),
        ("view", run(Ok(Cumsum { axis: MAX }.into()), &[3, 4])),
        ("view", run(Ok(Cumsum { axis: 0 }.into()), &[])),
        ("view", Box::new(|simd| simd.sort(&x, &dims, 2, true).map(|(values, _)| values))),
        ("length", Box::new(|simd| simd.sort(&x, &[5], 0, false).map(|(values, _)| values))),
        ("parameter", Box::new(|simd| simd.group_norm(&x, &dims, &x[..4], &x[..4], 3, 1e-5))),
        ("parameter", Box::new(|simd| simd.group_norm(&x, &dims, &x[..4], &x[..4], 0, 1e-5))),
        ("shape", Box::new(|simd| simd.group_norm(&x, &[12], &x, &x, 1, 1e-5))),
        ("shape", Box::new(|simd| simd.batch_norm(&x, &dims, &x[..4], &x[..4], &x[..3], &x[..4], 1e-5))),
        ("arity", Box::new(|simd| simd.concat(&[], 0))),
        ("arity", Box::new(|simd| simd.concat(&[(&x[..1], &[1][..]); 9], 0))),
        ("view", Box::new(|simd| simd.concat(&[(&x, &dims)], 2))),
        ("view", Box::new(|simd| simd.concat(&[(&x, &dims), (&x, &dims)], MAX))),
        ("shape", Box::new(|simd| simd.concat(&[(&x, &dims), (&x, &[4, 3])], 0))),
        ("shape", Box::new(|simd| simd.concat(&[(&x, &dims), (&x, &[3, 4, 1])], 0))),
        ("length", Box::new(|simd| simd.concat(&[(&x, &[5])], 0))),
        (
            "overflow",
            Box::new(|simd| simd.concat(&[(&[], &[1 << 59, 0]), (&[], &[1 << 59, 0]), (&[], &[1 << 59, 0])], 0)),
        ),
        ("view", Box::new(|simd| simd.split(&x, &dims, 1, &[1, 2]).map(|_| vec![]))),
        ("view", Box::new(|simd| simd.split(&x, &dims, 1, &[3, 2]).map(|_| vec![]))),
        ("view", Box::new(|simd| simd.split(&x, &dims, 1, &[MAX, 5]).map(|_| vec![]))),
        ("view", Box::new(|simd| simd.split(&x, &dims, 2, &[1]).map(|_| vec![]))),
        ("parameter", Box::new(|simd| simd.split(&x, &dims, 1, &[]).map(|_| vec![]))),
        ("length", Box::new(|simd| simd.permute(&x, &[3, 5], &[1, 0]))),
        ("length", Box::new(|simd| simd.permute_into(&x, &dims, &[1, 0], &mut [0.0; 11]).map(|()| vec![]))),
    ];
    let simd = Simd::new().unwrap();
    let mut faults = Vec::new();
    for (number, (expected, case)) in cases.iter().enumerate() {
        let Some(result) = survive(&mut faults, || format!("case {number}"), || case(&simd)) else { continue };
        let kind = match &result {
            Ok(_) => "ran",
            Err(Error::Shape { .. }) => "shape",
            Err(Error::View { .. }) => "view",
            Err(Error::Parameter { .. }) => "parameter",
            Err(Error::Overflow { .. }) => "overflow",
            Err(Error::OutOfMemory { .. }) => "memory",
            Err(Error::Arity { .. }) => "arity",
            Err(Error::Length { .. }) => "length",
            Err(_) => "another error",
        };
        if kind != *expected {
            faults.push(format!("case {number}: {expected} expected, {kind}: {:?}", result.err()));
        }
    }
    assert_none(&faults);
}

#[test]
fn indices_outside_of_a_table_are_errors_and_nothing_is_written() {
    let simd = Simd::new().unwrap();
    let (table, source) = ([1.0; 6], [2.0; 6]);
    for indices in [[0, 3, 1], [u32::MAX, 0, 0]] {
        let mut out = [7.0; 6];
        let position = usize::from(indices[0] == 0);
        let outside = |op| Error::Index { op, position, index: indices[position] as usize, bound: 3 };
        assert_eq!(simd.scatter_into(&table, 2, &indices, &source, &mut out), Err(outside("scatter")));
        assert_eq!(simd.index_add_into(&table, 2, &indices, &source, &mut out), Err(outside("index_add")));
        assert_eq!(out, [7.0; 6]);
    }
    let mut out = [7.0; 6];
    assert!(matches!(simd.scatter_into(&table, 2, &[0, 1], &source, &mut out), Err(Error::Length { .. })));
    simd.scatter_into(&table, 2, &[2, 0, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut out).unwrap();
    assert_eq!(out, [3.0, 4.0, 1.0, 1.0, 5.0, 6.0]);
    simd.index_add_into(&table, 2, &[2, 0, 2], &[1.0, 2.0, 3.0, 4.0, 5.0, 6.0], &mut out).unwrap();
    assert_eq!(out, [4.0, 5.0, 1.0, 1.0, 7.0, 9.0]);
}

#[test]
fn rows_of_blocks_move_whole_or_not_at_all() {
    let simd = Simd::new().unwrap();
    let format = QuantFormat::Q8_0;
    let data = vec![0u8; 6 * format.block_bytes()];
    let x = Operand::blocks(&data, &[2, 3, 32], format).unwrap();
    let refused: [Op; 6] = [
        Permute::new(&[0, 2, 1]).unwrap().into(),
        Slice::along(2, 0..16, 1).unwrap().into(),
        Slice::along(2, 0..32, 2).unwrap().into(),
        BroadcastTo::new(&[2, 2, 3, 64]).unwrap().into(),
        Pad::new(&[(1, 0)], 0.0).unwrap().into(),
        Reshape::to(&[3, 64]).unwrap().into(),
    ];
    for op in &refused[..5] {
        let run = simd.run(op, &[x]);
        assert!(matches!(run, Err(Error::Format { .. } | Error::Shape { .. })), "{op:?}: {run:?}");
    }
    assert!(simd.run(&refused[5], &[x]).is_ok(), "192 elements in rows of two blocks");
    assert!(matches!(simd.run(&Reshape::to(&[12, 16]).unwrap().into(), &[x]), Err(Error::Format { .. })));
    assert!(matches!(simd.run(&Concat { axis: 2 }.into(), &[x, x]), Err(Error::Format { .. })));
    // A value that is not a valid index.
    let indices = Operand::elements(&[1u32, 2, 3], &[3]).unwrap();
    for value in [-1.0, 0.5, f32::NAN, 4_294_967_296.0] {
        let run = simd.run(&Pad::new(&[(1, 0)], value).unwrap().into(), &[indices]);
        assert!(matches!(run, Err(Error::Parameter { .. })), "{value}: {run:?}");
    }
}

#[test]
fn results_larger_than_the_machine_are_errors() {
    // No input elements, any number of outputs: the inner extent is zero.
    let simd = Simd::new().unwrap();
    let huge = 1usize << (usize::BITS / 2 - 6);
    let product = kiln_ir::op::Matmul::default().into();
    for n in [huge, huge << 4, huge << 12, huge << 20] {
        let (a, b) = (Operand::f32(&[], &[n, 0]), Operand::f32(&[], &[0, n]));
        let (Ok(a), Ok(b)) = (a, b) else { continue };
        let run = simd.run(&product, &[a, b]);
        assert!(
            matches!(run, Err(Error::OutOfMemory { .. } | Error::Overflow { .. })),
            "{n}: {:?}",
            run.map(|_| "ran")
        );
        let run = simd.matmul(&[], &[], n, 0, n);
        assert!(
            matches!(run, Err(Error::OutOfMemory { .. } | Error::Overflow { .. })),
            "{n}: {:?}",
            run.map(|_| "ran")
        );
    }
    for (m, k, n) in [(usize::MAX, 2, 2), (2, usize::MAX, 2), (2, 2, usize::MAX), (1 << 33, 1 << 33, 2)] {
        assert!(simd.matmul(&[1.0; 4], &[1.0; 4], m, k, n).is_err());
        assert!(simd.matmul_into(&[1.0; 4], &[1.0; 4], m, k, n, &mut [0.0; 4]).is_err());
    }
    for (rows, columns) in [(usize::MAX, 2), (2, usize::MAX), (1 << 33, 1 << 33), (usize::MAX, 0), (0, usize::MAX)] {
        assert!(simd.matvec(&[1.0; 4], &[1.0; 2], rows, columns).is_err());
        assert!(simd.transpose(&[1.0; 4], rows, columns).is_err());
        assert!(simd.pack_b(&[1.0; 4], rows, columns, false).is_err());
        assert!(simd.pack_b(&[1.0; 4], rows, columns, true).is_err());
    }
}

/// Extents whose padded image would fill any memory, and whose results are a few: every pixel meets one weight.
#[test]
fn kernels_far_larger_than_the_picture_need_no_memory_for_the_padding() {
    let simd = Simd::new().unwrap();
    let n = 60_001;
    let line: Vec<f32> = (0..n).map(|i| (i % 17) as f32 - 8.0).collect();
    let mut kernel = vec![0.25; n];
    kernel[n / 2] = 3.0;
    let expected: Vec<f32> = line.iter().map(|x| 3.0 * x).collect();
    for (size, kernel_size) in [((1, n), (n, 1)), ((n, 1), (1, n))] {
        let same = Padding::Same;
        assert_eq!(simd.convolve2d(&line, size, &kernel, kernel_size, same).unwrap(), expected);
        // Zeros of the padding are multiplied like other elements.
        let mut spoilt = kernel.clone();
        spoilt[7] = f32::INFINITY;
        assert!(simd.convolve2d(&line, size, &spoilt, kernel_size, same).unwrap().iter().all(|y| y.is_nan()));
        // Two images of two channels, five kernels; a NaN weight affects only the results of its own kernel.
        let op = Convolve2d { padding: same, ..Default::default() };
        let (pictures, mut kernels) = (line.repeat(4), kernel.repeat(10));
        kernels[3 * 2 * n + 1] = f32::NAN;
        let (x_dims, k_dims) = ([2, 2, size.0, size.1], [5, 2, kernel_size.0, kernel_size.1]);
        let y = simd.convolve2d_with(&pictures, &x_dims, &kernels, &k_dims, op).unwrap();
        for (plane, y) in y.chunks(n).enumerate() {
            if plane % 5 == 3 {
                assert!(y.iter().all(|y| y.is_nan()));
            } else {
                assert!(y.iter().zip(&expected).all(|(y, e)| *y == 2.0 * e), "plane {plane}");
            }
        }
    }
}

/// Padding whose frame would fill any memory beside an image, a kernel and results of a few kilobytes.
#[test]
fn padding_far_larger_than_the_picture_is_a_result_or_an_error() {
    let simd = Simd::new().unwrap();
    let n = 1 << 20;
    let x: Vec<f32> = (0..n).map(|i| (i % 13) as f32).collect();
    // One weight for each row, one result for each column; most columns are outside of the image.
    let padding = Padding::Sides { top: 0, bottom: 0, left: n, right: n };
    let op = Convolve2d { padding, ..Convolve2d::default() };
    match simd.convolve2d_with(&x, &[n, 1], &vec![1.0; n], &[n, 1], op) {
        Err(error) => assert!(matches!(error, Error::OutOfMemory { .. }), "{error}"),
        Ok(y) => assert!(y.iter().enumerate().all(|(i, &y)| (y > 0.0) == (i == n))),
    }
    // Results far apart, one of them in the padding.
    for (left, right, expected) in [(3, 1 << 40, [45.0, 0.0]), (1 << 40, 3, [0.0, 81.0])] {
        let padding = Padding::Sides { top: 1, bottom: 1, left, right };
        let op = Convolve2d { padding, stride: (9, 1 << 40), dilation: (1, 3), groups: 1 };
        let y = simd.convolve2d_with(&[9.0], &[1, 1], &[7.0, 8.0, 9.0, 5.0, 1.0, 6.0], &[3, 2], op);
        assert_eq!(y, Ok(expected.to_vec()));
    }
    // Elements of a kernel far apart: the first, the second or none of two meets each pixel of a row of three.
    let (far, row) = (1 << 40, [1.0, 2.0, 3.0]);
    for (left, right, expected) in [
        (0, far, vec![10.0, 20.0, 30.0]),
        (far, 0, vec![20.0, 40.0, 60.0]),
        (far + 1, 0, vec![0.0, 20.0, 40.0, 60.0]),
        (far - 1, 0, vec![40.0, 60.0]),
        (2, far - 1, vec![0.0, 0.0, 10.0, 20.0]),
        (far / 2, far / 2, vec![0.0; 3]),
    ] {
        for images in [1, 4] {
            // With one channel, and with four channels and four results.
            let padding = Padding::Sides { top: 0, bottom: 0, left, right };
            let op = Convolve2d { padding, dilation: (1, far), ..Convolve2d::default() };
            let (x, kernel) = (row.repeat(images), [10.0, 20.0].repeat(images * images));
            let y = simd.convolve2d_with(&x, &[images, 1, 3], &kernel, &[images, images, 1, 2], op);
            let expected: Vec<f32> = expected.iter().map(|y| y * images as f32).collect();
            assert_eq!(y, Ok(expected.repeat(images)), "{left} {right}");
        }
    }
}

/// Calls every function of the table with lengths that do not agree, and with none.
macro_rules! every_function {
    ($($(#[doc = $doc:literal])* $variant:ident {
        name: $name:ident, into: $into:ident, operands: ($($x:ident),*), params: ($($p:ident),*), flops: $flops:literal,
        $($ignored:tt)*
    })*) => {
        fn elementwise(simd: &Simd) {
            $({
                let mut lengths = 3..;
                $(let $x = vec![1.0f32; lengths.next().unwrap()];)*
                $(let $p = 0.5;)*
                let differ = lengths.next() > Some(4);
                let result = simd.$name($(&$x,)* $($p),*);
                assert_eq!(result.is_err(), differ, "{}: {result:?}", stringify!($name));
                $(let $x = vec![1.0f32; 3]; let _ = &$x;)*
                for length in [0, 1, 2, 4] {
                    let mut out = vec![7.0; length];
                    assert!(simd.$into($(&$x,)* $($p,)* &mut out).is_err(), "{} into {length}", stringify!($into));
                    assert!(out.iter().all(|&v| v == 7.0));
                }
                assert_eq!(simd.$name($({ let _ = &$x; &[] },)* $($p),*), Ok(vec![]), "{}", stringify!($name));
            })*
        }
    };
}
kiln_ir::elementwise_table!(every_function);

#[test]
fn element_wise_functions_refuse_lengths_that_differ() {
    elementwise(&Simd::new().unwrap());
}

#[test]
fn data_that_do_not_fill_their_shape_are_refused() {
    assert!(matches!(Operand::f32(&[0.0; 5], &[2, 3]), Err(Error::Length { .. })));
    assert!(matches!(Operand::elements(&[0u32; 5], &[2, 3]), Err(Error::Length { .. })));
    assert!(matches!(Operand::f32(&[], &[usize::MAX, 0]), Err(Error::Overflow { .. })));
    assert!(matches!(Operand::f32(&[0.0; 128], &[2, 2, 2, 2, 2, 2, 2]), Err(Error::Shape { .. })));
    for format in QuantFormat::ALL {
        assert!(matches!(Operand::blocks(&[0; 100], &[100], format), Err(Error::Format { .. })));
        assert!(matches!(Operand::blocks(&[0; 3], &[1024], format), Err(Error::Length { .. })));
        assert!(Operand::new(Data::Blocks(format, &[]), Shape::new(&[0, 256]).unwrap()).is_ok());
    }
}

#[test]
fn absurd_parameters_are_results_or_errors() {
    use kiln_ir::op::*;
    const LARGE: usize = usize::MAX;
    let picture: &[usize] = &[2, 9, 9];
    let kernel: &[usize] = &[3, 2, 3, 3];
    let heads: &[usize] = &[2, 4, 8];
    let mut ops: Vec<(Op, Vec<&[usize]>)> = Vec::new();
    for axis in [3, 4, LARGE] {
        Reduction::ALL.iter().for_each(|&reduction| ops.push((Reduce::along(reduction, axis).into(), vec![picture])));
    }
    for steps in [(0, 0), (0, 1), (1, 0), (LARGE, 1), (1, LARGE), (LARGE, LARGE), (LARGE - 1, 2), (100, 100)] {
        for padding in [Padding::Valid, Padding::Same] {
            for [stride, dilation] in [[steps, (1, 1)], [(1, 1), steps], [steps; 2]] {
                for groups in [1, 2, LARGE] {
                    let op = Convolve2d { padding, stride, dilation, groups };
                    ops.push((op.into(), vec![picture, kernel]));
                    ops.push((op.into(), vec![&[9, 9], &[3, 3]]));
                    ops.push((op.into(), vec![&[2, 9], &[4, 1, 1]]));
                }
            }
            ops.push((Convolve2d { padding, groups: 0, ..Convolve2d::default() }.into(), vec![picture, kernel]));
        }
        // Sides that overflow, and sides with a stride that leaves few results.
        for (rows, columns) in [steps, (1 << 40, 1 << 20)] {
            let padding = Padding::Sides { top: rows, bottom: 1, left: 0, right: columns };
            for padding in [padding, Padding::around(columns, rows)] {
                for dilation in [(1, 1), (1 << 39, 3), (5, LARGE)] {
                    let op = Convolve2d { padding, stride: (1 << 40, 1 << 40), dilation, groups: 1 };
                    ops.push((op.into(), vec![picture, kernel]));
                    ops.push((op.into(), vec![&[9, 9], &[3, 3]]));
                }
            }
        }
        for padding in [Padding::Valid, Padding::Same, Padding::around(steps.0, steps.1)] {
            for [stride, dilation] in [[steps, (1, 1)], [(1, 1), steps], [steps, steps], [(3, 2), (2, 2)]] {
                for (groups, output_padding) in [(1, (0, 0)), (2, (1, 1)), (LARGE, (0, 0)), (0, (0, 0)), (1, steps)] {
                    let op = ConvolveTranspose2d { padding, stride, dilation, groups, output_padding };
                    ops.push((op.into(), vec![picture, &[2, 3, 3, 3]]));
                    ops.push((op.into(), vec![&[9, 9], &[3, 3]]));
                    ops.push((op.into(), vec![&[1, 1], &[3, 3]]));
                    ops.push((op.into(), vec![&[2, 9], &[2, 4, 1]]));
                }
            }
        }
        for mode in [ResizeMode::Nearest, ResizeMode::Bilinear] {
            for coordinates in
                [ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners, ResizeCoordinates::Asymmetric]
            {
                let op = Resize2d { mode, coordinates, size: steps };
                let shapes: [&[usize]; 6] = [picture, &[1, 1], &[0, 2, 2], &[3, 0], &[7], &[]];
                ops.extend(shapes.map(|dims| (op.into(), vec![dims])));
            }
        }
        for other in [(1, 1), (2, 2), (0, 0), (LARGE, LARGE)] {
            ops.push((Pool2d::max(steps, other).into(), vec![picture]));
            ops.push((Pool2d::average(steps, other).into(), vec![picture]));
            ops.push((Pool2d::max(other, steps).into(), vec![picture]));
        }
    }
    for k in [0, 9, 10, 1 << 31, 1 << 32, LARGE] {
        ops.push((TopK { k }.into(), vec![picture]));
    }
    for value in [0.0, -0.0, -1.0, f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, 1e-45] {
        ops.push((LayerNorm::new(value).into(), vec![picture, &[9], &[9]]));
        ops.push((RmsNorm::new(value).into(), vec![picture, &[9]]));
        for causal in [false, true] {
            let attention = Attention { causal, ..Attention::full().scaled(value) };
            ops.push((attention.into(), vec![heads, heads, heads]));
        }
        for position in [0, Rope::POSITIONS - 1, Rope::POSITIONS, LARGE] {
            for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
                ops.push((Rope { theta: value.into(), style, position, ..Rope::default() }.into(), vec![heads]));
            }
        }
        for &kind in ElementwiseKind::ALL {
            ops.push((kind.with_params([value, -value]).into(), vec![picture; kind.arity()]));
        }
    }
    let mut random = Random::new(12);
    let mut faults = Vec::new();
    for simd in instruction_sets() {
        for (op, shapes) in &ops {
            let inputs: Vec<_> = shapes.iter().filter_map(|dims| noise(DType::F32, dims, &mut random)).collect();
            attempt(&mut faults, &simd, op, &inputs);
        }
    }
    assert_none(&faults);
}

/// The result of a program that starts with this `KILN_ISA`: the last line of a child process of this test.
fn child(value: &std::ffi::OsStr) -> String {
    use std::process::Command;
    let program = std::env::current_exe().unwrap();
    // Under an emulator cargo names the program that runs the tests; a child needs it too.
    let runner = std::env::var("CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER").ok();
    let mut command = match runner.as_deref().map(|runner| runner.split_whitespace().collect::<Vec<_>>()).as_deref() {
        Some([emulator, options @ ..]) if cfg!(target_arch = "aarch64") => {
            let mut command = Command::new(emulator);
            command.args(options).arg(program);
            command
        }
        _ => Command::new(program),
    };
    let output = command.args(["--exact", "says_its_instruction_set", "--nocapture"]).env("KILN_ISA", value).output();
    let output = output.unwrap();
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    text.lines().find_map(|line| line.split_once("instruction set: ")).unwrap_or_else(|| panic!("{text}")).1.to_owned()
}

/// The program of the child process above; on its own it only checks that asking does not panic.
#[test]
fn says_its_instruction_set() {
    match Simd::new() {
        Ok(simd) => println!("instruction set: {}", simd.isa()),
        Err(error) => println!("instruction set: refused, {error}"),
    }
}

#[test]
#[cfg(not(miri))] // no child processes on this target
fn kiln_isa_chooses_or_is_refused() {
    for isa in Isa::ALL {
        let says = child(isa.name().as_ref());
        if isa.is_available() {
            assert_eq!(says, isa.name());
        } else {
            assert!(says.starts_with("refused") && says.contains(isa.name()), "{says}");
        }
    }
    assert_eq!(child("".as_ref()), Isa::best().name(), "an empty variable is as none");
    for name in ["avx1024", "AVX2", " avx2", "scalar,sse2", "\u{1f4a5}"] {
        let says = child(name.as_ref());
        assert!(says.starts_with("refused") && says.contains("scalar"), "{name:?}: {says}");
    }
    #[cfg(unix)]
    {
        let says = child(std::os::unix::ffi::OsStrExt::from_bytes(&[0x66, 0xff, 0x80]));
        assert!(says.starts_with("refused"), "{says}");
    }
}
