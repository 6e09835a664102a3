//! Every target on a fixed number of cases, which `KILN_FUZZ_CASES` replaces: each must return, and take no more memory than its
//! input justifies.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use kiln_fuzz::{TARGETS, Target, find, mutated};

/// Counts the bytes that each thread holds. Threads of a pool have counts of their own, which nobody reads.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Where the thread ends its counts are gone.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

// SAFETY: every call goes on to `System` as it came; counting touches cells of the thread alone and allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the layout is the caller's, of nonzero size.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the layout is the caller's, of nonzero size.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, memory: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: `memory` came from `System` with this layout, since every allocation does.
        unsafe { System.realloc(memory, layout, size) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `memory` came from `System` with this layout, since every allocation does.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Calls a function and returns the bytes that this thread held at most beside those that it held before.
fn memory_of(call: impl FnOnce()) -> usize {
    let before = HELD.get();
    MOST.set(before);
    call();
    (MOST.get() - before).max(0) as usize
}

/// Keeps the bytes of a case where it panics.
struct Kept<'a> {
    name: &'a str,
    case: u64,
    bytes: &'a [u8],
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let path = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{}", self.name, self.case));
            let written = std::fs::write(&path, self.bytes);
            eprintln!("case {} of {}: {} ({written:?})", self.case, self.name, path.display());
        }
    }
}

/// The number of cases: that of the target, or of `KILN_FUZZ_CASES`.
fn cases(most: u64) -> u64 {
    std::env::var("KILN_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(most)
}

fn run(name: &str, cases: u64, seeds: &[Vec<u8>], run: impl Fn(&[u8]), memory: usize) {
    let (mut most, mut slowest) = (0, (Duration::ZERO, 0));
    let began = Instant::now();
    for case in 0..cases {
        let bytes = mutated(seeds, case);
        let kept = Kept { name, case, bytes: &bytes };
        let began = Instant::now();
        // What is made once, in the first cases, is no matter of their input.
        let taken = memory_of(|| run(&bytes));
        if case >= seeds.len() as u64 {
            most = most.max(taken);
            slowest = slowest.max((began.elapsed(), case));
            assert!(taken <= memory + 64 * bytes.len(), "{taken} bytes of memory for {} bytes", bytes.len());
        }
        drop(kept);
    }
    let (took, (slowest, case)) = (began.elapsed(), slowest);
    println!(
        "{name}: {cases} cases in {took:.1?}, the slowest {slowest:.1?} (case {case}), most memory {} KiB",
        most >> 10
    );
}

fn fixed(name: &str) {
    let target: &Target = find(name).expect("a target has this name");
    run(name, cases(target.cases), &(target.seeds)(), target.run, target.memory);
}

macro_rules! targets {
    ($($name:ident)*) => {
        $(#[test]
        fn $name() {
            fixed(stringify!($name));
        })*

        #[test]
        fn every_target_is_run() {
            assert_eq!(TARGETS.iter().map(|target| target.name).collect::<Vec<_>>(), [$(stringify!($name)),*]);
        }
    };
}

targets! { gguf tokenizers adapters models folders templates profiles images ptx graphs }

/// Programs on a GPU. A driver in software compiles each kernel for a second or so: `KILN_FUZZ_CASES` asks for more than a few.
#[cfg(feature = "gpu")]
#[test]
#[ignore = "needs a GPU: cargo xtask test --only gpu"]
fn programs_on_a_gpu() {
    let target = find("graphs").expect("it is in the table");
    let on_a_gpu = |bytes: &[u8]| kiln_fuzz::graphs_on_a_gpu(bytes).expect("a GPU, which the step brings");
    run("programs on a GPU", cases(24), &(target.seeds)(), on_a_gpu, usize::MAX / 2);
}
