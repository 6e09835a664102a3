use super::matmul::product_bound;
use super::{Bound, Contract, Operation, Outputs, Padding};
use crate::named::options;
use crate::{DType, Error, Result, Shape, TensorType};

/// The transposed convolution of the frameworks: every pixel adds the kernel, times itself, to the result, `stride` results further than
/// the pixel before it.
///
/// The input is `[h, w]`, `[c_in, h, w]` or `[n, c_in, h, w]`, the kernel `[kh, kw]` for the first and
/// `[c_in, c_out / groups, kh, kw]` for the others; the result has the rank of the input, with `c_out` channels. A signal `[c_in, w]`
/// or `[n, c_in, w]` takes kernels `[c_in, c_out / groups, kw]`, as an image of one row.
///
/// Along a dimension of `h` pixels the result has `(h - 1) stride + (kh - 1) dilation + 1 + output_padding` elements less those of the
/// padding. This is `conv_transpose2d` of PyTorch and `ConvTranspose` of ONNX; it is the transpose of [`Convolve2d`](super::Convolve2d)
/// with these options, whose kernel is `[c_out, c_in / groups, kh, kw]` with `c_out` the channels of the input here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolveTranspose2d {
    /// The results that are cut off: the rows and columns of [`Padding::Sides`], nothing for [`Padding::Valid`], and for
    /// [`Padding::Same`] those beyond `extent * stride`, half of them at the beginning, the odd one at the end.
    pub padding: Padding,
    /// Steps between the results that neighbouring pixels are added to, down and across.
    pub stride: (usize, usize),
    /// Steps between the results that neighbouring elements of the kernel are added to, down and across.
    pub dilation: (usize, usize),
    /// Groups of channels. They divide the channels of the image.
    pub groups: usize,
    /// Rows and columns after the last ones: less than stride or dilation, and 0 with [`Padding::Same`].
    pub output_padding: (usize, usize),
}

impl Default for ConvolveTranspose2d {
    fn default() -> Self {
        Self { padding: Padding::Valid, stride: (1, 1), dilation: (1, 1), groups: 1, output_padding: (0, 0) }
    }
}

options!(
    ConvolveTranspose2d,
    (
        padding: Padding = Padding::Valid, stride: (usize, usize) = (1, 1), dilation: (usize, usize) = (1, 1), groups: usize = 1,
        output_padding: (usize, usize) = (0, 0)
    ),
    Self { padding, stride, dilation, groups, output_padding }
);

/// The extents of a transposed convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolveTransposeExtents {
    /// Number of images.
    pub batch: usize,
    /// Channels of an image, of all groups.
    pub c_in: usize,
    /// Rows of an image.
    pub h: usize,
    /// Columns of an image.
    pub w: usize,
    /// Channels of a result, of all groups.
    pub c_out: usize,
    /// Rows of the kernel.
    pub kh: usize,
    /// Columns of the kernel.
    pub kw: usize,
    /// Rows of a result.
    pub out_h: usize,
    /// Columns of a result.
    pub out_w: usize,
    /// Rows that are cut off above the result.
    pub top: usize,
    /// Columns that are cut off to the left of the result.
    pub left: usize,
    /// Steps between the results of neighbouring pixels, down and across: 1 for an image of one row or column.
    pub stride: (usize, usize),
    /// Steps between the results of neighbouring elements of the kernel, down and across: 1 for a kernel of one row or column.
    pub dilation: (usize, usize),
    /// Groups of channels.
    pub groups: usize,
}

/// The elements of the kernel that reach a result along one dimension.
///
/// With `q` the number of the result, counted from before the padding, element `p` reaches it from pixel `(q - p dilation) / stride`,
/// if that is whole and a pixel. No element does unless `common` divides `q`; otherwise every `elements`th does, from
/// `(q / common) inverse mod elements` on; from one to the next the pixel is `pixels` further to the front.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reaching {
    /// The greatest common divisor of stride and dilation.
    pub common: usize,
    /// The stride divided by it.
    pub elements: usize,
    /// The dilation divided by it.
    pub pixels: usize,
    /// The inverse of `pixels` modulo `elements`.
    pub inverse: usize,
}

