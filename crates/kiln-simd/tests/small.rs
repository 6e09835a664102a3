//! A few small inputs for every operation: quick enough for Miri, which looks for undefined behaviour in the kernels,
//! and a first answer when something is wrong. The conformance suite is the thorough one.

use kiln_ir::op::reference::{Case, Input, Random, conform};
use kiln_ir::op::*;
use kiln_ir::{Buffer, DType, DataMut, Operand, QuantFormat, f16};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

/// Makes cases of operations on random tensors.
struct Cases {
    random: Random,
    cases: Vec<Case>,
}

impl Cases {
    fn tensor(&mut self, dims: &[usize]) -> Input {
        Input::f32(self.random.uniforms(dims.iter().product(), 0.5, 2.0), dims)
    }

    fn add(&mut self, op: impl Into<Op>, shapes: &[&[usize]]) {
        let inputs = shapes.iter().map(|dims| self.tensor(dims)).collect();
        self.cases.push(Case::new(op, inputs));
    }

    fn blocks(&mut self, format: QuantFormat, rows: usize) -> Input {
        let n = rows * format.block_len();
        let mut blocks = vec![0; format.bytes(n).unwrap()];
        if cfg!(miri) {
            // The encoder searches for scales, which takes an interpreter seconds. Scales of these bytes are finite
            // too.
            blocks.fill_with(|| self.random.bits() as u8 & 0x3f);
        } else {
            format.encode(&self.random.uniforms(n, -1.0, 1.0), &mut blocks).unwrap();
        }
        Input::new(Buffer::Blocks(format, blocks), &[rows, format.block_len()])
    }
}

