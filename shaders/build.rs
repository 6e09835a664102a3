//! Prepares the sources in `wgsl/`: without comments, indentation and spaces around most operators, which would be a third of them in every
//! binary.

use std::path::Path;
use std::{env, fs, io};

fn main() -> io::Result<()> {
    println!("cargo::rerun-if-changed=build.rs");
    println!("cargo::rerun-if-changed=wgsl");
    let missing = |_| io::Error::other("cargo sets OUT_DIR for build scripts");
    let out = env::var("OUT_DIR").map_err(missing)?;
    for family in fs::read_dir("wgsl")? {
        let family = family?;
        let folder = Path::new(&out).join(family.file_name());
        fs::create_dir_all(&folder)?;
        for file in fs::read_dir(family.path())? {
            let file = file?;
            let text = fs::read_to_string(file.path())?;
            fs::write(folder.join(file.file_name()), prepared(&text))?;
        }
    }
    Ok(())
}

/// The lines of a source without what no compiler needs. WGSL has no texts that `//` could be a part of.
fn prepared(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    for line in source.lines() {
        let line = line.split_once("//").map_or(line, |(code, _)| code).trim();
        // Why a kernel is trusted, and how it uses cooperative matrices, is for readers.
        let reason = ["#trusted", "#cooperative"].into_iter().find(|word| line.starts_with(word));
        let line = reason.unwrap_or(line);
        if !line.is_empty() {
            out.push_str(&if line.starts_with('#') { line.to_owned() } else { dense(line) });
            out.push('\n');
        }
    }
    out
}

/// A line without spaces around most operators. Those around `-` stay, because `a - -b` without them is a decrement, those of `a / *b`, which
/// would begin a comment, and those between `>` and `=`.
fn dense(line: &str) -> String {
    const OPERATORS: [&str; 14] = ["+", "*", "/", "%", "&&", "||", "&", "|", "^", "=", "==", "!=", "+=", "*="];
    if line.contains("/ *") {
        return line.to_owned();
    }
    let mut out = line.replace(", ", ",").replace("; ", ";");
    for operator in OPERATORS {
        let spaced = format!(" {operator} ");
        let (after, whole) = (format!("> {operator} "), format!("> {operator}"));
        // `> =` must not become `>=`.
        out = out.split(&after).map(|part| part.replace(&spaced, operator)).collect::<Vec<_>>().join(&whole);
    }
    out
}
