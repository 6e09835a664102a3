//! How fast is convolution, of one channel beside the loops of others, of many beside oneDNN and a product of the same size?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::op::{Convolve2d, Padding};
use kiln_ir::{DataMut, Operand, Operations};
use peers::onednn::{Layout, Shape};
use peers::{Product, foreign};

struct State {
    picture: Array,
    kernel: Array,
    out: Array,
    /// The unfolded image, for the products that replace a convolution.
    columns: Array,
}

/// Input and output channels, extent of the square image and of the kernel, stride.
const CASES: [(usize, usize, usize, usize, usize); 10] = [
    (1, 1, 512, 3, 1),
    (1, 1, 1024, 5, 1),
    (64, 64, 56, 3, 1),
    (3, 64, 224, 7, 2),
    (256, 256, 14, 3, 1),
    (256, 64, 56, 1, 1),
    (32, 32, 112, 3, 1),
    (3, 3, 512, 3, 1),
    (512, 512, 7, 3, 1),
    (128, 128, 28, 3, 2),
];

fn main() {
    let mut suite = Suite::start("conv");
    let mkl = peers::mkl(&suite);
    let onednn = peers::onednn(&suite);
    // Kernels in their own order, or packed once where packing changes it, as oneDNN has them in every case.
    let cases = CASES.iter().flat_map(|&case| [false, true].map(|packed| (case, packed)));
    for ((c_in, c_out, extent, k, stride), packed) in cases {
        let name = format!("{c_in}->{c_out} {extent}x{extent} k{k}s{stride}{}", if packed { " packed" } else { "" });
        if !suite.wants(&name) || packed && (c_out < 96 || k == 1) {
            continue;
        }
        let single = c_in * c_out == 1;
        let padding = if single { Padding::Valid } else { Padding::Same };
        let along = if single { extent - k + 1 } else { extent.div_ceil(stride) };
        let outputs = along * along;
        let mut state = State {
            picture: Array::random(c_in * extent * extent, -1.0, 1.0, 0),
            kernel: Array::random(c_out * c_in * k * k, -1.0, 1.0, 1),
            out: Array::new(c_out * outputs, 0.0, 2),
            columns: Array::random(if single { 0 } else { c_in * k * k * outputs }, -1.0, 1.0, 3),
        };
        let (simd, threads) = (suite.simd(), suite.threads());
        let convolve = Convolve2d { padding, stride: (stride, stride), ..Convolve2d::default() };
        let op = convolve.into();
        let kernels = match packed.then(|| simd.pack_kernels(&state.kernel, [c_out, c_in, k, k])).transpose() {
            Ok(kernels) => kernels,
            Err(e) => return eprintln!("{e}"),
        };
        let mut contenders = vec![Contender::new("kiln", move |s: &mut State| {
            if let Some(kernels) = &kernels {
                let (dims, picture) = ([c_in, extent, extent], &s.picture);
                let done = simd.convolve2d_packed_into(picture, &dims, kernels, convolve, &mut s.out);
                return done.unwrap_or_else(|e| eprintln!("{e}"));
            }
            let (picture, kernel) = if single {
                (Operand::f32(&s.picture, &[extent, extent]), Operand::f32(&s.kernel, &[k, k]))
            } else {
                let picture = Operand::f32(&s.picture, &[c_in, extent, extent]);
                (picture, Operand::f32(&s.kernel, &[c_out, c_in, k, k]))
            };
            let (Ok(picture), Ok(kernel)) = (picture, kernel) else { return };
            let out = &mut [DataMut::F32(&mut s.out)];
            simd.run_into(&op, &[picture, kernel], out).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        if single {
            contenders.push(Contender::new("plain loop", move |s: &mut State| {
                for (i, row) in s.out.chunks_exact_mut(along).enumerate() {
                    row.fill(0.0);
                    for (p, weights) in s.kernel.chunks_exact(k).enumerate() {
                        for (r, w) in weights.iter().enumerate() {
                            let from = &s.picture[(i + p) * extent + r..][..along];
                            row.iter_mut().zip(from).for_each(|(o, x)| *o += w * x);
                        }
                    }
                }
            }));
            let matrices = trueno::Matrix::from_slice(extent, extent, &state.picture)
                .and_then(|picture| Ok((picture, trueno::Matrix::from_slice(k, k, &state.kernel)?)));
            match matrices {
                Ok((picture, kernel)) => {
                    let run = move |_: &mut State| _ = std::hint::black_box(picture.convolve2d(&kernel).ok());
                    contenders.push(Contender::new("trueno", run).approximate());
                }
                Err(e) => suite.absent("trueno", &e.to_string()),
            }
        } else {
            if let Some(library) = onednn {
                let shape = Shape { c_in, c_out, extent, kernel: k, stride };
                for (name, layout) in [("onednn", Layout::Planes), ("onednn nhwc", Layout::Pixels)] {
                    match library.convolution(shape, layout, &state.kernel) {
                        Ok(convolution) => {
                            let run = move |s: &mut State| {
                                convolution.run(&s.picture, &mut s.out).unwrap_or_else(|e| eprintln!("{e}"));
                            };
                            let contender = Contender::new(name, run);
                            // The result by pixels is another image, for the same amount of work.
                            let planes = matches!(layout, Layout::Planes);
                            contenders.push(if planes { contender } else { contender.approximate() });
                        }
                        Err(e) => suite.absent(name, &e),
                    }
                }
            }
            // The product of an unfolded image, without the unfolding: a bound for a library that reaches the peak of
            // its matrix product this way.
            let p = Product { m: c_out, k: c_in * k * k, n: outputs, bt: false };
            if let Some(mkl) = mkl {
                let run = move |s: &mut State| mkl.sgemm(p, &s.kernel, &s.columns, &mut s.out);
                contenders.push(Contender::new("mkl product", run).approximate());
            }
            let run = move |s: &mut State| foreign::gemm_crate(p, &s.kernel, &s.columns, &mut s.out, threads);
            contenders.push(Contender::new("gemm product", run).approximate());
        }
        let flops = 2.0 * (c_out * c_in * k * k * outputs) as f64;
        let limit = flops / suite.peak();
        suite.case(&name, Work::Flops(flops), Some(limit), &mut state, |s| &mut s.out, contenders);
    }
}
