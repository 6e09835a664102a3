//! The handler of Ctrl-C: stops a generation, or ends the program.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};

use crate::program::options::note;

/// The exit code of a program that Ctrl-C ended: 128 and the number of SIGINT.
pub(crate) const EXIT_CODE: u8 = 130;

/// Ctrl-C ends the program.
const IDLE: u8 = 0;
/// Ctrl-C requests a stop.
const BUSY: u8 = 1;
/// Ctrl-C was pressed while busy. Pressing it again ends the program.
const STOP: u8 = 2;

/// The handler of Ctrl-C. While the program is busy, Ctrl-C requests a stop, which keeps the results so far; otherwise,
/// and when pressed again, it ends the program.
pub(crate) struct Interrupt {
    state: Arc<AtomicU8>,
}

impl Interrupt {
    /// Installs the handler. At first, and where the system refuses the thread that waits for the signal, Ctrl-C ends the program.
    pub(crate) fn new() -> Self {
        let state = Arc::new(AtomicU8::new(IDLE));
        #[cfg(any(unix, windows))]
        {
            let shared = state.clone();
            let handler = move || {
                if shared.compare_exchange(BUSY, STOP, Ordering::SeqCst, Ordering::SeqCst).is_err() {
                    std::process::exit(EXIT_CODE.into());
                }
            };
            // Tries a thread first: ctrlc takes over the signal before it starts its own, and without that Ctrl-C would do nothing.
            let probe = std::thread::Builder::new().spawn(|| ()).map(|thread| drop(thread.join()));
            let result = probe.map_err(ctrlc::Error::System).and_then(|()| ctrlc::set_handler(handler));
            if let Err(error) = result {
                note(format_args!("kiln-llm: Ctrl-C will end the program at once: {error}"));
            }
        }
        Self { state }
    }

    /// From here on Ctrl-C requests a stop.
    pub(crate) fn begin(&self) {
        self.state.store(BUSY, Ordering::SeqCst);
    }

    /// Whether a stop was requested.
    pub(crate) fn is_requested(&self) -> bool {
        self.state.load(Ordering::SeqCst) == STOP
    }

    /// From here on Ctrl-C ends the program. Returns whether a stop was requested.
    pub(crate) fn end(&self) -> bool {
        self.state.swap(IDLE, Ordering::SeqCst) == STOP
    }
}
