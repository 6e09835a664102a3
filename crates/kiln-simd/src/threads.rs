//! Splitting work over threads. What is computed never depends on how many there are: callers split by the problem
//! alone and the number of threads only says how many parts run at once.

use std::sync::OnceLock;

/// The threads of the machine that this process may use.
pub(crate) fn available() -> usize {
    // Asked once: the standard library reads the limits of the control group from files each time.
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| {
        if cfg!(all(feature = "parallel", not(target_arch = "wasm32"))) {
            std::thread::available_parallelism().map_or(1, usize::from)
        } else {
            1
        }
    })
}

/// Calls `part(i)` for every `i < parts`, at most `threads` at once, the caller's thread among them.
///
/// The caller takes parts from the front and its helpers from the back, so that a thread finds in the caches of its core
/// most of what an earlier call on the same data has brought there.
pub(crate) fn for_each(parts: usize, threads: usize, part: impl Fn(usize) + Sync) {
    let threads = threads.min(parts);
    #[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
    if threads > 1 {
        return helpers::run(parts, threads, &part);
    }
    let _ = threads;
    (0..parts).for_each(part);
}

/// Threads of the pool that help the one that calls.
///
/// A scope of the pool would wait for every task that it was given, also for those that no thread has begun: a caller that
/// has done all the work itself would then wait for a thread to wake only to find nothing to do. Here the caller closes
/// the work when none is left, and waits for those who are inside of it.
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
mod helpers {
    use std::any::Any;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::{Arc, Mutex, PoisonError};

    /// Set in [`Work::inside`] when nobody may enter any more.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    struct Work {
        parts: usize,
        /// How often a part was taken or asked for, at either end: the ends never pass one another.
        taken: AtomicUsize,
        /// Parts that helpers have not taken.
        back: AtomicUsize,
        /// Helpers that have entered and not left.
        inside: AtomicUsize,
        /// The closure of the caller, and how to call it.
        part: *const (),
        call: unsafe fn(*const (), usize),
        panic: Mutex<Option<Box<dyn Any + Send>>>,
    }

    // SAFETY: the pointer is to a closure that is `Sync`, and is followed only while the work is open or by those inside.
    unsafe impl Send for Work {}
    // SAFETY: as above.
    unsafe impl Sync for Work {}

    /// # Safety
    /// `part` points to an `F`.
    unsafe fn call<F: Fn(usize) + Sync>(part: *const (), i: usize) {
        // SAFETY: the caller's contract.
        unsafe { (*part.cast::<F>())(i) }
    }

    impl Work {
        /// Takes parts until none is left: those that `next` names, one for each call.
        ///
        /// # Safety
        /// The closure is there until this returns.
        unsafe fn take_parts(&self, mut next: impl FnMut() -> usize) {
            while self.taken.fetch_add(1, Ordering::Relaxed) < self.parts {
                // SAFETY: `call` is the function for this closure, which is there.
                unsafe { (self.call)(self.part, next()) };
            }
        }

        fn help(&self) {
            let enter = |n| (n & CLOSED == 0).then_some(n + 1);
            if self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok() {
                // SAFETY: the caller of `run` keeps the closure until those who have entered have left.
                let result = catch_unwind(AssertUnwindSafe(|| unsafe {
                    self.take_parts(|| self.back.fetch_sub(1, Ordering::Relaxed) - 1);
                }));
                if let Err(panic) = result {
                    *self.panic.lock().unwrap_or_else(PoisonError::into_inner) = Some(panic);
                }
                self.inside.fetch_sub(1, Ordering::Release);
            }
        }
    }

    /// Closes the work and waits for those inside, also when a part of the caller panics.
    struct Close<'a>(&'a Work);

    impl Drop for Close<'_> {
        fn drop(&mut self) {
            self.0.inside.fetch_or(CLOSED, Ordering::Relaxed);
            super::wait_until(|| self.0.inside.load(Ordering::Acquire) == CLOSED);
        }
    }

    pub(super) fn run<F: Fn(usize) + Sync>(parts: usize, threads: usize, part: &F) {
        let work = Arc::new(Work {
            parts,
            taken: AtomicUsize::new(0),
            back: AtomicUsize::new(parts),
            inside: AtomicUsize::new(0),
            part: std::ptr::from_ref(part).cast(),
            call: call::<F>,
            panic: Mutex::new(None),
        });
        for _ in 1..threads {
            let work = Arc::clone(&work);
            rayon::spawn(move || work.help());
        }
        {
            let _close = Close(&work);
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
}

/// Waits for something that a running thread is about to bring about: in a loop first, since it takes less time than to
/// sleep and be woken.
pub(crate) fn wait_until(is_so: impl Fn() -> bool) {
    let mut turns = 0;
    while !is_so() {
        turns += 1;
        if turns < 10_000 { std::hint::spin_loop() } else { std::thread::yield_now() }
    }
}

/// A pointer that may be used from several threads.
#[derive(Clone, Copy)]
pub(crate) struct Shared<T>(*mut T);

impl<T> Shared<T> {
    /// A pointer for parts that each write their own elements.
    pub(crate) fn new(p: *mut T) -> Self {
        Self(p)
    }

    /// The pointer.
    pub(crate) fn get(self) -> *mut T {
        self.0
    }
}

// SAFETY: the pointer alone does nothing; whoever dereferences it states why no two parts touch the same element.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
