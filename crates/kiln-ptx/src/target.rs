use std::fmt;

use crate::text::Line;

/// A version of the PTX ISA. A driver takes every version up to its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    major: u8,
    minor: u8,
}

impl Version {
    /// The version written as a number with one decimal: `Version::new(7.8)`.
    pub const fn new(number: f64) -> Self {
        let tenths = (number * 10.0 + 0.5) as u8;
        Self { major: tenths / 10, minor: tenths % 10 }
    }

    pub(crate) fn write(self, line: &mut Line<'_>) {
        line.decimal(self.major.into());
        line.put(".");
        line.decimal(self.minor.into());
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

macro_rules! targets {
    ($($(#[doc = $doc:literal])* $variant:ident $name:literal $version:literal $shared:literal;)*) => {
        /// A generation of GPUs that PTX is written for. A text for one target runs on every GPU of that or a later one; for exceptions
        /// see [`Target::serves`].
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Target {
            $($(#[doc = $doc])* $variant,)*
        }

        impl Target {
            /// Every target, the oldest first.
            pub const ALL: &[Self] = &[$(Self::$variant),*];

            /// Its name in PTX: `sm_80`.
            pub const fn name(self) -> &'static str {
                match self { $(Self::$variant => $name,)* }
            }

            /// The first version of PTX that knows it.
            pub const fn version(self) -> Version {
                match self { $(Self::$variant => Version::new($version),)* }
            }

            /// Bytes of shared memory that a block of threads may have.
            pub const fn shared_bytes(self) -> u32 {
                match self { $(Self::$variant => $shared << 10,)* }
            }
        }
    };
}

// The name, the first PTX version, and KiB of shared memory per block.
targets! {
    /// Volta.
    Sm70 "sm_70" 6.0 96;
    /// Turing.
    Sm75 "sm_75" 6.3 64;
    /// Ampere: A100.
    Sm80 "sm_80" 7.0 163;
    /// Ampere: GeForce 30.
    Sm86 "sm_86" 7.1 99;
    /// Ada Lovelace.
    Sm89 "sm_89" 7.8 99;
    /// Hopper.
    Sm90 "sm_90" 7.8 227;
    /// Hopper with features that later architectures lack: the products of warp groups. Its code runs only there.
    Sm90a "sm_90a" 8.0 227;
    /// Blackwell: B200.
    Sm100 "sm_100" 8.6 227;
    /// Blackwell: GeForce 50.
    Sm120 "sm_120" 8.7 99;
}

impl Target {
    /// Whether a device of the target `device` runs texts for this one.
    pub fn serves(self, device: Self) -> bool {
        if self == Self::Sm90a { device == self } else { self <= device }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// The requirements of a text: the least version of PTX and the least target.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Gate {
    /// The least version of PTX.
    pub version: Version,
    /// The least target.
    pub target: Target,
}

impl Gate {
    /// The requirements of every text.
    pub const LEAST: Self = Self::new(6.0, Target::Sm70);

    /// The requirement of a version and a target; a target also requires a version of its own.
    pub const fn new(version: f64, target: Target) -> Self {
        Self { version: Version::new(version), target }.sound()
    }

    /// The requirements of both.
    pub fn and(self, other: Self) -> Self {
        Self { version: self.version.max(other.version), target: self.target.max(other.target) }
    }

    const fn sound(self) -> Self {
        let own = self.target.version();
        let later = own.major > self.version.major || own.major == self.version.major && own.minor > self.version.minor;
        Self { version: if later { own } else { self.version }, target: self.target }
    }
}
