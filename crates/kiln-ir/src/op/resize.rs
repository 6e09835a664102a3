use super::{Bound, Contract, Operation, Outputs};
use crate::named::{options, words};
use crate::{DType, Error, Result, Shape, TensorType};

/// The interpolation of a resized image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ResizeMode {
    /// The nearest pixel: with [`ResizeCoordinates::Asymmetric`] the one at or before the coordinate, with the others the one that the
    /// coordinate rounds to, and the next one if it is halfway.
    Nearest,
    /// The four pixels around it, weighted by how near they are.
    Bilinear,
}

impl ResizeMode {
    /// Every mode.
    pub const ALL: &[Self] = &[Self::Nearest, Self::Bilinear];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Nearest => "nearest",
            Self::Bilinear => "bilinear",
        }
    }
}

words!(ResizeMode);

/// The coordinate of result `j` of `m` in an image of `n` pixels along a dimension.
///
/// The ratio of `n` and `m` is that of the extents, and is exact: no coordinate is rounded before it is taken apart into a pixel and a
/// fraction. PyTorch and ONNX round coordinates to f32 first, so that their whole coordinates may be slightly too small.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub enum ResizeCoordinates {
    /// `(j + 1/2) n / m - 1/2`: the image keeps its edges. With [`ResizeMode::Bilinear`] this is `align_corners=False` of PyTorch; with
    /// [`ResizeMode::Nearest`] its `nearest-exact`. It is `half_pixel` of ONNX, with the nearest mode `round_prefer_ceil`.
    #[default]
    HalfPixel,
    /// `j (n - 1) / (m - 1)`, or 0 for one result: the pixels at the corners stay where they are. With [`ResizeMode::Bilinear`] this is
    /// `align_corners=True` of PyTorch. It is `align_corners` of ONNX, with the nearest mode `round_prefer_ceil`.
    AlignCorners,
    /// `j n / m`. With [`ResizeMode::Nearest`] this is `nearest` of PyTorch. It is `asymmetric` of ONNX, with the nearest mode `floor`.
    Asymmetric,
}

impl ResizeCoordinates {
    /// Every kind of coordinates.
    pub const ALL: &[Self] = &[Self::HalfPixel, Self::AlignCorners, Self::Asymmetric];

    /// Its name.
    pub const fn name(self) -> &'static str {
        match self {
            Self::HalfPixel => "half_pixel",
            Self::AlignCorners => "align_corners",
            Self::Asymmetric => "asymmetric",
        }
    }
}

words!(ResizeCoordinates);

/// Images `[.., h, w]` with another number of rows and columns.
///
/// Coordinates before the first pixel or beyond the last one count as these. A pixel whose weight is zero is not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Resize2d {
    /// The interpolation of a pixel of the result.
    pub mode: ResizeMode,
    /// The coordinates of the pixels of the result in the image.
    pub coordinates: ResizeCoordinates,
    /// Rows and columns of the result.
    pub size: (usize, usize),
}

options!(
    Resize2d,
    (
        size: (usize, usize),
        mode: ResizeMode = ResizeMode::Nearest,
        coordinates: ResizeCoordinates = match mode {
            ResizeMode::Nearest => Self::nearest(size).coordinates,
            ResizeMode::Bilinear => Self::bilinear(size).coordinates,
        }
    ),
    Self { mode, coordinates, size }
);

/// The extents of a resized image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ResizeExtents {
    /// Images times channels.
    pub planes: usize,
    /// The rows of the image that rows of the result read.
    pub down: Sampling,
    /// The columns of the image that columns of the result read.
    pub across: Sampling,
}

/// The pixels along one dimension that the results read.
///
/// Result `j` reads pixel `p = ⌊(j step + start) / over⌋`; between two pixels the weight of the next one is the remainder divided by
/// `over`. Before pixel 0 it reads that one, from the last one on the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sampling {
    /// Pixels of the image.
    pub pixels: usize,
    /// Pixels of the result.
    pub results: usize,
    /// The distance from one result to the next.
    pub step: usize,
    /// The coordinate of the first result.
    pub start: isize,
    /// The divisor of both.
    pub over: usize,
}

