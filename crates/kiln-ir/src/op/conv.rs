use super::matmul::product_bound;
use super::{Bound, Contract, Operation, Outputs};
use crate::named::{Form, Named, Parameter, options, read_sides};
use crate::{DType, Error, Result, Shape, TensorType};

/// The zeros around an image that is convolved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Padding {
    /// No zeros: the kernel stays inside of the image, so the result is smaller.
    #[default]
    Valid,
    /// As many zeros as give `⌈extent / stride⌉` results: half of them before the image, the rest after it, where an odd one goes.
    /// This is `SAME` of TensorFlow, `SAME_UPPER` of ONNX, and `"same"` of PyTorch at stride 1.
    Same,
    /// Rows and columns of zeros on each side.
    Sides {
        /// Rows above the image.
        top: usize,
        /// Rows below the image.
        bottom: usize,
        /// Columns to the left of the image.
        left: usize,
        /// Columns to the right of the image.
        right: usize,
    },
}

impl Padding {
    /// `rows` rows of zeros above and below the image, and `columns` columns to its left and right.
    pub const fn around(rows: usize, columns: usize) -> Self {
        Self::Sides { top: rows, bottom: rows, left: columns, right: columns }
    }
}

/// The sides of an image and of a signal, as named parameters list them.
const AROUND: [&str; 4] = ["top", "bottom", "left", "right"];
const ENDS: [&str; 2] = ["before", "after"];

impl Parameter for Padding {
    type Value = Self;
    const FORM: Form = Form::Sides(&AROUND);

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Self>> {
        let sides = |[top, bottom, left, right]: [usize; 4]| Self::Sides { top, bottom, left, right };
        read_sides(from, op, name, [Self::Valid, Self::Same], &AROUND, sides)
    }
}

/// Reads the padding of a signal, which has two sides.
pub(crate) enum Ends {}

impl Parameter for Ends {
    type Value = Padding;
    const FORM: Form = Form::Sides(&ENDS);

    fn read(from: &dyn Named, op: &'static str, name: &'static str) -> Result<Option<Padding>> {
        let sides = |[left, right]: [usize; 2]| Padding::Sides { top: 0, bottom: 0, left, right };
        read_sides(from, op, name, [Padding::Valid, Padding::Same], &ENDS, sides)
    }
}

/// The two-dimensional convolution of the frameworks, which is a cross-correlation: the kernel is not flipped.
///
/// The input is `[h, w]`, `[c_in, h, w]` or `[n, c_in, h, w]`, the kernel `[kh, kw]` for the first and
/// `[c_out, c_in / groups, kh, kw]` for the others; the result has the rank of the input, with `c_out` channels. A signal `[c_in, w]`
/// or `[n, c_in, w]` with kernels `[c_out, c_in / groups, kw]` is convolved along its one dimension, as an image of one row.
///
/// Result channel `o` of group `g = o / (c_out / groups)` sums over the input channels
/// `g * c_in / groups .. (g + 1) * c_in / groups`. One group is the ordinary convolution, `groups = c_in` the depthwise one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convolve2d {
    /// The zeros around the image.
    pub padding: Padding,
    /// Steps between neighbouring results, down and across.
    pub stride: (usize, usize),
    /// Steps between the pixels under neighbouring elements of the kernel, down and across.
    pub dilation: (usize, usize),
    /// Groups of channels. They divide the channels of the image and of the result.
    pub groups: usize,
}

impl Default for Convolve2d {
    fn default() -> Self {
        Self { padding: Padding::Valid, stride: (1, 1), dilation: (1, 1), groups: 1 }
    }
}

options!(
    Convolve2d,
    (
        padding: Padding = Padding::Valid, stride: (usize, usize) = (1, 1), dilation: (usize, usize) = (1, 1), groups: usize = 1
    ),
    Self { padding, stride, dilation, groups }
);

