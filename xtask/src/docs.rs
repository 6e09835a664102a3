//! `cargo xtask docs`: the pages that are written from the tables.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use kiln_core::op::{Contract, Op, all_cases};

use crate::Result;

/// What to do with the pages.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when a page is not what the tables say.
    #[arg(long)]
    check: bool,
}

const PAGE: &str = "docs/numerics.md";

/// Writes or checks the pages.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("xtask lies inside of the workspace")?;
    if arguments.check {
        check(root)?;
    } else {
        std::fs::create_dir_all(root.join("docs"))?;
        std::fs::write(root.join(PAGE), numerics()?)?;
        println!("wrote {PAGE}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails when a page is not what the tables say.
pub(crate) fn check(root: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    if page == numerics()? {
        return Ok(());
    }
    Err(format!("{PAGE} is not what the tables say; `cargo xtask docs` writes it").into())
}

/// What stands above the table; the rules that hold for every operation.
const RULES: &str = include_str!("numerics.md");

fn numerics() -> Result<String> {
    let mut page = RULES.to_owned();
    let mut seen: Vec<(&'static str, Contract)> = Vec::new();
    for case in all_cases() {
        let (op, contract): (Op, Contract) = (case.op, case.op.contract());
        if seen.contains(&(op.name(), contract)) {
            continue;
        }
        seen.push((op.name(), contract));
        // A bar would end the column.
        let cell = |text: &str| text.replace('|', "\\|");
        writeln!(
            page,
            "| `{}` | {} | {} | {} |",
            op.name(),
            cell(op.formula()),
            cell(&contract.bound.to_string()),
            cell(contract.special)
        )?;
    }
    Ok(page)
}
