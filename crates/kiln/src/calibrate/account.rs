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

    /// Seconds that threads have waited so far: the calling one, or where work is spread all of them.
    pub(super) fn waited(&self, spread: bool) -> f64 {
        use std::os::unix::fs::FileExt;
        let considered = if spread { self.threads.len() } else { 1 };
        let of_one = |file: &std::fs::File| {
            // Time on the processor, time waiting, time slices.
            let mut text = [0; 96];
            let read = file.read_at(&mut text, 0).unwrap_or(0);
            let text = std::str::from_utf8(&text[..read]).unwrap_or("");
            text.split_ascii_whitespace().nth(1).and_then(|waited| waited.parse::<u64>().ok()).unwrap_or(0)
        };
        self.threads.iter().take(considered).map(of_one).sum::<u64>() as f64 * 1e-9
    }
}

#[cfg(not(target_os = "linux"))]
impl Account {
    /// Nothing is known here.
    pub(super) fn open() -> Self {
        Self::default()
    }

    /// Nothing has waited.
    pub(super) fn waited(&self, _: bool) -> f64 {
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
        let before = account.waited(true);
        assert!(before >= account.waited(false) && before.is_finite());
        assert!(account.waited(true) >= before);
    }
}
