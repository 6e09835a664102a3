//! What the scheduler says about disturbances.

/// How long threads of this process have waited for a core while they could have run. On systems that keep no such
/// account nothing has ever waited.
#[derive(Debug, Default)]
pub(super) struct Account {
    /// One file for each thread, that of the calling one first.
    #[cfg(target_os = "linux")]
    threads: Vec<std::fs::File>,
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
        let threads = tasks.iter().filter_map(|task| std::fs::File::open(task.join("schedstat")).ok()).collect();
        Self { threads }
    }

    /// Seconds that the calling thread has waited so far.
    pub(super) fn caller(&self) -> f64 {
        self.threads.iter().take(1).map(waited).sum::<u64>() as f64 * 1e-9
    }

    /// Seconds that all other threads have waited so far.
    pub(super) fn others(&self) -> f64 {
        self.threads.iter().skip(1).map(waited).sum::<u64>() as f64 * 1e-9
    }
}

/// Nanoseconds that the thread of this account has waited: the second of the time on the processor, the time waiting and
/// the number of time slices.
#[cfg(target_os = "linux")]
fn waited(file: &std::fs::File) -> u64 {
    use std::os::unix::fs::FileExt;
    let mut text = [0; 96];
    let read = file.read_at(&mut text, 0).unwrap_or(0);
    let text = std::str::from_utf8(&text[..read]).unwrap_or("");
    text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
}

#[cfg(not(target_os = "linux"))]
impl Account {
    /// Nothing is known here.
    pub(super) fn open() -> Self {
        Self::default()
    }

    /// Nothing has waited.
    pub(super) fn caller(&self) -> f64 {
        0.0
    }

    /// Nothing has waited.
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
}
