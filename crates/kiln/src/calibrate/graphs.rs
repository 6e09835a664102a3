//! Recorded graphs that evaluate placements: models as programs run them, with resident weights and a new input in every
//! execution.

use kiln_ir::graph::TensorId;
use kiln_ir::op::{Attention, Convolve2d, Elementwise, Matmul, Op, Padding, Reduce, Reduction, Softmax};
use kiln_ir::{Error, Record, Result, Shape, TensorType};
use kiln_route::{GraphsOnHost, Problem, Transfer};

use super::measure::Progress;
use crate::runs::Runs;
use crate::{Batch, Engine};

/// The times of a graph: on each device alone, and in the planned segments.
#[derive(Debug, Clone, PartialEq)]
pub struct GraphRow {
    /// The name of the graph.
    pub graph: String,
    /// Whether it is one operation on operands that are resident on the devices.
    pub resident: bool,
    /// Measured seconds on the CPU, with each step on its fastest placement, and on each GPU; infinite if a device cannot run it.
    pub seconds: Vec<f64>,
    /// Predicted seconds, in the same order.
    pub predicted: Vec<f64>,
    /// Measured seconds of the planned segments.
    pub planned: f64,
    /// Predicted seconds of the planned segments.
    pub planned_predicted: f64,
    /// Number of segments: more than one if several devices share the graph.
    pub segments: usize,
    /// The device of the first segment, as an index into `seconds`.
    pub first: usize,
}

impl GraphRow {
    /// The share by which the planned segments take longer than the best device; negative if several devices together are faster.
    pub fn regret(&self) -> f64 {
        // A plan of one segment equals a run on that device: one measurement serves both.
        let planned = if self.segments == 1 { self.seconds[self.first] } else { self.planned };
        let best = self.seconds.iter().copied().fold(planned, f64::min);
        planned / best - 1.0
    }
}

/// A recorded graph: its inputs that change in every execution, and its wanted tensors.
struct Recorded {
    name: String,
    resident: bool,
    input: Option<(TensorId, Vec<f32>)>,
    wanted: TensorId,
}

/// Numbers between -0.5 and 0.5.
fn numbers(n: usize) -> Vec<f32> {
    (0..n).map(|i| (i.wrapping_mul(0x9e37_79b1) >> 8 & 0xffff) as f32 / 65_535.0 - 0.5).collect()
}

fn weights(batch: &mut Batch<'_>, dims: &[usize]) -> Result<TensorId> {
    let n: usize = dims.iter().product();
    let scale = 1.0 / (dims[0] as f32).sqrt();
    batch.upload(&numbers(n).into_iter().map(|x| x * scale).collect::<Vec<_>>(), dims)
}

fn input(batch: &mut Batch<'_>, dims: &[usize]) -> Result<(TensorId, Vec<f32>)> {
    let data = numbers(dims.iter().product());
    Ok((batch.upload(&data, dims)?, data))
}

/// A multilayer perceptron of three layers.
fn mlp(batch: &mut Batch<'_>, rows: usize, width: usize) -> Result<Recorded> {
    let (id, data) = input(batch, &[rows, width])?;
    let mut x = id;
    for layer in 0..3 {
        let (w, bias) = (weights(batch, &[width, width])?, weights(batch, &[width])?);
        x = batch.matmul(x, w)?;
        x = batch.add(x, bias)?;
        x = if layer < 2 { batch.gelu(x)? } else { batch.softmax(x)? };
    }
    Ok(Recorded { name: format!("mlp {rows} x {width}"), resident: false, input: Some((id, data)), wanted: x })
}

/// The heads of `[rows, heads * d]`: `[heads, rows, d]`.
fn heads(batch: &mut Batch<'_>, x: TensorId, heads: usize, rows: usize, d: usize) -> Result<TensorId> {
    let split = batch.reshape(x, &[rows, heads, d])?;
    batch.permute(split, &[1, 0, 2])
}