impl Reaching {
    fn new(stride: usize, dilation: usize) -> Self {
        // Euclid's algorithm; `factors` times the dilation are the remainders modulo the stride.
        let (mut remainders, mut factors) = ((stride, dilation % stride), (0i128, 1i128));
        while remainders.1 > 0 {
            let quotient = remainders.0 / remainders.1;
            remainders = (remainders.1, remainders.0 % remainders.1);
            factors = (factors.1, factors.0 - quotient as i128 * factors.1);
        }
        let common = remainders.0;
        let elements = stride / common;
        let inverse = factors.0.rem_euclid(elements as i128) as usize;
        Self { common, elements, pixels: dilation / common, inverse }
    }

    /// Maximum number of elements of a kernel of `k` that reach a result.
    pub fn most(&self, k: usize) -> usize {
        k.div_ceil(self.elements)
    }
}

impl ConvolveTransposeExtents {
    /// The elements of the kernel that reach a result, down and across.
    pub fn reaching(&self) -> [Reaching; 2] {
        [(self.stride.0, self.dilation.0), (self.stride.1, self.dilation.1)].map(|(s, d)| Reaching::new(s, d))
    }

    /// Maximum number of products of a result.
    pub fn terms(&self) -> usize {
        let [down, across] = self.reaching();
        self.c_in / self.groups * down.most(self.kh) * across.most(self.kw)
    }
}

/// Rows or columns of a result before any are cut off, at most: sums of a few of them do not overflow.
const LONGEST: usize = isize::MAX as usize / 8;

const OP: &str = "convolve_transpose2d";

impl ConvolveTranspose2d {
    /// The extents for an input and a kernel.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a stride, a dilation or a number of groups of zero, for an output padding that neither stride nor
    /// dilation exceeds, for results beyond what can be addressed, and for rows around a signal; [`Error::Shape`] when the operands do
    /// not fit one another, the groups do not divide the channels, image or kernel are empty, or the padding leaves no result;
    /// [`Error::Overflow`] when there are too many channels.
    pub fn extents(&self, input: &Shape, kernel: &Shape) -> Result<ConvolveTransposeExtents> {
        let Self { stride, dilation, groups, output_padding: more, .. } = *self;
        for (what, (down, across)) in [("stride", stride), ("dilation", dilation)] {
            if down == 0 || across == 0 {
                let reason = format!("the {what} ({down}, {across}) must be at least 1");
                return Err(Error::Parameter { op: OP, reason });
            }
        }
        if groups == 0 {
            return Err(Error::Parameter { op: OP, reason: "0 groups: there must be at least 1".into() });
        }
        if more.0 >= stride.0.max(dilation.0) || more.1 >= stride.1.max(dilation.1) {
            let reason = format!(
                "the output padding {more:?} must be less than the stride {stride:?} or the dilation {dilation:?}"
            );
            return Err(Error::Parameter { op: OP, reason });
        }
        if self.padding == Padding::Same && more != (0, 0) {
            let reason = format!("the output padding {more:?} must be (0, 0) with padding that decides the extents");
            return Err(Error::Parameter { op: OP, reason });
        }
        let Some(([batch, c_in, h, w], [c_kernel, each, kh, kw])) = super::conv::four_dims(input, kernel) else {
            let allowed = "an image [h, w] takes a kernel [kh, kw], [c, h, w] or [n, c, h, w] one of \
                           [c, c_out / groups, kh, kw], and a signal [c, w] or [n, c, w] one of [c, c_out / groups, kw]";
            return Err(Error::mismatch(OP, "image and kernel", input, kernel, allowed));
        };
        if c_kernel != c_in {
            let allowed = format!("the image has {c_in} channels, the kernel is for {c_kernel}");
            return Err(Error::mismatch(OP, "channels of image and kernel", input, kernel, &allowed));
        }
        if !c_in.is_multiple_of(groups) {
            let reason = format!("{groups} groups do not divide the {c_in} channels of {input}");
            return Err(Error::Shape { op: OP, reason });
        }
        if kh == 0 || kw == 0 {
            return Err(Error::Shape { op: OP, reason: format!("the kernel {kernel} has no element") });
        }
        if h == 0 || w == 0 {
            return Err(Error::Shape { op: OP, reason: format!("an image of {input} has no pixel") });
        }
        let Some(c_out) = each.checked_mul(groups).filter(|&c_out| c_out <= LONGEST) else {
            return Err(Error::Overflow { what: OP, extents: vec![each, groups] });
        };
        let (rows, columns) = match self.padding {
            Padding::Valid => (Some((0, 0)), Some((0, 0))),
            Padding::Same => (None, None),
            Padding::Sides { top, bottom, left, right } => (Some((top, bottom)), Some((left, right))),
        };
        let operands = (input, kernel);
        let (out_h, top) = Self::along((h, kh), (stride.0, dilation.0), more.0, rows, operands)?;
        let (out_w, left) = Self::along((w, kw), (stride.1, dilation.1), more.1, columns, operands)?;
        if kernel.rank() == 3 && (out_h, top) != (1, 0) {
            let reason = format!("the padding, stride or output padding adds or cuts off rows of {input}, a signal");
            return Err(Error::Parameter { op: OP, reason });
        }
        let taken = |n: usize, step: usize| if n == 1 { 1 } else { step };
        let stride = (taken(h, stride.0), taken(w, stride.1));
        let dilation = (taken(kh, dilation.0), taken(kw, dilation.1));
        Ok(ConvolveTransposeExtents {
            batch,
            c_in,
            h,
            w,
            c_out,
            kh,
            kw,
            out_h,
            out_w,
            top,
            left,
            stride,
            dilation,
            groups,
        })
    }

