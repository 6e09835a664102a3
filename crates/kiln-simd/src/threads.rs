//! Splitting work over threads. What is computed never depends on how many there are: callers split by the problem
//! alone and the number of threads only says how many parts run at once.

use std::sync::OnceLock;

/// Whether this build has threads.
pub(crate) const THERE: bool = cfg!(all(feature = "parallel", not(target_arch = "wasm32")));

/// The threads of the machine that this process may use.
pub(crate) fn available() -> usize {
    // Asked once: the standard library reads the limits of the control group from files each time.
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| if THERE { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 })
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
///
/// To wake a thread of the pool takes tens of microseconds, on virtual machines a hundred. So a helper that has nothing left
/// to do stays awake for a while, and a caller gives its work to those who are awake before it asks the pool.
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
mod helpers {
    use std::any::Any;
    use std::cell::Cell;
    use std::io::ErrorKind;
    use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
    use std::time::{Duration, Instant};

    use rayon_core::{ThreadBuilder, ThreadPoolBuilder};

    use crate::float_state;

    /// Set in [`Work::inside`] when nobody may enter any more.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    /// Threads of rayon's global pool that can help: none where no thread could be started.
    ///
    /// The pool ends the process by a panic, now and at every later use, where the system refuses one of its threads, as a limit of
    /// a container can. So the threads are started here first, and the pool is built with as many as came. A pool that the program
    /// has built already is used as it is.
    fn pool() -> usize {
        static THREADS: OnceLock<usize> = OnceLock::new();
        *THREADS.get_or_init(start_pool)
    }

    fn start_pool() -> usize {
        let wanted = wanted();
        let (give, take) = channel::<ThreadBuilder>();
        let take = Arc::new(Mutex::new(take));
        let mut refused = None;
        let mut started = 0;
        while started < wanted && refused.is_none() {
            let take = Arc::clone(&take);
            let run = move || {
                // No builder comes where the program has built the pool.
                let builder = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
                drop(take);
                if let Ok(builder) = builder {
                    builder.run();
                }
            };
            match std::thread::Builder::new().spawn(run) {
                Ok(_) => started += 1,
                Err(why) => refused = Some(why),
            }
        }
        if started > 0 {
            let hand_out = |builder| give.send(builder).map_err(|_| ErrorKind::BrokenPipe.into());
            let built = ThreadPoolBuilder::new().num_threads(started).spawn_handler(hand_out).build_global();
            if built.is_err() {
                // It was built before, or the attempt to build it has failed: then it panics when it is used.
                return catch_unwind(rayon_core::current_num_threads).unwrap_or(0);
            }
        }
        if let Some(why) = refused {
            tracing::warn!(
                "{started} of {wanted} helper threads could be started ({why}); the calling thread does the rest"
            );
        }
        started
    }

