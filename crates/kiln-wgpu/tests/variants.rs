//! Variants of kernels that the cases of kiln-ir are too small for: large tiles, split work, several dispatches.

mod support;

use kiln_ir::op::reference::{self, Case, Input, Random};
use kiln_ir::op::{
    Attention, Convolve2d, ConvolveTranspose2d, Gather, Matmul, Matvec, Op, Padding, Param, Pool2d, Resize2d, Rope,
    RopeStyle,
};
use kiln_ir::{Buffer, Error, Operations};
use kiln_wgpu::{GpuBackend, numerics};

/// With `KILN_SAMPLE` a third of more than a dozen cases.
fn conform(cases: impl IntoIterator<Item = Case>) {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let cases: Vec<Case> = cases.into_iter().collect();
    let step = if cases.len() > 12 { kiln_device::conformance::sample().min(3) } else { 1 };
    for case in cases.into_iter().step_by(step) {
        match reference::conform_within(&case, numerics::bound, false, |op, inputs| backend.run(op, inputs)) {
            Ok(accuracy) => println!("{case}: {:.3}", accuracy.worst),
            Err(why) => panic!("{why}"),
        }
    }
}

/// Tensors of random numbers.
struct Tensors(Random);

impl Tensors {
    fn of(&mut self, dims: &[usize]) -> Input {
        Input::f32(self.0.uniforms(dims.iter().product(), -1.0, 1.0), dims)
    }
}

#[test]
fn products_in_large_tiles() {
    let mut tensors = Tensors(Random::new(51));
    let mut cases = Vec::new();
    // Tiles of 128 and of 64: rows of any length, whole vectors, whole slices.
    for (batch, m, k, n) in [
        (50, 250, 19, 251),
        (50, 252, 24, 248),
        (50, 256, 32, 252),
        (52, 121, 33, 122),
        (52, 120, 36, 124),
        (52, 124, 64, 128),
    ] {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let a = tensors.of(&if transpose_a { [batch, k, m] } else { [batch, m, k] });
            let b = tensors.of(&if transpose_b { [batch, n, k] } else { [batch, k, n] });
            cases.push(Case::new(Matmul { transpose_a, transpose_b }, vec![a, b]));
        }
    }
    // Partial sums in C, and a B that all products share.
    for (m, n) in [(250, 249), (121, 120)] {
        cases.push(Case::new(Matmul::default(), vec![tensors.of(&[52, m, 260]), tensors.of(&[52, 260, n])]));
    }
    let op = Matmul { transpose_a: true, transpose_b: false };
    cases.push(Case::new(op, vec![tensors.of(&[52, 40, 132]), tensors.of(&[40, 132])]));
    conform(cases);
}

#[test]
fn products_with_few_vectors() {
    let mut tensors = Tensors(Random::new(52));
    let mut cases = Vec::new();
    for (batch, m, k, n) in
        [(3, 2, 260, 500), (3, 500, 260, 7), (2, 8, 64, 8), (2, 5, 7, 900), (1, 3, 9000, 5), (4, 70, 3, 2)]
    {
        for (transpose_a, transpose_b) in [(false, false), (true, false), (false, true), (true, true)] {
            let a = tensors.of(&if transpose_a { [batch, k, m] } else { [batch, m, k] });
            let b = tensors.of(&if transpose_b { [batch, n, k] } else { [batch, k, n] });
            let shared = tensors.of(&if transpose_b { [n, k] } else { [k, n] });
            let op = Matmul { transpose_a, transpose_b };
            cases.push(Case::new(op, vec![a.clone(), b]));
            cases.push(Case::new(op, vec![a, shared]));
        }
    }
    conform(cases);
}

