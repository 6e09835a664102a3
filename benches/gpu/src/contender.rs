//! What takes part: a library on an open device.

use crate::case::{Case, Data};

/// Whatever went wrong, as a sentence.
pub(crate) type Result<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// A library on an open device.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;

    /// Makes a case ready on these data; `None` where the library has no such operation.
    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>>;

    /// Runs something small from host to host, as the first operation of a program.
    fn first(&self) -> Result<()>;
}

/// A case that is ready to run.
pub(crate) trait Ready {
    /// Runs it once. A resident case need not be done when this returns.
    fn run(&mut self) -> Result<()>;

    /// Waits until all that ran is done.
    fn wait(&mut self) -> Result<()>;

    /// What the last run computed.
    fn result(&mut self) -> Result<Vec<f32>>;
}
