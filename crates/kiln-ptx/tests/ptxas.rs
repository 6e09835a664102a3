//! NVIDIA's assembler takes every row of the table, every kernel in every configuration, and random programs, for every
//! target that they are for, without an error, a warning or a spilled register.
//!
//! The assembler is no part of the toolchain: without it these tests are ignored, and `cargo xtask test --only ptxas`
//! brings it. `KILN_PTXAS` names it, or several as `PATH` does: the newest one has no `sm_70`.
#![cfg(not(target_arch = "wasm32"))]

#[path = "support/catalogue.rs"]
mod catalogue;
#[path = "support/random.rs"]
mod random;

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};

use kiln_ptx::{Builder, Global, Pointer, PtxKernel, PtxModule, Scalar, Target, Value, instruction_table};
use proptest::prelude::*;

/// An assembler and what it calls itself.
struct Ptxas {
    program: PathBuf,
    /// The toolkit that it is of.
    release: f64,
}

impl Ptxas {
    fn find() -> Vec<Self> {
        let named = std::env::var_os("KILN_PTXAS").unwrap_or_else(|| "ptxas".into());
        std::env::split_paths(&named).filter_map(Self::at).collect()
    }

    fn at(program: PathBuf) -> Option<Self> {
        let output = Command::new(&program).arg("--version").output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let release = text.split_once("release ")?.1.split(',').next()?.parse().ok()?;
        Some(Self { program, release })
    }

    /// The first toolkit with CUDA 13 is the first without Volta.
    fn knows(&self, target: Target) -> bool {
        target >= Target::Sm75 || self.release < 13.0
    }

    /// What it has to say of a text: an error, or its report.
    fn assemble(&self, text: &str, target: Target) -> Result<String, String> {
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let path = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}.ptx", std::process::id()));
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(&self.program);
        command.arg(format!("-arch={target}")).args(["-v", "-o", "/dev/null"]).arg(&path);
        let output = command.output().unwrap();
        let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        std::fs::remove_file(&path).unwrap();
        if output.status.success() { Ok(report) } else { Err(report) }
    }
}

fn assemblers() -> &'static [Ptxas] {
    static FOUND: OnceLock<Vec<Ptxas>> = OnceLock::new();
    FOUND.get_or_init(Ptxas::find)
}

/// Assembles a module for every target that it is for.
fn check(module: &PtxModule) -> Result<(), String> {
    let text = module.to_string();
    for &target in Target::ALL.iter().filter(|&&target| target >= module.gate().target) {
        let able = assemblers().iter().filter(|ptxas| ptxas.knows(target)).collect::<Vec<_>>();
        if able.is_empty() {
            return Err(format!("KILN_PTXAS names no assembler that knows {target}"));
        }
        for ptxas in able {
            let report = ptxas.assemble(&text, target);
            let wrong = report.map_or_else(|why| vec![why], |report| complaints(&report));
            if !wrong.is_empty() {
                return Err(format!("ptxas {} for {target}:\n{}", ptxas.release, wrong.join("\n")));
            }
        }
    }
    Ok(())
}

/// Warnings, and kernels that keep registers in memory.
fn complaints(report: &str) -> Vec<String> {
    let mut kernel = "";
    let mut complaints = Vec::new();
    for line in report.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            kernel = name;
        }
        let spills = line.contains("spill") && !line.contains(" 0 bytes spill stores, 0 bytes spill loads");
        if spills || line.contains("warning") || line.contains("C75") {
            complaints.push(format!("{kernel}: {}", line.trim()));
        }
    }
    complaints
}

/// A missing assembler is no pass where it is asked for.
#[test]
fn the_assembler_is_there_where_it_is_required() {
    let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
    if required.split(',').any(|name| name.trim() == "ptxas") {
        assert!(!assemblers().is_empty(), "KILN_PTXAS names no ptxas that runs");
    }
}

