//! The waiting times of threads, as the scheduler of the system reports them.

/// How long threads of this process have waited for a core while they were runnable. Systems without this account
/// report zero.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// The threads, beginning with the calling one.
    #[cfg(target_os = "linux")]
    threads: Vec<Thread>,
}

/// The waiting time of one thread.
#[cfg(target_os = "linux")]
#[derive(Debug)]
struct Thread {
    file: std::fs::File,
    /// The last value of the file, in nanoseconds. The file of a thread that has ended is gone, but its waiting time
    /// still counts.
    waited: std::cell::Cell<u64>,
}

#[cfg(target_os = "linux")]
impl Account {
    /// The account of all threads that run now.
    pub(super) fn open() -> Self {
        let own = std::fs::read_link("/proc/thread-self").ok();
        let own = own.as_deref().and_then(|path| path.file_name());
        let tasks = std::fs::read_dir("/proc/self/task").into_iter().flatten().flatten();
        let mut tasks: Vec<_> = tasks.map(|task| task.path()).collect();
        tasks.sort_by_key(|task| task.file_name() != own);
        let files = tasks.iter().filter_map(|task| std::fs::File::open(task.join("schedstat")).ok());
        Self { threads: files.map(|file| Thread { file, waited: Default::default() }).collect() }
    }

    /// Seconds that the calling thread has waited so far.
    pub(super) fn caller(&self) -> f64 {
        self.threads.iter().take(1).map(Thread::waited).sum::<u64>() as f64 * 1e-9
    }

    /// Seconds that all other threads have waited so far.
    pub(super) fn others(&self) -> f64 {
        self.threads.iter().skip(1).map(Thread::waited).sum::<u64>() as f64 * 1e-9
    }
}

#[cfg(target_os = "linux")]
impl Thread {
    /// Nanoseconds waited so far: the file has the time on the processor, the time waiting and the number of time
    /// slices.
    fn waited(&self) -> u64 {
        use std::os::unix::fs::FileExt;
        let mut text = [0; 96];
        let read = self.file.read_at(&mut text, 0).unwrap_or(0);
        let text = std::str::from_utf8(&text[..read]).unwrap_or("");
        let waited = text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse().ok());
        self.waited.set(waited.unwrap_or(0).max(self.waited.get()));
        self.waited.get()
    }
}

#[cfg(not(target_os = "linux"))]
impl Account {
    /// An empty account.
    pub(super) fn open() -> Self {
        Self::default()
    }

    /// Zero on this system.
    pub(super) fn caller(&self) -> f64 {
        0.0
    }

    /// Zero on this system.
    pub(super) fn others(&self) -> f64 {
        0.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn waiting_never_becomes_less() {
        let account = Account::open();
        let (caller, others) = (account.caller(), account.others());
        assert!(caller.is_finite() && others.is_finite());
        assert!(account.caller() >= caller && account.others() >= others);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn threads_that_have_ended_have_waited() {
        use std::sync::atomic::{AtomicBool, Ordering};
        let ended = AtomicBool::new(false);
        let (account, waited) = std::thread::scope(|scope| {
            let threads = 2 + std::thread::available_parallelism().map_or(1, usize::from);
            let spinning: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        while !ended.load(Ordering::Relaxed) {
                            std::hint::spin_loop();
                        }
                    })
                })
                .collect();
            let account = Account::open();
            // With more threads than cores some wait, unless the system keeps no account.
            let start = std::time::Instant::now();
            while account.others() == 0.0 && start.elapsed().as_secs() < 2 {
                std::thread::yield_now();
            }
            let waited = account.others();
            ended.store(true, Ordering::Relaxed);
            spinning.into_iter().for_each(|thread| thread.join().expect("nothing panics there"));
            (account, waited)
        });
        assert!(account.others() >= waited);
    }
}