#[test]
fn convolutions_in_large_tiles() {
    let mut tensors = Tensors(Random::new(53));
    let mut cases = Vec::new();
    for (c_out, pictures, side) in [(130, 13, 32), (66, 7, 31)] {
        for (kh, kw) in [(1, 1), (3, 3), (5, 5), (7, 7), (2, 3)] {
            for stride in [(1, 1), (2, 1)] {
                let side = if stride == (1, 1) { side } else { side + side / 2 };
                let op = Convolve2d { padding: Padding::Same, stride, ..Convolve2d::default() };
                let c_in = if kh * kw > 9 { 1 } else { 2 };
                let kernel = tensors.of(&[c_out, c_in, kh, kw]);
                cases.push(Case::new(op, vec![tensors.of(&[pictures, c_in, side, side]), kernel]));
            }
        }
    }
    // Dilated kernels of each constant side, padding on each side, and groups: in tiles of every size, few results,
    // parts of long sums, pixels of one image and of several.
    let padding = Padding::Sides { top: 2, bottom: 0, left: 1, right: 3 };
    for (groups, c_in, c_out, pictures, side, kh, kw) in [
        (1, 2, 130, 13, 32, 3, 3),
        (1, 3, 66, 7, 31, 5, 5),
        (2, 2, 130, 9, 32, 3, 3),
        (3, 5, 40, 2, 17, 2, 3),
        (4, 150, 9, 1, 6, 3, 3),
        (19, 1, 1, 2, 30, 5, 5),
        (7, 3, 4, 1, 13, 3, 2),
        (2, 20, 33, 1, 9, 1, 1),
        (2, 20, 33, 3, 9, 1, 1),
        (9, 1, 2, 1, 5, 1, 1),
    ] {
        for (stride, dilation) in [((1, 1), (1, 1)), ((1, 1), (2, 3)), ((3, 2), (2, 1))] {
            let op = Convolve2d { padding: if kh == 1 { Padding::Valid } else { padding }, stride, dilation, groups };
            let kernel = tensors.of(&[groups * c_out, c_in, kh, kw]);
            cases.push(Case::new(op, vec![tensors.of(&[pictures, groups * c_in, side, side]), kernel]));
        }
    }
    // Rows of results far apart, most of them in the padding.
    let padding = Padding::Sides { top: 70_000, bottom: 90_000, left: 1, right: 1 };
    for stride in [(10_000, 1), (70_000, 3)] {
        let op = Convolve2d { padding, stride, ..Convolve2d::default() };
        cases.push(Case::new(op, vec![tensors.of(&[5, 6]), tensors.of(&[3, 3])]));
        cases.push(Case::new(op, vec![tensors.of(&[2, 5, 6]), tensors.of(&[6, 2, 3, 3])]));
    }
    // Products of pixels, one image at a time and all at once; many channels for few results, split.
    for (pictures, c_in, side, c_out) in [(3, 20, 9, 33), (6, 20, 4, 40), (1, 700, 5, 9)] {
        let kernel = tensors.of(&[c_out, c_in, 1, 1]);
        cases.push(Case::new(Convolve2d::default(), vec![tensors.of(&[pictures, c_in, side, side]), kernel]));
    }
    conform(cases);
}

#[test]
fn transposed_convolutions_and_resized_images_of_many_channels() {
    let mut tensors = Tensors(Random::new(59));
    let mut cases = Vec::new();
    let padding = Padding::around(1, 1);
    // Channels in several blocks, images in a batch, more workgroups than one; groups with a stride that a dilation shares.
    for (pictures, groups, c_in, side, c_out, k, stride, dilation) in [
        (1, 1, 600, 5, 3, 4, (2, 2), (1, 1)),
        (3, 1, 16, 30, 12, 3, (2, 3), (1, 1)),
        (2, 4, 5, 19, 3, 5, (4, 2), (6, 2)),
    ] {
        let op = ConvolveTranspose2d { padding, stride, dilation, groups, output_padding: (1, 0) };
        let kernel = tensors.of(&[groups * c_in, c_out, k, k]);
        cases.push(Case::new(op, vec![tensors.of(&[pictures, groups * c_in, side, side]), kernel]));
    }
    for size in [(200, 330), (31, 17)] {
        for op in [Resize2d::nearest(size), Resize2d::bilinear(size)] {
            cases.push(Case::new(op, vec![tensors.of(&[3, 5, 97, 101])]));
        }
    }
    conform(cases);
}

