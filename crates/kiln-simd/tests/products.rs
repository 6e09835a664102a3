//! Products of matrices, of quantised weights and of images with kernels, beyond the conformance suite: every tile, and
//! that an element has the same bits whatever computes it.

use kiln_ir::op::reference::Random;
use kiln_ir::op::{Convolve2d, Matmul, Matvec, Padding};
use kiln_ir::{Data, DataMut, Error, Operand, QuantFormat, Shape};
use kiln_simd::{Isa, Operations, Simd};
#[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
use wasm_bindgen_test::wasm_bindgen_test as test;

use crate::support::{sampled, step};

/// Rows and columns up to which every product is tried: more than two of the largest tiles (14 x 32) are on the way,
/// and every width of the widest (9 x 48).
const ROWS: usize = 29;
const COLUMNS: usize = 66;

fn product(a: &[f32], b: &[f32], m: usize, k: usize, n: usize) -> Vec<f64> {
    let element = |i: usize, j: usize| (0..k).map(|p| f64::from(a[i * k + p]) * f64::from(b[p * n + j])).sum();
    (0..m * n).map(|e| element(e / n, e % n)).collect()
}

#[test]
fn every_tile_is_right() {
    let mut random = Random::new(21);
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        for m in 1..=ROWS {
            for n in 2..=COLUMNS {
                for k in [1, 2, 3, 7] {
                    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
                    let got = simd.matmul(&a, &b, m, k, n).unwrap();
                    for (got, want) in got.iter().zip(product(&a, &b, m, k, n)) {
                        assert!((f64::from(*got) - want).abs() < 1e-5, "{isa} {m} {k} {n}: {got} {want}");
                    }
                }
            }
        }
    }
}

#[test]
fn an_element_has_the_same_bits_in_every_product_that_holds_it() {
    let mut random = Random::new(22);
    let (m, k, n) = (90, 701, 120);
    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
    for isa in Isa::available() {
        let simd = Simd::with_isa(isa).unwrap();
        let whole = simd.matmul(&a, &b, m, k, n).unwrap();
        for rows in [1, 2, 5, 14, 16, 17, 33] {
            assert_eq!(simd.matmul(&a[..rows * k], &b, rows, k, n).unwrap(), whole[..rows * n], "{isa}, {rows} rows");
        }
        for columns in [33, 64, 96, 97] {
            let part: Vec<f32> = b.chunks(n).flat_map(|row| &row[..columns]).copied().collect();
            let want: Vec<f32> = whole.chunks(n).flat_map(|row| &row[..columns]).copied().collect();
            assert_eq!(simd.matmul(&a, &part, m, k, columns).unwrap(), want, "{isa}, {columns} columns");
        }
        let packed = simd.pack_b(&b, k, n, false).unwrap();
        let mut turned = vec![0.0; k * n];
        (0..k * n).for_each(|e| turned[e % n * k + e / n] = b[e]);
        let turned = simd.pack_b(&turned, k, n, true).unwrap();
        for rows in [0, 1, 3, 15, 90] {
            for packed in [&packed, &turned] {
                let got = simd.matmul_packed(&a[..rows * k], packed, rows).unwrap();
                assert_eq!(got, whole[..rows * n], "{isa}, {rows} rows, packed");
            }
        }
    }
}