fn small_cases() -> Vec<Case> {
    let mut c = Cases { random: Random::new(5), cases: Vec::new() };
    // One vector and a tail of four lanes, and less than one.
    for &kind in ElementwiseKind::ALL {
        let op = kind.with_params([0.25, 1.5]);
        // All functions share their loops, so an interpreter runs one shape.
        let shapes: &[&[usize]] = if cfg!(miri) { &[&[7]] } else { &[&[3], &[7], &[2, 5]] };
        shapes.iter().for_each(|dims| c.add(op, &vec![*dims; kind.arity()]));
        if kind.arity() == 2 {
            c.add(op, &[&[2, 5], &[5]]);
            c.add(op, &[&[], &[6]]);
        }
    }
    for &reduction in Reduction::ALL {
        c.add(Reduce::all(reduction), &[&[3]]);
        c.add(Reduce::all(reduction), &[&[131]]);
        (0..3).for_each(|axis| c.add(Reduce::along(reduction, axis), &[&[2, 3, 5]]));
    }
    c.add(Dot, &[&[77], &[77]]);
    for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
        for (m, k, n) in [(1, 3, 5), (5, 3, 1), (3, 2, 4), (7, 3, 9)] {
            let a: &[usize] = if transpose_a { &[k, m] } else { &[m, k] };
            let b: &[usize] = if transpose_b { &[n, k] } else { &[k, n] };
            c.add(Matmul { transpose_a, transpose_b }, &[a, b]);
        }
    }
    c.add(Matmul::default(), &[&[2, 3, 4], &[2, 4, 5]]);
    c.add(Matvec { transpose: false }, &[&[7, 5], &[5]]);
    c.add(Matvec { transpose: true }, &[&[7, 5], &[7]]);
    c.add(Transpose, &[&[5, 6]]);
    c.add(Transpose, &[&[2, 3, 2]]);
    c.add(Softmax, &[&[2, 9]]);
    c.add(LogSoftmax, &[&[2, 9]]);
    c.add(LayerNorm::new(1e-5), &[&[2, 9], &[9], &[9]]);
    c.add(RmsNorm::new(1e-5), &[&[2, 9], &[9]]);
    for dims in [&[2, 4, 5][..], &[3, 4]] {
        c.add(GroupNorm::new(2, 1e-5), &[dims, &[4], &[4]]);
        c.add(BatchNorm::new(1e-5), &[dims, &[4], &[4], &[4], &[4]]);
    }
    let table = c.tensor(&[4, 3]);
    c.cases.push(Case::new(Gather, vec![table, Input::new(Buffer::U32(vec![3, 0, 3]), &[3])]));
    for op in [Op::from(Scatter), IndexAdd.into()] {
        let (table, source) = (c.tensor(&[4, 3]), c.tensor(&[3, 3]));
        c.cases.push(Case::new(op, vec![table, Input::new(Buffer::U32(vec![3, 0, 3]), &[3]), source]));
    }
    for x in [c.tensor(&[2, 4, 32]), c.blocks(QuantFormat::Q8_0, 8)] {
        let x = Input::new(x.buffer, &[2, 4, 32]);
        let (rows, at) = (c.tensor(&[2, 2, 32]), Input::new(Buffer::U32(vec![3, u32::MAX]), &[2]));
        c.cases.push(Case::new(WriteRows, vec![x, rows, at]));
    }
    c.add(TopK { k: 3 }, &[&[2, 11]]);
    for (axis, descending) in [(0, false), (1, true)] {
        c.add(Sort { axis, descending }, &[&[5, 7]]);
    }
    for padding in [Padding::Valid, Padding::Same] {
        for stride in [(1, 1), (2, 1)] {
            let op = Convolve2d { padding, stride, ..Convolve2d::default() };
            c.add(op, &[&[6, 7], &[3, 3]]);
            c.add(op, &[&[2, 5, 6], &[3, 2, 3, 2]]);
        }
    }
    // Dilations, paddings and groups, for every algorithm of convolutions: by planes, by channels, by pixels if vectors
    // are short.
    let padding = Padding::Sides { top: 1, bottom: 0, left: 2, right: 3 };
    for (stride, dilation) in [((1, 1), (2, 1)), ((2, 1), (1, 3))] {
        let op = Convolve2d { padding, stride, dilation, groups: 1 };
        c.add(op, &[&[6, 7], &[3, 3]]);
        c.add(op, &[&[2, 5, 6], &[4, 2, 3, 2]]);
        c.add(op, &[&[4, 3, 3], &[8, 4, 2, 2]]);
        c.add(Convolve2d { groups: 2, ..op }, &[&[2, 5, 6], &[2, 1, 3, 2]]);
        c.add(Convolve2d { groups: 2, ..op }, &[&[2, 4, 4, 3], &[8, 2, 1, 2]]);
    }
    c.add(Convolve2d { groups: 2, ..Convolve2d::default() }, &[&[4, 7], &[6, 2, 3]]);
    // Transposed: in one pass, in phases that are alike and that are not, with results that nothing reaches.
    let padding = Padding::Sides { top: 1, bottom: 0, left: 2, right: 1 };
    for (stride, dilation, output_padding) in
        [((1, 1), (1, 2), (0, 1)), ((2, 2), (1, 1), (1, 1)), ((3, 2), (2, 2), (0, 1)), ((5, 3), (1, 1), (0, 0))]
    {
        let op = ConvolveTranspose2d { padding, stride, dilation, groups: 1, output_padding };
        c.add(op, &[&[4, 5], &[3, 3]]);
        c.add(ConvolveTranspose2d { padding: Padding::Valid, ..op }, &[&[2, 3, 4], &[2, 4, 2, 2]]);
        c.add(ConvolveTranspose2d { groups: 2, ..op }, &[&[2, 2, 3, 4], &[2, 1, 3, 4]]);
    }
    c.add(ConvolveTranspose2d { stride: (1, 2), ..Default::default() }, &[&[2, 7], &[2, 3, 4]]);
    for mode in [ResizeMode::Nearest, ResizeMode::Bilinear] {
        for coordinates in
            [ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners, ResizeCoordinates::Asymmetric]
        {
            for size in [(7, 13), (3, 4), (4, 3), (4, 9)] {
                c.add(Resize2d { mode, coordinates, size }, &[&[2, 4, 9]]);
            }
        }
    }
    c.add(Pool2d::max((2, 2), (2, 2)), &[&[2, 5, 7]]);
    c.add(Pool2d::average((3, 2), (1, 2)), &[&[2, 5, 7]]);
    for op in [Attention::full(), Attention::causal()] {
        c.add(op, &[&[2, 3, 4], &[1, 5, 4], &[1, 5, 4]]);
    }
    // All options at once; few queries and many, values of another length, stored as f16.
    let (many, t) = if cfg!(miri) { (9, 12) } else { (30, 40) };
    for s in [1, many] {
        let mut inputs = vec![c.tensor(&[2, s, 4]), c.tensor(&[1, t, 4]), c.tensor(&[1, t, 6])];
        let mut narrow = vec![f16::ZERO; t * 4];
        kiln_ir::narrow(inputs[1].buffer.as_data().f32(), DataMut::F16(&mut narrow));
        inputs[1] = Input::new(Buffer::F16(narrow), &[1, t, 4]);
        let more = AttentionOperands {
            mask: Some(Input::any(DType::Bool, &[s, t], &mut c.random)),
            positions: Some(Input::new(Buffer::U32((0..s as u32).map(|i| i + t as u32 / 4).collect()), &[s])),
            lengths: Some(Input::new(Buffer::U32(vec![t as u32 - 3]), &[1])),
            sinks: Some(c.tensor(&[2])),
            slopes: Some(c.tensor(&[2])),
        };
        let op = Attention::causal().windowed(t as u32 / 2).capped(2.0).with(&more);
        inputs.extend(more.into_vec());
        c.cases.push(Case::new(op, inputs));
    }
    for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
        c.add(Rope { style, position: 3, ..Rope::default() }, &[&[3, 8]]);
    }
    for &comparison in Comparison::ALL {
        c.add(Compare { comparison }, &[&[3, 7], &[7]]);
    }
    for &function in IntegerFunction::ALL {
        for dtype in [DType::I32, DType::U8] {
            let operands = [&[3, 7][..], &[7]].map(|dims| Input::any(dtype, dims, &mut c.random));
            c.cases.push(Case::new(Arithmetic { function }, operands.to_vec()));
        }
    }
    c.add(Cumsum { axis: 0 }, &[&[3, 7]]);
    c.add(Cumsum { axis: 1 }, &[&[3, 7]]);
    let condition = Input::any(DType::Bool, &[7], &mut c.random);
    let (a, b) = (c.tensor(&[3, 7]), c.tensor(&[]));
    c.cases.push(Case::new(Select, vec![condition, a, b]));
    for &to in DType::ALL {
        c.add(Cast { to }, &[&[3, 7]]);
    }
    c.add(Matmul::default(), &[&[1, 3, 4], &[2, 4, 5]]);
    c.add(Matmul { transpose_a: false, transpose_b: true }, &[&[2, 1, 2, 3], &[2, 4, 3]]);
    // A transpose, rows that move whole, transposed planes, elements that are neither.
    for axes in [&[1, 0][..], &[0, 2, 1], &[1, 0, 2], &[2, 1, 0], &[3, 0, 2, 1]] {
        let dims = [5, 6, 7, 2];
        c.add(Permute::new(axes).unwrap(), &[&dims[..axes.len()]]);
    }
    c.add(Slice::along(1, 1..5, 1).unwrap(), &[&[3, 6]]);
    c.add(Slice::along(1, 1..usize::MAX, 2).unwrap().cut(0, 2..3, 1).unwrap(), &[&[3, 6, 2]]);
    c.add(BroadcastTo::new(&[2, 3, 5]).unwrap(), &[&[3, 1]]);
    c.add(BroadcastTo::new(&[4, 3]).unwrap(), &[&[3]]);
    c.add(Pad::new(&[(1, 0), (2, 1)], 0.5).unwrap(), &[&[2, 3]]);
    c.add(Concat { axis: 1 }, &[&[2, 3], &[2, 1], &[2, 4]]);
    c.add(Concat { axis: 0 }, &[&[3], &[5]]);
    c.add(AllReduce, &[&[2, 6]]);
    c.add(Reshape::to(&[3, 4]).unwrap(), &[&[2, 6]]);
    c.add(Reshape::Unsqueeze(1), &[&[2, 6]]);
    let indices = Input::new(Buffer::U32((0..30).collect()), &[5, 6]);
    let halves = Input::new(Buffer::F16((0..15).map(|n| f16::from_f32(n as f32)).collect()), &[3, 5]);
    let rows = c.blocks(QuantFormat::Q8_0, 6);
    let rows = Input::new(rows.buffer, &[2, 3, 32]);
    for x in [indices, halves] {
        c.cases.push(Case::new(Permute::new(&[1, 0]).unwrap(), vec![x.clone()]));
        c.cases.push(Case::new(Pad::new(&[(0, 1), (1, 0)], 2.0).unwrap(), vec![x.clone()]));
        c.cases.push(Case::new(Concat { axis: 1 }, vec![x.clone(), x]));
    }
    c.cases.push(Case::new(Permute::new(&[1, 0, 2]).unwrap(), vec![rows.clone()]));
    c.cases.push(Case::new(Slice::along(1, 0..3, 2).unwrap(), vec![rows]));
    for format in QuantFormat::ALL {
        let k = format.block_len();
        c.add(Quantize { format }, &[&[1, k]]);
        let (x, blocks) = (c.tensor(&[2, k]), c.blocks(format, 3));
        c.cases.push(Case::new(Dequantize { format }, vec![blocks.clone()]));
        c.cases.push(Case::new(QuantMatmul { format }, vec![x, blocks]));
    }
    // One expert with one row, one with two and one with none, with floating-point and quantised weights.
    let chosen = Input::new(Buffer::U32(vec![2, 0, 2]), &[3]);
    let (x, weights) = (c.tensor(&[3, 5]), c.tensor(&[3, 4, 5]));
    let mut narrow = vec![f16::ZERO; 3 * 4 * 5];
    kiln_ir::narrow(weights.buffer.as_data().f32(), DataMut::F16(&mut narrow));
    let narrow = Input::new(Buffer::F16(narrow), &[3, 4, 5]);
    for weights in [weights, narrow] {
        c.cases.push(Case::new(MatmulByExpert, vec![x.clone(), weights, chosen.clone()]));
    }
    let (x, blocks) = (c.tensor(&[3, 32]), c.blocks(QuantFormat::Q8_0, 6));
    let blocks = Input::new(blocks.buffer, &[3, 2, 32]);
    c.cases.push(Case::new(MatmulByExpert, vec![x, blocks, chosen]));
    c.cases
}

