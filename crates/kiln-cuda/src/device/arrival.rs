//! Downloads in progress.

use std::sync::{Mutex, PoisonError};

use kiln_ir::Result;

use super::staging::Block;
use crate::{CudaDevice, Region};

/// Blocks that a device copies results to, and their bytes. Dropping it abandons the results.
#[derive(Debug)]
pub(crate) struct Arrival {
    device: CudaDevice,
    blocks: Mutex<Vec<(Block, u64)>>,
}

impl Arrival {
    /// Begins to download the first bytes of each region, at most a block, after all earlier work of the device.
    ///
    /// # Errors
    /// [`kiln_ir::Error::DeviceLost`], [`kiln_ir::Error::OutOfMemory`], [`kiln_ir::Error::Driver`]; [`kiln_ir::Error::View`] if a region
    /// is too short.
    pub(crate) fn new(device: &CudaDevice, reads: &[(Region, u64)]) -> Result<Self> {
        let blocks = device.inner.staging.begin_download(reads)?;
        let blocks = blocks.into_iter().zip(reads.iter().map(|read| read.1));
        Ok(Self { device: device.clone(), blocks: Mutex::new(blocks.collect()) })
    }

    /// Waits for the bytes of each read.
    ///
    /// # Errors
    /// The errors of all earlier work.
    pub(crate) fn wait(&self) -> Result<Vec<Vec<u8>>> {
        let blocks = self.blocks.lock().unwrap_or_else(PoisonError::into_inner);
        let arrived = blocks.iter().map(|(block, bytes)| {
            block.done.wait()?;
            let mut to = vec![0; *bytes as usize];
            block.memory.read(&mut to);
            Ok(to)
        });
        arrived.collect()
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        let blocks = std::mem::take(self.blocks.get_mut().unwrap_or_else(PoisonError::into_inner));
        self.device.inner.staging.give_up(blocks.into_iter().map(|(block, _)| block));
    }
}