/// Attention of a transformer: norm, projections, attention over heads, projection, residual.
fn attention(batch: &mut Batch<'_>, rows: usize) -> Result<Recorded> {
    const D: usize = 64;
    const HEADS: usize = 8;
    let width = HEADS * D;
    let (x, data) = input(batch, &[rows, width])?;
    let gamma = weights(batch, &[width])?;
    let normed = batch.rms_norm(x, gamma, 1e-5)?;
    let mut projected = [normed; 3];
    for projected in &mut projected {
        let w = weights(batch, &[width, width])?;
        let y = batch.matmul(normed, w)?;
        *projected = heads(batch, y, HEADS, rows, D)?;
    }
    let [q, k, v] = projected;
    let seen = batch.record(Attention::causal(), &[q, k, v])?;
    let seen = batch.permute(seen, &[1, 0, 2])?;
    let flat = batch.reshape(seen, &[rows, width])?;
    let w = weights(batch, &[width, width])?;
    let out = batch.matmul(flat, w)?;
    let wanted = batch.add(out, x)?;
    Ok(Recorded { name: format!("attention block {rows} x {width}"), resident: false, input: Some((x, data)), wanted })
}

/// One token through 12 layers of a transformer, after 256 earlier positions.
fn decode(batch: &mut Batch<'_>) -> Result<Recorded> {
    const LAYERS: usize = 12;
    /// Layers with distinct weights, so that these exceed the caches.
    const OWN: usize = 4;
    const D: usize = 64;
    const HEADS: usize = 8;
    const SEEN: usize = 256;
    const FFN: usize = 1408;
    let width = HEADS * D;
    let (id, data) = input(batch, &[1, width])?;
    let gamma = weights(batch, &[width])?;
    let mut layers = Vec::with_capacity(OWN);
    for _ in 0..OWN {
        let mut of = |dims: &[usize]| weights(batch, dims);
        let square = [width, width];
        let cache = [HEADS, SEEN, D];
        layers.push((
            [of(&square)?, of(&square)?],
            [of(&cache)?, of(&cache)?],
            [of(&[width, FFN])?, of(&[width, FFN])?, of(&[FFN, width])?],
        ));
    }
    let mut x = id;
    for layer in 0..LAYERS {
        let ([wq, wo], [keys, values], [gate, up, down]) = layers[layer % OWN];
        let normed = batch.rms_norm(x, gamma, 1e-5)?;
        let q = batch.matmul(normed, wq)?;
        let q = batch.reshape(q, &[HEADS, 1, D])?;
        let seen = batch.record(Attention::full(), &[q, keys, values])?;
        let seen = batch.reshape(seen, &[1, width])?;
        let out = batch.matmul(seen, wo)?;
        x = batch.add(x, out)?;
        let normed = batch.rms_norm(x, gamma, 1e-5)?;
        let (gate, up) = (batch.matmul(normed, gate)?, batch.matmul(normed, up)?);
        let gate = batch.record(Elementwise::swish(), &[gate])?;
        let gated = batch.mul(gate, up)?;
        let out = batch.matmul(gated, down)?;
        x = batch.add(x, out)?;
    }
    Ok(Recorded {
        name: format!("decode, {LAYERS} layers of {width}"),
        resident: false,
        input: Some((id, data)),
        wanted: x,
    })
}

/// Blur, and edges by two derivatives.
fn image(batch: &mut Batch<'_>, extent: usize) -> Result<Recorded> {
    let (id, data) = input(batch, &[extent, extent])?;
    let [gaussian, across, down] = [
        batch.upload(&[1.0 / 25.0; 25], &[5, 5])?,
        batch.upload(&[-1.0, 0.0, 1.0, -2.0, 0.0, 2.0, -1.0, 0.0, 1.0], &[3, 3])?,
        batch.upload(&[-1.0, -2.0, -1.0, 0.0, 0.0, 0.0, 1.0, 2.0, 1.0], &[3, 3])?,
    ];
    let same = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
    let blurred = batch.record(same, &[id, gaussian])?;
    let (dx, dy) = (batch.record(same, &[blurred, across])?, batch.record(same, &[blurred, down])?);
    let (dx2, dy2) = (batch.mul(dx, dx)?, batch.mul(dy, dy)?);
    let sum = batch.add(dx2, dy2)?;
    let wanted = batch.sqrt(sum)?;
    Ok(Recorded { name: format!("image filter {extent}"), resident: false, input: Some((id, data)), wanted })
}

