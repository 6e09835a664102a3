//! A launch on the devices of a group at once.

use super::{Block, Memory, Program};

impl Program {
    /// Runs the same grid on devices with these arguments, one block of each device at a time. A device runs to its next poll, but for some
    /// threads; `choice` of a number of devices or threads decides by a number below it which one is next, and which threads are held.
    pub(crate) fn run_group(
        &self,
        grid: u32,
        arguments: &[Vec<u64>],
        memory: &mut Memory,
        mut choice: impl FnMut(usize) -> usize,
    ) -> Result<(), String> {
        let mut devices: Vec<Block<'_>> = arguments.iter().map(|_| Block::new(self)).collect();
        for x in 0..grid {
            for (device, arguments) in devices.iter_mut().zip(arguments) {
                device.begin([x, 0, 0], [grid, 1, 1], arguments);
            }
            let mut running: Vec<&mut Block<'_>> = devices.iter_mut().collect();
            while !running.is_empty() {
                let next = choice(running.len());
                let threads = running[next].threads.len();
                // For several turns, so that other threads come far ahead of these.
                if choice(4) == 0 {
                    let first = choice(threads);
                    running[next].held = first..first + choice(threads - first + 1);
                }
                if running[next].run(memory)? {
                    running.remove(next);
                }
            }
        }
        Ok(())
    }
}
