//! The handover of parts of a call to helper threads.
//!
//! A scope of a pool would wait for every task that it was given, including tasks that no thread has begun: a caller that has done all the
//! work itself would then wait for a thread to wake up and find nothing to do. Here the caller closes the work when no parts are left, and
//! waits only for threads that have entered it.
//!
//! Which threads help is not known here, and the atomics and locks come from `sync.rs`, so that `loom/tests/loom.rs` can run this source in every
//! order that threads may have.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::PoisonError;

use crate::float_state;
use crate::sync::{Arc, AtomicUsize, Mutex, MutexGuard, Ordering, TURNS, spin_loop, wait_until};

/// Set in [`Work::inside`] when no more threads may enter.
const CLOSED: usize = 1 << (usize::BITS - 1);

/// The function that is called for each part. Not a type parameter, which would duplicate this code for each function.
pub(crate) type Part<'a> = dyn Fn(usize) + Sync + 'a;

/// The parts of one call. A thread that has it may help at any time, also when the call has returned: it then finds the work closed.
pub(crate) struct Work {
    parts: usize,
    /// The number of times that a part was claimed or requested at either end, so that the ends never cross.
    taken: AtomicUsize,
    /// Parts that helpers have not claimed.
    back: AtomicUsize,
    /// Helpers that have entered and not left.
    inside: AtomicUsize,
    /// The caller's closure, by a reference that is valid for the duration of the call.
    part: *const &'static Part<'static>,
    panic: Mutex<Option<Box<dyn Any + Send>>>,
}

// SAFETY: the pointer refers to a closure that is `Sync`, and is dereferenced only while the work is open or by threads inside it.
unsafe impl Send for Work {}
// SAFETY: as above.
unsafe impl Sync for Work {}

/// Calls `part(i)` for every `i < parts`, on this thread and on those that [`Work::help`]. `hand_out` gives the work to them. Returns when
/// all parts are done and no helper is inside.
///
/// The caller takes parts from the front and its helpers from the back. A panic of a part resumes here.
pub(crate) fn share(parts: usize, part: &Part<'_>, hand_out: impl FnOnce(&Arc<Work>)) {
    let work = Arc::new(Work {
        parts,
        taken: AtomicUsize::new(0),
        back: AtomicUsize::new(parts),
        inside: AtomicUsize::new(0),
        part: std::ptr::from_ref(&part).cast(),
        panic: Mutex::new(None),
    });
    {
        let _close = Close(&work);
        hand_out(&work);
        let mut front = 0;
        let next = || {
            front += 1;
            front - 1
        };
        // SAFETY: the closure is borrowed for this call.
        unsafe { work.take_parts(next) };
    }
    let panic = work.panic.lock().unwrap_or_else(PoisonError::into_inner).take();
    if let Some(panic) = panic {
        resume_unwind(panic);
    }
}

impl Work {
    /// Runs parts until none is left; each call of `next` claims one.
    ///
    /// # Safety
    /// The closure is valid until this returns.
    unsafe fn take_parts(&self, mut next: impl FnMut() -> usize) {
        while self.taken.fetch_add(1, Ordering::Relaxed) < self.parts {
            // SAFETY: the caller's contract.
            unsafe { (*self.part)(next()) };
        }
    }

    /// Runs parts on a helper, if the work is still open.
    pub(crate) fn help(&self) {
        let enter = |n| (n & CLOSED == 0).then_some(n + 1);
        if self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok() {
            // Sets the floating-point state, because a pool thread has that of its creator.
            let take_parts = || {
                // SAFETY: the caller of `share` keeps the closure until the threads that have entered have left.
                float_state::guard(|| unsafe { self.take_parts(|| self.back.fetch_sub(1, Ordering::Relaxed) - 1) });
            };
            let result = catch_unwind(AssertUnwindSafe(take_parts));
            if let Err(panic) = result {
                *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
            }
            self.inside.fetch_sub(1, Ordering::Release);
        }
    }
}

/// Closes the work and waits for the threads inside, also if a part on the caller panics.
struct Close<'a>(&'a Work);

impl Drop for Close<'_> {
    fn drop(&mut self) {
        self.0.inside.fetch_or(CLOSED, Ordering::Relaxed);
        wait_until(|| self.0.inside.load(Ordering::Acquire) == CLOSED);
    }
}

/// Helpers that wait for work, and work that was given to some of them: a helper that sees work claims it.
pub(crate) struct Queue {
    pub(crate) waiting: Mutex<Waiting>,
    /// The length of [`Waiting::given`], which can be read without the lock.
    pub(crate) given: AtomicUsize,
}

/// The state behind the lock of a [`Queue`].
pub(crate) struct Waiting {
    /// Helpers that wait and that no work was given to.
    pub(crate) helpers: usize,
    pub(crate) given: Vec<Arc<Work>>,
}

impl Queue {
    fn lock(&self) -> MutexGuard<'_, Waiting> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives work to at most `wanted` waiting helpers. Returns to how many.
    pub(crate) fn give(&self, work: &Arc<Work>, wanted: usize) -> usize {
        let mut waiting = self.lock();
        let n = wanted.min(waiting.helpers);
        waiting.helpers -= n;
        waiting.given.extend((0..n).map(|_| Arc::clone(work)));
        self.given.store(waiting.given.len(), Ordering::Relaxed);
        n
    }

    /// Waits for work that is given to this helper, until it is late.
    pub(crate) fn wait(&self, is_late: impl Fn() -> bool) -> Option<Arc<Work>> {
        self.lock().helpers += 1;
        loop {
            let mut turns = 0;
            while turns < TURNS && self.given.load(Ordering::Relaxed) == 0 {
                turns += 1;
                spin_loop();
            }
            let late = is_late();
            if late || turns < TURNS {
                let mut waiting = self.lock();
                let work = waiting.given.pop();
                self.given.store(waiting.given.len(), Ordering::Relaxed);
                if late && work.is_none() {
                    waiting.helpers -= 1;
                }
                if late || work.is_some() {
                    return work;
                }
            }
        }
    }
}
