//! What a page asks of a model, in turn.

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
        /// What is asked for.
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
    /// That the model is loaded: no more.
    Ready "ready"
    /// A session: `{ context }` gives its number and its context.
    Open "open"
    /// The end of a session: `{ session }`.
    End "end"
    /// Tokens of a text behind those of a session: `{ session, text }` gives the number of all tokens.
    Push "push"
    /// A conversation in place of all tokens: `{ session, messages }` gives their number.
    Chat "chat"
    /// The next token: `{ session, temperature, topK, topP, minP, repeatPenalty, seed }` gives `{ token, text }`, or `undefined` where
    /// the model ends the text.
    Next "next"
    /// The tokens of a session: `{ session }`.
    Tokens "tokens"
    /// Fewer tokens: `{ session, keep }`.
    Truncate "truncate"
    /// Where a token is computed, and why: `{ session }`.
    Explain "explain"
    /// The loss of the device, as unplugging it would: for tests of what happens then.
    Destroy "destroy"
}

/// A request, and the functions that settle its promise.
pub(super) struct Request {
    pub(super) kind: Kind,
    pub(super) of: JsValue,
    resolve: Function,
    reject: Function,
}

impl Request {
    pub(super) fn answer(self, with: Result<JsValue>) {
        // What the page does with it is its own affair.
        let _ = match with {
            Ok(value) => self.resolve.call1(&JsValue::UNDEFINED, &value),
            Err(error) => self.reject.call1(&JsValue::UNDEFINED, &model_error(&error)),
        };
    }
}

/// The requests that wait, and the task that answers them.
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
    /// Adds a request: a promise of its answer.
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

    /// Takes no more requests. Those that wait are answered.
    pub(super) fn close(&self) {
        let mut state = self.0.borrow_mut();
        state.closed = true;
        if let Some(waker) = state.waker.take() {
            waker.wake();
        }
    }

    /// Takes no more requests, and answers those that wait with an error.
    pub(super) fn refuse(&self, error: impl Fn() -> Error) {
        self.close();
        let waiting = std::mem::take(&mut self.0.borrow_mut().waiting);
        for request in waiting {
            request.answer(Err(error()));
        }
    }
}
