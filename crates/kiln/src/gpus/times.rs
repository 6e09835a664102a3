//! Measures the times of a GPU: launches, transfers and operations.

use kiln_device::host_copy;
use kiln_ir::graph::Graph;
use kiln_ir::op::{BroadcastTo, Call, Elementwise, Op, Reduce, Reduction, Softmax};
use kiln_ir::{Data, DataMut, Error, Operand, Record, Result, Shape, TensorType};
use kiln_route::{ElementwisePath, Link, LinkPath, Transfer};

use super::{Gpu, WAITING, wait};
use crate::runs::Runs;

/// Elements of a transfer whose time is its latency.
const SMALL: usize = 64;

/// Elements of the transfers that are measured: 4 KiB to 64 MiB.
const SIZES: [usize; 7] = [1 << 10, 1 << 14, 1 << 16, 1 << 18, 1 << 20, 1 << 22, 1 << 24];

/// Elements of the copy on the host that bounds the bandwidth of a link.
const COPIED: usize = 1 << 22;

/// Minimum time of a kernel: a smaller measurement is noise.
const LEAST: f64 = 1e-6;

/// How often an implausible transfer is measured.
const ATTEMPTS: usize = 3;

/// Factor by which a link may exceed the measured host copy, because that measurement may have been disturbed.
const TOLERANCE: f64 = 1.5;

/// The launch latency of a device.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Launch {
    /// Seconds to start an operation on an idle device and to learn that it has finished.
    pub(crate) cold: f64,
    /// Seconds that one more queued operation adds in addition to its kernel.
    pub(crate) queued: f64,
}

/// How often a call is timed; the first run compiles and allocates.
const RUNS: Runs = Runs { untimed: 1, most: 40, enough: 3e-3, long: 10e-3 };

/// The minimum time of a few runs.
fn least(run: impl FnMut() -> Result<()>) -> Result<f64> {
    Ok(RUNS.least(run)?.max(1e-9))
}

/// The median time of a few runs: what a call typically takes with its transfers and waits. The minimum is a tenth less, and less the
/// more runs there are.
fn typical(run: impl FnMut() -> Result<()>) -> Result<f64> {
    Ok(RUNS.median(run)?.max(1e-9))
}

/// Measures a transfer at every size that the device supports, until the result is plausible. Returns its latency and
/// its time beyond the latency.
fn measured(
    what: &str,
    gpu: &Gpu,
    bandwidth: f64,
    mut seconds: impl FnMut(usize) -> Result<f64>,
) -> Result<(f64, Transfer)> {
    let mut sizes = SIZES.to_vec();
    let mut times = vec![0.0; sizes.len()];
    let mut latency = f64::INFINITY;
    for attempt in 0..ATTEMPTS {
        latency = latency.min(seconds(SMALL)?);
        for i in 0..sizes.len() {
            match seconds(sizes[i]) {
                Ok(seconds) => times[i] = seconds,
                // Sizes that do not fit are skipped; two sizes are enough for a line.
                Err(Error::OutOfMemory { .. } | Error::Limit { .. }) if i >= 2 => {
                    sizes.truncate(i);
                    times.truncate(i);
                    break;
                }
                Err(error) => return Err(error),
            }
        }
        let points = sizes.iter().zip(&times).map(|(&n, seconds)| (4 * n as u64, (seconds - latency).max(1e-9)));
        let transfer = Transfer::measured(points.collect());
        match transfer.check(bandwidth) {
            Ok(()) => return Ok((latency, transfer)),
            Err(why) if attempt + 1 < ATTEMPTS => {
                tracing::debug!("{what} of {}: {why}; measuring again", gpu.name());
            }
            Err(why) => {
                let limit = why.bandwidth / 1e9;
                tracing::warn!("{what} of {}: {why}; assuming {limit:.0} GB/s", gpu.name());
                return Ok((latency, transfer.limited(bandwidth)));
            }
        }
    }
    Err(Error::Unavailable { what: what.into(), reason: "nothing was measured".into() })
}

/// The type of f32 vectors.
fn vector(n: usize) -> Result<TensorType> {
    Ok(TensorType::f32(Shape::new(&[n])?))
}

/// The transfer with this many seconds added at every size.
fn later(transfer: &Transfer, seconds: f64) -> Transfer {
    Transfer::measured(transfer.points().iter().map(|&(bytes, time)| (bytes, time + seconds)).collect())
}