#[test]
fn attention_of_every_shape() {
    let mut tensors = Tensors(Random::new(54));
    let mut cases = Vec::new();
    // (batch, heads, kv_heads, s, t, d): split keys, values of several chunks, heads in one block, a few queries.
    for (batch, heads, kv_heads, s, t, d) in [
        (1, 2, 1, 9, 700, 72),
        (1, 2, 2, 70, 900, 130),
        (1, 3, 3, 100, 600, 257),
        (2, 8, 2, 20, 90, 64),
        (1, 8, 1, 1, 1100, 256),
        (1, 4, 2, 1, 500, 8),
        (2, 16, 1, 1, 700, 20),
        (1, 3, 1, 2, 300, 128),
    ] {
        for op in [Attention::full(), Attention::causal()] {
            let (q, kv) = ([batch, heads, s, d], [batch, kv_heads, t, d]);
            cases.push(Case::new(op, vec![tensors.of(&q), tensors.of(&kv), tensors.of(&kv)]));
        }
    }
    // Values that a causal query must not see, also in other parts of the keys.
    let mut v = tensors.of(&[1, 900, 16]);
    if let Buffer::F32(data) = &mut v.buffer {
        data[850 * 16 + 2] = f32::NAN;
        data[899 * 16 + 5] = f32::INFINITY;
    }
    let inputs = vec![tensors.of(&[1, 70, 16]), tensors.of(&[1, 900, 16]), v];
    cases.push(Case::new(Attention::causal(), inputs));
    conform(cases);
}

#[test]
fn large_windows_and_long_rows() {
    let mut tensors = Tensors(Random::new(55));
    let mut cases = Vec::new();
    for op in [Pool2d::max, Pool2d::average] {
        cases.push(Case::new(op((150, 700), (1, 3)), vec![tensors.of(&[2, 151, 706])]));
    }
    for style in [RopeStyle::HalfSplit, RopeStyle::Interleaved] {
        for (theta, d) in [(10_000.0, 2052), (0.5, 6), (1.0, 4)] {
            let op = Rope { theta: Param::from(theta), style, position: 77, ..Rope::default() };
            cases.push(Case::new(op, vec![tensors.of(&[3, 5, d])]));
        }
    }
    let mut random = Random::new(56);
    for columns in [3, 4] {
        let indices = (0..20_000).map(|_| random.below(50) as u32).collect();
        let indices = Input::new(Buffer::U32(indices), &[20_000]);
        cases.push(Case::new(Gather, vec![tensors.of(&[50, columns]), indices]));
    }
    conform(cases);
}

#[test]
fn operands_larger_than_a_binding_of_weak_devices() {
    // 144 MB: software devices bind at most 128 MiB.
    let many = Input::f32(Random::new(57).uniforms(36_000_000, -1.0, 1.0), &[6000, 6000]);
    let mut tensors = Tensors(Random::new(58));
    let shaped = |dims: &[usize]| Input::new(many.buffer.clone(), dims);
    let indices = Input::new(Buffer::U32(vec![5999, 0, 5592, 5591, 17]), &[5]);
    conform([
        Case::new(Matvec { transpose: false }, vec![many.clone(), tensors.of(&[6000])]),
        Case::new(Gather, vec![many.clone(), indices]),
        Case::new(Pool2d::max((500, 500), (500, 500)), vec![shaped(&[36, 1000, 1000])]),
        Case::new(
            Attention::full(),
            vec![tensors.of(&[36, 1, 100]), shaped(&[36, 10_000, 100]), shaped(&[36, 10_000, 100])],
        ),
    ]);
}

#[test]
fn the_first_index_outside_of_a_table_is_reported() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let table = Input::f32(vec![1.0; 40], &[10, 4]);
    for count in [700, 20_000] {
        let mut indices = vec![3; count];
        (indices[611], indices[612], indices[count - 1]) = (10, 4_000_000_000, 99);
        let indices = Input::new(Buffer::U32(indices), &[count]);
        let operands = [table.operand().unwrap(), indices.operand().unwrap()];
        let result = backend.run(&Op::from(Gather), &operands);
        let expected = Error::Index { op: "gather", position: 611, index: 10, bound: 10 };
        assert_eq!(result.err().map(|e| e.to_string()), Some(expected.to_string()), "{count}");
    }
}
