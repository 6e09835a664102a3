//! Quantised formats beyond the cases of the conformance suite: the search of the quantiser on data of many kinds, and
//! products of every size for which there is a kernel.

mod support;

use kiln_ir::op::reference::{Case, Input, Random, conform_within};
use kiln_ir::op::{Elementwise, Op, QuantMatmul, Quantize, RmsNorm};
use kiln_ir::{Buffer, Operand, Operations, Precision, QuantFormat, Record, Shape, TensorType};
use kiln_wgpu::{GpuBackend, GpuCommandBatch, GpuDevice, GpuDeviceOptions, numerics};

/// The distance of the cases that run: with `KILN_SAMPLE` some, and fewer from 50 on, as a second driver has it.
fn step(some: usize, few: usize) -> usize {
    match kiln_device::conformance::sample() {
        1 => 1,
        n if n < 50 => n.min(some),
        _ => few,
    }
}

fn encoded(format: QuantFormat, x: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; format.bytes(x.len()).expect("whole blocks")];
    format.encode(x, &mut blocks).expect("whole blocks");
    blocks
}

/// 256 elements of one of many kinds.
fn block(random: &mut Random, kind: usize) -> Vec<f32> {
    let scale = f32::powi(2.0, random.below(80) as i32 - 40);
    let uniform = |random: &mut Random| random.uniform(-1.0, 1.0);
    let mut x: Vec<f32> = match kind {
        // Uniform, bell-shaped, small integers (whose fits are exact), of one sign, nearly constant.
        0 => (0..256).map(|_| uniform(random)).collect(),
        1 => (0..256).map(|_| (0..4).map(|_| uniform(random)).sum()).collect(),
        2 => (0..256).map(|_| random.below(31) as f32 - 15.0).collect(),
        3 => (0..256).map(|_| -uniform(random).abs()).collect(),
        4 => (0..256).map(|_| 1.0 + uniform(random) * 1e-6).collect(),
        // Mostly zeros, and magnitudes of every order.
        5 => (0..256).map(|_| if random.below(20) == 0 { uniform(random) } else { 0.0 }).collect(),
        6 => (0..256).map(|_| uniform(random) * f32::powi(2.0, -(random.below(60) as i32))).collect(),
        // Sub-blocks of magnitudes of every order.
        7 => (0..16)
            .flat_map(|_| {
                let scale = f32::powi(2.0, -(random.below(40) as i32));
                (0..16).map(|_| uniform(random) * scale).collect::<Vec<_>>()
            })
            .collect(),
        // Arbitrary finite bits, so that most blocks saturate.
        8 => (0..256).map(|_| f32::from_bits(random.bits() as u32 & 0xbfff_ffff)).collect(),
        // Multiples of a step: quotients midway between two integers.
        _ => (0..256).map(|_| (random.below(255) as f32 - 127.0) * 0.5).collect(),
    };
    if kind != 8 {
        x.iter_mut().for_each(|x| *x *= scale);
    }
    x
}

#[test]
fn the_bytes_of_the_quantiser_are_those_of_the_reference() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let mut random = Random::new(97);
    // The reference takes longer than the device.
    let x: Vec<f32> = (0..1501 / step(4, 4)).flat_map(|i| block(&mut random, i % 10)).collect();
    let shape = Shape::new(&[x.len()]).unwrap();
    for format in QuantFormat::ALL {
        let input = Buffer::F32(x.clone());
        let got =
            backend.run(&Op::from(Quantize { format }), &[Operand::new(input.as_data(), shape).unwrap()]).unwrap();
        let Buffer::Blocks(_, got) = &got[0] else { panic!("no blocks") };
        let want = encoded(format, &x);
        let (len, bytes) = (format.block_len(), format.block_bytes());
        for (i, (got, want)) in got.chunks(bytes).zip(want.chunks(bytes)).enumerate() {
            let x = &x[i * len..(i + 1) * len];
            assert_eq!(got, want, "{} block {i} of {x:?}", format.name());
        }
        assert_eq!(got.len(), want.len());
    }
}

