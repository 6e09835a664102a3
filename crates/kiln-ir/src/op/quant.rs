use super::{Bound, Contract, Operation, Outputs};
use crate::quant::Values;
use crate::{DType, Error, QuantFormat, Result, Shape, TensorType};

/// Writes f32 as blocks of a quantised format, along the last dimension.
///
/// The bytes are those of [`QuantFormat::encode`] on every backend. Magnitudes beyond the range of the format saturate:
/// [`QuantFormat::saturated_blocks`] counts the blocks that have some.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Quantize {
    /// The format to write.
    pub format: QuantFormat,
}

impl Operation for Quantize {
    fn name(&self) -> &'static str {
        "quantize"
    }

    fn formula(&self) -> &'static str {
        "blocks of the scales (and minima) and integers nearest to x"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("quantize", inputs, &[DType::F32])?;
        Ok(TensorType::blocks(self.format, inputs[0].shape)?.into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        // Sixteen fits and the neighbours of the codes; one division and one rounding for Q8_0.
        let each = match self.format.layout().values {
            Values::Symmetric if self.format.layout().bits == 8 => 6,
            Values::Symmetric => 220,
            Values::Affine => 320,
            // Fifteen comparisons find an entry of the code book.
            Values::Book(_) => 700,
        };
        super::product(&[each, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "the bytes of the reference quantiser; a block with a NaN or an infinity decodes to NaN \
                      throughout; magnitudes beyond the format become its largest number; below its smallest step, and in blocks \
                      of MXFP4 below 2⁻⁹⁶, zero",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        vec![super::reference::Expected::Exact(crate::Buffer::Blocks(
            self.format,
            encoded(self.format, inputs[0].data().f32()),
        ))]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random, SPECIAL};
        let mut random = Random::new(31);
        let mut cases = Vec::new();
        for format in QuantFormat::ALL {
            let (op, len) = (Self { format }, format.block_len());
            let mut case = |data: Vec<f32>, dims: &[usize]| cases.push(Case::new(op, vec![Input::f32(data, dims)]));
            for dims in [&[0][..], &[len], &[3 * len], &[0, len], &[2, 3, len], &[5, 7 * len], &[70_001 / len * len]] {
                case(random.uniforms(dims.iter().product(), -1.0, 1.0), dims);
            }
            for (lo, hi) in
                [(0.0, 1.0), (-3.0, -2.0), (5.0, 5.1), (-1e-6, 1e-6), (-1e9, 1e9), (-1e-8, 1e-8), (2.0, 2.0)]
            {
                case(random.uniforms(2 * len, lo, hi), &[2 * len]);
            }
            for special in SPECIAL {
                let mut data = random.uniforms(2 * len, -1.0, 1.0);
                data[len / 3] = special;
                case(data, &[2, len]);
                case(vec![special; len], &[len]);
            }
        }
        cases
    }
}

/// The f32 that quantised blocks encode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dequantize {
    /// The format to read.
    pub format: QuantFormat,
}

impl Operation for Dequantize {
    fn name(&self) -> &'static str {
        "dequantize"
    }

    fn formula(&self) -> &'static str {
        "y = scale q, or scale q - minimum, q an integer or a number of a code book"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("dequantize", inputs, &[DType::Blocks(self.format)])?;
        Ok(TensorType::f32(inputs[0].shape).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[2, inputs[0].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: Bound::Exact,
            special: "every pattern of bytes has a meaning; a scale that is NaN or infinite is multiplied as IEEE 754 \
                      says, so that infinity times a zero integer is NaN; the exponent 255 of MXFP4 is NaN",
        }
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let values: Vec<f64> = decoded(self.format, inputs[0].data().blocks()).into_iter().map(f64::from).collect();
        let magnitudes = vec![0.0; values.len()];
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        use crate::Buffer;
        let mut random = Random::new(37);
        let mut cases = Vec::new();
        for format in QuantFormat::ALL {
            let len = format.block_len();
            for dims in [&[0][..], &[len], &[3 * len], &[4, 0, len], &[2, 3, len], &[70_001 / len * len]] {
                let n: usize = dims.iter().product();
                let blocks = repeated(format, n, -1.0, 1.0, &mut random);
                cases.push(Case::new(Self { format }, vec![Input::new(Buffer::Blocks(format, blocks), dims)]));
            }
            // Arbitrary bytes, which include scales of every kind.
            let bytes: Vec<u8> = (0..400 * format.block_bytes()).map(|_| random.bits() as u8).collect();
            cases.push(Case::new(Self { format }, vec![Input::new(Buffer::Blocks(format, bytes), &[8, 50 * len])]));
        }
        cases
    }
}

