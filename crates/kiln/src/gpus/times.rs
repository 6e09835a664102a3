//! How long a GPU takes.

use kiln_ir::op::{BroadcastTo, Elementwise, Op, Reduce, Reduction};
use kiln_ir::{DataMut, Operand, Result};
use kiln_route::Link;
use web_time::Instant;

use super::{Gpu, WAITING, wait};

/// Elements that take no time on the way: what is left is its latency.
const SMALL: usize = 256;

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

    /// The way to the device and back, each measured by itself: what an operation that only sends, or only fetches, takes from
    /// host to host beyond what it takes on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn link(&self) -> Result<Link> {
        const LARGE: usize = 4 << 20;
        let data = vec![1.0; LARGE];
        let mut out = vec![0.0; LARGE];
        let sum = Op::from(Reduce::all(Reduction::Sum));
        let mut up = |n: usize| self.beyond(&sum, &[Operand::vector(&data[..n])], &mut out[..1]);
        let (up_small, up_large) = (up(SMALL)?, up(LARGE)?);
        let mut down = |n: usize| {
            let one = Operand::vector(&data[..1]);
            self.beyond(&BroadcastTo::new(&[n])?.into(), &[one], &mut out[..n])
        };
        let (down_small, down_large) = (down(SMALL)?, down(LARGE)?);
        let bytes = (4 * (LARGE - SMALL)) as f64;
        Ok(Link {
            // The two happen in one submission and are waited for once.
            upload_latency: 0.0,
            upload_bandwidth: bytes / (up_large - up_small).max(1e-9),
            download_latency: up_small.min(down_small),
            download_bandwidth: bytes / (down_large - down_small).max(1e-9),
        })
    }

    /// Seconds that an operation takes from host to host beyond what it takes on the device.
    ///
    /// # Errors
    /// Errors of the device.
    fn beyond(&self, op: &Op, inputs: &[Operand<'_>], out: &mut [f32]) -> Result<f64> {
        let host = self.host_seconds(op, inputs, &mut [DataMut::F32(out)])?;
        Ok((host - self.resident_seconds(op, inputs)?).max(1e-9))
    }
}
