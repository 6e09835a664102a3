//! Drivers that are absent, broken or too old: each has its reason, and nothing panics.
//!
//! The drivers are libraries that this test makes, with as many of the functions as it takes to fail. Each is looked for by a
//! process of its own: this program, started again with the folder of the library in its path.
#![cfg(target_os = "linux")]

use std::path::{Path, PathBuf};
use std::process::Command;

use kiln_cuda::{CudaBackend, CudaDevice, CudaDeviceOptions};
use kiln_ir::{Error, Operations};

/// Functions of the driver that fail in their own way, and those that only have to be there.
fn library(folder: &Path, init: u32, version: i32, devices: i32, without: &str) -> PathBuf {
    let sources = concat!(env!("CARGO_MANIFEST_DIR"), "/src/driver/library.rs");
    let text = std::fs::read_to_string(sources).unwrap();
    // The rows of the table: four blanks, the name, a bracket.
    let names = text.lines().filter_map(|line| line.strip_prefix("    cu").filter(|rest| rest.contains('(')));
    let names = names.filter_map(|rest| rest.split('(').next()).map(|name| format!("cu{name}"));
    let mut source = String::from("use std::ffi::c_int;\n");
    for name in names.filter(|name| name != without) {
        source += "#[unsafe(no_mangle)] pub extern \"C\" ";
        source += &match name.as_str() {
            "cuInit" => format!("fn cuInit(_: u32) -> u32 {{ {init} }}\n"),
            // Safe functions with a reference instead of a pointer: callers pass a valid one.
            "cuDriverGetVersion" => format!("fn {name}(to: &mut c_int) -> u32 {{ *to = {version}; 0 }}\n"),
            "cuDeviceGetCount" => format!("fn {name}(to: &mut c_int) -> u32 {{ *to = {devices}; 0 }}\n"),
            name => format!("fn {name}() -> u32 {{ 999 }}\n"),
        };
    }
    std::fs::create_dir_all(folder).unwrap();
    let (from, to) = (folder.join("driver.rs"), folder.join("libcuda.so.1"));
    std::fs::write(&from, source).unwrap();
    let rustc = std::env::var_os("RUSTC").unwrap_or_else(|| "rustc".into());
    let mut compiler = Command::new(rustc);
    compiler.args(["--crate-type=cdylib", "-Cpanic=abort", "-Adead_code", "-o"]).arg(&to).arg(&from);
    let built = compiler.output().expect("the compiler that built this test builds a library");
    assert!(built.status.success(), "{}", String::from_utf8_lossy(&built.stderr));
    to
}

/// The report of this program about the driver in a folder.
fn seen(folder: &Path) -> String {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "reports_what_it_finds", "--ignored", "--nocapture"]).env("LD_LIBRARY_PATH", folder);
    let output = child.output().unwrap();
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{text}{}", String::from_utf8_lossy(&output.stderr));
    text.lines().find_map(|line| line.strip_prefix("found: ")).unwrap_or_else(|| panic!("{text}")).to_owned()
}

#[test]
#[ignore = "the other tests start it, with a driver of theirs"]
fn reports_what_it_finds() {
    match CudaDevice::driver_version() {
        Ok(version) => println!("found: {version}"),
        Err(problem) => {
            // Every caller gets the same reason, for every request.
            let reason = problem.to_string();
            let same = |error: Error| assert!(matches!(&error, Error::Unavailable { reason: r, .. } if *r == reason));
            assert_eq!(CudaDevice::list().unwrap_err(), problem);
            assert!(!CudaDevice::is_available());
            same(CudaDevice::new().unwrap_err());
            same(CudaDevice::open(3, &CudaDeviceOptions::new()).unwrap_err());
            let backend = CudaBackend::new();
            same(backend.add(&[1.0], &[2.0]).unwrap_err());
            same(backend.device().unwrap_err());
            println!("found: {problem:?}");
        }
    }
}

#[test]
fn drivers_that_do_not_work_say_why() {
    let root = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("drivers-{}", std::process::id()));
    let (ok, new) = (0, 13_000);
    for (name, init, version, devices, without, expected) in [
        ("lacking", ok, new, 1, "cuGraphLaunch", r#"Lacking { function: "cuGraphLaunch" }"#),
        ("old", ok, 11_030, 1, "", "TooOld { found: CudaVersion { major: 11, minor: 3 } }"),
        ("empty", ok, new, 0, "", "NoDevice"),
        ("hidden", 100, new, 0, "", "NoDevice"),
        ("stub", 34, new, 1, "", r#"Refused { reason: "code 34" }"#),
        ("later", 12_345, new, 1, "", r#"Refused { reason: "code 12345" }"#),
        ("sound", ok, new, 1, "", "13.0"),
    ] {
        let folder = root.join(name);
        library(&folder, init, version, devices, without);
        assert_eq!(seen(&folder), expected, "{name}");
    }
    std::fs::remove_dir_all(root).unwrap();
}

/// A file of that name that is no library is no driver.
#[test]
fn what_is_no_library_is_no_driver() {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("no-driver-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    for name in ["libcuda.so", "libcuda.so.1"] {
        std::fs::write(folder.join(name), b"not a library").unwrap();
    }
    let found = seen(&folder);
    // After it the driver of the machine is found, if there is one.
    assert!(found == "Absent" || CudaDevice::is_available(), "{found}");
    std::fs::remove_dir_all(folder).unwrap();
}
