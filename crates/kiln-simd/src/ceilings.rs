//! The ceilings of the machine with an instruction set: loops that measured figures are compared with.
//!
//! They do no useful work. The multiply-add loop keeps its operands in registers, the others touch every element
//! once, so that their rates are the ceilings of arithmetic and of each level of the memory.

use std::hint::black_box;

use kiln_ir::{Error, Result};

use crate::simd::Simd;
use crate::threads::{self, Shared};
use crate::vector::{Kernel, Vector, dispatch};

/// Independent chains of multiply-adds. Twelve hide the latency on every tested core, and the compiler keeps that many
/// in registers even if there are only sixteen.
const CHAINS: usize = 12;

/// `steps` rounds of [`CHAINS`] multiply-adds.
struct MultiplyAdd {
    steps: usize,
}

impl Kernel for MultiplyAdd {
    type Output = u64;

    #[inline(always)]
    unsafe fn run<V: Vector>(self) -> u64 {
        // SAFETY: the instruction set is available; the lanes hold any vector.
        unsafe {
            // A fixed point at 1: values neither grow nor become subnormal, and the compiler cannot know them.
            let (b, c) = (V::splat(black_box(0.999_999)), V::splat(black_box(1e-6)));
            let mut chains = [V::splat(black_box(1.0)); CHAINS];
            if const { V::FUSED } {
                for _ in 0..self.steps {
                    for x in &mut chains {
                        *x = x.mul_add(b, c);
                    }
                }
            } else {
                // Without a fused instruction a product and a sum are separate instructions; separate chains let both
                // units work.
                let (products, sums) = chains.split_at_mut(CHAINS / 2);
                for _ in 0..2 * self.steps {
                    for (p, s) in products.iter_mut().zip(sums.iter_mut()) {
                        *p = *p * b;
                        *s = *s + c;
                    }
                }
            }
            let mut lanes = [0.0f32; 64];
            chains.into_iter().reduce(|a, b| a + b).unwrap_or(b).store(lanes.as_mut_ptr());
            black_box(lanes);
        }
        (2 * CHAINS * V::LANES * self.steps) as u64
    }
}

/// The memory accesses of a pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Pass {
    /// Reads one array: 4 bytes per element.
    Read,
    /// Reads one array, writes another: 8 bytes per element.
    Copy,
    /// [`Pass::Copy`] with non-temporal stores.
    CopyStreamed,
    /// Reads two arrays, writes their sum into a third: 12 bytes per element.
    Add,
    /// [`Pass::Add`] with non-temporal stores.
    AddStreamed,
}

impl Pass {
    /// Every pass.
    pub const ALL: &[Self] = &[Self::Read, Self::Copy, Self::CopyStreamed, Self::Add, Self::AddStreamed];

    /// Bytes touched for each element.
    pub const fn bytes(self) -> usize {
        match self {
            Self::Read => 4,
            Self::Copy | Self::CopyStreamed => 8,
            Self::Add | Self::AddStreamed => 12,
        }
    }

    /// The pass that makes the same accesses but writes past the caches.
    pub const fn streamed(self) -> Option<Self> {
        match self {
            Self::Copy => Some(Self::CopyStreamed),
            Self::Add => Some(Self::AddStreamed),
            _ => None,
        }
    }

    /// The name of it.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Copy => "copy",
            Self::CopyStreamed => "copy, streamed",
            Self::Add => "add",
            Self::AddStreamed => "add, streamed",
        }
    }
}

/// One pass over `n` elements.
///
/// # Safety
/// The arrays among `a` and `b` that the pass uses are readable for `n` f32, and `out` is writable for `n`; nothing
/// else accesses `out`.
struct Touch {
    pass: Pass,
    a: *const f32,
    b: *const f32,
    out: *mut f32,
    n: usize,
}

/// Vectors that one round of a pass handles.
const UNROLL: usize = 8;

impl Kernel for Touch {
    type Output = ();

    #[inline(always)]
    unsafe fn run<V: Vector>(self) {
        const READ: u8 = Pass::Read as u8;
        const COPY: u8 = Pass::Copy as u8;
        const COPY_STREAMED: u8 = Pass::CopyStreamed as u8;
        const ADD: u8 = Pass::Add as u8;
        const ADD_STREAMED: u8 = Pass::AddStreamed as u8;
        // SAFETY: the contract of `Touch`.
        unsafe {
            match self.pass {
                Pass::Read => self.pass::<V, READ>(),
                Pass::Copy => self.pass::<V, COPY>(),
                Pass::CopyStreamed => self.pass::<V, COPY_STREAMED>(),
                Pass::Add => self.pass::<V, ADD>(),
                Pass::AddStreamed => self.pass::<V, ADD_STREAMED>(),
            }
        }
    }
}

