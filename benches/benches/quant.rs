//! Do products with quantised weights run at the rate at which the packed weights can be read?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::op::{Dequantize, QuantMatmul};
use kiln_ir::{DataMut, Operand, Operations, Precision, QuantFormat};
use kiln_simd::ceilings::Pass;
use peers::Product;
use trueno::backends::{q4k, q6k};

struct State {
    x: Array,
    weights: Vec<u8>,
    out: Array,
}

const K: usize = 4096;
const N: usize = 4096;

/// Quantised rows: a few that were fitted, repeated until there are enough.
fn weights(format: QuantFormat) -> Vec<u8> {
    const FITTED: usize = 32;
    let mut rows = vec![0; format.block_bytes() * FITTED * K / format.block_len()];
    let fitted = format.encode(&kiln_benches::random(FITTED * K, -1.0, 1.0, 7), &mut rows);
    fitted.unwrap_or_else(|e| eprintln!("{e}"));
    rows.repeat(N / FITTED)
}

fn main() {
    let mut suite = Suite::start("quant");
    let mkl = peers::mkl(&suite);
    suite.absent("llama.cpp", "it is a program, not a library with a stable interface");
    for format in QuantFormat::ALL {
        let [contract, int8] = [Precision::Contract, Precision::Int8].map(|p| [1, 8, 64].map(|m| (m, p)));
        for (m, precision) in contract.into_iter().chain(int8) {
            let name = match precision {
                Precision::Contract => format!("{} {m}x{K}x{N}", format.name()),
                lower => format!("{} {m}x{K}x{N} {lower}", format.name()),
            };
            if !suite.wants(&name) {
                continue;
            }
            let mut state = State {
                x: Array::random(m * K, -1.0, 1.0, 0),
                weights: weights(format),
                out: Array::new(m * N, 0.0, 1),
            };
            let simd = suite.simd().with_precision(precision);
            let op = QuantMatmul { format }.into();
            let mut contenders = vec![Contender::new("kiln", move |s: &mut State| {
                let (x, w) = (Operand::f32(&s.x, &[m, K]), Operand::blocks(&s.weights, &[N, K], format));
                let (Ok(x), Ok(w)) = (x, w) else { return };
                let out = &mut [DataMut::F32(&mut s.out)];
                simd.run_into(&op, &[x, w], out).unwrap_or_else(|e| eprintln!("{e}"));
            })];
            let trueno = match format {
                QuantFormat::Q4K => Some(q4k::matmul_q4k_f32_dispatch as fn(&[u8], &[f32], usize, usize) -> Vec<f32>),
                QuantFormat::Q6K => Some(q6k::matmul_q6k_f32_dispatch as fn(&[u8], &[f32], usize, usize) -> Vec<f32>),
                _ => None,
            };
            if let Some(product) = trueno.filter(|_| m == 1) {
                contenders.push(Contender::new("trueno", move |s: &mut State| {
                    let y = product(&s.weights, &s.x, N, K);
                    s.out.copy_from_slice(&y);
                }));
            }
            if let Some(mkl) = mkl {
                // The cost of the same product without quantisation.
                let (full, p) = (Array::random(N * K, -1.0, 1.0, 2), Product { m, k: K, n: N, bt: true });
                let run = move |s: &mut State| match m {
                    1 => mkl.sgemv(p, &s.x, &full, &mut s.out),
                    _ => mkl.sgemm(p, &s.x, &full, &mut s.out),
                };
                contenders.push(Contender::new("mkl in f32", run).approximate());
            }
            let bytes = state.weights.len();
            let limit = bytes as f64 / suite.bandwidth(Pass::Read, bytes / 4);
            suite.case(&name, Work::Bytes(bytes as f64), Some(limit), &mut state, |s| &mut s.out, contenders);
        }
        let name = format!("dequantize {}", format.name());
        if !suite.wants(&name) {
            continue;
        }
        let n = N * K;
        let mut state = State { x: Array::new(0, 0.0, 0), weights: weights(format), out: Array::new(n, 0.0, 1) };
        let simd = suite.simd();
        let op = Dequantize { format }.into();
        let mut contenders = vec![Contender::new("kiln", move |s: &mut State| {
            let Ok(w) = Operand::blocks(&s.weights, &[N, K], format) else { return };
            let out = &mut [DataMut::F32(&mut s.out)];
            simd.run_into(&op, &[w], out).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        if format == QuantFormat::Q4K {
            contenders.push(Contender::new("trueno", move |s: &mut State| {
                s.out.copy_from_slice(&q4k::dequantize_q4k_to_f32(&s.weights, n));
            }));
        }
        let bytes = (state.weights.len() + 4 * n) as f64;
        let limit = bytes / suite.bandwidth(Pass::Copy, n / 2);
        suite.case(&name, Work::Bytes(bytes), Some(limit), &mut state, |s| &mut s.out, contenders);
    }
}