#[test]
fn matrices_of_16_bits_are_read_as_stored_with_the_bits_of_their_f32() {
    let mut random = Random::new(25);
    let op = Matmul { transpose_b: true, ..Matmul::default() };
    for (m, k, n) in sampled([
        (1, 300, 700),
        (1, 33_000, 9),
        (2, 129, 40),
        (5, 64, 33),
        (16, 200, 301),
        (17, 500, 90),
        (40, 70, 9_001),
    ]) {
        let a = random.uniforms(m * k, -1.0, 1.0);
        let narrow: Vec<half::bf16> = random.uniforms(n * k, -1.0, 1.0).into_iter().map(half::bf16::from_f32).collect();
        let halves: Vec<half::f16> = narrow.iter().map(|x| half::f16::from_f32(x.to_f32())).collect();
        for b in [Data::Bf16(&narrow), Data::F16(&halves)] {
            let mut wide = vec![0.0; n * k];
            kiln_ir::widen(b, &mut wide);
            for isa in Isa::available() {
                for threads in [1, 3] {
                    let simd = Simd::with_isa(isa).unwrap().with_threads(threads);
                    let want = simd.matmul_with(&a, &wide, m, k, n, op).unwrap();
                    let operands =
                        [Operand::f32(&a, &[m, k]).unwrap(), Operand::new(b, Shape::new(&[n, k]).unwrap()).unwrap()];
                    let mut got = vec![0.0; m * n];
                    simd.run_into(&op.into(), &operands, &mut [DataMut::F32(&mut got)]).unwrap();
                    assert!(got == want, "{isa} {m}x{k}x{n} of {:?}", b.dtype());
                    for transpose in [false, true] {
                        let (x, y) = if transpose { (n, k) } else { (k, n) };
                        let x = random.uniforms(x, -1.0, 1.0);
                        let of = |b| {
                            let x = Operand::f32(&x, &[x.len()]).unwrap();
                            let mut y = vec![0.0; y];
                            let op = Matvec { transpose }.into();
                            simd.run_into(&op, &[b, x], &mut [DataMut::F32(&mut y)]).unwrap();
                            y
                        };
                        let want = of(Operand::f32(&wide, &[n, k]).unwrap());
                        assert!(of(operands[1]) == want, "{isa} {n}x{k} of {:?}, transposed: {transpose}", b.dtype());
                    }
                }
            }
        }
    }
}

#[test]
fn threads_that_share_blocks_give_the_bits_of_one() {
    // Five blocks of k: one thread adds them in C, two and three in separate memory, and eight in separate memory two
    // at a time, added to the contents of C; two blocks of columns, and several blocks of rows.
    let (m, k, n) = if step() == 1 { (260, 1401, 2100) } else { (130, 1401, 2100) };
    let mut random = Random::new(24);
    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
    let op = Matmul { transpose_b: true, ..Matmul::default() };
    let turned: Vec<f32> = (0..k * n).map(|e| b[e % k * n + e / k]).collect();
    // Vectors or not, the work is cut into the same parts: a sample takes the best set.
    for isa in Isa::available().filter(|&isa| step() == 1 || isa == Isa::best()) {
        let simd = Simd::with_isa(isa).unwrap();
        let want = simd.with_threads(1).matmul(&a, &b, m, k, n).unwrap();
        let packed = simd.pack_b(&b, k, n, false).unwrap();
        for threads in sampled([3, 2, 8]) {
            let simd = simd.with_threads(threads);
            assert!(simd.matmul(&a, &b, m, k, n).unwrap() == want, "{isa}, {threads} threads");
            assert!(simd.matmul_packed(&a, &packed, m).unwrap() == want, "{isa}, {threads} threads, packed");
            // All threads pack a transposed B together.
            let mut got = vec![0.0; m * n];
            simd.matmul_with_into(&a, &turned, m, k, n, op, &mut got).unwrap();
            assert!(got == want, "{isa}, {threads} threads, transposed");
        }
    }
}

#[test]
fn rows_of_b_that_share_sets_of_a_cache_give_the_bits_of_others() {
    // Rows 1024 bytes apart, which one thread copies and several pack; and the same within wider rows.
    let (m, k, n, wider) = (200, 250, 256, 259);
    let mut random = Random::new(25);
    let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * wider, -1.0, 1.0));
    let narrow: Vec<f32> = b.chunks(wider).flat_map(|row| &row[..n]).copied().collect();
    for isa in Isa::available() {
        for threads in [1, 2] {
            let simd = Simd::with_isa(isa).unwrap().with_threads(threads);
            let want = simd.matmul(&a, &b, m, k, wider).unwrap();
            let want: Vec<f32> = want.chunks(wider).flat_map(|row| &row[..n]).copied().collect();
            for rows in [17, 43, m] {
                let got = simd.matmul(&a[..rows * k], &narrow, rows, k, n).unwrap();
                assert!(got == want[..rows * n], "{isa}, {threads} threads, {rows} rows");
            }
        }
    }
}

