//! The number of kernels that kiln writes in a second, without a GPU or a driver:
//! `cargo run --release -p kiln-ptx --example bench_kernel_gen`.
//!
//! One thread writes each kernel again and again, from its configuration to the finished text, which is looked at each time.
//! A rate is the median of many short samples; beside it is the rate at which the finished text can be copied.

use std::hint::black_box;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use kiln_ir::graph::Fetch;
use kiln_ir::op::{Elementwise, Matmul};
use kiln_ir::{QuantFormat, Result};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::matmul::{Epilogue, Gemm, NaiveGemm, Tile, TiledGemm, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::quant::QuantMatmul;
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::{Kernel, PtxKernel, PtxType, Target};

/// The duration of a sample.
const SAMPLE: Duration = Duration::from_millis(4);
/// Samples of each kernel.
const SAMPLES: usize = 25;

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("bench_kernel_gen: {error}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    let tile = WarpGroupTile::new(2, 1, 256, 4)?;
    let softmax = Softmax::plan(1, 4096, false, Target::Sm80)?.steps.remove(0).0;
    let kernels: Vec<(&str, Box<dyn Kernel>)> = vec![
        ("add, element-wise", Box::new(Chain::of(&Elementwise::add(), &[Fetch::Whole; 2], Target::Sm80)?)),
        ("gelu, element-wise", Box::new(Chain::of(&Elementwise::gelu(), &[Fetch::Whole], Target::Sm80)?)),
        ("softmax of 4096", Box::new(softmax)),
        ("Q4_K matvec", Box::new(QuantMatmul::new(QuantFormat::Q4K, 1))),
        ("f32 product, naive", Box::new(NaiveGemm)),
        ("f32 product, tiled", Box::new(TiledGemm)),
        ("f32 product, 64x64", Box::new(Gemm::new(Matmul::default(), Tile::SMALL))),
        ("f32 product, 128x128", Box::new(Gemm::new(Matmul::default(), Tile::LARGE))),
        (
            "f16 product, wgmma",
            Box::new(WarpGroupGemm::new(Matmul::default(), [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN)?),
        ),
    ];
    println!("{:20} {:>11} {:>11} {:>9} {:>7} {:>11}", "kernel", "texts/s", "copies/s", "bytes", "lines", "ns a line");
    let written = |name: &str, write: &dyn Fn() -> String| {
        let first = write();
        assert!(first.starts_with(".version "), "{name} is PTX");
        let texts = median_rate(&|| assert_eq!(write().len(), first.len(), "{name} is the same text each time"));
        let copies = median_rate(&|| drop(black_box(first.clone())));
        let (bytes, lines) = (first.len(), first.lines().count());
        println!("{name:20} {texts:>11.0} {copies:>11.0} {bytes:>9} {lines:>7} {:>11.1}", 1e9 / texts / lines as f64);
    };
    written("axpy, by hand", &|| axpy().into_text());
    for (name, kernel) in &kernels {
        written(name, &|| kernel.emit_ptx());
    }
    println!("every text was PTX and the same each time");
    Ok(())
}

/// The number of times in a second that `work` can be done.
fn median_rate(work: &dyn Fn()) -> f64 {
    let sample = |_| {
        let (start, mut times) = (Instant::now(), 0u32);
        while start.elapsed() < SAMPLE {
            (0..16).for_each(|_| work());
            times += 16;
        }
        f64::from(times) / start.elapsed().as_secs_f64()
    };
    let mut rates: Vec<f64> = (0..SAMPLES).map(sample).collect();
    rates.sort_by(f64::total_cmp);
    rates[SAMPLES / 2]
}

/// `y = a x + y`, a thread an element.
fn axpy() -> PtxKernel {
    PtxKernel::new("axpy", [256, 1, 1], |k| {
        let (x, y) = (k.buffer::<f32>("x"), k.buffer::<f32>("y"));
        let (a, n) = (k.parameter::<f32>("a"), k.parameter::<u32>("n"));
        let i = k.ctaid_x() * 256 + k.tid_x();
        k.if_(k.lt(i, n), || {
            let y = y.index(i);
            k.st(y, k.fma(a, k.ld(x.index(i)), k.ld(y)));
        });
    })
}