    /// As many threads as rayon would start.
    fn wanted() -> usize {
        let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok());
        set.filter(|&n| n > 0).unwrap_or_else(super::available)
    }

    /// What is called for each part. Not a type parameter: this code would be there once for each of them.
    type Part<'a> = dyn Fn(usize) + Sync + 'a;

    struct Work {
        parts: usize,
        /// How often a part was taken or asked for, at either end: the ends never pass one another.
        taken: AtomicUsize,
        /// Parts that helpers have not taken.
        back: AtomicUsize,
        /// Helpers that have entered and not left.
        inside: AtomicUsize,
        /// The closure of the caller, by a reference that lives as long as the call.
        part: *const &'static Part<'static>,
        panic: Mutex<Option<Box<dyn Any + Send>>>,
    }

    // SAFETY: the pointer leads to a closure that is `Sync`, and is followed only while the work is open or by those inside.
    unsafe impl Send for Work {}
    // SAFETY: as above.
    unsafe impl Sync for Work {}

    impl Work {
        /// Takes parts until none is left: those that `next` names, one for each call.
        ///
        /// # Safety
        /// The closure is there until this returns.
        unsafe fn take_parts(&self, mut next: impl FnMut() -> usize) {
            while self.taken.fetch_add(1, Ordering::Relaxed) < self.parts {
                // SAFETY: the caller's contract.
                unsafe { (*self.part)(next()) };
            }
        }

        fn help(&self) {
            let enter = |n| (n & CLOSED == 0).then_some(n + 1);
            if self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok() {
                // The state of this thread is that of whoever started it.
                let take_parts = || {
                    // SAFETY: the caller of `run` keeps the closure until those who have entered have left.
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

    /// Closes the work and waits for those inside, also when a part of the caller panics.
    struct Close<'a>(&'a Work);

    impl Drop for Close<'_> {
        fn drop(&mut self) {
            self.0.inside.fetch_or(CLOSED, Ordering::Relaxed);
            super::wait_until(|| self.0.inside.load(Ordering::Acquire) == CLOSED);
        }
    }

    /// How long a helper stays awake: over what programs do between products, and far less than other pools do.
    const STAY: Duration = Duration::from_micros(200);

    /// After how long it sees whether the pool has other work for it.
    const LOOK: Duration = Duration::from_micros(20);

    /// Helpers that wait for work, and work that was given to some of them: a helper that sees any takes one.
    struct Awake {
        helpers: usize,
        given: Vec<Arc<Work>>,
    }

    static AWAKE: Mutex<Awake> = Mutex::new(Awake { helpers: 0, given: Vec::new() });

    /// The length of [`Awake::given`], to be looked at without the lock.
    static GIVEN: AtomicUsize = AtomicUsize::new(0);

    /// Helpers that stay: no more than there are cores beside that of a caller, or they would take its time.
    static STAYING: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        static STAYS: Cell<bool> = const { Cell::new(false) };
    }

    fn awake() -> MutexGuard<'static, Awake> {
        AWAKE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives work to at most `wanted` helpers that are awake, and says to how many.
    fn give(work: &Arc<Work>, wanted: usize) -> usize {
        let mut awake = awake();
        let n = wanted.min(awake.helpers);
        awake.helpers -= n;
        awake.given.extend((0..n).map(|_| Arc::clone(work)));
        GIVEN.store(awake.given.len(), Ordering::Relaxed);
        n
    }

    /// Waits for work that is given to this helper, for a short while.
    fn wait_for_work() -> Option<Arc<Work>> {
        awake().helpers += 1;
        let start = Instant::now();
        loop {
            let mut turns = 0;
            while turns < 100 && GIVEN.load(Ordering::Relaxed) == 0 {
                turns += 1;
                std::hint::spin_loop();
            }
            let late = start.elapsed() > LOOK;
            if late || turns < 100 {
                let mut awake = awake();
                let work = awake.given.pop();
                GIVEN.store(awake.given.len(), Ordering::Relaxed);
                if late && work.is_none() {
                    awake.helpers -= 1;
                }
                if late || work.is_some() {
                    return work;
                }
            }
        }
    }

    /// Helps with what is given to this thread of the pool, until nothing was for a while.
    fn stay() {
        // A thread that stays may meet further work in the pool and come here again.
        let one_more = |n| (n + 1 < super::available()).then_some(n + 1);
        if STAYS.get() || STAYING.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_more).is_err() {
            return;
        }
        STAYS.set(true);
        let mut since = Instant::now();
        while since.elapsed() < STAY {
            if let Some(work) = wait_for_work() {
                work.help();
                since = Instant::now();
            } else if rayon_core::yield_now() == Some(rayon_core::Yield::Executed) {
                since = Instant::now();
            }
        }
        STAYS.set(false);
        STAYING.fetch_sub(1, Ordering::Relaxed);
    }

    pub(super) fn run(parts: usize, threads: usize, part: &Part<'_>) {
        let work = Arc::new(Work {
            parts,
            taken: AtomicUsize::new(0),
            back: AtomicUsize::new(parts),
            inside: AtomicUsize::new(0),
            part: std::ptr::from_ref(&part).cast(),
            panic: Mutex::new(None),
        });
        // The helpers that stay are of the global pool; a caller in a pool of its own is helped by that one.
        let global = rayon_core::current_thread_index().is_none();
        if global && pool() == 0 {
            (0..parts).for_each(part);
            return;
        }
        let given = if global { give(&work, threads - 1) } else { 0 };
        for _ in 1 + given..threads {
            let work = Arc::clone(&work);
            rayon_core::spawn(move || {
                work.help();
                drop(work);
                if global {
                    stay();
                }
            });
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