/// Whether the results of a case are right. Miri only runs the kernels: computing what they should return takes it longer, and
/// native runs compare the same cases.
fn right(case: &Case, run: impl FnOnce(&Op, &[Operand<'_>]) -> kiln_ir::Result<Vec<Buffer>>) -> Result<(), String> {
    if cfg!(miri) {
        let operands = case.operands().map_err(|error| error.to_string())?;
        return run(&case.op, &operands).map(drop).map_err(|error| format!("{case}: {error}"));
    }
    conform(case, run).map(drop)
}

#[test]
fn every_operation_is_right_on_small_inputs() {
    let mut failures = Vec::new();
    for case in small_cases() {
        // Skips the encoder's search again; it is safe code.
        if cfg!(miri) && matches!(case.op, Op::Quantize(_)) {
            continue;
        }
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            if let Err(why) = right(&case, |op, inputs| simd.run(op, inputs)) {
                failures.push(format!("{isa}: {why}"));
            }
        }
    }
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

#[test]
#[cfg(not(miri))] // creating the large cases alone takes an interpreter minutes
fn no_operation_is_left_out() {
    let names = |cases: Vec<Case>| cases.iter().map(|case| case.op.name()).collect::<std::collections::BTreeSet<_>>();
    assert_eq!(names(small_cases()), names(all_cases()));
}

#[test]
fn packed_kernels_are_right_on_small_inputs() {
    let mut c = Cases { random: Random::new(6), cases: Vec::new() };
    // An interpreter takes seconds for a thousand products.
    let (wide, channels) = if cfg!(miri) { (20, 2) } else { (96, 16) };
    for (stride, x, w) in [((1, 1), [1, channels, 2, 5], [wide, channels, 3, 3]), ((2, 1), [2, 2, 3, 4], [3, 2, 2, 2])]
    {
        // Also with weights whose products with zeros of the padding are NaN: above the image, beside it, below it.
        for special in
            [None, Some((0, f32::INFINITY)), Some((w[3], f32::NEG_INFINITY)), Some((w[2] * w[3] - 1, f32::NAN))]
        {
            if cfg!(miri) && special.is_some_and(|(place, _)| place > 0) {
                continue;
            }
            let op = Convolve2d { padding: Padding::Same, stride, ..Convolve2d::default() };
            c.add(op, &[&x, &w]);
            let case = c.cases.last_mut().unwrap();
            if let (Some((place, value)), Buffer::F32(weights)) = (special, &mut case.inputs[1].buffer) {
                weights[place] = value;
            }
            for isa in Isa::available() {
                let simd = Simd::with_isa(isa).unwrap();
                let packed = right(case, |_, inputs| {
                    let kernels = simd.pack_kernels(inputs[1].data().f32(), w)?;
                    let y = simd.convolve2d_packed(inputs[0].data().f32(), &x, &kernels, op)?;
                    Ok(vec![Buffer::F32(y)])
                });
                let plain = right(case, |op, inputs| simd.run(op, inputs));
                packed.and(plain).unwrap_or_else(|why| panic!("{isa}, {special:?}: {why}"));
            }
        }
    }
}
