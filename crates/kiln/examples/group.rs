//! Several GPUs as one place: a product whose left rows are divided over them, a product whose inner dimension is, and sums over them,
//! beside one GPU: `cargo run --release --features cuda,gpu --example group -- 16384`.
//!
//! The number is the size of the matrices of f16 (256 by default). With two devices of CUDA or more these are the group. Otherwise two
//! handles of one adapter are, whose sums go through the host: that shows what a group computes, and no speed.

use std::process::ExitCode;
use std::time::Instant;

use kiln::op::{AllReduce, Matmul};
use kiln::{Backend, Buffer, Engine, EngineBuilder, Error, Record, Result, Tensor, f16};

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("group: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Settings of one device, of the group, and how many devices it has.
type Choice = (Box<dyn Fn() -> EngineBuilder>, Box<dyn Fn() -> EngineBuilder>, usize);

fn choose() -> Result<Choice> {
    #[cfg(feature = "cuda")]
    if let Ok(devices) = kiln::cuda::CudaDevice::list()
        && devices.len() > 1
    {
        let ordinals: Vec<u32> = devices.iter().map(|device| device.ordinal).collect();
        let (first, count) = (ordinals[0], ordinals.len());
        let one = move || Engine::builder().without_profile().cuda_device(first);
        let group = move || Engine::builder().without_profile().cuda_group(&ordinals);
        return Ok((Box::new(one), Box::new(group), count));
    }
    use kiln::gpu::{ADAPTER_VARIABLE, AdapterChoice};
    let named = std::env::var_os(ADAPTER_VARIABLE).is_some_and(|name| !name.is_empty());
    let choice = if named { AdapterChoice::Best } else { AdapterChoice::Any };
    let twice = [choice.clone(), choice.clone()];
    let one = move || Engine::builder().without_profile().adapter(choice.clone());
    let group = move || Engine::builder().without_profile().adapter_group(&twice);
    Ok((Box::new(one), Box::new(group), 2))
}

/// An engine that sends everything to its GPU.
fn forced(settings: &dyn Fn() -> EngineBuilder) -> Result<Engine> {
    let engine = settings().build()?;
    let gpu = engine.places().iter().find(|place| matches!(place.backend, Backend::Gpu | Backend::Cuda));
    let missing = || Error::Unavailable { what: "a GPU".into(), reason: "this engine runs on the CPU only".into() };
    settings().force(gpu.ok_or_else(missing)?.name.clone()).build()
}

/// Random f16 in -1..1: enough different ones, repeated.
fn matrix(rows: usize, columns: usize, seed: u64) -> Result<Tensor> {
    let mut state = seed;
    let mut next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        f16::from_f32((state >> 40) as f32 / (1u64 << 23) as f32 - 1.0)
    };
    let some: Vec<f16> = (0..1 << 20).map(|_| next()).collect();
    let all = some.iter().copied().cycle().take(rows * columns).collect();
    Tensor::from_buffer(Buffer::F16(all), &[rows, columns])
}

/// `A Bᵀ` on an engine, `sums` times summed over its devices, `repeats` products in one batch: its last element, and the seconds of a
/// product after the first execution.
fn product(engine: &Engine, a: &Tensor, b: &Tensor, is_summed: bool) -> Result<(f32, f64)> {
    let mut batch = engine.batch();
    let (a, b) = (batch.import(a), batch.import(b));
    let mut c = batch.matmul_with(a, b, Matmul { transpose_b: true, ..Matmul::default() })?;
    if is_summed {
        c = batch.record(AllReduce, &[c])?;
    }
    let [rows, columns] = [0, 1].map(|axis| batch.shape(c).map(|shape| shape.dims()[axis]));
    let (rows, columns) = (rows?, columns?);
    let row = batch.slice(c, 0, rows - 1..rows, 1)?;
    let last = batch.slice(row, 1, columns - 1..columns, 1)?;
    let mut seconds = Vec::new();
    for _ in 0..12 {
        let start = Instant::now();
        batch.execute(&[last])?;
        batch.read(last)?;
        seconds.push(start.elapsed().as_secs_f64());
    }
    Ok((batch.read(last)?[0], median(seconds.split_off(2))))
}

