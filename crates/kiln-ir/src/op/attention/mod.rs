#[cfg(feature = "reference")]
mod cases;

use super::{Bound, Contract, Operation, Outputs, Param};
use crate::named::{Form, Named, Parameter, options};
use crate::{DType, Error, Kind, Result, Shape, TensorType};

/// Scaled dot-product attention: each query gives the mean of the values, weighted by the softmax of its scaled products
/// with the keys.
///
/// Queries are `[heads, s, d]` or `[batch, heads, s, d]`, keys `[kv_heads, t, d]` or `[batch, kv_heads, t, d]`, values
/// `[.., kv_heads, t, dv]`, the result is `[.., heads, s, dv]`. `heads` is a multiple of `kv_heads`: that many neighbouring query
/// heads share a head of keys and values. Queries are floats; keys and values are floats or quantised blocks, each of a type of
/// its own.
///
/// Operands: q, k, v, then those of [`AttentionOperands`] that [`Attention::operands`] names, in the order of its fields.
///
/// The score of a query at position p and a key j, which has position j, is
/// `cap tanh(scale Σ q k / cap) + slope (j - p) + mask`; a part that is not asked for is left out. A query that sees no key
/// gives zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Whether a query sees only the keys up to its own position. Without positions the last query is at the last key, so query
    /// `i` of `s` sees the keys `0 ..= t - s + i`, and there must be no fewer keys than queries.
    pub causal: bool,
    /// The factor of the products of queries and keys; `1/√d` when `None`.
    pub scale: Option<Param>,
    /// Maximum number of keys that a causal query sees: the last ones up to its own position, which is included.
    pub window: Option<u32>,
    /// The cap of scores: `cap tanh(score / cap)` takes the place of each.
    pub soft_cap: Option<Param>,
    /// The operands that follow q, k and v.
    pub operands: AttentionOperands<()>,
}

/// The optional operands of an [`Attention`], which follow q, k and v.
///
/// `T` is `()` if only their presence is known, `usize` for their positions in the list of operands, or the type of the operands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct AttentionOperands<T> {
    /// The keys that a query sees, as booleans (true: it does), or numbers that are added to scores, as floats (-∞ hides a key):
    /// `[s, t]`, `[heads, s, t]` or `[batch, heads, s, t]`. An extent of 1 serves every query, key, head or sequence.
    pub mask: Option<T>,
    /// The positions of queries, `[s]` or `[batch, s]` of u32. Without them the last query is at the last key.
    pub positions: Option<T>,
    /// The number of keys of each sequence, `[batch]` or `[1]` of u32, at most t: queries do not see the keys beyond it.
    pub lengths: Option<T>,
    /// A logit of each query head that takes part in the softmax without a value, `[heads]` of floats.
    pub sinks: Option<T>,
    /// The slope of each query head, `[heads]` of floats: `slope (j - p)` is added to scores (ALiBi). The difference is one of
    /// 32 bits with a sign.
    pub slopes: Option<T>,
}

impl<T> Default for AttentionOperands<T> {
    fn default() -> Self {
        Self { mask: None, positions: None, lengths: None, sinks: None, slopes: None }
    }
}

impl<T> AttentionOperands<T> {
    /// Applies a function to each operand that is present, in their order.
    pub fn map<U>(self, mut of: impl FnMut(T) -> U) -> AttentionOperands<U> {
        AttentionOperands {
            mask: self.mask.map(&mut of),
            positions: self.positions.map(&mut of),
            lengths: self.lengths.map(&mut of),
            sinks: self.sinks.map(&mut of),
            slopes: self.slopes.map(&mut of),
        }
    }

    /// References to the operands that are present.
    pub fn as_ref(&self) -> AttentionOperands<&T> {
        AttentionOperands {
            mask: self.mask.as_ref(),
            positions: self.positions.as_ref(),
            lengths: self.lengths.as_ref(),
            sinks: self.sinks.as_ref(),
            slopes: self.slopes.as_ref(),
        }
    }

