//! Functions that run futures, for programs without an async runtime.

/// Whether functions that wait exist on this target: everywhere but in a browser, whose only thread must not wait.
pub const fn sync_available() -> bool {
    cfg!(not(target_arch = "wasm32"))
}

#[cfg(not(target_arch = "wasm32"))]
pub use kiln_device::waiting::block_on;

/// Starts a future on the event loop of the browser, and does not wait for it.
#[cfg(target_arch = "wasm32")]
pub fn spawn_local(future: impl Future<Output = ()> + 'static) {
    wasm_bindgen_futures::spawn_local(future);
}

/// Waits for the next turn of the event loop of the browser, so that it can draw its page and answer its user.
#[cfg(target_arch = "wasm32")]
pub async fn pause() {
    crate::driver::browser::pause().await;
}