#[test]
fn products_of_every_size_agree_with_the_decoded_weights() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let mut random = Random::new(101);
    // Of samples each format takes at least one of its 13 sizes, and the next format others; of a second driver's every other format.
    let (sample, mut sizes) = (step(11, 23), 0..);
    for format in QuantFormat::ALL {
        let len = format.block_len();
        // Rows by lanes, with more lanes for fewer weights; several rows, two, four and eight at a time, in one piece and in
        // several; tiles of every height. None is a multiple of the results of a workgroup.
        for (m, n, k) in [
            (1, 9, 8 * len),
            (1, 1025, 1024),
            (1, 300, 4096),
            (1, 70, 8192 + 512),
            (1, 5, 16_384 + 256),
            (2, 37, 4096 + 256),
            (3, 41, 2048 + 256),
            (30, 500, 1024 + 256),
            (29, 2000, 512 + 256),
            (21, 33, 256),
            (35, 63 * 64 + 3, 3 * len),
            (35, 255 * 64 + 1, len),
            (129, 127 * 64 + 5, len),
        ] {
            if sizes.next().is_some_and(|number: usize| !number.is_multiple_of(sample)) {
                continue;
            }
            let in_tiles = m > 32;
            // Quantising takes longest here, so 61 rows of weights are repeated.
            let few = encoded(format, &random.uniforms(61 * k, -1.0, 1.0));
            let w: Vec<u8> = few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect();
            let mut x = random.uniforms(m * k, -1.0, 1.0);
            if m > 8 && !in_tiles {
                // Rows that have no integers.
                x[k + 5] = f32::INFINITY;
                x[2 * k..3 * k].iter_mut().for_each(|x| *x *= 1e-30);
                x[7 * k + 40] = f32::NAN;
            }
            let mut decoded = vec![0.0; n * k];
            format.decode(&w, &mut decoded).unwrap();
            let (input, weights) = (Buffer::F32(x.clone()), Buffer::Blocks(format, w));
            let operands = [
                Operand::new(input.as_data(), Shape::new(&[m, k]).unwrap()).unwrap(),
                Operand::new(weights.as_data(), Shape::new(&[n, k]).unwrap()).unwrap(),
            ];
            let got = backend.run(&Op::from(QuantMatmul { format }), &operands).unwrap();
            let Buffer::F32(got) = &got[0] else { panic!("no numbers") };
            assert_eq!(got.len(), m * n);
            // A sample that covers all rows and columns, and the last element.
            for at in (0..m * n).step_by((m * n / 20_000) | 1).chain([m * n - 1]) {
                let (i, j) = (at / n, at % n);
                let terms = x[i * k..(i + 1) * k].iter().zip(&decoded[j * k..(j + 1) * k]);
                let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, magnitude): (f64, f64), (&x, &w)| {
                    let term = f64::from(x) * f64::from(w);
                    (sum + term, magnitude + term.abs())
                });
                let off = (f64::from(got[at]) - sum).abs();
                // For lanes a row of x is rounded to 16 bits, with separate units for every sixteen elements.
                let rounding = |(x, w): (&[f32], &[f32])| {
                    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                    f64::from(largest) / 65_278.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                };
                let sixteens = x[i * k..(i + 1) * k].chunks(16).zip(decoded[j * k..(j + 1) * k].chunks(16));
                let rounded = if in_tiles { 0.0 } else { sixteens.map(rounding).sum() };
                let is_special = !sum.is_finite() && (f64::from(got[at]) == sum || got[at].is_nan() && sum.is_nan());
                assert!(
                    is_special || off <= magnitude * f64::powi(2.0, -20) + rounded,
                    "{} {m} x {n} x {k}: element {i}, {j} is {}, exact {sum}",
                    format.name(),
                    got[at]
                );
            }
        }
    }
}

