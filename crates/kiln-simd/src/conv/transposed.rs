//! Transposed convolution, as convolutions with parts of the kernels.
//!
//! Along a dimension, results that are a stride apart are reached by the same elements of the kernel: a phase of the results is a
//! convolution at stride 1 with those, last one first. Phases that are reached by as many elements from the same pixels are alike, and
//! are further channels of one convolution: with a kernel as large as the stride all of them, so that it is one product of matrices.
//! Each result of a convolution then goes to its place among those of the other phases.

use std::collections::BTreeMap;

use kiln_ir::op::{ConvolveExtents, ConvolveTranspose2d, ConvolveTransposeExtents, Reaching};
use kiln_ir::{DataMut, Operand, Result, reserve, zeros};

use super::convolve_far;
use crate::Isa;
use crate::simd::{Execute, Simd, f32s};
use crate::threads::{self, Shared};
use crate::vector::{PlainKernel, dispatch_plain};

/// Elements to move below which one thread is faster.
const PARALLEL: usize = 200_000;

/// Every `stride`th result from one on.
#[derive(Debug, Clone, Copy)]
struct Phase {
    /// The first of these results.
    first: usize,
    /// The first element of the kernel that reaches them.
    element: usize,
}

/// Phases along a dimension that are alike.
struct Phases {
    /// Results of each.
    results: usize,
    /// Elements of the kernel that reach a result.
    elements: usize,
    /// Pixels before the image that the first result is reached from, or that it leaves out where this is negative.
    before: isize,
    phases: Vec<Phase>,
}

/// A dimension of the operation.
struct Dimension {
    stride: usize,
    reaching: Reaching,
    phases: Vec<Phases>,
    /// Results of all phases.
    reached: usize,
}

impl Dimension {
    fn new([n, k, results, cut, stride, dilation]: [usize; 6], reaching: Reaching) -> Self {
        let mut alike: BTreeMap<_, Vec<Phase>> = BTreeMap::new();
        let [cut, steps] = [cut, stride].map(usize::cast_signed);
        let mut reached = 0;
        for element in 0..k.min(reaching.elements) {
            let at = (element * dilation).cast_signed() - cut;
            let first = at.rem_euclid(steps);
            let count = results.saturating_sub(first.unsigned_abs()).div_ceil(stride);
            let elements = (k - element).div_ceil(reaching.elements);
            // The pixel from which the first element reaches the first result; the others are from pixels before it.
            let pixel = (first - at) / steps;
            let before = ((elements - 1) * reaching.pixels).cast_signed() - pixel;
            if count > 0 && before + n.cast_signed() > 0 {
                let phase = Phase { first: first.unsigned_abs(), element };
                alike.entry((count, elements, before)).or_default().push(phase);
                reached += count;
            }
        }
        let phases = alike.into_iter();
        let phases = phases.map(|((results, elements, before), phases)| Phases { results, elements, before, phases });
        Self { stride, reaching, phases: phases.collect(), reached }
    }
}

/// The elements of the kernels for some phases, as the kernels of a convolution: `[groups, phases, results of a group]` of them.
struct Parts<'a> {
    e: &'a ConvolveTransposeExtents,
    kernel: &'a [f32],
    down: (&'a Dimension, &'a Phases),
    across: (&'a Dimension, &'a Phases),
}

impl Parts<'_> {
    /// Kernels of a group.
    fn in_group(&self) -> usize {
        self.down.1.phases.len() * self.across.1.phases.len() * (self.e.c_out / self.e.groups)
    }

    /// Elements of a kernel.
    fn len(&self) -> usize {
        self.e.c_in / self.e.groups * self.down.1.elements * self.across.1.elements
    }

    fn collect(&self, threads: usize) -> Result<Vec<f32>> {
        let len = self.len();
        let mut all = zeros::<f32>(self.e.groups * self.in_group() * len)?;
        let threads = if all.len() < PARALLEL { 1 } else { threads };
        let to = Shared::new(all.as_mut_ptr());
        threads::for_each(self.e.groups * self.in_group(), threads, |number| {
            // SAFETY: every kernel has a place of its own.
            self.write(number, unsafe { std::slice::from_raw_parts_mut(to.get().add(number * len), len) });
        });
        Ok(all)
    }

    /// The elements of a kernel, last ones first.
    fn write(&self, number: usize, to: &mut [f32]) {
        let Self { e, kernel, down: (rows, down), across: (columns, across) } = self;
        let (group_in, group_out) = (e.c_in / e.groups, e.c_out / e.groups);
        let (group, phase, o) = (number / self.in_group(), number / group_out, number % group_out);
        let phase = phase % (down.phases.len() * across.phases.len());
        let first_row = down.phases[phase / across.phases.len()].element;
        let first_column = across.phases[phase % across.phases.len()].element;
        for (c, to) in to.chunks_exact_mut(down.elements * across.elements).enumerate() {
            let kernel = &kernel[((group * group_in + c) * group_out + o) * e.kh * e.kw..][..e.kh * e.kw];
            for (row, to) in to.chunks_exact_mut(across.elements).rev().enumerate() {
                let from = &kernel[(first_row + row * rows.reaching.elements) * e.kw..][..e.kw];
                let elements = from[first_column..].iter().step_by(columns.reaching.elements);
                to.iter_mut().rev().zip(elements).for_each(|(to, &element)| *to = element);
            }
        }
    }
}

