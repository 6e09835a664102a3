//! NVIDIA's assembler takes every row of the table, random programs and every kernel in every configuration, for every target that they
//! are for, without an error, a warning or a spilled register. `KILN_SAMPLE=n` takes every n-th target of each kernel.
//!
//! The assembler is no part of the toolchain: without it these tests are ignored, and `cargo xtask test --only ptxas`
//! brings it. `KILN_PTXAS` names it, or several as `PATH` does: the newest one has no `sm_70`.
#![cfg(not(target_arch = "wasm32"))]

#[path = "support/catalogue.rs"]
mod catalogue;
#[path = "support/random.rs"]
mod random;

use std::collections::{BTreeMap, HashSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock};

use kiln_ptx::operands::*;
use kiln_ptx::{
    Bf16, Builder, F16, Global, Kernel, Operand, Pointer, PtxKernel, PtxModule, Scalar, Target, Value,
    instruction_table,
};
use proptest::prelude::*;

/// An assembler and what it calls itself.
struct Ptxas {
    program: PathBuf,
    /// The toolkit that it is of.
    release: f64,
}

impl Ptxas {
    fn find() -> Vec<Self> {
        let named = std::env::var_os("KILN_PTXAS").filter(|names| !names.is_empty()).unwrap_or_else(|| "ptxas".into());
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

    /// The assembler's report about a text, or its error.
    fn assemble(&self, text: &str, target: Target) -> Result<String, String> {
        self.assemble_to(text, target, Path::new("/dev/null"))
    }

    /// The same, and the machine code goes to a file.
    fn assemble_to(&self, text: &str, target: Target, code: &Path) -> Result<String, String> {
        let path = scratch("ptx");
        std::fs::write(&path, text).unwrap();
        let mut command = Command::new(&self.program);
        command.arg(format!("-arch={target}")).args(["-v", "-o"]).args([code, &path]);
        let output = command.output().unwrap();
        let report = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        std::fs::remove_file(&path).unwrap();
        if output.status.success() { Ok(report) } else { Err(report) }
    }
}

/// A file of its own for each who asks.
fn scratch(extension: &str) -> PathBuf {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed);
    Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("{}-{number}.{extension}", std::process::id()))
}

fn assemblers() -> &'static [Ptxas] {
    static FOUND: OnceLock<Vec<Ptxas>> = OnceLock::new();
    FOUND.get_or_init(Ptxas::find)
}

/// Assembles a text for a target.
fn check_for(text: &str, target: Target) -> Result<(), String> {
    // The newest assembler that knows the target is the one that drivers and users have; running all would take twice
    // as long.
    let able = assemblers().iter().filter(|ptxas| ptxas.knows(target));
    let Some(ptxas) = able.max_by(|a, b| a.release.total_cmp(&b.release)) else {
        return Err(format!("KILN_PTXAS names no assembler that knows {target}"));
    };
    let report = ptxas.assemble(text, target);
    let wrong = report.map_or_else(|why| vec![why], |report| complaints(&report));
    if wrong.is_empty() { Ok(()) } else { Err(format!("ptxas {} for {target}:\n{}", ptxas.release, wrong.join("\n"))) }
}

/// The targets that texts for this one are for.
fn served(least: Target) -> impl Iterator<Item = Target> {
    Target::ALL.iter().copied().filter(move |&target| least.serves(target))
}

/// Assembles texts, each for a target, as many at once as there are processors.
fn check_all(jobs: &[(String, Target)]) {
    let faults = Mutex::new(Vec::new());
    at_once(jobs, |(text, target)| faults.lock().unwrap().extend(check_for(text, *target).err()));
    let faults = faults.into_inner().unwrap();
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// Does all jobs, as many at once as there are processors: an assembler runs on one.
fn at_once<T: Sync>(jobs: &[T], work: impl Fn(&T) + Sync) {
    let next = AtomicUsize::new(0);
    let worker = || {
        while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
            work(job);
        }
    };
    let processors = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..processors).for_each(|_| _ = scope.spawn(worker)));
}

/// Bytes of registers that kernels whose names begin so may keep in memory, but for those of warp groups: attention uses all registers
/// that a thread can have, and now and then the assembler moves a few addresses out of the way of a loop; for `sm_86` it moves one in
/// the product of a row with weights in Q4_0.
const KEPT_IN_MEMORY: [(&str, u32); 2] = [("flash_attention", 256), ("quant_matmul_q4_0_1", 16)];

