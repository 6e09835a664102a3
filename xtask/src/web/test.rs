//! The tests of the page in Chromium and Firefox, and of the module in Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{execute, folder, serve};
use crate::Result;

/// The packages that drive Chromium, drive an unmodified Firefox, and check the types.
const PACKAGES: [&str; 3] = ["playwright-core@1.65.1", "puppeteer-core@24.43.1", "typescript@5.9.3"];

/// Mesa's driver of Vulkan in software, which Firefox takes.
pub(crate) const VULKAN: &str = "/usr/share/vulkan/icd.d/lvp_icd.x86_64.json";

/// The browser: that of `KILN_CHROMIUM`, or of the system.
pub(crate) fn chromium() -> PathBuf {
    std::env::var_os("KILN_CHROMIUM")
        .filter(|path| !path.is_empty())
        .map_or_else(|| "/usr/bin/chromium".into(), PathBuf::from)
}

/// The second browser: that of `KILN_FIREFOX`, or of the system.
pub(crate) fn firefox() -> PathBuf {
    std::env::var_os("KILN_FIREFOX")
        .filter(|path| !path.is_empty())
        .map_or_else(|| "/usr/bin/firefox-esr".into(), PathBuf::from)
}

/// Serves the page to the tests, and runs them.
pub(crate) fn test(root: &Path) -> Result<()> {
    // A folder for these versions, and a file in it that says that all are there.
    let npm = root.join("target/kiln/npm").join(PACKAGES.join("+"));
    let installed = npm.join("installed");
    if !installed.exists() {
        std::fs::create_dir_all(&npm)?;
        let mut install = Command::new("npm");
        install.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"]);
        execute(install.arg(&npm).args(PACKAGES))?;
        std::fs::write(installed, "")?;
    }
    let tests = root.join("crates/kiln-web/tests");
    let mut types = Command::new("node");
    types.arg(npm.join("node_modules/typescript/bin/tsc")).args(["--noEmit", "--strict", "--target", "esnext"]);
    types.args(["--module", "esnext", "--moduleResolution", "bundler"]);
    execute(types.arg(tests.join("types.ts")))?;
    execute(Command::new("node").arg(tests.join("node.mjs")).arg(folder(root)))?;
    let smollm2 = smollm2(root);
    let with_models = |script: &str| {
        let mut command = Command::new("node");
        command
            .arg(tests.join(script))
            .env_remove("KILN_WEB_MODEL")
            .envs(smollm2.iter().map(|file| ("KILN_WEB_MODEL", file)));
        command
    };
    execute(with_models("models.mjs").arg(folder(root)))?;
    let server = serve::Server::open(&folder(root), 0)?;
    let url = format!("http://{}/", server.address());
    std::thread::spawn(move || server.run());
    let screenshots = root.join("target/kiln/web/screenshots");
    std::fs::create_dir_all(&screenshots)?;
    execute(with_models("browser.mjs").arg(&url).arg(&npm).arg(screenshots).arg(chromium()))?;
    let mut in_firefox = Command::new("node");
    execute(in_firefox.arg(tests.join("firefox.mjs")).arg(url).arg(npm).arg(firefox()).env("VK_DRIVER_FILES", VULKAN))
}

/// The file of SmolLM2, where it is, or can be fetched with `CI=true`. Without it the tests of real models are left out, and say so.
fn smollm2(root: &Path) -> Option<PathBuf> {
    let (_, folder, file) = super::SMOLLM2;
    let from = root.join(folder).join(file);
    if from.exists() {
        return Some(from);
    }
    let mut why = format!("SmolLM2 is not in {folder}: `{}` fetches it", super::fetching_smollm2());
    if std::env::var("CI").is_ok_and(|value| value == "true") {
        match super::smollm2(root) {
            Ok(file) => return Some(file),
            Err(error) => why = error.to_string(),
        }
    }
    println!("skipped: a real model in Node and Chromium: {why}");
    None
}
