//! Hosts that refuse threads or have a full disk: the calling thread does the work, and files stay as they were.

#![cfg(not(target_arch = "wasm32"))] // no processes there
#![cfg(target_os = "linux")]
#![cfg(not(miri))] // no processes there

mod support;

use std::path::Path;
use std::process::Command;

use again::{again, is_again, with_threads};
use kiln_device::host_copy;
use kiln_device::store::Kind;
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

#[test]
fn a_full_disk_leaves_the_old_file_of_compiled_code() {
    let folder = std::env::temp_dir().join(format!("kiln-device-full-{}", std::process::id()));
    if !is_again() {
        std::fs::create_dir_all(&folder).unwrap();
    }
    // A small disk that only this process sees; its folder is entered anew to see it.
    let mut shell = Command::new("unshare");
    shell.args(["--mount", "/bin/sh"]);
    let disk = folder.display();
    let setup = format!("mount -t tmpfs -o size=64k none '{disk}' && cd '{disk}'");
    if again(shell, &setup, "a_full_disk_leaves_the_old_file_of_compiled_code") {
        let kind = Kind { magic: *b"compiled", version: 1 };
        let path = Path::new("kernels.bin");
        kind.save(path, "key", &[7; 9000]).unwrap();
        for bytes in [60_000, 1 << 20] {
            let error = kind.save(path, "key", &vec![1; bytes]).unwrap_err();
            assert_eq!(error.kind(), std::io::ErrorKind::StorageFull, "{error}");
            assert_eq!(kind.load(path, "key").unwrap(), [7; 9000]);
            assert_eq!(std::fs::read_dir(".").unwrap().count(), 1, "a temporary file stays");
        }
        return;
    }
    std::fs::remove_dir_all(folder).unwrap();
}