impl Sampling {
    fn new(mode: ResizeMode, coordinates: ResizeCoordinates, pixels: usize, results: usize) -> Self {
        // Extents of shapes are below an eighth of what an `isize` holds, so these do not overflow. Nearest pixels that a coordinate
        // rounds to are those below half a pixel more.
        let (n, m) = (pixels.cast_signed(), results.cast_signed());
        let nearest = mode == ResizeMode::Nearest;
        let (step, start, over) = match coordinates {
            ResizeCoordinates::HalfPixel => (2 * n, if nearest { n } else { n - m }, 2 * m),
            ResizeCoordinates::AlignCorners if m < 2 => (0, 0, 1),
            ResizeCoordinates::AlignCorners if nearest => (2 * (n - 1), m - 1, 2 * (m - 1)),
            ResizeCoordinates::AlignCorners => (n - 1, 0, m - 1),
            ResizeCoordinates::Asymmetric => (n, 0, m),
        };
        let common = [step, start, over].into_iter().fold(0, |a, b| greatest_divisor(a, b.unsigned_abs())).max(1);
        Self {
            pixels,
            results,
            step: step.unsigned_abs() / common,
            start: start / common.cast_signed(),
            over: over.unsigned_abs() / common,
        }
    }

    /// For each result the pixel that it reads and, where it lies between that one and the next, the remainder: the weight of the next
    /// times `over`.
    pub fn taps(self) -> impl Iterator<Item = (usize, usize)> {
        let Self { pixels, results, step, start, over } = self;
        let (last, divisor) = (pixels.saturating_sub(1), over.cast_signed());
        let (mut whole, mut rest) = (start.div_euclid(divisor), start.rem_euclid(divisor).unsigned_abs());
        (0..results).map(move |_| {
            let tap = match usize::try_from(whole) {
                Err(_) => (0, 0),
                Ok(pixel) if pixel < last => (pixel, rest),
                Ok(_) => (last, 0),
            };
            (whole, rest) = (whole + (step / over).cast_signed(), rest + step % over);
            if rest >= over {
                (whole, rest) = (whole + 1, rest - over);
            }
            tap
        })
    }

    /// The largest number that appears where a coordinate is computed as a product.
    pub fn largest(&self) -> u128 {
        (self.results as u128) * (self.step as u128) + self.start.unsigned_abs() as u128 + self.over as u128
    }
}

fn greatest_divisor(a: usize, b: usize) -> usize {
    if b == 0 { a } else { greatest_divisor(b, a % b) }
}

const OP: &str = "resize2d";

impl Resize2d {
    /// The nearest pixels, at the coordinates of PyTorch's `nearest`.
    pub const fn nearest(size: (usize, usize)) -> Self {
        Self { mode: ResizeMode::Nearest, coordinates: ResizeCoordinates::Asymmetric, size }
    }

    /// Bilinear interpolation that keeps the edges: `align_corners=False` of PyTorch.
    pub const fn bilinear(size: (usize, usize)) -> Self {
        Self { mode: ResizeMode::Bilinear, coordinates: ResizeCoordinates::HalfPixel, size }
    }

    /// The extents for an input.
    ///
    /// # Errors
    /// [`Error::Parameter`] for a size of zero, [`Error::Shape`] when the input is not an image or has no pixel,
    /// [`Error::Overflow`] when the result cannot be addressed.
    pub fn extents(&self, input: &Shape) -> Result<ResizeExtents> {
        self.resized(input).map(|(extents, _)| extents)
    }

    fn resized(&self, input: &Shape) -> Result<(ResizeExtents, Shape)> {
        let (rows, columns) = self.size;
        if rows == 0 || columns == 0 {
            return Err(Error::Parameter { op: OP, reason: format!("the size {:?} must be at least 1", self.size) });
        }
        let [outer @ .., h, w] = input.dims() else {
            let reason = format!("{input} is not an image with rows and columns, [.., h, w]");
            return Err(Error::Shape { op: OP, reason });
        };
        if *h == 0 || *w == 0 {
            return Err(Error::Shape { op: OP, reason: format!("an image of {input} has no pixel to read") });
        }
        let shape = Shape::new(&[outer, &[rows, columns]].concat())?;
        let along = |pixels: usize, results: usize| Sampling::new(self.mode, self.coordinates, pixels, results);
        let planes = outer.iter().product();
        Ok((ResizeExtents { planes, down: along(*h, rows), across: along(*w, columns) }, shape))
    }
}

