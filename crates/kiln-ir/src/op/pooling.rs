use super::{Bound, Contract, Operation, Outputs};
use crate::{DType, Error, Result, Shape, TensorType};

/// The function that reduces a window of an image to one value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pooling {
    /// The maximum of the window.
    Max,
    /// The arithmetic mean of the window.
    Average,
}

/// Pooling of an image `[h, w]`, `[c, h, w]` or `[n, c, h, w]`: one result for each window that lies inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Pool2d {
    /// The function that reduces a window.
    pub pooling: Pooling,
    /// Rows and columns of a window.
    pub window: (usize, usize),
    /// Steps between neighbouring windows, down and across.
    pub stride: (usize, usize),
}

/// The extents of a pooling.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolExtents {
    /// Images times channels.
    pub planes: usize,
    /// Rows of a plane.
    pub h: usize,
    /// Columns of a plane.
    pub w: usize,
    /// Rows of a result.
    pub out_h: usize,
    /// Columns of a result.
    pub out_w: usize,
}

impl Pool2d {
    /// The greatest element of each window.
    pub const fn max(window: (usize, usize), stride: (usize, usize)) -> Self {
        Self { pooling: Pooling::Max, window, stride }
    }

    /// The mean of each window.
    pub const fn average(window: (usize, usize), stride: (usize, usize)) -> Self {
        Self { pooling: Pooling::Average, window, stride }
    }

    /// The extents for an input.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a window or a stride of zero, [`Error::Shape`] when the input is not an image or smaller
    /// than the window.
    pub fn extents(&self, input: &Shape) -> Result<PoolExtents> {
        let op = self.name();
        let ((kh, kw), (sh, sw)) = (self.window, self.stride);
        if kh == 0 || kw == 0 || sh == 0 || sw == 0 {
            let reason = format!("the window {:?} and the stride {:?} must be at least 1", self.window, self.stride);
            return Err(Error::Parameter { op, reason });
        }
        let [outer @ .., h, w] = input.dims() else {
            return Err(Error::Shape { op, reason: format!("{input} is not an image, [.., h, w]") });
        };
        if kh > *h || kw > *w {
            return Err(Error::Shape { op, reason: format!("the window {:?} is larger than {input}", self.window) });
        }
        let (out_h, out_w) = ((h - kh) / sh + 1, (w - kw) / sw + 1);
        Ok(PoolExtents { planes: outer.iter().product(), h: *h, w: *w, out_h, out_w })
    }
}

/// Columns of the window are summed first, then their sums, both as trees over runs of sixteen; the division rounds
/// once more.
fn average_bound((h, w): (usize, usize)) -> Bound {
    let roundings = |n: usize| (n - 1).min(15 + n.div_ceil(16).next_power_of_two().trailing_zeros() as usize);
    Bound::Magnitude((roundings(h.max(1)) + roundings(w.max(1)) + 1) as f64)
}