/// The extents of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolveExtents {
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
    /// Rows of zeros above the image.
    pub top: usize,
    /// Columns of zeros to the left of the image.
    pub left: usize,
    /// Steps between the pixels under neighbouring elements of the kernel, down and across: 1 for a kernel of one row or column.
    pub dilation: (usize, usize),
    /// Groups of channels.
    pub groups: usize,
}

impl ConvolveExtents {
    /// The extents of one group of one image.
    pub fn of_group(&self) -> Self {
        let Self { c_in, c_out, groups, .. } = *self;
        Self { batch: 1, c_in: c_in / groups, c_out: c_out / groups, groups: 1, ..*self }
    }

    /// Products of a result.
    pub fn terms(&self) -> usize {
        self.c_in / self.groups * self.kh * self.kw
    }

    /// Rows and columns that a kernel spans.
    pub fn span(&self) -> (usize, usize) {
        ((self.kh - 1) * self.dilation.0 + 1, (self.kw - 1) * self.dilation.1 + 1)
    }
}

/// Rows or columns of a padded image, and of a kernel, at most: sums of a few of them do not overflow.
const LONGEST: usize = isize::MAX as usize / 8;

const OP: &str = "convolve2d";

impl Convolve2d {
    /// The extents for an input and a kernel.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a stride, a dilation or a number of groups of zero, for a dilation or padding that reaches beyond
    /// what can be addressed, and for rows around a signal; [`Error::Shape`] when the operands do not fit one another, the groups
    /// do not divide the channels, the kernel is empty, or it is larger than a padded image.
    pub fn extents(&self, input: &Shape, kernel: &Shape) -> Result<ConvolveExtents> {
        let Self { stride, dilation, groups, .. } = *self;
        for (what, (down, across)) in [("stride", stride), ("dilation", dilation)] {
            if down == 0 || across == 0 {
                return Err(Error::Parameter {
                    op: OP,
                    reason: format!("the {what} ({down}, {across}) must be at least 1"),
                });
            }
        }
        if groups == 0 {
            return Err(Error::Parameter { op: OP, reason: "0 groups: there must be at least 1".into() });
        }
        let Some(([batch, c_in, h, w], [c_out, c_kernel, kh, kw])) = four_dims(input, kernel) else {
            let allowed = "an image [h, w] takes a kernel [kh, kw], [c, h, w] or [n, c, h, w] one of \
                           [c_out, c / groups, kh, kw], and a signal [c, w] or [n, c, w] one of [c_out, c / groups, kw]";
            return Err(Error::mismatch(OP, "image and kernel", input, kernel, allowed));
        };
        if !c_in.is_multiple_of(groups) || !c_out.is_multiple_of(groups) {
            let reason = format!(
                "{groups} groups do not divide both the {c_in} channels of {input} and the {c_out} of {kernel}"
            );
            return Err(Error::Shape { op: OP, reason });
        }
        if c_kernel != c_in / groups {
            let allowed = match groups {
                1 => format!("the image has {c_in} channels, the kernel is for {c_kernel}"),
                _ => format!("each of {groups} groups has {} channels, the kernel is for {c_kernel}", c_in / groups),
            };
            return Err(Error::mismatch(OP, "channels of image and kernel", input, kernel, &allowed));
        }
        if kh == 0 || kw == 0 {
            return Err(Error::Shape { op: OP, reason: format!("the kernel {kernel} has no element") });
        }
        let (rows, columns) = match self.padding {
            Padding::Valid => (Some((0, 0)), Some((0, 0))),
            Padding::Same => (None, None),
            Padding::Sides { top, bottom, left, right } => (Some((top, bottom)), Some((left, right))),
        };
        let along = |n, k, stride, dilation, sides| Self::along((n, k), stride, dilation, sides, (input, kernel));
        let (out_h, top) = along(h, kh, stride.0, dilation.0, rows)?;
        let (out_w, left) = along(w, kw, stride.1, dilation.1, columns)?;
        if kernel.rank() == 3 && (out_h, top) != (1, 0) {
            let reason = format!("{:?} adds rows to {input}, a signal; pad it only left and right", self.padding);
            return Err(Error::Parameter { op: OP, reason });
        }
        let taken = |k: usize, dilation: usize| if k == 1 { 1 } else { dilation };
        let dilation = (taken(kh, dilation.0), taken(kw, dilation.1));
        Ok(ConvolveExtents { batch, c_in, h, w, c_out, kh, kw, out_h, out_w, top, left, dilation, groups })
    }

