//! The loss of a device, and waiting that ends with it.

#[cfg(not(target_arch = "wasm32"))]
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Mutex, PoisonError};
#[cfg(not(target_arch = "wasm32"))]
use std::time::{Duration, Instant};

#[cfg(not(target_arch = "wasm32"))]
use kiln_device::waiting::Signal;

/// The reason why a device is lost, once it is. Clones share it.
#[derive(Debug, Clone, Default)]
pub(super) struct Lost(Arc<Mutex<Option<String>>>);

impl Lost {
    /// Records a loss; the first reason stays.
    pub(super) fn record(&self, reason: String) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert(reason);
    }

    pub(super) fn reason(&self) -> Option<String> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// The time to poll before blocking: a wake-up by the driver takes longer, above all on virtual machines.
#[cfg(not(target_arch = "wasm32"))]
const SOON: Duration = Duration::from_micros(200);

/// Waits until all submitted work, or that up to a submission, is done and delivered, which completes `done`. If the device is
/// lost, `done` is completed with `of_lost`.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn wait_for<T>(
    poll: impl Fn(wgpu::PollType) -> Polled,
    lost: &Lost,
    (done, of_lost): (&Signal<T>, T),
    after: Option<wgpu::SubmissionIndex>,
) {
    let start = Instant::now();
    let mut waits = true;
    while waits && start.elapsed() < SOON {
        match poll_or_lose(lost, || poll(wgpu::PollType::Poll)) {
            Some(status) => waits = !status.is_queue_empty() && !done.is_set(),
            None => waits = false,
        }
        std::hint::spin_loop();
    }
    if waits {
        poll_or_lose(lost, || poll(wgpu::PollType::Wait { submission_index: after, timeout: None }));
    }
    // A lost device does not call back any more.
    if lost.reason().is_some() {
        done.set(of_lost);
    }
}

/// The result of polling a device.
#[cfg(not(target_arch = "wasm32"))]
type Polled = Result<wgpu::PollStatus, wgpu::PollError>;

/// Polls a device; `None` if that fails. wgpu panics where the driver reports the loss of the device to a poll: that is
/// recorded, and no panic for the caller. The hook for panics of the process does print it.
#[cfg(not(target_arch = "wasm32"))]
pub(super) fn poll_or_lose(lost: &Lost, poll: impl FnOnce() -> Polled) -> Option<wgpu::PollStatus> {
    // wgpu panics after its core has returned, so it holds no lock, and nothing uses a lost device again. After a panic of a
    // callback the other callbacks of that poll are missing, so the device is of no use then, either.
    match catch_unwind(AssertUnwindSafe(poll)) {
        Ok(Ok(status)) => Some(status),
        Ok(Err(error)) => {
            tracing::warn!("waiting for a device: {error}");
            None
        }
        Err(panic) => {
            let message = panic.downcast_ref::<String>().map(String::as_str);
            let message = message.or_else(|| panic.downcast_ref::<&str>().copied());
            lost.record(message.unwrap_or("polling it panicked").to_owned());
            None
        }
    }
}

#[cfg(all(test, not(target_arch = "wasm32")))] // waiting for devices needs threads
mod tests {
    use std::cell::Cell;

    use kiln_device::waiting::block_on;

    use super::*;

    #[test]
    fn a_loss_that_a_poll_reports_by_a_panic_completes_what_waits() {
        let polls = Cell::new(0);
        // Reported at once, and only to the poll that blocks.
        for first in [1, u32::MAX] {
            let (lost, done) = (Lost::default(), Signal::new());
            polls.set(0);
            let poll = |how| {
                polls.set(polls.get() + 1);
                let blocks = matches!(how, wgpu::PollType::Wait { .. });
                if blocks || polls.get() == first {
                    panic!("Error in Device::poll: the parent device is lost");
                }
                Ok(wgpu::PollStatus::Poll)
            };
            wait_for(poll, &lost, (&done, Err(7)), None);
            assert_eq!(block_on(done), Err::<(), _>(7));
            assert!(lost.reason().is_some_and(|reason| reason.contains("the parent device is lost")));
            lost.record("another reason".into());
            assert!(lost.reason().is_some_and(|reason| reason.contains("Device::poll")), "the first one stays");
        }
        // Without a loss the callback of the device completes it.
        let (lost, done) = (Lost::default(), Signal::new());
        wait_for(|_| Ok(wgpu::PollStatus::QueueEmpty), &lost, (&done, ()), None);
        assert!(!done.is_set() && lost.reason().is_none());
        assert!(poll_or_lose(&lost, || Err(wgpu::PollError::Timeout)).is_none() && lost.reason().is_none());
    }
}