/// The products of a batch run together, and take what is added to them; their bits are those of each product by itself.
#[test]
fn products_that_run_together_have_the_bits_of_each_alone() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(103);
    let k = 1024 + 256;
    let all = [QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0, QuantFormat::Q4K];
    // One row, a few, and enough for tiles. A driver in software takes seconds to compile each product of a kernel, so samples have two
    // formats each, and a second driver takes one of these numbers of rows.
    for (m, n, few) in [(3, 70, 1..3), (1, 70, 0..2), (20, 64 * 70 + 6, 2..4)].into_iter().step_by(step(1, 3)) {
        let formats = if kiln_device::conformance::sample() == 1 { &all[..] } else { &all[few] };
        let mut x = random.uniforms(m * k, -1.0, 1.0);
        // Elements that are multiplied without rounding.
        x[3] = 1e-30;
        (x[40], x[600]) = (1e35, -1e-38);
        let shapes = [[m, k], [n, k]].map(|dims| Shape::new(&dims).unwrap());
        let addend = random.uniforms(m * n, -1.0, 1.0);
        let weights = formats.iter().map(|&format| {
            let few = encoded(format, &random.uniforms(7 * k, -1.0, 1.0));
            Buffer::Blocks(format, few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect())
        });
        let weights: Vec<Buffer> = weights.collect();
        let mut batch = GpuCommandBatch::new(device.clone());
        let input = batch.upload(&x, &[m, k]).unwrap();
        let added = batch.upload(&addend, &[m, n]).unwrap();
        let mut wanted = Vec::new();
        for (&format, weights) in formats.iter().zip(&weights) {
            let weights = batch.upload_operand(&Operand::new(weights.as_data(), shapes[1]).unwrap()).unwrap();
            wanted.push(batch.record(QuantMatmul { format }, &[input, weights]).unwrap());
            let double = batch.scale(input, 2.0).unwrap();
            let of_double = batch.record(QuantMatmul { format }, &[double, weights]).unwrap();
            wanted.push(batch.add(of_double, added).unwrap());
        }
        let got = batch.run(&wanted).unwrap();
        let double: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        for (number, (&format, weights)) in formats.iter().zip(&weights).enumerate() {
            let alone = |x: &[f32]| {
                let x = Buffer::F32(x.to_vec());
                let operands = [(x.as_data(), shapes[0]), (weights.as_data(), shapes[1])];
                let operands = operands.map(|(data, shape)| Operand::new(data, shape).unwrap());
                backend.run(&Op::from(QuantMatmul { format }), &operands).unwrap()[0].as_data().f32().to_vec()
            };
            let bits = |x: &[f32]| x.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            let sums: Vec<f32> = alone(&double).iter().zip(&addend).map(|(product, addend)| product + addend).collect();
            assert_eq!(bits(got[2 * number].as_data().f32()), bits(&alone(&x)), "{format:?}, {m} rows");
            assert_eq!(bits(got[2 * number + 1].as_data().f32()), bits(&sums), "{format:?} and an addend, {m} rows");
        }
    }
}

/// Products that normalise their row: of ordinary rows, and of rows whose squares or products with gamma overflow or vanish or that have
/// special values.
#[test]
fn products_of_normalised_rows_keep_the_bounds_of_both() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(109);
    let all = kiln_device::conformance::sample() == 1;
    let few = [QuantFormat::Q4K, QuantFormat::Mxfp4, QuantFormat::Q6K, QuantFormat::Q4_0];
    let formats = if all { &QuantFormat::ALL[..] } else { &few[..4 / step(1, 2)] };
    // A piece of a row and a part of another with 64 lanes for each row of weights; then 8 lanes, and 32.
    let shapes = [(70, 4096 + 512), (70, 256), (10_300, 1024)];
    for (number, &format) in formats.iter().enumerate() {
        for &(n, k) in shapes.iter().skip(number % 2).step_by(if all { 1 } else { 2 }) {
            check_normalised(&device, format, [n, k], &mut random);
        }
    }
}

