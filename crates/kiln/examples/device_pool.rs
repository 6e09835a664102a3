//! Independent batches of several threads on one GPU and on a pool of all:
//! `cargo run --release -p kiln --features cuda,gpu --example device_pool -- 1000 512 2048 8`.
//!
//! The numbers are those of batches, of rows, of columns and of threads (by default 16, 32, 128 and 4). A batch is a perceptron of two
//! layers and a softmax: its weights are on each device, its rows come from the host, and its results go there. Small calls follow,
//! which share submissions. With `--wgpu`, or without a device of CUDA, the devices are those of wgpu; two handles of one adapter if
//! there is one alone, which shows what a pool does, and no speed.

use std::process::ExitCode;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use kiln::graph::TensorId;
use kiln::{Data, DataMut, Error, Operand, Operations, Record, Result, Shape, TensorType};
use kiln_device::{DevicePool, Driver, PoolBatch, PoolTensor};

/// Inputs that the batches take in turn.
const INPUTS: usize = 8;
/// Number of measurements of each pool. Their median is printed.
const ROUNDS: usize = 5;

#[derive(Debug, Clone, Copy)]
struct Sizes {
    batches: usize,
    rows: usize,
    columns: usize,
    threads: usize,
}

fn main() -> ExitCode {
    match sizes().and_then(|(sizes, only_wgpu)| choose(sizes, only_wgpu)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn sizes() -> Result<(Sizes, bool)> {
    let (mut numbers, mut only_wgpu) = (vec![16, 32, 128, 4], false);
    let mut at = 0;
    for argument in std::env::args_os().skip(1) {
        if argument == "--wgpu" {
            only_wgpu = true;
            continue;
        }
        let parsed = argument.to_str().and_then(|text| text.parse().ok()).filter(|&n: &usize| n > 0);
        let (Some(slot), Some(number)) = (numbers.get_mut(at), parsed) else {
            let reason = format!(
                "{} is unexpected: up to four numbers above 0 (batches, rows, columns, threads) and --wgpu",
                argument.display()
            );
            return Err(Error::Parameter { op: "device_pool", reason });
        };
        *slot = number;
        at += 1;
    }
    Ok((Sizes { batches: numbers[0], rows: numbers[1], columns: numbers[2], threads: numbers[3] }, only_wgpu))
}

fn choose(sizes: Sizes, only_wgpu: bool) -> Result<()> {
    #[cfg(feature = "cuda")]
    if !only_wgpu && let Ok(pool) = kiln::cuda::CudaDevicePool::all() {
        return compare(pool.devices().cloned().collect(), sizes);
    }
    _ = only_wgpu;
    use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice, GpuDevice, GpuDevicePool};
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    let devices = match GpuDevicePool::all() {
        Ok(pool) if pool.devices().count() > 1 => pool.devices().cloned().collect(),
        _ => vec![GpuDevice::open(&choice)?, GpuDevice::open(&choice)?],
    };
    compare(devices, sizes)
}

/// Different numbers in -1..1.
fn values(n: usize, seed: usize) -> Vec<f32> {
    (0..n).map(|i| ((i + seed) * 7919 % 2003) as f32 / 1001.0 - 1.0).collect()
}

/// A pool, the weights on it, and how many rows a batch has.
struct Model<D: Driver> {
    pool: DevicePool<D>,
    weights: [PoolTensor<D>; 2],
    rows: TensorType,
}

impl<D: Driver> Model<D> {
    fn new(devices: &[D], sizes: Sizes) -> Result<Self> {
        let pool = DevicePool::of(devices.to_vec())?;
        let n = sizes.columns;
        let upload = |seed: usize| pool.upload(&Operand::f32(&values(n * n, seed), &[n, n])?);
        let weights = [upload(1)?, upload(2)?];
        Ok(Self { pool, weights, rows: TensorType::f32(Shape::new(&[sizes.rows, n])?) })
    }

    /// The batch of a thread, its input and its result.
    fn batch(&self) -> Result<(PoolBatch<D>, TensorId, TensorId)> {
        let mut batch = PoolBatch::new(&self.pool);
        let x = batch.input(self.rows);
        let weights = [batch.import(&self.weights[0])?, batch.import(&self.weights[1])?];
        let y = batch.matmul(x, weights[0])?;
        let y = batch.relu(y)?;
        let y = batch.matmul(y, weights[1])?;
        let y = batch.softmax(y)?;
        batch.prepare(&[y])?;
        Ok((batch, x, y))
    }

    /// Batches a second over all threads, and the result of each input.
    fn run(&self, inputs: &[Vec<f32>], sizes: Sizes) -> Result<(f64, Vec<Vec<f32>>)> {
        let mut threads = (0..sizes.threads).map(|_| self.batch()).collect::<Result<Vec<_>>>()?;
        let elements = self.rows.shape.numel();
        // Every batch runs on every device before the clock does.
        for (batch, x, y) in &mut threads {
            for device in self.pool.devices() {
                // All other devices are lent.
                let lent = self.pool.devices().map(|_| self.pool.least_loaded(u64::MAX >> 8));
                let mut lent = lent.collect::<Result<Vec<_>>>()?;
                lent.retain(|lent| !std::ptr::eq(lent.device(), device));
                for _ in 0..3 {
                    batch.run_with(&[(*x, Data::F32(&inputs[0]))], &[*y])?;
                }
            }
        }
        let next = AtomicUsize::new(0);
        let start = Instant::now();
        let results = std::thread::scope(|scope| {
            let work = |(mut batch, x, y): (PoolBatch<D>, TensorId, TensorId)| {
                let mut results = vec![Vec::new(); INPUTS];
                let mut out = vec![0.0; elements];
                loop {
                    let number = next.fetch_add(1, Ordering::Relaxed);
                    if number >= sizes.batches {
                        return Ok(results);
                    }
                    let input = number % INPUTS;
                    batch.run_with_into(&[(x, Data::F32(&inputs[input]))], &[y], &mut [DataMut::F32(&mut out)])?;
                    if results[input].is_empty() {
                        results[input] = out.clone();
                    }
                }
            };
            let threads: Vec<_> = threads.into_iter().map(|batch| scope.spawn(move || work(batch))).collect();
            let join = |thread: std::thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Result<Vec<Vec<Vec<f32>>>>>()
        })?;
        let rate = sizes.batches as f64 / start.elapsed().as_secs_f64();
        let mut of_inputs = vec![Vec::new(); INPUTS];
        for (input, result) in results.into_iter().flat_map(|results| results.into_iter().enumerate()) {
            if !result.is_empty() {
                assert!(of_inputs[input].is_empty() || of_inputs[input] == result, "input {input} gave two results");
                of_inputs[input] = result;
            }
        }
        Ok((rate, of_inputs))
    }

    /// Small calls a second over all threads, and their submissions.
    fn small(&self, sizes: Sizes) -> Result<(f64, u64)> {
        let calls = 200;
        let submissions = || self.pool.devices().map(|device| device.shared().counters.read().submissions).sum::<u64>();
        let before = submissions();
        let start = Instant::now();
        std::thread::scope(|scope| {
            let work = |thread: usize| {
                let x = [thread as f32; 1000];
                (0..calls).try_for_each(|_| self.pool.softmax(&x, 1000).map(drop))
            };
            let threads: Vec<_> = (0..sizes.threads).map(|thread| scope.spawn(move || work(thread))).collect();
            threads
                .into_iter()
                .try_for_each(|thread| thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
        })?;
        let rate = (calls * sizes.threads) as f64 / start.elapsed().as_secs_f64();
        Ok((rate, submissions() - before))
    }
}

fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

fn compare<D: Driver>(devices: Vec<D>, sizes: Sizes) -> Result<()> {
    let Sizes { batches, rows, columns, threads } = sizes;
    println!("{batches} batches of {rows} x {columns} x {columns}, {threads} threads");
    devices.iter().enumerate().for_each(|(at, device)| println!("device {at}: {}", device.label()));
    let inputs: Vec<Vec<f32>> = (0..INPUTS).map(|seed| values(rows * columns, 10 + seed)).collect();
    let pools = [Model::new(&devices[..1], sizes)?, Model::new(&devices, sizes)?];
    let (mut rates, mut expected) = ([Vec::new(), Vec::new()], None);
    for _ in 0..ROUNDS {
        // In turn, so that both see the same machine.
        for (pool, rates) in pools.iter().zip(&mut rates) {
            let (rate, results) = pool.run(&inputs, sizes)?;
            rates.push(rate);
            let expected = expected.get_or_insert_with(|| results.clone());
            assert!(*expected == results, "the results on one device and on all differ");
        }
    }
    let [one, all] = rates.map(median);
    println!("one device    {one:10.1} batches/s");
    println!("{} devices     {all:10.1} batches/s, {:.2} times one", devices.len(), all / one);
    for (pool, name) in pools.iter().zip(["one device", "all devices"]) {
        pool.small(sizes)?;
        let (rate, submissions) = pool.small(sizes)?;
        println!("softmax of 1000, {name}: {rate:.0} calls/s, {} calls in {submissions} submissions", 200 * threads);
    }
    Ok(())
}
