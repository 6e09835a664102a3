//! Channels scaled and shifted.

use kiln_ir::Result;

use crate::kernel::{MAX_GRID_X, extent};
use crate::{Argument, Builder, Kernel, Launch, PtxKernel};

/// Threads of a block.
const BLOCK: u32 = 256;
/// Elements of a thread: in each iteration adjacent threads have adjacent ones.
const EACH: u32 = 4;
/// Maximum elements, so that the end of the last block fits 32 bits.
const MOST: u64 = (u32::MAX - EACH * BLOCK) as u64;

/// `x gamma + beta`, those of the channel; or with statistics `(x - mean) / √(variance + eps) gamma + beta`. Channels are planes of
/// neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Channels {
    statistics: bool,
}

impl Channels {
    /// With means and variances, or without.
    pub fn new(statistics: bool) -> Self {
        Self { statistics }
    }

    /// The launch for a tensor of these extents: outer, channels, elements of a plane. Buffers: `x`, `gamma`, `beta`, with statistics
    /// `mean` and `variance`, the result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 1025 elements.
    pub fn launch(&self, [outer, channels, plane]: [usize; 3], eps: f32) -> Result<Launch> {
        let n = extent("elements", outer.saturating_mul(channels).saturating_mul(plane), MOST)?;
        let words = [n, extent("plane", plane, MOST)?, extent("channels", channels, MOST)?].map(Argument::U32);
        let buffers = if self.statistics { 6 } else { 4 };
        let mut arguments: Vec<Argument> = (0..buffers).map(Argument::Buffer).chain(words).collect();
        arguments.extend(self.statistics.then_some(Argument::F32(eps)));
        Ok(Launch { grid: [extent("blocks", n.div_ceil(EACH * BLOCK) as usize, MAX_GRID_X)?, 1, 1], arguments })
    }

    fn write(&self, k: &Builder) {
        let [x, gamma, beta] = ["x", "gamma", "beta"].map(|name| k.buffer::<f32>(name));
        let statistics = self.statistics.then(|| ["mean", "variance"].map(|name| k.buffer::<f32>(name)));
        let out = k.buffer::<f32>("out");
        let [n, plane, channels] = ["n", "plane", "channels"].map(|name| k.parameter::<u32>(name));
        let eps = self.statistics.then(|| k.parameter::<f32>("eps"));
        let first = k.mad(k.ctaid_x(), EACH * BLOCK, k.tid_x());
        for step in 0..EACH {
            let i = first + step * BLOCK;
            k.if_(k.lt(i, n), || {
                let channel = i / plane % channels;
                let [gamma, beta] = [gamma, beta].map(|of| k.ld(of.index(channel)));
                let x = k.ld(x.index(i));
                let (x, factor) = match (statistics, eps) {
                    (Some([mean, variance]), Some(eps)) => {
                        let deviation = k.sqrt(k.ld(variance.index(channel)) + eps);
                        (x - k.ld(mean.index(channel)), k.rcp(deviation) * gamma)
                    }
                    _ => (x, gamma),
                };
                k.st(out.index(i), k.fma(x, factor, beta));
            });
        }
    }
}

impl Kernel for Channels {
    fn name(&self) -> String {
        if self.statistics { "channels_normalised".to_owned() } else { "channels".to_owned() }
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