fn check_normalised(device: &GpuDevice, format: QuantFormat, [n, k]: [usize; 2], random: &mut Random) {
    let shapes = [&[1, k][..], &[k], &[n, k]].map(|dims| Shape::new(dims).unwrap());
    let some = encoded(format, &random.uniforms(7 * k, -1.0, 1.0));
    let mut decoded = vec![0.0; 7 * k];
    format.decode(&some, &mut decoded).unwrap();
    let blocks = some.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect();
    let weights = Buffer::Blocks(format, blocks);
    let ordinary = random.uniforms(k, -1.0, 1.0);
    let scaled = |size: f32| ordinary.iter().map(|x| x * size).collect::<Vec<f32>>();
    let with = |special: f32| {
        let mut x = ordinary.clone();
        x[k / 2 + 3] = special;
        x
    };
    let mut gamma = random.uniforms(k, 0.5, 1.5);
    gamma[5] = 0.0;
    let times = |factor: f32| gamma.iter().map(|gamma| gamma * factor).collect::<Vec<f32>>();
    let mut one_huge = gamma.clone();
    one_huge[7] = 1e20;
    // Elements that are too small to be laid out beside one whose gamma is zero.
    let mut apart = scaled(1e-25);
    apart[5] = 1.0;
    for (name, x, gamma, eps) in [
        ("ordinary", ordinary.clone(), &gamma, 1e-5),
        ("small beside eps", scaled(1e-4), &gamma, 1e-5),
        ("huge", scaled(1e30), &gamma, 1e-5),
        ("tiny", scaled(1e-30), &gamma, 0.0),
        ("tiny beside eps", scaled(1e-30), &gamma, 1e-5),
        ("subnormal", scaled(1e-41), &gamma, 0.0),
        ("tiny, with a tiny eps", scaled(1e-30), &gamma, 1e-41),
        ("zero", vec![0.0; k], &gamma, 1e-5),
        ("zero by zero", vec![0.0; k], &gamma, 0.0),
        ("apart", apart, &gamma, 0.0),
        ("one huge", with(3e38), &gamma, 1e-5),
        ("one huge gamma", ordinary.clone(), &one_huge, 1e-5),
        ("products with gamma vanish", scaled(1e-11), &times(1e-35), 0.0),
        ("subnormal, with a huge gamma", scaled(1e-40), &times(1e20), 1e-5),
        ("infinite", with(f32::INFINITY), &gamma, 1e-5),
        ("not a number", with(f32::NAN), &gamma, 1e-5),
    ] {
        let mut batch = GpuCommandBatch::new(device.clone());
        let row = batch.upload(&x, shapes[0].dims()).unwrap();
        let factors = batch.upload(gamma, shapes[1].dims()).unwrap();
        let blocks = batch.upload_operand(&Operand::new(weights.as_data(), shapes[2]).unwrap()).unwrap();
        let normal = batch.record(RmsNorm::new(eps), &[row, factors]).unwrap();
        let product = batch.record(QuantMatmul { format }, &[normal, blocks]).unwrap();
        let before = device.statistics();
        let got = batch.run(&[product]).unwrap();
        assert_eq!((device.statistics() - before).dispatches, 1, "the norm is part of the product");
        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
        let inverse = 1.0 / (squares / k as f64 + f64::from(eps)).sqrt();
        let y: Vec<f64> = x.iter().zip(gamma).map(|(&x, &gamma)| f64::from(x) * inverse * f64::from(gamma)).collect();
        let got = got[0].as_data().f32();
        // All rows if there are few, else some of all that workgroups and lanes have.
        for j in (0..n).step_by(if n < 100 { 1 } else { 61 }).chain([n - 1]) {
            let w = &decoded[j % 7 * k..][..k];
            let terms = y.iter().zip(w).map(|(y, &w)| y * f64::from(w));
            let (sum, magnitude) = terms.fold((0.0, 0.0), |(sum, all): (f64, f64), x| (sum + x, all + x.abs()));
            // A row is rounded to 16 bits, with separate units for every sixteen elements.
            let rounding = |(y, w): (&[f64], &[f32])| {
                let largest = y.iter().fold(0.0f64, |largest, y| largest.max(y.abs()));
                largest / 65_278.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
            };
            let rounded: f64 = y.chunks(16).zip(w.chunks(16)).map(rounding).sum();
            let got = got[j];
            let is_close = (f64::from(got) - sum).abs() <= magnitude * f64::powi(2.0, -19) + rounded;
            assert!(
                is_close || got.is_nan() && sum.is_nan(),
                "{format:?}, {n} x {k}, {name}: element {j} is {got}, exact {sum}"
            );
        }
    }
}