    /// The operands that are present, in their order.
    pub fn into_vec(self) -> Vec<T> {
        [self.mask, self.positions, self.lengths, self.sinks, self.slopes].into_iter().flatten().collect()
    }
}

impl Parameter for AttentionOperands<()> {
    type Value = Self;
    const FORM: Form = Form::Operands(&["mask", "positions", "lengths", "sinks", "slopes"]);

    fn read(from: &dyn Named, _: &'static str, _: &'static str) -> Result<Option<Self>> {
        let there = |name| from.get(name).map(drop);
        Ok(Some(Self {
            mask: there("mask"),
            positions: there("positions"),
            lengths: there("lengths"),
            sinks: there("sinks"),
            slopes: there("slopes"),
        }))
    }
}

options!(
    Attention,
    (
        operands: AttentionOperands<()> = AttentionOperands::default(), causal: bool = false, scale: Option<Param> = None,
        window: Option<usize> = None, soft_cap: Option<Param> = None
    ),
    Self {
        causal,
        scale,
        window: window.map(|window| u32::try_from(window).unwrap_or(u32::MAX)),
        soft_cap,
        operands,
    }
);

/// The extents of an attention.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttentionExtents {
    /// Number of sequences.
    pub batch: usize,
    /// Heads of keys and values.
    pub kv_heads: usize,
    /// Query heads that share one of those.
    pub group: usize,
    /// Queries.
    pub s: usize,
    /// Keys.
    pub t: usize,
    /// Elements of a query or key.
    pub d: usize,
    /// Elements of a value.
    pub dv: usize,
}

impl AttentionExtents {
    /// Number of keys that query `i` sees, from the first on, if only causality hides keys.
    pub fn visible(&self, causal: bool, i: usize) -> usize {
        if causal { self.t - self.s + i + 1 } else { self.t }
    }

    /// The strides of a mask of this shape along sequences, query heads, queries and keys; 0 where one entry serves all.
    pub fn mask_strides(&self, mask: &Shape) -> [usize; 4] {
        let mut strides = [0; 4];
        let mut stride = 1;
        for (to, &extent) in strides.iter_mut().rev().zip(mask.dims().iter().rev()) {
            *to = if extent == 1 { 0 } else { stride };
            stride *= extent;
        }
        strides
    }
}

/// The keys that positions, lengths and windows leave to a query, and its position.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sight {
    /// The first key.
    pub begin: usize,
    /// One past the last key; no less than `begin`.
    pub end: usize,
    /// The position of the query, modulo 2³².
    pub position: u32,
}

impl Attention {
    /// Full attention: every query sees every key.
    pub fn full() -> Self {
        Self::default()
    }

    /// Causal attention.
    pub fn causal() -> Self {
        Self { causal: true, ..Self::default() }
    }

    /// This attention with another factor of scores.
    #[must_use]
    pub fn scaled(self, scale: f32) -> Self {
        Self { scale: Some(scale.into()), ..self }
    }

    /// This attention with a window of keys. It must be causal.
    #[must_use]
    pub fn windowed(self, window: u32) -> Self {
        Self { window: Some(window), ..self }
    }

    /// This attention with capped scores.
    #[must_use]
    pub fn capped(self, cap: f32) -> Self {
        Self { soft_cap: Some(cap.into()), ..self }
    }

    /// This attention with the operands that are there.
    #[must_use]
    pub fn with<T>(self, operands: &AttentionOperands<T>) -> Self {
        Self { operands: operands.as_ref().map(|_| ()), ..self }
    }

    /// Whether nothing but causality hides keys, and scores are scaled products.
    pub fn is_plain(&self) -> bool {
        self.window.is_none() && self.soft_cap.is_none() && self.operands == AttentionOperands::default()
    }

    /// The positions in the list of operands of those beside q, k and v.
    pub fn places(&self) -> AttentionOperands<usize> {
        let mut next = 3;
        self.operands.map(|()| {
            next += 1;
            next - 1
        })
    }

    /// The factor of the products for rows of `d` elements.
    pub fn scale(&self, d: usize) -> f32 {
        self.scale.map_or_else(|| (1.0 / (d.max(1) as f64).sqrt()) as f32, Param::get)
    }

