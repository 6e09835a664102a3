//! How long a GPU takes.

use kiln_ir::op::{Elementwise, Op};
use kiln_ir::{DataMut, Operand, Result};
use kiln_route::Link;
use web_time::Instant;

use super::{Gpu, WAITING, wait};

/// The least time of a few runs, the first of which makes everything ready.
fn least(mut run: impl FnMut() -> Result<()>) -> Result<f64> {
    /// Runs, the seconds after which three are enough, and those after which one is.
    const RUNS: usize = 12;
    const SECONDS: f64 = 5e-3;
    const LONG: f64 = 10e-3;
    run()?;
    let (start, mut least) = (Instant::now(), f64::INFINITY);
    for i in 0..RUNS {
        let sample = Instant::now();
        run()?;
        least = least.min(sample.elapsed().as_secs_f64());
        let spent = start.elapsed().as_secs_f64();
        if i >= 2 && spent > SECONDS || spent > LONG {
            break;
        }
    }
    Ok(least.max(1e-9))
}

impl Gpu {
    /// Seconds that an operation takes on operands that lie on the device, its result staying there: the least of a few
    /// runs, each waited for.
    ///
    /// # Errors
    /// What the shape rule says, and errors of the device.
    pub(crate) fn resident_seconds(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<f64> {
        least(self.0.device.resident(op, inputs)?)
    }

    /// Seconds that an operation takes from host to host.
    ///
    /// # Errors
    /// As [`kiln_ir::Operations::run_into`], and errors of the device.
    pub(crate) fn host_seconds(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<f64> {
        least(|| wait(self.run_into(op, inputs, outputs, WAITING)))
    }

    /// Seconds that the device takes to start anything and to tell that it is done.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn launch(&self) -> Result<f64> {
        self.resident_seconds(&Elementwise::neg().into(), &[Operand::vector(&[1.0; 64])])
    }

    /// The way to the device: what operations take from host to host beyond what they take on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn link(&self) -> Result<Link> {
        const LARGE: usize = 4 << 20;
        let data = vec![1.0; LARGE];
        let mut out = vec![0.0; LARGE];
        let op = Op::from(Elementwise::scale(2.0));
        let mut beyond = |n: usize| -> Result<(f64, f64)> {
            let input = [Operand::vector(&data[..n])];
            let host = self.host_seconds(&op, &input, &mut [DataMut::F32(&mut out[..n])])?;
            let read = least(self.0.device.reading(&input[0])?)?;
            Ok(((host - self.resident_seconds(&op, &input)?).max(1e-9), read))
        };
        let (small, read_small) = beyond(256)?;
        let (large, read_large) = beyond(LARGE)?;
        let bytes = (4 * LARGE) as f64;
        let both = (large - small).max(1e-9);
        let down = (read_large - read_small).clamp(0.1 * both, 0.9 * both);
        Ok(Link {
            // The two happen in one submission and are waited for once.
            upload_latency: 0.0,
            upload_bandwidth: bytes / (both - down),
            download_latency: small,
            download_bandwidth: bytes / down,
        })
    }
}