/// Convolutions of many channels.
fn convolutions(batch: &mut Batch<'_>, channels: usize, extent: usize) -> Result<Recorded> {
    let (id, data) = input(batch, &[channels, extent, extent])?;
    let same = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
    let mut x = id;
    for _ in 0..4 {
        let kernels = weights(batch, &[channels, channels, 3, 3])?;
        x = batch.record(same, &[x, kernels])?;
        x = batch.relu(x)?;
    }
    Ok(Recorded {
        name: format!("convolutions {channels} x {extent} x {extent}"),
        resident: false,
        input: Some((id, data)),
        wanted: x,
    })
}

/// Two chains of products that are combined at their ends, each about as much work for a CPU as for a GPU.
fn branches(batch: &mut Batch<'_>, n: usize) -> Result<Recorded> {
    let (id, data) = input(batch, &[n, n])?;
    let w = weights(batch, &[n, n])?;
    let mut ends = [id, id];
    for (end, depth) in ends.iter_mut().zip([2, 12]) {
        for _ in 0..depth {
            *end = batch.matmul(*end, w)?;
        }
    }
    let wanted = batch.add(ends[0], ends[1])?;
    Ok(Recorded { name: format!("branches {n}"), resident: false, input: Some((id, data)), wanted })
}

/// Products of squares beside a recurrence of many short steps: a GPU is fast at the one and the CPU at the other.
fn products_and_recurrence(batch: &mut Batch<'_>) -> Result<Recorded> {
    const N: usize = 1024;
    const WIDTH: usize = 64;
    let (id, data) = input(batch, &[N, N])?;
    let (w, recurrent) = (weights(batch, &[N, N])?, weights(batch, &[WIDTH, WIDTH])?);
    let (mut x, mut state) = (id, weights(batch, &[1, WIDTH])?);
    for _ in 0..8 {
        x = batch.matmul(x, w)?;
    }
    for _ in 0..250 {
        state = batch.matmul(state, recurrent)?;
        state = batch.tanh(state)?;
    }
    let [x, state] = [x, state].map(|x| batch.record(Reduce::all(Reduction::Sum), &[x]));
    let wanted = batch.add(x?, state?)?;
    Ok(Recorded {
        name: format!("products of {N} beside a recurrence"),
        resident: false,
        input: Some((id, data)),
        wanted,
    })
}

/// The sum of a function of a resident vector.
fn function_of(batch: &mut Batch<'_>, n: usize) -> Result<Recorded> {
    let x = weights(batch, &[n])?;
    let y = batch.gelu(x)?;
    let wanted = batch.record(Reduce::all(Reduction::Sum), &[y])?;
    Ok(Recorded { name: format!("sum of gelu, {n} there"), resident: true, input: None, wanted })
}

/// A new row times a resident matrix.
fn row_times(batch: &mut Batch<'_>, rows: usize, n: usize) -> Result<Recorded> {
    let (id, data) = input(batch, &[rows, n])?;
    let w = weights(batch, &[n, n])?;
    let wanted = batch.record(Matmul::default(), &[id, w])?;
    Ok(Recorded {
        name: format!("matmul {rows} x {n} by {n} x {n} there"),
        resident: true,
        input: Some((id, data)),
        wanted,
    })
}

/// Softmax of resident rows, and its maximum.
fn softmax_of(batch: &mut Batch<'_>, rows: usize, columns: usize) -> Result<Recorded> {
    let x = weights(batch, &[rows, columns])?;
    let soft = batch.softmax(x)?;
    let wanted = batch.record(Reduce::all(Reduction::Max), &[soft])?;
    Ok(Recorded { name: format!("greatest of softmax, {rows} x {columns} there"), resident: true, input: None, wanted })
}