impl Touch {
    /// The pass as a separate loop that contains only the accesses.
    ///
    /// # Safety
    /// The conditions of [`Touch`] hold; the instruction set of `V` is available.
    #[inline(always)]
    unsafe fn pass<V: Vector, const PASS: u8>(self) {
        let Self { a, b, out, n, .. } = self;
        let read = PASS == Pass::Read as u8;
        let copy = PASS == Pass::Copy as u8 || PASS == Pass::CopyStreamed as u8;
        let streamed = PASS == Pass::CopyStreamed as u8 || PASS == Pass::AddStreamed as u8;
        // SAFETY: the contract of `Touch`: all accesses stay in 0..n.
        unsafe {
            let mut seen = [V::splat(0.0); UNROLL];
            let mut i = 0;
            if streamed {
                // Streaming stores require aligned addresses.
                i = out.align_offset(4 * V::LANES).min(n).min(V::LANES);
                if i > 0 {
                    let x = V::load_first(a, i);
                    let x = if copy { x } else { x + V::load_first(b, i) };
                    x.store_first(out, i);
                }
            }
            while i + UNROLL * V::LANES <= n {
                for (u, seen) in seen.iter_mut().enumerate() {
                    let at = i + u * V::LANES;
                    let x = V::load(a.add(at));
                    if read {
                        *seen = seen.or(x);
                    } else {
                        let x = if copy { x } else { x + V::load(b.add(at)) };
                        if streamed { x.stream(out.add(at)) } else { x.store(out.add(at)) }
                    }
                }
                i += UNROLL * V::LANES;
            }
            while i < n {
                let rest = (n - i).min(V::LANES);
                let x = V::load_first(a.add(i), rest);
                if read {
                    seen[0] = seen[0].or(x);
                } else if copy {
                    x.store_first(out.add(i), rest);
                } else {
                    (x + V::load_first(b.add(i), rest)).store_first(out.add(i), rest);
                }
                i += rest;
            }
            if streamed {
                seen[0].fence();
            }
            let mut lanes = [0.0f32; 64];
            seen.into_iter().reduce(V::or).unwrap_or(V::splat(0.0)).store(lanes.as_mut_ptr());
            black_box(lanes);
        }
    }
}

/// Runs `steps` rounds of independent multiply-adds on every thread of `simd` and returns the operations done.
pub fn multiply_add(simd: &Simd, steps: usize) -> u64 {
    let done = std::sync::atomic::AtomicU64::new(0);
    threads::for_each(simd.threads(), simd.threads(), |_| {
        // SAFETY: a `Simd` exists only for an available instruction set.
        let flops = unsafe { dispatch(simd.isa(), MultiplyAdd { steps }) };
        done.fetch_add(flops, std::sync::atomic::Ordering::Relaxed);
    });
    done.into_inner()
}

/// Makes one pass over equally long arrays, split evenly over the threads of `simd`. An array that the pass does not use
/// may have any length.
///
/// # Errors
/// [`Error::Length`] when the lengths of those that it uses differ.
pub fn touch(simd: &Simd, pass: Pass, a: &[f32], b: &[f32], out: &mut [f32]) -> Result<()> {
    let n = a.len();
    let (reads_b, writes) = (pass.bytes() == 12, pass.bytes() > 4);
    for (operand, used, found) in [("b", reads_b, b.len()), ("out", writes, out.len())] {
        if used && found != n {
            return Err(Error::Length { op: pass.name(), operand, expected: n, found });
        }
    }
    let part = n.div_ceil(simd.threads()).next_multiple_of(64).max(64);
    let out = Shared::new(out.as_mut_ptr());
    threads::for_each(n.div_ceil(part), simd.threads(), |i| {
        let start = i * part;
        // Wrapping, because an array that the pass does not use may be shorter.
        let touch = Touch {
            pass,
            a: a.as_ptr().wrapping_add(start),
            b: b.as_ptr().wrapping_add(start),
            out: out.get().wrapping_add(start),
            n: part.min(n - start),
        };
        // SAFETY: start <= n, arrays that the pass uses have n elements, the parts do not overlap; a `Simd` exists only
        // for an available instruction set.
        unsafe { dispatch(simd.isa(), touch) };
    });
    Ok(())
}