/// The results of some phases, on their way to the others.
struct Computed<'a> {
    across: &'a Phases,
    /// `[batch, groups, phases down, phases across, results of a group, rows, columns]`.
    results: Vec<f32>,
}

/// Moves the rows of a plane that are of one phase down.
struct Interleave<'a> {
    e: &'a ConvolveTransposeExtents,
    /// Phases down that are alike, and the number of one.
    down: (&'a Phases, usize),
    computed: &'a [Computed<'a>],
    /// The number of the plane.
    plane: usize,
    y: &'a mut [f32],
}

impl PlainKernel for Interleave<'_> {
    type Output = ();

    #[inline(always)]
    fn run(self) {
        let Self { e, down: (down, number), computed, plane, y } = self;
        let group_out = e.c_out / e.groups;
        let (group, o) = (plane / group_out, plane % group_out);
        // The row of a phase across.
        let row = |of: &'_ Computed<'_>, phase: usize, row: usize| {
            let phases = of.across.phases.len();
            let plane = ((group * down.phases.len() + number) * phases + phase) * group_out + o;
            (plane * down.results + row) * of.across.results
        };
        for r in 0..down.results {
            let to = &mut y[(down.phases[number].first + r * e.stride.0) * e.out_w..][..e.out_w];
            if e.stride.1 == 2 {
                let phases = |of: &Computed<'_>| of.across.phases.len();
                let mut all = computed.iter().flat_map(|of| (0..phases(of)).map(move |phase| (of, phase)));
                if let (Some(a), Some(b)) = (all.next(), all.next()) {
                    // Both phases in one pass.
                    let first = |(of, phase): (&Computed<'_>, usize)| of.across.phases[phase].first;
                    let (even, odd) = if first(a) < first(b) { (a, b) } else { (b, a) };
                    let [even, odd] = [even, odd].map(|(of, phase)| &of.results[row(of, phase, r)..]);
                    let (pairs, last) = to.as_chunks_mut::<2>();
                    pairs.iter_mut().zip(even.iter().zip(odd)).for_each(|(to, (even, odd))| *to = [*even, *odd]);
                    last.iter_mut().zip(&even[pairs.len()..]).for_each(|(to, even)| *to = *even);
                    continue;
                }
            }
            for of in computed {
                for (number, phase) in of.across.phases.iter().enumerate() {
                    let from = &of.results[row(of, number, r)..][..of.across.results];
                    let to = &mut to[phase.first..];
                    match e.stride.1 {
                        1 => to[..from.len()].copy_from_slice(from),
                        stride => to.iter_mut().step_by(stride).zip(from).for_each(|(to, from)| *to = *from),
                    }
                }
            }
        }
    }
}

impl Execute for ConvolveTranspose2d {
    fn execute(&self, simd: &Simd, inputs: &[Operand<'_>], outputs: &mut [DataMut<'_>]) -> Result<()> {
        let e = self.extents(&inputs[0].shape(), &inputs[1].shape())?;
        let (x, kernel, y) = (f32s(inputs, 0), f32s(inputs, 1), outputs[0].f32());
        if y.is_empty() || e.c_in == 0 {
            y.fill(0.0);
            return Ok(());
        }
        if kernel.iter().all(|weight| weight.is_finite()) {
            return transposed(simd, &e, x, kernel, y);
        }
        // The convolutions multiply zeros around the image, too, which must not make NaN of a result that nothing reaches.
        let mut finite = Vec::new();
        reserve(&mut finite, kernel.len())?;
        finite.extend(kernel.iter().map(|&weight| if weight.is_finite() { weight } else { 1f32.copysign(weight) }));
        transposed(simd, &e, x, &finite, y)?;
        for (at, &weight) in kernel.iter().enumerate().filter(|(_, weight)| !weight.is_finite()) {
            add_element(&e, x, (at, weight), y);
        }
        Ok(())
    }
}