impl Operation for Resize2d {
    fn name(&self) -> &'static str {
        OP
    }

    fn formula(&self) -> &'static str {
        match self.mode {
            ResizeMode::Nearest => "yᵢⱼ = xₚᵣ, (p, r) the pixel nearest to the coordinates of (i, j)",
            ResizeMode::Bilinear => {
                "yᵢⱼ = Σ wₚ vᵣ xₚᵣ, (p, r) the four pixels around the coordinates (a, b) of (i, j), wₚ = 1 - |p - a|, vᵣ = 1 - |r - b|"
            }
        }
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types(OP, inputs, &[DType::F32])?;
        Ok(TensorType::f32(self.resized(&inputs[0].shape)?.1).into())
    }

    fn flops(&self, _: &[TensorType], outputs: &[TensorType]) -> u64 {
        let each = match self.mode {
            ResizeMode::Nearest => 1,
            ResizeMode::Bilinear => 6,
        };
        super::product(&[outputs[0].shape.numel(), each])
    }

    fn contract(&self) -> Contract {
        match self.mode {
            ResizeMode::Nearest => Contract {
                bound: Bound::Exact,
                special: "any element as it is; the coordinates are exact; of asymmetric ones the pixel at or before them (PyTorch \
                          `nearest`), of others the nearest, up where they lie halfway (PyTorch `nearest-exact`)",
            },
            // Along each dimension a weight, a product and a sum round once: 6, and what their products add to that.
            ResizeMode::Bilinear => Contract {
                bound: Bound::Magnitude(7.0),
                special: "IEEE 754; the coordinates are exact; a pixel of weight zero is not read, so an image of the same size comes \
                          back as it is, but for the last bit of subnormal numbers; coordinates beyond the edges are those of the edges",
            },
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let x = inputs[0].data().f32();
        let shape = inputs[0].shape();
        let [.., h, w] = *shape.dims() else { return Vec::new() };
        let down: Vec<_> = (0..self.size.0).map(|i| self.read(h, self.size.0, i)).collect();
        let across: Vec<_> = (0..self.size.1).map(|j| self.read(w, self.size.1, j)).collect();
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for plane in x.chunks_exact(h * w) {
            for rows in &down {
                for columns in &across {
                    let (mut value, mut magnitude) = (None, 0.0);
                    for &(row, of_row) in rows {
                        for &(column, of_column) in columns {
                            let weight = of_row * of_column;
                            if weight > 0.0 {
                                let term = weight * f64::from(plane[row * w + column]);
                                value = Some(value.map_or(term, |sum: f64| sum + term));
                                magnitude += term.abs();
                            }
                        }
                    }
                    values.push(value.unwrap_or(0.0));
                    magnitudes.push(magnitude);
                }
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(131);
        let mut cases = Vec::new();
        // One pixel, odd ratios both ways, doubles and halves, the same size, one past vectors, one way only, many planes, no plane.
        let shapes: [(&[usize], (usize, usize)); 17] = [
            (&[1, 1], (1, 1)),
            (&[1, 1], (3, 5)),
            (&[4, 5], (1, 1)),
            (&[3, 3], (3, 3)),
            (&[5, 7], (7, 5)),
            (&[2, 3, 4], (4, 8)),
            (&[3, 8, 34], (4, 17)),
            (&[1, 9, 33], (9, 70)),
            (&[2, 17, 6], (5, 6)),
            (&[2, 2, 3, 3], (10, 41)),
            (&[1, 300], (1, 97)),
            (&[70, 2], (131, 1)),
            (&[20, 1, 2], (2, 1)),
            (&[3, 13, 11], (26, 22)),
            (&[1, 2, 40, 130], (13, 260)),
            (&[0, 4, 4], (2, 3)),
            (&[3, 0, 2, 2, 2], (3, 3)),
        ];
        for mode in [ResizeMode::Nearest, ResizeMode::Bilinear] {
            for coordinates in
                [ResizeCoordinates::HalfPixel, ResizeCoordinates::AlignCorners, ResizeCoordinates::Asymmetric]
            {
                for (dims, size) in shapes {
                    let values = random.uniforms(dims.iter().product(), -1.0, 1.0);
                    cases.push(Case::new(Self { mode, coordinates, size }, vec![Input::f32(values, dims)]));
                }
                // Special values reach exactly the results that read them.
                for size in [(10, 40), (20, 80), (7, 23), (19, 79)] {
                    let mut values = random.uniforms(10 * 40, -1.0, 1.0);
                    match mode {
                        ResizeMode::Nearest => values.iter_mut().step_by(7).zip(SPECIAL).for_each(|(v, s)| *v = s),
                        ResizeMode::Bilinear => {
                            let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, f32::MAX, -0.0];
                            values.iter_mut().skip(43).step_by(71).zip(special).for_each(|(v, s)| *v = s);
                        }
                    }
                    cases.push(Case::new(Self { mode, coordinates, size }, vec![Input::f32(values, &[10, 40])]));
                }
            }
        }
        cases
    }
}

#[cfg(feature = "reference")]
impl Resize2d {
    /// The pixels along a dimension of `n` that result `j` of `m` reads, with their weights.
    fn read(&self, n: usize, m: usize, j: usize) -> [(usize, f64); 2] {
        let [n, m, j] = [n, m, j].map(|extent| extent as i128);
        // The coordinate as a fraction.
        let (over, under) = match self.coordinates {
            ResizeCoordinates::HalfPixel => ((2 * j + 1) * n - m, 2 * m),
            ResizeCoordinates::AlignCorners if m == 1 => (0, 1),
            ResizeCoordinates::AlignCorners => (j * (n - 1), m - 1),
            ResizeCoordinates::Asymmetric => (j * n, m),
        };
        let pixel = |at: i128| at.clamp(0, n - 1) as usize;
        match (self.mode, self.coordinates) {
            (ResizeMode::Nearest, ResizeCoordinates::Asymmetric) => [(pixel(over.div_euclid(under)), 1.0), (0, 0.0)],
            (ResizeMode::Nearest, _) => [(pixel((2 * over + under).div_euclid(2 * under)), 1.0), (0, 0.0)],
            (ResizeMode::Bilinear, _) => {
                let (over, end) = (over.clamp(0, (n - 1) * under), (n - 1) * under);
                let rest = over % under;
                let first = (pixel(over / under), (under - rest) as f64 / under as f64);
                let second = if over < end { rest as f64 / under as f64 } else { 0.0 };
                [first, (pixel(over / under + 1), second)]
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    use ResizeCoordinates::{AlignCorners, Asymmetric, HalfPixel};
    use ResizeMode::{Bilinear, Nearest};

    #[test]
    fn pixels_are_those_of_exact_coordinates() {
        for mode in [Nearest, Bilinear] {
            for coordinates in [HalfPixel, AlignCorners, Asymmetric] {
                for pixels in 1..14 {
                    for results in 1..30 {
                        let sampling = Sampling::new(mode, coordinates, pixels, results);
                        let taps: Vec<_> = sampling.taps().collect();
                        assert_eq!(taps.len(), results);
                        for (j, &(pixel, rest)) in taps.iter().enumerate() {
                            let at = j as f64;
                            let (n, m) = (pixels as f64, results as f64);
                            let coordinate = match coordinates {
                                HalfPixel => (at + 0.5) * n / m - 0.5,
                                AlignCorners if results == 1 => 0.0,
                                AlignCorners => at * (n - 1.0) / (m - 1.0),
                                Asymmetric => at * n / m,
                            };
                            let coordinate = coordinate.clamp(0.0, n - 1.0);
                            // What is within rounding of a whole number, or halfway, is that.
                            match mode {
                                Bilinear => {
                                    let found = pixel as f64 + rest as f64 / sampling.over as f64;
                                    assert!((found - coordinate).abs() < 1e-9, "{sampling:?}, {j}: {found}");
                                }
                                Nearest => {
                                    let half = if coordinates == Asymmetric { 0.0 } else { 0.5 };
                                    let wanted = (coordinate + half + 1e-9).floor();
                                    assert_eq!(pixel as f64, wanted.min(n - 1.0), "{sampling:?}, {j}");
                                }
                            }
                        }
                    }
                }
            }
        }
        // The largest extents. Their product is never computed.
        let far = usize::MAX / 16;
        let taps = Sampling::new(Bilinear, HalfPixel, far, 3).taps().map(|(pixel, _)| pixel as i128);
        assert!(taps.eq((0..3).map(|j| ((2 * j + 1) * far as i128 - 3) / 6)));
    }

    /// What `interpolate` of PyTorch 2.15 gives, and `Resize` of ONNX Runtime where that has no such coordinates.
    #[test]
    #[cfg(feature = "reference")]
    fn results_are_those_of_pytorch() {
        use crate::op::reference::{Expected, Input};
        let x = Input::f32(vec![1.0, 2.0, 4.0, 8.0, 16.0, 32.0], &[2, 3]);
        for (mode, coordinates, size, wanted) in [
            (
                Nearest,
                Asymmetric,
                (3, 5),
                &[1.0, 1.0, 2.0, 2.0, 4.0, 1.0, 1.0, 2.0, 2.0, 4.0, 8.0, 8.0, 16.0, 16.0, 32.0][..],
            ),
            (
                Nearest,
                HalfPixel,
                (3, 5),
                &[1.0, 1.0, 2.0, 4.0, 4.0, 8.0, 8.0, 16.0, 32.0, 32.0, 8.0, 8.0, 16.0, 32.0, 32.0],
            ),
            (
                Nearest,
                AlignCorners,
                (3, 5),
                &[1.0, 2.0, 2.0, 4.0, 4.0, 8.0, 16.0, 16.0, 32.0, 32.0, 8.0, 16.0, 16.0, 32.0, 32.0],
            ),
            (
                Bilinear,
                HalfPixel,
                (3, 5),
                &[1.0, 1.4, 2.0, 3.2, 4.0, 4.5, 6.3, 9.0, 14.4, 18.0, 8.0, 11.2, 16.0, 25.6, 32.0],
            ),
            (
                Bilinear,
                AlignCorners,
                (3, 5),
                &[1.0, 1.5, 2.0, 3.0, 4.0, 4.5, 6.75, 9.0, 13.5, 18.0, 8.0, 12.0, 16.0, 24.0, 32.0],
            ),
            (Bilinear, Asymmetric, (2, 5), &[1.0, 1.6, 2.4, 3.6, 4.0, 8.0, 12.8, 19.2, 28.8, 32.0]),
            (Nearest, Asymmetric, (1, 2), &[1.0, 2.0]),
            (Nearest, HalfPixel, (1, 2), &[8.0, 32.0]),
            (Nearest, AlignCorners, (1, 2), &[1.0, 4.0]),
            (Bilinear, HalfPixel, (1, 2), &[5.625, 15.75]),
            (Bilinear, AlignCorners, (1, 2), &[1.0, 4.0]),
            (Bilinear, Asymmetric, (1, 2), &[1.0, 3.0]),
        ] {
            let op = Resize2d { mode, coordinates, size };
            let [Expected::F32 { values, .. }] = &op.reference(&[x.operand().unwrap()])[..] else { panic!("{op:?}") };
            assert_eq!(values.len(), wanted.len());
            assert!(values.iter().zip(wanted).all(|(a, b)| f64::abs(a - b) < 1e-12), "{op:?}: {values:?}");
        }
    }

    #[test]
    fn what_is_no_image_or_has_no_size_is_refused() {
        let shape = |dims: &[usize]| Shape::new(dims).unwrap();
        let op = Resize2d::bilinear((3, 4));
        let types = [TensorType::f32(shape(&[2, 5, 6, 7]))];
        assert_eq!(op.infer(&types).unwrap()[0].shape, shape(&[2, 5, 3, 4]));
        assert_eq!(op.flops(&types, &op.infer(&types).unwrap()), 2 * 5 * 3 * 4 * 6);
        assert_eq!(op.extents(&shape(&[0, 6, 7])).unwrap().planes, 0);
        for dims in [&[][..], &[4], &[0, 4], &[2, 4, 0]] {
            assert!(matches!(op.extents(&shape(dims)), Err(Error::Shape { .. })), "{dims:?}");
        }
        for size in [(0, 4), (4, 0)] {
            let found = Resize2d { size, ..op }.extents(&shape(&[4, 4]));
            assert!(matches!(found, Err(Error::Parameter { .. })), "{found:?}");
        }
        for size in [(usize::MAX, 1), (usize::MAX / 4, 4)] {
            let found = Resize2d { size, ..op }.extents(&shape(&[4, 4]));
            assert!(matches!(found, Err(Error::Overflow { .. })), "{found:?}");
        }
    }
}
