//! Products on tensor cores, of all layouts and precisions, against the f64 reference.

mod support;

use kiln_cuda::{CudaCommandBatch, CudaDevice, CudaDeviceOptions, numerics};
use kiln_ir::op::reference::{Random, check};
use kiln_ir::op::{Attention, Matmul, Op, Param, QuantMatmul, RmsNorm};
use kiln_ir::{Buffer, DType, Data, Operand, Precision, QuantFormat, Record, Result, Shape, f16};

/// A device with tensor cores that kernels use.
fn device_with(precision: Precision) -> Option<CudaDevice> {
    let device = support::device_with(&CudaDeviceOptions::new().precision(precision))?;
    if !device.has_tensor_cores() {
        eprintln!("skipped: no kernel uses the tensor cores of {}", device.info());
        return None;
    }
    Some(device)
}

/// Products, rows, depth and columns; and whether one A, and one B, serves all of them. Rows of 70 columns are for warps.
const EXTENTS: [(usize, [usize; 3], [bool; 2]); 17] = [
    (1, [1, 64, 64], [true, true]),
    (1, [64, 64, 64], [true, true]),
    (1, [104, 72, 136], [true, true]),
    (1, [136, 1024, 264], [true, true]),
    (1, [64, 4096, 64], [true, true]),
    (1, [16, 2048, 256], [true, true]),
    (1, [520, 40, 264], [true, true]),
    (1, [200, 136, 70], [true, true]),
    (2, [40, 520, 70], [false, false]),
    (3, [72, 136, 88], [false, false]),
    (3, [72, 136, 88], [false, true]),
    (3, [72, 136, 88], [true, false]),
    (2, [40, 520, 70], [true, false]),
    // Enough rows and columns that two parts are faster than f32, and that two blocks share columns.
    (1, [520, 1160, 648], [true, true]),
    (2, [392, 72, 520], [false, false]),
    (2, [392, 72, 520], [true, false]),
    (1, [2960, 40, 2960], [true, true]),
];

/// The elements nearest to numbers.
fn stored_as(values: &[f32], dtype: DType) -> Buffer {
    let mut elements = Buffer::with_bytes(dtype, values.len() * dtype.size()).unwrap();
    kiln_ir::narrow(values, elements.as_mut());
    elements
}

/// Holds products of such elements to the bound of the device.
fn holds(device: &CudaDevice, dtype: DType) {
    let (mut random, mut worst) = (Random::new(7), 0.0f64);
    for (batch, [m, k, n], [shared_a, shared_b]) in EXTENTS {
        for (transpose_a, transpose_b) in [(false, false), (false, true), (true, false), (true, true)] {
            let op = Matmul { transpose_a, transpose_b };
            let dims = [if transpose_a { [k, m] } else { [m, k] }, if transpose_b { [n, k] } else { [k, n] }];
            let mut operand = |dims: [usize; 2], alone: bool| {
                let shape = if alone { Shape::new(&dims) } else { Shape::new(&[batch, dims[0], dims[1]]) }.unwrap();
                (stored_as(&random.uniforms(shape.numel(), -1.0, 1.0), dtype), shape)
            };
            let stored = [operand(dims[0], shared_a), operand(dims[1], shared_b)];
            let operands = stored.each_ref().map(|(data, shape)| Operand::new(data.as_data(), *shape).unwrap());
            let expected = Op::from(op).reference(&operands).unwrap();
            let bound = numerics::bound_on(device, &op.into(), &operands.each_ref().map(Operand::ty)).unwrap();
            let tensors = operands.each_ref().map(|operand| device.upload(operand).unwrap());
            let results = device.run(&op.into(), &tensors.each_ref()).unwrap();
            let got = results.iter().map(|result| result.read()).collect::<Result<Vec<_>>>().unwrap();
            let got: Vec<Data<'_>> = got.iter().map(Buffer::as_data).collect();
            let accuracy = check(bound, &expected, &got);
            let accuracy = accuracy.unwrap_or_else(|why| panic!("{op:?}, {batch} x {m} x {k} x {n}: {why}"));
            worst = worst.max(accuracy.worst);
        }
    }
    println!("worst {worst:.1} units");
}

