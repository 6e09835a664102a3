//! A kernel that is written here, launched by hand.
#![allow(unsafe_code)] // launches by hand

mod support;

use kiln_ir::{Error, Operand};
use kiln_ptx::{Argument, Kernel, Launch, PtxKernel};

/// `y = a x + y`.
struct Axpy;

impl Kernel for Axpy {
    fn name(&self) -> String {
        "axpy".into()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [128, 1, 1], |k| {
            let (x, y) = (k.buffer::<f32>("x"), k.buffer::<f32>("y"));
            let (n, a) = (k.parameter::<u32>("n"), k.parameter::<f32>("a"));
            let i = k.mad(k.ctaid_x(), 128, k.tid_x());
            k.if_(k.lt(i, n), || k.st(y.index(i), k.fma(a, k.ld(x.index(i)), k.ld(y.index(i)))));
        })
    }
}

#[test]
fn a_kernel_of_ones_own_runs_as_often_as_it_is_launched() {
    let Some(device) = support::device() else { return };
    let x: Vec<f32> = (0..1000).map(|i| i as f32).collect();
    let [x, y] = [x, vec![1.0; 1000]].map(|data| device.upload(&Operand::vector(&data)).unwrap());
    let launch = |n: u32, a: f32| Launch {
        grid: [n.div_ceil(128), 1, 1],
        arguments: vec![Argument::Buffer(0), Argument::Buffer(1), Argument::U32(n), Argument::F32(a)],
    };
    // SAFETY: it guards its accesses by the length of both tensors, and only this thread uses them.
    let mut axpy = unsafe { device.prepare_kernel(&Axpy, launch(1000, 0.5), &[&x, &y]) }.unwrap();
    (0..3).for_each(|_| axpy.run().unwrap());
    let got = y.read().unwrap();
    assert!(got.as_data().f32().iter().enumerate().all(|(i, &y)| y == 1.5 * i as f32 + 1.0));

    let mut misfit = launch(1000, 0.5);
    misfit.arguments.pop();
    // SAFETY: arguments that do not match the kernel are refused before the launch.
    let mut refused = unsafe { device.prepare_kernel(&Axpy, misfit, &[&x, &y]) }.unwrap();
    assert!(matches!(refused.run(), Err(Error::Driver { .. })));
    let other = support::device().unwrap();
    // SAFETY: it is refused, and not launched.
    let refused = unsafe { other.prepare_kernel(&Axpy, launch(1, 0.5), &[&x, &y]) };
    assert!(matches!(refused, Err(Error::Unavailable { .. })));
}
