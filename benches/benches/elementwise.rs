//! How close are element-wise operations to what memory allows, and how do they stand beside vector libraries?

mod peers;

use kiln_benches::{Array, Contender, Suite, Work};
use kiln_ir::Operations;
use kiln_ir::op::ElementwiseKind as Kind;
use kiln_simd::ceilings::Pass;
use ndarray::{ArrayView1, ArrayViewMut1, Zip};
use peers::foreign::{Library, to_be_filled};
use rten_simd::SimdUnaryOp;
use rten_vecmath::{ApproxGelu, Exp, Gelu, Sigmoid, Silu, Tanh};
use trueno::Vector;

struct Arrays {
    a: Array,
    b: Array,
    c: Array,
    out: Array,
}

type Peers<'a> = Vec<Contender<'a, Arrays>>;

/// A case: the operation, its inputs, and the peers that compute it.
struct Question {
    kind: Kind,
    range: (f32, f32),
    /// Measured in nanoseconds an element instead of bytes.
    function: bool,
    peers: fn(Option<&'static Library>) -> Peers<'static>,
}

fn binary(vml: &'static str, mkl: Option<&'static Library>) -> Peers<'static> {
    let mut peers = Vec::new();
    if let Some(run) = mkl.and_then(|l| l.binary(vml)) {
        peers.push(Contender::new("mkl", move |s: &mut Arrays| run(&s.a, &s.b, &mut s.out)));
    }
    peers
}

fn unary(vml: &'static str, mkl: Option<&'static Library>) -> Peers<'static> {
    let mut peers = Vec::new();
    if let Some(run) = mkl.and_then(|l| l.unary(vml)) {
        peers.push(Contender::new("mkl", move |s: &mut Arrays| run(&s.a, &mut s.out)));
    }
    peers
}

/// A plain loop over slices, vectorised by the compiler for the baseline of the target.
fn plain(f: impl Fn(f32) -> f32 + Copy + 'static) -> Contender<'static, Arrays> {
    Contender::new("plain loop", move |s: &mut Arrays| s.out.iter_mut().zip(&*s.a).for_each(|(o, &a)| *o = f(a)))
}

fn plain2(f: impl Fn(f32, f32) -> f32 + Copy + 'static) -> [Contender<'static, Arrays>; 2] {
    [
        Contender::new("plain loop", move |s: &mut Arrays| {
            s.out.iter_mut().zip(&*s.a).zip(&*s.b).for_each(|((o, &a), &b)| *o = f(a, b));
        }),
        Contender::new("ndarray", move |s: &mut Arrays| {
            let (a, b) = (ArrayView1::from(&*s.a), ArrayView1::from(&*s.b));
            Zip::from(ArrayViewMut1::from(&mut *s.out)).and(a).and(b).for_each(|o, &a, &b| *o = f(a, b));
        }),
    ]
}

fn rten(op: impl SimdUnaryOp<f32> + 'static) -> Contender<'static, Arrays> {
    Contender::new("rten", move |s: &mut Arrays| _ = op.map(&s.a, to_be_filled(&mut s.out)))
}

/// trueno allocates its result; its vectors are made at the first call, which is not timed.
fn trueno<T: 'static>(f: impl Fn(&Vector<f32>, &Vector<f32>) -> T + 'static) -> Contender<'static, Arrays> {
    let mut operands = None;
    Contender::new("trueno", move |s: &mut Arrays| {
        let (a, b) = operands.get_or_insert_with(|| (Vector::from_slice(&s.a), Vector::from_slice(&s.b)));
        std::hint::black_box(f(a, b));
    })
    .approximate()
}

fn gelu_tanh(x: f32) -> f32 {
    0.5 * x * (1.0 + (0.797_884_6 * (x + 0.044_715 * x * x * x)).tanh())
}

