//! The dispatch to plain Rust that the compiler vectorises.

use crate::Isa;

/// An algorithm in plain Rust that is compiled with the features of instruction sets.
pub(crate) trait PlainKernel {
    /// The type of the result.
    type Output;

    /// The algorithm. Implementations are `#[inline(always)]`.
    fn run(self) -> Self::Output;
}

/// Runs plain Rust with the features of an instruction set.
///
/// It is compiled once for the baseline of the architecture, which sets of at most 128 bits cannot improve, and once for AVX2, which
/// AVX-512 uses, too: the compiler makes slower code from wider vectors.
///
/// # Safety
/// [`Isa::is_available`] holds for `isa`.
pub(crate) unsafe fn dispatch_plain<K: PlainKernel>(isa: Isa, kernel: K) -> K::Output {
    #[cfg(target_arch = "x86_64")]
    {
        #[target_feature(enable = "avx2,fma,f16c,bmi1,bmi2,lzcnt,popcnt")]
        fn avx2<K: PlainKernel>(kernel: K) -> K::Output {
            kernel.run()
        }
        if matches!(isa, Isa::Avx2 | Isa::Avx512) {
            // SAFETY: the caller guarantees the set, and AVX-512 is available only if AVX2 is.
            return unsafe { avx2(kernel) };
        }
    }
    // Not inlined into callers, which would have its stack frame even if they enter the other.
    #[inline(never)]
    fn baseline<K: PlainKernel>(kernel: K) -> K::Output {
        kernel.run()
    }
    let _ = isa;
    baseline(kernel)
}