type Record1 = fn(&mut Batch<'_>) -> Result<Recorded>;

const GRAPHS: &[Record1] = &[
    |b| mlp(b, 1, 256),
    |b| mlp(b, 1, 1024),
    |b| mlp(b, 64, 512),
    |b| mlp(b, 512, 1024),
    |b| attention(b, 32),
    |b| attention(b, 256),
    |b| attention(b, 1024),
    decode,
    |b| image(b, 256),
    |b| image(b, 1024),
    |b| image(b, 3000),
    |b| convolutions(b, 16, 28),
    |b| convolutions(b, 64, 56),
    |b| branches(b, 256),
    |b| branches(b, 768),
    products_and_recurrence,
    |b| function_of(b, 1000),
    |b| function_of(b, 100_000),
    |b| function_of(b, 5_000_000),
    |b| row_times(b, 1, 700),
    |b| row_times(b, 1, 3000),
    |b| row_times(b, 8, 700),
    |b| row_times(b, 200, 1500),
    |b| softmax_of(b, 30, 100),
    |b| softmax_of(b, 300, 2500),
    |b| softmax_of(b, 3000, 2500),
];

/// Measures every graph on each device alone, and in its planned segments.
///
/// # Errors
/// Errors of the operations.
pub(super) fn measure(engine: &Engine, seconds: f64, progress: &mut dyn FnMut(Progress<'_>)) -> Result<Vec<GraphRow>> {
    let mut rows = Vec::with_capacity(GRAPHS.len());
    for (done, record) in GRAPHS.iter().enumerate() {
        let mut batch = engine.batch();
        batch.keep_on_host(true);
        let recorded = record(&mut batch)?;
        progress(Progress { done, total: GRAPHS.len(), what: &recorded.name });
        rows.push(row(engine, &mut batch, recorded, seconds)?);
    }
    Ok(rows)
}

/// Measures the overhead of graphs on the CPU beyond their operations: the seconds of each step, and the rest.
pub(crate) fn on_cpu(engine: &Engine) -> Result<(f64, GraphsOnHost)> {
    const SECONDS: f64 = 0.02;
    const STEPS: usize = 64;
    /// Numbers of elements that one step passes to the next.
    const SIZES: [usize; 6] = [1 << 10, 1 << 13, 1 << 15, 1 << 17, 1 << 19, 1 << 22];
    /// Channels and extents of images that convolutions and functions process in turn, each on the threads that the router gives it: the
    /// convolutions on several unless the image is small.
    const CHANNELS: usize = 16;
    const EXTENTS: [usize; 6] = [8, 23, 45, 90, 181, 512];
    /// Rows and columns of the matrices that are read from memory.
    const SQUARES: [usize; 5] = [64, 256, 512, 1024, 2048];
    /// A faster transfer is noise.
    const MOST: f64 = 1e12;
    let seconds = |record: &dyn Fn(&mut Batch<'_>) -> Result<TensorId>, read: bool| {
        let mut batch = engine.batch();
        let wanted = record(&mut batch)?;
        batch.on_device(Some(None));
        timed(SECONDS, || if read { batch.run(&[wanted]).map(drop) } else { batch.execute(&[wanted]) })
    };
    let predicted = |op: Op, types: &[TensorType]| {
        let problem = Problem::new(&op, types)?;
        Ok(engine.router.decide(&problem, &engine.on_cpu()).seconds())
    };
    let chain = |steps: usize| {
        let record = |batch: &mut Batch<'_>| {
            let mut y = weights(batch, &[1, 64])?;
            for _ in 0..steps {
                y = batch.softmax(y)?;
            }
            Ok(y)
        };
        seconds(&record, false)
    };
    let (one, many) = (chain(1)?, chain(1 + STEPS)?);
    let step = (many - one) / STEPS as f64;
    let own = predicted(Softmax.into(), &[TensorType::f32(Shape::new(&[1, 64])?)])?;
    // The fixed cost of a graph is part of every time.
    let graph = (one - step).max(0.0);
    let (mut handover, mut read) = (Vec::with_capacity(SIZES.len()), Vec::with_capacity(SIZES.len()));
    for n in SIZES {
        let sum = Op::from(Reduce::all(Reduction::Sum));
        let gelu = |batch: &mut Batch<'_>| {
            let x = weights(batch, &[n])?;
            batch.gelu(x)
        };
        let (first, copied) = (seconds(&gelu, false)?, seconds(&gelu, true)?);
        let second = |batch: &mut Batch<'_>| {
            let x = weights(batch, &[n])?;
            batch.record(sum, &[x])
        };
        let both = |batch: &mut Batch<'_>| {
            let y = gelu(batch)?;
            batch.record(sum, &[y])
        };
        let (second, both) = (seconds(&second, false)?, seconds(&both, false)?);
        handover.push((4 * n as u64, (both - first - second + graph).max(1e-9)));
        read.push((4 * n as u64, (copied - first).max(1e-9)));
    }
    let step = (step - own).max(0.0);
    let mut spread = Vec::with_capacity(EXTENTS.len());
    for extent in EXTENTS {
        let same = Convolve2d { padding: Padding::Same, ..Convolve2d::default() };
        let of = |convolutions: usize, functions: usize| {
            let record = move |batch: &mut Batch<'_>| {
                let kernels = weights(batch, &[CHANNELS, CHANNELS, 3, 3])?;
                let mut x = weights(batch, &[CHANNELS, extent, extent])?;
                for number in 0..convolutions.max(functions) {
                    if number < convolutions {
                        x = batch.record(same, &[x, kernels])?;
                    }
                    if number < functions {
                        x = batch.relu(x)?;
                    }
                }
                Ok(x)
            };
            seconds(&record, false)
        };
        // A pair of steps behind another pair reads twice what the step before wrote.
        let twice = of(2, 2)? - of(1, 1)? - (of(1, 0)? - graph) - (of(0, 1)? - graph);
        spread.push((4 * (CHANNELS * extent * extent) as u64, (0.5 * twice).max(1e-9)));
    }
    let mut cold = Vec::with_capacity(SQUARES.len());
    for n in SQUARES {
        let bytes = 4 * (n * n) as u64;
        let matrices = (GraphsOnHost::BEYOND_CACHES / bytes) as usize;
        let products = |batch: &mut Batch<'_>| {
            let mut y = weights(batch, &[1, n])?;
            for _ in 0..matrices {
                let w = weights(batch, &[n, n])?;
                y = batch.matmul(y, w)?;
            }
            Ok(y)
        };
        let [row, matrix] = [&[1, n], &[n, n]].map(|dims| Shape::new(dims).map(TensorType::f32));
        let own = predicted(Matmul::default().into(), &[row?, matrix?])?;
        let each = (seconds(&products, false)? - graph) / matrices as f64;
        cold.push((bytes, (each - own - step).max(1e-9)));
    }
    let curve = |points| Transfer::measured(points).at_most(MOST);
    let [handover, spread, cold, read] = [handover, spread, cold, read].map(curve);
    Ok((step, GraphsOnHost { graph, handover, spread: Some(spread), cold, read }))
}

