//! Numbers in two parts of bf16, what a product of them leaves, counts of keys, and products of few rows.

use kiln_ir::op::reference::Random;
use kiln_ir::op::{Attention, AttentionExtents, AttentionOperands, RmsNorm};
use kiln_ir::{Buffer, DType, Error, QuantFormat, Shape, TensorType};
use kiln_ptx::kernels::attention::CausalSight;
use kiln_ptx::kernels::matmul::FewRowsGemm;
use kiln_ptx::kernels::quant::{RepairRows, SplitBlocks, SplitRows, WarpGroupTiling, plane_bytes};
use kiln_ptx::{PtxType, Target};

use crate::support::Device;

fn words(bytes: &[u8]) -> Vec<u32> {
    bytes.as_chunks::<4>().0.iter().map(|word| u32::from_le_bytes(*word)).collect()
}

fn bytes<T: Copy, const N: usize>(values: &[T], of: impl Fn(T) -> [u8; N]) -> Vec<u8> {
    values.iter().flat_map(|&value| of(value)).collect()
}

/// The sums of the parts of `count` numbers.
fn sums(planes: &[u8], count: usize) -> Vec<f32> {
    let number = |half: &[u8; 2]| f32::from_bits(u32::from(u16::from_le_bytes(*half)) << 16);
    let parts: Vec<f32> = planes.as_chunks::<2>().0.iter().map(number).collect();
    (0..count).map(|i| parts[i] + parts[count + i]).collect()
}

fn close(found: &[f32], expected: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    for (i, (&found, &expected)) in found.iter().zip(expected).enumerate() {
        assert!((found - expected).abs() <= expected.abs() * 2f32.powi(-17), "{what}, {i}: {found} for {expected}");
    }
}

/// Blocks of random numbers, and their elements.
fn blocks(format: QuantFormat, count: usize, random: &mut Random) -> (Vec<u8>, Vec<f32>) {
    let n = count * format.block_len();
    let mut blocks = vec![0; format.bytes(n).unwrap()];
    format.encode(&random.uniforms(n, -3.0, 2.0), &mut blocks).unwrap();
    let mut numbers = vec![0.0; n];
    format.decode(&blocks, &mut numbers).unwrap();
    // Kernels read whole words.
    blocks.resize(blocks.len().next_multiple_of(4), 0);
    (blocks, numbers)
}

#[test]
fn parts_of_blocks_are_the_numbers_that_they_stand_for() {
    let mut random = Random::new(5);
    for format in QuantFormat::ALL {
        let Some(kernel) = SplitBlocks::new(format) else {
            assert_eq!(format, QuantFormat::Mxfp4, "its scales are of any size");
            continue;
        };
        // Less and more than the threads of a block take.
        for count in [1, 5, 130] {
            let (blocks, numbers) = blocks(format, count, &mut random);
            let mut device = Device::default();
            let buffers = [device.upload(&blocks), device.allocate(plane_bytes(numbers.len()).unwrap())];
            device.run(&kernel, &kernel.launch(numbers.len()).unwrap(), &buffers).unwrap();
            close(&sums(device.download(buffers[1]), numbers.len()), &numbers, format.name());
            let rounding = SplitBlocks::rounding(format);
            let rounded = device.allocate(2 * numbers.len());
            device.run(&rounding, &rounding.launch(numbers.len()).unwrap(), &[buffers[0], rounded]).unwrap();
            let nearest = bytes(&numbers, |x| kiln_ir::bf16::from_f32(x).to_le_bytes());
            assert_eq!(device.download(rounded)[..nearest.len()], nearest, "{}", format.name());
        }
    }
}

#[test]
fn rows_that_planes_do_not_serve_are_told_apart() {
    let (rows, depth) = (9, 1056);
    let mut x = Random::new(6).uniforms(rows * depth, -1.0, 1.0);
    for (row, value) in [(1, f32::NAN), (2, f32::INFINITY), (3, f32::NEG_INFINITY), (4, 2e30)] {
        x[row * depth + depth - 1] = value;
    }
    for (row, size) in [(5, 1e-30), (6, 0.0), (7, 1e-10), (8, 1e20)] {
        x[row * depth..(row + 1) * depth].iter_mut().for_each(|x| *x *= size);
    }
    let mut device = Device::default();
    let buffers = [
        device.upload(&bytes(&x, f32::to_le_bytes)),
        device.allocate(plane_bytes(x.len()).unwrap()),
        device.allocate(4 * rows),
    ];
    device.run(&SplitRows, &SplitRows.launch(rows, depth).unwrap(), &buffers).unwrap();
    assert_eq!(words(device.download(buffers[2]))[..rows], [0, 1, 1, 1, 1, 1, 0, 0, 0]);
    let sums = sums(device.download(buffers[1]), x.len());
    for row in [0, 6, 7, 8] {
        let row = row * depth..(row + 1) * depth;
        close(&sums[row.clone()], &x[row], "a row");
    }
}

