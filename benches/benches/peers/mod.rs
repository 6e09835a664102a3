//! The peers: libraries that a user could use instead, called on the same data, limited to the same threads.

#![allow(dead_code)] // each bench takes the peers that answer its question

pub(crate) mod foreign;
pub(crate) mod onednn;

use std::path::{Path, PathBuf};
use std::process::Command;

use faer::{Accum, MatMut, MatRef, Par};
use kiln_benches::Suite;
use rten_gemm::{GemmExecutor, GemmInputA, GemmInputB, GemmOptions};
use rten_tensor::NdTensorView;

use foreign::Library;
use onednn::OneDnn;

/// Intel's library, or the reason why it is missing.
pub(crate) fn mkl(suite: &Suite) -> Option<&'static Library> {
    let names = ["libmkl_rt.so.3", "libmkl_rt.so.2", "libmkl_rt.so"];
    present(suite, "mkl", "KILN_MKL", &names, "/opt/intel/oneapi/mkl/latest/lib", |place| {
        Library::open("mkl", place, suite.threads())
    })
}

/// OpenBLAS, or the reason why it is missing.
pub(crate) fn openblas(suite: &Suite) -> Option<&'static Library> {
    let names = ["libscipy_openblas.so", "libopenblas.so.0", "libopenblas.so"];
    present(suite, "openblas", "KILN_OPENBLAS", &names, "/usr/lib/x86_64-linux-gnu", |place| {
        Library::open("openblas", place, suite.threads())
    })
}

/// oneDNN, or the reason why it is missing.
pub(crate) fn onednn(suite: &Suite) -> Option<&'static OneDnn> {
    present(suite, "onednn", "KILN_ONEDNN", &["libdnnl.so.3"], "/usr/lib/x86_64-linux-gnu", OneDnn::open)
}

/// Opens the first library of a name that loads; if none does, returns the error of each.
fn present<L>(
    suite: &Suite,
    name: &str,
    variable: &str,
    files: &[&str],
    usual: &str,
    open: impl Fn(&Path) -> Result<L, String>,
) -> Option<&'static L> {
    let mut places = Vec::new();
    if let Some(path) = std::env::var_os(variable).filter(|path| !path.is_empty()) {
        places.push(PathBuf::from(path));
    } else {
        for directory in python_directories().into_iter().chain([PathBuf::from(usual), PathBuf::new()]) {
            places.extend(files.iter().map(|f| directory.join(f)));
        }
        // A bare name is left to the search path of the loader; a full one must exist.
        places.retain(|p| p.is_relative() || p.exists());
    }
    let mut reasons = Vec::new();
    for place in &places {
        match open(place) {
            Ok(library) => return Some(Box::leak(Box::new(library))),
            Err(reason) => reasons.push(reason),
        }
    }
    suite
        .absent(name, &format!("{} (set {variable} to its path)", reasons.first().map_or("not found", String::as_str)));
    None
}

/// The folders in which `pip install mkl scipy-openblas32 onednn-cpu-gomp` installs libraries.
fn python_directories() -> Vec<PathBuf> {
    const ASK: &str = "import sysconfig as s; print(s.get_config_var('prefix')); print(s.get_path('purelib'))";
    let output = Command::new("python3").args(["-c", ASK]).output();
    let text = output.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    text.lines()
        .flat_map(|l| [PathBuf::from(l).join("lib"), PathBuf::from(l).join("scipy_openblas32/lib")])
        .filter(|p| p.is_dir())
        .collect()
}

/// A row-major matrix product `C = A B`; `bt` says that B is stored as `n * k`.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Product {
    pub m: usize,
    pub k: usize,
    pub n: usize,
    pub bt: bool,
}

/// The product by faer.
pub(crate) fn faer(p: Product, a: &[f32], b: &[f32], c: &mut [f32], threads: usize) {
    let a = MatRef::from_row_major_slice(a, p.m, p.k);
    let b = if p.bt { MatRef::from_column_major_slice(b, p.k, p.n) } else { MatRef::from_row_major_slice(b, p.k, p.n) };
    let c = MatMut::from_row_major_slice_mut(c, p.m, p.n);
    let par = if threads == 1 { Par::Seq } else { Par::rayon(threads) };
    faer::linalg::matmul::matmul(c, Accum::Replace, a, b, 1.0f32, par);
}

/// The product by rten, which threads through rayon on its own.
pub(crate) fn rten(executor: &GemmExecutor<f32>, p: Product, a: &[f32], b: &[f32], c: &mut [f32]) {
    let a = NdTensorView::from_data([p.m, p.k], a);
    let b =
        if p.bt { NdTensorView::from_data([p.n, p.k], b).transposed() } else { NdTensorView::from_data([p.k, p.n], b) };
    let done = executor.gemm(c, GemmInputA::Unpacked(a), GemmInputB::Unpacked(b), GemmOptions::default());
    assert!(done.is_ok(), "rten refuses {p:?}");
}

/// The product by trueno, which allocates its result. Its operands are vectors of its own, made beforehand.
pub(crate) struct Trueno(trueno::Matrix<f32>, trueno::Matrix<f32>);

impl Trueno {
    pub(crate) fn new(p: Product, a: &[f32], b: &[f32]) -> Option<Self> {
        if p.bt {
            return None;
        }
        Some(Self(trueno::Matrix::from_slice(p.m, p.k, a).ok()?, trueno::Matrix::from_slice(p.k, p.n, b).ok()?))
    }

    pub(crate) fn run(&self) {
        std::hint::black_box(self.0.matmul(&self.1).ok());
    }
}