/// Adds what one element of the kernels contributes.
fn add_element(e: &ConvolveTransposeExtents, x: &[f32], (at, weight): (usize, f32), y: &mut [f32]) {
    let (group_in, group_out) = (e.c_in / e.groups, e.c_out / e.groups);
    let (r, p, o, c) = (at % e.kw, at / e.kw % e.kh, at / (e.kw * e.kh) % group_out, at / (e.kw * e.kh * group_out));
    let channel = c / group_in * group_out + o;
    let images = x.chunks_exact(e.c_in * e.h * e.w).zip(y.chunks_exact_mut(e.c_out * e.out_h * e.out_w));
    for (x, y) in images {
        let y = &mut y[channel * e.out_h * e.out_w..][..e.out_h * e.out_w];
        for (a, row) in x[c * e.h * e.w..][..e.h * e.w].chunks_exact(e.w).enumerate() {
            let i = (a * e.stride.0 + p * e.dilation.0).checked_sub(e.top).filter(|&i| i < e.out_h);
            let Some(i) = i else { continue };
            let to = &mut y[i * e.out_w..][..e.out_w];
            for (b, x) in row.iter().enumerate() {
                let j = (b * e.stride.1 + r * e.dilation.1).checked_sub(e.left);
                if let Some(to) = j.and_then(|j| to.get_mut(j)) {
                    *to += weight * x;
                }
            }
        }
    }
}

/// Convolves with finite kernels.
fn transposed(simd: &Simd, e: &ConvolveTransposeExtents, x: &[f32], kernel: &[f32], y: &mut [f32]) -> Result<()> {
    let [of_rows, of_columns] = e.reaching();
    let rows = Dimension::new([e.h, e.kh, e.out_h, e.top, e.stride.0, e.dilation.0], of_rows);
    let columns = Dimension::new([e.w, e.kw, e.out_w, e.left, e.stride.1, e.dilation.1], of_columns);
    if (rows.reached, columns.reached) != (e.out_h, e.out_w) {
        y.fill(0.0);
    }
    for down in &rows.phases {
        let mut computed = Vec::new();
        for across in &columns.phases {
            let parts = Parts { e, kernel, down: (&rows, down), across: (&columns, across) };
            // Without a stride the results are in their places.
            if (rows.stride, columns.stride) == (1, 1) && (rows.reached, columns.reached) == (e.out_h, e.out_w) {
                convolve_part(simd, &parts, x, y)?;
                continue;
            }
            let mut results = zeros(e.batch * e.groups * parts.in_group() * down.results * across.results)?;
            convolve_part(simd, &parts, x, &mut results)?;
            computed.push(Computed { across, results });
        }
        if !computed.is_empty() {
            interleave(simd, e, down, &computed, y);
        }
    }
    Ok(())
}

/// Convolves an image with the parts of the kernels.
fn convolve_part(simd: &Simd, parts: &Parts<'_>, x: &[f32], y: &mut [f32]) -> Result<()> {
    let (e, (rows, down), (columns, across)) = (parts.e, parts.down, parts.across);
    let kernel = parts.collect(simd.threads())?;
    // Pixels that no result is reached from are left out.
    let [top, left] = [down, across].map(|phases| usize::try_from(-phases.before).unwrap_or(0));
    let cropped = crop(e, (top, left), x)?;
    let step = |phases: &Phases, reaching: &Reaching| if phases.elements == 1 { 1 } else { reaching.pixels };
    let extents = ConvolveExtents {
        batch: e.batch,
        c_in: e.c_in,
        h: e.h - top,
        w: e.w - left,
        c_out: e.groups * parts.in_group(),
        kh: down.elements,
        kw: across.elements,
        out_h: down.results,
        out_w: across.results,
        top: usize::try_from(down.before).unwrap_or(0),
        left: usize::try_from(across.before).unwrap_or(0),
        dilation: (step(down, &rows.reaching), step(across, &columns.reaching)),
        groups: e.groups,
    };
    convolve_far(simd, &extents, (1, 1), cropped.as_deref().unwrap_or(x), &kernel, y)
}

/// Images without their first rows and columns, or `None` where they keep all of them.
fn crop(e: &ConvolveTransposeExtents, (top, left): (usize, usize), x: &[f32]) -> Result<Option<Vec<f32>>> {
    if (top, left) == (0, 0) {
        return Ok(None);
    }
    let mut cropped = Vec::new();
    reserve(&mut cropped, e.batch * e.c_in * (e.h - top) * (e.w - left))?;
    for row in x.chunks_exact(e.h * e.w).flat_map(|plane| plane[top * e.w..].chunks_exact(e.w)) {
        cropped.extend_from_slice(&row[left..]);
    }
    Ok(Some(cropped))
}

/// Moves the results of convolutions to their places.
fn interleave(simd: &Simd, e: &ConvolveTransposeExtents, down: &Phases, computed: &[Computed<'_>], y: &mut [f32]) {
    let (isa, plane): (Isa, usize) = (simd.isa(), e.out_h * e.out_w);
    let threads = if y.len() < PARALLEL { 1 } else { simd.threads() };
    let planes = e.batch * e.c_out;
    let to = Shared::new(y.as_mut_ptr());
    threads::for_each(planes, threads, |number| {
        for phase in 0..down.phases.len() {
            // SAFETY: the plane is within the result, and no other part has it.
            let y = unsafe { std::slice::from_raw_parts_mut(to.get().add(number * plane), plane) };
            let rows = Interleave { e, down: (down, phase), computed, plane: number, y };
            // SAFETY: a `Simd` exists only for an available instruction set.
            unsafe { dispatch_plain(isa, rows) };
        }
    });
}