    /// Results, and zeros in front, along one dimension of `n` pixels and `k` elements of a kernel. `sides` are the zeros before
    /// and after, or `None` for as many as [`Padding::Same`] takes.
    fn along(
        (n, k): (usize, usize),
        stride: usize,
        dilation: usize,
        sides: Option<(usize, usize)>,
        (input, kernel): (&Shape, &Shape),
    ) -> Result<(usize, usize)> {
        let addressed = |n: &usize| *n <= LONGEST;
        let Some(span) = (k - 1).checked_mul(dilation).map(|steps| steps.saturating_add(1)).filter(addressed) else {
            let reason =
                format!("the kernel {kernel} at a dilation of {dilation} reaches beyond what can be addressed");
            return Err(Error::Parameter { op: OP, reason });
        };
        let Some((before, after)) = sides else {
            let out = n.div_ceil(stride);
            // (out - 1) * stride < n, and extents of shapes are far from overflow.
            let padding = (out.saturating_sub(1) * stride + span).saturating_sub(n);
            return Ok((out, padding / 2));
        };
        let Some(padded) = before.checked_add(n).and_then(|n| n.checked_add(after)).filter(addressed) else {
            let reason =
                format!("padding of {before} before and {after} after {input} reaches beyond what can be addressed");
            return Err(Error::Parameter { op: OP, reason });
        };
        if span > padded {
            let dilated = if dilation == 1 { String::new() } else { format!(" at a dilation of {dilation}") };
            let padded = match padded - n {
                0 => "which has no padding".to_owned(),
                zeros => format!("padded by {zeros}"),
            };
            let reason = format!("the kernel {kernel}{dilated} is larger than the image {input}, {padded}");
            return Err(Error::Shape { op: OP, reason });
        }
        Ok(((padded - span) / stride + 1, before))
    }
}

/// The dimensions of an image or a signal as `[n, channels, h, w]`, and of its kernel as `[outer, inner, kh, kw]`; `None` if they do
/// not go together.
pub(super) fn four_dims(input: &Shape, kernel: &Shape) -> Option<([usize; 4], [usize; 4])> {
    match (input.dims(), kernel.dims()) {
        (&[h, w], &[kh, kw]) => Some(([1, 1, h, w], [1, 1, kh, kw])),
        (&[c, h, w], &[outer, inner, kh, kw]) => Some(([1, c, h, w], [outer, inner, kh, kw])),
        (&[n, c, h, w], &[outer, inner, kh, kw]) => Some(([n, c, h, w], [outer, inner, kh, kw])),
        (&[c, w], &[outer, inner, kw]) => Some(([1, c, 1, w], [outer, inner, 1, kw])),
        (&[n, c, w], &[outer, inner, kw]) => Some(([n, c, 1, w], [outer, inner, 1, kw])),
        _ => None,
    }
}

/// The type of a convolution's result: with the dimensions of its first operand, and without rows if the kernel is of a signal.
pub(super) fn result_type(inputs: &[TensorType], [batch, c_out, out_h, out_w]: [usize; 4]) -> Result<Outputs> {
    let rank = inputs[0].shape.rank();
    let shape = match inputs[1].shape.rank() {
        3 => Shape::new(&[batch, c_out, out_w][3 - rank..])?,
        _ => Shape::new(&[batch, c_out, out_h, out_w][4 - rank..])?,
    };
    Ok(TensorType::f32(shape).into())
}