/// The element of a group that is at this place of a row of f16.
fn element(format: QuantFormat, place: usize) -> usize {
    let (step, half, lane) = (place / 16, place % 16 / 8, place % 8 / 2);
    let first = match format {
        QuantFormat::Q6K | QuantFormat::Q4_1 => 16 * step + 4 * lane,
        _ => 8 * lane + 4 * step,
    };
    // Of four elements, the first and the third are adjacent.
    first + half + place % 2 * 2
}

#[test]
fn rows_of_f16_are_rows_of_x_in_units() {
    let mut random = Random::new(10);
    let f16 = |half: &[u8; 2]| f32::from(kiln_ir::f16::from_le_bytes(*half));
    // Fewer and more elements than the threads of a block take at once.
    for (format, depth) in
        [(QuantFormat::Q4K, 256), (QuantFormat::Q6K, 6144), (QuantFormat::Q8_0, 4352), (QuantFormat::Q4_1, 512)]
    {
        let rows = 9;
        let mut x = random.uniforms(rows * depth, -1.0, 1.0);
        for (row, value) in [(1, f32::NAN), (2, f32::NEG_INFINITY), (3, 3e38)] {
            x[row * depth + depth - 1] = value;
        }
        x[4 * depth..5 * depth].fill(0.0);
        for (row, size) in [(5, 1e-37), (6, 1e-20), (7, 1e20)] {
            x[row * depth..(row + 1) * depth].iter_mut().for_each(|x| *x *= size);
        }
        let gamma = random.uniforms(depth, 0.5, 1.5);
        // 32 elements that are tiny beside the others.
        x[8 * depth + 32..8 * depth + 64].iter_mut().for_each(|x| *x *= 1e-10);
        let norm = Some(RmsNorm::new(1e-5));
        for (rounds, norm) in [(false, None), (true, None), (false, norm), (true, norm)] {
            let tiling = WarpGroupTiling::new(format, [rows, depth, 8], rounds, Target::Sm90a, 1).unwrap();
            let (kernel, launch) = tiling.rounding(norm).unwrap();
            let mut device = Device::default();
            let sizes = tiling.rounded_bytes().unwrap();
            let [halves, units, sums] = sizes.map(|bytes| device.allocate(bytes.max(4)));
            let x_bytes = device.upload(&bytes(&x, f32::to_le_bytes));
            let of_norm = [device.upload(&bytes(&gamma, f32::to_le_bytes)), device.allocate(4 * x.len())];
            let of_norm = if norm.is_some() { &of_norm[..] } else { &[] };
            let of_sums = if tiling.has_sums() { &[sums][..] } else { &[] };
            let buffers = [&[x_bytes], of_norm, &[halves, units], of_sums].concat();
            device.run(&kernel, &launch, &buffers).unwrap();
            let x: Vec<f32> = match of_norm {
                [_, normal] => {
                    let found = words(device.download(*normal)).into_iter().map(f32::from_bits).collect::<Vec<_>>();
                    for (row, (found, x)) in found.chunks(depth).zip(x.chunks(depth)).enumerate() {
                        let squares: f64 = x.iter().map(|&x| f64::from(x).powi(2)).sum();
                        let scale = 1.0 / (squares / depth as f64 + 1e-5f32 as f64).sqrt();
                        for ((&found, &x), &gamma) in found.iter().zip(x).zip(&gamma) {
                            let expected = (f64::from(x) * scale * f64::from(gamma)) as f32;
                            let is_close = (found - expected).abs() <= expected.abs() * f32::EPSILON;
                            assert!(
                                is_close || squares.is_nan() || squares.is_infinite(),
                                "{row}: {found}, {expected}"
                            );
                        }
                    }
                    found
                }
                _ => x.clone(),
            };
            let units: Vec<f32> =
                words(device.download(units))[..rows].iter().map(|&bits| f32::from_bits(bits)).collect();
            let served: Vec<bool> = units.iter().map(|unit| !unit.is_nan()).collect();
            assert_eq!(served, [true, false, false, false, true, false, true, true, false], "{format:?}");
            let halves = device.download(halves).as_chunks::<2>().0;
            let planes = if rounds { 1 } else { 2 };
            assert!(halves.len() >= planes * rows * depth);
            let sums = device.download(sums).as_chunks::<2>().0;
            for row in (0..rows).filter(|&row| served[row]) {
                let unit = units[row];
                assert_eq!(unit.to_bits() & 0x7f_ffff, 0, "a power of two");
                for at in 0..depth {
                    let place = row * depth + at;
                    let lower = if rounds { 0.0 } else { f16(&halves[rows * depth + place]) / 2048.0 };
                    let found = (f16(&halves[place]) + lower) * unit;
                    let expected = x[row * depth + at / 32 * 32 + element(format, at % 32)];
                    let bound = expected.abs() * if rounds { 2f32.powi(-11) } else { 2f32.powi(-22) };
                    let least = unit * if rounds { 2f32.powi(-25) } else { 2f32.powi(-36) };
                    assert!((found - expected).abs() <= bound.max(least), "{format:?} {row} {at}: {found} {expected}");
                }
                for group in 0..if tiling.has_sums() { depth / 32 } else { 0 } {
                    let at = row * depth / 16 + group / 8 * 16 + group % 8;
                    let found = (f16(&sums[at]) + f16(&sums[at + 8]) / 2048.0) * unit * 32.0;
                    let group = &x[row * depth + group * 32..][..32];
                    let expected: f32 = group.iter().sum();
                    let size: f32 = group.iter().map(|x| x.abs()).sum();
                    assert!((found - expected).abs() <= size * 1e-6, "{format:?} {row}: {found} for {expected}");
                }
            }
        }
    }
}

