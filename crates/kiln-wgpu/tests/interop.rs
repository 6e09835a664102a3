//! Buffers that are shared with other code on wgpu.

mod support;

use kiln_ir::op::Elementwise;
use kiln_ir::{Error, Operand, Record};
use kiln_wgpu::wgpu::{self, BufferUsages as Usages};
use kiln_wgpu::{GpuCommandBatch, GpuDevice};

fn buffer(device: &GpuDevice, elements: &[f32], usage: Usages) -> wgpu::Buffer {
    let bytes: Vec<u8> = elements.iter().flat_map(|element| element.to_le_bytes()).collect();
    let size = bytes.len() as u64;
    let descriptor = wgpu::BufferDescriptor { label: None, size, usage, mapped_at_creation: false };
    let buffer = device.wgpu_device().create_buffer(&descriptor);
    if usage.contains(Usages::COPY_DST) {
        device.wgpu_queue().write_buffer(&buffer, 0, &bytes);
    }
    buffer
}

const USABLE: Usages = Usages::STORAGE.union(Usages::COPY_SRC).union(Usages::COPY_DST);

#[test]
fn a_buffer_of_the_caller_is_read_as_it_is_when_work_runs() {
    let Some(device) = support::device() else { return };
    let shared = buffer(&device, &[1.0, 2.0, 3.0, 4.0], USABLE);
    let tensor = device.import_buffer(shared.clone(), &[3]).unwrap();
    assert_eq!(tensor.read().unwrap().as_data().f32(), [1.0, 2.0, 3.0]);

    let mut batch = GpuCommandBatch::new(device.clone());
    let x = batch.import(&device.import_buffer(shared.clone(), &[2, 2]).unwrap()).unwrap();
    let y = batch.scale(x, 10.0).unwrap();
    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), [10.0, 20.0, 30.0, 40.0]);
    device.wgpu_queue().write_buffer(&shared, 4, &7.0f32.to_le_bytes());
    assert_eq!(batch.run(&[y]).unwrap()[0].as_data().f32(), [10.0, 70.0, 30.0, 40.0]);
}

#[test]
fn a_tensor_is_a_buffer_to_others() {
    let Some(device) = support::device() else { return };
    let x = device.upload(&Operand::vector(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    let y = device.run(&Elementwise::scale(2.0).into(), &[&x]).unwrap().remove(0);
    let part = device.wgpu_buffer(&y).unwrap();
    let copy = buffer(&device, &[0.0; 4], USABLE);
    let mut encoder = device.wgpu_device().create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(part.buffer(), part.offset(), &copy, 0, 16);
    device.wgpu_queue().submit([encoder.finish()]);
    let copy = device.import_buffer(copy, &[4]).unwrap();
    assert_eq!(copy.read().unwrap().as_data().f32(), [2.0, 4.0, 6.0, 8.0]);
}

#[test]
fn commands_of_others_see_earlier_uploads() {
    let Some(device) = support::device() else { return };
    let (raw, queue) = (device.wgpu_device(), device.wgpu_queue());
    let to = buffer(&device, &[0.0; 4], USABLE);
    let x = device.upload(&Operand::vector(&[1.0, 2.0, 3.0, 4.0])).unwrap();
    let part = device.wgpu_buffer(&x).unwrap();
    let mut encoder = raw.create_command_encoder(&wgpu::CommandEncoderDescriptor::default());
    encoder.copy_buffer_to_buffer(part.buffer(), part.offset(), &to, 0, 16);
    queue.submit([encoder.finish()]);
    let copy = device.import_buffer(to, &[4]).unwrap();
    assert_eq!(copy.read().unwrap().as_data().f32(), [1.0, 2.0, 3.0, 4.0]);
}

#[test]
fn buffers_that_cannot_serve_are_refused() {
    let (Some(device), Some(other)) = (support::device(), support::device()) else { return };
    let import = |buffer, dims: &[usize]| device.import_buffer(buffer, dims);
    let refused = |tensor| matches!(tensor, Err(Error::Parameter { .. }));
    assert!(refused(import(buffer(&device, &[1.0; 4], Usages::STORAGE), &[4])), "not to be copied from");
    assert!(refused(import(buffer(&device, &[1.0; 4], Usages::COPY_SRC), &[4])), "not to be read by kernels");
    assert!(refused(import(buffer(&device, &[1.0; 4], USABLE), &[5])), "too short");
    assert!(refused(import(buffer(&device, &[1.0; 5], USABLE), &[5])), "no whole vectors");
    assert!(import(buffer(&device, &[1.0; 4], USABLE), &[1 << 40, 1 << 40]).is_err(), "no such shape");

    let strange = import(buffer(&other, &[1.0; 4], USABLE), &[4]).unwrap();
    let scaled = device.run(&Elementwise::scale(2.0).into(), &[&strange]).and_then(|scaled| scaled[0].read());
    assert!(matches!(scaled, Err(Error::Driver { .. })), "of another device: {scaled:?}");
    let x = device.upload(&Operand::vector(&[1.0, 2.0])).unwrap();
    assert_eq!(x.read().unwrap().as_data().f32(), [1.0, 2.0], "the device goes on");
}
