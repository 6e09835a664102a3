//! Tiled reductions give the bits of those in kiln-ir.

mod support;

use kiln_ir::op::reference::Random;
use kiln_ir::{DType, Error, MaxOp, MinOp, Operand, SumOp, f16, tiled_reduce_2d, tiled_reduce_partial};
use kiln_wgpu::{GpuDevice, TiledOp};

fn bits(values: &[f32]) -> Vec<u32> {
    // The NaN of a sum depends on the machine.
    values.iter().map(|v| if v.is_nan() { f32::NAN.to_bits() } else { v.to_bits() }).collect()
}

fn check<Op: TiledOp>(device: &GpuDevice, data: &[f32], width: usize, height: usize) {
    let x = device.upload(&Operand::f32(data, &[height, width]).unwrap()).unwrap();
    let partial = device.tiled_reduce_partial::<Op>(&x).unwrap();
    let expected = tiled_reduce_partial::<Op>(data, width, height).unwrap();
    assert_eq!(bits(&partial), bits(&expected), "the tiles of {width} by {height}");
    let value = device.tiled_reduce_2d::<Op>(data, width, height).unwrap();
    assert_eq!(bits(&[value]), bits(&[tiled_reduce_2d::<Op>(data, width, height).unwrap()]), "{width} by {height}");
}

fn check_all(device: &GpuDevice, data: &[f32], width: usize, height: usize) {
    check::<SumOp>(device, data, width, height);
    check::<MaxOp>(device, data, width, height);
    check::<MinOp>(device, data, width, height);
}

#[test]
fn every_size_gives_the_same_bits() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(1);
    for width in [0, 1, 3, 4, 15, 16, 17, 20, 33, 64, 257, 1000, 1028] {
        for height in [0, 1, 5, 16, 17, 48, 100, 333] {
            check_all(&device, &random.uniforms(width * height, -8.0, 8.0), width, height);
        }
    }
    check_all(&device, &random.uniforms(3001 * 2003, -1.0, 1.0), 3001, 2003);
    check_all(&device, &random.uniforms(500_000 * 3, -1.0, 1.0), 3, 500_000);
}

#[test]
fn special_values_give_the_same_bits() {
    let Some(device) = support::device() else { return };
    let mut random = Random::new(2);
    for special in [f32::NAN, -f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::MAX, f32::MIN] {
        for at in [0, 16, 17 * 16 + 3, 17 * 18 - 1] {
            let mut data = random.uniforms(17 * 18, -1.0, 1.0);
            data[at] = special;
            check_all(&device, &data, 17, 18);
        }
        check_all(&device, &[special; 40 * 40], 40, 40);
    }
    check_all(&device, &[0.0, -0.0], 2, 1);
    check_all(&device, &[-0.0, 0.0], 1, 2);
}

#[test]
fn more_than_a_kernel_can_see_at_once_is_reduced_in_pieces() {
    let Some(device) = support::device() else { return };
    let (width, height) = (6000, 5700);
    let mut data = vec![1.0; width * height];
    data[width * height - 1] = 9.0;
    assert_eq!(device.tiled_sum_2d(&data, width, height).unwrap(), (width * height + 8) as f32);
    assert_eq!(device.tiled_max_2d(&data, width, height).unwrap(), 9.0);
    assert_eq!(device.tiled_min_2d(&data, width, height).unwrap(), 1.0);
}

#[test]
fn futures_give_the_same() {
    let Some(device) = support::device() else { return };
    let data = Random::new(3).uniforms(40 * 30, -1.0, 1.0);
    let all = kiln_wgpu::runtime::block_on(async {
        let (sum, max) =
            (device.tiled_sum_2d_async(&data, 40, 30).await?, device.tiled_max_2d_async(&data, 40, 30).await?);
        let min = device.tiled_min_2d_async(&data, 40, 30).await?;
        Ok::<_, Error>([sum, max, min])
    });
    let tiled =
        [device.tiled_sum_2d(&data, 40, 30), device.tiled_max_2d(&data, 40, 30), device.tiled_min_2d(&data, 40, 30)];
    assert_eq!(all.unwrap(), tiled.map(Result::unwrap));
}

#[test]
fn what_is_no_matrix_is_refused() {
    let Some(device) = support::device() else { return };
    assert!(matches!(device.tiled_sum_2d(&[1.0; 5], 2, 3), Err(Error::Length { .. })));
    assert!(matches!(device.tiled_sum_2d(&[], usize::MAX, 2), Err(Error::Overflow { .. })));
    let x = device.upload(&Operand::vector(&[1.0; 5])).unwrap();
    assert!(matches!(device.tiled_reduce::<SumOp>(&x), Err(Error::Shape { .. })));
    let half = device.upload(&Operand::elements(&[f16::ONE; 6], &[2, 3]).unwrap()).unwrap();
    assert!(matches!(device.tiled_reduce::<SumOp>(&half), Err(Error::Type { found: DType::F16, .. })));
    let positions = device.upload(&Operand::elements(&[1u32; 6], &[2, 3]).unwrap()).unwrap();
    assert!(matches!(device.tiled_reduce_partial::<SumOp>(&positions), Err(Error::Type { found: DType::U32, .. })));
}
