//! The requests of a page to a model, answered in order.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::future::poll_fn;
use std::task::{Poll, Waker};

use js_sys::{Function, Promise};
use kiln_llm::{Error, Result};
use wasm_bindgen::JsValue;

use crate::error::{model_error, parameter};

/// Defines the kinds with their names.
macro_rules! kinds {
    ($($(#[$doc:meta])* $variant:ident $name:literal)*) => {
        /// The kind of a request.
        #[derive(Debug, Clone, Copy, PartialEq, Eq)]
        pub(super) enum Kind {
            $($(#[$doc])* $variant,)*
        }

        impl Kind {
            pub(super) fn named(name: &str) -> Option<Self> {
                match name {
                    $($name => Some(Self::$variant),)*
                    _ => None,
                }
            }
        }
    };
}

kinds! {
    /// Waits until the model is loaded.
    Ready "ready"
    /// Opens a session: `{ context }` gives its number and its context.
    Open "open"
    /// Ends a session: `{ session }`.
    End "end"
    /// Appends the tokens of a text to a session: `{ session, text }` gives the number of all tokens.
    Push "push"
    /// Replaces all tokens by those of a conversation: `{ session, messages }` gives their number.
    Chat "chat"
    /// Computes a part of the tokens that were added: `{ session }` gives how many are left, 0 where the next token computes the rest.
    Prefill "prefill"
    /// Computes the next token: `{ session, more, temperature, topK, topP, minP, repeatPenalty, seed }` gives `{ token, text,
    /// channel }`, or `undefined` if the model ends the text. `more` says that the token after it will be asked for, too.
    Next "next"
    /// Returns the tokens of a session: `{ session }`.
    Tokens "tokens"
    /// Truncates a session: `{ session, keep }`.
    Truncate "truncate"
    /// Says where a token is computed, and why: `{ session }`.
    Explain "explain"
    /// Destroys the device, like unplugging it: for tests of device loss.
    Destroy "destroy"
}

/// A request with the functions that settle its promise.
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) of: JsValue,
    resolve: Function,
    reject: Function,
}

impl Request {
    pub(super) fn answer(self, with: Result<JsValue>) {
        // Errors of the page's callback are the page's concern.
        let _ = match with {
            Ok(value) => self.resolve.call1(&JsValue::UNDEFINED, &value),
            Err(error) => self.reject.call1(&JsValue::UNDEFINED, &model_error(&error)),
        };
    }
}

/// The queued requests, and the task that answers them.
#[derive(Default)]
pub(super) struct Requests(RefCell<State>);

#[derive(Default)]
struct State {
    waiting: VecDeque<Request>,
    waker: Option<Waker>,
    closed: bool,
}

fn closed() -> Error {
    parameter("model", "it is closed; load it again").into()
}

impl Requests {
    /// Adds a request. Returns a promise of its answer.
    pub(super) fn ask(&self, kind: Kind, of: JsValue) -> Promise {
        Promise::new(&mut |resolve, reject| {
            let request = Request { kind, of: of.clone(), resolve, reject };
            let mut state = self.0.borrow_mut();
            if state.closed {
                drop(state);
                return request.answer(Err(closed()));
            }
            state.waiting.push_back(request);
            if let Some(waker) = state.waker.take() {
                waker.wake();
            }
        })
    }

    /// The next request; `None` once the model is closed.
    pub(super) async fn next(&self) -> Option<Request> {
        poll_fn(|context| {
            let mut state = self.0.borrow_mut();
            match state.waiting.pop_front() {
                Some(request) => Poll::Ready(Some(request)),
                None if state.closed => Poll::Ready(None),
                None => {
                    state.waker = Some(context.waker().clone());
                    Poll::Pending
                }
            }
        })
        .await
    }

    /// Refuses new requests. Queued ones are still answered.
    pub(super) fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.closed = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Refuses new requests, and answers queued ones with an error.
    pub(super) fn refuse(&self, error: impl Fn() -> Error) {
        self.close();
        let waiting = std::mem::take(&mut self.0.borrow_mut().waiting);
        for request in waiting {
            request.answer(Err(error()));
        }
    }
}
