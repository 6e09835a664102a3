//! How fast is attention beside what it amounts to: a product, the softmax of its rows, and a product?
//!
//! No peer has the operation with heads, so each is put together as a careful user would: one product for all queries that
//! share a head of keys, the scale given to the product, the softmax in place. The case names are query heads, heads of
//! keys, queries, keys, and elements of each.

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::op::Attention;
use kiln_ir::{DataMut, Operand, Operations};
use kiln_simd::ceilings::Pass;
use peers::{Product, foreign};
use rten_simd::SimdOp;
use trueno::blis::attention::fused_attention_decode;

struct State {
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    /// The scores of one head of keys, if a peer stores them by head.
    scores: Array,
}

#[derive(Clone, Copy)]
struct Extents {
    heads: usize,
    kv_heads: usize,
    s: usize,
    t: usize,
    d: usize,
}

impl Extents {
    /// Rows of queries that share a head of keys.
    fn rows(self) -> usize {
        self.heads / self.kv_heads * self.s
    }

    /// Attention by two products of a peer, and rten's softmax.
    fn composed(self, s: &mut State, product: impl Fn(Product, f32, &[f32], &[f32], &mut [f32])) {
        let Self { t, d, .. } = self;
        let rows = self.rows();
        let scale = 1.0 / (d as f32).sqrt();
        let heads = s.q.chunks_exact(rows * d).zip(s.k.chunks_exact(t * d)).zip(s.v.chunks_exact(t * d));
        for (((q, k), v), out) in heads.zip(s.out.chunks_exact_mut(rows * d)) {
            product(Product { m: rows, k: d, n: t, bt: true }, scale, q, k, &mut s.scores);
            for row in s.scores.chunks_exact_mut(t) {
                rten_vecmath::Softmax::new_mut(row).dispatch();
            }
            product(Product { m: rows, k: t, n: d, bt: false }, 1.0, &s.scores, v, out);
        }
    }
}

/// Query heads, heads of keys, queries, keys, elements.
const CASES: [[usize; 5]; 10] = [
    [8, 8, 16, 16, 64],
    [8, 8, 64, 64, 64],
    [8, 8, 256, 256, 64],
    [8, 8, 1024, 1024, 64],
    [8, 8, 200, 200, 80],
    [32, 8, 128, 512, 128],
    [8, 8, 1, 256, 64],
    [32, 8, 1, 256, 128],
    [32, 8, 1, 4096, 128],
    [32, 32, 1, 4096, 128],
];

fn main() {
    let mut suite = Suite::start("attention");
    let libraries = [peers::mkl(&suite), peers::openblas(&suite)];
    for [heads, kv_heads, s, t, d] in CASES {
        let e = Extents { heads, kv_heads, s, t, d };
        let name = format!("{heads}/{kv_heads} {s}x{t} d{d}");
        if !suite.wants(&name) {
            continue;
        }
        let mut state = State {
            q: Array::random(heads * s * d, -1.0, 1.0, 0),
            k: Array::random(kv_heads * t * d, -1.0, 1.0, 1),
            v: Array::random(kv_heads * t * d, -1.0, 1.0, 2),
            out: Array::new(heads * s * d, 0.0, 3),
            scores: Array::new(e.rows() * t, 0.0, 4),
        };
        let (simd, threads) = (suite.simd(), suite.threads());
        let op = Attention::full().into();
        let mut contenders = vec![Contender::new("kiln", move |x: &mut State| {
            let keys = [kv_heads, t, d];
            let inputs = (Operand::f32(&x.q, &[heads, s, d]), Operand::f32(&x.k, &keys), Operand::f32(&x.v, &keys));
            let (Ok(q), Ok(k), Ok(v)) = inputs else { return };
            let out = &mut [DataMut::F32(&mut x.out)];
            simd.run_into(&op, &[q, k, v], out).unwrap_or_else(|e| eprintln!("{e}"));
        })];
        for library in libraries.iter().flatten() {
            contenders.push(Contender::new(library.name, move |x: &mut State| {
                e.composed(x, |p, scale, a, b, c| library.scaled_sgemm(p, scale, a, b, c));
            }));
        }
        contenders.push(Contender::new("gemm", move |x: &mut State| {
            e.composed(x, |p, scale, a, b, c| foreign::scaled_gemm_crate(p, scale, a, b, c, threads));
        }));
        if s == 1 {
            contenders.push(Contender::new("trueno", move |x: &mut State| {
                for (head, (q, out)) in x.q.chunks_exact(d).zip(x.out.chunks_exact_mut(d)).enumerate() {
                    let at = head / (heads / kv_heads) * t * d;
                    fused_attention_decode(q, &x.k[at..][..t * d], &x.v[at..][..t * d], d, t, out);
                }
            }));
        }
        // The two products at the peak of arithmetic, or keys and values read once.
        let flops = 4.0 * (heads * s * t * d) as f64;
        let elements = 2 * kv_heads * t * d;
        let read = 4.0 * elements as f64 / suite.bandwidth(Pass::Read, elements);
        let limit = read.max(flops / suite.peak());
        suite.case(&name, Work::Flops(flops), Some(limit), &mut state, |x| &mut x.out, contenders);
    }
}
