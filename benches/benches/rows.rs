//! How fast are the operations on rows, and the transpose, beside vector libraries and BLAS?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::op::{LayerNorm, LogSoftmax, Op, RmsNorm, Softmax};
use kiln_ir::{DataMut, Operand, Operations};
use kiln_simd::ceilings::Pass;
use peers::foreign::to_be_filled;
use rten_simd::SimdOp;
use trueno::Vector;

struct State {
    x: Array,
    gamma: Array,
    beta: Array,
    out: Array,
}

const EPS: f32 = 1e-5;

/// The peers of one operation on rows of `n`.
fn peers_of(name: &str, n: usize, rows: usize) -> Vec<Contender<'static, State>> {
    let by_row = |name: &str, f: fn(&[f32], &mut [f32], &State) -> bool| {
        Contender::new(name, move |s: &mut State| {
            let mut out = std::mem::replace(&mut s.out, Array::new(0, 0.0, 0));
            let rows = s.x.chunks_exact(n).zip(out.chunks_exact_mut(n));
            let done = rows.fold(true, |done, (x, out)| f(x, out, s) && done);
            s.out = out;
            assert!(done, "a peer refused a row");
        })
    };
    match name {
        "softmax" => {
            let mut peers = vec![
                Contender::new("rten", move |s: &mut State| {
                    for (x, out) in s.x.chunks_exact(n).zip(s.out.chunks_exact_mut(n)) {
                        rten_vecmath::Softmax::new(x, to_be_filled(out)).dispatch();
                    }
                }),
                Contender::new("plain loop", move |s: &mut State| {
                    for (x, out) in s.x.chunks_exact(n).zip(s.out.chunks_exact_mut(n)) {
                        let max = x.iter().copied().fold(f32::NEG_INFINITY, f32::max);
                        out.iter_mut().zip(x).for_each(|(o, x)| *o = (x - max).exp());
                        let sum: f32 = out.iter().sum();
                        out.iter_mut().for_each(|o| *o /= sum);
                    }
                }),
            ];
            if rows == 1 {
                let mut vector = None;
                let trueno = Contender::new("trueno", move |s: &mut State| {
                    let vector = vector.get_or_insert_with(|| Vector::from_slice(&s.x));
                    std::hint::black_box(vector.softmax().ok());
                });
                peers.push(trueno.approximate());
            }
            peers
        }
        "log_softmax" => vec![Contender::new("rten", move |s: &mut State| {
            for (x, out) in s.x.chunks_exact(n).zip(s.out.chunks_exact_mut(n)) {
                rten_vecmath::LogSoftmax::new(x, to_be_filled(out)).dispatch();
            }
        })],
        "layer_norm" => vec![
            by_row("trueno", |x, out, s| trueno::blis::norms::layer_norm(x, &s.gamma, &s.beta, EPS, out).is_ok()),
            Contender::new("plain loop", move |s: &mut State| {
                for (x, out) in s.x.chunks_exact(n).zip(s.out.chunks_exact_mut(n)) {
                    let mean = x.iter().sum::<f32>() / n as f32;
                    let variance = x.iter().map(|x| (x - mean) * (x - mean)).sum::<f32>() / n as f32;
                    let scale = 1.0 / (variance + EPS).sqrt();
                    let constants = s.gamma.iter().zip(&*s.beta);
                    out.iter_mut().zip(x).zip(constants).for_each(|((o, x), (g, b))| *o = (x - mean) * scale * g + b);
                }
            }),
        ],
        "rms_norm" => vec![
            by_row("trueno", |x, out, s| trueno::blis::norms::rms_norm(x, &s.gamma, EPS, out).is_ok()),
            Contender::new("plain loop", move |s: &mut State| {
                for (x, out) in s.x.chunks_exact(n).zip(s.out.chunks_exact_mut(n)) {
                    let scale = 1.0 / (x.iter().map(|x| x * x).sum::<f32>() / n as f32 + EPS).sqrt();
                    out.iter_mut().zip(x).zip(&*s.gamma).for_each(|((o, x), g)| *o = x * scale * g);
                }
            }),
        ],
        _ => Vec::new(),
    }
}

fn kiln(suite: &Suite, op: Op, dims: [usize; 2], operands: usize) -> Contender<'static, State> {
    let simd = suite.simd();
    Contender::new("kiln", move |s: &mut State| {
        let constants = [dims[1]];
        let mut run = || -> kiln_ir::Result<()> {
            let (gamma, beta) = (Operand::f32(&s.gamma, &constants)?, Operand::f32(&s.beta, &constants)?);
            let inputs = [Operand::f32(&s.x, &dims)?, gamma, beta];
            simd.run_into(&op, &inputs[..operands], &mut [DataMut::F32(&mut s.out)])
        };
        run().unwrap_or_else(|e| eprintln!("{e}"));
    })
}

fn state(rows: usize, n: usize) -> State {
    State {
        x: Array::random(rows * n, -6.0, 6.0, 0),
        gamma: Array::random(n, 0.5, 1.5, 1),
        beta: Array::random(n, -1.0, 1.0, 2),
        out: Array::new(rows * n, 0.0, 3),
    }
}

fn main() {
    let mut suite = Suite::start("rows");
    let libraries = [peers::mkl(&suite), peers::openblas(&suite)];
    let ops: [(Op, usize); 4] =
        [(Softmax.into(), 1), (LogSoftmax.into(), 1), (LayerNorm::new(EPS).into(), 3), (RmsNorm::new(EPS).into(), 2)];
    for (op, operands) in ops {
        for (rows, n) in [(1, 10_000), (1, 1_000_000), (64, 1024), (512, 4096), (1000, 100)] {
            let name = format!("{} {rows}x{n}", op.name());
            if !suite.wants(&name) {
                continue;
            }
            let mut contenders = vec![kiln(&suite, op, [rows, n], operands)];
            contenders.extend(peers_of(op.name(), n, rows));
            let elements = (rows * n) as f64;
            let limit = 8.0 * elements / suite.bandwidth(Pass::Copy, rows * n);
            let work = Work::Elements(elements);
            suite.case(&name, work, Some(limit), &mut state(rows, n), |s| &mut s.out, contenders);
        }
    }
    for n in suite.sizes(&[64, 256, 512, 1024, 2048, 4096]) {
        let name = format!("transpose {n}");
        if !suite.wants(&name) {
            continue;
        }
        let simd = suite.simd();
        let mut contenders = vec![Contender::new("kiln", move |s: &mut State| {
            simd.transpose_into(&s.x, n, n, &mut s.out).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        for library in libraries.iter().flatten() {
            if let Some(run) = library.transpose() {
                contenders.push(Contender::new(library.name, move |s: &mut State| run(n, n, &s.x, &mut s.out)));
            }
        }
        contenders.push(Contender::new("trueno", move |s: &mut State| {
            let done = trueno::blis::transpose::transpose(n, n, &s.x, &mut s.out);
            assert!(done.is_ok(), "trueno refuses to transpose {n}");
        }));
        contenders.push(Contender::new("ndarray", move |s: &mut State| {
            let x = ndarray::ArrayView2::from_shape((n, n), &s.x);
            let out = ndarray::ArrayViewMut2::from_shape((n, n), &mut s.out);
            if let (Ok(x), Ok(mut out)) = (x, out) {
                out.assign(&x.t());
            }
        }));
        let bytes = 8.0 * (n * n) as f64;
        let limit = bytes / suite.bandwidth(Pass::Copy, n * n);
        suite.case(&name, Work::Bytes(bytes), Some(limit), &mut state(n, n), |s| &mut s.out, contenders);
    }
}
