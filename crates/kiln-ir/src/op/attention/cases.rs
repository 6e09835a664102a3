//! The cases that attention is tested with.

use super::{Attention, AttentionOperands, Param};
use crate::op::reference::{Case, Input, Random};
use crate::{Bool, Buffer, DType, QuantFormat, Shape, TensorType};

/// Every case: first those of plain attention, then those with options.
pub(super) fn all() -> Vec<Case> {
    let mut cases = plain();
    cases.extend(with_options());
    cases
}

/// Cases of plain attention.
fn plain() -> Vec<Case> {
    let mut random = Random::new(19);
    let mut cases = Vec::new();
    let mut tensor = |dims: &[usize], size: f32| Input::f32(random.uniforms(dims.iter().product(), -size, size), dims);
    // (batch, heads, kv_heads, s, t, d): one, few and many rows and keys, around the block sizes of rows and keys,
    // grouped heads, decoding of one and of several rows, each extent empty.
    for (batch, heads, kv_heads, s, t, d) in [
        (1, 1, 1, 1, 1, 1),
        (1, 1, 1, 2, 3, 5),
        (1, 2, 2, 7, 7, 16),
        (1, 4, 2, 1, 130, 64),
        (1, 6, 2, 3, 40, 10),
        (1, 2, 2, 3, 200, 33),
        (1, 1, 1, 1, 270, 200),
        (1, 2, 1, 1, 150, 196),
        (1, 3, 1, 1, 129, 68),
        (1, 2, 1, 2, 140, 72),
        (1, 2, 2, 1, 1030, 136),
        (1, 1, 1, 65, 65, 33),
        (1, 3, 1, 30, 129, 8),
        (1, 1, 1, 63, 260, 20),
        (2, 4, 2, 16, 20, 32),
        (3, 2, 1, 5, 5, 3),
        (1, 2, 1, 140, 140, 24),
        (1, 1, 1, 3, 3, 0),
        (1, 2, 1, 0, 4, 8),
        (0, 2, 2, 3, 4, 8),
        (1, 0, 0, 3, 4, 8),
        (1, 0, 2, 3, 4, 8),
    ] {
        let (q, kv) = ([batch, heads, s, d], [batch, kv_heads, t, d]);
        let skip = usize::from(batch == 1);
        for causal in [false, true] {
            for (scale, size) in [(None, 1.0), (Some(Param::from(0.3)), 6.0)] {
                let inputs = vec![tensor(&q[skip..], size), tensor(&kv[skip..], size), tensor(&kv[skip..], 1.0)];
                cases.push(Case::new(Attention { causal, scale, ..Attention::default() }, inputs));
            }
        }
    }
    // More queries than keys, and no keys at all; every query sees every key.
    for t in [5, 0] {
        let inputs = vec![tensor(&[2, 9, 4], 1.0), tensor(&[2, t, 4], 1.0), tensor(&[2, t, 4], 1.0)];
        cases.push(Case::new(Attention::full(), inputs));
    }
    // Special values in a query, a key or a value must not affect a causal row that does not see them.
    for (which, value) in [(0, f32::NAN), (1, f32::NAN), (2, f32::NAN), (1, 1e38), (2, f32::INFINITY)] {
        for causal in [false, true] {
            let mut inputs = vec![tensor(&[1, 40, 8], 1.0), tensor(&[1, 40, 8], 1.0), tensor(&[1, 40, 8], 1.0)];
            if let Buffer::F32(data) = &mut inputs[which].buffer {
                data[21 * 8 + 3] = value;
            }
            cases.push(Case::new(Attention { causal, ..Attention::default() }, inputs));
        }
    }
    // The first keys score -∞ for every query, so whole blocks of keys have weight zero; in the second case, all
    // do.
    for unreachable in [150, 170] {
        let q = Input::f32(vec![1.0; 3 * 4], &[1, 3, 4]);
        let mut k = vec![0.5; 170 * 4];
        k[..unreachable * 4].fill(f32::NEG_INFINITY);
        let v = tensor(&[1, 170, 4], 1.0);
        cases.push(Case::new(Attention::full(), vec![q, Input::f32(k, &[1, 170, 4]), v]));
    }
    cases
}

/// Batch, query heads, key heads, queries, keys, elements of a key and of a value. One, few and many queries,
/// around the block size; odd sizes; empty extents.
type Extents = [usize; 7];

