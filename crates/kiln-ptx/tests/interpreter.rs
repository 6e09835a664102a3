//! The interpreter finds the faults that the other tests rely on it to find.

mod support;

use kiln_ptx::{Argument, Builder, Kernel, Launch, PtxKernel};
use support::Device;

struct Written(PtxKernel);

impl Kernel for Written {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn build(&self) -> PtxKernel {
        self.0.clone()
    }
}

/// Runs two warps on a buffer of a word for each thread, and returns the words.
fn run(body: impl FnOnce(&Builder)) -> Result<Vec<u8>, String> {
    let kernel = Written(PtxKernel::new("two_warps", [64, 1, 1], body));
    let mut device = Device::default();
    let buffer = device.allocate(4 * 64);
    device.run(&kernel, &Launch { grid: [1; 3], arguments: vec![Argument::Buffer(0)] }, &[buffer])?;
    Ok(device.download(buffer).to_vec())
}

#[test]
fn threads_hand_over_through_shared_memory_and_shuffles() {
    let got = run(|k| {
        let x = k.buffer::<u32>("x");
        let words = k.shared::<u32>(64);
        let thread = k.tid_x();
        k.st(words.index(thread), thread);
        k.bar_sync(0u32);
        let across = k.ld(words.index(63 - thread));
        k.st(x.index(thread), k.shfl_bfly(across, 1, 31, u32::MAX));
    });
    let wanted: Vec<u8> = (0..64u32).flat_map(|thread| (63 - (thread ^ 1)).to_le_bytes()).collect();
    assert_eq!(got.unwrap(), wanted);
}

#[test]
fn faults_are_found() {
    let fault = |what: &str, got: Result<Vec<u8>, String>| {
        let said = got.expect_err(what);
        assert!(said.contains(what), "{said}");
    };
    fault("of a buffer of 256", run(|k| k.st(k.buffer::<u32>("x").index(k.tid_x()).offset(1), 0)));
    fault(
        "is not aligned",
        run(|k| {
            k.ld_v::<_, _, 4>(k.buffer::<u32>("x").offset(1));
        }),
    );
    fault(
        "that nobody has written",
        run(|k| {
            let x = k.buffer::<u32>("x");
            k.st(x, k.ld(k.shared::<u32>(64)));
        }),
    );
    fault(
        "a race",
        run(|k| {
            k.buffer::<u32>("x");
            k.st(k.shared::<u32>(1), k.tid_x());
        }),
    );
    fault(
        "do not meet at a barrier",
        run(|k| {
            k.buffer::<u32>("x");
            k.if_(k.lt(k.tid_x(), 32), || k.bar_sync(0u32));
        }),
    );
    fault(
        "lanes of a warp do not meet",
        run(|k| {
            let x = k.buffer::<u32>("x");
            k.if_(k.lt(k.tid_x(), 5), || k.st(x, k.shfl_bfly(k.tid_x(), 1, 31, u32::MAX)));
        }),
    );
    fault(
        "a register that nothing has written",
        run(|k| {
            let x = k.buffer::<u32>("x");
            let mut from_a_branch = None;
            k.if_(k.gt(k.tid_x(), 100), || from_a_branch = Some(k.tid_y()));
            k.st(x, from_a_branch.unwrap());
        }),
    );
}
