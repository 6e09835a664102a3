//! Normalisation of channels: of groups of them, which are rows, and by means and variances that are given.

use kiln_ir::op::{BatchNorm, GroupNorm, LayerNorm, channels_of};
use kiln_ir::{DataMut, Operand, Result, zeros};

use super::for_rows;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::Shared;
use crate::vector::{PlainKernel, dispatch_plain};

/// The shift and scale of every channel: `(x - mean) scale + shift`.
struct Channels<'a> {
    mean: &'a [f32],
    scale: &'a [f32],
    shift: &'a [f32],
}

/// Some planes, one for each pair of an outer index and a channel, beginning with plane `first`. Without an operand the
/// result is transformed in place.
struct Planes<'a> {
    channels: &'a Channels<'a>,
    first: usize,
    plane: usize,
    x: Option<&'a [f32]>,
    out: &'a mut [f32],
}

impl PlainKernel for Planes<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { channels: Channels { mean, scale, shift }, first, plane, x, out } = self;
        if plane == 1 {
            // Rows of one element for each channel, beginning at any channel.
            let mut from = 0;
            while from < out.len() {
                let channel = (first + from) % mean.len();
                let run = (mean.len() - channel).min(out.len() - from);
                let channels = channel..channel + run;
                let operands = mean[channels.clone()].iter().zip(&scale[channels.clone()]).zip(&shift[channels]);
                let out = &mut out[from..from + run];
                match x {
                    Some(x) => out
                        .iter_mut()
                        .zip(&x[from..from + run])
                        .zip(operands)
                        .for_each(|((out, x), ((m, s), b))| *out = (x - m) * s + b),
                    None => out.iter_mut().zip(operands).for_each(|(out, ((m, s), b))| *out = (*out - m) * s + b),
                }
                from += run;
            }
            return;
        }
        for (i, out) in out.chunks_exact_mut(plane).enumerate() {
            let channel = (first + i) % mean.len();
            let (m, s, b) = (mean[channel], scale[channel], shift[channel]);
            match x {
                Some(x) => out.iter_mut().zip(&x[i * plane..]).for_each(|(out, x)| *out = (x - m) * s + b),
                None => out.iter_mut().for_each(|out| *out = (*out - m) * s + b),
            }
        }
    }
}

impl Channels<'_> {
    fn apply(&self, simd: &Simd, [outer, channels, plane]: [usize; 3], x: Option<&[f32]>, out: &mut [f32]) {
        let out = Shared::new(out.as_mut_ptr());
        for_rows(simd, outer * channels, plane, |first, planes| {
            let elements = first * plane..(first + planes) * plane;
            // SAFETY: every part has its own planes, all inside the result.
            let out = unsafe { std::slice::from_raw_parts_mut(out.get().add(elements.start), elements.len()) };
            let planes = Planes { channels: self, first, plane, x: x.map(|x| &x[elements]), out };
            // SAFETY: a `Simd` exists only for an available instruction set.
            unsafe { dispatch_plain(simd.isa(), planes) };
        });
    }
}

impl Execute for BatchNorm {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let extents = channels_of(&inputs[0].ty());
        if extents.contains(&0) {
            return Ok(());
        }
        let mut scale = zeros::<f32>(extents[1])?;
        for ((scale, variance), gamma) in scale.iter_mut().zip(f32s(inputs, 4)).zip(f32s(inputs, 1)) {
            *scale = 1.0 / (variance + self.eps.get()).sqrt() * gamma;
        }
        let channels = Channels { mean: f32s(inputs, 3), scale: &scale, shift: f32s(inputs, 2) };
        channels.apply(simd, extents, Some(f32s(inputs, 0)), outputs[0].f32());
        Ok(())
    }
}

impl Execute for GroupNorm {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let extents = channels_of(&inputs[0].ty());
        let [outer, channels, plane] = extents;
        if extents.contains(&0) {
            return Ok(());
        }
        // Groups are rows, which are normalised first; then each channel is scaled and shifted.
        let row = channels / self.groups * plane;
        let (mut ones, shift) = (zeros::<f32>(row)?, zeros::<f32>(row.max(channels))?);
        ones.fill(1.0);
        let rows = Operand::f32(f32s(inputs, 0), &[outer * self.groups, row])?;
        let norm = LayerNorm { eps: self.eps };
        norm.execute(simd, &[rows, Operand::vector(&ones), Operand::vector(&shift[..row])], outputs)?;
        let channels = Channels { mean: &shift[..channels], scale: f32s(inputs, 1), shift: f32s(inputs, 2) };
        channels.apply(simd, extents, None, outputs[0].f32());
        Ok(())
    }
}