struct Maker {
    random: Random,
    extents: Extents,
}

impl Maker {
    fn floats(&mut self, dims: &[usize], size: f32) -> Input {
        Input::f32(self.random.uniforms(dims.iter().product(), -size, size), dims)
    }

    fn qkv(&mut self) -> Vec<Input> {
        let [b, h, kv, s, t, d, dv] = self.extents;
        vec![self.floats(&[b, h, s, d], 2.0), self.floats(&[b, kv, t, d], 2.0), self.floats(&[b, kv, t, dv], 1.0)]
    }

    /// A boolean mask that hides a share of the keys, and every key from each third query.
    fn truth(&mut self, dims: &[usize]) -> Input {
        let (n, t) = (dims.iter().product(), *dims.last().unwrap_or(&1));
        let mask = (0..n).map(|at: usize| Bool::from(at / t % 3 != 1 && self.random.below(3) > 0)).collect();
        Input::new(Buffer::Bool(mask), dims)
    }

    /// An additive mask in which some entries hide a key.
    fn bias(&mut self, dims: &[usize]) -> Input {
        let mut mask = self.random.uniforms(dims.iter().product(), -3.0, 3.0);
        mask.iter_mut().filter(|_| self.random.below(4) == 0).for_each(|x| *x = f32::NEG_INFINITY);
        Input::f32(mask, dims)
    }

    fn below(&mut self, dims: &[usize], bound: usize) -> Input {
        let n = dims.iter().product();
        Input::new(Buffer::U32((0..n).map(|_: usize| self.random.below(bound) as u32).collect()), dims)
    }

    fn case(&mut self, op: Attention, more: AttentionOperands<Input>) -> Case {
        let mut inputs = self.qkv();
        let op = op.with(&more);
        inputs.extend(more.into_vec());
        Case::new(op, inputs)
    }
}

/// Cases with options, optional operands, and keys and values of other types.
fn with_options() -> Vec<Case> {
    const NONE: AttentionOperands<Input> =
        AttentionOperands { mask: None, positions: None, lengths: None, sinks: None, slopes: None };
    let mut cases = Vec::new();
    let all: [Extents; 12] = [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 4, 2, 1, 300, 64, 64],
        [2, 8, 2, 1, 140, 32, 48],
        [2, 6, 2, 3, 70, 20, 12],
        [1, 2, 1, 7, 40, 33, 5],
        [1, 2, 2, 70, 200, 16, 24],
        [2, 2, 1, 66, 130, 10, 7],
        [1, 3, 1, 130, 130, 64, 32],
        [1, 2, 1, 2, 1100, 128, 128],
        [2, 2, 1, 3, 0, 4, 4],
        [1, 2, 1, 3, 5, 4, 0],
        [1, 2, 2, 3, 5, 0, 4],
    ];
    for (seed, extents) in all.into_iter().enumerate() {
        let mut make = Maker { random: Random::new(190 + seed as u64), extents };
        let [b, h, _, s, t, ..] = extents;
        let keys = if t < s { Attention::full() } else { Attention::causal() };
        cases.push(make.case(keys.capped(1.5), NONE));
        for window in [1, 9, 64, 5000] {
            if t >= s {
                cases.push(make.case(Attention::causal().windowed(window).scaled(0.4), NONE));
            }
        }
        for dims in [&[s, t][..], &[1, s, t], &[h, s, t], &[b, 1, s, t], &[b, h, 1, t], &[1, 1, s, 1]] {
            for op in [Attention::full(), keys] {
                let mask = Some(make.truth(dims));
                cases.push(make.case(op, AttentionOperands { mask, ..NONE }));
            }
            let mask = Some(make.bias(dims));
            cases.push(make.case(keys, AttentionOperands { mask, ..NONE }));
        }
        // No query sees a key.
        let mask = Some(Input::new(Buffer::Bool(vec![Bool::from(false)]), &[1, 1]));
        let sinks = Some(make.floats(&[h], 2.0));
        cases.push(make.case(Attention::full(), AttentionOperands { mask, sinks, ..NONE }));
        for dims in [&[s][..], &[b, s]] {
            // Some positions are beyond the keys.
            let positions = Some(make.below(dims, t + t / 4 + 2));
            let lengths = Some(make.below(&[if dims.len() == 1 { 1 } else { b }], t + 1));
            let more = AttentionOperands { positions: positions.clone(), ..NONE };
            cases.push(make.case(Attention::causal(), more.clone()));
            cases.push(make.case(Attention::causal().windowed(20), AttentionOperands { lengths, ..more }));
        }
        for lengths in [vec![0], vec![t as u32], vec![(t / 2) as u32], (0..b as u32).map(|i| i.min(t as u32)).collect()]
        {
            let dims = [lengths.len()];
            let lengths = Some(Input::new(Buffer::U32(lengths), &dims));
            cases.push(make.case(keys, AttentionOperands { lengths: lengths.clone(), ..NONE }));
            cases.push(make.case(Attention::full(), AttentionOperands { lengths, ..NONE }));
        }
        let (sinks, slopes) = (Some(make.floats(&[h], 3.0)), Some(make.floats(&[h], 0.5)));
        cases.push(make.case(keys, AttentionOperands { sinks: sinks.clone(), ..NONE }));
        cases.push(make.case(keys, AttentionOperands { slopes: slopes.clone(), ..NONE }));
        // All of them at once, with the maximum and the minimum position.
        let mut positions = make.below(&[b, s], t + 3);
        if let Buffer::U32(positions) = &mut positions.buffer {
            positions.iter_mut().step_by(5).zip([u32::MAX, 0]).for_each(|(to, from)| *to = from);
        }
        let more = AttentionOperands {
            mask: Some(make.bias(&[h, s, t])),
            positions: Some(positions),
            lengths: Some(make.below(&[b], t + 1)),
            sinks,
            slopes: None,
        };
        cases.push(make.case(Attention::causal().windowed(33).capped(2.0), more.clone()));
        let more = AttentionOperands { positions: None, mask: Some(make.truth(&[h, s, t])), slopes, ..more };
        cases.push(make.case(if t < s { keys } else { Attention::causal().windowed(33) }, more));
        cases.extend(stored(&mut make, keys));
    }
    cases.extend(hidden());
    cases.extend(in_16_bits());
    cases
}

