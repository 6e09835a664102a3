//! The floating-point state of a thread: how it rounds, and whether subnormal numbers count as zeros.
//!
//! A host program may have changed it: audio and game engines flush subnormal numbers to zero, interval arithmetic rounds up.
//! Kernels are written for the default state. Every call runs in it and restores the caller's state, and so does every part
//! of a call that a helper thread takes, because a thread inherits the state of the one that started it.
//!
//! On x86-64 the state is a part of MXCSR, on AArch64 FPCR. WebAssembly has no such state; other targets are taken as they are.

/// Whether this thread rounds to nearest and preserves subnormal numbers.
#[inline(always)]
pub(crate) fn is_default() -> bool {
    register::is_default()
}

/// Runs `f` in the default state and restores the caller's state, also if `f` panics.
#[cold]
#[inline(never)]
pub(crate) fn in_default<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(register::Word);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: this thread was running in this state before.
            unsafe { register::write(self.0) };
        }
    }
    // The compiler does not know that the register affects the results of arithmetic, and may move arithmetic across
    // writes of the register. It cannot move a call.
    #[inline(never)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    let restore = Restore(register::read());
    // SAFETY: compiled code assumes the default state.
    unsafe { register::write(register::default_of(restore.0)) };
    call(f)
}

/// Runs `f` in the default state.
#[cfg(all(feature = "parallel", not(target_arch = "wasm32")))] // for threads that help
#[inline(always)]
pub(crate) fn guard<R>(f: impl Fn() -> R) -> R {
    if is_default() { f() } else { in_default(f) }
}

/// Ensures that a function runs in the default state: in another state it returns the result of `$again`, a call of the
/// function itself, in the default state. The code of the function exists once, and costs one comparison. Arguments are
/// moved: if the other path referred to them, they would be in memory on this one too.
macro_rules! require_default {
    ($again:expr) => {
        if !$crate::float_state::is_default() {
            return $crate::float_state::in_default(move || $again);
        }
    };
}
pub(crate) use require_default;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// Flush-to-zero, denormals-are-zero, and the two bits of the rounding mode.
    const CHANGES: Word = 1 << 15 | 1 << 6 | 3 << 13;

    /// The four operands of one addition.
    #[repr(align(16))]
    #[allow(dead_code)] // read only by assembly
    struct Four([f32; 4]);

    /// Half of a unit in the last place below 1.
    const HALF: f32 = 1.0 / (1 << 25) as f32;
    /// The terms whose sums equal [`SUMS`] only in the default state: rounding up changes the first sum, and rounding
    /// down or to zero the second; the default rounds both, which are ties, to 1. Flushing changes the third.
    static TERMS: Four = Four([HALF, -HALF, 0.0, 0.0]);
    static SUMS: Four = Four([1.0, 1.0, f32::from_bits(1 << 22), 1.0]);

    /// Detects the state from the results of arithmetic. Reading MXCSR waits for all earlier arithmetic, which sets
    /// flags there, so a short call would not overlap with the one before it: on an EPYC (Zen) a sum of 64 elements
    /// then takes 1.25 times as long as without a check and a product of 8 x 8 elements 1.12 times; with this addition
    /// they take 1.1 and 1.02 times as long. On a Xeon (Emerald Rapids) neither takes measurable time, nor does the
    /// subnormal number.
    #[inline(always)]
    pub(super) fn is_default() -> bool {
        let equal: u32;
        // SAFETY: reads two constants, aligned to 16 bytes. Not `pure`, because the result changes after a write of the
        // register.
        unsafe {
            asm!(
                "movaps {x}, [{sums}]",
                "addps {x}, [{terms}]",
                "pcmpeqd {x}, [{sums}]",
                "movmskps {equal:e}, {x}",
                x = out(xmm_reg) _,
                sums = in(reg) &raw const SUMS,
                terms = in(reg) &raw const TERMS,
                equal = lateout(reg) equal,
                options(nostack, preserves_flags, readonly)
            );
        }
        equal == 0xf
    }

    /// Traps stay as the host has set them.
    pub(super) fn default_of(state: Word) -> Word {
        state & !CHANGES
    }

    pub(super) fn read() -> Word {
        let mut state: Word = 0;
        // SAFETY: writes four bytes to a local variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut state, options(nostack, preserves_flags)) };
        state
    }

    /// # Safety
    /// `state` was read from the register, or is the default of one that was.
    pub(super) unsafe fn write(state: Word) {
        // SAFETY: reads four bytes from a local variable; no reserved bit is set in a state that was read.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &state, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// Alternative half precision, default NaN, flushing of f32 and f16, the two bits of the rounding mode, and the
    /// bits by which newer processors change subnormal numbers (FIZ, AH, NEP).
    const CHANGES: Word = 1 << 26 | 1 << 25 | 1 << 24 | 3 << 22 | 1 << 19 | 7;

    #[inline(always)]
    pub(super) fn is_default() -> bool {
        read() & CHANGES == 0
    }

    /// Traps stay as the host has set them.
    pub(super) fn default_of(state: Word) -> Word {
        state & !CHANGES
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let state: Word;
        // SAFETY: programs may read FPCR.
        unsafe { asm!("mrs {}, fpcr", out(reg) state, options(nostack, preserves_flags)) };
        state
    }

    /// # Safety
    /// `state` was read from the register, or is the default of one that was.
    pub(super) unsafe fn write(state: Word) {
        // SAFETY: programs may write FPCR.
        unsafe { asm!("msr fpcr, {}", in(reg) state, options(nostack, preserves_flags)) };
    }
}

/// A target without such a state, or with one that this crate does not know.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    #[derive(Clone, Copy)]
    pub(super) struct Word;

    #[inline(always)]
    pub(super) fn is_default() -> bool {
        true
    }

    pub(super) fn default_of(state: Word) -> Word {
        state
    }

    pub(super) fn read() -> Word {
        Word
    }

    /// # Safety
    /// Always sound: there is no state.
    pub(super) unsafe fn write(_: Word) {}
}
