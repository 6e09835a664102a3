use super::matmul::product_bound;
use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// What surrounds a picture that is convolved.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum Padding {
    /// Nothing: the kernel stays inside, so the result is smaller.
    #[default]
    Valid,
    /// As many zeros as give `⌈extent / stride⌉` results: half of them before, the rest after, so that an odd one
    /// stands after. This is `SAME` of TensorFlow, `SAME_UPPER` of ONNX, and `"same"` of PyTorch at stride 1.
    Same,
}

/// The two-dimensional convolution of the frameworks, which is a cross-correlation: the kernel is not flipped.
///
/// The input is `[h, w]`, `[c_in, h, w]` or `[n, c_in, h, w]`, the kernel `[kh, kw]` for the first and
/// `[c_out, c_in, kh, kw]` for the others; the result has the rank of the input, with `c_out` channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convolve2d {
    /// What surrounds the picture.
    pub padding: Padding,
    /// Steps between neighbouring results, down and across.
    pub stride: (usize, usize),
}

impl Default for Convolve2d {
    fn default() -> Self {
        Self { padding: Padding::Valid, stride: (1, 1) }
    }
}

/// The extents of a convolution.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConvolveExtents {
    /// Number of pictures.
    pub batch: usize,
    /// Channels of a picture.
    pub c_in: usize,
    /// Rows of a picture.
    pub h: usize,
    /// Columns of a picture.
    pub w: usize,
    /// Channels of a result.
    pub c_out: usize,
    /// Rows of the kernel.
    pub kh: usize,
    /// Columns of the kernel.
    pub kw: usize,
    /// Rows of a result.
    pub out_h: usize,
    /// Columns of a result.
    pub out_w: usize,
    /// Rows of zeros above the picture.
    pub top: usize,
    /// Columns of zeros to the left of the picture.
    pub left: usize,
}

impl Convolve2d {
    /// The extents for an input and a kernel.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a stride of zero; [`Error::Shape`] when the operands do not fit one another, the kernel
    /// is empty, or it is larger than a picture without padding.
    pub fn extents(&self, input: &Shape, kernel: &Shape) -> Result<ConvolveExtents> {
        let op = "convolve2d";
        let (sh, sw) = self.stride;
        if sh == 0 || sw == 0 {
            return Err(Error::Parameter { op, reason: format!("the stride ({sh}, {sw}) must be at least 1") });
        }
        let (batch, c_in, h, w) = match *input.dims() {
            [h, w] => (1, 1, h, w),
            [c, h, w] => (1, c, h, w),
            [n, c, h, w] => (n, c, h, w),
            _ => return Err(Error::Shape { op, reason: format!("{input} is not a picture") }),
        };
        let (c_out, c_kernel, kh, kw) = match *kernel.dims() {
            [kh, kw] if input.rank() == 2 => (1, 1, kh, kw),
            [c_out, c_in, kh, kw] if input.rank() > 2 => (c_out, c_in, kh, kw),
            _ => {
                let allowed =
                    "an image [h, w] takes a kernel [kh, kw], and [c, h, w] or [n, c, h, w] one of [c_out, c, kh, kw]";
                return Err(Error::mismatch(op, "image and kernel", input, kernel, allowed));
            }
        };
        if c_kernel != c_in {
            let allowed = format!("the image has {c_in} channels, the kernel is for {c_kernel}");
            return Err(Error::mismatch(op, "channels of image and kernel", input, kernel, &allowed));
        }
        if kh == 0 || kw == 0 {
            return Err(Error::Shape { op, reason: format!("the kernel {kernel} has no element") });
        }
        let (out_h, top) = self.along(h, kh, sh, input, kernel)?;
        let (out_w, left) = self.along(w, kw, sw, input, kernel)?;
        Ok(ConvolveExtents { batch, c_in, h, w, c_out, kh, kw, out_h, out_w, top, left })
    }

    /// Results, and zeros in front, along one dimension.
    fn along(&self, n: usize, k: usize, stride: usize, input: &Shape, kernel: &Shape) -> Result<(usize, usize)> {
        match self.padding {
            Padding::Valid if k > n => Err(Error::Shape {
                op: "convolve2d",
                reason: format!("the kernel {kernel} is larger than the picture {input}, which has no padding"),
            }),
            Padding::Valid => Ok(((n - k) / stride + 1, 0)),
            Padding::Same => {
                let out = n.div_ceil(stride);
                // (out - 1) * stride < n, and extents of shapes are far from overflow.
                let padding = (out.saturating_sub(1) * stride + k).saturating_sub(n);
                Ok((out, padding / 2))
            }
        }
    }
}

impl Operation for Convolve2d {
    fn name(&self) -> &'static str {
        "convolve2d"
    }

    fn formula(&self) -> &'static str {
        "yₒᵢⱼ = Σ wₒ꜀ₚᵣ x꜀,ᵢₛ₊ₚ,ⱼₛ₊ᵣ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("convolve2d", inputs, &[DType::F32; 2])?;
        let e = self.extents(&inputs[0].shape, &inputs[1].shape)?;
        let dims = [e.batch, e.c_out, e.out_h, e.out_w];
        Ok(TensorType::f32(Shape::new(&dims[4 - inputs[0].shape.rank()..])?).into())
    }

    /// Products with the zeros of the padding count.
    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        self.extents(&inputs[0].shape, &inputs[1].shape)
            .map_or(0, |e| super::product(&[2, e.batch, e.c_out, e.out_h, e.out_w, e.c_in, e.kh, e.kw]))
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
        let products = |e: ConvolveExtents| e.c_in * e.kh * e.kw;
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| product_bound(products(e)))
    }

    /// A chain of 320 products at most; its sums are added for each channel and row of the kernel, or for 256 products, or for
    /// each 320 places and less of a kernel of more.
    fn worst(&self, inputs: &[TensorType]) -> Bound {
        self.extents(&inputs[0].shape, &inputs[1].shape).map_or(Bound::Exact, |e| {
            let products = e.c_in * e.kh * e.kw;
            let sums = products.div_ceil(256).max(e.c_in * e.kh.max((e.kh * e.kw).div_ceil(320)));
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
        let (sh, sw) = self.stride;
        for n in 0..e.batch {
            for o in 0..e.c_out {
                for i in 0..e.out_h {
                    for j in 0..e.out_w {
                        let (mut value, mut magnitude) = (0.0, 0.0);
                        for c in 0..e.c_in {
                            for p in 0..e.kh {
                                for r in 0..e.kw {
                                    let weight = kernel[((o * e.c_in + c) * e.kh + p) * e.kw + r];
                                    let term = f64::from(weight) * pixel(n * e.c_in + c, i * sh + p, j * sw + r);
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
        // kernels larger than the picture.
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
                    let op = Self { padding, stride };
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
                    let op = Self { padding, stride };
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
        }
        cases
    }
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
        let same = |stride| Convolve2d { padding: Padding::Same, stride };
        let e = same((2, 2)).extents(&shape(&[3, 224, 224]), &shape(&[64, 3, 7, 7])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left), (112, 112, 2, 2));
        let e = same((1, 1)).extents(&shape(&[5, 6]), &shape(&[3, 4])).unwrap();
        assert_eq!((e.out_h, e.out_w, e.top, e.left), (5, 6, 1, 1));
        // A stride beyond the picture sees one place; nothing overflows.
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
        let still = Convolve2d { stride: (1, 0), ..op };
        assert!(matches!(still.extents(&shape(&[4, 4]), &shape(&[3, 3])), Err(Error::Parameter { .. })));
    }
}