    /// Results, and how many are cut off before them, along one dimension of `n` pixels and `k` elements of a kernel. `sides` are cut
    /// off before and after, or `None` for what [`Padding::Same`] cuts off.
    fn along(
        (n, k): (usize, usize),
        (stride, dilation): (usize, usize),
        more: usize,
        sides: Option<(usize, usize)>,
        (input, kernel): (&Shape, &Shape),
    ) -> Result<(usize, usize)> {
        let addressed = |n: &usize| *n <= LONGEST;
        let reached = |n: usize, step: usize| (n - 1).checked_mul(step).filter(addressed);
        let all = (reached(n, stride), reached(k, dilation), sides.is_some() || n.checked_mul(stride).is_some());
        let (Some(pixels), Some(elements), true, true) = (all.0, all.1, all.2, addressed(&more)) else {
            let reason = format!(
                "{input} with a kernel {kernel} at a stride of {stride} and a dilation of {dilation} reaches beyond what can be \
                 addressed"
            );
            return Err(Error::Parameter { op: OP, reason });
        };
        let all = pixels + elements + 1 + more;
        let Some((before, after)) = sides else {
            let out = n * stride;
            return Ok((out, all.saturating_sub(out) / 2));
        };
        match all.checked_sub(before).and_then(|rest| rest.checked_sub(after)) {
            None | Some(0) => {
                let reason = format!(
                    "padding of {before} before and {after} after cuts off all {all} results of {input} with a kernel {kernel}"
                );
                Err(Error::Shape { op: OP, reason })
            }
            Some(out) => Ok((out, before)),
        }
    }
}

