//! Waiting for a device, asynchronously or here.

#[cfg(not(target_arch = "wasm32"))]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, Waker};

/// Who makes a device deliver what it has finished.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Waiting {
    /// The caller, who waits anyway: the future is ready when it is first asked.
    #[cfg(not(target_arch = "wasm32"))]
    Here,
    /// Someone else: a thread that waits for the device, or the browser.
    Elsewhere,
}

/// A value that a callback will bring.
pub(crate) struct Signal<T>(Arc<Mutex<State<T>>>);

struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Signal<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Signal<T> {
    pub(crate) fn new() -> Self {
        Self(Arc::new(Mutex::new(State { value: None, waker: None })))
    }

    /// Brings the value.
    pub(crate) fn set(&self, value: T) {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        state.value = Some(value);
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }
}

impl<T> Future for Signal<T> {
    type Output = T;

    fn poll(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<T> {
        let mut state = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match state.value.take() {
            Some(value) => Poll::Ready(value),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }
}

/// Does what may take long on a thread of its own, and waits for it without blocking the one that polls. A panic there goes
/// on here. Where no thread can be started it is done here.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) async fn elsewhere<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = Signal::new();
    let set = done.clone();
    // The thread takes it, unless there is none.
    let work = Arc::new(Mutex::new(Some(work)));
    let take = {
        let work = work.clone();
        move || work.lock().unwrap_or_else(PoisonError::into_inner).take()
    };
    let run = move || {
        if let Some(work) = take() {
            set.set(catch_unwind(AssertUnwindSafe(work)));
        }
    };
    if let Err(error) = std::thread::Builder::new().name(name.into()).spawn(run) {
        tracing::warn!("no thread for {name} ({error}); doing it here");
        let here = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(here) = here {
            return here();
        }
    }
    done.await.unwrap_or_else(|panic| resume_unwind(panic))
}
