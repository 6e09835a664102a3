//! Copies between memory of the host and memory that a device works on too: large ones by several threads, since one alone
//! reaches a fraction of what the memory gives. The threads are kept: to start some for each copy takes as long as copying a
//! megabyte. They do nothing else, so that a copy never waits for work of others.

#[cfg(not(target_arch = "wasm32"))]
use std::sync::atomic::{AtomicUsize, Ordering};
#[cfg(not(target_arch = "wasm32"))]
use std::sync::mpsc::channel;
#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::{Duration, Instant};

/// Bytes that a thread copies at a time, whole words.
pub const PART: usize = 1 << 18;
/// Minimum bytes that justify waking a thread.
#[cfg(not(target_arch = "wasm32"))]
const BYTES_A_THREAD: usize = 1 << 19;
/// Maximum number of threads: more do not help, because the memory of a server then limits the copy.
#[cfg(not(target_arch = "wasm32"))]
const MOST_THREADS: usize = 8;
/// How long a caller that has finished spins until the others are done, before it sleeps. On a virtual machine with 16
/// cores it was woken 150 us after they were, longer than eight threads take to copy some megabytes.
#[cfg(not(target_arch = "wasm32"))]
const PATIENCE: Duration = Duration::from_millis(1);

/// Copies the bytes, as many as both have, by `threads` threads at most, the caller among them.
pub fn copy(from: &[u8], to: &mut [u8], threads: usize) {
    let bytes = from.len().min(to.len());
    let parts = from[..bytes].chunks(PART).zip(to[..bytes].chunks_mut(PART)).collect();
    share(bytes, parts, threads, |(from, to)| to.copy_from_slice(from));
}

/// The pool of helper threads; `None` on one processor, or if no thread can be started. If the system refuses some
/// threads, as a container's limit may, the pool has the others.
#[cfg(not(target_arch = "wasm32"))]
fn helpers() -> Option<&'static rayon_core::ThreadPool> {
    static HELPERS: OnceLock<Option<rayon_core::ThreadPool>> = OnceLock::new();
    HELPERS.get_or_init(start_helpers).as_ref()
}

#[cfg(not(target_arch = "wasm32"))]
fn start_helpers() -> Option<rayon_core::ThreadPool> {
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    let wanted = processors.min(MOST_THREADS) - 1;
    // A pool is built with all of its threads or not at all, so they are started and counted first.
    let (give, take) = channel::<rayon_core::ThreadBuilder>();
    let take = Arc::new(Mutex::new(take));
    let mut started = 0;
    while started < wanted {
        let take = Arc::clone(&take);
        let run = move || {
            let builder = take.lock().unwrap_or_else(PoisonError::into_inner).recv();
            drop(take);
            if let Ok(builder) = builder {
                builder.run();
            }
        };
        if let Err(why) = std::thread::Builder::new().name(format!("kiln-copy {started}")).spawn(run) {
            crate::waiting::no_thread("large copies", &why);
            break;
        }
        started += 1;
    }
    if started == 0 {
        // A builder with zero threads would start one for each processor.
        return None;
    }
    let hand_out = |builder| give.send(builder).map_err(|_| std::io::ErrorKind::BrokenPipe.into());
    rayon_core::ThreadPoolBuilder::new().num_threads(started).spawn_handler(hand_out).build().ok()
}

/// Does the work of all parts, of this many bytes together, by `threads` threads at most: the first parts first. The caller
/// works too.
#[cfg(not(target_arch = "wasm32"))]
pub fn share<P: Send>(bytes: usize, parts: Vec<P>, threads: usize, work: impl Fn(P) + Sync) {
    let threads = bytes.div_ceil(BYTES_A_THREAD).min(threads).min(parts.len());
    // While a pool's thread waits, it runs other work of its pool, which may need a lock that the thread holds here.
    let alone = threads < 2 || rayon_core::current_thread_index().is_some();
    let Some(helpers) = (if alone { None } else { helpers() }) else {
        return parts.into_iter().for_each(work);
    };
    let parts = Mutex::new(parts.into_iter());
    let next = || parts.lock().unwrap_or_else(PoisonError::into_inner).next();
    let take_turns = || {
        while let Some(part) = next() {
            work(part);
        }
    };
    let helping = AtomicUsize::new(threads - 1);
    helpers.in_place_scope(|scope| {
        for _ in 1..threads {
            scope.spawn(|_| {
                take_turns();
                helping.fetch_sub(1, Ordering::Relaxed);
            });
        }
        take_turns();
        let start = Instant::now();
        while helping.load(Ordering::Relaxed) > 0 && start.elapsed() < PATIENCE {
            std::thread::yield_now();
        }
    });
}

/// A browser has one thread.
#[cfg(target_arch = "wasm32")]
pub fn share<P>(_: usize, parts: Vec<P>, _: usize, work: impl Fn(P)) {
    parts.into_iter().for_each(work);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn every_byte_is_copied_whatever_the_length() {
        for bytes in [0, 1, 7, PART - 1, PART, PART + 1, 5 * PART + 3] {
            let from: Vec<u8> = (0..bytes).map(|i| (i * 31 % 251) as u8 + 1).collect();
            for threads in [0, 1, 2, 100] {
                let mut to = vec![0; bytes + 2];
                copy(&from, &mut to, threads);
                assert!(to[..bytes] == from && to[bytes..] == [0, 0], "{bytes}");
            }
        }
    }

    #[test]
    fn each_part_is_worked_on_once() {
        let mut done = vec![0; 100];
        share(usize::MAX, done.iter_mut().collect(), 8, |part| *part += 1);
        assert_eq!(done, vec![1; 100]);
    }
}