/// The seconds of a sum of this many f32 over the devices, one of many in a batch.
fn sum(engine: &Engine, devices: usize, elements: usize, repeats: usize) -> Result<f64> {
    let part = |at: usize| Tensor::from_vec(vec![1.0 / (at + 1) as f32; elements], &[elements]);
    let x = Tensor::from_parts((0..devices).map(part).collect::<Result<_>>()?)?;
    let mut batch = engine.batch();
    let mut y = batch.import(&x);
    for _ in 0..repeats {
        y = batch.record(AllReduce, &[y])?;
    }
    let first = batch.slice(y, 0, 0..1, 1)?;
    let mut seconds = Vec::new();
    for _ in 0..12 {
        let start = Instant::now();
        batch.execute(&[first])?;
        batch.read(first)?;
        seconds.push(start.elapsed().as_secs_f64() / repeats as f64);
    }
    // Equal parts double each time; the first sum is the harmonic one.
    let harmonic: f64 = (1..=devices).map(|n| 1.0 / n as f64).sum();
    let expected = harmonic * (devices as f64).powi(repeats as i32 - 1);
    let found = f64::from(batch.read(first)?[0]);
    assert!((found - expected).abs() <= 1e-5 * expected, "{found}, {expected} is expected");
    Ok(median(seconds.split_off(2)))
}

fn median(mut seconds: Vec<f64>) -> f64 {
    seconds.sort_by(f64::total_cmp);
    seconds[seconds.len() / 2]
}

fn run() -> Result<()> {
    let wrong = |text: &std::ffi::OsStr| Error::Parameter {
        op: "group",
        reason: format!("{} is not a size: a multiple of the number of devices is expected", text.display()),
    };
    let (one, group, devices) = choose()?;
    let n = match std::env::args_os().nth(1) {
        None => 256,
        Some(text) => {
            let parsed = text.to_str().and_then(|text| text.parse::<usize>().ok());
            parsed.filter(|&n| n > 0 && n.is_multiple_of(devices)).ok_or_else(|| wrong(&text))?
        }
    };
    let (one, group) = (forced(&*one)?, forced(&*group)?);
    let name =
        |engine: &Engine| engine.router().forced().map_or(String::new(), |place| engine.places()[place].name.clone());
    println!("one:   {}\ngroup: {}", name(&one), name(&group));

    let (a, b) = (matrix(n, n, 1)?, matrix(n, n, 2)?);
    let flops = 2.0 * (n as f64).powi(3);
    let told = |what: &str, seconds: f64| {
        println!("{what:42} {:10.3} ms  {:7.1} TFLOP/s", seconds * 1e3, flops / seconds / 1e12);
    };
    // Each device computes some rows of the result, and has all of B.
    let rows = |at: usize| a.slice(at * n / devices..(at + 1) * n / devices);
    let rows = Tensor::from_parts((0..devices).map(rows).collect::<Result<_>>()?)?;
    let (_, divided) = product(&group, &rows, &b, false)?;
    // Each has some columns of A and of B, and the sum of their products is the result.
    let columns = |whole: &Tensor| {
        let part = |at: usize| {
            let elements: Vec<f16> = whole.to_elements()?;
            let of_row = |row: &[f16]| row[at * n / devices..(at + 1) * n / devices].to_vec();
            Tensor::from_buffer(Buffer::F16(elements.chunks(n).flat_map(of_row).collect()), &[n, n / devices])
        };
        Tensor::from_parts((0..devices).map(part).collect::<Result<_>>()?)
    };
    let (summed, by_sum) = product(&group, &columns(&a)?, &columns(&b)?, true)?;
    let (whole, alone) = product(&one, &a, &b, false)?;
    told("A Bᵀ on one", alone);
    told("A Bᵀ, rows of A divided", divided);
    println!("{:42} {:10.2} times one", "", alone / divided);
    told("A Bᵀ, columns divided, products summed", by_sum);
    println!("{:42} {:10.2} times one", "", alone / by_sum);
    let bound = 1e-3 * (n as f32).sqrt();
    assert!((summed - whole).abs() <= bound, "{summed} as a sum, {whole} on one device");

    let large = if n >= 4096 { 1 << 28 } else { 1 << 16 };
    for (elements, repeats) in [(4096, 50), (1 << 16, 50), (large, 4)] {
        let seconds = sum(&group, devices, elements, repeats)?;
        // What NCCL calls bus bandwidth: bytes that each device sends and receives, whatever the algorithm.
        let bytes = 2.0 * (devices - 1) as f64 / devices as f64 * 4.0 * elements as f64;
        println!("sum of {:>11} bytes: {:10.1} us, {:6.1} GB/s", 4 * elements, seconds * 1e6, bytes / seconds / 1e9);
    }
    Ok(())
}
