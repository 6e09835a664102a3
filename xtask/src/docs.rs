//! `cargo xtask docs`: the pages that are written from the tables.

use std::fmt::Write as _;
use std::path::Path;
use std::process::ExitCode;

use kiln_ir::QuantFormat;
use kiln_ir::op::{Contract, Op, all_cases, product_bound_of};
use kiln_ir::signatures::{self, Group};

use crate::Result;

/// Options of the command.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// Write nothing; fail when a page is not what the tables say.
    #[arg(long)]
    check: bool,
}

const PAGE: &str = "docs/numerics.md";
/// The page with the table of operations, and the lines around it.
const OVERVIEW: &str = "README.md";
const BEGIN: &str = "<!-- operations: `cargo xtask docs` writes this table -->\n";
const END: &str = "<!-- end of operations -->\n";
/// The page that quotes rows of the sources.
const QUOTING: &str = "docs/architecture.md";

/// Writes or checks the pages.
pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent().ok_or("the folder of xtask has no parent")?;
    if arguments.check {
        check(root)?;
    } else {
        std::fs::write(root.join(PAGE), numerics()?)?;
        let overview = std::fs::read_to_string(root.join(OVERVIEW))?;
        std::fs::write(root.join(OVERVIEW), with_operations(&overview)?)?;
        println!("wrote {PAGE} and the operations in {OVERVIEW}");
    }
    Ok(ExitCode::SUCCESS)
}

/// Fails if a page does not agree with the tables, or quotes lines that the sources do not have.
pub(crate) fn check(root: &Path) -> Result<()> {
    let page = std::fs::read_to_string(root.join(PAGE)).unwrap_or_default();
    if page != numerics()? {
        return Err(format!("{PAGE} is not what the tables say; `cargo xtask docs` writes it").into());
    }
    let overview = std::fs::read_to_string(root.join(OVERVIEW))?;
    if overview != with_operations(&overview)? {
        return Err(format!(
            "the operations in {OVERVIEW} are not those of the tables; `cargo xtask docs` writes them"
        )
        .into());
    }
    for (path, lines) in quotes(&std::fs::read_to_string(root.join(QUOTING))?) {
        let source =
            std::fs::read_to_string(root.join(&path)).map_err(|why| format!("{QUOTING} names {path}: {why}"))?;
        let source: Vec<&str> = source.lines().collect();
        if !source.windows(lines.len()).any(|window| window == lines) {
            return Err(format!("{QUOTING} quotes lines that {path} does not have:\n{}", lines.join("\n")).into());
        }
    }
    Ok(())
}

/// A page with the table of operations between its marks.
fn with_operations(page: &str) -> Result<String> {
    let marks = || format!("{OVERVIEW} needs the lines {} and {}", BEGIN.trim(), END.trim());
    let (before, rest) = page.split_once(BEGIN).ok_or_else(marks)?;
    let (_, after) = rest.split_once(END).ok_or_else(marks)?;
    let mut table = String::from("| operations | |\n|---|---|\n");
    for group in Group::ALL {
        let of_group = signatures::ALL.iter().filter(|signature| signature.group == *group);
        let mut entries: Vec<String> = of_group
            .map(|signature| match signature.note {
                "" => signature.name.to_owned(),
                note => format!("{} ({note})", signature.name),
            })
            .collect();
        if *group == Group::Quantised {
            let formats: Vec<String> = QuantFormat::ALL.iter().map(|format| format.name().to_uppercase()).collect();
            entries.push(format!("in {}", formats.join(", ")));
        }
        writeln!(table, "| {} | {} |", group.title(), entries.join(", "))?;
    }
    Ok([before, BEGIN, &table, END, after].concat())
}

/// The lines that the diffs of a page add, and the files: each run of added lines by itself. A line `...` leaves lines out.
fn quotes(page: &str) -> Vec<(String, Vec<String>)> {
    let mut quotes: Vec<(String, Vec<String>)> = Vec::new();
    let (mut path, mut inside, mut open) = (None, false, false);
    for line in page.lines() {
        if line.starts_with("```") {
            (path, inside, open) = (None, line == "```diff", false);
        } else if let Some(named) = line.strip_prefix("+++ b/").filter(|_| inside) {
            (path, open) = (Some(named.to_owned()), false);
        } else if let (Some(added), Some(path)) = (line.strip_prefix('+').filter(|line| line.trim() != "..."), &path) {
            match quotes.last_mut().filter(|_| open) {
                Some((_, lines)) => lines.push(added.to_owned()),
                None => quotes.push((path.clone(), vec![added.to_owned()])),
            }
            open = true;
        } else {
            open = false;
        }
    }
    quotes
}

/// The text above the table; the rules of every operation.
const RULES: &str = include_str!("numerics.md");

