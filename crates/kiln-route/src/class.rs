//! Classes of operations that share a measured curve.

use std::fmt;

use kiln_ir::op::{ElementwiseKind as Kind, Movement, Op, Reduction};
use kiln_ir::{DType, QuantFormat, TensorType};

/// Operations that share a measured curve: an operation, and the kind of shape if that decides which code runs.
///
/// Within a class, time is a function of the amount of work alone. Shapes that reach other code, or that parallelise
/// differently, are other classes: a product with one row is bound by bandwidth, a square one by arithmetic.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Class {
    /// The name of the operation, or of the one that runs as it does.
    pub op: &'static str,
    /// The kind of shape; empty for the ordinary one.
    pub shape: &'static str,
}

impl Class {
    /// The class of an operation on inputs that its shape rule accepts.
    pub fn of(op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Self {
        if let (Op::MatmulByExpert(_), [_, weights, indices]) = (op, inputs) {
            return Self::of_experts(weights, indices);
        }
        Self { op: representative(op), shape: shape_kind(op, inputs, outputs).unwrap_or("") }
    }
}

impl Class {
    /// Whether an engine may round the operands of such operations; see [`kiln_ir::Precision`].
    pub fn is_rounded(&self) -> bool {
        matches!(self.op, "matmul" | "matvec" | "quant_matmul")
    }

    /// The class of products by expert: that of a product with the weights of one expert and the average number of rows
    /// per expert.
    fn of_experts(weights: &TensorType, indices: &TensorType) -> Self {
        let experts = weights.shape.dims().first().copied().unwrap_or(1).max(1);
        let rows = indices.shape.numel().div_ceil(experts);
        match (weights.dtype, rows) {
            (DType::Blocks(format), rows) => Self { op: "quant_matmul", shape: quantized(format, rows) },
            (_, ..=1) => Self { op: "matmul", shape: "one row" },
            (_, ..=16) => Self { op: "matmul", shape: "few rows" },
            _ => Self { op: "matmul", shape: "" },
        }
    }
}

/// The operation whose calibration serves this one: itself, except for functions that compute little, for reductions
/// with equal access patterns, and for operations that only move elements. (`max` names both a reduction and an
/// element-wise function, which differ.)
fn representative(op: &Op) -> &'static str {
    match op {
        Op::Reduce(reduce) => match reduce.reduction {
            Reduction::Sum | Reduction::Mean | Reduction::Prod | Reduction::NormL1 => "sum",
            Reduction::Max | Reduction::Min | Reduction::NormLinf => "reduce_max",
            Reduction::ArgMax | Reduction::ArgMin => "argmax",
            Reduction::NormL2 => "norm_l2",
        },
        // Functions that compute little take as long as moving their operands and result.
        Op::Elementwise(elementwise) => match elementwise.kind() {
            Kind::Neg | Kind::Abs | Kind::Scale | Kind::Clip | Kind::Relu | Kind::LeakyRelu => "scale",
            Kind::Floor | Kind::Ceil | Kind::Round | Kind::Trunc => "scale",
            // Both use the same reduction of angles.
            Kind::Sin | Kind::Cos => "sin",
            Kind::Add | Kind::Sub | Kind::Mul | Kind::Min | Kind::Max | Kind::Lerp => "add",
            kind => kind.name(),
        },
        Op::Gather(_) | Op::WriteRows(_) => "gather",
        Op::Sort(_) => "sort",
        // On the CPU a few convolutions; on GPUs as many products.
        Op::ConvolveTranspose2d(_) => "convolve2d",
        // Reads the pixels around each result and writes that.
        Op::Resize2d(_) => "max_pool2d",
        // Normalises rows, then reads and writes them once more.
        Op::GroupNorm(_) => "layer_norm",
        Op::BatchNorm(_) => "scale",
        // Reads a table and writes another, as a sum does.
        Op::IndexAdd(_) => "add",
        Op::Compare(_) | Op::Select(_) | Op::Arithmetic(_) => "add",
        // These move elements and compute next to nothing.
        _ if op.reads_as_stored() => "permute",
        _ => op.name(),
    }
}

/// The format that is calibrated for this one: itself where it has kernels of its own, else one that is taken apart as it is.
pub const fn measured_as(format: QuantFormat) -> QuantFormat {
    match format {
        QuantFormat::Q8_0 | QuantFormat::Q4K | QuantFormat::Q5K | QuantFormat::Q6K => format,
        QuantFormat::Q2K | QuantFormat::Q3K => QuantFormat::Q2K,
        QuantFormat::Q4_0
        | QuantFormat::Q4_1
        | QuantFormat::Q5_0
        | QuantFormat::Q5_1
        | QuantFormat::Iq4Nl
        | QuantFormat::Iq4Xs
        | QuantFormat::Mxfp4 => QuantFormat::Q4_0,
    }
}

