//! Opening devices and listing adapters: one at a time in a process.
//!
//! On NVIDIA's driver 580.159 a process whose threads opened devices at the same time ended once in 55 runs by a segmentation
//! fault. Why is not known. Vulkan allows what they did; one after the other is not known to fail.

#[cfg(not(target_arch = "wasm32"))]
use std::sync::{Mutex, PoisonError};

#[cfg(not(target_arch = "wasm32"))]
use crate::runtime::block_on;
use crate::wait::Waiting;
#[cfg(not(target_arch = "wasm32"))]
use crate::wait::elsewhere;

/// Held by who asks the driver for adapters or for a device.
#[cfg(not(target_arch = "wasm32"))]
static OPENING: Mutex<()> = Mutex::new(());

/// Does `work` while nobody else in the process opens anything. It takes up to some tenths of a second, which it spends in
/// the driver: who must not wait has a thread do it.
#[cfg(not(target_arch = "wasm32"))]
pub(crate) async fn alone<T, F>(waiting: Waiting, work: impl FnOnce() -> F + Send + 'static) -> T
where
    T: Send + 'static,
    F: Future<Output = T>,
{
    let work = move || {
        let _alone = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
        block_on(work())
    };
    match waiting {
        Waiting::Here => work(),
        Waiting::Elsewhere => elsewhere("kiln-gpu-open", work).await,
    }
}

/// A browser has one thread.
#[cfg(target_arch = "wasm32")]
pub(crate) async fn alone<T, F: Future<Output = T>>(_: Waiting, work: impl FnOnce() -> F) -> T {
    work().await
}
