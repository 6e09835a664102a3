//! Quantised formats beyond the cases of the conformance suite: the search of the quantiser on data of many kinds, and
//! products of every size for which there is a kernel.

mod support;

use kiln_ir::op::reference::Random;
use kiln_ir::op::{Op, QuantMatmul, Quantize};
use kiln_ir::{Buffer, Operand, Operations, QuantFormat, Record, Shape};
use kiln_wgpu::{GpuBackend, GpuCommandBatch};

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
    let x: Vec<f32> = (0..1501).flat_map(|i| block(&mut random, i % 10)).collect();
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
    // If KILN_SAMPLE requests samples, each format takes at least one of its 13 sizes, and the next format others.
    let (sample, mut sizes) = (kiln_device::conformance::sample().min(11), 0..);
    for format in QuantFormat::ALL {
        let len = format.block_len();
        // Rows by lanes, with more lanes for fewer weights; several rows, in one piece and in several; tiles of every
        // height. None is a multiple of the results of a workgroup.
        for (m, n, k) in [
            (1, 9, 8 * len),
            (1, 1025, 1024),
            (1, 300, 4096),
            (1, 70, 8192 + 512),
            (1, 5, 16_384 + 256),
            (2, 37, 4096 + 256),
            (3, 41, 2048 + 256),
            (7, 53, 1024 + 256),
            (8, 130, 512),
            (21, 33, 256),
            (9, 127 * 64 + 3, 3 * len),
            (35, 255 * 64 + 1, len),
            (129, 127 * 64 + 5, len),
        ] {
            if sizes.next().is_some_and(|number: usize| !number.is_multiple_of(sample)) {
                continue;
            }
            // Quantising takes longest here, so 61 rows of weights are repeated.
            let few = encoded(format, &random.uniforms(61 * k, -1.0, 1.0));
            let w: Vec<u8> = few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect();
            let x = random.uniforms(m * k, -1.0, 1.0);
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
                // One row of x is rounded to 16 bits, with separate units for every sixteen elements.
                let rounding = |(x, w): (&[f32], &[f32])| {
                    let largest = x.iter().fold(0.0f32, |largest, x| largest.max(x.abs()));
                    f64::from(largest) / 65_278.0 * w.iter().map(|w| f64::from(w.abs())).sum::<f64>()
                };
                let sixteens = x[i * k..(i + 1) * k].chunks(16).zip(decoded[j * k..(j + 1) * k].chunks(16));
                let rounded = if m == 1 { sixteens.map(rounding).sum() } else { 0.0 };
                assert!(
                    off <= magnitude * f64::powi(2.0, -20) + rounded,
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
    // One row, a few, and enough for tiles.
    for (m, n) in [(1, 70), (3, 70), (20, 64 * 70 + 6)] {
        let mut x = random.uniforms(m * k, -1.0, 1.0);
        // Elements that are multiplied without rounding.
        x[3] = 1e-30;
        (x[40], x[600]) = (1e35, -1e-38);
        let shapes = [[m, k], [n, k]].map(|dims| Shape::new(&dims).unwrap());
        let addend = random.uniforms(m * n, -1.0, 1.0);
        let formats = [QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0, QuantFormat::Q4K];
        let weights = formats.map(|format| {
            let few = encoded(format, &random.uniforms(7 * k, -1.0, 1.0));
            Buffer::Blocks(format, few.iter().copied().cycle().take(format.bytes(n * k).unwrap()).collect())
        });
        let mut batch = GpuCommandBatch::new(device.clone());
        let input = batch.upload(&x, &[m, k]).unwrap();
        let added = batch.upload(&addend, &[m, n]).unwrap();
        let mut wanted = Vec::new();
        for (format, weights) in formats.into_iter().zip(&weights) {
            let weights = batch.upload_operand(&Operand::new(weights.as_data(), shapes[1]).unwrap()).unwrap();
            wanted.push(batch.record(QuantMatmul { format }, &[input, weights]).unwrap());
            let double = batch.scale(input, 2.0).unwrap();
            let of_double = batch.record(QuantMatmul { format }, &[double, weights]).unwrap();
            wanted.push(batch.add(of_double, added).unwrap());
        }
        let got = batch.run(&wanted).unwrap();
        let double: Vec<f32> = x.iter().map(|x| 2.0 * x).collect();
        for (number, (format, weights)) in formats.into_iter().zip(&weights).enumerate() {
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