/// Gates in one step with their products of one row: the gates of these products computed alone.
#[test]
fn gates_of_products_of_one_row_are_those_of_single_operations() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(113);
    let gates = [Elementwise::swiglu(), Elementwise::geglu(), Elementwise::geglu_tanh()];
    let step = step(5, 7);
    for (number, format) in QuantFormat::ALL.into_iter().enumerate().step_by(step) {
        // Two pieces of a row with 64 lanes; 8 lanes, the last with one row; 32 lanes. The number is the same for one product and two.
        let [n, k] = [[70, 4096 + 512], [71, 256], [5200, 1024]][number / step % 3];
        let weights = [(); 2].map(|()| {
            let few = encoded(format, &random.uniforms(7 * k, -1.0, 1.0));
            few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect::<Vec<u8>>()
        });
        let ordinary = random.uniforms(k, -1.0, 1.0);
        let scaled = |size: f32| ordinary.iter().map(|x| x * size).collect::<Vec<f32>>();
        let mut special = ordinary.clone();
        special[k / 2 + 3] = f32::INFINITY;
        let rows = [ordinary.clone(), scaled(1e-30), scaled(1e25), special, vec![0.0; k]];
        let gamma = random.uniforms(k, 0.5, 1.5);
        // Each format with one function, because compiling takes longest.
        let gate = gates[(number / step + number / step / 3) % gates.len()];
        for (x, is_normed) in rows.iter().flat_map(|x| [false, true].map(|is_normed| (x, is_normed))) {
            let mut batch = GpuCommandBatch::new(device.clone());
            let mut row = batch.upload(x, &[1, k]).unwrap();
            if is_normed {
                let gamma = batch.upload(&gamma, &[k]).unwrap();
                row = batch.record(RmsNorm::new(1e-5), &[row, gamma]).unwrap();
            }
            let products = weights.each_ref().map(|blocks| {
                let blocks = batch.upload_blocks(blocks, &[n, k], format).unwrap();
                batch.record(QuantMatmul { format }, &[row, blocks]).unwrap()
            });
            let gated = batch.record(gate, &products).unwrap();
            let before = device.statistics();
            let got = batch.run(&[gated]).unwrap();
            assert_eq!((device.statistics() - before).dispatches, 1, "the gate is part of the products");
            let alone = batch.run(&products).unwrap();
            let operands: Vec<Operand<'_>> =
                alone.iter().map(|product| Operand::f32(product.as_data().f32(), &[1, n]).unwrap()).collect();
            let expected = backend.run(&gate.into(), &operands).unwrap();
            for (j, (got, expected)) in got[0].as_data().f32().iter().zip(expected[0].as_data().f32()).enumerate() {
                // Compilers may join multiplications with additions in one of the kernels and not in the other.
                let is_close = (got - expected).abs() <= expected.abs() * 1e-6 || got == expected;
                let name = gate.kind().name();
                assert!(
                    is_close || got.is_nan() && expected.is_nan(),
                    "{format:?}, {n} x {k}, {name}, normed {is_normed}: element {j} is {got}, alone {expected}"
                );
            }
        }
    }
}

/// Rows of x and of weights. Some have special values: not finite, huge, tiny, of magnitudes that no f16 holds beside each
/// other, or zero.
fn specials(format: QuantFormat, [m, n, k]: [usize; 3], random: &mut Random) -> (Vec<f32>, Vec<u8>) {
    let mut x = random.uniforms(m * k, -1.0, 1.0);
    let infinity = f32::INFINITY;
    for (row, special) in [(1, f32::NAN), (40, infinity), (41, -infinity), (m - 1, infinity), (7, 2e30), (8, 1e-45)] {
        if row < m {
            x[row * k + k / 2 + 3] = special;
        }
    }
    for (row, size) in [(2, 1e25), (3, 1e-30), (42, 1e-42), (43, 0.0), (m - 2, 1e-20)] {
        if row < m {
            x[row * k..(row + 1) * k].iter_mut().for_each(|x| *x *= size);
        }
    }
    // Blocks of one row from 1 down to 2^-30, and zeros.
    for (i, block) in x[5 * k..6 * k].chunks_mut(format.block_len()).enumerate() {
        let size = if i % 3 == 2 { 0.0 } else { f32::powi(2.0, -(i as i32 % 31)) };
        block.iter_mut().for_each(|x| *x *= size);
    }
    // Quantising takes longest here, so 61 rows of weights are repeated; scales and integers of others are arbitrary.
    let mut few = encoded(format, &random.uniforms(61 * k, -1.0, 1.0));
    let row = few.len() / 61;
    for byte in &mut few[10 * row..12 * row] {
        *byte = random.bits() as u8;
    }
    if format == QuantFormat::Mxfp4 {
        // From 2^-28 to 2^31: products stay within f32.
        let blocks = few[10 * row..12 * row].chunks_mut(format.block_bytes());
        blocks.for_each(|block| block[0] = 100 + random.below(60) as u8);
    }
    let w = few.iter().copied().cycle().take(n * row).collect();
    (x, w)
}

