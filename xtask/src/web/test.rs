//! The tests of the page in Chromium, and of the module in Node.

use std::path::Path;
use std::process::Command;

use super::{execute, folder, serve};
use crate::Result;

/// What drives Chromium.
const DRIVER: &str = "playwright-core@1.65.1";

/// Serves the page to the tests, and runs them.
pub(super) fn test(root: &Path) -> Result<()> {
    let modules = root.join("target/kiln/playwright");
    if !modules.join("node_modules/playwright-core").exists() {
        std::fs::create_dir_all(&modules)?;
        let mut npm = Command::new("npm");
        execute(npm.args(["install", "--no-save", "--no-audit", "--no-fund", "--prefix"]).arg(&modules).arg(DRIVER))?;
    }
    let tests = root.join("crates/kiln-web/tests");
    execute(Command::new("node").arg(tests.join("node.mjs")).arg(folder(root)))?;
    let server = serve::Server::open(&folder(root), 0)?;
    let url = format!("http://{}/", server.address());
    std::thread::spawn(move || server.run());
    let screenshots = root.join("target/kiln/web/screenshots");
    std::fs::create_dir_all(&screenshots)?;
    execute(Command::new("node").arg(tests.join("browser.mjs")).arg(url).arg(modules).arg(screenshots))
}
