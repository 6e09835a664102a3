//! A model of the handover of work to helper threads: loom runs `hand_over.rs` of kiln-simd in every order that its threads may have,
//! with up to [`PREEMPTIONS`] preemptions, and under the memory model of C11, whatever the processor of this machine guarantees.
//!
//! Results are in cells that loom watches: an access that is not ordered after the write of another thread, or after the caller has
//! returned, is an error.

#[path = "../../crates/kiln-simd/src/float_state.rs"]
#[allow(dead_code, unused_imports, unused_macros)] // items that kernels use
mod float_state;
#[path = "../../crates/kiln-simd/src/hand_over.rs"]
mod hand_over;

/// The counterpart of `sync.rs` in the library.
mod sync {
    pub(crate) use loom::hint::spin_loop;
    pub(crate) use loom::sync::atomic::{AtomicUsize, Ordering};
    pub(crate) use loom::sync::{Arc, Mutex, MutexGuard};

    /// One look is enough for a model: more of them change nothing that another thread sees.
    pub(crate) const TURNS: usize = 1;

    pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
        while !is_so() {
            loom::thread::yield_now();
        }
    }
}

use std::any::Any;
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};

use hand_over::{Queue, Waiting, Work, share};
use loom::cell::UnsafeCell;
use loom::thread::{JoinHandle, spawn};
use sync::{Arc, AtomicUsize, Mutex};

/// The number of times that a thread may be interrupted where it would not wait by itself.
const PREEMPTIONS: usize = 3;

fn model(run: impl Fn() + Send + Sync + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(PREEMPTIONS);
    builder.check(run);
}

/// The number of runs of each part, without any synchronisation of its own.
struct Counts(Vec<UnsafeCell<usize>>);

// SAFETY: loom checks every access, and reports those that are not ordered.
unsafe impl Sync for Counts {}

impl Counts {
    fn new(parts: usize) -> Self {
        Self((0..parts).map(|_| UnsafeCell::new(0)).collect())
    }

    fn add(&self, part: usize) {
        // SAFETY: loom has found no other access before this one.
        self.0[part].with_mut(|count| unsafe { *count += 1 });
    }

    fn all(&self, expected: usize) -> bool {
        // SAFETY: as above.
        self.0.iter().all(|count| count.with_mut(|count| unsafe { *count == expected }))
    }
}

fn help(work: &Arc<Work>) -> JoinHandle<()> {
    let work = Arc::clone(work);
    spawn(move || work.help())
}

#[test]
fn every_part_runs_once_and_its_results_are_seen_by_the_caller() {
    for (parts, helpers) in [(1, 1), (2, 1), (3, 1), (1, 2), (2, 2)] {
        model(move || {
            let counts = Counts::new(parts);
            let mut threads = Vec::new();
            share(parts, &|part| counts.add(part), |work| threads.extend((0..helpers).map(|_| help(work))));
            assert!(counts.all(1));
            threads.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn a_panic_of_a_part_reaches_the_caller_when_all_have_left() {
    // A panic of the caller at its first part leaves parts that a helper may not begin any more.
    for panicking in [0, 1] {
        model(move || {
            let counts = Counts::new(2);
            let mut thread = None;
            let part = |part| {
                counts.add(part);
                if part == panicking {
                    // Without the message that the hook of panics prints.
                    resume_unwind(Box::new("a part"));
                }
            };
            let call = || share(2, &part, |work| thread = Some(help(work)));
            let panic: Box<dyn Any + Send> = catch_unwind(AssertUnwindSafe(call)).unwrap_err();
            assert_eq!(panic.downcast_ref(), Some(&"a part"));
            // Nothing is inside any more.
            counts.add(0);
            counts.add(1);
            thread.into_iter().for_each(|thread| thread.join().unwrap());
        });
    }
}

#[test]
fn work_that_is_given_is_taken_by_helpers_that_wait() {
    for (looks, helpers) in [(0, 1), (1, 1), (2, 1), (0, 2), (1, 2)] {
        model(move || {
            let waiting = Mutex::new(Waiting { helpers: 0, given: Vec::new() });
            let queue = Arc::new(Queue { waiting, given: AtomicUsize::new(0) });
            let threads: Vec<_> = (0..helpers)
                .map(|_| {
                    let queue = Arc::clone(&queue);
                    spawn(move || {
                        let left = Cell::new(looks);
                        // It is late after some looks.
                        let is_late = || left.replace(left.get().max(1) - 1) == 0;
                        let work = queue.wait(is_late);
                        work.iter().for_each(|work| work.help());
                        usize::from(work.is_some())
                    })
                })
                .collect();
            let counts = Counts::new(2);
            let mut given = 0;
            share(2, &|part| counts.add(part), |work| given = queue.give(work, helpers));
            assert!(counts.all(1));
            let taken: usize = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            assert_eq!(taken, given);
            let waiting = queue.waiting.lock().unwrap();
            assert!(waiting.helpers == 0 && waiting.given.is_empty());
        });
    }
}