#[test]
fn products_of_16_bits_keep_their_bound() {
    let Some(device) = device_with(Precision::Contract) else { return };
    [DType::F16, DType::Bf16].into_iter().for_each(|dtype| holds(&device, dtype));
}

#[test]
fn products_in_two_parts_keep_their_bound() {
    device_with(Precision::Tf32x3).iter().for_each(|device| holds(device, DType::F32));
}

#[test]
fn products_in_tf32_keep_their_bound() {
    device_with(Precision::Tf32).iter().for_each(|device| holds(device, DType::F32));
}

/// Blocks of this many random numbers.
fn blocks_of(format: QuantFormat, count: usize, random: &mut Random) -> Vec<u8> {
    let mut blocks = vec![0; format.bytes(count).unwrap()];
    format.encode(&random.uniforms(count, -1.0, 1.0), &mut blocks).unwrap();
    blocks
}

/// The product of `m` rows of `k` elements with `n` rows of weights, which keeps the bound of the device.
fn quantised_product(
    device: &CudaDevice,
    format: QuantFormat,
    [m, k, n]: [usize; 3],
    x: &[f32],
    blocks: &[u8],
) -> Vec<f32> {
    let op = Op::from(QuantMatmul { format });
    let operands = [
        Operand::f32(x, &[m, k]).unwrap(),
        Operand::new(Data::Blocks(format, blocks), Shape::new(&[n, k]).unwrap()).unwrap(),
    ];
    let bound = numerics::bound_on(device, &op, &operands.each_ref().map(Operand::ty)).unwrap();
    let tensors = operands.each_ref().map(|operand| device.upload(operand).unwrap());
    let got = device.run(&op, &tensors.each_ref()).unwrap()[0].read().unwrap();
    let accuracy = check(bound, &op.reference(&operands).unwrap(), &[got.as_data()]);
    accuracy.unwrap_or_else(|why| panic!("{format:?}, {m} x {k} x {n}: {why}"));
    got.as_data().f32().to_vec()
}

#[test]
fn products_in_bf16_keep_their_bound() {
    let Some(device) = device_with(Precision::Bf16) else { return };
    holds(&device, DType::F32);
    let mut random = Random::new(9);
    for format in QuantFormat::ALL {
        // Enough rows that weights are decoded first, and fewer.
        for (m, k, n) in [(200, 512, 72), (40, 512, 72)] {
            let x = random.uniforms(m * k, -1.0, 1.0);
            quantised_product(&device, format, [m, k, n], &x, &blocks_of(format, n * k, &mut random));
        }
    }
}

/// Enough rows for warp groups. Some are no numbers, infinite or tiny, or have elements that are tiny beside others. Tiles are
/// incomplete, and k is cut in parts.
#[test]
fn products_with_quantised_weights_keep_their_contract_on_warp_groups() {
    let Some(device) = support::device() else { return };
    if device.info().compute_capability != (9, 0) {
        eprintln!("skipped: {} has no warp groups", device.info());
        return;
    }
    let mut random = Random::new(10);
    for format in QuantFormat::ALL {
        let all = [(40, 2048, 130), (70, 2048, 140), (9, 2048, 70), (64, 4096, 129), (150, 2048, 260)];
        for &(m, k, n) in if format == QuantFormat::Q4K { &all[..] } else { &all[..2] } {
            let mut x = random.uniforms(m * k, -1.0, 1.0);
            for (row, value) in [(1, f32::NAN), (2, f32::INFINITY), (3, 2e38)] {
                x[row * k + k - 1] = value;
            }
            x[4 * k..5 * k].fill(0.0);
            x[5 * k..6 * k].iter_mut().for_each(|x| *x *= 1e-36);
            x[6 * k..6 * k + 64].iter_mut().for_each(|x| *x *= 1e-12);
            let mut blocks = blocks_of(format, n * k, &mut random);
            if format == QuantFormat::Mxfp4 {
                // Exponents: the least, great ones, those of elements beyond f32, and the one that is no number.
                for (row, e) in [(0, 0), (1, 1), (2, 190), (3, 253), (4, 254), (5, 255)] {
                    let bytes = format.block_bytes();
                    blocks.chunks_mut(bytes).skip(row * k / format.block_len()).take(3).for_each(|block| block[0] = e);
                }
            }
            let got = quantised_product(&device, format, [m, k, n], &x, &blocks);

            // The same with a tensor that the kernel adds.
            let addend = random.uniforms(m * n, -9.0, 9.0);
            let mut batch = CudaCommandBatch::new(device.clone());
            let ids = [batch.upload(&x, &[m, k]).unwrap(), batch.upload_blocks(&blocks, &[n, k], format).unwrap()];
            let product = batch.record(QuantMatmul { format }, &ids).unwrap();
            let addend_id = batch.upload(&addend, &[m, n]).unwrap();
            let sum = batch.add(product, addend_id).unwrap();
            let sums = batch.run(&[sum]).unwrap();
            let expected = got.iter().zip(&addend).map(|(product, addend)| product + addend);
            let differs = sums[0].as_data().f32().iter().zip(expected).position(|(found, expected)| {
                found.to_bits() != expected.to_bits() && !(found.is_nan() && expected.is_nan())
            });
            assert_eq!(differs, None, "{format:?}, {m} x {k} x {n}: element");
        }
    }
}