    /// The keys that query `i` sees of a sequence of `length` keys; `position` is its position if positions are an operand.
    pub fn sight(&self, e: &AttentionExtents, i: usize, length: usize, position: Option<u32>) -> Sight {
        // One past the query's position, which is negative if the sequence has fewer keys than queries.
        let after =
            position.map_or((length + i + 1).saturating_sub(e.s), |position| position.saturating_add(1) as usize);
        let end = if self.causal { after.min(length) } else { length };
        let begin = self.window.map_or(0, |window| after.saturating_sub(window as usize)).min(end);
        let position = position.unwrap_or_else(|| (length + i).wrapping_sub(e.s) as u32);
        Sight { begin, end, position }
    }

    /// Checks that every sequence has at most `t` keys.
    ///
    /// # Errors
    /// [`Error::Index`] for the first that is longer.
    pub fn check_lengths(&self, lengths: &[u32], t: usize) -> Result<()> {
        match lengths.iter().position(|&length| length as usize > t) {
            None => Ok(()),
            Some(position) => Err(Error::Index {
                op: self.name(),
                position,
                index: lengths[position] as usize,
                bound: t.saturating_add(1),
            }),
        }
    }

    /// The extents for queries, keys and values.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit one another.
    pub fn extents(&self, q: &Shape, k: &Shape, v: &Shape) -> Result<AttentionExtents> {
        let op = "attention";
        let ([outer_q @ .., heads, s, d], [outer_k @ .., kv_heads, t, d_k]) = (q.dims(), k.dims()) else {
            return Err(Error::Shape { op, reason: format!("{q} and {k} are not both heads of rows, [.., h, n, d]") });
        };
        let dv = match v.dims().split_last() {
            Some((dv, rows)) if rows == &k.dims()[..k.rank() - 1] => *dv,
            _ => {
                let allowed = "only the last extent may differ";
                return Err(Error::mismatch(op, "keys and values", k, v, allowed));
            }
        };
        if outer_q != outer_k || d != d_k {
            let allowed = "only the numbers of heads and of rows, the third and second extent from the end, may differ";
            return Err(Error::mismatch(op, "queries and keys", q, k, allowed));
        }
        if *heads > 0 && (*kv_heads == 0 || heads % kv_heads != 0) {
            let reason = format!("{heads} heads of queries do not share {kv_heads} heads of keys evenly");
            return Err(Error::Shape { op, reason });
        }
        if self.causal && self.operands.positions.is_none() && t < s {
            let reason = format!("{t} keys are fewer than {s} queries, so the first would see none");
            return Err(Error::Shape { op, reason });
        }
        let group = heads.checked_div(*kv_heads).unwrap_or(0);
        let batch = outer_q.iter().product();
        Ok(AttentionExtents { batch, kv_heads: *kv_heads, group, s: *s, t: *t, d: *d, dv })
    }

    fn check_parameters(&self) -> Result<()> {
        let refused = |reason| Err(Error::Parameter { op: self.name(), reason });
        match self.window {
            Some(0) => return refused("a window of 0 keys hides every key".to_owned()),
            Some(window) if !self.causal => {
                return refused(format!("a window of {window} keys needs causal attention"));
            }
            _ => {}
        }
        match self.soft_cap.map(Param::get) {
            Some(cap) if !(cap.is_normal() && cap > 0.0) => {
                refused(format!("the cap {cap} of scores is not a positive normal number"))
            }
            _ => Ok(()),
        }
    }

