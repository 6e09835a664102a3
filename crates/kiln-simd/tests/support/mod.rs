//! Helpers of the tests.

/// The number n of the environment variable `KILN_SAMPLE`: on an emulated processor, tests that walk through many sizes or cases take
/// every n-th of them. At least 1, which means all.
pub(crate) fn step() -> usize {
    // A module of WebAssembly cannot read variables when it runs.
    #[cfg(target_arch = "wasm32")]
    let sample = option_env!("KILN_SAMPLE");
    #[cfg(not(target_arch = "wasm32"))]
    let sample = std::env::var("KILN_SAMPLE").ok();
    sample.and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Every n-th of these from the first on.
#[allow(dead_code)] // not every test file uses it
pub(crate) fn sampled<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    all.into_iter().step_by(step())
}
