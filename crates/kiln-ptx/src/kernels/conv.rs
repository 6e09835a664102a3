//! Convolution and transposed convolution, an element of the result a thread; and images unfolded for convolutions that run as
//! products of matrices.

use kiln_ir::Result;
use kiln_ir::op::{Convolve2d, ConvolveExtents, ConvolveTransposeExtents};

use super::window::{BLOCK, SIDE, launch, words};
use crate::kernel::extent;
use crate::{Builder, Kernel, Launch, PtxKernel, Value};

/// The strides of a convolution, 1 for those without effect, which may have any value.
///
/// # Errors
/// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³⁰ rows or columns of padded images.
fn effective_strides(op: &Convolve2d, extents: &ConvolveExtents) -> Result<[usize; 2]> {
    let ConvolveExtents { out_h, out_w, .. } = *extents;
    let taken = |stride: usize, results: usize| if results > 1 { stride } else { 1 };
    let (sh, sw) = (taken(op.stride.0, out_h), taken(op.stride.1, out_w));
    let (down, across) = extents.span();
    for last in [out_h.saturating_sub(1) * sh + down, out_w.saturating_sub(1) * sw + across] {
        extent("rows or columns of a padded image", last, SIDE)?;
    }
    Ok([sh, sw])
}

/// The two-dimensional convolution of the frameworks, with zeros around the images.
///
/// The products of a row of the kernel are added one after the other, then those of its rows, then those of the channels.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Convolve {
    /// Whether it supports dilations and groups of channels. The other kernel is for one group without dilation.
    general: bool,
}

impl Convolve {
    /// The kernel for an operation on images and kernels of these extents.
    pub fn new(extents: &ConvolveExtents) -> Self {
        Self { general: extents.dilation != (1, 1) || extents.groups != 1 }
    }

    /// Every kernel.
    pub fn all() -> [Self; 2] {
        [false, true].map(|general| Self { general })
    }

    /// The launch of an operation on images and kernels of these extents. Buffers: images, kernels, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 results or 2³⁰ rows, columns or channels, those of the padding
    /// counted.
    pub fn launch(&self, op: &Convolve2d, extents: &ConvolveExtents) -> Result<Launch> {
        let ConvolveExtents { batch, c_in, h, w, c_out, kh, kw, out_h, out_w, top, left, dilation, groups } = *extents;
        let results = batch.saturating_mul(c_out).saturating_mul(out_h).saturating_mul(out_w);
        let [sh, sw] = effective_strides(op, extents)?;
        let mut sides = vec![c_in / groups, h, w, c_out, kh, kw, out_h, out_w, sh, sw, top, left];
        if self.general {
            sides.extend([dilation.0, dilation.1, c_in, c_out / groups]);
        }
        launch(3, results, words("rows, columns or channels", &sides)?)
    }

    fn write(&self, k: &Builder) {
        let [x, kernel, out] = ["x", "kernel", "out"].map(|name| k.buffer::<f32>(name));
        let n = k.parameter::<u32>("n");
        let names = ["c_in", "h", "w", "c_out", "kh", "kw", "out_h", "out_w", "sh", "sw", "top", "left"];
        let [c_in, h, w, c_out, kh, kw, out_h, out_w, sh, sw, top, left] = names.map(|name| k.parameter::<u32>(name));
        let general = self.general.then(|| ["dh", "dw", "channels", "group_out"].map(|name| k.parameter::<u32>(name)));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (j, rest) = (at % out_w, at / out_w);
            let (i, rest) = (rest % out_h, rest / out_h);
            let (channel, picture) = (rest % c_out, rest / c_out);
            // Rows and columns before the image wrap around to unsigned numbers beyond all of its extents.
            let (first_row, first_column) = (i * sh - top, j * sw - left);
            let first_plane = match general {
                Some([_, _, channels, group_out]) => {
                    k.mad_wide(picture, channels, k.mul_wide(channel / group_out, c_in))
                }
                None => k.mul_wide(picture, c_in),
            };
            let sum = k.variable(0.0f32);
            k.for_(0, c_in, 1, |c| {
                let plane = x.index_wide((first_plane + k.cvt_u64(c)) * k.mul_wide(h, w));
                let weights = kernel.index_wide(k.mad_wide(channel, c_in, k.cvt_u64(c)) * k.mul_wide(kh, kw));
                let of_channel = k.variable(0.0f32);
                k.for_(0, kh, 1, |p| {
                    let row = general.map_or(first_row + p, |[dh, ..]| k.mad(p, dh, first_row));
                    let inside = k.lt(row, h);
                    let (row, weights) = (plane.index_wide(k.mul_wide(row, w)), weights.index_wide(k.mul_wide(p, kw)));
                    let part = k.variable(0.0f32);
                    k.for_(0, kw, 1, |r| {
                        let column = general.map_or(first_column + r, |[_, dw, ..]| k.mad(r, dw, first_column));
                        let pixel = k.ld_if(k.and(inside, k.lt(column, w)), row.index(column), 0.0);
                        part.set(k.fma(k.ld(weights.index(r)), pixel, part));
                    });
                    of_channel.set(k.add(of_channel, part));
                });
                sum.set(k.add(sum, of_channel));
            });
            k.st(out.index(at), sum);
        });
    }
}