/// The product of f32 rows with the transpose of quantised weights: `y = x Wᵀ`.
///
/// `x` is `[.., k]`, `W` is `[n, k]` in blocks along `k`, `y` is `[.., n]`. One row of `x` makes it a matrix-vector
/// product.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct QuantMatmul {
    /// The format of the weights.
    pub format: QuantFormat,
}

impl Operation for QuantMatmul {
    fn name(&self) -> &'static str {
        "quant_matmul"
    }

    fn formula(&self) -> &'static str {
        "yᵢⱼ = Σₖ xᵢₖ Wⱼₖ"
    }

    fn infer(&self, inputs: &[TensorType]) -> Result<Outputs> {
        super::expect_types("quant_matmul", inputs, &[DType::F32, DType::Blocks(self.format)])?;
        let (x, w) = (inputs[0].shape, inputs[1].shape);
        let &[n, k] = w.dims() else {
            return Err(Error::Shape { op: "quant_matmul", reason: format!("weights {w} are not a matrix") });
        };
        let mut dims = x.dims().to_vec();
        let Some(columns) = dims.last_mut().filter(|columns| **columns == k) else {
            return Err(Error::mismatch(
                "quant_matmul",
                "rows of x and of the weights",
                &x,
                &w,
                "both need as many columns",
            ));
        };
        *columns = n;
        Ok(TensorType::f32(Shape::new(&dims)?).into())
    }

    fn flops(&self, inputs: &[TensorType], _: &[TensorType]) -> u64 {
        super::product(&[2, inputs[0].shape.rows(), inputs[1].shape.numel()])
    }

    fn contract(&self) -> Contract {
        Contract {
            bound: product_bound(4096 / self.format.block_len()),
            special: "Σ|terms| is Σ over blocks of max |x| times Σ (|scale q| + |minimum|): x may be rounded \
                      to 16 bits a block; NaN and infinities in x or in a scale give what IEEE 754 makes of the \
                      products; k = 0 gives zeros; the bound grows with k, and is given for 4096",
        }
    }

    fn bound(&self, inputs: &[TensorType]) -> Bound {
        product_bound(inputs[1].shape.columns() / self.format.block_len())
    }

    fn worst(&self, inputs: &[TensorType]) -> Bound {
        product_worst(inputs[1].shape.columns() / self.format.block_len())
    }

    #[cfg(feature = "reference")]
    fn reference(&self, inputs: &[crate::Operand<'_>]) -> Vec<super::reference::Expected> {
        let (x, blocks) = (inputs[0].data().f32(), inputs[1].data().blocks());
        let w = decoded(self.format, blocks);
        let without_minima = decoded(self.format, &zero_minima(self.format, blocks));
        let &[n, k] = inputs[1].shape().dims() else { return Vec::new() };
        let m = inputs[0].shape().rows();
        let (mut values, mut magnitudes) = (Vec::new(), Vec::new());
        for i in 0..m {
            let x = &x[i * k..(i + 1) * k];
            for j in 0..n {
                let (w, scaled) = (&w[j * k..(j + 1) * k], &without_minima[j * k..(j + 1) * k]);
                values.push(x.iter().zip(w).map(|(&x, &w)| f64::from(x) * f64::from(w)).sum());
                let len = self.format.block_len();
                let blocks = x.chunks(len).zip(w.chunks(len).zip(scaled.chunks(len)));
                let magnitude = blocks.map(|(x, (w, scaled))| {
                    let largest = x.iter().fold(0.0f64, |m, &x| m.max(f64::from(x).abs()));
                    let parts = |(&w, &s): (&f32, &f32)| f64::from(s).abs() + (f64::from(w) - f64::from(s)).abs();
                    largest * w.iter().zip(scaled).map(parts).sum::<f64>()
                });
                magnitudes.push(magnitude.sum());
            }
        }
        vec![super::reference::Expected::F32 { values, magnitudes }]
    }

    #[cfg(feature = "reference")]
    fn cases() -> Vec<super::reference::Case> {
        use super::reference::{Case, Input, Random};
        use crate::Buffer;
        let mut random = Random::new(41);
        let mut cases = Vec::new();
        for format in QuantFormat::ALL {
            let len = format.block_len();
            let mut case = |x: Vec<f32>, dims: &[usize], blocks: Vec<u8>, n: usize| {
                let k = dims[dims.len() - 1];
                let weights = Input::new(Buffer::Blocks(format, blocks), &[n, k]);
                cases.push(Case::new(Self { format }, vec![Input::f32(x, dims), weights]));
            };
            // Formats of a kind share kernels: one of each kind gets every case, the others some.
            let representative = matches!(
                format,
                QuantFormat::Q8_0
                    | QuantFormat::Q5_1
                    | QuantFormat::Q2K
                    | QuantFormat::Q4K
                    | QuantFormat::Q5K
                    | QuantFormat::Q6K
            );
            // Rows of x, rows of weights, blocks: zero, one, odd, beyond every group of rows and of outputs.
            let some = [(1, 7, 2), (3, 4, 3), (9, 34, 1), (1, 3, 33)];
            let more =
                [(0, 3, 1), (1, 0, 1), (2, 3, 0), (1, 1, 1), (1, 33, 5), (2, 5, 1), (4, 65, 1), (5, 2, 2), (17, 3, 4)];
            for &(m, n, blocks) in some.iter().chain(if representative { &more[..] } else { &[] }) {
                let k = blocks * len;
                let w = repeated(format, n * k, -1.0, 1.0, &mut random);
                case(random.uniforms(m * k, -1.0, 1.0), &[m, k], w, n);
            }
            let w = encoded(format, &random.uniforms(6 * 2 * len, -0.1, 0.3));
            case(random.uniforms(2 * len, -1.0, 1.0), &[2 * len], w.clone(), 6);
            case(random.uniforms(3 * 4 * len, -1.0, 1.0), &[3, 2, 2 * len], w.clone(), 6);
            // Large, tiny, subnormal and zero blocks of x, and single special values among ordinary ones.
            for scale in if representative { &[1e30, 1e-20, 1e-30, 1e-42, 0.0][..] } else { &[1e-30] } {
                let mut x = random.uniforms(2 * len, -scale, *scale);
                case(x.clone(), &[1, 2 * len], w.clone(), 6);
                x[len..].iter_mut().for_each(|x| *x = random.uniform(-1.0, 1.0));
                case(x, &[1, 2 * len], w.clone(), 6);
            }
            let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 1e-45];
            for &special in if representative { &specials[..] } else { &specials[..2] } {
                let mut x = random.uniforms(2 * 2 * len, -1.0, 1.0);
                x[len + 5] = special;
                case(x, &[2, 2 * len], w.clone(), 6);
            }
            // Arbitrary bytes, which include scales of every kind.
            let bytes: Vec<u8> = (0..120 * 2 * format.block_bytes()).map(|_| random.bits() as u8).collect();
            case(random.uniforms(3 * 2 * len, -1.0, 1.0), &[3, 2 * len], bytes.clone(), 120);
            // Many rows: some have a special value, others are entirely large, small, subnormal or zero.
            if representative {
                let (m, k) = (130, 2 * len);
                let mut x = random.uniforms(m * k, -1.0, 1.0);
                for (row, special) in
                    [(1, f32::NAN), (64, f32::INFINITY), (129, f32::NEG_INFINITY), (7, 1e30), (8, 1e-45)]
                {
                    x[row * k + len / 2] = special;
                }
                for (row, size) in [(2, 1e30), (66, 1e-30), (67, 1e-42), (128, 0.0)] {
                    x[row * k..(row + 1) * k].iter_mut().for_each(|x| *x *= size);
                }
                let w = repeated(format, 12 * k, -1.0, 1.0, &mut random);
                case(x.clone(), &[m, k], w, 12);
                case(x[..96 * k].to_vec(), &[96, k], bytes[..20 * 2 * format.block_bytes()].to_vec(), 20);
            }
            // The extreme value of every integer at once: the largest sums that a lane may have to represent.
            for sign in [1.0, -1.0] {
                case(vec![sign; 2 * len], &[2 * len], extreme(format, 2), 1);
            }
        }
        cases
    }
}

