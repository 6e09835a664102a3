//! Pools of devices, copies and waiting where the system refuses threads: the calling thread does the work.

#![cfg(not(target_arch = "wasm32"))] // no processes there
#![cfg(target_os = "linux")]
#![cfg(not(miri))] // no processes there

mod support;

use again::with_threads;
use kiln_device::host_copy;
use kiln_device::waiting::{block_on, elsewhere};
use kiln_ir::op::{Op, Reduce, Reduction};
use kiln_ir::{Buffer, Operand, Operations};
use support::{HostDevice, HostOptions};

#[path = "../../kiln-simd/tests/support/again.rs"]
#[allow(dead_code)] // what the tests of other crates need
mod again;

#[test]
fn the_caller_does_the_work_where_no_thread_can_be_started() {
    if with_threads(0, "the_caller_does_the_work_where_no_thread_can_be_started") {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
        let from = vec![7; 16 << 20];
        let mut to = vec![0; from.len()];
        host_copy::copy(&from, &mut to, 8);
        assert!(from == to);
        assert_eq!(block_on(elsewhere("a test", || 5)), 5);

        let devices = (0..2).map(|i| HostDevice::named(&format!("device {i}"), HostOptions::default()));
        let pool = kiln_device::DevicePool::of(devices.collect::<Vec<_>>()).unwrap();
        let x: Vec<f32> = (0..2_200_000).map(|i| (i % 1013) as f32).collect();
        let op = Op::from(Reduce::all(Reduction::Max));
        assert_eq!(pool.run(&op, &[Operand::vector(&x)]).unwrap(), [Buffer::F32(vec![1012.0])]);
    }
}