#[test]
fn what_planes_leave_is_done_product_by_product() {
    let mut random = Random::new(7);
    for format in [QuantFormat::Q8_0, QuantFormat::Q4K, QuantFormat::Q6K] {
        let (m, n, depth) = (5, 8, 2 * format.block_len().max(64));
        let (blocks, w) = blocks(format, n * depth / format.block_len(), &mut random);
        let x = random.uniforms(m * depth, -1.0, 1.0);
        let exact = |i: usize, j: usize| -> f32 {
            let row = |rows: &[f32], at: usize| rows[at * depth..(at + 1) * depth].to_vec();
            let pairs = row(&x, i).into_iter().zip(row(&w, j));
            pairs.map(|(x, w)| f64::from(x) * f64::from(w)).sum::<f64>() as f32
        };
        // The results that the kernel finds: it keeps finite ones, except those of a marked row.
        let mut found = vec![0.5f32; m * n];
        (found[3], found[2 * n + 7]) = (f32::NAN, f32::NEG_INFINITY);
        let mut device = Device::default();
        let buffers = [
            device.upload(&bytes(&x, f32::to_le_bytes)),
            device.upload(&blocks),
            device.upload(&bytes(&[0, 1, 0, 0, 0], u32::to_le_bytes)),
            device.upload(&bytes(&found, f32::to_le_bytes)),
        ];
        let kernel = RepairRows::new(format);
        device.run(&kernel, &kernel.launch(m, depth, n).unwrap(), &buffers).unwrap();
        for (at, bits) in words(device.download(buffers[3])).into_iter().enumerate() {
            let repaired = at / n == 1 || !found[at].is_finite();
            let expected = if repaired { exact(at / n, at % n) } else { found[at] };
            let got = f32::from_bits(bits);
            assert!((got - expected).abs() <= 1e-6 * expected.abs(), "{format:?}, {at}: {got} for {expected}");
        }
    }
}

