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
pub(crate) fn for_each(parts: usize, threads: usize, part: impl Fn(usize) + Sync) {
    let threads = threads.min(parts);
    #[cfg(all(feature = "parallel", not(target_arch = "wasm32")))]
    if threads > 1 {
        use std::sync::atomic::{AtomicUsize, Ordering};
        let next = AtomicUsize::new(0);
        let work = || {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= parts {
                    return;
                }
                part(i);
            }
        };
        // In place: the calling thread starts at once instead of waiting for a worker to wake.
        rayon::in_place_scope(|scope| {
            for _ in 1..threads {
                scope.spawn(|_| work());
            }
            work();
        });
        return;
    }
    let _ = threads;
    (0..parts).for_each(part);
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
