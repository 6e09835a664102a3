//! The tests of the page in Chromium, and of the module in Node.

use std::path::{Path, PathBuf};
use std::process::Command;

use super::{execute, folder, serve};
use crate::Result;

/// What drives Chromium, and what checks the types.
const PACKAGES: [&str; 2] = ["playwright-core@1.65.1", "typescript@5.9.3"];

/// The browser: that of `KILN_CHROMIUM`, or of the system.
pub(crate) fn chromium() -> PathBuf {
    std::env::var_os("KILN_CHROMIUM")
        .filter(|path| !path.is_empty())
        .map_or_else(|| "/usr/bin/chromium".into(), PathBuf::from)
}

/// Serves the page to the tests, and runs them.
pub(super) fn test(root: &Path) -> Result<()> {
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
    let mut models = Command::new("node");
    execute(
        models
            .arg(tests.join("models.mjs"))
            .arg(folder(root))
            .args(std::env::var_os("KILN_STORIES").filter(|path| !path.is_empty())),
    )?;
    let server = serve::Server::open(&folder(root), 0)?;
    let url = format!("http://{}/", server.address());
    std::thread::spawn(move || server.run());
    let screenshots = root.join("target/kiln/web/screenshots");
    std::fs::create_dir_all(&screenshots)?;
    execute(Command::new("node").arg(tests.join("browser.mjs")).arg(url).arg(npm).arg(screenshots).arg(chromium()))
}
