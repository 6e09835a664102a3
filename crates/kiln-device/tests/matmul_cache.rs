//! Products with weights that stay on a device.

use kiln_device::MatmulCache;
use kiln_device::waiting::block_on;
use kiln_ir::{DType, Error, Operand, QuantFormat, f16};

use crate::support::{HostDevice, HostOptions, device, numbers, poll_times};

/// `x Wᵀ` of `k` columns.
fn product(x: &[f32], weight: &[f32], k: usize) -> Vec<f32> {
    let dot = |row: &[f32], other: &[f32]| row.iter().zip(other).map(|(a, b)| a * b).sum();
    x.chunks(k).flat_map(|row| weight.chunks(k).map(move |other| dot(row, other))).collect()
}

#[test]
fn a_weight_is_uploaded_once_for_any_number_of_rows() {
    let device = device();
    let mut cache = MatmulCache::new(device.clone());
    cache.upload_weight("w", &numbers(12), 3, 4).unwrap();
    let before = device.statistics();
    for rows in [1, 2, 5, 2, 1] {
        let x: Vec<f32> = numbers(4 * rows).iter().map(|x| x + 1.0).collect();
        assert_eq!(cache.matmul("w", &x).unwrap(), product(&x, &numbers(12), 4));
    }
    assert_eq!((device.statistics() - before).uploaded_bytes, 4 * 4 * (1 + 2 + 5 + 2 + 1));
    // A number of rows that came before makes nothing.
    let before = device.statistics();
    let mut out = [0.0; 6];
    cache.matmul_into("w", &numbers(8), &mut out).unwrap();
    assert_eq!((device.statistics() - before).made(), 0);
    assert_eq!(out[..], product(&numbers(8), &numbers(12), 4));
}

#[test]
fn weights_are_f16_and_quantised_too() {
    let mut cache = MatmulCache::new(device());
    let halves: Vec<f16> = numbers(12).into_iter().map(f16::from_f32).collect();
    cache.upload_operand("halves", &Operand::elements(&halves, &[3, 4]).unwrap()).unwrap();
    assert_eq!(cache.weight("halves").map(|ty| ty.dtype), Some(DType::F16));
    assert_eq!(cache.matmul("halves", &numbers(8)).unwrap(), product(&numbers(8), &numbers(12), 4));

    let format = QuantFormat::Q8_0;
    let mut row = vec![2; format.block_bytes()];
    row[..2].copy_from_slice(&f16::from_f32(0.25).to_le_bytes());
    let rows = [row.clone(), row].concat();
    cache.upload_operand("blocks", &Operand::blocks(&rows, &[2, 32], format).unwrap()).unwrap();
    assert_eq!(cache.matmul("blocks", &[1.0; 32]).unwrap(), [16.0; 2]);
    let cut = Operand::blocks(&[0; 34], &[1, 31], format);
    assert!(matches!(cut, Err(Error::Format { .. })), "{cut:?}");
    let refused = cache.upload_operand("vector", &Operand::elements(&halves, &[12]).unwrap());
    assert!(matches!(refused, Err(Error::Shape { .. })), "{refused:?}");
    let refused = cache.upload_operand("integers", &Operand::elements(&[1i8; 4], &[2, 2]).unwrap());
    assert!(matches!(refused, Err(Error::Type { found: DType::I8, .. })), "{refused:?}");
    let mut names: Vec<&str> = cache.names().collect();
    names.sort_unstable();
    assert_eq!(names, ["blocks", "halves"]);
}

#[test]
fn weights_are_replaced_and_removed() {
    let device = device();
    let mut cache = MatmulCache::new(device.clone());
    cache.upload_weight("w", &[1.0, 0.0], 1, 2).unwrap();
    assert_eq!(cache.matmul("w", &[3.0, 5.0]).unwrap(), [3.0]);
    cache.upload_weight("w", &[0.0, 1.0, 1.0, 1.0], 2, 2).unwrap();
    assert_eq!(cache.matmul("w", &[3.0, 5.0]).unwrap(), [5.0, 8.0]);
    cache.upload_weight("other", &[2.0], 1, 1).unwrap();
    assert!(cache.remove("w") && !cache.remove("w"));
    let removed = cache.matmul("w", &[3.0, 5.0]).unwrap_err();
    assert!(matches!(&removed, Error::Unavailable { reason, .. } if reason.contains("other")), "{removed}");
    assert_eq!(cache.matmul("other", &[3.0]).unwrap(), [6.0]);
    drop(cache);
    assert_eq!(device.memory_use().live, 0);
}

#[test]
fn what_does_not_fit_is_refused() {
    let mut cache = MatmulCache::new(device());
    assert!(matches!(cache.upload_weight("w", &[0.0; 5], 2, 3), Err(Error::Length { .. })));
    assert!(matches!(cache.upload_weight("w", &[], usize::MAX, 2), Err(Error::Overflow { .. })));
    assert!(cache.weight("w").is_none());
    cache.upload_weight("w", &[0.0; 6], 2, 3).unwrap();
    assert!(matches!(cache.matmul("w", &[0.0; 4]), Err(Error::Shape { .. })));
    assert!(matches!(cache.matmul_into("w", &[0.0; 3], &mut [0.0; 3]), Err(Error::Length { .. })));
    // No row, and weights without rows or columns.
    assert!(cache.matmul("w", &[]).unwrap().is_empty());
    cache.upload_weight("flat", &[], 0, 3).unwrap();
    assert!(cache.matmul("flat", &[1.0; 6]).unwrap().is_empty());
    cache.upload_weight("narrow", &[], 2, 0).unwrap();
    assert!(cache.matmul("narrow", &[]).unwrap().is_empty());
}

#[test]
fn the_64_products_used_last_are_kept() {
    let device = device();
    let mut cache = MatmulCache::new(device.clone());
    cache.upload_weight("w", &[2.0], 1, 1).unwrap();
    let mut is_made = |rows: usize| {
        let before = device.statistics();
        assert_eq!(cache.matmul("w", &vec![1.0; rows]).unwrap(), vec![2.0; rows]);
        (device.statistics() - before).bind_groups == 1
    };
    assert!((1..=64).all(&mut is_made));
    assert!(!is_made(1) && is_made(65));
    assert!(!is_made(1) && is_made(2));
}

#[test]
fn futures_may_be_dropped_at_every_poll() {
    let device = HostDevice::new(HostOptions { suspends: true, ..HostOptions::default() });
    let mut cache = MatmulCache::new(device);
    cache.upload_weight("w", &numbers(4), 2, 2).unwrap();
    for polls in 0..6 {
        let _ = poll_times(cache.upload_weight_async("other", &[1.0], 1, 1), polls);
        let _ = poll_times(cache.matmul_async("w", &numbers(4)), polls);
        let mut out = [0.0; 4];
        let _ = poll_times(cache.matmul_into_async("w", &numbers(4), &mut out), polls);
        assert_eq!(cache.matmul("w", &numbers(4)).unwrap(), product(&numbers(4), &numbers(4), 2));
    }
    assert_eq!(block_on(cache.matmul_async("other", &[4.0])).unwrap(), [4.0]);
}
