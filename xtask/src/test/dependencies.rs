//! The dependencies of kiln: their number, licences and sources.

use std::collections::BTreeSet;

use serde_json::Value;

use super::run::{Outcome, Runner};
use crate::Result;

/// The facade builds few crates, and all dependencies of the workspace come from the registry under licences that `deny.toml` allows.
pub(super) fn check(runner: &mut Runner) -> Outcome {
    let checked = few_crates(runner).and_then(|crates| Ok((crates, licences(runner)?)));
    match checked {
        Ok((crates, packages)) => Outcome::Passed(format!("{crates} crates; licences of {packages} packages")),
        Err(error) => Outcome::Failed(error.to_string()),
    }
}

/// The number of crates that the facade builds, without the programs that only its tests need.
fn few_crates(runner: &Runner) -> Result<usize> {
    const MOST: usize = 40;
    let line = "cargo tree -p kiln --edges normal,build --prefix none --format {p}";
    let tree = runner.output(line).ok_or_else(|| format!("`{line}` failed"))?;
    // A crate that the tree names again is marked behind its name and version.
    let crates: BTreeSet<String> =
        tree.lines().map(|line| line.split(' ').take(2).collect::<Vec<_>>().join(" ")).collect();
    if crates.len() <= MOST {
        Ok(crates.len())
    } else {
        Err(format!("{} crates, at most {MOST} allowed", crates.len()).into())
    }
}

/// Checks the licence and the origin of every dependency, and returns how many there are.
fn licences(runner: &Runner) -> Result<usize> {
    let configuration = std::fs::read_to_string(runner.root().join("deny.toml"))?;
    let allowed = allowed(&configuration).ok_or("deny.toml has no list `allow` of licences")?;
    let line = "cargo metadata --format-version 1 --all-features --locked";
    let output = runner.output(line).ok_or_else(|| format!("`{line}` failed"))?;
    let metadata: Value = serde_json::from_str(&output)?;
    let packages = metadata["packages"].as_array().ok_or("cargo metadata has listed no packages")?;
    for package in packages {
        let (name, licence) = (package["name"].as_str().unwrap_or_default(), package["license"].as_str());
        if !licence.is_some_and(|licence| permits(licence, &allowed)) {
            return Err(format!("{name}: deny.toml does not allow its licence {licence:?}").into());
        }
        let source = package["source"].as_str();
        if source.is_some_and(|source| !source.starts_with("registry+https://github.com/rust-lang/crates.io-index")) {
            return Err(format!("{name} comes from {source:?}, not from the registry").into());
        }
    }
    Ok(packages.len())
}

/// The licences that deny.toml allows.
fn allowed(configuration: &str) -> Option<Vec<String>> {
    let (_, list) = configuration.split_once("\nallow = [")?;
    let (list, _) = list.split_once(']')?;
    Some(
        list.split(',')
            .map(|licence| licence.trim().trim_matches('"').to_owned())
            .filter(|name| !name.is_empty())
            .collect(),
    )
}

/// Whether an SPDX expression is satisfied by allowed licences. `/` is the old form of `OR`; `AND` binds more tightly than `OR`.
fn permits(expression: &str, allowed: &[String]) -> bool {
    let spaced = expression.replace('/', " OR ").replace('(', " ( ").replace(')', " ) ");
    let mut words = spaced.split_whitespace().peekable();
    let permitted = any(&mut words, allowed);
    permitted && words.next().is_none()
}

type Words<'a> = std::iter::Peekable<std::str::SplitWhitespace<'a>>;

fn any(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut permitted = all(words, allowed);
    while words.next_if_eq(&"OR").is_some() {
        permitted |= all(words, allowed);
    }
    permitted
}

fn all(words: &mut Words<'_>, allowed: &[String]) -> bool {
    let mut permitted = one(words, allowed);
    while words.next_if_eq(&"AND").is_some() {
        permitted &= one(words, allowed);
    }
    permitted
}

fn one(words: &mut Words<'_>, allowed: &[String]) -> bool {
    if words.next_if_eq(&"(").is_some() {
        let permitted = any(words, allowed);
        return words.next_if_eq(&")").is_some() && permitted;
    }
    let Some(name) = words.next() else { return false };
    let name = match words.next_if_eq(&"WITH") {
        Some(_) => format!("{name} WITH {}", words.next().unwrap_or_default()),
        None => name.to_owned(),
    };
    allowed.contains(&name)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn expressions_of_licences_are_evaluated() {
        let allowed =
            allowed("[licenses]\nallow = [\"MIT\", \"Zlib\",\n  \"Apache-2.0 WITH LLVM-exception\"]\n").unwrap();
        let yes =
            ["MIT", "GPL-3.0 OR MIT", "GPL-3.0/MIT", "Apache-2.0 WITH LLVM-exception", "(GPL-3.0 OR MIT) AND Zlib"];
        assert!(yes.iter().all(|expression| permits(expression, &allowed)));
        let no = ["", "GPL-3.0", "MIT AND GPL-3.0", "Apache-2.0", "(MIT OR Zlib) AND GPL-3.0", "(MIT", "MIT Zlib"];
        assert!(no.iter().all(|expression| !permits(expression, &allowed)));
    }
}
