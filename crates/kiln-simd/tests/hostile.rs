//! Hosts that refuse threads, as a limit of a container on processes does: what runs computes the same with fewer.
//!
//! Such a limit binds no user who may do everything, and lasts as long as the process: each test runs again in a process of its own,
//! of another user where this one is root.

#![cfg(not(target_arch = "wasm32"))] // no processes on this target
#![cfg(target_os = "linux")]
#![cfg(feature = "parallel")]
#![cfg(not(miri))] // no processes under Miri

use again::{nobody, user, with_threads};
use kiln_simd::{Operations, Simd};

#[path = "support/again.rs"]
mod again;

/// What is cut among threads: a sum and a product, on as many as this.
fn results(threads: usize) -> Vec<u32> {
    let simd = Simd::new().unwrap().with_threads(threads);
    let x: Vec<f32> = (0..1 << 20).map(|i| (i % 1000) as f32 * 1e-3).collect();
    let mut all = simd.matmul(&x[..512 * 512], &x[512 * 512..2 * 512 * 512], 512, 512, 512).unwrap();
    all.push(simd.sum(&x).unwrap());
    all.extend(simd.exp(&x).unwrap());
    all.iter().map(|x| x.to_bits()).collect()
}

/// The threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").unwrap().count()
}

#[test]
fn the_caller_computes_alone_where_no_thread_can_be_started() {
    if with_threads(0, "the_caller_computes_alone_where_no_thread_can_be_started") {
        assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "the limit does not bind");
        let alone = results(1);
        // The second call starts no thread.
        assert!(results(4) == alone);
        assert!(results(4) == alone);
        assert_eq!(threads(), 1);
    }
}

#[test]
fn threads_that_can_be_started_help() {
    if with_threads(3, "threads_that_can_be_started_help") {
        // SAFETY: no other thread runs yet.
        unsafe { std::env::set_var("RAYON_NUM_THREADS", "8") };
        let alone = results(1);
        assert!(results(8) == alone);
        // The user may have other processes already.
        assert!(threads() == 3 || threads() < 3 && user() != nobody(3), "{} threads", threads());
    }
}
