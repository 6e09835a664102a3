//! How fast is the matrix product beside BLAS libraries and the crates that Rust has?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::Operations;
use kiln_ir::op::Matmul;
use peers::{Product, foreign};
use rten_gemm::GemmExecutor;

struct Matrices {
    a: Array,
    b: Array,
    c: Array,
}

const SQUARE: [usize; 10] = [16, 32, 48, 64, 96, 128, 256, 512, 1024, 2048];
const OTHER: [(usize, usize, usize, bool); 8] = [
    (127, 129, 131, false),
    (1000, 1000, 1000, false),
    (1, 4096, 4096, false),
    (1, 4096, 4096, true),
    (8, 4096, 4096, false),
    (8, 4096, 4096, true),
    (512, 4096, 64, false),
    (4096, 64, 512, false),
];

fn main() {
    let mut suite = Suite::start("gemm");
    let (mkl, openblas) = (peers::mkl(&suite), peers::openblas(&suite));
    let rten = GemmExecutor::<f32>::default();
    let mut products: Vec<Product> =
        suite.sizes(&SQUARE).iter().map(|&n| Product { m: n, k: n, n, bt: false }).collect();
    if products.len() == SQUARE.len() {
        products.extend(OTHER.map(|(m, k, n, bt)| Product { m, k, n, bt }));
    }
    for p in products {
        let Product { m, k, n, bt } = p;
        let name = match (m == k && k == n, bt) {
            (true, _) => format!("{n}"),
            (false, false) => format!("{m}x{k}x{n} nn"),
            (false, true) => format!("{m}x{k}x{n} nt"),
        };
        if !suite.wants(&name) {
            continue;
        }
        let (a, b) = (Array::random(m * k, -1.0, 1.0, 0), Array::random(k * n, -1.0, 1.0, 1));
        let trueno = peers::Trueno::new(p, &a, &b);
        let mut state = Matrices { a, b, c: Array::new(m * n, 0.0, 2) };
        let (simd, threads) = (suite.simd(), suite.threads());
        let op = Matmul { transpose_b: bt, ..Matmul::default() };
        let mut contenders = vec![Contender::new("kiln", |s: &mut Matrices| {
            simd.matmul_with_into(&s.a, &s.b, m, k, n, op, &mut s.c).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        for library in [mkl, openblas].into_iter().flatten() {
            contenders.push(Contender::new(library.name, move |s: &mut Matrices| {
                library.sgemm(p, &s.a, &s.b, &mut s.c);
            }));
            if m == 1 {
                contenders.push(Contender::new(format!("{} gemv", library.name), move |s: &mut Matrices| {
                    library.sgemv(p, &s.a, &s.b, &mut s.c);
                }));
            }
        }
        contenders
            .push(Contender::new("gemm-v4", |s: &mut Matrices| foreign::gemm_crate(p, &s.a, &s.b, &mut s.c, threads)));
        contenders.push(Contender::new("faer", |s: &mut Matrices| peers::faer(p, &s.a, &s.b, &mut s.c, threads)));
        contenders
            .push(Contender::new("matrixmult", |s: &mut Matrices| foreign::matrixmultiply(p, &s.a, &s.b, &mut s.c)));
        contenders.push(Contender::new("rten", |s: &mut Matrices| peers::rten(&rten, p, &s.a, &s.b, &mut s.c)));
        if let Some(trueno) = trueno {
            contenders.push(Contender::new("trueno", move |_: &mut Matrices| trueno.run()).approximate());
        }
        // Arithmetic at its peak, or B read once from its cache or memory.
        let flops = 2.0 * m as f64 * k as f64 * n as f64;
        let mut limit = flops / suite.peak();
        if m < 16 {
            limit = f64::max(limit, 4.0 * (k * n) as f64 / suite.bandwidth(kiln_simd::ceilings::Pass::Read, k * n));
        }
        suite.case(&name, Work::Flops(flops), Some(limit), &mut state, |s| &mut s.c, contenders);
    }
}
