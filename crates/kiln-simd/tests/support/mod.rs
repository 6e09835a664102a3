//! What tests share.

/// Every n-th of these from the first on, with n of the environment variable `KILN_SAMPLE`: on an emulated processor tests that
/// walk through many sizes take some of them. Otherwise all.
pub(crate) fn sampled<T>(all: impl IntoIterator<Item = T>) -> impl Iterator<Item = T> {
    let step = std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse::<usize>().ok());
    all.into_iter().step_by(step.unwrap_or(1).max(1))
}
