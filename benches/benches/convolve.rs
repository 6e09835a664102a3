//! How near are convolutions to the peak of arithmetic, and to the matrix product that they amount to?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_core::op::{Convolve2d, Op, Padding};
use kiln_core::{DataMut, Operand};
use peers::{Product, foreign};

/// Channels in, height and width, kernel, stride, channels out.
const CASES: [(usize, usize, usize, usize, usize); 9] = [
    (1, 512, 3, 1, 1),
    (1, 1024, 5, 1, 1),
    (3, 512, 3, 1, 3),
    (64, 56, 3, 1, 64),
    (3, 224, 7, 2, 64),
    (256, 14, 3, 1, 256),
    (256, 56, 1, 1, 64),
    (512, 7, 3, 1, 512),
    (128, 28, 3, 2, 128),
];

/// A picture and kernels; the unrolled picture, one column a result, as the operand of the product; the results.
struct Pictures {
    x: Array,
    w: Array,
    unrolled: Array,
    y: Array,
}

/// The picture under every place of the kernel, with zeros around it: what a convolution by way of a library's matrix
/// product has to write first, which is not timed.
fn unroll(op: Convolve2d, x: &[f32], c: usize, n: usize, k: usize, out: usize, unrolled: &mut [f32]) {
    let before = match op.padding {
        Padding::Valid => 0,
        Padding::Same => ((out - 1) * op.stride.0 + k).saturating_sub(n) / 2,
    };
    for (row, unrolled) in unrolled.chunks_exact_mut(out * out).enumerate() {
        let (channel, p, q) = (row / (k * k), row / k % k, row % k);
        debug_assert!(channel < c);
        for (at, value) in unrolled.iter_mut().enumerate() {
            let (i, j) = (at / out * op.stride.0 + p, at % out * op.stride.1 + q);
            let inside = |v: usize| v.checked_sub(before).filter(|&v| v < n);
            *value = inside(i).zip(inside(j)).map_or(0.0, |(i, j)| x[(channel * n + i) * n + j]);
        }
    }
}

/// The loop that everybody writes first; for one channel without padding.
fn plain_loop(x: &[f32], w: &[f32], n: usize, k: usize, y: &mut [f32]) {
    let out = n - k + 1;
    for (i, row) in y.chunks_exact_mut(out).enumerate() {
        for (j, y) in row.iter_mut().enumerate() {
            *y = (0..k * k).map(|at| w[at] * x[(i + at / k) * n + j + at % k]).sum();
        }
    }
}

fn main() {
    let mut suite = Suite::start("convolve");
    let libraries: Vec<_> = [peers::mkl(&suite), peers::openblas(&suite)].into_iter().flatten().collect();
    for (c_in, n, k, stride, c_out) in CASES {
        let name = format!("{c_in}x{n}x{n} k{k} s{stride} -> {c_out}");
        if !suite.wants(&name) {
            continue;
        }
        let single = c_in == 1 && c_out == 1;
        let padding = if single { Padding::Valid } else { Padding::Same };
        let op = Convolve2d { padding, stride: (stride, stride) };
        let out = if single { n - k + 1 } else { n.div_ceil(stride) };
        let terms = c_in * k * k;
        let (x, w) = (Array::random(c_in * n * n, -1.0, 1.0, 0), Array::random(c_out * terms, -1.0, 1.0, 1));
        let mut unrolled = Array::new(terms * out * out, 0.0, 2);
        unroll(op, &x, c_in, n, k, out, &mut unrolled);
        let trueno = single
            .then(|| (trueno::Matrix::from_slice(n, n, &x).ok(), trueno::Matrix::from_slice(k, k, &w).ok()))
            .and_then(|(x, w)| x.zip(w));
        let mut state = Pictures { x, w, unrolled, y: Array::new(c_out * out * out, 0.0, 3) };
        let (simd, threads) = (suite.simd(), suite.threads());
        let any: Op = op.into();
        let mut contenders = vec![Contender::new("kiln", |s: &mut Pictures| {
            let picture = Operand::f32(&s.x, &[c_in, n, n]);
            let (Ok(x), Ok(w)) = (picture, Operand::f32(&s.w, &[c_out, c_in, k, k])) else { return };
            simd.run_into(&any, &[x, w], &mut [DataMut::F32(&mut s.y)]).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        if single {
            contenders.push(Contender::new("plain loop", |s: &mut Pictures| plain_loop(&s.x, &s.w, n, k, &mut s.y)));
            if let Some((x, w)) = trueno {
                let run = move |_: &mut Pictures| drop(std::hint::black_box(x.convolve2d(&w)));
                contenders.push(Contender::new("trueno", run).approximate());
            }
        } else {
            let p = Product { m: c_out, k: terms, n: out * out, bt: false };
            for &library in &libraries {
                contenders.push(Contender::new(format!("{} gemm", library.name), move |s: &mut Pictures| {
                    library.sgemm(p, &s.w, &s.unrolled, &mut s.y);
                }));
            }
            contenders.push(Contender::new("gemm-v4", move |s: &mut Pictures| {
                foreign::gemm_crate(p, &s.w, &s.unrolled, &mut s.y, threads);
            }));
        }
        let flops = 2.0 * (c_out * out * out * terms) as f64;
        let limit = flops / suite.peak();
        suite.case(&name, Work::Flops(flops), Some(limit), &mut state, |s| &mut s.y, contenders);
    }
}