fn row(engine: &Engine, batch: &mut Batch<'_>, recorded: Recorded, seconds: f64) -> Result<GraphRow> {
    let Recorded { name, resident, input, wanted } = recorded;
    let devices: Vec<Option<usize>> = std::iter::once(None).chain((0..engine.gpus.len()).map(Some)).collect();
    let run = |batch: &mut Batch<'_>| {
        if let Some((id, data)) = &input {
            batch.set(*id, data)?;
        }
        batch.run(&[wanted]).map(drop)
    };
    let mut least = vec![f64::INFINITY; devices.len() + 1];
    // Two runs make everything resident first, so that the plan is that of the steady state.
    for _ in 0..2 {
        for (least, on) in least.iter_mut().zip(devices.iter().copied().map(Some).chain([None])) {
            batch.on_device(on);
            match timed(seconds, || run(batch)) {
                Ok(seconds) => *least = least.min(seconds),
                // A device never runs what it refuses.
                Err(Error::Limit { .. } | Error::OutOfMemory { .. } | Error::Unsupported { .. }) => {}
                Err(error) => return Err(error),
            }
        }
    }
    batch.on_device(None);
    if let Some((id, data)) = &input {
        batch.set(*id, data)?;
    }
    let place_of = |device: &Option<usize>| device.map(|gpu| engine.cpu.len() + gpu);
    let predicted = |device: &Option<usize>| {
        let all = 0..engine.places().len();
        let others = all.filter(|&place| match place_of(device) {
            Some(gpu) => place != gpu,
            None => place >= engine.cpu.len(),
        });
        batch.predicted(&[wanted], &others.collect::<Vec<_>>()).map(|(seconds, ..)| seconds)
    };
    let predicted = devices.iter().map(predicted).collect::<Result<_>>()?;
    let (planned_predicted, segments, place) = batch.predicted(&[wanted], &[])?;
    let planned = least.pop().unwrap_or(f64::INFINITY);
    let first = engine.gpu_position(place).map_or(0, |gpu| gpu + 1);
    Ok(GraphRow { graph: name, resident, seconds: least, predicted, planned, planned_predicted, segments, first })
}

/// The minimum time of a few runs. The second may still include uploads of what the first made resident.
fn timed(seconds: f64, run: impl FnMut() -> Result<()>) -> Result<f64> {
    Runs { untimed: 2, most: 30, enough: seconds, long: f64::INFINITY }.least(run)
}