#[test]
fn keys_that_causal_queries_see_are_counted() {
    let op = Attention::causal();
    let mut random = Random::new(8);
    // Sequences, queries that share a head of keys, queries, keys, and the blocks of 64 that the keys are split into.
    for [batch, group, s, t, blocks] in [[1, 1, 1, 1, 1], [2, 3, 70, 90, 4], [3, 2, 64, 500, 3], [1, 4, 5, 3, 2]] {
        let extents = AttentionExtents { batch, kv_heads: 2, group, s, t, d: 64, dv: 64 };
        let mut draw =
            |count: usize, bound: usize| -> Vec<u32> { (0..count).map(|_| random.below(bound) as u32).collect() };
        let (mut positions, lengths) = (draw(batch * s, t + 9), draw(batch, t + 1));
        positions[0] = u32::MAX;
        for given in [[s, batch], [batch * s, 1], [batch * s, 0], [0, batch], [0, 0]] {
            let counts = given.map(|count| (count > 0).then_some(count));
            let operands =
                AttentionOperands { positions: counts[0], lengths: counts[1], ..AttentionOperands::default() };
            let mut device = Device::default();
            let buffers = [
                device.upload(&bytes(&positions, u32::to_le_bytes)),
                device.upload(&bytes(&lengths, u32::to_le_bytes)),
                device.allocate(CausalSight::bytes(&extents, blocks).unwrap()),
                device.upload(&u64::MAX.to_le_bytes()),
            ];
            device.run(&CausalSight, &CausalSight.launch(&extents, blocks, &operands).unwrap(), &buffers).unwrap();
            let seen = |sequence: usize, i: usize| {
                let length = if given[1] == 0 { t } else { lengths[sequence.min(given[1] - 1)] as usize };
                let position = (given[0] > 0).then(|| positions[(sequence * s + i) % given[0]]);
                op.sight(&extents, i, length, position).end as u32
            };
            let found = words(device.download(buffers[2]));
            let (bounds, found) = found.split_at(2 * blocks * batch);
            for sequence in 0..batch {
                for i in 0..s {
                    assert_eq!(found[sequence * s + i], seen(sequence, i), "{extents:?}, {sequence}, {i}");
                }
                for block in 0..blocks {
                    let rows = (0..64).map(|row| (block * 64 + row + group * s).saturating_sub(blocks * 64));
                    let seen: Vec<u32> = rows.map(|row| seen(sequence, row % s)).collect();
                    let expected = [seen.iter().min(), seen.iter().max()].map(|bound| *bound.unwrap());
                    let at = 2 * (sequence * blocks + block);
                    assert_eq!(bounds[at..at + 2], expected, "{extents:?}, {sequence}, block {block}");
                }
            }
        }
    }
    // A length beyond the keys is reported, and none after it is.
    let extents = AttentionExtents { batch: 2, kv_heads: 1, group: 1, s: 2, t: 4, d: 64, dv: 64 };
    let mut device = Device::default();
    let buffers = [
        device.upload(&bytes(&[4, 5], u32::to_le_bytes)),
        device.allocate(CausalSight::bytes(&extents, 1).unwrap()),
        device.upload(&u64::MAX.to_le_bytes()),
    ];
    let given = AttentionOperands { lengths: Some(2), ..AttentionOperands::default() };
    let launch = CausalSight.launch(&extents, 1, &given).unwrap();
    device.run(&CausalSight, &launch, &[buffers[0], buffers[0], buffers[1], buffers[2]]).unwrap();
    assert_eq!(words(device.download(buffers[2])), [5, 1]);
}

#[test]
fn products_of_few_rows_are_those_of_what_is_stored() {
    let mut random = Random::new(9);
    // Rows of x, columns, and k: fewer than a warp takes at once, more than a block does, and incomplete pieces.
    for [m, n, depth] in [[1, 1, 8], [1, 9, 2056], [2, 5, 264], [3, 4, 1024], [8, 6, 1288], [5, 0, 8]] {
        for dtype in [DType::F16, DType::Bf16] {
            let x = random.uniforms(m * depth, -1.0, 1.0);
            let ty = TensorType::of(dtype, Shape::new(&[n, depth]).unwrap()).unwrap();
            let mut stored = Buffer::zeros(&ty).unwrap();
            kiln_ir::narrow(&random.uniforms(n * depth, -1.0, 1.0), stored.as_mut());
            let mut w = vec![0.0; n * depth];
            kiln_ir::widen(stored.as_data(), &mut w);
            let ty = if dtype == DType::F16 { PtxType::F16 } else { PtxType::Bf16 };
            let kernel = FewRowsGemm::new(m, ty).unwrap();
            let mut device = Device::default();
            let buffers = [
                device.upload(&bytes(&x, f32::to_le_bytes)),
                device.upload(stored.as_data().as_bytes()),
                device.allocate(4 * m * n),
            ];
            device.run(&kernel, &kernel.launch([m, depth, n]).unwrap(), &buffers).unwrap();
            let found = words(device.download(buffers[2]));
            for (at, bits) in found.into_iter().enumerate().take(m * n) {
                let row = |rows: &[f32], at: usize| rows[at * depth..(at + 1) * depth].to_vec();
                let pairs = row(&x, at / n).into_iter().zip(row(&w, at % n));
                let exact: f64 = pairs.map(|(x, w)| f64::from(x) * f64::from(w)).sum();
                let error = (f64::from(f32::from_bits(bits)) - exact).abs();
                assert!(error < 1e-7 * depth as f64, "{m} x {n} x {depth}, {dtype}, {at}: {error}");
            }
        }
    }
    let one = FewRowsGemm::new(1, PtxType::F16).unwrap();
    for extents in [[2, 8, 4], [1, 0, 4], [1, 12, 4]] {
        assert!(matches!(one.launch(extents), Err(Error::Shape { .. })), "{extents:?}");
    }
    assert!(FewRowsGemm::new(9, PtxType::F16).is_none() && FewRowsGemm::new(1, PtxType::F32).is_none());
}