#[test]
fn few_columns_of_many_rows_are_right() {
    let mut random = Random::new(23);
    for (m, k, n) in [(17, 4500, 33), (40, 700, 2), (31, 321, 96)] {
        let (a, b) = (random.uniforms(m * k, -1.0, 1.0), random.uniforms(k * n, -1.0, 1.0));
        for isa in Isa::available() {
            let got = Simd::with_isa(isa).unwrap().matmul(&a, &b, m, k, n).unwrap();
            for (got, want) in got.iter().zip(product(&a, &b, m, k, n)) {
                assert!((f64::from(*got) - want).abs() < 1e-6 * k as f64, "{isa} {m} {k} {n}: {got} {want}");
            }
        }
    }
}

#[test]
fn a_matrix_that_no_cache_holds_gives_the_bits_of_its_parts() {
    let (rows, columns) = (8200, 4096);
    let w: Vec<f32> = (0..rows * columns).map(|i| (i % 8191) as f32 / 8191.0 - 0.5).collect();
    let x: Vec<f32> = (0..columns).map(|i| (i % 127) as f32 / 127.0).collect();
    for isa in Isa::available().filter(|&isa| isa != Isa::Scalar) {
        let simd = Simd::with_isa(isa).unwrap().with_threads(2);
        let (mut whole, mut part) = (vec![0.0; rows], vec![0.0; 8]);
        simd.matvec_into(&w, &x, rows, columns, &mut whole).unwrap();
        for first in [0, 4096, rows - 8] {
            simd.matvec_into(&w[first * columns..][..8 * columns], &x, 8, columns, &mut part).unwrap();
            assert_eq!(whole[first..][..8], part, "{isa}");
        }
    }
}

#[test]
fn wrong_extents_are_errors() {
    let simd = Simd::new().unwrap();
    assert!(simd.matmul(&[0.0; 6], &[0.0; 6], 2, 3, 3).is_err());
    assert!(simd.matmul_into(&[0.0; 6], &[0.0; 6], 2, 3, 2, &mut [0.0; 5]).is_err());
    assert!(matches!(simd.matmul(&[], &[], usize::MAX, 2, 2), Err(Error::Overflow { .. })));
    assert!(matches!(simd.matmul(&[], &[], usize::MAX >> 8, 0, usize::MAX >> 8), Err(Error::Overflow { .. })));
    assert!(simd.matvec(&[0.0; 6], &[0.0; 2], 2, 3).is_err());
    assert!(simd.pack_b(&[0.0; 5], 2, 3, false).is_err());
    let packed = simd.pack_b(&[0.0; 6], 2, 3, false).unwrap();
    assert!(simd.matmul_packed(&[0.0; 3], &packed, 2).is_err());
    let slowest = Simd::with_isa(Isa::available().next().unwrap()).unwrap();
    if simd.isa() != slowest.isa() {
        assert!(slowest.matmul_packed(&[0.0; 4], &packed, 2).is_err());
    }
    assert!(simd.matmul(&[], &[], 0, 0, 0).unwrap().is_empty());
    assert_eq!(simd.matmul(&[], &[], 2, 0, 2).unwrap(), [0.0; 4]);
    assert_eq!(simd.matvec(&[], &[], 2, 0).unwrap(), [0.0; 2]);
}