/// Casts an f32 input to another floating-point type.
fn narrow(input: &mut Input, dtype: DType) {
    if let Buffer::F32(wide) = &input.buffer {
        let ty = TensorType::of(dtype, input.shape).expect("a shape");
        let mut narrow = Buffer::zeros(&ty).expect("a case fits memory");
        crate::narrow(wide, narrow.as_mut());
        input.buffer = narrow;
    }
}

/// Many queries with positions and lengths in 16-bit types, which tensor cores take.
fn in_16_bits() -> Vec<Case> {
    let mut cases = Vec::new();
    let all: [(DType, Extents); 3] = [
        (DType::F16, [2, 6, 2, 70, 200, 64, 64]),
        (DType::Bf16, [1, 4, 4, 100, 150, 128, 128]),
        (DType::F16, [4, 2, 1, 3, 40, 96, 96]),
    ];
    for (seed, (dtype, extents)) in all.into_iter().enumerate() {
        let mut make = Maker { random: Random::new(310 + seed as u64), extents };
        let [b, _, _, s, t, ..] = extents;
        let none = AttentionOperands::<Input>::default();
        let u32s = |words: Vec<u32>, dims: &[usize]| Some(Input::new(Buffer::U32(words), dims));
        let following = u32s((0..s as u32).map(|i| i + 30).collect(), &[s]);
        let anywhere = Some(make.below(&[b, s], t + 9));
        let lengths = u32s((0..b as u32).map(|i| i * 60 % (t as u32 + 1)).collect(), &[b]);
        for more in [
            AttentionOperands { positions: following, lengths: u32s(vec![30 + s as u32], &[1]), ..none.clone() },
            AttentionOperands { positions: anywhere.clone(), lengths: lengths.clone(), ..none.clone() },
            AttentionOperands { positions: anywhere, ..none.clone() },
            AttentionOperands { lengths, ..none },
        ] {
            let mut case = make.case(Attention::causal(), more);
            case.inputs[..3].iter_mut().for_each(|input| narrow(input, dtype));
            cases.push(case);
        }
    }
    cases
}

