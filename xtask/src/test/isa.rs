//! The instruction sets that have steps of their own.
//!
//! kiln-simd has the same table. It would be most of what is compiled before the first step begins, so a test compares both instead.

/// The names of all of them.
pub(super) const NAMES: [&str; 5] = ["scalar", "sse2", "avx2", "avx512", "neon"];

/// Those of this kind of processor, and whether this machine has them.
#[cfg(target_arch = "x86_64")]
pub(super) fn of_this_processor() -> Vec<(&'static str, bool)> {
    macro_rules! all {
        ($($feature:tt)*) => { $(std::arch::is_x86_feature_detected!($feature))&&* };
    }
    let avx2 = all!("avx2" "fma" "f16c" "bmi1" "bmi2" "lzcnt" "popcnt");
    let avx512 = avx2 && all!("avx512f" "avx512bw" "avx512dq" "avx512vl");
    vec![("scalar", true), ("sse2", true), ("avx2", avx2), ("avx512", avx512)]
}

/// Those of this kind of processor, and whether this machine has them.
#[cfg(not(target_arch = "x86_64"))]
pub(super) fn of_this_processor() -> Vec<(&'static str, bool)> {
    let neon = cfg!(target_arch = "aarch64").then_some(("neon", true));
    [("scalar", true)].into_iter().chain(neon).collect()
}

#[cfg(test)]
mod tests {
    use kiln_simd::Isa;

    use super::*;

    #[test]
    fn steps_exist_for_what_kiln_finds_on_this_machine() {
        let steps = of_this_processor();
        for isa in Isa::ALL {
            let available = steps.iter().find(|(name, _)| *name == isa.name()).is_some_and(|&(_, available)| available);
            assert_eq!(available, isa.is_available(), "{isa}");
        }
        assert!(steps.iter().all(|(name, _)| NAMES.contains(name)));
        assert!(NAMES.iter().all(|name| Isa::ALL.iter().any(|isa| isa.name() == *name)));
    }
}
