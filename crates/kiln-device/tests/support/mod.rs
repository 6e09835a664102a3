//! What the tests of the device layer share: a device in plain Rust, and a few helpers.

#![allow(dead_code, unused_imports)] // each test file uses a part of it

mod host_driver;
mod steps;

pub(crate) use host_driver::{HostChoice, HostDevice, HostOptions};
pub(crate) use steps::HostKernel;

use std::pin::pin;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use kiln_device::Tensor;
use kiln_ir::op::reference::Expected;
use kiln_ir::op::{Bound, Contract, CustomCall, CustomOperation, Outputs};
use kiln_ir::{Operand, Result, TensorType};

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

/// Twice its input, with a kernel for the test device or without. Counts the calls of its shape rule.
#[derive(Debug)]
pub(crate) struct Twice {
    kernel: Option<HostKernel>,
    inferred: AtomicUsize,
}

impl Twice {
    pub(crate) const fn new(kernel: Option<HostKernel>) -> Self {
        Self { kernel, inferred: AtomicUsize::new(0) }
    }

    /// How often `work` infers the type of a result.
    pub(crate) fn inferred_by(&self, work: impl FnOnce()) -> usize {
        let before = self.inferred.load(Ordering::SeqCst);
        work();
        self.inferred.load(Ordering::SeqCst) - before
    }
}

impl CustomOperation for Twice {
    fn name(&self) -> &'static str {
        "twice"
    }

    fn formula(&self) -> &'static str {
        "2 x"
    }

    fn infer(&self, _: &[f32], inputs: &[TensorType]) -> Result<Outputs> {
        self.inferred.fetch_add(1, Ordering::SeqCst);
        Ok(inputs[0].into())
    }

    fn flops(&self, call: &CustomCall<'_>) -> u64 {
        call.outputs[0].shape.numel() as u64
    }

    fn contract(&self) -> Contract {
        Contract { bound: Bound::Exact, special: "" }
    }

    fn kernels(&self) -> Vec<&(dyn std::any::Any + Send + Sync)> {
        self.kernel.iter().map(|kernel| kernel as _).collect()
    }

    fn reference(&self, _: &CustomCall<'_>, inputs: &[Operand<'_>]) -> Vec<Expected> {
        let values: Vec<f64> = inputs[0].data().f32().iter().map(|&x| 2.0 * f64::from(x)).collect();
        vec![Expected::F32 { magnitudes: values.clone(), values }]
    }
}