/// Keys and values of every type that attention reads as stored, and of other types.
fn stored(make: &mut Maker, op: Attention) -> Vec<Case> {
    let [b, _, kv, _, t, d, dv] = make.extents;
    let mut cases = Vec::new();
    let float = |case: &mut Case, index: usize, dtype| narrow(&mut case.inputs[index], dtype);
    let floats = [DType::F32, DType::F16, DType::Bf16];
    for (q, k, v) in [(0, 1, 1), (0, 2, 2), (1, 1, 1), (2, 2, 2), (1, 0, 2), (2, 1, 0)] {
        let lengths = Some(make.below(&[b], t + 1));
        for more in [AttentionOperands::default(), AttentionOperands { lengths, ..AttentionOperands::default() }] {
            let mut case = make.case(op, more);
            [q, k, v].into_iter().enumerate().for_each(|(index, ty)| float(&mut case, index, floats[ty]));
            cases.push(case);
        }
    }
    let blocks = |case: &mut Case, index: usize, format: QuantFormat, width: usize| {
        let Buffer::F32(wide) = &case.inputs[index].buffer else { return };
        let ty = TensorType::of(DType::Blocks(format), Shape::new(&[b, kv, t, width]).expect("a shape"));
        let mut coded = Buffer::zeros(&ty.expect("whole blocks")).expect("a case fits memory");
        if let Buffer::Blocks(_, coded) = &mut coded {
            format.encode(wide, coded).expect("whole blocks");
        }
        case.inputs[index].buffer = coded;
    };
    for format in [QuantFormat::Q8_0, QuantFormat::Q4_0] {
        if !d.is_multiple_of(32) || !dv.is_multiple_of(32) {
            continue;
        }
        let lengths = Some(make.below(&[b], t + 1));
        for more in [AttentionOperands::default(), AttentionOperands { lengths, ..AttentionOperands::default() }] {
            for both in [true, false] {
                let mut case = make.case(op, more.clone());
                blocks(&mut case, 1, format, d);
                if both {
                    blocks(&mut case, 2, format, dv);
                } else {
                    float(&mut case, 2, DType::F16);
                }
                cases.push(case);
            }
        }
    }
    cases
}

/// Hidden keys and values contain numbers that would dominate every sum; masks and sinks contain special numbers.
fn hidden() -> Vec<Case> {
    let mut cases = Vec::new();
    for s in [1, 2, 40] {
        let mut make = Maker { random: Random::new(77 + s as u64), extents: [1, 2, 1, s, 200, 8, 8] };
        let none = AttentionOperands::<Input>::default();
        let lengths = Some(Input::new(Buffer::U32(vec![131]), &[1]));
        let truth: Vec<Bool> = (0..s * 200).map(|at| Bool::from(at % 200 % 11 != 3 && at % 200 < 131)).collect();
        let truth = Input::new(Buffer::Bool(truth), &[s, 200]);
        let of = |hidden: f32| (0..s * 200).map(|at| if at % 200 >= 131 { hidden } else { 0.5 }).collect();
        let bias = Input::f32(of(f32::NEG_INFINITY), &[s, 200]);
        for (op, more) in [
            (Attention::full(), AttentionOperands { lengths: lengths.clone(), ..none.clone() }),
            (Attention::causal().windowed(3), AttentionOperands { lengths, ..none.clone() }),
            (Attention::full(), AttentionOperands { mask: Some(truth), ..none.clone() }),
            (Attention::full(), AttentionOperands { mask: Some(bias), ..none.clone() }),
        ] {
            let mut case = make.case(op, more);
            for input in &mut case.inputs[1..3] {
                if let Buffer::F32(rows) = &mut input.buffer {
                    rows[131 * 8..150 * 8].fill(f32::NAN);
                    rows[150 * 8..].fill(f32::INFINITY);
                }
            }
            cases.push(case);
        }
        for value in [f32::NAN, f32::INFINITY, f32::MIN, 1e30] {
            let mask = Some(Input::f32(of(value), &[s, 200]));
            cases.push(make.case(Attention::full(), AttentionOperands { mask, ..none.clone() }));
        }
        for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 200.0, -200.0] {
            let sinks = Some(Input::f32(vec![value, 0.5], &[2]));
            cases.push(make.case(Attention::full(), AttentionOperands { sinks, ..none.clone() }));
        }
    }
    cases
}