/// The bound of a product over `blocks` blocks.
///
/// A backend may round x to 16 bits, in units of max |x| / 32639 for each block of the format: half a unit is 257 u of
/// the largest element. Units and scales add a few u. The f32 sum over the blocks adds at worst one u per block, while
/// the observed error grows with the square root of their number.
pub(super) fn product_bound(blocks: usize) -> Bound {
    let blocks = blocks as f64;
    Bound::Magnitude(OF_A_BLOCK + blocks.min(2.0 * blocks.sqrt()).ceil())
}

/// The units of [`product_bound`] that do not depend on the number of blocks.
const OF_A_BLOCK: f64 = 266.0;

/// The same if all roundings have one direction.
pub(super) fn product_worst(blocks: usize) -> Bound {
    Bound::Magnitude(OF_A_BLOCK + blocks as f64)
}

/// Blocks whose integers and scale codes are all of the largest magnitude.
#[cfg(feature = "reference")]
fn extreme(format: QuantFormat, blocks: usize) -> Vec<u8> {
    let one = [0x00, 0x3c];
    let layout = format.layout();
    // With all bits set the integers of affine formats are largest; with all bits clear the integers of symmetric
    // formats are most negative.
    let bits = if layout.values == Values::Affine { 0xff } else { 0 };
    let mut block = vec![bits; format.block_bytes()];
    match format {
        QuantFormat::Q8_0 => block.fill(0x80),
        QuantFormat::Q6K => block[192..208].fill(0x80),
        QuantFormat::Mxfp4 => {
            block.fill(0xff);
            block[0] = 128;
        }
        _ => {}
    }
    for at in [layout.unit(), layout.minimum()].into_iter().flatten() {
        block[at..at + 2].copy_from_slice(&one);
    }
    block.repeat(blocks)
}

