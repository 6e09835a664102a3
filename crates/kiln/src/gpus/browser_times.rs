//! How long the GPU of a browser takes: samples outlast the clock of a page, which is coarse.

use kiln_ir::op::{Elementwise, Op};
use kiln_ir::{DataMut, Operand, Result};
use kiln_route::Link;
use web_time::Instant;

use super::{Gpu, WAITING};
use crate::repeats::Repeats;

/// The way to a device, from what an operation on few and on many elements takes from host to host beyond what it takes on
/// the device, and from the time of reading its result.
fn way(bytes: f64, [(small, read_small), (large, read_large)]: [(f64, f64); 2]) -> Link {
    let both = (large - small).max(1e-9);
    let down = (read_large - read_small).clamp(0.1 * both, 0.9 * both);
    Link {
        // The two happen in one submission and are waited for once.
        upload_latency: 0.0,
        upload_bandwidth: bytes / (both - down),
        download_latency: small,
        download_bandwidth: bytes / down,
    }
}

impl Gpu {
    /// Seconds that the device takes to start anything and to tell that it is done.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn launch(&self, sample: f64) -> Result<f64> {
        let device = self.device().await?;
        let tensor = device.upload_async(&Operand::vector(&[1.0; 64])).await?;
        let mut operation = device.prepare_async(&Elementwise::neg().into(), &[&tensor]).await?;
        operation.run_async().await?;
        device.finish_async().await?;
        let (start, mut runs) = (Instant::now(), 0);
        while runs < 3 || start.elapsed().as_secs_f64() < sample {
            operation.run_async().await?;
            device.finish_async().await?;
            runs += 1;
        }
        Ok(start.elapsed().as_secs_f64() / f64::from(runs))
    }

    /// Seconds that an operation takes on operands that lie on the device, beside the launch: as often in one go as it takes
    /// to outlast the clock and the launch.
    ///
    /// # Errors
    /// As [`kiln_wgpu::GpuDevice::run_async`].
    pub(crate) async fn resident_seconds(
        &self,
        op: &Op,
        inputs: &[Operand<'_>],
        (launch, sample): (f64, f64),
    ) -> Result<f64> {
        const MOST: u32 = 1000;
        let device = self.device().await?;
        let mut tensors = Vec::with_capacity(inputs.len());
        for input in inputs {
            tensors.push(device.upload_async(input).await?);
        }
        let mut operation = device.prepare_async(op, &tensors.iter().collect::<Vec<_>>()).await?;
        let mut repeats = Repeats::new(sample.max(launch), MOST);
        loop {
            let start = Instant::now();
            operation.repeat_async(repeats.count() as usize).await?;
            device.finish_async().await?;
            if let Some(seconds) = repeats.took((start.elapsed().as_secs_f64() - launch).max(0.0)) {
                return Ok(seconds.max(1e-9));
            }
        }
    }

    /// The way to the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn link(&self, sample: f64) -> Result<Link> {
        const LARGE: usize = 1 << 19;
        let device = self.device().await?;
        let (data, mut out) = (vec![1.0; LARGE], vec![0.0; LARGE]);
        let op = Op::from(Elementwise::scale(2.0));
        let mut beyond = [(0.0, 0.0); 2];
        for (beyond, n) in beyond.iter_mut().zip([256, LARGE]) {
            let input = [Operand::vector(&data[..n])];
            self.run_into(&op, &input, &mut [DataMut::F32(&mut out[..n])], WAITING).await?;
            let (start, mut runs) = (Instant::now(), 0);
            while runs < 2 || start.elapsed().as_secs_f64() < sample {
                self.run_into(&op, &input, &mut [DataMut::F32(&mut out[..n])], WAITING).await?;
                runs += 1;
            }
            let host = start.elapsed().as_secs_f64() / f64::from(runs);
            let tensor = device.upload_async(&input[0]).await?;
            device.finish_async().await?;
            let (start, mut runs) = (Instant::now(), 0);
            while runs < 2 || start.elapsed().as_secs_f64() < sample {
                tensor.read_async().await?;
                runs += 1;
            }
            let read = start.elapsed().as_secs_f64() / f64::from(runs);
            let launch = self.launch(sample).await?;
            *beyond = ((host - launch).max(1e-9), read);
        }
        Ok(way((4 * LARGE) as f64, beyond))
    }
}