fn questions() -> Vec<Question> {
    let arithmetic = |kind, range, peers| Question { kind, range, function: false, peers };
    let function = |kind, range, peers| Question { kind, range, function: true, peers };
    let around = (-6.0, 6.0);
    vec![
        arithmetic(Kind::Add, around, |l| {
            let mut p = binary("vmsAdd", l);
            p.extend(plain2(|a, b| a + b));
            p.push(trueno(|a, b| a.add(b).ok()));
            p
        }),
        arithmetic(Kind::Mul, around, |l| {
            let mut p = binary("vmsMul", l);
            p.extend(plain2(|a, b| a * b));
            p.push(trueno(|a, b| a.mul(b).ok()));
            p
        }),
        arithmetic(Kind::Div, (0.5, 6.0), |l| {
            let mut p = binary("vmsDiv", l);
            p.extend(plain2(|a, b| a / b));
            p.push(trueno(|a, b| a.div(b).ok()));
            p
        }),
        arithmetic(Kind::Max, around, |l| {
            let mut p = binary("vmsFmax", l);
            p.extend(plain2(f32::max));
            p
        }),
        arithmetic(Kind::Sqrt, (0.5, 6.0), |l| {
            let mut p = unary("vmsSqrt", l);
            p.extend([plain(f32::sqrt), trueno(|a, _| a.sqrt().ok())]);
            p
        }),
        arithmetic(Kind::Scale, around, |_| vec![plain(|x| 0.75 * x), trueno(|a, _| a.scale(0.75).ok())]),
        arithmetic(Kind::Relu, around, |_| {
            vec![plain(|x| if x <= 0.0 { 0.0 } else { x }), trueno(|a, _| a.relu().ok())]
        }),
        arithmetic(Kind::Fma, around, |_| {
            vec![Contender::new("plain loop", |s: &mut Arrays| {
                let operands = s.a.iter().zip(&*s.b).zip(&*s.c);
                s.out.iter_mut().zip(operands).for_each(|(o, ((&a, &b), &c))| *o = a * b + c);
            })]
        }),
        function(Kind::Exp, around, |l| {
            let mut p = unary("vmsExp", l);
            p.extend([rten(Exp {}), plain(f32::exp), trueno(|a, _| a.exp().ok())]);
            p
        }),
        function(Kind::Ln, (1e-3, 1e3), |l| {
            let mut p = unary("vmsLn", l);
            p.extend([plain(f32::ln), trueno(|a, _| a.ln().ok())]);
            p
        }),
        function(Kind::Tanh, around, |l| {
            let mut p = unary("vmsTanh", l);
            p.extend([rten(Tanh {}), plain(f32::tanh), trueno(|a, _| a.tanh().ok())]);
            p
        }),
        function(Kind::Sigmoid, around, |_| {
            vec![rten(Sigmoid {}), plain(|x| 1.0 / (1.0 + (-x).exp())), trueno(|a, _| a.sigmoid().ok())]
        }),
        function(Kind::Swish, around, |_| {
            vec![rten(Silu {}), plain(|x| x / (1.0 + (-x).exp())), trueno(|a, _| a.swish().ok())]
        }),
        function(Kind::Gelu, around, |_| vec![rten(Gelu {})]),
        function(Kind::GeluTanh, around, |_| vec![rten(ApproxGelu {}), plain(gelu_tanh), trueno(|a, _| a.gelu().ok())]),
        function(Kind::Elu, around, |_| vec![plain(|x| if x > 0.0 { x } else { 0.75 * x.exp_m1() })]),
        function(Kind::Mish, around, |_| vec![plain(|x| x * x.exp().ln_1p().tanh())]),
        function(Kind::Softplus, around, |_| vec![plain(|x| x.max(0.0) + (-x.abs()).exp().ln_1p())]),
        function(Kind::Rsqrt, (0.5, 6.0), |l| {
            let mut p = unary("vmsInvSqrt", l);
            p.push(plain(|x| 1.0 / x.sqrt()));
            p
        }),
    ]
}

fn main() {
    let mut suite = Suite::start("elementwise");
    let mkl = peers::mkl(&suite);
    for question in questions() {
        for n in suite.sizes(&[1_000, 10_000, 100_000, 1_000_000, 10_000_000]) {
            let kind = question.kind;
            let name = format!("{} {n}", kind.name());
            if !suite.wants(&name) {
                continue;
            }
            let (lo, hi) = question.range;
            let array = |position| Array::random(n, lo, hi, position);
            let mut state = Arrays { a: array(0), b: array(1), c: array(2), out: Array::new(n, 0.0, 3) };
            let op = kind.with_params([0.75, 1.0]);
            let simd = suite.simd();
            let mut contenders = vec![Contender::new("kiln", move |s: &mut Arrays| {
                let operands: [&[f32]; 3] = [&s.a, &s.b, &s.c];
                let operands = &operands[..kind.arity()];
                simd.elementwise_into(op, operands, &mut s.out).unwrap_or_else(|e| eprintln!("{e}"));
            })];
            contenders.extend((question.peers)(mkl));
            let bytes = 4.0 * n as f64 * (kind.arity() + 1) as f64;
            let mut fastest = |pass| suite.bandwidth(pass, n);
            // The limit of memory: with two operands or more, ordinary or streaming stores, whichever is faster here.
            let bandwidth = if kind.arity() == 1 {
                fastest(Pass::Copy)
            } else {
                fastest(Pass::Add).max(fastest(Pass::AddStreamed))
            };
            let work = if question.function { Work::Elements(n as f64) } else { Work::Bytes(bytes) };
            suite.case(&name, work, Some(bytes / bandwidth), &mut state, |s| &mut s.out, contenders);
        }
    }
}