/// Products of a round, of normalised rows and of others, beside each product by itself: of few rows, by bytes, on warp groups at once
/// and one by one. A row that f16 cannot hold is computed from normalised rows.
#[test]
fn products_of_a_round_are_those_by_themselves() {
    let Some(device) = device_with(Precision::Contract) else { return };
    let (mut random, k) = (Random::new(11), 2048);
    for format in [QuantFormat::Q4K, QuantFormat::Q6K, QuantFormat::Q8_0] {
        let n = [260, 128, 70];
        let weights = n.map(|n| blocks_of(format, n * k, &mut random));
        for m in [2, 8, 16, 40, 64, 90] {
            let mut x = random.uniforms(m * k, -1.0, 1.0);
            x[k..k + 64].iter_mut().for_each(|x| *x *= 1e-12);
            let gamma = random.uniforms(k, 0.5, 1.5);
            let normal: Vec<f32> = x
                .chunks(k)
                .flat_map(|row| {
                    let squares: f64 = row.iter().map(|&x| f64::from(x).powi(2)).sum();
                    let scale = 1.0 / (squares / k as f64 + f64::from(1e-5f32)).sqrt();
                    row.iter().zip(&gamma).map(move |(&x, &gamma)| (f64::from(x) * scale * f64::from(gamma)) as f32)
                })
                .collect();
            for is_normed in [false, true] {
                let mut batch = CudaCommandBatch::new(device.clone());
                let mut rows = batch.upload(&x, &[m, k]).unwrap();
                if is_normed {
                    let gamma = batch.upload(&gamma, &[k]).unwrap();
                    rows = batch.record(RmsNorm::new(1e-5), &[rows, gamma]).unwrap();
                }
                let products = [0, 1, 2].map(|i: usize| {
                    let weights = batch.upload_blocks(&weights[i], &[n[i], k], format).unwrap();
                    batch.record(QuantMatmul { format }, &[rows, weights]).unwrap()
                });
                let found = batch.run(&products).unwrap();
                let x = if is_normed { &normal } else { &x };
                for ((found, weights), n) in found.iter().zip(&weights).zip(n) {
                    let alone = quantised_product(&device, format, [m, k, n], x, weights);
                    // Parts of k may be others, and the norm is rounded otherwise.
                    let is_close = |(found, alone): (&f32, &f32)| (found - alone).abs() <= 5e-3;
                    let differs = found.as_data().f32().iter().zip(&alone).position(|pair| !is_close(pair));
                    assert_eq!(differs, None, "{format:?}, {m} rows, {n} columns, normalised: {is_normed}: element");
                }
            }
        }
    }
}