    /// Checks the optional operands.
    fn check_operands(&self, inputs: &[TensorType], e: &AttentionExtents) -> Result<()> {
        let op = self.name();
        let places = self.places();
        let heads = e.kv_heads * e.group;
        if let Some(mask) = places.mask.map(|place| inputs[place].shape) {
            let wanted = [e.batch, heads, e.s, e.t];
            let rank = mask.rank();
            let fits = |(&found, &wanted): (&usize, &usize)| found == wanted || found == 1;
            if !(2..=4).contains(&rank) || !mask.dims().iter().zip(&wanted[4 - rank.min(4)..]).all(fits) {
                let reason = format!(
                    "the mask {mask} is not [{}, {}, {}, {}]; the leading extents may be left out, and any may be 1",
                    wanted[0], wanted[1], wanted[2], wanted[3]
                );
                return Err(Error::Shape { op, reason });
            }
        }
        let found = |place: Option<usize>| place.map(|place| inputs[place].shape);
        let check = |found: Option<Shape>, what: &str, allowed: &[&[usize]]| match found {
            Some(found) if !allowed.contains(&found.dims()) => {
                let allowed: Vec<String> = allowed.iter().map(|dims| format!("{dims:?}")).collect();
                Err(Error::Shape { op, reason: format!("{what} {found} are not {}", allowed.join(" or ")) })
            }
            _ => Ok(()),
        };
        check(found(places.positions), "positions", &[&[e.s], &[e.batch, e.s]])?;
        check(found(places.lengths), "lengths", &[&[e.batch], &[1]])?;
        check(found(places.sinks), "sinks", &[&[heads]])?;
        check(found(places.slopes), "slopes", &[&[heads]])
    }

    /// The error of a score beyond its product, in units of u times the magnitude of its parts. A cap adds the
    /// roundings of the quotient and of the product, 8 u for the tanh, whose error is at most 4 ULP, and 2 u for terms
    /// of second order; a mask adds a sum; slopes add a product and a sum.
    fn roundings(&self) -> f64 {
        let of = |there: bool, units: f64| if there { units } else { 0.0 };
        of(self.soft_cap.is_some(), 12.0)
            + of(self.operands.mask.is_some(), 1.0)
            + of(self.operands.slopes.is_some(), 2.0)
    }

    /// Visible pairs of a query and a key in one head. If there are positions or lengths, the last query is assumed to
    /// be at the last key.
    fn pairs(&self, e: &AttentionExtents) -> u64 {
        let all = super::product(&[e.s, e.t]);
        if !self.causal {
            return all;
        }
        let s = e.s.min(e.t);
        let unseen = super::product(&[s, s.saturating_sub(1)]) / 2;
        let seen = super::product(&[s, e.t]) - unseen;
        let Some(window) = self.window.map(u64::from) else { return seen };
        // The first queries see fewer keys than the window holds.
        let (s, before) = (s as u64, (e.t - s) as u64);
        let fewer = window.saturating_sub(before + 1).min(s);
        let missing = fewer.saturating_mul(window.saturating_sub(before)) - fewer * (fewer + 1) / 2;
        s.saturating_mul(window).saturating_sub(missing).min(seen)
    }
}