#[test]
fn products_through_cooperative_matrices_keep_their_bounds() {
    for precision in [Precision::Contract, Precision::Bf16] {
        let Some(device) = support::device_with(&GpuDeviceOptions::new().precision(precision)) else { return };
        if !device.has_cooperative_matrices() {
            eprintln!("skipped: {} has no cooperative matrices", device.adapter());
            return;
        }
        let backend = GpuBackend::on(device.clone());
        let mut random = Random::new(103);
        for format in QuantFormat::ALL {
            // One part of k, and several with a shorter last one; tiles and what goes beyond them; an odd number of
            // blocks of 32; more than eight rows of tiles. Formats share all but the decoding, so most get one of these.
            let all = precision == Precision::Contract
                && matches!(format, QuantFormat::Q8_0 | QuantFormat::Mxfp4 | QuantFormat::Q4K | QuantFormat::Q6K);
            let shapes = [[257_usize, 260, 256], [70, 300, 1792], [128, 256, 17 * 32], [1100, 260, 512]];
            let shapes = shapes.into_iter().take(if all { 4 } else { 1 });
            // Most formats of blocks of 256 elements have a kernel of their own, in tiles of 16, 32 and 64 rows, that of Q6_K for these
            // numbers of rows. Parts of k are several blocks or one, and the last is shorter.
            let few = [[16, 4100, 1280], [40, 4100, 1280], [20, 4100, 1280]]
                .into_iter()
                .filter(|_| format.block_len() == 256);
            for [m, n, k] in shapes.chain(few) {
                if !k.is_multiple_of(format.block_len()) {
                    continue;
                }
                let (x, w) = specials(format, [m, n, k], &mut random);
                let inputs = vec![Input::f32(x, &[m, k]), Input::new(Buffer::Blocks(format, w), &[n, k])];
                let case = Case::new(QuantMatmul { format }, inputs);
                let bound = |op: &Op, types: &[TensorType]| numerics::bound_on(&device, op, types);
                let found = conform_within(&case, bound, true, |op, operands| {
                    let [first, second] = [backend.run(op, operands)?, backend.run(op, operands)?];
                    let bits = |result: &[Buffer]| result[0].as_data().as_bytes().to_vec();
                    assert!(bits(&first) == bits(&second), "{} {m} x {n} x {k} at {precision}", format.name());
                    Ok(first)
                })
                .unwrap_or_else(|why| panic!("at {precision}: {why}"));
                println!("{} {m} x {n} x {k} at {precision}: worst {:.3} u", format.name(), found.worst);
            }
        }
    }
}

/// A kernel that adds something itself, because k is not split, rounds as an addition after it.
#[test]
fn sums_with_products_of_many_weights_are_those_of_two_operations() {
    let Some(device) = support::device() else { return };
    if !device.has_cooperative_matrices() {
        eprintln!("skipped: {} has no cooperative matrices", device.adapter());
        return;
    }
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(109);
    let (n, k) = (16_400, 512);
    for (format, m) in [(QuantFormat::Q4K, 9), (QuantFormat::Q2K, 20), (QuantFormat::Q5K, 70), (QuantFormat::Q6K, 64)] {
        let few = encoded(format, &random.uniforms(7 * k, -1.0, 1.0));
        let w: Vec<u8> = few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect();
        let (x, addend) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(m * n, -9.0, 9.0));
        let weights = Operand::blocks(&w, &[n, k], format).unwrap();
        let op = Op::from(QuantMatmul { format });
        let product = backend.run(&op, &[Operand::f32(&x, &[m, k]).unwrap(), weights]).unwrap();

        let mut batch = GpuCommandBatch::new(device.clone());
        let (x, more) = (batch.upload(&x, &[m, k]).unwrap(), batch.upload(&addend, &[m, n]).unwrap());
        let weights = batch.upload_operand(&weights).unwrap();
        let fused = batch.record(op, &[x, weights]).unwrap();
        let sum = batch.add(fused, more).unwrap();
        let got = batch.run(&[sum]).unwrap();
        let want = product[0].as_data().f32().iter().zip(&addend).map(|(product, addend)| product + addend);
        let wrong = want.zip(got[0].as_data().f32()).filter(|(want, got)| want != *got).count();
        assert_eq!(wrong, 0, "{} with {m} rows", format.name());
    }
}