impl Kernel for Convolve {
    fn name(&self) -> String {
        if self.general { "convolve2d_general" } else { "convolve2d" }.to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// The pixels under each element of a kernel, `unfolded[image, channel, p, r, i, j] = x[image, channel, i·s + p·d, j·s + r·d]`, with
/// zeros around the images: a convolution is the product of its kernels with them (im2col).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Unfold;

impl Unfold {
    /// Whether the unfolded images of a convolution are the images.
    pub fn is_identity(op: &Convolve2d, extents: &ConvolveExtents) -> bool {
        let ConvolveExtents { h, w, kh, kw, out_h, out_w, top, left, .. } = *extents;
        let whole = (kh, kw, out_h, out_w, top, left) == (1, 1, h, w, 0, 0);
        whole && (op.stride.0 == 1 || h == 1) && (op.stride.1 == 1 || w == 1)
    }

    /// The launch for a convolution of these extents. Buffer 0 is read, 1 is written.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 pixels or 2³⁰ rows or columns, those of the padding counted.
    pub fn launch(&self, op: &Convolve2d, extents: &ConvolveExtents) -> Result<Launch> {
        let ConvolveExtents { batch, c_in, h, w, kh, kw, out_h, out_w, top, left, dilation, .. } = *extents;
        let results = [c_in, kh, kw, out_h, out_w].into_iter().fold(batch, usize::saturating_mul);
        let [sh, sw] = effective_strides(op, extents)?;
        let sides = [h, w, kh, kw, out_h, out_w, sh, sw, top, left, dilation.0, dilation.1];
        launch(2, results, words("rows or columns", &sides)?)
    }

    fn write(&self, k: &Builder) {
        let [x, out] = ["x", "out"].map(|name| k.buffer::<f32>(name));
        let n = k.parameter::<u32>("n");
        let names = ["h", "w", "kh", "kw", "out_h", "out_w", "sh", "sw", "top", "left", "dh", "dw"];
        let [h, w, kh, kw, out_h, out_w, sh, sw, top, left, dh, dw] = names.map(|name| k.parameter::<u32>(name));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (j, rest) = (at % out_w, at / out_w);
            let (i, rest) = (rest % out_h, rest / out_h);
            let (r, rest) = (rest % kw, rest / kw);
            let (p, plane) = (rest % kh, rest / kh);
            // Rows and columns before the image wrap around to unsigned numbers beyond all of its extents.
            let (row, column) = (k.mad(p, dh, i * sh - top), k.mad(r, dw, j * sw - left));
            let image = k.cvt_u64(plane) * k.mul_wide(h, w);
            let pixels = x.index_wide(image).index_wide(k.mul_wide(row, w));
            let inside = k.and(k.lt(row, h), k.lt(column, w));
            k.st(out.index(at), k.ld_if(inside, pixels.index(column), 0.0));
        });
    }
}

impl Kernel for Unfold {
    fn name(&self) -> String {
        "unfold2d".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}

/// The two-dimensional transposed convolution: each result is a sum over the elements of the kernel that reach it, times pixels.
///
/// The products of a row of the kernel are added one after the other, then those of its rows, then those of 256 channels, then these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ConvolveTranspose;

impl ConvolveTranspose {
    /// The launch of an operation on images and kernels of these extents. Buffers: images, kernels, result.
    ///
    /// # Errors
    /// [`Error::Limit`](kiln_ir::Error::Limit) beyond 2³² - 257 results or 2³⁰ rows, columns or channels, those that are cut off
    /// counted, and where a stride is so large that its square exceeds 32 bits and dilated.
    pub fn launch(&self, extents: &ConvolveTransposeExtents) -> Result<Launch> {
        let ConvolveTransposeExtents { batch, c_in, h, w, c_out, kh, kw, out_h, out_w, top, left, .. } = *extents;
        let ConvolveTransposeExtents { stride, dilation, groups, .. } = *extents;
        let results = batch.saturating_mul(c_out).saturating_mul(out_h).saturating_mul(out_w);
        let spans = [(kh - 1) * dilation.0, (kw - 1) * dilation.1];
        for side in [out_h + top, out_w + left].into_iter().chain(spans) {
            extent("rows or columns of a transposed convolution", side, SIDE)?;
        }
        let mut sides = vec![c_in / groups, c_in, c_out, c_out / groups, h, w, kh, kw, out_h, out_w, top, left];
        for (reaching, stride, dilation) in [(0, stride.0, dilation.0), (1, stride.1, dilation.1)] {
            let reaching = extents.reaching()[reaching];
            let product = (reaching.elements - 1).saturating_mul(reaching.inverse);
            extent("the stride of a dilated transposed convolution, squared", product, u32::MAX.into())?;
            sides.extend([stride, dilation, reaching.common, reaching.elements, reaching.pixels, reaching.inverse]);
        }
        launch(3, results, words("rows, columns or channels", &sides)?)
    }

