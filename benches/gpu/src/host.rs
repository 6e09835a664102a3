//! Functions from host to host as cases.

use crate::Result;
use crate::contender::Ready;

/// A function from host to host, which leaves no work in flight.
pub(crate) struct Host<F> {
    run: F,
    out: Vec<f32>,
}

impl<F> Host<F> {
    /// A function that writes this many elements.
    pub(crate) fn new(run: F, results: usize) -> Self {
        Self { run, out: vec![0.0; results] }
    }
}

impl<F, E> Ready for Host<F>
where
    F: FnMut(&mut Vec<f32>) -> std::result::Result<(), E>,
    E: Into<Box<dyn std::error::Error>>,
{
    fn run(&mut self) -> Result<()> {
        (self.run)(&mut self.out).map_err(Into::into)
    }

    fn wait(&mut self) -> Result<()> {
        Ok(())
    }

    fn result(&mut self) -> Result<Vec<f32>> {
        Ok(self.out.clone())
    }
}