/// Whether a report says that no more is kept in memory than a kernel may.
fn keeps_little(kernel: &str, line: &str) -> bool {
    let may = |(name, _): &&(&str, u32)| kernel.trim().starts_with(name) && !kernel.contains("_groups_");
    let most = KEPT_IN_MEMORY.iter().find(may).map_or(0, |&(_, most)| most);
    let number = |what: &str| line.split_once(what)?.0.rsplit(' ').next()?.parse().ok();
    [" bytes spill stores", " bytes spill loads"]
        .iter()
        .all(|what| number(what).is_some_and(|bytes: u32| bytes <= most))
}

/// Warnings, and kernels that keep registers in memory.
fn complaints(report: &str) -> Vec<String> {
    let mut kernel = "";
    let mut complaints = Vec::new();
    for line in report.lines() {
        if let Some((_, name)) = line.split_once("Function properties for ") {
            kernel = name;
        }
        let spills = line.contains("spill") && !keeps_little(kernel, line);
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

/// An operand for a row of the table, with values that the assembler does not know.
trait Sample: Sized {
    fn sample(k: &Builder, number: usize) -> impl Operand<Self>;
}

/// A result of a row of the table.
trait Keep: Scalar {
    fn keep(k: &Builder, value: Value<'_, Self>);
}

fn load<T: Scalar>(k: &Builder, number: usize) -> Value<'_, T> {
    let at: Pointer<'_, Global, T> = k.buffer(("in", number));
    k.ld(at.index(k.tid_x()))
}

macro_rules! samples {
    ($($ty:ty)*) => {
        $(impl Sample for $ty {
            fn sample(k: &Builder, number: usize) -> impl Operand<Self> {
                load::<$ty>(k, number)
            }
        }
        impl Keep for $ty {
            fn keep(k: &Builder, value: Value<'_, Self>) {
                k.st(k.buffer::<$ty>("out"), value);
            }
        })*
    };
}
samples!(u32 i32 u64 f32 f64 F16 Bf16);

impl Sample for bool {
    fn sample(k: &Builder, number: usize) -> impl Operand<Self> {
        k.ne(load::<u32>(k, number), 0)
    }
}
impl Keep for bool {
    fn keep(k: &Builder, value: Value<'_, bool>) {
        u32::keep(k, k.selp(1u32, 0, value));
    }
}

impl<T: Scalar, const N: usize> Sample for Registers<T, N> {
    fn sample(k: &Builder, number: usize) -> impl Operand<Self> {
        let at: Pointer<'_, Global, T> = k.buffer(("in", number));
        k.gather(std::array::from_fn::<_, N, _>(|i| k.ld(at.offset(i as i32))))
    }
}

macro_rules! other_samples {
    ($($ty:ident |$k:ident, $number:ident| $sample:expr;)*) => {
        $(impl Sample for $ty {
            fn sample($k: &Builder, $number: usize) -> impl Operand<Self> {
                _ = ($k, $number);
                $sample
            }
        })*
    };
}
other_samples! {
    SharedAt |k, number| k.shared::<u64>(64);
    ClusterAt |k, number| k.shared::<u64>(64).of_block(0u32);
    GlobalAt |k, number| k.buffer::<u32>(("in", number));
    MapAt |k, number| k.tensor(("in", number));
    TensorAt |k, number| k.tensor(("in", number)).at([k.tid_x(), k.tid_y(), k.ctaid_x()]);
    Groups |k, number| Groups(1);
    RegisterCount |k, number| RegisterCount(40);
    Blocks |k, number| Blocks(3);
    Flag |k, number| Flag(true);
    Sign |k, number| Sign(true);
    Four |k, number| Four(());
    Sixteen |k, number| Sixteen(());
}

/// Calls what a row says, between what has to stand around it.
fn among(k: &Builder, name: &str, call: impl FnOnce()) {
    let products = name.starts_with("wgmma");
    if name.starts_with("setmaxnreg") {
        k.resident_blocks(1);
    }
    if products {
        k.wgmma_fence::<u32>();
    }
    call();
    if products {
        k.wgmma_commit_group::<u32>();
        k.wgmma_wait_group::<u32>(Groups(0));
    }
}

macro_rules! rows {
    ({ $($scalar:tt)* } { $($special:tt)* }) => { rows!(@rows $($scalar)* $($special)*); };
    (@rows $($(#[doc = $doc:literal])* $family:ident $method:ident $operands:tt -> $result:tt
        { $($version:literal $target:ident: $($ty:ident $name:literal),*);* })*) => {
        /// A kernel for each row and type, and the instruction that it must hold.
        fn all_rows() -> Vec<(PtxKernel, &'static str)> {
            vec![$($($((rows!(@kernel $method $operands $result $ty $name), $name)),*),*),*]
        }
    };
    (@kernel $method:ident ($($x:ident: $operand:ident),*) $result:tt $ty:ident $name:literal) => {{
        #[allow(dead_code)] // not every row has an operand or a result of the type
        type T = $ty;
        // A warp group, which some of the rows are for.
        PtxKernel::new(concat!(stringify!($method), "_", stringify!($ty)), [128, 1, 1], |k| {
            #[allow(unused)]
            let mut number = 0..;
            $(let $x = <$operand as Sample>::sample(k, number.next().unwrap());)*
            among(k, $name, || rows!(@keep $result, k, k.$method::<$ty>($($x),*)));
        })
    }};
    (@keep (), $k:ident, $value:expr) => { $value };
    (@keep $result:ident, $k:ident, $value:expr) => { <$result as Keep>::keep($k, $value) };
}
instruction_table!(rows);

#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn every_row_of_the_table_is_an_instruction() {
    let mut by_target: BTreeMap<Target, PtxModule> = BTreeMap::new();
    for (kernel, name) in all_rows() {
        assert!(kernel.text().contains(&format!("\t{name} ")), "{}", kernel.text());
        by_target.entry(kernel.gate().target).or_default().add(kernel).unwrap();
    }
    let jobs = by_target.iter().flat_map(|(&least, module)| served(least).map(|target| (module.to_string(), target)));
    check_all(&jobs.collect::<Vec<_>>());
}

/// The least target of a row is the least: one below, the assembler refuses it, or takes it with a warning.
#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn the_targets_of_the_table_are_the_least() {
    at_once(&all_rows(), |(kernel, name)| {
        let needed = kernel.gate().target;
        let Some(&below) = Target::ALL.iter().rev().find(|&&target| target < needed) else { return };
        let text = kernel.text();
        let text = text.replace(&format!(".target {needed}\n"), &format!(".target {below}\n"));
        for ptxas in assemblers().iter().filter(|ptxas| ptxas.knows(below)) {
            let clean = ptxas.assemble(&text, below).is_ok_and(|report| complaints(&report).is_empty());
            assert!(!clean, "{name} assembles for {below}");
        }
    });
}

/// The number n of the environment variable `KILN_SAMPLE`: a kernel is assembled for every n-th of its targets, the next kernel for
/// those after them. At least 1, which means all.
fn step() -> usize {
    std::env::var("KILN_SAMPLE").ok().and_then(|n| n.parse().ok()).unwrap_or(1).max(1)
}

/// Without those of `sm_90a`, which the test of their machine code assembles.
#[test]
#[ignore = "needs ptxas: cargo xtask test --only ptxas"]
fn every_kernel_assembles_for_its_targets() {
    // A module has as many kernels as have different names.
    let mut modules: BTreeMap<Target, Vec<PtxModule>> = BTreeMap::new();
    let mut seen: HashSet<String> = HashSet::new();
    for least in catalogue::LADDER.into_iter().chain([Target::Sm90]) {
        // From Hopper on kernels of the ladder wait for one another, too: a sample of them.
        let waiting = if least == Target::Sm90 { catalogue::kernels(Target::Sm80) } else { Vec::new() };
        let waiting = waiting.into_iter().step_by(16);
        for (number, kernel) in catalogue::kernels(least).into_iter().chain(waiting).enumerate() {
            let kernel = kernel.build_for(least);
            // A text of a lower step of the ladder is assembled with it for the targets of this step.
            if !seen.insert(kernel.text().to_owned()) {
                continue;
            }
            let bytes = shared_memory(&kernel);
            let targets: Vec<Target> = served(least).filter(|target| bytes <= target.shared_bytes()).collect();
            let step = step().min(targets.len());
            for &target in targets.iter().skip(number % step).step_by(step) {
                let modules = modules.entry(target).or_default();
                if !modules.iter_mut().any(|module| module.add(kernel.clone()).is_ok()) {
                    modules.push(kernel.clone().into());
                }
            }
        }
    }
    let modules = modules.iter().flat_map(|(&target, modules)| modules.iter().map(move |module| (module, target)));
    check_all(&modules.map(|(module, target)| (module.to_string(), target)).collect::<Vec<_>>());
}

/// Bytes of shared memory of the blocks of threads that a kernel wants on a multiprocessor at once: with them in mind it is given its
/// registers.
fn shared_memory(kernel: &PtxKernel) -> u32 {
    let resident =
        kernel.text().split_once(".minnctapersm ").and_then(|(_, rest)| rest.lines().next()?.trim().parse().ok());
    kernel.dynamic_shared_bytes() * resident.unwrap_or(1)
}

/// The machine code of products and of attention holds the instructions of tensor cores, of bulk copies both ways, and of registers that
/// change hands where the kernel has them do so. `KILN_NVDISASM` names the disassembler.
#[test]
#[ignore = "needs ptxas and nvdisasm: cargo xtask test --only ptxas"]
fn products_are_machine_code_of_tensor_cores() {
    let disassembler =
        std::env::var_os("KILN_NVDISASM").filter(|name| !name.is_empty()).unwrap_or_else(|| "nvdisasm".into());
    // The newest, whose code the disassembler knows as well.
    let ptxas = assemblers().iter().max_by(|a, b| a.release.total_cmp(&b.release)).expect("an assembler");
    // Every text is assembled; a sample disassembles a third.
    let listing = |number: usize, text: &str, name: &str| {
        let code = scratch("cubin");
        let report = ptxas.assemble_to(text, Target::Sm90a, &code).unwrap_or_else(|why| panic!("{name}: {why}"));
        assert!(complaints(&report).is_empty(), "{name}: {report}");
        let output = number.is_multiple_of(step().min(3)).then(|| Command::new(&disassembler).arg(&code).output());
        std::fs::remove_file(&code).unwrap();
        let output = output?.expect("nvdisasm runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        Some(String::from_utf8_lossy(&output.stdout).into_owned())
    };
    let products = AtomicUsize::new(0);
    let texts = |kernels: Vec<Box<dyn Kernel>>, target: Target| -> Vec<(usize, String, String)> {
        let texts = kernels.iter().map(|kernel| (kernel.name(), kernel.build_for(target).into_text()));
        texts.enumerate().map(|(number, (name, text))| (number, name, text)).collect()
    };
    at_once(&texts(catalogue::warps(), Target::Sm80), |(number, name, text)| {
        let Some(listing) = listing(*number, text, name) else { return };
        for (ptx, code) in [("mma.sync", "HMMA"), ("ldmatrix", "LDSM"), ("cp.async.cg", "LDGSTS")] {
            assert_eq!(listing.contains(code), text.contains(ptx), "{name}: {ptx} and {code}");
        }
        products.fetch_add(usize::from(text.contains("mma.sync")), Ordering::Relaxed);
    });
    let products = products.into_inner();
    assert!(products > 1, "{products}");
    at_once(&texts(catalogue::kernels(Target::Sm90a), Target::Sm90a), |(number, name, text)| {
        let Some(listing) = listing(*number, text, name) else { return };
        let says = |ptx: &str| text.contains(ptx);
        let pairs = [("wgmma.mma_async", "HGMMA"), ("setmaxnreg", "USETMAXREG"), ("stmatrix", "STSM")];
        let loads = [("cp.async.bulk.tensor.3d.shared", "UTMALDG"), ("cp.async.bulk.shared", "UBLKCP")];
        let copies = loads.into_iter().chain([("multicast::cluster", ".MULTICAST"), ("bulk_group", "UTMASTG")]);
        for (ptx, code) in pairs.into_iter().chain(copies) {
            assert_eq!(listing.contains(code), says(ptx), "{name}: {ptx} and {code}");
        }
        assert!(says("mbarrier::complete_tx"), "{name}");
        assert_eq!(says("wgmma.mma_async"), says("cp.async.bulk.tensor.3d.shared"), "{name}");
    });
}

/// The number of random programs: `KILN_FUZZ_CASES` names another.
fn programs() -> u32 {
    std::env::var("KILN_FUZZ_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(24)
}

proptest! {
    #![proptest_config(ProptestConfig { cases: programs(), failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    #[ignore = "needs ptxas: cargo xtask test --only ptxas"]
    fn random_programs_assemble(steps in prop::collection::vec(any::<[u16; 5]>(), 1..120)) {
        let kernel = PtxKernel::new("random", [64, 1, 1], |k| random::write(k, &steps));
        let module = PtxModule::from(kernel);
        for target in served(module.gate().target) {
            check_for(&module.to_string(), target).map_err(TestCaseError::fail)?;
        }
    }
}
