//! The sharing of work by threads. Users reach it through kernels alone, which neither count their parts nor panic, so its source is
//! compiled into this test.

#![cfg(not(target_arch = "wasm32"))] // no threads on this target
#![cfg(feature = "parallel")]

#[path = "../src/float_state.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // items that kernels use
mod float_state;
#[path = "../src/hand_over.rs"]
mod hand_over;
#[path = "../src/sync.rs"]
mod sync;
#[path = "../src/threads.rs"]
#[allow(dead_code)] // items that kernels use
mod threads;
#[path = "../src/wait.rs"]
mod wait;

use std::sync::atomic::{AtomicUsize, Ordering};

use threads::for_each;

#[test]
fn every_part_runs_once() {
    for parts in [1, 2, 3, 100] {
        let counts: Vec<AtomicUsize> = (0..parts).map(|_| AtomicUsize::new(0)).collect();
        for_each(parts, 4, |i| _ = counts[i].fetch_add(1, Ordering::Relaxed));
        assert!(counts.iter().all(|c| c.load(Ordering::Relaxed) == 1));
    }
}

#[test]
fn helpers_that_stay_awake_help_again() {
    let sum = AtomicUsize::new(0);
    let rounds = 2000;
    for round in 0..rounds {
        // Rounds with nested work, and rounds in which the helpers are asleep.
        for_each(4, 4, |i| match (round % 10, i) {
            (0, 0) => for_each(3, 3, |i| _ = sum.fetch_add(i + 1, Ordering::Relaxed)),
            _ => _ = sum.fetch_add(6, Ordering::Relaxed),
        });
        if round % 500 == 0 {
            std::thread::sleep(std::time::Duration::from_millis(2));
        }
    }
    assert_eq!(sum.load(Ordering::Relaxed), rounds * 24);
}

#[test]
fn a_panic_reaches_the_caller_when_all_have_left() {
    let running = AtomicUsize::new(0);
    let result = std::panic::catch_unwind(|| {
        for_each(64, 4, |i| {
            running.fetch_add(1, Ordering::Relaxed);
            std::thread::sleep(std::time::Duration::from_micros(200));
            running.fetch_sub(1, Ordering::Relaxed);
            assert!(i != 7, "part 7");
        });
    });
    assert!(result.is_err());
    assert_eq!(running.load(Ordering::Relaxed), 0);
}
