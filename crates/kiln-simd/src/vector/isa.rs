//! The instruction sets, their names, and the choice of one.

use std::ffi::OsString;

use kiln_ir::{Error, Result};

use super::Isa;

/// A table with an entry for every instruction set, computed by a constant function.
macro_rules! by_isa {
    ($of:path) => {{
        let mut table = [$of($crate::Isa::BASELINE); $crate::Isa::ALL.len()];
        let mut i = 0;
        while i < table.len() {
            table[$crate::Isa::ALL[i] as usize] = $of($crate::Isa::ALL[i]);
            i += 1;
        }
        table
    }};
}

pub(crate) use by_isa;

impl Isa {
    /// The set that every machine has which can run this build.
    pub(crate) const BASELINE: Self = if cfg!(not(all(target_arch = "wasm32", target_feature = "simd128"))) {
        Self::Scalar
    } else if cfg!(target_feature = "relaxed-simd") {
        Self::RelaxedSimd
    } else {
        Self::Simd128
    };

    /// The best that this machine has.
    pub fn best() -> Self {
        Self::ALL.iter().copied().rev().find(|isa| isa.is_available()).unwrap_or(Self::BASELINE)
    }

    /// Every instruction set that this machine has, slowest first.
    pub fn available() -> impl Iterator<Item = Self> {
        Self::ALL.iter().copied().filter(|isa| isa.is_available())
    }

    /// The instruction set for work that would leave most of each register empty, if another one is better: 16-lane
    /// registers take longer to fill and to fold than 8-lane ones. Only for operations with bit-identical results on
    /// both.
    #[inline]
    pub(crate) fn halved(self) -> Self {
        if self == Self::Avx512 && Self::Avx2.is_available() { Self::Avx2 } else { self }
    }

    pub(crate) fn available_names() -> String {
        let names: Vec<_> = Self::available().map(Self::name).collect();
        // Possible in a WebAssembly engine that does not fuse.
        if names.is_empty() { "no set that this program is built for".to_owned() } else { names.join(", ") }
    }

    /// The value of the environment variable `KILN_ISA`, valid or not; `None` if it is empty.
    pub fn named() -> Option<OsString> {
        std::env::var_os("KILN_ISA").filter(|name| !name.is_empty())
    }

    /// The instruction set of a name, when this machine has it.
    ///
    /// # Errors
    /// [`Error::Unavailable`] with the names of the available sets.
    pub fn from_name(name: &str) -> Result<Self> {
        let known = Self::ALL.iter().copied().find(|isa| isa.name() == name);
        known.filter(|isa| isa.is_available()).ok_or_else(|| Error::Unavailable {
            what: format!("instruction set {name:?} (KILN_ISA)"),
            reason: format!(
                "{}; this machine has {}",
                if known.is_some() { "the machine lacks it" } else { "the name is unknown" },
                Self::available_names()
            ),
        })
    }
}

impl std::fmt::Display for Isa {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}
