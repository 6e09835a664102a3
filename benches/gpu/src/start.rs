//! The time until the first result of a program, measured in separate processes.

use std::process::Command;
use std::time::Instant;

use serde::{Deserialize, Serialize};

use crate::Result;
use crate::contender::Contender;
use crate::turns::{Effort, median};

/// Seconds from the start of the work.
#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
pub(crate) struct Start {
    /// Until the device was open.
    pub(crate) device: f64,
    /// Until the first result was on the host.
    pub(crate) result: f64,
}

/// Opens a contender and runs its first operation.
pub(crate) fn here(open: impl FnOnce() -> Result<Box<dyn Contender>>) -> Result<Start> {
    let start = Instant::now();
    let contender = open()?;
    let device = start.elapsed().as_secs_f64();
    contender.first()?;
    Ok(Start { device, result: start.elapsed().as_secs_f64() })
}

/// The medians of several processes of each contender, in turns; `None` where one fails.
pub(crate) fn measure(names: &[&str], adapter: Option<&str>, effort: Effort) -> Vec<Option<Start>> {
    let run = |name: &str| -> Result<Start> {
        let mut command = Command::new(std::env::current_exe()?);
        command.args(["--start", name]);
        adapter.iter().for_each(|adapter| _ = command.args(["--adapter", adapter]));
        let output = command.output()?;
        if !output.status.success() {
            return Err(String::from_utf8_lossy(&output.stderr).into_owned().into());
        }
        Ok(serde_json::from_slice(&output.stdout)?)
    };
    let mut samples: Vec<Option<Vec<Start>>> = vec![Some(Vec::new()); names.len()];
    // The first of each fills the caches on the disk.
    for round in 0..=effort.samples.div_ceil(4) {
        for (name, samples) in names.iter().zip(&mut samples) {
            let Some(taken) = samples else { continue };
            match run(name) {
                Ok(start) if round > 0 => taken.push(start),
                Ok(_) => {}
                Err(why) => {
                    eprintln!("  start: without {name}: {why}");
                    *samples = None;
                }
            }
        }
    }
    let medians = |starts: Vec<Start>| Start {
        device: median(starts.iter().map(|start| start.device).collect()),
        result: median(starts.iter().map(|start| start.result).collect()),
    };
    samples.into_iter().map(|samples| samples.map(medians)).collect()
}
