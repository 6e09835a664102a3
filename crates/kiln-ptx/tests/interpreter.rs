//! The interpreter finds the faults that the other tests rely on it to find.

use kiln_ptx::{Argument, Builder, Kernel, Launch, PtxKernel, Target, Value};

use crate::support::Device;

/// A kernel, and what it says that it reads early.
struct Written(PtxKernel, Option<Vec<usize>>);

impl Kernel for Written {
    fn name(&self) -> String {
        self.0.name().to_owned()
    }

    fn build(&self) -> PtxKernel {
        self.0.clone()
    }

    fn reads_early(&self, _: Target) -> Option<Vec<usize>> {
        self.1.clone()
    }
}

/// Runs two warps on a buffer of a word for each thread, and returns the words.
fn run(body: impl FnOnce(&Builder)) -> Result<Vec<u8>, String> {
    let kernel = Written(PtxKernel::new("two_warps", [64, 1, 1], body), None);
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
    // Each reads what a thread that `of` leads to has written.
    let across = |k: &Builder, of: &dyn Fn(Value<'_, u32>) -> Value<'_, u32>| {
        let (x, words) = (k.buffer::<u32>("x"), k.shared::<u32>(64));
        k.st(words.index(k.tid_x()), k.tid_x());
        k.bar_warp_sync(u32::MAX);
        k.st(x.index(k.tid_x()), k.ld(words.index(of(k.tid_x()))));
        k.bar_warp_sync(u32::MAX);
        k.st(words.index(k.tid_x()), 0);
    };
    run(|k| across(k, &|thread| thread ^ 1u32)).unwrap();
    fault("a race", run(|k| across(k, &|thread| thread & 31u32)));
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

/// Runs two blocks of one warp as a cluster, on a buffer of a word for each thread.
fn run_cluster(body: impl FnOnce(&Builder)) -> Result<Vec<u8>, String> {
    let kernel = PtxKernel::new("two_blocks", [32, 1, 1], |k| {
        k.cluster(2);
        body(k);
    });
    let kernel = Written(kernel, None);
    let mut device = Device::default();
    let buffer = device.allocate(4 * 64);
    device.run(&kernel, &Launch { grid: [2, 1, 1], arguments: vec![Argument::Buffer(0)] }, &[buffer])?;
    Ok(device.download(buffer).to_vec())
}

#[test]
fn blocks_of_a_cluster_hand_over_and_their_faults_are_found() {
    let meet = |k: &Builder| {
        k.barrier_cluster_arrive::<u32>();
        k.barrier_cluster_wait::<u32>();
    };
    let got = run_cluster(|k| {
        let (x, words) = (k.buffer::<u32>("x"), k.shared::<u32>(32));
        let (thread, rank) = (k.tid_x(), k.cluster_ctarank());
        meet(k);
        k.st(words.index(thread).of_block(1 - rank), k.mad(rank, 32, thread));
        meet(k);
        k.st(x.index(k.mad(rank, 32, thread)), k.ld(words.index(thread)));
    });
    let wanted: Vec<u8> = (32..64u32).chain(0..32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(got.unwrap(), wanted);

    let fault = |what: &str, body: &dyn Fn(&Builder)| {
        let said = run_cluster(|k| {
            k.buffer::<u32>("x");
            body(k);
        });
        let said = said.expect_err(what);
        assert!(said.contains(what), "{said}");
    };
    let write = |k: &Builder| k.st(k.shared::<u32>(32).index(k.tid_x()).of_block(0u32), 1);
    fault("may not have begun", &write);
    fault("ends before the cluster has seen", &|k| {
        meet(k);
        write(k);
    });
    fault("a race", &|k| {
        meet(k);
        write(k);
        meet(k);
    });
    // Each block writes a word for each thread to the other, and waits for the bytes that it expects.
    let counted = |k: &Builder, bytes: u32, acquires: bool| {
        let (words, barrier) = (k.shared::<f32>(32), k.shared::<u64>(1));
        let (x, thread, other) = (k.buffer::<f32>("y"), k.tid_x(), 1 - k.cluster_ctarank());
        let of_first = |then: &dyn Fn()| k.if_(k.eq(thread, 0), then);
        of_first(&|| k.mbarrier_init(barrier, 1u32));
        k.fence_mbarrier_init::<u32>();
        meet(k);
        for parity in 0..2u32 {
            of_first(&|| k.mbarrier_arrive_expect_tx(barrier, bytes));
            let value = k.cvt_rn_f32(thread + 32 * (other + parity));
            k.st_async(words.index(thread).of_block(other), value, barrier.of_block(other));
            k.until(|| match acquires {
                true => k.mbarrier_try_wait_parity_cluster(barrier, parity),
                false => k.mbarrier_try_wait_parity(barrier, parity),
            });
            if parity == 0 {
                // The second turn writes what this one would read.
                k.bar_sync(0u32);
            } else {
                k.st(x.index(k.mad(1 - other, 32, thread)), k.ld(words.index(thread)));
            }
        }
    };
    let got = run_cluster(|k| counted(k, 128, true));
    let wanted: Vec<u8> = (32..96u32).flat_map(|word| (word as f32).to_le_bytes()).collect();
    assert_eq!(got.unwrap(), wanted);
    let said = run_cluster(|k| counted(k, 132, true)).unwrap_err();
    assert!(said.contains("bytes that nobody sends"), "{said}");
    let said = run_cluster(|k| counted(k, 128, false)).unwrap_err();
    assert!(said.contains("from the block alone"), "{said}");

    fault("waits before it has arrived", &|k| k.barrier_cluster_wait::<u32>());
    fault("do not meet at a barrier", &|k| k.if_(k.eq(k.cluster_ctarank(), 0), || meet(k)));
}

/// Each warp has 128 bytes brought and stores them; what is done too early, or not at all, is found.
#[test]
fn bulk_copies_are_waited_for() {
    let bring = |bytes: u32, waits: bool, expected: u32| {
        let kernel = PtxKernel::new("brought", [64, 1, 1], |k| {
            let [x, y] = [("in", 0), ("in", 1)].map(|name| k.buffer::<u32>(name).index(k.tid_x()));
            let (lane, warp) = (k.tid_x() & 31, k.tid_x() >> 5);
            let (words, barrier) = (k.shared::<u32>(64).index(k.tid_x()), k.shared::<u64>(2).index(warp));
            k.if_(k.eq(lane, 0), || {
                k.mbarrier_init(barrier, 1u32);
                k.fence_mbarrier_init::<u32>();
                k.mbarrier_arrive_expect_tx(barrier, expected);
                k.cp_async_bulk_load(words, x, bytes, barrier);
            });
            k.bar_warp_sync(u32::MAX);
            if waits {
                k.until(|| k.mbarrier_try_wait_parity(barrier, 0u32));
            }
            if expected > 0 {
                k.st(y, k.ld(words));
            }
        });
        passes_words_on(kernel)
    };
    assert_eq!(bring(128, true, 128), Ok(true));
    for (bytes, waits, expected, what) in [
        (128, false, 128, "a copy is on its way to"),
        (128, false, 0, "that nobody has waited for"),
        (128, true, 144, "bytes that nobody sends"),
        (120, true, 120, "no multiple of 16"),
        (112, true, 112, "nobody has written"),
        (144, true, 144, "144 bytes at 128 of a buffer of 256"),
    ] {
        let said = bring(bytes, waits, expected).expect_err(what);
        assert!(said.contains(what), "{said}");
    }
}

/// Whether a kernel writes 64 words as it reads them.
fn passes_words_on(kernel: PtxKernel) -> Result<bool, String> {
    let mut device = Device::default();
    let words: Vec<u8> = (0..64u32).flat_map(u32::to_le_bytes).collect();
    let buffers = [device.upload(&words), device.allocate(words.len())];
    let launch = Launch { grid: [1; 3], arguments: [0, 1].map(Argument::Buffer).to_vec() };
    device.run(&Written(kernel, None), &launch, &buffers)?;
    Ok(device.download(buffers[1]) == words)
}

/// A warp reads what a copy has brought, meets, and has the next words brought to the same place: it has to fence before.
#[test]
fn copies_are_kept_behind_what_was_read() {
    let twice = |before: &dyn Fn(&Builder), behind: &dyn Fn(&Builder)| {
        let kernel = PtxKernel::new("twice", [32, 1, 1], |k| {
            let [x, y] = ["x", "y"].map(|name| k.buffer::<u32>(name).index(k.tid_x()));
            let (words, barrier) = (k.shared::<u32>(32).index(k.tid_x()), k.shared::<u64>(1));
            let is_first = k.eq(k.tid_x(), 0);
            k.if_(is_first, || {
                k.mbarrier_init(barrier, 1u32);
                k.fence_mbarrier_init::<u32>();
            });
            for turn in 0..2 {
                k.bar_warp_sync(u32::MAX);
                behind(k);
                k.if_(is_first, || {
                    k.mbarrier_arrive_expect_tx(barrier, 128u32);
                    k.cp_async_bulk_load(words, x.offset(32 * turn), 128u32, barrier);
                });
                k.until(|| k.mbarrier_try_wait_parity(barrier, turn as u32));
                k.st(y.offset(32 * turn), k.ld(words));
                before(k);
            }
        });
        passes_words_on(kernel)
    };
    let (fence, nothing) = (|k: &Builder| k.fence_proxy_async::<u32>(), |_: &Builder| {});
    assert_eq!(twice(&fence, &nothing), Ok(true));
    // Without a fence, and with a fence only in the lane that begins the copy.
    let of_first = |k: &Builder| k.if_(k.eq(k.tid_x(), 0), || k.fence_proxy_async::<u32>());
    for (before, behind) in [(&nothing as &dyn Fn(&Builder), &nothing as &dyn Fn(&Builder)), (&nothing, &of_first)] {
        let said = twice(before, behind).unwrap_err();
        assert!(said.contains("without a fence since"), "{said}");
    }
}

/// Adds two words of each thread; the first is read before the launches in front are waited for, if at all.
#[test]
fn what_launches_in_front_may_write_is_waited_for() {
    let run = |early: &'static [usize], waits: bool| {
        let kernel = PtxKernel::new("sum", [32, 1, 1], |k| {
            let [a, b] = [("in", 0), ("in", 1)].map(|name| k.buffer::<u32>(name).index(k.tid_x()));
            k.griddepcontrol_launch_dependents::<u32>();
            let a = k.ld(a);
            if waits {
                k.griddepcontrol_wait::<u32>();
            } else {
                k.if_(k.lt(k.tid_x(), 16), || k.griddepcontrol_wait::<u32>());
            }
            k.st(b, a + k.ld(b));
        });
        let mut device = Device::default();
        let words: Vec<u8> = (0..32u32).flat_map(u32::to_le_bytes).collect();
        let buffers = [device.upload(&words), device.upload(&words)];
        let launch = Launch { grid: [1; 3], arguments: [0, 1].map(Argument::Buffer).to_vec() };
        device.run(&Written(kernel, Some(early.to_vec())), &launch, &buffers)?;
        Ok::<_, String>(device.download(buffers[1]).to_vec())
    };
    assert_eq!(run(&[0], true).unwrap(), (0..32u32).flat_map(|word| (2 * word).to_le_bytes()).collect::<Vec<_>>());
    for (early, waits) in [(&[][..], true), (&[1], true), (&[0], false)] {
        let said = run(early, waits).unwrap_err();
        assert!(said.contains("launches in front may still run"), "{said}");
    }
}