fn numerics() -> Result<String> {
    let mut page = RULES.replace("${GPU}", &on_gpus()?);
    let mut seen: Vec<(&'static str, Contract)> = Vec::new();
    for case in all_cases() {
        let (op, contract): (Op, Contract) = (case.op, case.op.contract());
        if seen.contains(&(op.name(), contract)) {
            continue;
        }
        seen.push((op.name(), contract));
        // A bar would end the cell.
        let cell = |text: &str| text.replace('|', "\\|");
        let of_blocks = match op {
            Op::QuantMatmul(op) => format!(" of blocks of {}", op.format.block_len()),
            _ => String::new(),
        };
        writeln!(
            page,
            "| `{}`{of_blocks} | {} | {} | {} |",
            op.name(),
            cell(op.formula()),
            cell(&contract.bound.to_string()),
            cell(contract.special)
        )?;
    }
    Ok(page)
}

/// The section about the differences on GPUs.
fn on_gpus() -> Result<String> {
    let mut text = String::from(
        "## On GPUs\n\n\
         The same bounds hold on GPUs, with these differences. WGSL promises correct rounding of sums, differences and products, \
         and 2.5 units in the last place of quotients.\n\n\
         - A GPU may treat subnormal operands, intermediate results and results as zeros: the error may be larger by \
         2⁻¹²⁶.\n\
         - Sums on GPUs use trees of another shape, so they keep the bounds but not the bits of the CPU.\n\
         - Products of two f16 matrices, and in CUDA of two bf16 matrices, may use cooperative matrices or tensor cores, whose units truncate instead of rounding: \
         the error is at most k / 8 + 16 u Σ|terms|, if that is greater.\n\
         - Attention of three f16 or three bf16 tensors runs on tensor cores in CUDA, from compute capability 8.0 on, if rows have 64, 80, 96, 128 \
         or 256 elements and the scale is positive: the error is at most 8226 + (d + t) / 8 u (of bf16 65570 + (d + t) / 8 u) of the magnitudes in the contract, \
         weights below 2⁻⁴⁰ of the greatest may count as 0, and a value that is not finite may give NaN for every query in the same tile as \
         a query that sees its key.\n\
         - The error of the mean of a window in CUDA is at most h + w - 1 u Σ|terms|, if that is greater: each row of the window is added \
         up, then the sums of the rows.\n\
         - With a lower `kiln::Precision` CUDA rounds the operands of products. The error is then at most 56 + k / 128 u Σ|terms| \
         with `Tf32x3`, 2¹⁵ + k / 4 + 16 with `Tf32`, and 2¹⁶ + k / 8 + 144 with `Bf16` and `Int8`, which products of many rows with quantised \
         weights use, too. On CPUs it is at most 2¹⁶ + 2¹⁰ + k / 8 with `Int8` for rows with quantised weights; WebAssembly, and products \
         with Q2_K and Q3_K of fewer than 12 rows or on other CPUs than x86-64, keep their bounds. The rest of this section is about GPUs \
         through wgpu.\n\
         - With `Tf32`, `Bf16` and `Int8` a device with cooperative matrices rounds both operands of products of many rows with quantised \
         weights to f16: their error is at most 2¹⁴ + k / 8 u Σ|terms| more than in the table. All other products keep their bounds at every precision.\n\
         - `fma` is rounded twice if the device has no fused instruction.\n\
         - Sums of products run over chains of up to 512: in their bounds w is min(k, 512) + k / 256.\n\n\
         | operation | largest error on a GPU |\n|---|---|\n",
    );
    let cell = |text: String| text.replace('|', "\\|");
    for (kind, bound) in kiln_shaders::numerics::DIFFERENCES {
        writeln!(text, "| `{}` | {} |", kind.name(), cell(bound.to_string()))?;
    }
    let bound = product_bound_of(4096, kiln_shaders::numerics::CHAIN);
    for name in ["matmul", "matvec", "convolve2d", "convolve_transpose2d"] {
        writeln!(text, "| `{name}` | {} for 4096 products |", cell(bound.to_string()))?;
    }
    writeln!(text, "| `resize2d`, bilinear | {} |", cell(kiln_shaders::numerics::BILINEAR.to_string()))?;
    let bound = kiln_shaders::numerics::average_bound((3, 3));
    writeln!(
        text,
        "| `avg_pool2d` | {} for windows of 3 x 3, h + w + 3 up to 64 elements, min(q, 64) + min(q / 64, 64) + q / 4096 + 13 for \
         q = ⌈h w / 64⌉ beyond |",
        cell(bound.to_string())
    )?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_pages_are_what_the_tables_say_and_quote_what_the_sources_have() {
        check(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn quotes_are_runs_of_added_lines() {
        let page = "+no\n```diff\n--- a/x\n+++ b/x\n@@\n+1\n+2\n@@\n+3\n+    ...\n+4\n+++ b/y\n+5\n```\n+no\n";
        let runs: Vec<(String, String)> =
            quotes(page).into_iter().map(|(path, lines)| (path, lines.join(" "))).collect();
        let wanted = [("x", "1 2"), ("x", "3"), ("x", "4"), ("y", "5")];
        assert_eq!(runs, wanted.map(|(path, lines)| (path.to_owned(), lines.to_owned())));
    }
}