/// Sequences, heads, heads of keys, queries, keys and elements of a row: one and few, around tiles, grouped heads, so few
/// queries that keys are cut into parts, enough that they are not, and every row that there are kernels for.
const ATTENTIONS: [[usize; 6]; 20] = [
    [1, 1, 1, 1, 1, 64],
    [2, 4, 2, 1, 700, 64],
    [1, 8, 1, 3, 2050, 128],
    [1, 2, 1, 100, 100, 64],
    [1, 6, 2, 30, 65, 80],
    [1, 2, 2, 65, 260, 96],
    [1, 1, 1, 130, 131, 256],
    [1, 70, 70, 17, 33, 128],
    [1, 70, 35, 129, 129, 64],
    [2, 72, 36, 40, 200, 128],
    [3, 40, 40, 190, 193, 64],
    [1, 80, 80, 33, 400, 80],
    // More tiles of queries than multiprocessors, each with enough tiles of keys that stages are reused.
    [1, 140, 140, 20, 900, 64],
    [1, 140, 140, 20, 900, 128],
    [1, 72, 72, 65, 129, 96],
    [2, 36, 36, 129, 300, 256],
    [1, 16, 4, 300, 513, 128],
    [1, 8, 8, 1000, 1000, 64],
    // The same, each with one tile of keys: the first of a tile is also the last.
    [1, 300, 300, 20, 100, 64],
    [1, 280, 280, 65, 70, 128],
];

#[test]
fn attention_of_16_bits_keeps_its_bound() {
    let Some(device) = device_with(Precision::Contract) else { return };
    [DType::F16, DType::Bf16].into_iter().for_each(|dtype| attends(&device, dtype));
}

/// Holds attention of such elements to the bound of the device: in every extent full and causal, with scores of a few units, of
/// some hundreds, and as large as f16 makes them, where the bound, which grows with the scores, asks for little more than finite
/// results.
fn attends(device: &CudaDevice, dtype: DType) {
    let (mut random, mut worst) = (Random::new(9), 0.0f64);
    for [batch, heads, kv_heads, s, t, d] in ATTENTIONS {
        for (causal, scale, size) in
            [(false, None, 1.0), (true, None, 4.0), (true, Some(Param::from(0.5)), 30.0), (false, None, 60_000.0)]
        {
            let op = Op::from(Attention { causal, scale, ..Attention::default() });
            let mut operand = |heads: usize, rows: usize, size: f32| {
                let shape = Shape::new(&[batch, heads, rows, d]).unwrap();
                (stored_as(&random.uniforms(shape.numel(), -size, size), dtype), shape)
            };
            let stored = [operand(heads, s, size), operand(kv_heads, t, size), operand(kv_heads, t, 1.0)];
            let operands = stored.each_ref().map(|(x, shape)| Operand::new(x.as_data(), *shape).unwrap());
            let expected = op.reference(&operands).unwrap();
            let bound = numerics::bound_on(device, &op, &operands.each_ref().map(Operand::ty)).unwrap();
            let tensors = operands.each_ref().map(|operand| device.upload(operand).unwrap());
            let got = device.run(&op, &tensors.each_ref()).unwrap()[0].read().unwrap();
            let accuracy = check(bound, &expected, &[got.as_data()]);
            let accuracy =
                accuracy.unwrap_or_else(|why| panic!("{op:?} of {size}, {:?}, keys {t}: {why}", operands[0].ty()));
            worst = worst.max(accuracy.worst);
        }
    }
    println!("worst {worst:.1} units");
}

