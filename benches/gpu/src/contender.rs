//! Contenders: libraries on an open device.

use crate::Result;
use crate::case::{Case, Data};

/// A library on an open device.
pub(crate) trait Contender {
    fn name(&self) -> &'static str;

    /// Prepares a case on these data; `None` where the library has no such operation.
    fn ready<'a>(&'a self, case: &Case, data: &'a Data) -> Result<Option<Box<dyn Ready + 'a>>>;

    /// Runs something small from host to host, as the first operation of a program.
    fn first(&self) -> Result<()>;
}

/// A case that is ready to run.
pub(crate) trait Ready {
    /// Runs it once. A resident case may still be running when this returns.
    fn run(&mut self) -> Result<()>;

    /// Waits until all runs are done.
    fn wait(&mut self) -> Result<()>;

    /// The results of the last run.
    fn result(&mut self) -> Result<Vec<f32>>;
}