/// The shape kind of products of this many rows with weights of this format. One row, up to 31, and more run different kernels: from 32
/// rows on devices unpack the weights ahead or use matrix units.
const fn quantized(format: QuantFormat, rows: usize) -> &'static str {
    match (measured_as(format), rows) {
        (format, ..=1) => format.name(),
        (QuantFormat::Q8_0, ..32) => "rows, q8_0",
        (QuantFormat::Q4K, ..32) => "rows, q4_K",
        (QuantFormat::Q5K, ..32) => "rows, q5_K",
        (QuantFormat::Q6K, ..32) => "rows, q6_K",
        (QuantFormat::Q2K, ..32) => "rows, q2_K",
        (_, ..32) => "rows, q4_0",
        (QuantFormat::Q8_0, _) => "many rows, q8_0",
        (QuantFormat::Q4K, _) => "many rows, q4_K",
        (QuantFormat::Q5K, _) => "many rows, q5_K",
        (QuantFormat::Q6K, _) => "many rows, q6_K",
        (QuantFormat::Q2K, _) => "many rows, q2_K",
        _ => "many rows, q4_0",
    }
}

fn shape_kind(op: &Op, inputs: &[TensorType], outputs: &[TensorType]) -> Option<&'static str> {
    let first = inputs.first()?.shape;
    Some(match op {
        Op::Elementwise(_) | Op::Compare(_) | Op::Select(_) | Op::Arithmetic(_) => {
            let n = outputs.first()?.shape.numel();
            let flat = inputs.iter().all(|t| t.shape.numel() == n || t.shape.numel() == 1);
            if flat { "" } else { "repeated operand" }
        }
        Op::Reduce(reduce) => match reduce.extents(&first).ok()? {
            (1, _, 1) => "",
            (_, _, 1) => "rows",
            _ => "columns",
        },
        Op::Matmul(matmul) => {
            let e = matmul.extents(&first, &inputs.get(1)?.shape).ok()?;
            // A common B makes the stack one tall matrix.
            let stack = e.batch > 1 && (!e.shared_b || matmul.transpose_a);
            match (e.batch.saturating_mul(e.m), e.n) {
                _ if stack => "stack",
                (..=1, _) => "one row",
                (_, ..=1) => "one column",
                (..=16, _) => "few rows",
                (_, ..=16) => "few columns",
                _ => "",
            }
        }
        Op::Matvec(matvec) => {
            if matvec.transpose {
                "transposed"
            } else {
                ""
            }
        }
        Op::Convolve2d(convolution) => {
            let e = convolution.extents(&first, &inputs.get(1)?.shape).ok()?;
            // Each group runs as a convolution of its own.
            if e.c_in == e.groups && e.c_out == e.groups { one_channel(e.kh * e.kw) } else { "" }
        }
        Op::ConvolveTranspose2d(convolution) => {
            let e = convolution.extents(&first, &inputs.get(1)?.shape).ok()?;
            if e.c_in == e.groups && e.c_out == e.groups { one_channel(e.kh * e.kw) } else { "" }
        }
        Op::Attention(attention) => {
            let e = attention.extents(&first, &inputs.get(1)?.shape, &inputs.get(2)?.shape).ok()?;
            if e.s == 1 { "one query" } else { "" }
        }
        Op::Quantize(quantize) => measured_as(quantize.format).name(),
        Op::Dequantize(dequantize) => measured_as(dequantize.format).name(),
        Op::QuantMatmul(product) => quantized(product.format, first.rows()),
        Op::Transpose(transpose) => {
            // If one side is shorter than the vectors, how it fills them determines the time.
            let (_, rows, columns) = transpose.extents(&first).ok()?;
            match (rows, columns) {
                (..=4, _) => "up to 4 rows",
                (_, ..=4) => "up to 4 columns",
                (..=8, _) => "up to 8 rows",
                (_, ..=8) => "up to 8 columns",
                (..=16, _) => "few rows",
                (_, ..=16) => "few columns",
                _ => "",
            }
        }
        Op::Pool2d(_) | Op::Resize2d(_) | Op::BatchNorm(_) | Op::IndexAdd(_) => "",
        Op::Gather(_) | Op::WriteRows(_) => {
            let rows = first.dims().first().copied().unwrap_or(1);
            short_or_long(first.numel() / rows.max(1))
        }
        // Copies whole rows.
        Op::Scatter(_) => "runs",
        Op::Permute(op) => moved(op, inputs),
        Op::Slice(op) => moved(op, inputs),
        Op::BroadcastTo(op) => moved(op, inputs),
        Op::Pad(op) => moved(op, inputs),
        Op::Concat(op) => moved(op, inputs),
        Op::Reshape(op) => moved(op, inputs),
        Op::AllReduce(op) => moved(op, inputs),
        // Operations on rows run on several threads only if there are several rows.
        _ => match (first.rows(), first.columns()) {
            (..=1, _) => "one row",
            (_, columns) => short_or_long(columns),
        },
    })
}

/// Rows of this many elements: the cost per row matters for short ones.
fn short_or_long(columns: usize) -> &'static str {
    if columns < 64 { "short rows" } else { "" }
}

/// Convolutions of one channel by the number of elements of the kernel: with few of them, moving the image takes as long as computing.
fn one_channel(elements: usize) -> &'static str {
    if elements <= 9 { "one channel 3x3" } else { "one channel" }
}

/// Whether elements move in runs, as with `memcpy`, or one by one.
fn moved(op: &impl Movement, inputs: &[TensorType]) -> &'static str {
    const RUN: usize = 8;
    let in_runs = op.copy(inputs, 0).is_ok_and(|copy| copy.run() >= RUN || copy.run() == copy.len());
    if in_runs { "runs" } else { "" }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.op)?;
        if self.shape.is_empty() { Ok(()) } else { write!(f, " ({})", self.shape) }
    }
}
