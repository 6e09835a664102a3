//! What the tests of the device layer share: a device in plain Rust, and a few helpers.

#![allow(dead_code, unused_imports)] // each test file uses a part of it

mod host_driver;
mod steps;

pub(crate) use host_driver::{HostChoice, HostDevice, HostOptions};
pub(crate) use steps::HostKernel;

use std::pin::pin;
use std::task::{Context, Poll, Waker};

use kiln_device::Tensor;
use kiln_ir::{Operand, Result};

/// A batch of the test device.
pub(crate) type Batch = kiln_device::Batch<HostDevice>;

/// A device with default options.
pub(crate) fn device() -> HostDevice {
    HostDevice::new(HostOptions::default())
}

/// `n` different numbers that f32 and f16 hold exactly.
pub(crate) fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i * 7 % 23) as f32 * 0.25 - 2.0).collect()
}

/// Uploads f32 elements.
pub(crate) fn upload(device: &HostDevice, data: &[f32], dims: &[usize]) -> Result<Tensor<HostDevice>> {
    device.upload(&Operand::f32(data, dims)?)
}

/// The f32 elements of a tensor.
pub(crate) fn elements(tensor: &Tensor<HostDevice>) -> Vec<f32> {
    tensor.read().unwrap().as_data().f32().to_vec()
}

/// Polls a future at most this many times and drops it; `None` if it was still pending.
pub(crate) fn poll_times<F: Future>(future: F, times: usize) -> Option<F::Output> {
    let mut future = pin!(future);
    let mut context = Context::from_waker(Waker::noop());
    (0..times).find_map(|_| match future.as_mut().poll(&mut context) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    })
}