impl Operation for Convolve2d {
    fn name(&self) -> &'static str {
        OP
    }

    fn formula(&self) -> &'static str {
        "yₒ[i, j] = Σ wₒ꜀[p, r] x꜀[i·s + p·d, j·s + r·d]"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(OP, inputs, &[DType::F32; 2])?;
        let e = self.extents(&inputs[0].shape, &inputs[1].shape)?;
        result_type(inputs, [e.batch, e.c_out, e.out_h, e.out_w])
    }

    /// Products with the zeros of the padding count.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape)
            .map_or(0, |e| super::product(&[2, e.batch, e.c_out, e.out_h, e.out_w, e.c_in / e.groups, e.kh, e.kw]))
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: product_bound(4096),
            special: "IEEE 754; zeros of the padding are multiplied like others, so an infinite or NaN weight gives NaN \
                      where it meets them; no input channel gives zeros; the bound is that of a matrix product with as \
                      many products, named for 4096",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_bound(e.terms()))
    }

    /// A chain of 320 products at most; its sums are added for each channel and row of the kernel, or for 256 products, or for
    /// each 320 places and less of a kernel of more.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| {
            let products = e.terms();
            let sums = products.div_ceil(256).max(e.c_in / e.groups * e.kh.max((e.kh * e.kw).div_ceil(320)));
            Bound::Magnitude((products.min(320) + sums + 1) as f64)
        })
    }

    #[cfg(feature = "reference")]
    fn worst_cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input};
        let mut cases = Vec::new();
        // One channel, few, many, and many both ways.
        for (c_in, c_out, side, k) in
            [(1, 1, 40, 17), (3, 2, 24, 5), (64, 8, 9, 3), (64, 48, 9, 3), (130, 130, 22, 3), (16, 16, 21, 19)]
        {
            let x = Input::f32(vec![1.0; c_in * side * side], &[c_in, side, side]);
            let kernel = Input::f32(vec![0.1; c_out * c_in * k * k], &[c_out, c_in, k, k]);
            cases.push(Case::new(Self::default(), vec![x, kernel]));
        }
        cases
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (x, kernel) = (inputs[0].data().f32(), inputs[1].data().f32());
        let Ok(e) = self.extents(&inputs[0].shape(), &inputs[1].shape()) else { return Vec::new() };
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        let pixel = |plane: usize, y: usize, x_at: usize| {
            let (Some(y), Some(x_at)) = (y.checked_sub(e.top), x_at.checked_sub(e.left)) else { return 0.0 };
            if y < e.h && x_at < e.w { f64::from(x[(plane * e.h + y) * e.w + x_at]) } else { 0.0 }
        };
        let ((sh, sw), (dh, dw)) = (self.stride, self.dilation);
        let (c_in, c_out) = (e.c_in / e.groups, e.c_out / e.groups);
        for n in 0..e.batch {
            for o in 0..e.c_out {
                for i in 0..e.out_h {
                    for j in 0..e.out_w {
                        let (mut value, mut magnitude) = (0.0, 0.0);
                        for c in 0..c_in {
                            let plane = n * e.c_in + o / c_out * c_in + c;
                            for p in 0..e.kh {
                                for r in 0..e.kw {
                                    let weight = kernel[((o * c_in + c) * e.kh + p) * e.kw + r];
                                    let term = f64::from(weight) * pixel(plane, i * sh + p * dh, j * sw + r * dw);
                                    value += term;
                                    magnitude += f64::abs(term);
                                }
                            }
                        }
                        values.push(value);
                        magnitudes.push(magnitude);
                    }
                }
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        let mut random = Random::new(11);
        let mut cases = Vec::new();
        let mut tensor = |dims: &[usize]| Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
        let strides = [(1, 1), (2, 2), (1, 3), (4, 1)];
        // One channel: single pixels, odd sizes, kernels with their own code and without, one past vectors and tiles,
        // kernels larger than the image.
        for (h, w, kh, kw) in [
            (1, 1, 1, 1),
            (1, 7, 1, 3),
            (3, 3, 3, 3),
            (5, 5, 5, 5),
            (9, 11, 3, 3),
            (13, 37, 3, 3),
            (10, 130, 3, 3),
            (8, 19, 5, 5),
            (21, 70, 5, 5),
            (7, 66, 7, 7),
            (12, 33, 2, 4),
            (40, 3, 9, 1),
            (6, 50, 1, 11),
            (2, 3, 5, 7),
            (0, 4, 3, 3),
            (4, 0, 1, 1),
        ] {
            for padding in [Padding::Valid, Padding::Same] {
                for stride in strides {
                    let op = Self { padding, stride, ..Self::default() };
                    if padding == Padding::Same || (kh <= h && kw <= w) {
                        cases.push(Case::new(op, vec![tensor(&[h, w]), tensor(&[kh, kw])]));
                    }
                }
            }
        }
        // (n, c_in, h, w, c_out, kh, kw): few and many channels, one past tiles, blocks of channels, batches, empty.
        for (n, c_in, h, w, c_out, kh, kw) in [
            (1, 1, 5, 6, 2, 3, 3),
            (1, 3, 9, 8, 4, 3, 3),
            (2, 3, 12, 13, 5, 7, 7),
            (1, 5, 7, 7, 13, 3, 3),
            (1, 70, 6, 7, 15, 3, 3),
            (3, 16, 14, 14, 29, 1, 1),
            (1, 300, 4, 5, 3, 1, 1),
            (1, 40, 3, 3, 33, 5, 5),
            (5, 4, 3, 3, 2, 2, 2),
            (1, 8, 30, 31, 6, 3, 5),
            (1, 2, 2, 2, 300, 2, 2),
            (0, 3, 4, 4, 2, 3, 3),
            (2, 0, 4, 4, 2, 3, 3),
            (2, 3, 4, 4, 0, 3, 3),
            (1, 2, 0, 4, 3, 1, 1),
        ] {
            for padding in [Padding::Valid, Padding::Same] {
                for stride in [(1, 1), (2, 2), (3, 1)] {
                    let op = Self { padding, stride, ..Self::default() };
                    if padding == Padding::Same || (kh <= h && kw <= w) {
                        let kernel = tensor(&[c_out, c_in, kh, kw]);
                        let picture = if n == 1 { tensor(&[c_in, h, w]) } else { tensor(&[n, c_in, h, w]) };
                        cases.push(Case::new(op, vec![picture, kernel]));
                    }
                }
            }
        }
        // A NaN, an infinity and a huge value reach exactly the results that see them.
        for (at, special) in [(40, f32::NAN), (77, f32::INFINITY), (91, f32::NEG_INFINITY), (60, 1e38)] {
            let mut values = random.uniforms(12 * 17, -1.0, 1.0);
            values[at] = special;
            let picture = Input::f32(values, &[12, 17]);
            let channels =
                Input::f32([random.uniforms(12 * 17, -1.0, 1.0), picture_values(&picture)].concat(), &[2, 12, 17]);
            let kernel = Input::f32(random.uniforms(9, 0.1, 1.0), &[3, 3]);
            let kernels = Input::f32(random.uniforms(3 * 2 * 9, 0.1, 1.0), &[3, 2, 3, 3]);
            for padding in [Padding::Valid, Padding::Same] {
                let op = Self { padding, ..Self::default() };
                cases.push(Case::new(op, vec![picture.clone(), kernel.clone()]));
                cases.push(Case::new(op, vec![channels.clone(), kernels.clone()]));
            }
            let (padding, dilation) = (Padding::Sides { top: 2, bottom: 0, left: 1, right: 5 }, (2, 3));
            let op = Self { padding, dilation, ..Self::default() };
            cases.push(Case::new(op, vec![picture.clone(), kernel]));
            cases.push(Case::new(op, vec![channels.clone(), kernels.clone()]));
            let kernels = Input::f32(random.uniforms(4 * 9, 0.1, 1.0), &[4, 1, 3, 3]);
            cases.push(Case::new(Self { groups: 2, ..op }, vec![channels, kernels]));
        }
        cases.extend(dilated_cases(&mut random));
        cases.extend(grouped_cases(&mut random));
        cases
    }
}

