//! Waiting for a device, blocking or asynchronously.

#[cfg(not(target_arch = "wasm32"))]
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::pin::Pin;
use std::sync::{Arc, Mutex, Once, PoisonError};
use std::task::{Context, Poll, Waker};

/// The thread that drives a device while a future waits for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Waiting {
    /// The calling thread, which blocks: the future completes at its first poll.
    #[cfg(not(target_arch = "wasm32"))]
    Here,
    /// A thread that waits for the device, or the browser.
    Elsewhere,
}

/// Results on their way to the host. Dropping the future gives them up; what was submitted runs on.
#[cfg(not(target_arch = "wasm32"))]
pub type Arriving<T> = Pin<Box<dyn Future<Output = kiln_ir::Result<T>> + Send + Sync>>;
/// Results on their way to the host.
#[cfg(target_arch = "wasm32")]
pub type Arriving<T> = Pin<Box<dyn Future<Output = kiln_ir::Result<T>>>>;

/// A future that a callback completes.
#[derive(Debug)]
pub struct Signal<T>(Arc<Mutex<State<T>>>);

#[derive(Debug)]
struct State<T> {
    value: Option<T>,
    waker: Option<Waker>,
}

impl<T> Clone for Signal<T> {
    fn clone(&self) -> Self {
        Self(self.0.clone())
    }
}

impl<T> Default for Signal<T> {
    fn default() -> Self {
        Self::new()
    }
}

impl<T> Signal<T> {
    /// A future that is not complete.
    pub fn new() -> Self {
        Self(Arc::new(Mutex::new(State { value: None, waker: None })))
    }

    /// Whether it is complete and was not awaited yet.
    pub fn is_set(&self) -> bool {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).value.is_some()
    }

    /// Completes it.
    pub fn set(&self, value: T) {
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

/// Runs `work` on a new thread, so that the thread that polls is not blocked. A panic of `work` resumes in the caller. If no
/// thread can be started, `work` runs here.
#[cfg(not(target_arch = "wasm32"))]
pub async fn elsewhere<T: Send + 'static>(name: &str, work: impl FnOnce() -> T + Send + 'static) -> T {
    let done = Signal::new();
    let set = done.clone();
    // The thread takes the work out, if it could be started.
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
        no_thread(name, &error);
        let here = work.lock().unwrap_or_else(PoisonError::into_inner).take();
        if let Some(here) = here {
            return here();
        }
    }
    done.await.unwrap_or_else(|panic| resume_unwind(panic))
}

/// Logs, once in a process, that the system refused a thread, so that the calling thread does the work.
pub fn no_thread(what: &str, why: &std::io::Error) {
    static LOGGED: Once = Once::new();
    LOGGED.call_once(|| tracing::warn!("no thread for {what} ({why}); the calling thread does such work from now on"));
}

/// Polls a future once: its output, or `None` where it is not complete. Futures of [`Waiting::Here`] complete.
pub fn poll_once<F: Future>(mut future: Pin<&mut F>) -> Option<F::Output> {
    match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => Some(output),
        Poll::Pending => None,
    }
}

/// Waits for a future on this thread. A future that completes at its first poll costs no more than that poll.
#[cfg(not(target_arch = "wasm32"))]
pub fn block_on<F: Future>(future: F) -> F::Output {
    let mut future = std::pin::pin!(future);
    poll_once(future.as_mut()).unwrap_or_else(|| pollster::block_on(future))
}

/// Defines waiting functions in two forms from one body: `name_async`, and, on native targets, a blocking `name`.
/// `waiting` is the parameter that selects who drives the device; it follows the receiver, if there is one. Generic
/// parameters are in brackets after the names.
#[doc(hidden)]
#[macro_export]
macro_rules! blocking_and_async {
    () => {};
    ($(#[$doc:meta])* pub fn $name:ident, $name_async:ident $([$($generic:tt)*])? (&$self:ident, $($of:tt)*) -> $out:ty $body:block $($rest:tt)*) => {
        $crate::blocking_and_async! { @both [$(#[$doc])*] $name $name_async [$($($generic)*)?] [&$self,] ($($of)*) $out, $body }
        $crate::blocking_and_async! { $($rest)* }
    };
    ($(#[$doc:meta])* pub fn $name:ident, $name_async:ident $([$($generic:tt)*])? (&mut $self:ident, $($of:tt)*) -> $out:ty $body:block $($rest:tt)*) => {
        $crate::blocking_and_async! { @both [$(#[$doc])*] $name $name_async [$($($generic)*)?] [&mut $self,] ($($of)*) $out, $body }
        $crate::blocking_and_async! { $($rest)* }
    };
    ($(#[$doc:meta])* pub fn $name:ident, $name_async:ident $([$($generic:tt)*])? ($($of:tt)*) -> $out:ty $body:block $($rest:tt)*) => {
        $crate::blocking_and_async! { @both [$(#[$doc])*] $name $name_async [$($($generic)*)?] [] ($($of)*) $out, $body }
        $crate::blocking_and_async! { $($rest)* }
    };
    (@both [$($doc:tt)*] $name:ident $name_async:ident [$($generic:tt)*] [$($receiver:tt)*]
        ($waiting:ident $(, $arg:ident: $ty:ty)* $(,)?) $out:ty, $body:block) => {
        $($doc)*
        #[doc = ""]
        #[doc = concat!("Natively `", stringify!($name), "` is the same and blocks.")]
        pub async fn $name_async<$($generic)*>($($receiver)* $($arg: $ty),*) -> $out {
            let $waiting = $crate::waiting::Waiting::Elsewhere;
            $body
        }

        $($doc)*
        #[cfg(not(target_arch = "wasm32"))]
        pub fn $name<$($generic)*>($($receiver)* $($arg: $ty),*) -> $out {
            let $waiting = $crate::waiting::Waiting::Here;
            $crate::waiting::block_on(async move { $body })
        }
    };
}
