//! Do reductions run at the rate at which their input can be read?

mod peers;

use std::hint::black_box;

use kiln_benches::{Contender, Suite, Work, random};
use kiln_ir::Operations;
use kiln_simd::Simd;
use kiln_simd::ceilings::Pass;
use ndarray::ArrayView1;
use peers::foreign::Library;
use rten_simd::SimdOp;
use rten_vecmath::{MinMax, Sum, SumAbs, SumSquare};
use trueno::Vector;

/// Arrays as a `Vec` gives them: long ones begin 16 bytes into a page, so that vectors of 64 bytes straddle cache lines.
struct Arrays {
    a: Vec<f32>,
    b: Vec<f32>,
    out: [f32; 1],
}

fn peer(name: &str, f: impl Fn(&[f32], &[f32]) -> f32 + 'static) -> Contender<'static, Arrays> {
    Contender::new(name, move |s: &mut Arrays| s.out[0] = black_box(f(black_box(&s.a), black_box(&s.b))))
}

/// kiln, called directly as a program would call it and as the peers are: not through a pointer.
fn kiln(simd: Simd, f: impl Fn(&Simd, &[f32], &[f32]) -> kiln_ir::Result<f32> + 'static) -> Contender<'static, Arrays> {
    peer("kiln", move |a, b| f(&simd, a, b).unwrap_or(f32::NAN))
}

/// trueno owns its vectors; they are made at the first call, which is not timed.
fn trueno(f: impl Fn(&Vector<f32>, &Vector<f32>) -> Option<f32> + 'static) -> Contender<'static, Arrays> {
    let mut operands = None;
    Contender::new("trueno", move |s: &mut Arrays| {
        let (a, b) = operands.get_or_insert_with(|| (Vector::from_slice(&s.a), Vector::from_slice(&s.b)));
        s.out[0] = f(black_box(a), black_box(b)).unwrap_or(f32::NAN);
    })
}

/// The peers of one operation. The results of each are compared with kiln, so the data suit all of them: positive, so
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
    type Make = fn(Simd) -> Contender<'static, Arrays>;
    let ops: [(&str, Make); 8] = [
        ("sum", |simd| kiln(simd, |simd, a, _| simd.sum(a))),
        ("dot", |simd| kiln(simd, |simd, a, b| simd.dot(a, b))),
        ("max", |simd| kiln(simd, |simd, a, _| simd.max_element(a))),
        ("argmax", |simd| kiln(simd, |simd, a, _| simd.argmax(a).map(|i| i as f32))),
        ("norm_l2", |simd| kiln(simd, |simd, a, _| simd.norm_l2(a))),
        ("norm_l1", |simd| kiln(simd, |simd, a, _| simd.norm_l1(a))),
        ("norm_linf", |simd| kiln(simd, |simd, a, _| simd.norm_linf(a))),
        ("prod", |simd| kiln(simd, |simd, a, _| simd.prod(a))),
    ];
    for (op, make) in ops {
        for n in suite.sizes(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000]) {
            let name = format!("{op} {n}");
            if !suite.wants(&name) {
                continue;
            }
            let mut state = Arrays { a: random(n, 0.5, 1.5, 1), b: random(n, 0.5, 1.5, 2), out: [0.0] };
            let operands = if op == "dot" { 2 } else { 1 };
            let mut contenders = vec![make(suite.simd())];
            contenders.extend(peers_of(op, &libraries));
            let bytes = 4.0 * (n * operands) as f64;
            // Two arrays of n are read as one of 2 n: the sum of both must fit where the time is spent.
            let limit = bytes / suite.bandwidth(Pass::Read, n * operands);
            suite.case(&name, Work::Bytes(bytes), Some(limit), &mut state, |s| &mut s.out, contenders);
        }
    }
}
