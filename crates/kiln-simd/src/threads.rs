//! Splitting work over threads. What is computed never depends on how many there are: callers split by the problem
//! alone and the number of threads only says how many parts run at once.

use std::sync::OnceLock;

/// Whether this build has threads.
pub(crate) const THERE: bool = cfg!(all(feature = "parallel", not(target_arch = "wasm32")));

/// The threads of the machine that this process may use.
pub(crate) fn available() -> usize {
    // Read once, because the standard library reads the limits of the control group from files each time.
    static AVAILABLE: OnceLock<usize> = OnceLock::new();
    *AVAILABLE.get_or_init(|| if THERE { std::thread::available_parallelism().map_or(1, usize::from) } else { 1 })
}

/// Calls `part(i)` for every `i < parts`, with at most `threads` calls at once, including those on the calling thread.
///
/// The caller takes parts from the front and its helpers from the back, so that each thread finds most of the data in
/// its core's caches from an earlier call on the same data.
pub(crate) fn for_each(parts: usize, threads: usize, part: impl Fn(usize) + Sync) {
    let threads = threads.min(parts);
    #[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
    if threads > 1 {
        return helpers::run(parts, threads, &part);
    }
    let _ = threads;
    (0..parts).for_each(part);
}

/// Threads of the pool that help the calling one.
///
/// A scope of the pool would wait for every task that it was given, including tasks that no thread has begun: a caller
/// that has done all the work itself would then wait for a thread to wake up and find nothing to do. Here the caller
/// closes the work when no parts are left, and waits only for threads that have entered it.
///
/// Waking a thread of the pool takes tens of microseconds, on virtual machines a hundred. So a helper without work
/// stays awake for a while, and a caller gives its work to awake helpers before it asks the pool.
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

    /// Set in [`Work::inside`] when no more threads may enter.
    const CLOSED: usize = 1 << (usize::BITS - 1);

    /// Threads of rayon's global pool that can help; zero if no thread could be started.
    ///
    /// If the system refuses a thread, as a container's limit may, rayon's pool panics, now and at every later use. So
    /// the threads are started here first, and the pool is built with those that were started. A pool that the program
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
                // No builder arrives if the program has built the pool.
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
                // The pool existed before, or building it has failed: then using it panics.
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

    /// The number of threads that rayon would start.
    fn wanted() -> usize {
        let set = std::env::var("RAYON_NUM_THREADS").ok().and_then(|n| n.parse().ok());
        set.filter(|&n| n > 0).unwrap_or_else(super::available)
    }

    /// The function that is called for each part. Not a type parameter, which would duplicate this code for each
    /// function.
    type Part<'a> = dyn Fn(usize) + Sync + 'a;

    struct Work {
        parts: usize,
        /// How often a part was claimed or requested at either end, so that the ends never cross.
        taken: AtomicUsize,
        /// Parts that helpers have not claimed.
        back: AtomicUsize,
        /// Helpers that have entered and not left.
        inside: AtomicUsize,
        /// The caller's closure, by a reference that is valid for the duration of the call.
        part: *const &'static Part<'static>,
        panic: Mutex<Option<Box<dyn Any + Send>>>,
    }

    // SAFETY: the pointer refers to a closure that is `Sync`, and is dereferenced only while the work is open or by
    // threads inside it.
    unsafe impl Send for Work {}
    // SAFETY: as above.
    unsafe impl Sync for Work {}

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

        fn help(&self) {
            let enter = |n| (n & CLOSED == 0).then_some(n + 1);
            if self.inside.fetch_update(Ordering::Acquire, Ordering::Relaxed, enter).is_ok() {
                // Sets the floating-point state, because a pool thread has that of its creator.
                let take_parts = || {
                    // SAFETY: the caller of `run` keeps the closure until the threads that have entered have left.
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
            super::wait_until(|| self.0.inside.load(Ordering::Acquire) == CLOSED);
        }
    }

    /// How long a helper stays awake: longer than the gaps between products in typical programs, and far shorter than
    /// in other pools.
    const STAY: Duration = Duration::from_micros(200);

    /// How often it checks whether the pool has other work for it.
    const LOOK: Duration = Duration::from_micros(20);

    /// Helpers that wait for work, and work that was given to some of them: a helper that sees work claims it.
    struct Awake {
        helpers: usize,
        given: Vec<Arc<Work>>,
    }

    static AWAKE: Mutex<Awake> = Mutex::new(Awake { helpers: 0, given: Vec::new() });

    /// The length of [`Awake::given`], which can be read without the lock.
    static GIVEN: AtomicUsize = AtomicUsize::new(0);

    /// Helpers that stay awake: at most one for each core beside the caller's, because more would take the caller's
    /// time.
    static STAYING: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        static STAYS: Cell<bool> = const { Cell::new(false) };
    }

    fn awake() -> MutexGuard<'static, Awake> {
        AWAKE.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Gives work to at most `wanted` awake helpers. Returns to how many.
    fn give(work: &Arc<Work>, wanted: usize) -> usize {
        let mut awake = awake();
        let n = wanted.min(awake.helpers);
        awake.helpers -= n;
        awake.given.extend((0..n).map(|_| Arc::clone(work)));
        GIVEN.store(awake.given.len(), Ordering::Relaxed);
        n
    }

    /// Waits a short while for work that is given to this helper.
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

    /// Runs the work that is given to this thread of the pool, until there was none for a while.
    fn stay() {
        // A thread that stays awake may run other work of the pool and enter this function again.
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
        // Awake helpers belong to the global pool; a caller in another pool is helped by that pool.
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

/// Waits for a condition that a running thread is about to establish: spins first, because that takes less time than
/// sleeping and waking up.
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

// SAFETY: the pointer alone does nothing; code that dereferences it states why no two parts access the same element.
unsafe impl<T> Send for Shared<T> {}
// SAFETY: as above.
unsafe impl<T> Sync for Shared<T> {}