impl Operation for ConvolveTranspose2d {
    fn name(&self) -> &'static str {
        OP
    }

    fn formula(&self) -> &'static str {
        "yₒ[i, j] = Σ w꜀ₒ[p, r] x꜀[a, b], a·s + p·d = i + top, b·s + r·d = j + left"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(OP, inputs, &[DType::F32; 2])?;
        let e = self.extents(&inputs[0].shape, &inputs[1].shape)?;
        super::conv::result_type(inputs, [e.batch, e.c_out, e.out_h, e.out_w])
    }

    /// Products whose sum is cut off count.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape)
            .map_or(0, |e| super::product(&[2, e.batch, e.c_in, e.h, e.w, e.c_out / e.groups, e.kh, e.kw]))
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: product_bound(4096),
            special: "IEEE 754 of the products of pixels and weights: what no pixel reaches is 0, whatever the weights; no input channel \
                      gives zeros; the bound is that of a matrix product with as many products as reach a result, named for 4096",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_bound(e.terms()))
    }

    /// That of the convolutions that it is cut into, whose kernels are the elements that reach a result.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| {
            let [down, across] = e.reaching();
            let (kh, kw) = (down.most(e.kh), across.most(e.kw));
            let products = e.terms();
            let sums = products.div_ceil(256).max(e.c_in / e.groups * kh.max((kh * kw).div_ceil(320)));
            Bound::Magnitude((products.min(320) + sums + 1) as f64)
        })
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases = Vec::new();
        for (c_in, c_out, side, k, stride) in [(1, 1, 30, 17, 1), (64, 8, 9, 3, 1), (130, 20, 11, 4, 2)] {
            let x = Input::f32(vec![1.0; c_in * side * side], &[c_in, side, side]);
            let kernel = Input::f32(vec![0.1; c_in * c_out * k * k], &[c_in, c_out, k, k]);
            cases.push(Case::new(Self { stride: (stride, stride), ..Self::default() }, vec![x, kernel]));
        }
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (x, kernel) = (inputs[0].data().f32(), inputs[1].data().f32());
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape()) else { return Vec::new() };
        let n = e.batch * e.c_out * e.out_h * e.out_w;
        let (mut values, mut magnitudes) = (vec![0.0; n], vec![0.0; n]);
        let (group_in, group_out) = (e.c_in / e.groups, e.c_out / e.groups);
        let to = |pixel: usize, stride: usize, element: usize, dilation: usize, before: usize, results: usize| {
            (pixel * stride + element * dilation).checked_sub(before).filter(|&result| result < results)
        };
        for (at, &pixel) in x.iter().enumerate() {
            let (b, a, plane) = (at % e.w, at / e.w % e.h, at / (e.w * e.h));
            let (c, image) = (plane % e.c_in, plane / e.c_in);
            for o in 0..group_out {
                for p in 0..e.kh {
                    let Some(i) = to(a, e.stride.0, p, e.dilation.0, e.top, e.out_h) else { continue };
                    for r in 0..e.kw {
                        let Some(j) = to(b, e.stride.1, r, e.dilation.1, e.left, e.out_w) else { continue };
                        let term = f64::from(pixel) * f64::from(kernel[((c * group_out + o) * e.kh + p) * e.kw + r]);
                        let channel = image * e.c_out + c / group_in * group_out + o;
                        let result = (channel * e.out_h + i) * e.out_w + j;
                        values[result] += term;
                        magnitudes[result] += term.abs();
                    }
                }
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(137);
        let sides = |top, bottom, left, right| Padding::Sides { top, bottom, left, right };
        let mut cases = Vec::new();
        let mut tensor = |dims: &[usize]| Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
        // (stride, dilation, output padding): doubles, results that nothing reaches, common divisors of stride and dilation.
        let steps = [
            ((1, 1), (1, 1), (0, 0)),
            ((2, 2), (1, 1), (1, 1)),
            ((3, 2), (1, 1), (2, 0)),
            ((1, 2), (2, 1), (1, 0)),
            ((4, 3), (2, 2), (0, 1)),
            ((2, 3), (3, 6), (2, 5)),
        ];
        // (n, groups, channels of a group, h, w, results of a group, kh, kw)
        for (n, groups, c_in, h, w, c_out, kh, kw) in [
            (1, 1, 1, 1, 1, 1, 1, 1),
            (1, 1, 1, 5, 7, 1, 3, 3),
            (1, 1, 1, 9, 35, 1, 4, 2),
            (1, 1, 2, 4, 6, 3, 2, 2),
            (2, 1, 3, 5, 4, 5, 3, 4),
            (1, 1, 40, 6, 7, 9, 4, 4),
            (1, 1, 17, 5, 19, 33, 2, 2),
            (1, 5, 1, 6, 9, 1, 3, 3),
            (2, 3, 4, 3, 5, 2, 5, 1),
            (1, 1, 300, 2, 3, 2, 1, 2),
            (1, 1, 0, 3, 3, 2, 2, 2),
            (2, 1, 2, 3, 3, 0, 2, 2),
            (0, 1, 2, 3, 3, 2, 2, 2),
        ] {
            for (stride, dilation, output_padding) in steps {
                for padding in [Padding::Valid, Padding::Same, sides(1, 0, 2, 1), sides(4, 3, 0, 6)] {
                    let output_padding = if padding == Padding::Same { (0, 0) } else { output_padding };
                    let op = Self { padding, stride, dilation, groups, output_padding };
                    let (input, kernel) = ([n, groups * c_in, h, w], [groups * c_in, c_out, kh, kw]);
                    let input = tensor(&input[usize::from(n == 1)..]);
                    let kernel = tensor(&kernel);
                    if op.extents(&input.shape, &kernel.shape).is_ok() {
                        cases.push(Case::new(op, vec![input, kernel]));
                    }
                }
            }
        }
        // One channel without a dimension for it; signals.
        for (stride, dilation, output_padding) in steps {
            let op = Self { stride, dilation, output_padding, ..Self::default() };
            cases.push(Case::new(op, vec![tensor(&[6, 11]), tensor(&[3, 3])]));
            let along = |(_, across): (usize, usize)| (1, across);
            let (stride, dilation, output_padding) = (along(stride), along(dilation), (0, output_padding.1));
            let op = Self { padding: sides(0, 0, 1, 2), stride, dilation, groups: 2, output_padding };
            cases.push(Case::new(op, vec![tensor(&[6, 23]), tensor(&[6, 5, 4])]));
            cases.push(Case::new(op, vec![tensor(&[2, 4, 9]), tensor(&[4, 1, 3])]));
        }
        // A kernel for each result, as of patches; a stride that leaves most results without a product; rows far apart.
        let patches = Self { stride: (7, 5), ..Self::default() };
        cases.push(Case::new(patches, vec![tensor(&[20, 4, 5]), tensor(&[20, 3, 7, 5])]));
        cases.push(Case::new(patches, vec![tensor(&[3, 4, 5]), tensor(&[3, 2, 2, 3])]));
        let far = Self { stride: (40, 60), dilation: (7, 90), ..Self::default() };
        cases.push(Case::new(far, vec![tensor(&[2, 3, 2]), tensor(&[2, 2, 3, 2])]));
        // Special values reach exactly the results that they are multiplied for.
        for (at, special) in [(30, f32::NAN), (47, f32::INFINITY), (51, f32::NEG_INFINITY), (40, 1e38)] {
            for (stride, dilation, output_padding) in steps {
                let padding = sides(2, 0, 1, 1);
                let op = Self { padding, stride, dilation, groups: 1, output_padding };
                let (x, kernel) = (tensor(&[2, 5, 7]), tensor(&[2, 5, 3, 3]));
                let with = |input: &Input, at: usize| {
                    let mut elements = input.buffer.as_data().f32().to_vec();
                    elements[at] = special;
                    Input::f32(elements, input.shape.dims())
                };
                let (special_x, special_kernel) = (with(&x, at), with(&kernel, at + 3));
                cases.push(Case::new(op, vec![special_x.clone(), kernel]));
                cases.push(Case::new(op, vec![x, special_kernel.clone()]));
                cases.push(Case::new(op, vec![special_x, special_kernel]));
            }
        }
        cases
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    fn shape(dims: &[usize]) -> Shape {
        Shape::new(dims).unwrap()
    }

    #[test]
    fn options_decide_the_extents() {
        let op = ConvolveTranspose2d::default();
        let sides = Padding::Sides { top: 1, bottom: 2, left: 0, right: 3 };
        let (stride, dilation) = ((2, 3), (2, 1));
        let general = ConvolveTranspose2d { padding: sides, stride, dilation, groups: 2, output_padding: (1, 2) };
        let e = general.extents(&shape(&[4, 5, 6]), &shape(&[4, 3, 3, 2])).unwrap();
        assert_eq!((e.c_out, e.out_h, e.out_w, e.top, e.left), (6, 8 + 4 + 1 + 1 - 3, 15 + 1 + 1 + 2 - 3, 1, 0));
        // Of three rows all are for even results, of two columns one or none for each.
        assert_eq!(e.terms(), 2 * 3);
        let types = [TensorType::f32(shape(&[4, 5, 6])), TensorType::f32(shape(&[4, 3, 3, 2]))];
        assert_eq!(general.infer(&types).unwrap()[0].shape, shape(&[6, 11, 16]));
        assert_eq!(general.flops(&types, &general.infer(&types).unwrap()), 2 * 4 * 5 * 6 * 3 * 3 * 2);
        // Extents times the stride, whatever the kernel; where they are longer than all that is reached there are zeros behind.
        for (k, before) in [(2, 0), (3, 0), (4, 1), (5, 1), (1, 0)] {
            let op = ConvolveTranspose2d { padding: Padding::Same, stride: (2, 2), ..op };
            let e = op.extents(&shape(&[4, 7]), &shape(&[k, k])).unwrap();
            assert_eq!((e.out_h, e.out_w, e.top, e.left), (8, 14, before, before), "{k}");
        }
        // A signal is an image of one row; a step that is never taken counts for nothing.
        let op = ConvolveTranspose2d { stride: (9, 2), output_padding: (0, 1), ..op };
        let types = [TensorType::f32(shape(&[5, 4, 10])), TensorType::f32(shape(&[4, 7, 3]))];
        assert_eq!(op.infer(&types).unwrap()[0].shape, shape(&[5, 7, 22]));
        let e = op.extents(&types[0].shape, &types[1].shape).unwrap();
        assert_eq!((e.stride, e.dilation), ((1, 2), (1, 1)));
    }

    #[test]
    fn elements_that_reach_a_result_are_found_without_a_search() {
        for stride in 1..13 {
            for dilation in 1..13 {
                let Reaching { common, elements, pixels, inverse } = Reaching::new(stride, dilation);
                assert_eq!((common * elements, common * pixels), (stride, dilation));
                for q in 0..60 {
                    let found: Vec<usize> = match q % common {
                        0 => (q / common % elements * inverse % elements..20).step_by(elements).collect(),
                        _ => Vec::new(),
                    };
                    let reaches = |p: &usize| (q as i64 - (p * dilation) as i64).rem_euclid(stride as i64) == 0;
                    assert_eq!(found, (0..20).filter(reaches).collect::<Vec<_>>(), "{stride} {dilation} {q}");
                }
            }
        }
    }

    /// What `conv_transpose2d` and `conv_transpose1d` of PyTorch 2.15 give, and `ConvTranspose` of ONNX Runtime for padding of each side
    /// and that which it decides.
    #[test]
    #[cfg(feature = "reference")]
    fn results_are_those_of_pytorch() {
        use crate::op::reference::{Expected, Input};
        let tensor = |elements: &[f32], dims: &[usize]| Input::f32(elements.to_vec(), dims);
        let two = tensor(&[1.0, 2.0, 3.0, 4.0, -1.0, 0.0, 5.0, -2.0], &[2, 2, 2]);
        let kernels = tensor(&[1.0, 2.0, 3.0, 4.0, 5.0, 6.0, -1.0, 0.0, 2.0, 1.0, -3.0, 1.0], &[2, 1, 2, 3]);
        let one = tensor(&[1.0, 2.0, 4.0, 8.0, 16.0, 32.0], &[2, 3]);
        let counted = |k: u8| tensor(&(1..=k * k).map(f32::from).collect::<Vec<_>>(), &[k.into(); 2]);
        let plain = ConvolveTranspose2d::default();
        let doubled = ConvolveTranspose2d { stride: (2, 2), ..plain };
        let same = ConvolveTranspose2d { padding: Padding::Same, ..doubled };
        let cut = Padding::Sides { top: 1, bottom: 0, left: 0, right: 2 };
        let dilated = ConvolveTranspose2d {
            padding: Padding::around(0, 1),
            stride: (2, 1),
            dilation: (1, 2),
            output_padding: (1, 0),
            ..plain
        };
        let grouped = ConvolveTranspose2d {
            padding: Padding::around(1, 1),
            dilation: (3, 2),
            groups: 2,
            output_padding: (2, 1),
            ..doubled
        };
        let signal =
            ConvolveTranspose2d { padding: Padding::around(0, 1), stride: (1, 2), output_padding: (0, 1), ..plain };
        let of_signal = [tensor(&[1.0, 2.0, 3.0], &[1, 3]), tensor(&[1.0, 10.0, 100.0, 1.0, 0.0, -1.0], &[1, 2, 3])];
        let [signals, signal_kernels] = of_signal;
        #[rustfmt::skip]
        let cases: [(_, _, _, &[f64]); 7] = [
            (dilated, two.clone(), kernels.clone(), &[
                2.0, 2.0, 4.0, 1.0, 8.0, 8.0, 10.0, 5.0, 6.0, 6.0, 8.0, 19.0, 14.0, 0.0, 26.0, 23.0, 0.0, 0.0, 0.0, 0.0,
            ]),
            (grouped, two, kernels, &[
                0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 10.0, 0.0, 17.0, 0.0, 12.0, 0.0, 13.0, 0.0, 16.0, 0.0, 12.0,
                0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 31.0, 0.0, 38.0, 0.0, 24.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
                0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0, 0.0, 10.0, 0.0, -4.0, 0.0, 3.0, 0.0, -1.0, 0.0, 0.0,
                0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, -17.0, 0.0, 11.0, 0.0, -2.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0,
            ]),
            (signal, signals, signal_kernels, &[
                10.0, 102.0, 20.0, 203.0, 30.0, 300.0, 0.0, 1.0, 0.0, 1.0, 0.0, -3.0,
            ]),
            (same, one.clone(), counted(2), &[
                1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 3.0, 4.0, 6.0, 8.0, 12.0, 16.0,
                8.0, 16.0, 16.0, 32.0, 32.0, 64.0, 24.0, 32.0, 48.0, 64.0, 96.0, 128.0,
            ]),
            (same, one.clone(), counted(3), &[
                1.0, 2.0, 5.0, 4.0, 10.0, 8.0, 4.0, 5.0, 14.0, 10.0, 28.0, 20.0,
                15.0, 24.0, 63.0, 48.0, 126.0, 96.0, 32.0, 40.0, 112.0, 80.0, 224.0, 160.0,
            ]),
            (same, one.clone(), counted(4), &[
                6.0, 17.0, 20.0, 34.0, 40.0, 28.0, 26.0, 69.0, 96.0, 138.0, 192.0, 140.0,
                62.0, 177.0, 204.0, 354.0, 408.0, 284.0, 80.0, 232.0, 256.0, 464.0, 512.0, 352.0,
            ]),
            (ConvolveTranspose2d { padding: cut, ..doubled }, one, counted(3), &[
                4.0, 5.0, 14.0, 10.0, 28.0, 15.0, 24.0, 63.0, 48.0, 126.0,
                32.0, 40.0, 112.0, 80.0, 224.0, 56.0, 64.0, 184.0, 128.0, 368.0,
            ]),
        ];
        for (op, x, kernel, wanted) in cases {
            let found = op.reference(&[x.operand().unwrap(), kernel.operand().unwrap()]);
            let [Expected::F32 { values, .. }] = &found[..] else { panic!("{op:?}") };
            assert_eq!(values, wanted, "{op:?}");
        }
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        const FAR: usize = usize::MAX;
        let op = ConvolveTranspose2d::default();
        let (image, kernel) = (shape(&[4, 4, 4]), shape(&[4, 2, 3, 3]));
        let sides = |top, bottom, left, right| Padding::Sides { top, bottom, left, right };
        for wrong in [
            ConvolveTranspose2d { stride: (1, 0), ..op },
            ConvolveTranspose2d { dilation: (0, 1), ..op },
            ConvolveTranspose2d { groups: 0, ..op },
            ConvolveTranspose2d { output_padding: (0, 1), ..op },
            ConvolveTranspose2d { stride: (2, 2), dilation: (3, 1), output_padding: (2, 2), ..op },
            ConvolveTranspose2d { stride: (2, 2), padding: Padding::Same, output_padding: (1, 1), ..op },
            ConvolveTranspose2d { stride: (FAR, 1), ..op },
            ConvolveTranspose2d { stride: (1, FAR / 2), padding: Padding::Same, ..op },
            ConvolveTranspose2d { dilation: (FAR / 3, 1), ..op },
            ConvolveTranspose2d { dilation: (FAR, 1), output_padding: (FAR - 1, 0), ..op },
        ] {
            let found = wrong.extents(&image, &kernel);
            assert!(matches!(found, Err(Error::Parameter { .. })), "{wrong:?}: {found:?}");
        }
        for wrong in [sides(3, 3, 0, 0), sides(0, 0, FAR, FAR), sides(0, 6, 0, 0)] {
            let found = ConvolveTranspose2d { padding: wrong, ..op }.extents(&image, &kernel);
            assert!(matches!(found, Err(Error::Shape { .. })), "{wrong:?}: {found:?}");
        }
        for (groups, image, kernel) in [
            (1, &[4, 4][..], &[1, 1, 3, 3][..]),
            (1, &[3, 4, 4], &[4, 3, 3, 3]),
            (1, &[3, 4, 4], &[3, 3]),
            (2, &[3, 4, 4], &[3, 1, 3, 3]),
            (FAR, &[3, 4, 4], &[3, 1, 3, 3]),
            (1, &[0, 4], &[3, 3]),
            (1, &[4, 4], &[0, 3]),
            (1, &[2, 4], &[3, 1, 3]),
            (1, &[4], &[3]),
        ] {
            let found = ConvolveTranspose2d { groups, ..op }.extents(&shape(image), &shape(kernel));
            assert!(matches!(found, Err(Error::Shape { .. })), "{image:?} {kernel:?}: {found:?}");
        }
        let found =
            ConvolveTranspose2d { groups: FAR / 2, ..op }.extents(&shape(&[0, 4, 4]), &shape(&[0, 1 << 20, 1, 1]));
        assert!(matches!(found, Err(Error::Overflow { .. })), "{found:?}");
        // A signal has no rows to cut off or to add.
        for wrong in [sides(1, 0, 0, 0), Padding::Same] {
            let wrong = ConvolveTranspose2d { padding: wrong, stride: (2, 1), ..op };
            let found = wrong.extents(&shape(&[4, 5]), &shape(&[4, 2, 3]));
            assert!(matches!(found, Err(Error::Parameter { .. } | Error::Shape { .. })), "{found:?}");
        }
    }
}