/// Blocks with the unit of their minima set to zero.
#[cfg(feature = "reference")]
fn zero_minima(format: QuantFormat, blocks: &[u8]) -> Vec<u8> {
    let mut blocks = blocks.to_vec();
    if let Some(at) = format.layout().minimum() {
        blocks.chunks_exact_mut(format.block_bytes()).for_each(|block| block[at..at + 2].fill(0));
    }
    blocks
}

#[cfg(feature = "reference")]
pub(super) fn encoded(format: QuantFormat, x: &[f32]) -> Vec<u8> {
    let mut blocks = vec![0; x.len() / format.block_len() * format.block_bytes()];
    format.encode(x, &mut blocks).expect("a case is whole blocks");
    blocks
}

/// Blocks of `n` random numbers between two. Encoding takes most of the time of making cases, so 61 blocks repeat: a prime, so that rows
/// of weights differ.
#[cfg(feature = "reference")]
fn repeated(format: QuantFormat, n: usize, lo: f32, hi: f32, random: &mut super::reference::Random) -> Vec<u8> {
    let x = random.uniforms(n, lo, hi);
    let few = encoded(format, &x[..n.min(61 * format.block_len())]);
    few.into_iter().cycle().take(n / format.block_len() * format.block_bytes()).collect()
}

#[cfg(feature = "reference")]
fn decoded(format: QuantFormat, blocks: &[u8]) -> Vec<f32> {
    let mut out = vec![0.0; blocks.len() / format.block_bytes() * format.block_len()];
    format.decode(blocks, &mut out).expect("an operand is whole blocks");
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(all(target_arch = "wasm32", target_os = "unknown"))]
    use wasm_bindgen_test::wasm_bindgen_test as test;

    const FORMAT: QuantFormat = QuantFormat::Q4K;

    fn f32s(dims: &[usize]) -> TensorType {
        TensorType::f32(Shape::new(dims).unwrap())
    }

    fn blocks(dims: &[usize]) -> TensorType {
        TensorType::blocks(FORMAT, Shape::new(dims).unwrap()).unwrap()
    }

    #[test]
    fn rows_must_be_whole_blocks() {
        assert!(matches!(Quantize { format: FORMAT }.infer(&[f32s(&[2, 255])]), Err(Error::Format { .. })));
        assert!(matches!(Quantize { format: FORMAT }.infer(&[f32s(&[])]), Err(Error::Format { .. })));
        assert_eq!(Quantize { format: FORMAT }.infer(&[f32s(&[2, 256])]).unwrap()[0], blocks(&[2, 256]));
    }

    #[test]
    fn the_format_of_the_operand_must_be_that_of_the_operation() {
        let op = Dequantize { format: QuantFormat::Q6K };
        assert!(matches!(op.infer(&[blocks(&[256])]), Err(Error::Type { index: 0, .. })));
        assert!(matches!(op.infer(&[]), Err(Error::Arity { .. })));
    }

    #[test]
    fn products_keep_the_outer_extents() {
        let op = QuantMatmul { format: FORMAT };
        assert_eq!(op.infer(&[f32s(&[512]), blocks(&[7, 512])]).unwrap()[0], f32s(&[7]));
        assert_eq!(op.infer(&[f32s(&[2, 3, 512]), blocks(&[7, 512])]).unwrap()[0], f32s(&[2, 3, 7]));
        for (x, w) in [(&[][..], &[7, 512][..]), (&[256], &[7, 512]), (&[512], &[1, 7, 512]), (&[512], &[512])] {
            assert!(matches!(op.infer(&[f32s(x), blocks(w)]), Err(Error::Shape { .. })), "{x:?} {w:?}");
        }
    }

    #[test]
    fn cost_counts_packed_bytes() {
        let op = super::super::Op::from(QuantMatmul { format: FORMAT });
        let cost = op.cost(&[f32s(&[2, 256]), blocks(&[10, 256])]).unwrap();
        assert_eq!((cost.flops, cost.bytes_read, cost.bytes_written), (2 * 2 * 10 * 256, 2 * 1024 + 1440, 80));
    }
}
