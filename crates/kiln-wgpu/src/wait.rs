//! Waiting for a device, asynchronously or here.

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