    /// The first element of a kernel of `extent` that reaches result `q`, and the pixel that it does so from: beyond every image if no
    /// element does, also after any number of steps to the front.
    fn first<'k>(
        k: &'k Builder,
        q: Value<'k, u32>,
        extent: Value<'k, u32>,
        [stride, dilation, common, elements, _, inverse]: [Value<'k, u32>; 6],
    ) -> (Value<'k, u32>, Value<'k, u32>) {
        let element = q / common % elements * inverse % elements;
        let whole = k.eq(q % common, 0);
        let inside = k.and(k.lt(element, extent), k.le(k.mul_wide(element, dilation), k.cvt_u64(q)));
        let pixel = (q - element * dilation) / stride;
        (element, k.selp(pixel, u32::MAX, k.and(inside, whole)))
    }

    fn write(&self, k: &Builder) {
        let [x, kernel, out] = ["x", "kernel", "out"].map(|name| k.buffer::<f32>(name));
        let n = k.parameter::<u32>("n");
        let names = ["c_in", "channels", "c_out", "group_out", "h", "w", "kh", "kw", "out_h", "out_w", "top", "left"];
        let [c_in, channels, c_out, group_out, h, w, kh, kw, out_h, out_w, top, left] =
            names.map(|name| k.parameter::<u32>(name));
        let down = ["stride_h", "dilation_h", "common_h", "elements_h", "pixels_h", "inverse_h"];
        let across = ["stride_w", "dilation_w", "common_w", "elements_w", "pixels_w", "inverse_w"];
        let [down, across] = [down, across].map(|names| names.map(|name| k.parameter::<u32>(name)));
        let at = k.mad(k.ctaid_x(), BLOCK, k.tid_x());
        k.if_(k.lt(at, n), || {
            let (j, rest) = (at % out_w, at / out_w);
            let (i, rest) = (rest % out_h, rest / out_h);
            let (channel, picture) = (rest % c_out, rest / c_out);
            let (group, o) = (channel / group_out, channel % group_out);
            let (first_row, first_y) = Self::first(k, i + top, kh, down);
            let (first_column, first_x) = Self::first(k, j + left, kw, across);
            let (of_rows, of_columns) = (down, across);
            let sum = k.variable(0.0f32);
            k.for_(0, c_in, 256, |block| {
                let of_block = k.variable(0.0f32);
                k.for_(block, k.min(block + 256, c_in), 1, |c| {
                    let number = k.mad(group, c_in, c);
                    let plane = x.index_wide(k.mad_wide(picture, channels, k.cvt_u64(number)) * k.mul_wide(h, w));
                    let weights = kernel.index_wide(k.mad_wide(number, group_out, k.cvt_u64(o)) * k.mul_wide(kh, kw));
                    let of_channel = k.variable(0.0f32);
                    let y = k.variable(first_y);
                    k.for_(first_row, kh, of_rows[3], |p| {
                        let inside = k.lt(y, h);
                        let row = plane.index_wide(k.mul_wide(y, w));
                        let weights = weights.index_wide(k.mul_wide(p, kw));
                        let part = k.variable(0.0f32);
                        let column = k.variable(first_x);
                        k.for_(first_column, kw, of_columns[3], |r| {
                            let inside = k.and(inside, k.lt(column, w));
                            let weight = k.ld_if(inside, weights.index(r), 0.0);
                            let pixel = k.ld_if(inside, row.index(column), 0.0);
                            part.set(k.fma(weight, pixel, part));
                            column.set(k.sub(column, of_columns[4]));
                        });
                        of_channel.set(k.add(of_channel, part));
                        y.set(k.sub(y, of_rows[4]));
                    });
                    of_block.set(k.add(of_block, of_channel));
                });
                sum.set(k.add(sum, of_block));
            });
            k.st(out.index(at), sum);
        });
    }
}

impl Kernel for ConvolveTranspose {
    fn name(&self) -> String {
        "convolve_transpose2d".to_owned()
    }

    fn build(&self) -> PtxKernel {
        PtxKernel::new(self.name(), [BLOCK, 1, 1], |k| self.write(k))
    }
}