#[test]
fn blocks_that_do_not_fit_are_errors() {
    let simd = Simd::new().unwrap();
    let format = QuantFormat::Q4K;
    assert!(matches!(simd.quantize(&[0.0; 300], 300, format), Err(Error::Format { .. })));
    assert!(matches!(simd.quantize(&[0.0; 512], 128, format), Err(Error::Format { .. })));
    assert!(matches!(simd.quantize(&[0.0; 256], 512, format), Err(Error::Shape { .. })));
    assert!(matches!(simd.dequantize(&[0; 145], format), Err(Error::Length { .. })));
    assert!(matches!(simd.quant_matvec(&[0; 288], &[0.0; 256], 1, 256, format), Err(Error::Length { .. })));
    assert!(matches!(simd.quant_matvec(&[0; 288], &[0.0; 200], 2, 200, format), Err(Error::Format { .. })));
    assert!(simd.quantize(&[], 0, format).unwrap().is_empty());
    assert_eq!(simd.quant_matvec(&[], &[], 2, 0, format).unwrap(), [0.0; 2]);
}

#[test]
fn large_blocks_are_decoded_alike_on_any_number_of_threads() {
    let simd = Simd::new().unwrap();
    // More than one thread decodes alone, and a last part that is not full.
    let values: Vec<f32> = (0..9 * 16_384 + 512).map(|i| ((i * 37) % 101) as f32 / 50.0 - 1.0).collect();
    for format in [QuantFormat::Q8_0, QuantFormat::Q4K] {
        let blocks = simd.quantize(&values, 256, format).unwrap();
        let one = simd.with_threads(1).dequantize(&blocks, format).unwrap();
        assert_eq!(one.len(), values.len());
        assert_eq!(simd.with_threads(4).dequantize(&blocks, format).unwrap(), one, "{format:?}");
    }
}

#[test]
fn quantised_products_are_the_same_bits_on_every_instruction_set_and_in_every_batch() {
    let mut random = Random::new(3);
    // Rows alone, and in tiles of every size; panels that are not full; rows of blocks of 32 that end within a run of eight.
    let extents = |format: QuantFormat| {
        let block = format.block_len();
        [(7, 37, 3 * 256), (63, 35, 11 * block), (32, 3, block), (49, 16, 5 * block)]
    };
    for (format, (m, n, k)) in QuantFormat::ALL.into_iter().flat_map(|f| extents(f).map(|extents| (f, extents))) {
        let slowest = Simd::with_isa(Isa::available().next().unwrap()).unwrap();
        let w = slowest.quantize(&random.uniforms(n * k, -1.0, 1.0), k, format).unwrap();
        let x = random.uniforms(m * k, -3.0, 3.0);
        let expected = slowest.quant_matmul(&x, &w, m, k, n, format).unwrap();
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap();
            let at = format!("{isa} {} {m}x{n}x{k}", format.name());
            assert!(simd.quant_matmul(&x, &w, m, k, n, format).unwrap() == expected, "{at}");
            for (x, y) in x.chunks(k).zip(expected.chunks(n)) {
                assert!(simd.quant_matvec(&w, x, n, k, format).unwrap() == y, "{at} alone");
            }
        }
    }
}

#[test]
fn a_known_picture() {
    let simd = Simd::new().unwrap();
    let picture: Vec<f32> = (0..12).map(|v| v as f32).collect();
    let corners = [1.0, 0.0, 0.0, -1.0];
    let valid = simd.convolve2d(&picture, (3, 4), &corners, (2, 2), Padding::Valid).unwrap();
    assert_eq!(valid, [-5.0; 6]);
    let same = simd.convolve2d(&picture, (3, 4), &corners, (2, 2), Padding::Same).unwrap();
    assert_eq!(same, [-5.0, -5.0, -5.0, 3.0, -5.0, -5.0, -5.0, 7.0, 8.0, 9.0, 10.0, 11.0]);
    assert!(simd.convolve2d(&picture, (3, 4), &[0.0; 16], (4, 4), Padding::Valid).is_err());
    assert!(simd.convolve2d(&picture, (4, 4), &corners, (2, 2), Padding::Valid).is_err());
}

