//! Splitting work over threads. Results never depend on the number of threads: callers split by the problem alone, and the
//! number of threads only decides how many parts run at once.

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

/// Threads of the pool that help the calling one; `hand_over.rs` says how they share its work.
///
/// Waking a thread of the pool takes tens of microseconds, on virtual machines a hundred. So a helper without work
/// stays awake for a while, and a caller gives its work to awake helpers before it asks the pool.
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
mod helpers {
    use std::cell::Cell;
    use std::io::ErrorKind;
    use std::panic::catch_unwind;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::channel;
    use std::sync::{Arc, Mutex, OnceLock, PoisonError};
    use std::time::{Duration, Instant};

    use rayon_core::{ThreadBuilder, ThreadPoolBuilder};

    use crate::hand_over::{Part, Queue, Waiting, share};

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

    /// The time that a helper stays awake: longer than the gaps between products in typical programs, and far shorter than
    /// in other pools.
    const STAY: Duration = Duration::from_micros(200);

    /// The interval at which it checks whether the pool has other work for it.
    const LOOK: Duration = Duration::from_micros(20);

    /// Helpers that are awake, and work that was given to them.
    static AWAKE: Queue =
        Queue { waiting: Mutex::new(Waiting { helpers: 0, given: Vec::new() }), given: AtomicUsize::new(0) };

    /// Helpers that stay awake: at most one for each core beside the caller's, because more would take the caller's
    /// time.
    static STAYING: AtomicUsize = AtomicUsize::new(0);

    thread_local! {
        static STAYS: Cell<bool> = const { Cell::new(false) };
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
            let start = Instant::now();
            if let Some(work) = AWAKE.wait(|| start.elapsed() > LOOK) {
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
        // Awake helpers belong to the global pool; a caller in another pool is helped by that pool.
        let global = rayon_core::current_thread_index().is_none();
        if global && pool() == 0 {
            (0..parts).for_each(part);
            return;
        }
        share(parts, part, |work| {
            let given = if global { AWAKE.give(work, threads - 1) } else { 0 };
            for _ in 1 + given..threads {
                let work = Arc::clone(work);
                rayon_core::spawn(move || {
                    work.help();
                    drop(work);
                    if global {
                        stay();
                    }
                });
            }
        });
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
