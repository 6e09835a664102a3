//! How many kernels kiln writes in a second: `cargo run --release --example bench_kernel_gen`. No GPU and no driver.
//!
//! One thread writes each kernel again and again, from its configuration to the finished text, which is looked at each time.

use std::process::ExitCode;
use std::time::{Duration, Instant};

use kiln::graph::Fetch;
use kiln::op::{Elementwise, Matmul};
use kiln::{QuantFormat, Result};
use kiln_ptx::kernels::elementwise::Chain;
use kiln_ptx::kernels::gemm::{Epilogue, Gemm, Tile, WarpGroupGemm, WarpGroupTile};
use kiln_ptx::kernels::quant::QuantMatmul;
use kiln_ptx::kernels::softmax::Softmax;
use kiln_ptx::{Kernel, PtxKernel, PtxModule, PtxType, Target};

/// How long each kernel is written.
const SPAN: Duration = Duration::from_millis(200);

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
    let kernels: Vec<(&str, Box<dyn Kernel>)> = vec![
        ("add, element-wise", Box::new(Chain::of(&Elementwise::add(), &[Fetch::Whole; 2], Target::Sm80)?)),
        ("gelu, element-wise", Box::new(Chain::of(&Elementwise::gelu(), &[Fetch::Whole], Target::Sm80)?)),
        ("softmax of 4096", Box::new(Softmax::new(4096, false, Target::Sm80))),
        ("Q4_K matvec", Box::new(QuantMatmul::new(QuantFormat::Q4K, 1))),
        ("f32 product", Box::new(Gemm::new(Matmul::default(), Tile::LARGE))),
        (
            "f16 product, wgmma",
            Box::new(WarpGroupGemm::new(Matmul::default(), [PtxType::F16, PtxType::F32], tile, Epilogue::PLAIN)?),
        ),
    ];
    println!("{:20} {:>14} {:>12} {:>9} {:>12}", "kernel", "texts/s", "lines", "MB/s", "ns a line");
    let written = |name: &str, write: &dyn Fn() -> String| {
        let first = write();
        assert!(first.starts_with(".version "), "{name} is PTX");
        let (start, mut texts) = (Instant::now(), 0u32);
        while start.elapsed() < SPAN {
            assert_eq!(write().len(), first.len(), "{name} is the same text each time");
            texts += 1;
        }
        let rate = f64::from(texts) / start.elapsed().as_secs_f64();
        let lines = first.lines().count();
        let megabytes = rate * first.len() as f64 * 1e-6;
        println!("{name:20} {rate:>14.0} {lines:>12} {megabytes:>9.0} {:>12.1}", 1e9 / rate / lines as f64);
    };
    written("axpy, by hand", &|| PtxModule::from(axpy()).to_string());
    for (name, kernel) in &kernels {
        written(name, &|| kernel.emit_ptx());
    }
    println!("every text was PTX and the same each time");
    Ok(())
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
