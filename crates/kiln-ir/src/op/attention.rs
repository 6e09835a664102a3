use super::{Bound, Contract, Operation, Outputs, Param};
use crate::{DType, Error, Result, Shape, TensorType};

/// Scaled dot-product attention: each query gives the mean of the values, weighted by the softmax of its scaled products
/// with the keys.
///
/// Queries are `[heads, s, d]` or `[batch, heads, s, d]`, keys and values `[kv_heads, t, d]` or
/// `[batch, kv_heads, t, d]`, the result is like the queries. `heads` is a multiple of `kv_heads`: that many
/// neighbouring query heads share a head of keys and values.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Attention {
    /// Whether a query sees only the keys up to its own position. The last query stands at the last key, so query `i`
    /// of `s` sees the keys `0 ..= t - s + i`, and there must be no fewer keys than queries.
    pub causal: bool,
    /// What the products of queries and keys are multiplied by; `1/√d` when `None`.
    pub scale: Option<Param>,
}

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
    /// Elements of a query, key or value.
    pub d: usize,
}

impl AttentionExtents {
    /// How many keys query `i` sees, the first ones.
    pub fn visible(&self, causal: bool, i: usize) -> usize {
        if causal { self.t - self.s + i + 1 } else { self.t }
    }
}

impl Attention {
    /// Full attention: every query sees every key.
    pub const fn full() -> Self {
        Self { causal: false, scale: None }
    }

    /// Causal attention.
    pub const fn causal() -> Self {
        Self { causal: true, scale: None }
    }

    /// The factor of the products for rows of `d` elements.
    pub fn scale(&self, d: usize) -> f32 {
        self.scale.map_or_else(|| (1.0 / (d as f64).sqrt()) as f32, Param::get)
    }

