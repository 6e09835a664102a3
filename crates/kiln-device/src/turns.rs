//! Callers that take turns at a device, first come first served.

use std::collections::VecDeque;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::waiting::{Signal, block_on};

/// Admits a few callers at a time to a device, in the order in which they came. A mutex of the driver does not do that: a caller that
/// releases it and comes back may take it again before those who wait.
#[derive(Debug)]
pub(crate) struct Turns {
    line: Mutex<Line>,
}

#[derive(Debug)]
struct Line {
    /// Callers that may still be admitted; 0 while any caller waits.
    free: usize,
    waiting: VecDeque<Signal<()>>,
}

/// A caller that is admitted. Dropping it admits the next one.
#[derive(Debug)]
pub(crate) struct Turn<'t>(&'t Turns);

impl Turns {
    /// Admits this many callers at a time.
    pub(crate) fn new(at_once: usize) -> Self {
        Self { line: Mutex::new(Line { free: at_once, waiting: VecDeque::new() }) }
    }

    fn line(&self) -> MutexGuard<'_, Line> {
        self.line.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the caller is admitted.
    pub(crate) fn take(&self) -> Turn<'_> {
        let mut line = self.line();
        if line.free > 0 {
            line.free -= 1;
            return Turn(self);
        }
        let admitted = Signal::new();
        line.waiting.push_back(admitted.clone());
        drop(line);
        block_on(admitted);
        Turn(self)
    }

    /// Number of callers that wait.
    pub(crate) fn waiting(&self) -> usize {
        self.line().waiting.len()
    }
}

impl Drop for Turn<'_> {
    fn drop(&mut self) {
        let mut line = self.0.line();
        match line.waiting.pop_front() {
            Some(next) => next.set(()),
            None => line.free += 1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Waits until this many callers wait.
    fn await_waiting(turns: &Turns, callers: usize) {
        while turns.waiting() != callers {
            std::thread::yield_now();
        }
    }

    #[test]
    fn callers_are_admitted_in_the_order_in_which_they_came() {
        let turns = Turns::new(2);
        let admitted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let (first, second) = (turns.take(), turns.take());
            for caller in 0..4 {
                let (turns, admitted) = (&turns, &admitted);
                scope.spawn(move || {
                    let turn = turns.take();
                    admitted.lock().unwrap().push(caller);
                    drop(turn);
                });
                await_waiting(turns, caller + 1);
            }
            assert!(admitted.lock().unwrap().is_empty());
            drop(first);
            await_waiting(&turns, 0);
            drop(second);
        });
        assert_eq!(*admitted.lock().unwrap(), [0, 1, 2, 3]);
        assert_eq!(turns.line().free, 2);
    }

    #[test]
    fn a_caller_that_comes_back_is_behind_those_who_wait() {
        let turns = Turns::new(1);
        let admitted = Mutex::new(Vec::new());
        std::thread::scope(|scope| {
            let turn = turns.take();
            scope.spawn(|| {
                let _turn = turns.take();
                admitted.lock().unwrap().push("other");
            });
            await_waiting(&turns, 1);
            drop(turn);
            let _turn = turns.take();
            admitted.lock().unwrap().push("first");
        });
        assert_eq!(*admitted.lock().unwrap(), ["other", "first"]);
    }
}
