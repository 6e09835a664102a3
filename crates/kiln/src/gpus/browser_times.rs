//! Measures the times of a browser's GPU, with samples that are long compared with the coarse clock of a page.

use kiln_ir::op::{BroadcastTo, Elementwise, Op, OwnedCall, Reduce, Reduction};
use kiln_ir::{DataMut, Operand, Result};
use kiln_route::{Link, LinkPath, Transfer};
use web_time::Instant;

use super::{Gpu, WAITING};
use crate::repeats::Repeats;

impl Gpu {
    /// Seconds that the device takes to start any work and to report its end.
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

    /// Seconds that an operation takes on resident operands, without the launch. Repeats the operation in one
    /// submission until its time exceeds the resolution of the clock and the launch.
    ///
    /// # Errors
    /// The errors of [`kiln_wgpu::GpuDevice::run_async`].
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

    /// The transfers to and from the device, each measured by operations that only upload or only download: their time
    /// from host to host minus their time on the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) async fn link(&self, launch: f64, sample: f64) -> Result<Link> {
        const SIZES: [usize; 2] = [256, 1 << 19];
        let data = vec![1.0; SIZES[1]];
        let mut out = vec![0.0; SIZES[1]];
        let (mut up, mut down) = (Vec::with_capacity(SIZES.len()), Vec::with_capacity(SIZES.len()));
        for n in SIZES {
            let bytes = 4 * n as u64;
            let sum = Op::from(Reduce::all(Reduction::Sum));
            let many = [Operand::vector(&data[..n])];
            up.push((bytes, self.beyond(&sum, &many, &mut out[..1], (launch, sample)).await?));
            let spread = BroadcastTo::new(&[n])?.into();
            let one = [Operand::vector(&data[..1])];
            down.push((bytes, self.beyond(&spread, &one, &mut out[..n], (launch, sample)).await?));
        }
        // The transfers of one submission share one latency.
        let latency = up[0].1;
        up.iter_mut().for_each(|(_, seconds)| *seconds = (*seconds - latency).max(1e-9));
        let [upload, download] = [up, down].map(|points| Transfer::measured(points).limited(f64::INFINITY));
        let path = LinkPath { upload, download };
        Ok(Link { call: path.clone(), round_trip: None, elementwise: None, tensor: path })
    }

    /// Seconds that an operation takes from host to host minus those that it takes on the device.
    async fn beyond(
        &self,
        op: &Op,
        inputs: &[Operand<'_>],
        out: &mut [f32],
        (launch, sample): (f64, f64),
    ) -> Result<f64> {
        let call = OwnedCall::new(op, inputs)?;
        let call = call.as_call();
        self.run_call(&call, &mut [DataMut::F32(out)], WAITING).await?;
        let (start, mut runs) = (Instant::now(), 0);
        while runs < 2 || start.elapsed().as_secs_f64() < sample {
            self.run_call(&call, &mut [DataMut::F32(out)], WAITING).await?;
            runs += 1;
        }
        let host = start.elapsed().as_secs_f64() / f64::from(runs);
        Ok((host - launch - self.resident_seconds(op, inputs, (launch, sample)).await?).max(1e-9))
    }
}