    /// The extents for queries, keys and values.
    ///
    /// # Errors
    /// [`Error::Shape`] when they do not fit one another.
    pub fn extents(&self, q: &Shape, k: &Shape, v: &Shape) -> Result<AttentionExtents> {
        let op = "attention";
        if k != v {
            return Err(Error::mismatch(op, "keys and values", k, v, "both need the same extents"));
        }
        let ([outer_q @ .., heads, s, d], [outer_k @ .., kv_heads, t, d_k]) = (q.dims(), k.dims()) else {
            return Err(Error::Shape { op, reason: format!("{q} and {k} are not both heads of rows") });
        };
        if outer_q != outer_k || d != d_k {
            let allowed = "only the numbers of heads and of rows, the third and second extent from the end, may differ";
            return Err(Error::mismatch(op, "queries and keys", q, k, allowed));
        }
        if *heads > 0 && (*kv_heads == 0 || heads % kv_heads != 0) {
            let reason = format!("{heads} heads of queries do not share {kv_heads} heads of keys evenly");
            return Err(Error::Shape { op, reason });
        }
        if self.causal && t < s {
            let reason = format!("{t} keys are fewer than {s} queries, so the first would see none");
            return Err(Error::Shape { op, reason });
        }
        let group = heads.checked_div(*kv_heads).unwrap_or(0);
        Ok(AttentionExtents { batch: outer_q.iter().product(), kv_heads: *kv_heads, group, s: *s, t: *t, d: *d })
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
        super::expect_types("attention", inputs, &[DType::F32; 3])?;
        self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape)?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    /// Two products a key that is seen, and sixteen flops for its weight.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape).map_or(0, |e| {
            let all = super::product(&[e.s, e.t]);
            let unseen = if self.causal { super::product(&[e.s, e.s.saturating_sub(1)]) / 2 } else { 0 };
            let each = super::product(&[e.batch, e.kv_heads, e.group]).saturating_mul(super::product(&[4, e.d]) + 16);
            (all - unseen).saturating_mul(each)
        })
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Magnitude(8.0),
            special: "the bound is relative to Σⱼ pⱼ |vⱼ| (1 + aⱼ + Σₖ pₖ aₖ), with the weights p and aⱼ = scale Σ |q kⱼ|, and is several \
                      times what independent roundings come to; where they all go one way, as with equal keys and values, the error \
                      may come to min(t, 128) + 8 ⌈t / 128⌉ + 2 ln t + 50 on the CPU, or min(d, 512) + d / 4 + 8 where that is \
                      more; a NaN score, a score of +∞ or only scores of -∞ give NaN; weights below 2^-126 of the largest may \
                      count as zero; keys that a query does not see have no influence, whatever they hold; no keys at \
                      all give zeros",
        }
    }

    /// Values are added up over 128 keys in a chain, weights in four, then those of the blocks, which a change of the maximum scales: an
    /// exponential and a product. Scores are chains of 512 products at most, or of a vector's lanes. What the maximum and the
    /// scores are off by reaches the weights, whose mean of (m - s) is at most ln t.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        let extents = self.extents(&inputs[0].shape, &inputs[1].shape, &inputs[2].shape);
        extents.map_or(Bound::Exact, |e| {
            let values = (e.t.min(128) + 8 * e.t.div_ceil(128) + 50) as f64 + 2.0 * (e.t.max(1) as f64).ln();
            Bound::Magnitude(values.max((e.d.min(512) + e.d / 4 + 8) as f64))
        })
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases = Vec::new();
        // No query prefers a key; one, few and many of them.
        for (s, t, d, value) in [(1, 128, 8, 0.1), (1, 8192, 4, 0.764), (70, 128, 20, 0.1), (70, 1000, 3, 0.519)] {
            let q = Input::f32(vec![0.0; s * d], &[1, s, d]);
            let equal = |x: f32| Input::f32(vec![x; t * d], &[1, t, d]);
            cases.push(Case::new(Self::full(), vec![q, equal(1.0), equal(value)]));
        }
        // Equal products, too.
        let equal = |rows: usize, x: f32| Input::f32(vec![x; rows * 1024], &[1, rows, 1024]);
        cases.push(Case::new(Self::full(), vec![equal(9, 1.0), equal(40, 0.1), equal(40, 0.1)]));
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (q, k, v) = (inputs[0].data().f32(), inputs[1].data().f32(), inputs[2].data().f32());
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape(), &inputs[2].shape()) else { return Vec::new() };
        let scale = f64::from(self.scale(e.d));
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for row in 0..e.batch * e.kv_heads * e.group * e.s {
            let (head, i) = (row / e.s, row % e.s);
            let rows = head / e.group * e.t;
            let seen = e.visible(self.causal, i);
            let products = |j: usize| {
                let q = &q[row * e.d..][..e.d];
                let k = &k[(rows + j) * e.d..][..e.d];
                q.iter().zip(k).map(|(&q, &k)| f64::from(q) * f64::from(k))
            };
            let scores: Vec<f64> = (0..seen).map(|j| products(j).sum::<f64>() * scale).collect();
            let sizes: Vec<f64> = (0..seen).map(|j| products(j).map(f64::abs).sum::<f64>() * scale.abs()).collect();
            let greatest = scores.iter().copied().fold(f64::NEG_INFINITY, super::maximum);
            let weights: Vec<f64> = scores.iter().map(|s| (s - greatest).exp()).collect();
            let total: f64 = weights.iter().sum();
            // A key of weight zero may have an infinite score.
            let weighted = |w: f64, a: f64| if w == 0.0 { 0.0 } else { w * a };
            let size: f64 = weights.iter().zip(&sizes).map(|(w, &a)| weighted(w / total, a)).sum();
            for c in 0..e.d {
                let terms = (0..seen).map(|j| (j, weights[j] / total * f64::from(v[(rows + j) * e.d + c])));
                values.push(terms.clone().map(|(_, t)| t).sum());
                magnitudes.push(terms.map(|(j, t)| weighted(t.abs(), 1.0 + sizes[j] + size)).sum());
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(19);
        let mut cases = Vec::new();
        let mut tensor =
            |dims: &[usize], size: f32| Input::f32(random.uniforms(dims.iter().product(), -size, size), dims);
        // (batch, heads, kv_heads, s, t, d): one, few and many rows and keys, around blocks of rows and of keys, grouped
        // heads, decoding of one and of some rows, empty in every extent.
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
                    cases.push(Case::new(Self { causal, scale }, inputs));
                }
            }
        }
        // More queries than keys, and no key at all, where every query sees every key.
        for t in [5, 0] {
            let inputs = vec![tensor(&[2, 9, 4], 1.0), tensor(&[2, t, 4], 1.0), tensor(&[2, t, 4], 1.0)];
            cases.push(Case::new(Self::full(), inputs));
        }
        // Special values: in a query, in a key, in a value; a causal row that does not see them must not notice.
        for (which, value) in [(0, f32::NAN), (1, f32::NAN), (2, f32::NAN), (1, 1e38), (2, f32::INFINITY)] {
            for causal in [false, true] {
                let mut inputs = vec![tensor(&[1, 40, 8], 1.0), tensor(&[1, 40, 8], 1.0), tensor(&[1, 40, 8], 1.0)];
                if let crate::Buffer::F32(data) = &mut inputs[which].buffer {
                    data[21 * 8 + 3] = value;
                }
                cases.push(Case::new(Self { causal, scale: None }, inputs));
            }
        }
        // The first keys score -∞ for every query, so that whole blocks of keys weigh nothing; in the second, all do.
        for unreachable in [150, 170] {
            let q = Input::f32(vec![1.0; 3 * 4], &[1, 3, 4]);
            let mut k = vec![0.5; 170 * 4];
            k[..unreachable * 4].fill(f32::NEG_INFINITY);
            let v = tensor(&[1, 170, 4], 1.0);
            cases.push(Case::new(Self::full(), vec![q, Input::f32(k, &[1, 170, 4]), v]));
        }
        cases
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
        assert_eq!((e.batch, e.kv_heads, e.group, e.s, e.t, e.d), (1, 2, 2, 3, 5, 8));
        assert_eq!([0, 1, 2].map(|i| e.visible(true, i)), [3, 4, 5]);
        assert_eq!(Attention::full().flops(&[q, kv, kv], &[q]), 4 * 15 * (32 + 16));
        assert_eq!(Attention::causal().flops(&[q, kv, kv], &[q]), 4 * 12 * (32 + 16));
        for (q, kv) in [(ty(&[3, 3, 8]), kv), (ty(&[4, 6, 8]), kv), (ty(&[4, 3, 7]), kv), (ty(&[1, 4, 3, 8]), kv)] {
            assert!(matches!(Attention::causal().infer(&[q, kv, kv]), Err(Error::Shape { .. })));
        }
    }
}