impl Operation for Attention {
    fn name(&self) -> &'static str {
        "attention"
    }

    fn formula(&self) -> &'static str {
        "softmax(scale Q Kᵀ) V"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        let op = self.name();
        let expected = 3 + self.operands.into_vec().len();
        if inputs.len() != expected {
            return Err(Error::Arity { op, expected, found: inputs.len() });
        }
        let places = self.places();
        for (index, input) in inputs.iter().enumerate() {
            let (kind, place) = (input.dtype.kind(), Some(index));
            let (fits, expected) = match index {
                1 | 2 => (matches!(kind, Kind::Float | Kind::Blocks), DType::F32),
                _ if place == places.mask => (matches!(kind, Kind::Float | Kind::Truth), DType::Bool),
                _ if place == places.positions || place == places.lengths => (input.dtype == DType::U32, DType::U32),
                _ => (kind == Kind::Float, DType::F32),
            };
            if !fits {
                return Err(Error::Type { op, index, expected, found: input.dtype });
            }
        }
        self.check_parameters()?;
        let q = inputs[0].shape;
        let e = self.extents(&q, &inputs[1].shape, &inputs[2].shape)?;
        self.check_operands(inputs, &e)?;
        let dims = q.dims();
        let dims: Vec<usize> = dims[..dims.len() - 1].iter().copied().chain([e.dv]).collect();
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    /// Two products for each visible key, and sixteen flops for its weight.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape).map_or(0, |e| {
            let each = super::product(&[2, e.d]).saturating_add(super::product(&[2, e.dv])) + 16;
            let heads = super::product(&[e.batch, e.kv_heads, e.group]);
            self.pairs(&e).saturating_mul(heads.saturating_mul(each))
        })
    }

    /// Keys and values that a window hides from every query are not read.
    fn bytes_read(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        let all = |index: usize| inputs[index].bytes() as u64;
        let Ok(e) = self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape) else { return 0 };
        let hidden = self.window.map_or(0, |window| e.t.saturating_sub(e.s.saturating_add(window as usize) - 1));
        let of_rows = (1..3).map(|index| (u128::from(all(index)) * (e.t - hidden) as u128 / e.t.max(1) as u128) as u64);
        super::total_bytes(of_rows.chain((0..inputs.len()).filter(|index| !matches!(index, 1 | 2)).map(all)))
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Magnitude(8.0),
            special: "the bound is relative to Σⱼ pⱼ |vⱼ| (1 + aⱼ + Σₖ pₖ aₖ), with the weights p and aⱼ = scale Σ |q kⱼ|, and is several \
                      times the error of independent roundings; if all have one direction, as with equal keys and values, the error \
                      may reach min(t, 128) + 8 ⌈t / 128⌉ + 2 ln t + 50 on the CPU, or min(d, 512) + d / 4 + 8 if that is \
                      greater; a cap of scores adds 12 to the bound, an additive mask 1, slopes 2, and a is then the sum of the \
                      magnitudes of the parts of a score; a NaN score, a score of +∞ or only scores of -∞ give NaN, and so do \
                      such sinks; weights below 2^-126 of the largest may count as zero; keys that a query does not see have \
                      no influence, whatever their values; a query that sees no key gives zeros, also with a sink; a length \
                      beyond the keys is an error; a position beyond the keys sees every key",
        }
    }

    /// The bound of plain attention plus that of the further parts of a score.
    fn bound(&self, _: &[TensorType]) -> Bound {
        Bound::Magnitude(8.0 + self.roundings())
    }

    /// Values are summed over 128 keys in a chain, weights in four chains, then the sums of the blocks, which a change
    /// of the maximum scales by an exponential and a product. Scores are chains of at most 512 products, or of the
    /// lanes of a vector. Errors of the maximum and of the scores carry over to the weights, whose mean of (m - s) is
    /// at most ln t.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        let extents = self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape);
        extents.map_or(Bound::Exact, |e| {
            let values = (e.t.min(128) + 8 * e.t.div_ceil(128) + 50) as f64 + 2.0 * (e.t.max(1) as f64).ln();
            Bound::Magnitude(values.max((e.d.min(512) + e.d / 4 + 8) as f64) + self.roundings())
        })
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases = Vec::new();
        // All keys score alike, for one, few and many queries.
        for (s, t, d, value) in [(1, 128, 8, 0.1), (1, 8192, 4, 0.764), (70, 128, 20, 0.1), (70, 1000, 3, 0.519)] {
            let q = Input::f32(vec![0.0; s * d], &[1, s, d]);
            let equal = |x: f32| Input::f32(vec![x; t * d], &[1, t, d]);
            cases.push(Case::new(Self::full(), vec![q, equal(1.0), equal(value)]));
        }
        // Equal products as well.
        let equal = |rows: usize, x: f32| Input::f32(vec![x; rows * 1024], &[1, rows, 1024]);
        cases.push(Case::new(Self::full(), vec![equal(9, 1.0), equal(40, 0.1), equal(40, 0.1)]));
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape()) else { return Vec::new() };
        let [q, k, v] = [0, 1, 2].map(|i: usize| {
            let mut wide = vec![0.0; inputs[i].shape().numel()];
            match inputs[i].data() {
                crate::Data::Blocks(format, blocks) => format.decode(blocks, &mut wide).expect("whole blocks"),
                floats => crate::widen(floats, &mut wide),
            }
            wide
        });
        let places = self.places();
        let u32s = |place: Option<usize>| place.map(|place| inputs[place].data().u32());
        let f32s = |place: Option<usize>| place.map(|place| inputs[place].data().f32());
        let (positions, lengths) = (u32s(places.positions), u32s(places.lengths));
        let (sinks, slopes) = (f32s(places.sinks), f32s(places.slopes));
        let mask = places.mask.map(|place| (inputs[place].data(), e.mask_strides(&inputs[place].shape())));
        let scale = f64::from(self.scale(e.d));
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for row in 0..e.batch * e.kv_heads * e.group * e.s {
            let (head, i) = (row / e.s, row % e.s);
            let (sequence, query_head) = (head / (e.kv_heads * e.group), head % (e.kv_heads * e.group));
            let rows = head / e.group * e.t;
            // One length for all sequences, or one for each.
            let length = lengths.map_or(e.t, |lengths| lengths[sequence.min(lengths.len() - 1)] as usize);
            let position = positions.map(|positions| positions[(sequence * e.s + i) % positions.len()]);
            let sight = self.sight(&e, i, length, position);
            let masked = |j: usize| {
                mask.map_or(0.0, |(mask, [a, b, c, d])| {
                    let x = f64::from(mask.load(sequence * a + query_head * b + i * c + j * d));
                    let hides = mask.dtype() == DType::Bool;
                    if hides { if x == 0.0 { f64::NEG_INFINITY } else { 0.0 } } else { x }
                })
            };
            let seen: Vec<usize> = (sight.begin..sight.end).filter(|&j| masked(j) != f64::NEG_INFINITY).collect();
            let products = |j: usize| {
                let q = &q[row * e.d..][..e.d];
                let k = &k[(rows + j) * e.d..][..e.d];
                q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k))
            };
            let leaning = |j: usize| {
                let away = f64::from((j as u32).wrapping_sub(sight.position) as i32);
                slopes.map_or(0.0, |slopes| f64::from(slopes[query_head]) * away)
            };
            let score = |&j: &usize| {
                let product = products(j).sum::<f64>() * scale;
                let cap = self.soft_cap.map(|cap| f64::from(cap.get()));
                cap.map_or(product, |cap| cap * (product / cap).tanh()) + leaning(j) + masked(j)
            };
            let size =
                |&j: &usize| products(j).map(f64::abs).sum::<f64>() * scale.abs() + leaning(j).abs() + masked(j).abs();
            let scores: Vec<f64> = seen.iter().map(score).collect();
            let sizes: Vec<f64> = seen.iter().map(size).collect();
            let sink = sinks.map_or(f64::NEG_INFINITY, |sinks| sinks[query_head].into());
            let greatest = scores.iter().copied().fold(sink, super::maximum);
            let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
            let of_sink = if sink == f64::NEG_INFINITY { 0.0 } else { (sink - greatest).exp() };
            let total: f64 = weights.iter().sum::<f64>() + of_sink;
            // A key of weight zero may have an infinite score.
            let weighted = |w: f64, a: f64| if w == 0.0 { 0.0 } else { w * a };
            let size = weights.iter().zip(&sizes).map(|(w, &a)| weighted(w / total, a)).sum::<f64>()
                + weighted(of_sink / total, sink.abs());
            for c in 0..e.dv {
                let value = |j: usize| f64::from(v[(rows + j) * e.dv + c]);
                let terms = (0..seen.len()).map(|n| (n, weights[n] / total * value(seen[n])));
                values.push(terms.clone().map(|(_, t)| t).sum());
                magnitudes.push(terms.map(|(n, t)| weighted(t.abs(), 1.0 + sizes[n] + size)).sum());
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        cases::all()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    #[test]
    fn extents_and_cost() {
        let ty = |dims: &[usize]| TensorType::f32(Shape::new(dims).unwrap());
        let (q, kv) = (ty(&[4, 3, 8]), ty(&[2, 5, 8]));
        let e = Attention::causal().extents(&q.shape, &kv.shape, &kv.shape).unwrap();
        assert_eq!((e.batch, e.kv_heads, e.group, e.s, e.t, e.d, e.dv), (1, 2, 2, 3, 5, 8, 8));
        assert_eq!([0, 1, 2].map(|i| e.visible(true, i)), [3, 4, 5]);
        assert_eq!(Attention::full().flops(&[q, kv, kv], &[q]), 4 * 15 * (32 + 16));
        assert_eq!(Attention::causal().flops(&[q, kv, kv], &[q]), 4 * 12 * (32 + 16));
        // Keys outside the window cost nothing: 2 + 2 + 2, 3 + 4 + 4 and all keys.
        for (window, pairs) in [(1, 3), (2, 6), (4, 11), (5, 12), (900, 12)] {
            assert_eq!(Attention::causal().windowed(window).flops(&[q, kv, kv], &[q]), 4 * pairs * (32 + 16));
        }
        let bytes = |op: Attention| op.bytes_read(&[q, kv, kv], &[q]);
        assert_eq!(bytes(Attention::causal()), 4 * (96 + 2 * 80));
        assert_eq!(bytes(Attention::causal().windowed(2)), 4 * (96 + 2 * 64));
        // Values of another length than keys.
        let v = ty(&[2, 5, 6]);
        assert_eq!(Attention::full().infer(&[q, kv, v]).unwrap()[0].shape.dims(), [4, 3, 6]);
        assert_eq!(Attention::full().flops(&[q, kv, v], &[q]), 4 * 15 * (28 + 16));
        for (q, kv) in [(ty(&[3, 3, 8]), kv), (ty(&[4, 6, 8]), kv), (ty(&[4, 3, 7]), kv), (ty(&[1, 4, 3, 8]), kv)] {
            assert!(matches!(Attention::causal().infer(&[q, kv, kv]), Err(Error::Shape { .. })));
        }
        assert!(matches!(Attention::full().infer(&[q, kv, ty(&[2, 6, 8])]), Err(Error::Shape { .. })));
    }

    #[test]
    fn sights() {
        let e = AttentionExtents { batch: 1, kv_heads: 1, group: 1, s: 3, t: 9, d: 1, dv: 1 };
        let sight = |op: Attention, i, length, position| {
            let sight = op.sight(&e, i, length, position);
            (sight.begin, sight.end)
        };
        let (full, causal) = (Attention::full(), Attention::causal());
        assert_eq!([0, 1, 2].map(|i| sight(causal, i, 9, None)), [(0, 7), (0, 8), (0, 9)]);
        assert_eq!([0, 1, 2].map(|i| sight(causal.windowed(2), i, 9, None)), [(5, 7), (6, 8), (7, 9)]);
        // The last query is at the last key.
        assert_eq!([0, 1, 2].map(|i| sight(causal, i, 2, None)), [(0, 0), (0, 1), (0, 2)]);
        assert_eq!(sight(full, 0, 4, Some(2)), (0, 4));
        assert_eq!(sight(causal, 0, 4, Some(2)), (0, 3));
        assert_eq!(sight(causal, 0, 4, Some(7)), (0, 4));
        assert_eq!(sight(causal.windowed(3), 0, 4, Some(5)), (3, 4));
        // The window begins after the last key.
        assert_eq!(sight(causal.windowed(3), 0, 4, Some(7)), (4, 4));
        assert_eq!(sight(causal.windowed(u32::MAX), 0, 9, Some(u32::MAX)), (0, 9));
        assert_eq!(causal.sight(&e, 0, 2, None).position, u32::MAX);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let of = |dtype, dims: &[usize]| TensorType::of(dtype, Shape::new(dims).unwrap()).unwrap();
        let f32s = |dims: &[usize]| of(DType::F32, dims);
        let (q, kv) = (f32s(&[2, 4, 3, 32]), f32s(&[2, 2, 5, 32]));
        let none = AttentionOperands::<TensorType>::default();
        let infer = |op: Attention, more: AttentionOperands<TensorType>| {
            op.with(&more).infer(&[vec![q, kv, kv], more.into_vec()].concat())
        };
        for op in [
            Attention::full().windowed(3),
            Attention::causal().windowed(0),
            Attention::full().capped(0.0),
            Attention::full().capped(-1.0),
            Attention::full().capped(f32::NAN),
            Attention::full().capped(f32::INFINITY),
        ] {
            assert!(matches!(infer(op, none), Err(Error::Parameter { .. })), "{op:?}");
        }
        let full = Attention::full();
        for dims in [&[3, 5][..], &[4, 3, 5], &[1, 3, 5], &[2, 4, 3, 5], &[2, 1, 3, 5], &[1, 1, 1, 1], &[1, 5]] {
            for dtype in [DType::Bool, DType::F32, DType::F16, DType::Bf16] {
                assert!(infer(full, AttentionOperands { mask: Some(of(dtype, dims)), ..none }).is_ok(), "{dims:?}");
            }
        }
        for dims in [&[5][..], &[3, 4], &[2, 3, 5], &[4, 2, 3, 5], &[1, 2, 4, 3, 5], &[5, 3], &[2, 4, 3, 0]] {
            let mask = Some(f32s(dims));
            assert!(matches!(infer(full, AttentionOperands { mask, ..none }), Err(Error::Shape { .. })), "{dims:?}");
        }
        let mask = Some(of(DType::U32, &[3, 5]));
        assert!(matches!(infer(full, AttentionOperands { mask, ..none }), Err(Error::Type { index: 3, .. })));
        let u32s = |dims: &[usize]| Some(of(DType::U32, dims));
        for (positions, fits) in
            [(u32s(&[3]), true), (u32s(&[2, 3]), true), (u32s(&[2]), false), (u32s(&[3, 2]), false)]
        {
            assert_eq!(infer(full, AttentionOperands { positions, ..none }).is_ok(), fits);
        }
        for (lengths, fits) in [(u32s(&[2]), true), (u32s(&[1]), true), (u32s(&[4]), false), (u32s(&[]), false)] {
            assert_eq!(infer(full, AttentionOperands { lengths, ..none }).is_ok(), fits);
        }
        let positions = Some(of(DType::I32, &[3]));
        let refused = infer(full, AttentionOperands { mask: Some(f32s(&[3, 5])), positions, ..none });
        assert!(matches!(refused, Err(Error::Type { index: 4, expected: DType::U32, .. })));
        for (heads, fits) in [(4, true), (2, false), (1, false)] {
            let of = Some(f32s(&[heads]));
            assert_eq!(infer(full, AttentionOperands { sinks: of, ..none }).is_ok(), fits);
            assert_eq!(infer(full, AttentionOperands { slopes: of, ..none }).is_ok(), fits);
        }
        // A number of operands that differs from the operation's.
        let more = AttentionOperands { sinks: Some(()), ..AttentionOperands::default() };
        assert!(matches!(full.with(&more).infer(&[q, kv, kv]), Err(Error::Arity { expected: 4, found: 3, .. })));
        assert!(matches!(full.infer(&[q, kv, kv, q]), Err(Error::Arity { expected: 3, found: 4, .. })));
        // With positions there may be more queries than keys.
        let long = f32s(&[2, 4, 9, 32]);
        assert!(matches!(Attention::causal().infer(&[long, kv, kv]), Err(Error::Shape { .. })));
        let more = AttentionOperands { positions: u32s(&[9]), ..none };
        assert!(Attention::causal().with(&more).infer(&[long, kv, kv, more.positions.unwrap()]).is_ok());
        // Keys and values may be quantised, queries not.
        let blocks = of(DType::Blocks(crate::QuantFormat::Q8_0), &[2, 2, 5, 32]);
        assert!(full.infer(&[q, blocks, blocks]).is_ok());
        assert!(matches!(full.infer(&[blocks, kv, kv]), Err(Error::Type { index: 0, .. })));
        assert!(matches!(full.infer(&[q, of(DType::I8, &[2, 2, 5, 32]), kv]), Err(Error::Type { index: 1, .. })));
        assert!(matches!(full.check_lengths(&[5, 6], 5), Err(Error::Index { position: 1, index: 6, bound: 6, .. })));
    }
}