/// Dilations, by themselves and with every kind of padding and stride; paddings of each side, also such that kernels lie outside
/// of the image.
#[cfg(feature = "reference")]
fn dilated_cases(random: &mut super::reference::Random) -> Vec<super::reference::Case> {
    use super::reference::{Case, Input};
    let mut tensor = |dims: &[usize]| Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
    let sides = |top, bottom, left, right| Padding::Sides { top, bottom, left, right };
    let mut cases = Vec::new();
    // One channel: kernels with their own code and without, rows in several classes, steps with and without a common divisor.
    for (h, w, kh, kw) in [(11, 40, 3, 3), (23, 25, 5, 5), (30, 19, 7, 2), (3, 4, 3, 3), (1, 90, 1, 5), (1, 1, 3, 3)] {
        for (dilation, stride) in
            [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((3, 5), (2, 1)), ((6, 2), (4, 2)), ((1, 4), (3, 3)), ((2, 1), (3, 6))]
        {
            for padding in [Padding::Valid, Padding::Same, sides(3, 0, 1, 12), sides(0, 7, 9, 0), sides(2, 2, 70, 1)] {
                let op = Convolve2d { padding, stride, dilation, groups: 1 };
                let (picture, kernel) = (tensor(&[h, w]), tensor(&[kh, kw]));
                // Where a kernel is larger than the padded image there is no result.
                if op.extents(&picture.shape, &kernel.shape).is_ok() {
                    cases.push(Case::new(op, vec![picture, kernel]));
                }
            }
        }
    }
    // A kernel that never meets the image, and one that does so with its last element alone.
    for (top, left) in [(40, 30), (6, 4)] {
        let op = Convolve2d { padding: sides(top, 50, left, 31), stride: (90, 70), dilation: (3, 2), groups: 1 };
        cases.push(Case::new(op, vec![tensor(&[5, 6]), tensor(&[3, 3])]));
        cases.push(Case::new(op, vec![tensor(&[2, 4, 5, 6]), tensor(&[7, 4, 3, 3])]));
    }
    // Channels: few and many, images in a batch, kernels of one pixel, padded images without a pixel.
    for (n, c_in, h, w, c_out, kh, kw) in [
        (1, 3, 12, 13, 4, 3, 3),
        (2, 5, 9, 11, 13, 3, 2),
        (1, 70, 6, 7, 15, 3, 3),
        (1, 16, 17, 15, 32, 3, 3),
        (2, 20, 5, 6, 9, 1, 1),
        (1, 2, 0, 4, 3, 2, 2),
    ] {
        for (dilation, stride) in [((1, 1), (1, 1)), ((2, 2), (1, 1)), ((3, 2), (2, 1)), ((2, 4), (3, 2))] {
            for padding in [Padding::Valid, Padding::Same, sides(1, 2, 3, 0), sides(9, 5, 0, 8)] {
                let op = Convolve2d { padding, stride, dilation, groups: 1 };
                let picture = if n == 1 { tensor(&[c_in, h, w]) } else { tensor(&[n, c_in, h, w]) };
                let kernel = tensor(&[c_out, c_in, kh, kw]);
                if op.extents(&picture.shape, &kernel.shape).is_ok() {
                    cases.push(Case::new(op, vec![picture, kernel]));
                }
            }
        }
    }
    // Signals.
    for (n, groups, c_in, w, c_out, k) in
        [(1, 1, 3, 40, 4, 5), (2, 1, 20, 33, 16, 3), (1, 6, 1, 50, 1, 4), (3, 2, 8, 9, 5, 1)]
    {
        for (padding, stride, dilation) in
            [(Padding::Valid, 1, 1), (Padding::Same, 2, 3), (sides(0, 0, 4, 1), 1, 2), (sides(0, 0, 0, 5), 3, 1)]
        {
            let op = Convolve2d { padding, stride: (1, stride), dilation: (1, dilation), groups };
            let signal = if n == 1 { tensor(&[groups * c_in, w]) } else { tensor(&[n, groups * c_in, w]) };
            cases.push(Case::new(op, vec![signal, tensor(&[groups * c_out, c_in, k])]));
        }
    }
    cases
}