/// Values that a row of the table is tried on: the assembler must not know them.
trait Sample: Scalar {
    fn sample(k: &Builder, number: usize) -> Value<'_, Self>;
    fn keep(k: &Builder, value: Value<'_, Self>);
}

macro_rules! samples {
    ($($ty:ty)*) => {
        $(impl Sample for $ty {
            fn sample(k: &Builder, number: usize) -> Value<'_, Self> {
                let at: Pointer<'_, Global, $ty> = k.buffer(("in", number));
                k.ld(at.index(k.tid_x()))
            }
            fn keep(k: &Builder, value: Value<'_, Self>) {
                k.st(k.buffer::<$ty>("out"), value);
            }
        })*
    };
}
samples!(u32 i32 u64 f32 f64);

impl Sample for bool {
    fn sample(k: &Builder, number: usize) -> Value<'_, bool> {
        k.ne(u32::sample(k, number), 0)
    }
    fn keep(k: &Builder, value: Value<'_, bool>) {
        u32::keep(k, k.selp(1u32, 0, value));
    }
}

macro_rules! rows {
    ($($(#[doc = $doc:literal])* $family:ident $method:ident $operands:tt -> $result:tt
        { $($version:literal $target:ident: $($ty:ident $name:literal),*);* })*) => {
        /// A kernel for each row and type, and the instruction that it must hold.
        fn all_rows() -> Vec<(PtxKernel, &'static str)> {
            vec![$($($((rows!(@kernel $method $operands $result $ty), $name)),*),*),*]
        }
    };
    (@kernel $method:ident ($($x:ident: $operand:ident),*) $result:tt $ty:ident) => {{
        type T = $ty;
        PtxKernel::new(concat!(stringify!($method), "_", stringify!($ty)), [32, 1, 1], |k| {
            let mut number = 0..;
            $(let $x = <$operand as Sample>::sample(k, number.next().unwrap());)*
            rows!(@keep $result, k, k.$method($($x),*));
        })
    }};
    (@keep (), $k:ident, $value:expr) => { $value };
    (@keep $result:ident, $k:ident, $value:expr) => { <$result as Sample>::keep($k, $value) };
}
instruction_table!(rows);

#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn every_row_of_the_table_is_an_instruction() {
    let mut by_target: std::collections::BTreeMap<Target, PtxModule> = Default::default();
    for (kernel, name) in all_rows() {
        let text = PtxModule::from(kernel.clone()).to_string();
        assert!(text.contains(&format!("\t{name} ")), "{text}");
        by_target.entry(kernel.gate().target).or_default().add(kernel).unwrap();
    }
    by_target.values().for_each(|module| check(module).unwrap_or_else(|why| panic!("{why}")));
}

/// The least target of a row is the least: one below, the assembler refuses it.
#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn the_targets_of_the_table_are_the_least() {
    for (kernel, name) in all_rows() {
        let needed = kernel.gate().target;
        let Some(&below) = Target::ALL.iter().rev().find(|&&target| target < needed) else { continue };
        let text = PtxModule::from(kernel).to_string();
        let text = text.replace(&format!(".target {needed}\n"), &format!(".target {below}\n"));
        for ptxas in assemblers().iter().filter(|ptxas| ptxas.knows(below)) {
            assert!(ptxas.assemble(&text, below).is_err(), "{name} assembles for {below}");
        }
    }
}

#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn every_kernel_assembles_for_its_targets() {
    for target in catalogue::LADDER {
        // As many kernels in a module as have different names.
        let mut modules: Vec<PtxModule> = vec![PtxModule::new()];
        for kernel in catalogue::kernels(target) {
            let kernel = kernel.build();
            if !modules.iter_mut().any(|module| module.add(kernel.clone()).is_ok()) {
                modules.push(kernel.into());
            }
        }
        modules.iter().for_each(|module| check(module).unwrap_or_else(|why| panic!("{why}")));
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs ptxas: cargo xtask test --only ptxas"]
    fn random_programs_assemble(steps in prop::collection::vec(any::<[u16; 5]>(), 1..120)) {
        let kernel = PtxKernel::new("random", [64, 1, 1], |k| random::write(k, &steps));
        check(&kernel.into()).map_err(TestCaseError::fail)?;
    }
}
