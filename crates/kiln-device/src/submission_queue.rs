//! Small calls of several threads that wait for one device, submitted together.
//!
//! One small call at a time uses the device. A call that finds it in use joins the queue. The call that ends passes the device to
//! the first in the queue, which submits itself and those behind it together, and wakes them with their results. So calls are
//! combined by the threads that make them, without another thread and without a clock: what came while the device worked is the next
//! submission.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use kiln_ir::{Error, Result};

use crate::Driver;
use crate::executable::Call;
use crate::waiting::{Signal, Waiting, block_on};

/// Maximum number of calls in a submission.
pub(crate) const MOST_CALLS: usize = 64;

/// The small calls that use a device, or wait for it.
#[derive(Debug)]
pub(crate) struct SubmissionQueue<D: Driver> {
    state: Mutex<State<D>>,
}

#[derive(Debug)]
struct State<D: Driver> {
    /// Whether a call uses the device. If not, no call waits.
    is_in_use: bool,
    waiting: VecDeque<Waiter<D>>,
}

/// A call in the queue, and what its thread waits for.
#[derive(Debug)]
struct Waiter<D: Driver> {
    call: Box<Call<D>>,
    next: Signal<Next<D>>,
}

/// The next action of a waiting thread.
#[derive(Debug)]
enum Next<D: Driver> {
    /// It submits what waits: its own call is the first in the queue.
    Submit,
    /// Its call was submitted.
    Return(Result<Submitted<D>>),
}

/// A call that was submitted with others.
#[derive(Debug)]
pub(crate) enum Submitted<D: Driver> {
    /// It has run; faults of its data are in it.
    Done(Box<Call<D>>),
    /// The submission failed for a reason that may be another call's. The caller runs its call alone.
    Refused,
}

/// The device, in use by one call. Dropping it passes the device on.
#[derive(Debug)]
pub(crate) struct InUse<'q, D: Driver>(&'q SubmissionQueue<D>);

impl<D: Driver> Drop for InUse<'_, D> {
    fn drop(&mut self) {
        let mut state = self.0.state();
        match state.waiting.front() {
            Some(first) => first.next.set(Next::Submit),
            None => state.is_in_use = false,
        }
    }
}

/// Calls that one of their threads submits. Should it panic, the others run alone.
#[derive(Debug)]
struct Together<D: Driver>(Vec<Waiter<D>>);

impl<D: Driver> Drop for Together<D> {
    fn drop(&mut self) {
        for waiter in self.0.drain(..) {
            waiter.next.set(Next::Return(Ok(Submitted::Refused)));
        }
    }
}

impl<D: Driver> SubmissionQueue<D> {
    /// The queue of a device that is not in use.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::new(State { is_in_use: false, waiting: VecDeque::new() }) }
    }

    fn state(&self) -> MutexGuard<'_, State<D>> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of calls that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.state().waiting.len()
    }

    /// The device, if no call uses it.
    pub(crate) fn try_use(&self) -> Option<InUse<'_, D>> {
        match std::mem::replace(&mut self.state().is_in_use, true) {
            true => None,
            false => Some(InUse(self)),
        }
    }

    /// Submits a call together with others that wait, and waits for its results.
    ///
    /// # Errors
    /// [`Error::DeviceLost`]. Any other error gives [`Submitted::Refused`].
    pub(crate) fn submit(&self, device: &D, call: Call<D>) -> Result<Submitted<D>> {
        let next = Signal::new();
        let mut state = self.state();
        state.waiting.push_back(Waiter { call: Box::new(call), next: next.clone() });
        let waits = std::mem::replace(&mut state.is_in_use, true);
        drop(state);
        if waits && let Next::Return(submitted) = block_on(next) {
            return submitted;
        }
        let _in_use = InUse(self);
        self.submit_first(device)
    }

    /// Submits the first calls of the queue, and returns what became of the very first.
    fn submit_first(&self, device: &D) -> Result<Submitted<D>> {
        let mut together = {
            let mut state = self.state();
            let count = state.waiting.len().min(MOST_CALLS);
            Together(state.waiting.drain(..count).collect())
        };
        let mut calls: Vec<&mut Call<D>> = together.0.iter_mut().map(|waiter| &mut *waiter.call).collect();
        let ran = block_on(Call::run_all(device, &mut calls, Waiting::Here));
        let mut own = Ok(Submitted::Refused);
        for (position, Waiter { call, next }) in std::mem::take(&mut together.0).into_iter().enumerate() {
            let submitted = match &ran {
                Ok(()) => Ok(Submitted::Done(call)),
                Err(lost @ Error::DeviceLost { .. }) => Err(lost.clone()),
                Err(_) => Ok(Submitted::Refused),
            };
            match position {
                0 => own = submitted,
                _ => next.set(Next::Return(submitted)),
            }
        }
        own
    }
}