/// Groups: one channel each, as many results of each, several channels, one result of several, images in a batch.
#[cfg(feature = "reference")]
fn grouped_cases(random: &mut super::reference::Random) -> Vec<super::reference::Case> {
    use super::reference::{Case, Input};
    let mut tensor = |dims: &[usize]| Input::f32(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
    let mut cases = Vec::new();
    for (n, groups, c_in, h, w, c_out, kh, kw) in [
        (1, 5, 1, 12, 19, 1, 3, 3),
        (2, 33, 1, 7, 7, 1, 5, 5),
        (1, 3, 1, 9, 10, 2, 3, 4),
        (1, 4, 3, 8, 9, 7, 3, 3),
        (2, 2, 9, 10, 11, 16, 3, 3),
        (1, 2, 40, 5, 6, 33, 3, 3),
        (1, 3, 20, 9, 9, 6, 1, 1),
        (3, 4, 2, 4, 5, 3, 1, 1),
        (1, 6, 1, 6, 7, 6, 1, 1),
        (1, 2, 300, 3, 3, 1, 2, 2),
        (1, 4, 0, 3, 3, 2, 2, 2),
        (2, 3, 2, 4, 4, 0, 2, 2),
        (0, 2, 2, 4, 4, 2, 2, 2),
    ] {
        for (padding, stride, dilation) in [
            (Padding::Valid, (1, 1), (1, 1)),
            (Padding::Same, (1, 1), (1, 1)),
            (Padding::Same, (2, 1), (2, 3)),
            (Padding::Sides { top: 1, bottom: 2, left: 0, right: 3 }, (2, 2), (1, 1)),
            (Padding::around(2, 3), (1, 1), (2, 2)),
        ] {
            let op = Convolve2d { padding, stride, dilation, groups };
            let dims = [n, groups * c_in, h, w];
            let picture = if n == 1 { tensor(&dims[1..]) } else { tensor(&dims) };
            let kernel = tensor(&[groups * c_out, c_in, kh, kw]);
            if op.extents(&picture.shape, &kernel.shape).is_ok() {
                cases.push(Case::new(op, vec![picture, kernel]));
            }
        }
    }
    cases
}

#[cfg(feature = "reference")]
fn picture_values(picture: &super::reference::Input) -> Vec<f32> {
    picture.buffer.as_data().f32().to_vec()
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
    fn same_padding_puts_the_odd_zero_after() {
        let same = |stride| Convolve2d { padding: Padding::Same, stride, ..Convolve2d::default() };
        let e = same((2, 2)).extents(&shape(&[3, 224, 224]), &shape(&[64, 3, 7, 7])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left), (112, 112, 2, 2));
        let e = same((1, 1)).extents(&shape(&[5, 6]), &shape(&[3, 4])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left), (5, 6, 1, 1));
        // A stride beyond the image sees one place; nothing overflows.
        let e = same((usize::MAX, 9)).extents(&shape(&[5, 6]), &shape(&[3, 3])).unwrap();
        assert_eq!((e.out_h, e.out_w), (1, 1));
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let op = Convolve2d::default();
        for (input, kernel) in [
            (&[2, 2][..], &[3, 3][..]),
            (&[0, 5], &[1, 1]),
            (&[4, 4], &[0, 3]),
            (&[3, 4, 4], &[2, 4, 3, 3]),
            (&[3, 4, 4], &[3, 3]),
            (&[4, 4], &[1, 1, 3, 3]),
            (&[4], &[3]),
        ] {
            assert!(
                matches!(op.extents(&shape(input), &shape(kernel)), Err(Error::Shape { .. })),
                "{input:?} {kernel:?}"
            );
        }
        const FAR: usize = usize::MAX;
        let (picture, kernel) = (shape(&[4, 4]), shape(&[3, 3]));
        for wrong in [
            Convolve2d { stride: (1, 0), ..op },
            Convolve2d { dilation: (0, 1), ..op },
            Convolve2d { groups: 0, ..op },
            Convolve2d { dilation: (1, FAR), ..op },
            Convolve2d { dilation: (FAR / 2, 1), padding: Padding::Same, ..op },
            Convolve2d { padding: Padding::around(FAR, 0), ..op },
            Convolve2d { padding: Padding::around(0, FAR / 2), ..op },
            Convolve2d { padding: Padding::Sides { top: 0, bottom: FAR - 3, left: 0, right: 0 }, ..op },
        ] {
            let found = wrong.extents(&picture, &kernel);
            assert!(matches!(found, Err(Error::Parameter { .. })), "{wrong:?}: {found:?}");
        }
        // A signal has no rows to pad.
        let padded = Convolve2d { padding: Padding::around(1, 1), ..op };
        assert!(matches!(padded.extents(&shape(&[4, 5]), &shape(&[2, 4, 3])), Err(Error::Parameter { .. })));
        for (wrong, input, kernel) in [
            (Convolve2d { dilation: (2, 1), ..op }, &[4, 4][..], &[3, 3][..]),
            (Convolve2d { dilation: (3, 1), padding: Padding::around(1, 0), ..op }, &[4, 4], &[3, 3]),
            (Convolve2d { groups: 2, ..op }, &[4, 4], &[3, 3]),
            (Convolve2d { groups: 3, ..op }, &[4, 5, 5], &[3, 1, 3, 3]),
            (Convolve2d { groups: 2, ..op }, &[4, 5, 5], &[3, 2, 3, 3]),
            (Convolve2d { groups: 2, ..op }, &[4, 5, 5], &[2, 4, 3, 3]),
            (Convolve2d { groups: FAR, ..op }, &[4, 5, 5], &[2, 4, 3, 3]),
            (op, &[4, 5], &[2, 3, 3]),
            (op, &[2, 4, 5, 5], &[2, 4, 3]),
            (op, &[4, 2], &[2, 4, 3]),
        ] {
            let found = wrong.extents(&shape(input), &shape(kernel));
            assert!(matches!(found, Err(Error::Shape { .. })), "{wrong:?} {input:?} {kernel:?}: {found:?}");
        }
        // A dilation that is never taken may be beyond all numbers.
        let e = Convolve2d { dilation: (FAR, FAR), ..op }.extents(&picture, &shape(&[1, 1])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.span()), (4, 4, (1, 1)));
    }

    #[test]
    fn dilation_sides_and_groups_decide_the_extents() {
        let padding = Padding::Sides { top: 1, bottom: 2, left: 3, right: 0 };
        let op = Convolve2d { padding, stride: (2, 1), dilation: (2, 3), groups: 2 };
        let e = op.extents(&shape(&[4, 10, 9]), &shape(&[6, 2, 3, 2])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left, e.span()), (5, 9, 1, 3, (5, 4)));
        assert_eq!((e.terms(), e.of_group().c_in, e.of_group().c_out), (12, 2, 3));
        let types = [TensorType::f32(shape(&[4, 10, 9])), TensorType::f32(shape(&[6, 2, 3, 2]))];
        let outputs = op.infer(&types).unwrap();
        assert_eq!(outputs[0].shape, shape(&[6, 5, 9]));
        assert_eq!(op.flops(&types, &outputs), 2 * 6 * 5 * 9 * 12);
        // A signal is an image of one row.
        let op = Convolve2d { padding: Padding::Same, stride: (1, 2), ..Convolve2d::default() };
        let types = [TensorType::f32(shape(&[5, 4, 10])), TensorType::f32(shape(&[7, 4, 3]))];
        assert_eq!(op.infer(&types).unwrap()[0].shape, shape(&[5, 7, 5]));
        // Same padding is of what a dilated kernel spans.
        let op = Convolve2d { padding: Padding::Same, stride: (1, 2), dilation: (2, 4), groups: 1 };
        let e = op.extents(&shape(&[7, 9]), &shape(&[3, 3])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left), (7, 5, 2, 4));
    }
}