/// Result `at` of a convolution, in f64, and the sum of the magnitudes of its products.
fn convolved(op: Convolve2d, x: &[f32], x_dims: [usize; 4], w: &[f32], w_dims: [usize; 4], at: usize) -> (f64, f64) {
    let e = op.extents(&Shape::new(&x_dims).unwrap(), &Shape::new(&w_dims).unwrap()).unwrap();
    let (j, i) = (at % e.out_w, at / e.out_w % e.out_h);
    let (o, n) = (at / (e.out_w * e.out_h) % e.c_out, at / (e.out_w * e.out_h * e.c_out));
    let (mut sum, mut magnitudes) = (0.0, 0.0);
    for (c, p, q) in (0..e.c_in * e.kh * e.kw).map(|k| (k / (e.kh * e.kw), k / e.kw % e.kh, k % e.kw)) {
        let row = (i * op.stride.0 + p * op.dilation.0).wrapping_sub(e.top);
        let column = (j * op.stride.1 + q * op.dilation.1).wrapping_sub(e.left);
        if row < e.h && column < e.w {
            let x = x[((n * e.c_in + c) * e.h + row) * e.w + column];
            let product = f64::from(x) * f64::from(w[((o * e.c_in + c) * e.kh + p) * e.kw + q]);
            (sum, magnitudes) = (sum + product, magnitudes + product.abs());
        }
    }
    (sum, magnitudes)
}

#[test]
fn kernels_packed_or_not_give_what_f64_gives() {
    let mut random = Random::new(31);
    let same = |stride| Convolve2d { padding: Padding::Same, stride, ..Convolve2d::default() };
    let dilated = |dilation, stride, padding| Convolve2d { padding, stride, dilation, groups: 1 };
    let valid = |stride| Convolve2d { padding: Padding::Valid, stride, ..Convolve2d::default() };
    for (op, x_dims, w_dims) in sampled([
        // Wide and narrow rows of results, runs that end within tiles, several blocks of rows.
        (same((1, 1)), [1, 16, 9, 23], [97, 16, 3, 3]),
        (same((2, 2)), [2, 17, 13, 14], [96, 17, 3, 3]),
        (valid((3, 1)), [1, 18, 16, 5], [100, 18, 5, 2]),
        (same((1, 3)), [1, 16, 3, 40], [128, 16, 1, 7]),
        (valid((1, 1)), [1, 128, 35, 34], [99, 128, 2, 3]),
        // More kernel positions than terms in a block.
        (same((1, 2)), [1, 16, 20, 19], [96, 16, 19, 18]),
        // Few channels, one pixel, and an image of one pixel, most of whose kernel is outside of it.
        (same((1, 1)), [2, 3, 8, 9], [5, 3, 3, 3]),
        (same((2, 1)), [1, 20, 6, 7], [96, 20, 1, 1]),
        (same((1, 1)), [1, 16, 1, 1], [96, 16, 3, 3]),
        // A last panel of one vector, and images of several blocks of rows.
        (valid((1, 1)), [1, 128, 22, 22], [144, 128, 3, 3]),
        (same((1, 1)), [1, 64, 60, 58], [32, 64, 3, 3]),
        // Dilated kernels and padding on each side, also with rows of the kernel above and below the image.
        (dilated((2, 3), (1, 1), Padding::Same), [1, 16, 9, 23], [97, 16, 3, 3]),
        (dilated((4, 1), (2, 3), Padding::around(5, 2)), [2, 17, 6, 14], [96, 17, 3, 3]),
        (
            dilated((3, 2), (1, 1), Padding::Sides { top: 0, bottom: 9, left: 7, right: 1 }),
            [1, 64, 40, 30],
            [32, 64, 3, 3],
        ),
        (
            dilated((1, 1), (2, 2), Padding::Sides { top: 1, bottom: 1, left: 0, right: 0 }),
            [1, 20, 3, 1],
            [96, 20, 1, 1],
        ),
    ]) {
        let x = random.uniforms(x_dims.iter().product(), -1.0, 1.0);
        let w = random.uniforms(w_dims.iter().product(), -1.0, 1.0);
        for isa in Isa::available() {
            let simd = Simd::with_isa(isa).unwrap().with_threads(1);
            let plain = simd.convolve2d_with(&x, &x_dims, &w, &w_dims, op).unwrap();
            let kernels = simd.pack_kernels(&w, w_dims).unwrap();
            let packed = simd.convolve2d_packed(&x, &x_dims, &kernels, op).unwrap();
            assert_eq!(plain.len(), packed.len());
            for at in (0..plain.len()).step_by(plain.len().div_ceil(2000)) {
                let (want, magnitudes) = convolved(op, &x, x_dims, &w, w_dims, at);
                for got in [plain[at], packed[at]] {
                    let far = (f64::from(got) - want).abs();
                    assert!(far <= 4e-6 * magnitudes, "{isa} {op:?} {x_dims:?} {w_dims:?}, {at}: {got} for {want}");
                }
            }
            for threads in [2, 3] {
                let simd = simd.with_threads(threads);
                assert!(plain == simd.convolve2d_with(&x, &x_dims, &w, &w_dims, op).unwrap(), "{isa} {threads}");
                let again = simd.convolve2d_packed(&x, &x_dims, &kernels, op).unwrap();
                assert!(packed == again, "{isa} {op:?} {x_dims:?} {w_dims:?}, {threads} threads");
            }
        }
    }
}