impl Operation for Pool2d {
    fn name(&self) -> &'static str {
        match self.pooling {
            Pooling::Max => "max_pool2d",
            Pooling::Average => "avg_pool2d",
        }
    }

    fn formula(&self) -> &'static str {
        match self.pooling {
            Pooling::Max => "yᵢⱼ = max { xₚᵣ : (p, r) in window ij }",
            Pooling::Average => "yᵢⱼ = Σ { xₚᵣ : (p, r) in window ij } / |window|",
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(self.name(), inputs, &[DType::F32])?;
        let e = self.extents(&inputs[0].shape)?;
        let mut dims = inputs[0].shape.dims().to_vec();
        let rank = dims.len();
        dims[rank - 2] = e.out_h;
        dims[rank - 1] = e.out_w;
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        super::product(&[outputs[0].shape.numel(), self.window.0, self.window.1])
    }

    fn contract(&self) -> Contract {
        match self.pooling {
            Pooling::Max => Contract { bound: Bound::Exact, special: "NaN if any of the window is NaN; -0 < +0" },
            Pooling::Average => Contract {
                bound: average_bound((3, 3)),
                special: "IEEE 754; the bound is that of windows of 3 x 3; it grows as r(h) + r(w) + 1 with height and width, where r(n) is \
                          n - 1, or 15 + ⌈log₂ ⌈n / 16⌉⌉ where that is less",
            },
        }
    }

    fn bound(&self, _: &[TensorType]) -> Bound {
        match self.pooling {
            Pooling::Max => Bound::Exact,
            Pooling::Average => average_bound(self.window),
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let x = inputs[0].data().f32();
        let Ok(e) = self.extents(&inputs[0].shape()) else { return Vec::new() };
        let ((kh, kw), (sh, sw)) = (self.window, self.stride);
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for plane in 0..e.planes {
            for i in 0..e.out_h {
                for j in 0..e.out_w {
                    let window =
                        (0..kh * kw).map(|at| f64::from(x[(plane * e.h + i * sh + at / kw) * e.w + j * sw + at % kw]));
                    let area = (kh * kw) as f64;
                    let (value, magnitude) = match self.pooling {
                        Pooling::Max => (window.fold(f64::NEG_INFINITY, super::maximum), 0.0),
                        Pooling::Average => {
                            (window.clone().sum::<f64>() / area, window.map(f64::abs).sum::<f64>() / area)
                        }
                    };
                    values.push(value);
                    magnitudes.push(magnitude);
                }
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(13);
        let mut cases = Vec::new();
        type Pair = (usize, usize);
        let shapes: [(&[usize], Pair, Pair); 15] = [
            (&[1, 1], (1, 1), (1, 1)),
            (&[2, 2], (2, 2), (2, 2)),
            (&[5, 7], (3, 3), (1, 1)),
            (&[8, 64], (2, 2), (2, 2)),
            (&[9, 131], (2, 2), (2, 2)),
            (&[3, 12, 35], (3, 3), (2, 2)),
            (&[2, 3, 7, 70], (3, 3), (1, 1)),
            (&[2, 3, 11, 40], (2, 5), (3, 3)),
            (&[4, 6, 33], (6, 33), (1, 1)),
            (&[1, 2, 56, 56], (56, 56), (56, 56)),
            (&[20, 1], (4, 1), (5, 1)),
            (&[1, 90], (1, 4), (1, 4)),
            (&[0, 4, 4], (2, 2), (2, 2)),
            (&[3, 0, 4, 4], (2, 2), (2, 2)),
            (&[6, 6], (2, 2), (usize::MAX, 7)),
        ];
        for op in [Self::max, Self::average] {
            for (dims, window, stride) in shapes {
                let values = random.uniforms(dims.iter().product(), -1.0, 1.0);
                cases.push(Case::new(op(window, stride), vec![Input::f32(values, dims)]));
            }
        }
        // Equal elements, whose partial sums are nearly all rounded in the same direction.
        for (h, w) in [(56, 56), (224, 7), (7, 224), (1024, 1), (1, 4100), (4100, 1), (17, 33)] {
            let x = Input::f32(vec![0.1; (h + 1) * (w + 2)], &[h + 1, w + 2]);
            cases.push(Case::new(Self::average((h, w), (1, 1)), vec![x]));
        }
        // Special values at every position of overlapping and of disjoint windows.
        let mut values = random.uniforms(10 * 40, -1.0, 1.0);
        values.iter_mut().step_by(7).zip(SPECIAL).for_each(|(v, s)| *v = s);
        for (window, stride) in [((2, 2), (2, 2)), ((3, 3), (1, 1)), ((1, 1), (1, 1)), ((2, 2), (3, 3))] {
            cases.push(Case::new(Self::max(window, stride), vec![Input::f32(values.clone(), &[10, 40])]));
        }
        let zeros = [0.0, -0.0, -0.0, -0.0].repeat(40);
        cases.push(Case::new(Self::max((2, 2), (2, 2)), vec![Input::f32(zeros, &[4, 40])]));
        let mut values = random.uniforms(10 * 40, -1.0, 1.0);
        (values[31], values[222], values[333]) = (f32::NAN, f32::INFINITY, f32::NEG_INFINITY);
        for (window, stride) in [((2, 2), (2, 2)), ((3, 3), (1, 1))] {
            cases.push(Case::new(Self::average(window, stride), vec![Input::f32(values.clone(), &[10, 40])]));
        }
        cases
    }
}