/// Products share what the rows are split into only while nothing else has been written there.
#[test]
fn products_of_the_same_rows_in_a_graph_are_those_of_single_operations() {
    let Some(device) = support::device() else { return };
    // Of the kernel for formats with integers, and of that for others.
    for (format, m) in [(QuantFormat::Q4K, 40), (QuantFormat::Q4K, 70), (QuantFormat::Q8_0, 70)] {
        check_same_rows(&device, format, m);
    }
}

fn check_same_rows(device: &GpuDevice, format: QuantFormat, m: usize) {
    let backend = GpuBackend::on(device.clone());
    let mut random = Random::new(107);
    let n = 256;
    let x = random.uniforms(m * n, -1.0, 1.0);
    let weights = [(); 3].map(|()| encoded(format, &random.uniforms(n * n, -1.0, 1.0)));
    let weights: Vec<Operand<'_>> =
        weights.iter().map(|blocks| Operand::blocks(blocks, &[n, n], format).unwrap()).collect();
    let op = Op::from(QuantMatmul { format });

    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.upload(&x, &[m, n]).unwrap();
    let y = batch.scale(x, 0.5).unwrap();
    let w: Vec<_> = weights.iter().map(|weights| batch.upload_operand(weights).unwrap()).collect();
    let mut product = |x, at: usize| (batch.record(op, &[x, w[at]]).unwrap(), x, at);
    // Two of y, one of another, and of y again, before and after a step of another kind.
    let first = product(y, 0);
    let products = [first, product(y, 1), product(first.0, 2), product(y, 2)];
    let other = batch.relu(products[3].0).unwrap();
    let last = (batch.record(op, &[y, w[0]]).unwrap(), y, 0);
    let products: Vec<_> = products.into_iter().chain([last]).collect();
    let results = products.iter().map(|product| product.0);
    batch.execute(&results.chain([y, other]).collect::<Vec<_>>()).unwrap();
    for (result, x, at) in products {
        let x = batch.read(x).unwrap();
        let single = backend.run(&op, &[Operand::f32(&x, &[m, n]).unwrap(), weights[at]]).unwrap();
        assert_eq!(batch.read(result).unwrap(), single[0].as_data().f32(), "weights {at}");
    }
}

/// Weights are zero if their integers are, whatever the steps.
#[test]
fn products_with_zeros_are_zero() {
    let Some(device) = support::device() else { return };
    let backend = GpuBackend::on(device);
    let mut random = Random::new(113);
    let (n, k) = (256, 1024);
    for format in [QuantFormat::Q3K, QuantFormat::Q6K] {
        let mut w = encoded(format, &random.uniforms(n * k, -1.0, 1.0));
        for block in w.chunks_mut(format.block_bytes()) {
            match format {
                // Third bits and lower two; lower four bits and upper two.
                QuantFormat::Q3K => (block[..32].fill(0xff), block[32..96].fill(0)),
                _ => (block[..128].fill(0), block[128..192].fill(0xaa)),
            };
        }
        for m in [1, 8, 16, 20, 70].into_iter().step_by(step(1, 2)) {
            let x = random.uniforms(m * k, 0.5, 1.0);
            let operands = [Operand::f32(&x, &[m, k]).unwrap(), Operand::blocks(&w, &[n, k], format).unwrap()];
            let got = backend.run(&Op::from(QuantMatmul { format }), &operands).unwrap();
            let others = got[0].as_data().f32().iter().filter(|&&y| y != 0.0).count();
            assert_eq!(others, 0, "{} with {m} rows", format.name());
        }
    }
}