/// Values that are not numbers go where the contract says, and nowhere else.
#[test]
fn attention_of_f16_keeps_special_values() {
    let Some(device) = device_with(Precision::Contract) else { return };
    // Few heads, whose keys are split into parts, and enough heads for no split.
    for heads in [2, 140] {
        let (s, t, d) = (40, 300, 64);
        let dims = |rows: usize| Shape::new(&[heads, rows, d]).unwrap();
        let run = |op: Attention, [q, k, v]: [&[f16]; 3]| -> Vec<f32> {
            let operands =
                [(q, dims(s)), (k, dims(t)), (v, dims(t))].map(|(x, dims)| Operand::new(Data::F16(x), dims).unwrap());
            let tensors = operands.each_ref().map(|operand| device.upload(operand).unwrap());
            let results = device.run(&op.into(), &tensors.each_ref()).unwrap();
            results[0].read().unwrap().as_data().f32().to_vec()
        };
        let mut random = Random::new(11);
        let mut values = |rows: usize| -> Vec<f16> {
            random.uniforms(heads * rows * d, -1.0, 1.0).into_iter().map(f16::from_f32).collect()
        };
        let (q, k, v) = (values(s), values(t), values(t));
        let nan_rows = |out: &[f32]| -> Vec<usize> {
            (0..heads * s).filter(|row| out[row * d..][..d].iter().all(|x| x.is_nan())).collect()
        };
        let whole = |out: &[f32]| out.iter().filter(|x| x.is_nan()).count() == nan_rows(out).len() * d;
        // The query 5 of the second head, and a key that the queries from 30 on see.
        let with = |x: &[f16], at: usize, value: f16| {
            let mut x = x.to_vec();
            x[at] = value;
            x
        };
        for value in [f16::NAN, f16::INFINITY] {
            let out = run(Attention::causal(), [&with(&q, (s + 5) * d + 3, value), &k, &v]);
            assert!(whole(&out) && nan_rows(&out) == [s + 5], "{:?}", nan_rows(&out));
        }
        let out = run(Attention::causal(), [&q, &with(&k, (t + 290) * d + 3, f16::NAN), &v]);
        assert!(whole(&out) && nan_rows(&out) == (s + 30..2 * s).collect::<Vec<_>>(), "{:?}", nan_rows(&out));
        // Scores of -∞, all except those of the last four keys, then all: the mean of four values, then NaN.
        let ones = vec![f16::ONE; q.len()];
        for unreachable in [t - 4, t] {
            let keys: Vec<f16> = (0..heads * t * d)
                .map(|i| if i / d % t < unreachable { f16::NEG_INFINITY } else { f16::from_f32(0.5) })
                .collect();
            let out = run(Attention::full(), [&ones, &keys, &v]);
            for (i, &got) in out.iter().enumerate() {
                let (head, column) = (i / d / s, i % d);
                let mean: f32 = (t - 4..t).map(|key| v[(head * t + key) * d + column].to_f32()).sum::<f32>() / 4.0;
                let right = if unreachable == t { got.is_nan() } else { (got - mean).abs() < 1e-3 };
                assert!(right, "{i}: {got}, not {mean}");
            }
        }
        // No keys at all.
        let none = Operand::new(Data::F16(&[]), dims(0)).unwrap();
        let tensors = [Operand::new(Data::F16(&q), dims(s)).unwrap(), none, none].map(|x| device.upload(&x).unwrap());
        let out = device.run(&Attention::full().into(), &tensors.each_ref()).unwrap()[0].read().unwrap();
        assert!(out.as_data().f32().iter().all(|&x| x == 0.0));
    }
}

/// Captured, with the descriptions of tensors in the capture; the kernels are those of tensor cores.
#[test]
fn batches_replay_them() {
    let Some(_) = device_with(Precision::Contract) else { return };
    let options = CudaDeviceOptions::new().profile();
    for (device, replays) in [(support::device().unwrap(), true), (support::device_with(&options).unwrap(), false)] {
        let mut batch = CudaCommandBatch::new(device);
        let x = batch.upload_operand(&Operand::elements(&[f16::from_f32(0.5); 64 * 64], &[64, 64]).unwrap()).unwrap();
        let w =
            batch.upload_operand(&Operand::elements(&[f16::from_f32(0.25); 64 * 128], &[128, 64]).unwrap()).unwrap();
        let y = batch.record(Matmul { transpose_a: false, transpose_b: true }, &[x, w]).unwrap();
        let y = batch.relu(y).unwrap();
        for run in 0..4 {
            let value = run as f32;
            batch.set_data(x, Data::F16(&[f16::from_f32(value); 64 * 64])).unwrap();
            let result = batch.run(&[y]).unwrap();
            assert!(result[0].as_data().f32().iter().all(|&y| y == 16.0 * value), "run {run}");
        }
        if !replays {
            let profile = batch.profile().unwrap();
            assert!(profile.kernels[0].name.starts_with("gemm_nt_f16_f32"), "{profile}");
        }
    }
}
