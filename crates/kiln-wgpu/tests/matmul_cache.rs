//! Weights that stay on a device.

mod support;

use kiln_device::conformance::sample;
use kiln_ir::op::reference::Expected;
use kiln_ir::op::{Matmul, Op, QuantMatmul, Quantize};
use kiln_ir::{Error, Operand, QuantFormat, f16};
use kiln_wgpu::GpuMatmulCache;

fn values(n: usize) -> Vec<f32> {
    (0..n).map(|i| ((i * 7919) % 127) as f32 / 64.0 - 1.0).collect()
}

/// The result of exact arithmetic.
fn exact(op: impl Into<Op>, operands: &[Operand<'_>]) -> Vec<f64> {
    match op.into().reference(operands).unwrap().remove(0) {
        Expected::F32 { values, .. } => values,
        other => panic!("{other:?}"),
    }
}

/// `x Wᵀ`
fn product(x: &[f32], w: &[f32], n: usize, k: usize) -> Vec<f64> {
    let x = Operand::f32(x, &[x.len() / k, k]).unwrap();
    exact(Matmul { transpose_b: true, ..Matmul::default() }, &[x, Operand::f32(w, &[n, k]).unwrap()])
}

fn close(got: &[f32], want: &[f64], k: usize) {
    assert_eq!(got.len(), want.len());
    for (got, want) in got.iter().zip(want) {
        assert!((f64::from(*got) - want).abs() <= k as f64 * 1e-6, "{got} {want}");
    }
}

#[test]
fn a_weight_means_the_same_for_any_number_of_rows() {
    let Some(device) = support::device() else { return };
    // k is not a multiple of four, and neither extent fills a tile.
    for (n, k) in [(33, 10), (1, 1), (130, 257), (7, 1024)] {
        let mut cache = GpuMatmulCache::new(device.clone());
        let w = values(n * k);
        cache.upload_weight("w", &w, n, k).unwrap();
        for rows in [1, 2, 3, 4, 9, 65] {
            let x = values(rows * k);
            close(&cache.matmul("w", &x).unwrap(), &product(&x, &w, n, k), k);
        }
        // The rows of a product are the products of its rows.
        let x = values(5 * k);
        let all = cache.matmul("w", &x).unwrap();
        for (row, x) in x.chunks(k).enumerate() {
            let one: Vec<f64> = cache.matmul("w", x).unwrap().into_iter().map(f64::from).collect();
            close(&all[row * n..][..n], &one, k);
        }
    }
}

#[test]
fn weights_of_f16_are_products_of_what_they_stand_for() {
    let Some(device) = support::device() else { return };
    for (n, k) in [(33, 10), (1, 1), (130, 257), (7, 1024), (64, 64)] {
        let mut cache = GpuMatmulCache::new(device.clone());
        // A third is not exact in f16: it is rounded here, once.
        let w: Vec<f16> = values(n * k).iter().map(|x| f16::from_f32(x / 3.0)).collect();
        let wide: Vec<f32> = w.iter().map(|x| x.to_f32()).collect();
        cache.upload_operand("w", &Operand::elements(&w, &[n, k]).unwrap()).unwrap();
        for rows in [1, 3, 9, 65] {
            let x = values(rows * k);
            close(&cache.matmul("w", &x).unwrap(), &product(&x, &wide, n, k), k);
        }
    }
}

#[test]
fn quantised_weights_are_products_of_what_they_stand_for() {
    let Some(device) = support::device() else { return };
    let (n, k) = (24, 512);
    let mut cache = GpuMatmulCache::new(device);
    // If KILN_SAMPLE requests samples, each format takes one number of rows, and the next format another.
    let step = sample().min(3);
    for (number, &format) in QuantFormat::ALL.iter().enumerate() {
        let w = values(n * k);
        let quantize = Op::from(Quantize { format }).reference(&[Operand::f32(&w, &[n, k]).unwrap()]).unwrap();
        let [Expected::Exact(kiln_ir::Buffer::Blocks(_, blocks))] = &quantize[..] else { panic!("{quantize:?}") };
        let mut decoded = vec![0.0; n * k];
        format.decode(blocks, &mut decoded).unwrap();
        cache.upload_operand("w", &Operand::blocks(blocks, &[n, k], format).unwrap()).unwrap();
        for rows in [1, 8, 40].into_iter().skip(number % step).step_by(step) {
            let x = values(rows * k);
            let operands = [Operand::f32(&x, &[rows, k]).unwrap(), Operand::blocks(blocks, &[n, k], format).unwrap()];
            let (got, want) = (cache.matmul("w", &x).unwrap(), exact(QuantMatmul { format }, &operands));
            assert_eq!(got.len(), want.len());
            for (at, (got, want)) in got.iter().zip(want).enumerate() {
                // Elements of x, which are at most 1, are rounded to 16 bits.
                let of_weights: f32 = decoded[at % n * k..][..k].iter().map(|w| w.abs()).sum();
                let bound = k as f64 * 1e-6 + f64::from(of_weights) / 65_278.0;
                assert!((f64::from(*got) - want).abs() <= bound, "{format:?}, {rows} rows: {got} {want}");
            }
        }
    }
}

#[test]
fn a_weight_is_sent_once_and_a_product_is_one_submission() {
    let Some(device) = support::device() else { return };
    let mut cache = GpuMatmulCache::new(device.clone());
    cache.upload_weight("w", &values(64 * 64), 64, 64).unwrap();
    let x = values(64);
    cache.matmul("w", &x).unwrap();
    let before = device.statistics();
    cache.matmul("w", &x).unwrap();
    let spent = device.statistics() - before;
    assert_eq!((spent.submissions, spent.uploads, spent.uploaded_bytes), (1, 1, 256));
    assert_eq!((spent.downloads, spent.downloaded_bytes), (1, 256));
}

#[test]
fn what_is_missing_or_does_not_fit_is_an_error() {
    let Some(device) = support::device() else { return };
    let mut cache = GpuMatmulCache::new(device.clone());
    assert!(matches!(cache.matmul("w", &[1.0]), Err(Error::Unavailable { .. })));
    assert!(matches!(cache.upload_weight("w", &[1.0; 5], 2, 3), Err(Error::Length { .. })));
    cache.upload_weight("w", &[1.0; 6], 2, 3).unwrap();
    assert_eq!(cache.names().collect::<Vec<_>>(), ["w"]);
    assert!(matches!(cache.matmul("w", &[1.0; 4]), Err(Error::Shape { .. })));
    assert!(matches!(cache.matmul_into("w", &[1.0; 3], &mut [0.0; 3]), Err(Error::Length { .. })));
    assert!(cache.matmul("w", &[]).unwrap().is_empty());
    assert_eq!(cache.matmul("w", &[1.0, 2.0, 3.0]).unwrap(), [6.0, 6.0]);
    assert!(cache.remove("w") && !cache.remove("w"));
    assert!(matches!(cache.matmul("w", &[1.0; 3]), Err(Error::Unavailable { .. })));
    cache.upload_weight("w", &[1.0; 6], 2, 3).unwrap();
    device.destroy();
    assert!(matches!(cache.matmul("w", &[1.0; 3]), Err(Error::DeviceLost { .. })));
}