/// A group gives the bits that its channels give by themselves, for any number of threads.
#[test]
fn groups_are_convolutions_of_their_own() {
    let mut random = Random::new(37);
    let padding = Padding::Sides { top: 1, bottom: 2, left: 3, right: 0 };
    // Single channels of small images and of large ones, few channels, many, fewer groups than threads, pixels.
    for (groups, [n, c_in, h, w], [c_out, kh, kw]) in sampled([
        (37, [1, 1, 7, 7], [1, 3, 3]),
        (5, [2, 1, 60, 130], [1, 5, 5]),
        (8, [1, 4, 14, 14], [4, 3, 3]),
        (2, [1, 64, 15, 17], [96, 3, 3]),
        (3, [2, 40, 9, 9], [30, 1, 1]),
        (2, [1, 3, 80, 90], [2, 3, 3]),
    ]) {
        let (plane, results) = (h * w, c_out * c_in * kh * kw);
        let x = random.uniforms(n * groups * c_in * plane, -1.0, 1.0);
        let kernel = random.uniforms(groups * results, -1.0, 1.0);
        let (x_dims, k_dims) = ([n, groups * c_in, h, w], [groups * c_out, c_in, kh, kw]);
        for (stride, dilation) in [((1, 1), (1, 1)), ((2, 1), (1, 2))] {
            let op = Convolve2d { padding, stride, dilation, groups };
            for isa in Isa::available() {
                let simd = Simd::with_isa(isa).unwrap().with_threads(1);
                let y = simd.convolve2d_with(&x, &x_dims, &kernel, &k_dims, op).unwrap();
                let alone = Convolve2d { groups: 1, ..op };
                let of_group: Vec<f32> = (0..n * groups)
                    .flat_map(|part| {
                        let (x, group) = (&x[part * c_in * plane..][..c_in * plane], part % groups);
                        let kernel = &kernel[group * results..][..results];
                        simd.convolve2d_with(x, &[c_in, h, w], kernel, &[c_out, c_in, kh, kw], alone).unwrap()
                    })
                    .collect();
                assert!(y == of_group, "{isa} {op:?} {x_dims:?} {k_dims:?}");
                for threads in [2, 3, 8] {
                    let again = simd.with_threads(threads).convolve2d_with(&x, &x_dims, &kernel, &k_dims, op).unwrap();
                    assert!(y == again, "{isa} {op:?} {x_dims:?} {k_dims:?}, {threads} threads");
                }
            }
        }
    }
}