/// Bytes per second of a copy on the host.
fn copied_on_host() -> Result<f64> {
    let from = vec![1_u8; 4 * COPIED];
    let mut to = vec![0_u8; from.len()];
    let threads = std::thread::available_parallelism().map_or(1, usize::from);
    let seconds = least(|| {
        host_copy::copy(&from, &mut to, threads);
        Ok(())
    })?;
    Ok(from.len() as f64 / seconds)
}

impl Gpu {
    /// Seconds that an operation takes on resident operands, with a resident result: the minimum of a few runs, each
    /// waited for.
    ///
    /// # Errors
    /// The errors of the shape rule, and errors of the device.
    pub(crate) fn resident_seconds(&self, op: &Op, inputs: &[Operand<'_>]) -> Result<f64> {
        let mut again = self.0.device.resident(op, inputs)?;
        least(|| again(1))
    }

    /// Seconds that the kernels of an operation take with operands and result on the device. This is the time without
    /// the launch; if that is too short compared with the time in which a device reports completion, it is the time
    /// that one more operation adds to a graph, without what queueing it takes.
    ///
    /// # Errors
    /// The errors of [`Gpu::resident_seconds`].
    pub(crate) fn kernel_seconds(&self, op: &Op, inputs: &[Operand<'_>], launch: &Launch) -> Result<f64> {
        /// Many times the variation of waiting between runs, which is up to 100 µs through Vulkan.
        const SHORT: f64 = 1e-3;
        const COPIES: usize = 8;
        let one = self.resident_seconds(op, inputs)?;
        let beside = one - launch.cold;
        if beside > SHORT {
            return Ok(beside);
        }
        let copies = || {
            let mut again = self.0.device.copies(op, inputs, 1 + COPIES)?;
            least(|| again(1))
        };
        match copies() {
            Ok(many) => Ok(((many - one) / COPIES as f64 - launch.queued).max(LEAST)),
            // The device has no room for this many results.
            Err(Error::Limit { .. } | Error::OutOfMemory { .. }) => Ok(beside.max(LEAST)),
            Err(error) => Err(error),
        }
    }

    /// Compiles the kernels of those of these operations that the device supports, all at once: a calibration has hundreds.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn compile_ahead(&self, operations: &[(Op, &[TensorType])]) -> Result<()> {
        wait(self.0.device.compile_ahead(operations, WAITING))
    }

    /// Seconds that an operation typically takes from host to host.
    ///
    /// # Errors
    /// The errors of [`kiln_ir::Operations::run_into`], and errors of the device.
    pub(crate) fn host_seconds(&self, op: &Op, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<f64> {
        Call::with(op, inputs, |call| typical(|| wait(self.run_call(call, outputs, WAITING))))
    }

    /// Seconds that the device takes to start any work.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn launch(&self) -> Result<Launch> {
        const MANY: usize = 64;
        let op = Elementwise::neg().into();
        let mut again = self.0.device.resident(&op, &[Operand::vector(&[1.0; SMALL])])?;
        let cold = least(|| again(1))?;
        let (one, many) = (self.chain(1)?, self.chain(1 + MANY)?);
        // The minimum time of a kernel is a microsecond.
        Ok(Launch { cold, queued: ((many - one) / MANY as f64 - LEAST).max(0.0) })
    }

    /// Seconds of a graph of this many steps. Each reads the result of the step before, and no two are fused.
    fn chain(&self, steps: usize) -> Result<f64> {
        let mut graph = Graph::new();
        let x = graph.input(vector(SMALL)?);
        let mut y = x;
        for _ in 0..steps {
            y = graph.record(Softmax, &[y])?;
        }
        let mut runner = wait(self.runner(WAITING))?;
        wait(runner.upload(x, &Operand::vector(&[1.0; SMALL])))?;
        least(|| wait(runner.run(&graph, &[y], WAITING)).map(drop))
    }

    /// The transfers to and from the device.
    ///
    /// # Errors
    /// Errors of the device.
    pub(crate) fn link(&self) -> Result<Link> {
        let bandwidth = TOLERANCE * copied_on_host()?;
        Ok(Link {
            call: self.path_of_calls(bandwidth)?,
            round_trip: Some(self.round_trip_of_calls(bandwidth)?),
            elementwise: Some(self.path_of_functions(bandwidth)?),
            tensor: self.path_of_graphs(bandwidth)?,
        })
    }

    /// The path of calls on slices, measured by operations that only upload or only download: their time from host to
    /// host minus their time on the device.
    fn path_of_calls(&self, bandwidth: f64) -> Result<LinkPath> {
        let largest = SIZES[SIZES.len() - 1];
        let data = vec![1.0; largest];
        let mut out = vec![0.0; largest];
        let sum = Op::from(Reduce::all(Reduction::Sum));
        let mut up = |n: usize| self.beyond(&sum, &[Operand::vector(&data[..n])], &mut out[..1]);
        let (up_latency, upload) = measured("the upload of calls", self, bandwidth, &mut up)?;
        let mut down = |n: usize| {
            let one = Operand::vector(&data[..1]);
            self.beyond(&BroadcastTo::new(&[n])?.into(), &[one], &mut out[..n])
        };
        let (down_latency, download) = measured("the download of calls", self, bandwidth, &mut down)?;
        // The transfers of one submission share one latency.
        Ok(LinkPath { upload, download: later(&download, up_latency.min(down_latency)) })
    }

    /// Calls that upload and download as many bytes, by softmax: the time from host to host minus that on the device.
    fn round_trip_of_calls(&self, bandwidth: f64) -> Result<Transfer> {
        let data = vec![1.0; SIZES[SIZES.len() - 1]];
        let mut out = vec![0.0; data.len()];
        let both = |n: usize| {
            let rows = Operand::new(Data::F32(&data[..n]), Shape::new(&[n / SMALL, SMALL])?)?;
            self.beyond(&Softmax.into(), &[rows], &mut out[..n])
        };
        let (latency, transfer) = measured("the transfers of calls in both directions", self, bandwidth, both)?;
        Ok(later(&transfer, latency))
    }

    /// The path of calls of element-wise functions: of one operand, and what a second one adds, without the kernels.
    fn path_of_functions(&self, bandwidth: f64) -> Result<ElementwisePath> {
        let data = vec![1.0; SIZES[SIZES.len() - 1]];
        let mut out = vec![0.0; data.len()];
        let mut of = |function: Elementwise, operands: usize, n: usize| {
            self.beyond(&function.into(), &[Operand::vector(&data[..n]); 2][..operands], &mut out[..n])
        };
        let one = |n: usize| of(Elementwise::neg(), 1, n);
        let (latency, first) = measured("the transfers of element-wise functions", self, bandwidth, one)?;
        let first = later(&first, latency);
        let added = |n: usize| Ok((of(Elementwise::add(), 2, n)? - first.seconds(4 * n as u64)).max(1e-9));
        let (added, further) = measured("the upload of further operands", self, bandwidth, added)?;
        Ok(ElementwisePath { first, further: later(&further, added) })
    }

    /// The path of graphs: what setting an input adds to an execution, and what reading a result takes.
    fn path_of_graphs(&self, bandwidth: f64) -> Result<LinkPath> {
        let data = vec![1.0; SIZES[SIZES.len() - 1]];
        let up = |n: usize| {
            let mut graph = Graph::new();
            let x = graph.input(vector(n)?);
            let y = graph.record(Reduce::all(Reduction::Sum), &[x])?;
            let mut runner = wait(self.runner(WAITING))?;
            wait(runner.upload(x, &Operand::vector(&data[..n])))?;
            let there = least(|| wait(runner.run(&graph, &[y], WAITING)).map(drop))?;
            let set = least(|| {
                wait(runner.set_all(&graph, &[(x, Data::F32(&data[..n]))]))?;
                wait(runner.run(&graph, &[y], WAITING)).map(drop)
            })?;
            Ok((set - there).max(1e-9))
        };
        let (latency, upload) = measured("the upload of tensors", self, bandwidth, up)?;
        let upload = later(&upload, latency);
        let down = |n: usize| {
            let op = BroadcastTo::new(&[n])?;
            let mut graph = Graph::new();
            let x = graph.input(vector(1)?);
            let y = graph.record(op, &[x])?;
            let mut runner = wait(self.runner(WAITING))?;
            wait(runner.upload(x, &Operand::vector(&data[..1])))?;
            let read = least(|| wait(runner.run(&graph, &[y], WAITING)).map(drop))?;
            Ok((read - self.resident_seconds(&op.into(), &[Operand::vector(&data[..1])])?).max(1e-9))
        };
        let (latency, download) = measured("the download of tensors", self, bandwidth, down)?;
        Ok(LinkPath { upload, download: later(&download, latency) })
    }

    /// Seconds that an operation takes from host to host minus those that it takes on the device.
    ///
    /// # Errors
    /// Errors of the device.
    fn beyond(&self, op: &Op, inputs: &[Operand<'_>], out: &mut [f32]) -> Result<f64> {
        let host = self.host_seconds(op, inputs, &mut [DataMut::F32(out)])?;
        Ok((host - self.resident_seconds(op, inputs)?).max(1e-9))
    }
}
