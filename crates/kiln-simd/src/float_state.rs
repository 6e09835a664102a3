//! The floating-point state of a thread: how it rounds, whether subnormal numbers count as zeros, what traps.
//!
//! A host program may have changed it: audio and game engines flush subnormal numbers to zero, interval arithmetic rounds up.
//! Kernels are written for the default state. Every call runs in it and restores the caller's state, and so does every part
//! of a call that a helper thread takes, because a thread inherits the state of the one that started it.
//!
//! On x86-64 the state is MXCSR, on AArch64 FPCR. WebAssembly has no such state; other targets are taken as they are.

/// Whether this thread rounds to nearest, keeps subnormal numbers and traps nothing.
///
/// Reading MXCSR takes about a nanosecond, writing it ten times as long: so it is written only where it differs.
#[inline(always)]
pub(crate) fn is_default() -> bool {
    register::is_default(register::read())
}

/// Runs `f` in the default state and restores the state of the caller, also if `f` panics.
#[cold]
#[inline(never)]
pub(crate) fn in_default<R>(f: impl FnOnce() -> R) -> R {
    struct Restore(register::Word);
    impl Drop for Restore {
        fn drop(&mut self) {
            // SAFETY: the state that this thread had is one that its code was running in.
            unsafe { register::write(self.0) };
        }
    }
    // The compiler does not know that the register decides what arithmetic gives, and may move arithmetic across the writes
    // of it. It cannot move a call.
    #[inline(never)]
    fn call<R>(f: impl FnOnce() -> R) -> R {
        f()
    }
    let _restore = Restore(register::read());
    // SAFETY: compiled code assumes the default state.
    unsafe { register::write(register::DEFAULT) };
    call(f)
}

/// Runs `f` in the default state.
#[inline(always)]
pub(crate) fn guard<R>(f: impl Fn() -> R) -> R {
    if is_default() { f() } else { in_default(f) }
}

/// Makes sure that a function runs in the default state: elsewhere it returns what `$again`, a call of the function itself,
/// returns in the default state. The code of the function is there once, and costs a comparison more.
macro_rules! require_default {
    ($again:expr) => {
        if !$crate::float_state::is_default() {
            return $crate::float_state::in_default(|| $again);
        }
    };
}
pub(crate) use require_default;

#[cfg(all(target_arch = "x86_64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u32;

    /// Every exception masked, round to nearest, neither flush-to-zero nor denormals-are-zero.
    pub(super) const DEFAULT: Word = 0x1f80;

    /// The flags of exceptions, which arithmetic sets and which change nothing.
    const FLAGS: Word = 0x3f;

    #[inline(always)]
    pub(super) fn is_default(state: Word) -> bool {
        state & !FLAGS == DEFAULT
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let mut state: Word = 0;
        // SAFETY: writes four bytes to a local variable.
        unsafe { asm!("stmxcsr [{}]", in(reg) &mut state, options(nostack, preserves_flags)) };
        state
    }

    /// # Safety
    /// `state` was read from the register, or is [`DEFAULT`].
    #[inline(always)]
    pub(super) unsafe fn write(state: Word) {
        // SAFETY: reads four bytes from a local variable; no reserved bit is set in a state that was read.
        unsafe { asm!("ldmxcsr [{}]", in(reg) &state, options(nostack, preserves_flags)) };
    }
}

#[cfg(all(target_arch = "aarch64", not(miri)))]
mod register {
    use std::arch::asm;

    pub(super) type Word = u64;

    /// No exception traps, round to nearest, no flushing, IEEE half precision.
    pub(super) const DEFAULT: Word = 0;

    #[inline(always)]
    pub(super) fn is_default(state: Word) -> bool {
        state == DEFAULT
    }

    #[inline(always)]
    pub(super) fn read() -> Word {
        let state: Word;
        // SAFETY: programs may read FPCR.
        unsafe { asm!("mrs {}, fpcr", out(reg) state, options(nostack, preserves_flags)) };
        state
    }

    /// # Safety
    /// `state` was read from the register, or is [`DEFAULT`].
    #[inline(always)]
    pub(super) unsafe fn write(state: Word) {
        // SAFETY: programs may write FPCR.
        unsafe { asm!("msr fpcr, {}", in(reg) state, options(nostack, preserves_flags)) };
    }
}

/// No state, or none that this crate knows.
#[cfg(any(miri, not(any(target_arch = "x86_64", target_arch = "aarch64"))))]
mod register {
    pub(super) type Word = ();

    pub(super) const DEFAULT: Word = ();

    #[inline(always)]
    pub(super) fn is_default((): Word) -> bool {
        true
    }

    #[inline(always)]
    pub(super) fn read() -> Word {}

    /// # Safety
    /// None.
    #[inline(always)]
    pub(super) unsafe fn write((): Word) {}
}