#[test]
fn a_known_signal() {
    let simd = Simd::new().unwrap();
    let signal: Vec<f32> = (0..10).map(|v| v as f32).collect();
    let run = |dims: &[usize], kernel: &[f32], k: &[usize], padding, stride, dilation, groups| {
        simd.convolve1d(&signal, dims, kernel, k, padding, stride, dilation, groups)
    };
    let difference = run(&[1, 10], &[-1.0, 1.0], &[1, 1, 2], Padding::Valid, 1, 3, 1).unwrap();
    assert_eq!(difference, [3.0; 7]);
    let before = Padding::Sides { top: 0, bottom: 0, left: 2, right: 0 };
    let causal = run(&[2, 5], &[1.0, 0.0, 1.0, 0.0, 0.0, 2.0], &[2, 1, 3], before, 2, 1, 2).unwrap();
    assert_eq!(causal, [0.0, 2.0, 6.0, 10.0, 14.0, 18.0]);
    for padding in [Padding::around(1, 0), Padding::Sides { top: 0, bottom: 1, left: 0, right: 0 }] {
        let error = run(&[1, 10], &[1.0], &[1, 1, 1], padding, 1, 1, 1).unwrap_err();
        assert!(matches!(error, Error::Parameter { .. }), "{error}");
    }
}

#[test]
fn packed_kernels_that_do_not_fit_are_errors() {
    let simd = Simd::new().unwrap();
    let op = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
    assert!(matches!(simd.pack_kernels(&[0.0; 5], [1, 1, 2, 3]), Err(Error::Length { .. })));
    assert!(matches!(simd.pack_kernels(&[], [usize::MAX, 2, 1, 1]), Err(Error::Overflow { .. })));
    let kernels = simd.pack_kernels(&[1.0; 96 * 16 * 9], [96, 16, 3, 3]).unwrap();
    assert_eq!(kernels.shape(), Shape::new(&[96, 16, 3, 3]).unwrap());
    let run = |op, x: &[f32], dims: &[usize]| simd.convolve2d_packed(x, dims, &kernels, op);
    assert!(matches!(run(op, &[0.0; 15], &[16, 1, 1]), Err(Error::Length { .. })));
    assert!(matches!(run(op, &[0.0; 15], &[15, 1, 1]), Err(Error::Shape { .. })));
    assert!(matches!(run(op, &[0.0; 16], &[4, 4]), Err(Error::Shape { .. })));
    for wrong in [Convolve2d { stride: (0, 1), ..op }, Convolve2d { dilation: (1, 0), ..op }] {
        assert!(matches!(run(wrong, &[0.0; 16], &[16, 1, 1]), Err(Error::Parameter { .. })));
    }
    let error = run(Convolve2d { groups: 2, ..op }, &[0.0; 32], &[32, 1, 1]).unwrap_err();
    assert!(matches!(error, Error::Parameter { .. }) && error.to_string().contains("packed"), "{error}");
    let valid = Convolve2d { padding: Padding::Valid, ..op };
    assert!(matches!(run(valid, &[0.0; 64], &[16, 2, 2]), Err(Error::Shape { .. })));
    let short = simd.convolve2d_packed_into(&[0.0; 16], &[16, 1, 1], &kernels, op, &mut [0.0; 95]);
    assert!(matches!(short, Err(Error::Length { .. })));
    // No image, and no rows.
    assert!(run(op, &[], &[0, 16, 3, 3]).unwrap().is_empty());
    assert!(run(op, &[], &[16, 0, 3]).unwrap().is_empty());
    // A wide image and a tall kernel, both of a few kilobytes, whose frame would take gigabytes.
    let tall = simd.pack_kernels(&vec![1.0; 96 * 16 * 2000], [96, 16, 2000, 1]).unwrap();
    let error = simd.convolve2d_packed(&vec![1.0; 16 * 9000], &[16, 1, 9000], &tall, op).unwrap_err();
    assert!(error.to_string().contains("never meets"), "{error}");
    if let Some(isa) = Isa::available().find(|&isa| isa != simd.isa()) {
        let other = Simd::with_isa(isa).unwrap();
        assert!(matches!(other.convolve2d_packed(&[0.0; 16], &[16, 1, 1], &kernels, op), Err(Error::Parameter { .. })));
    }
}
