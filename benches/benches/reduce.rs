//! Do reductions run at the rate at which their input can be read?

mod peers;

use std::hint::black_box;

use kiln_benches::{Contender, Suite, Work, random};
use kiln_core::Operations;
use kiln_core::op::{Dot, Op, Reduce, Reduction};
use kiln_simd::limits::Pass;
use ndarray::ArrayView1;
use peers::foreign::Library;
use rten_simd::SimdOp;
use rten_vecmath::{MinMax, Sum, SumAbs, SumSquare};
use trueno::Vector;

struct Arrays {
    a: Vec<f32>,
    b: Vec<f32>,
    out: [f32; 1],
}

fn peer(name: &str, f: impl Fn(&[f32], &[f32]) -> f32 + 'static) -> Contender<'static, Arrays> {
    Contender::new(name, move |s: &mut Arrays| s.out[0] = black_box(f(black_box(&s.a), black_box(&s.b))))
}

/// trueno owns its vectors; they are made at the first call, which is not timed.
fn trueno(f: impl Fn(&Vector<f32>, &Vector<f32>) -> Option<f32> + 'static) -> Contender<'static, Arrays> {
    let mut operands = None;
    Contender::new("trueno", move |s: &mut Arrays| {
        let (a, b) = operands.get_or_insert_with(|| (Vector::from_slice(&s.a), Vector::from_slice(&s.b)));
        s.out[0] = f(black_box(a), black_box(b)).unwrap_or(f32::NAN);
    })
}

/// The peers of one operation. What each computes is compared with kiln, so the data suit all of them: positive, so
/// that sums of values and of magnitudes agree and no sum cancels.
fn peers_of(name: &str, libraries: &[&'static Library]) -> Vec<Contender<'static, Arrays>> {
    let mut peers = Vec::new();
    for &l in libraries {
        match name {
            "sum" if l.has_sum() => peers.push(peer(l.name, |a, _| l.ssum(a))),
            "sum" => peers.push(peer("mkl asum", |a, _| l.sasum(a))),
            "norm_l1" => peers.push(peer(l.name, |a, _| l.sasum(a))),
            "dot" => peers.push(peer(l.name, |a, b| l.sdot(a, b))),
            "argmax" => peers.push(peer(l.name, |a, _| l.isamax(a) as f32)),
            "norm_l2" => peers.push(peer(l.name, |a, _| l.snrm2(a))),
            _ => {}
        }
    }
    match name {
        "sum" => peers.extend([
            peer("rten", |a, _| Sum::new(a).dispatch()),
            peer("ndarray", |a, _| ArrayView1::from(a).sum()),
            peer("plain loop", |a, _| a.iter().sum()),
            trueno(|a, _| a.sum().ok()),
        ]),
        "dot" => peers.extend([
            peer("ndarray", |a, b| ArrayView1::from(a).dot(&ArrayView1::from(b))),
            peer("plain loop", |a, b| a.iter().zip(b).map(|(a, b)| a * b).sum()),
            trueno(|a, b| a.dot(b).ok()),
        ]),
        "max" => peers.extend([
            peer("rten", |a, _| MinMax::new(a).dispatch().1),
            peer("plain loop", |a, _| a.iter().copied().fold(f32::NEG_INFINITY, f32::max)),
            trueno(|a, _| a.max().ok()),
        ]),
        "argmax" => peers.extend([
            peer("plain loop", |a, _| {
                let mut best = 0;
                for (i, x) in a.iter().enumerate() {
                    if *x > a[best] {
                        best = i;
                    }
                }
                best as f32
            }),
            trueno(|a, _| a.argmax().ok().map(|i| i as f32)),
        ]),
        "norm_l1" => peers.push(peer("rten", |a, _| SumAbs::new(a).dispatch())),
        "norm_l2" => {
            peers.extend([peer("rten", |a, _| SumSquare::new(a).dispatch().sqrt()), trueno(|a, _| a.norm_l2().ok())]);
        }
        _ => {}
    }
    peers
}

fn main() {
    let mut suite = Suite::start("reduce");
    let libraries: Vec<&'static Library> =
        [peers::mkl(&suite), peers::openblas(&suite)].into_iter().flatten().collect();
    let ops: [Op; 7] = [
        Reduce::all(Reduction::Sum).into(),
        Dot.into(),
        Reduce::all(Reduction::Max).into(),
        Reduce::all(Reduction::ArgMax).into(),
        Reduce::all(Reduction::NormL2).into(),
        Reduce::all(Reduction::NormL1).into(),
        Reduce::all(Reduction::Prod).into(),
    ];
    for op in ops {
        for n in suite.sizes(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000]) {
            let name = format!("{} {n}", op.name());
            if !suite.wants(&name) {
                continue;
            }
            let mut state = Arrays { a: random(n, 0.5, 1.5, 1), b: random(n, 0.5, 1.5, 2), out: [0.0] };
            let simd = suite.simd();
            let operands = if op == Op::Dot(Dot) { 2 } else { 1 };
            let mut contenders = vec![Contender::new("kiln", move |s: &mut Arrays| {
                let result = match op {
                    Op::Reduce(r) if r.reduction.gives_index() => {
                        simd.reduce_all_index(r.reduction, &s.a).map(|index| index as f32)
                    }
                    Op::Reduce(r) => simd.reduce_all(r.reduction, &s.a),
                    _ => simd.dot(&s.a, &s.b),
                };
                s.out[0] = result.unwrap_or(f32::NAN);
            })];
            contenders.extend(peers_of(op.name(), &libraries));
            let bytes = 4.0 * (n * operands) as f64;
            // Two arrays of n are read as one of 2 n: the sum of both must fit where the time is spent.
            let limit = bytes / suite.bandwidth(Pass::Read, n * operands);
            suite.case(&name, Work::Bytes(bytes), Some(limit), &mut state, |s| &mut s.out, contenders);
        }
    }
}
