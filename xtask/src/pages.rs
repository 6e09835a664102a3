//! Checks of what people read: tables against the sources that they describe, links, and wording.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use clap::CommandFactory as _;

use crate::Result;

/// The page with the tables of variables, features, commands and examples.
const REFERENCE: &str = "docs/reference.md";
/// The page with the map of tests.
const CONTRIBUTING: &str = "CONTRIBUTING.md";
/// The page that says which file holds what.
const ARCHITECTURE: &str = "docs/architecture.md";

/// Fails with every table, link or line that has to be corrected.
///
/// # Errors
/// A list of them.
pub(crate) fn check(root: &Path) -> Result<()> {
    let sources = files(root)?;
    let mut faults = Vec::new();
    let reference = std::fs::read_to_string(root.join(REFERENCE))?;
    let contributing = std::fs::read_to_string(root.join(CONTRIBUTING))?;
    faults.extend(differences(REFERENCE, "Environment variables", &reference, &variables(&sources)));
    faults.extend(differences(REFERENCE, "Features", &reference, &features(root, &sources)));
    faults.extend(differences(REFERENCE, "Commands", &reference, &commands()));
    faults.extend(differences(REFERENCE, "Examples", &reference, &examples(root, &sources)));
    faults.extend(differences(CONTRIBUTING, "The map of tests", &contributing, &crate::test::step_names()));
    faults.extend(missing_sources(ARCHITECTURE, &std::fs::read_to_string(root.join(ARCHITECTURE))?, &sources));
    for file in sources.iter().filter(|file| file.is("md")) {
        faults.extend(dead_links(root, file, &sources));
    }
    for file in &sources {
        let path = file.path.strip_prefix(root).unwrap_or(&file.path).display();
        faults.extend(unclear(file).into_iter().map(|(line, text, why)| format!("{path}:{line}: {why}: {text}")));
    }
    if faults.is_empty() { Ok(()) } else { Err(faults.join("\n").into()) }
}

/// A file of the repository.
struct Source {
    path: PathBuf,
    text: String,
}

impl Source {
    fn is(&self, extension: &str) -> bool {
        self.path.extension().is_some_and(|own| own == extension)
    }
}

/// The sources and pages of the repository, without what is built and without hidden folders other than `.github`.
fn files(root: &Path) -> Result<Vec<Source>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder)? {
            let path = entry?.path();
            let name = path.file_name().and_then(|name| name.to_str()).unwrap_or_default();
            if path.is_dir() {
                let hidden = name.starts_with('.') && name != ".github" && name != ".ci";
                if !hidden && name != "target" && name != "node_modules" {
                    folders.push(path);
                }
            } else if ["rs", "wgsl", "md", "html", "mjs", "js", "ts", "py", "toml", "yml", "run"]
                .contains(&name.rsplit('.').next().unwrap_or(name))
            {
                // Files that are not text are skipped.
                found.extend(std::fs::read_to_string(&path).ok().map(|text| Source { path, text }));
            }
        }
    }
    found.sort_by(|a, b| a.path.cmp(&b.path));
    Ok(found)
}

/// The rows of the tables below a heading: the code in the first cells, which say what a row is about.
fn rows(page: &str, heading: &str, cells: usize) -> BTreeSet<String> {
    let mut inside = false;
    let mut rows = BTreeSet::new();
    for line in page.lines() {
        if let Some(title) = line.strip_prefix("## ") {
            inside = title == heading;
        } else if let Some(row) = line.strip_prefix("| `").filter(|_| inside) {
            let code = |cell: &str| cell.trim_start_matches('`').split('`').next().unwrap_or_default().to_owned();
            rows.insert(row.trim_end_matches(" |").split(" | ").take(cells).map(code).collect::<Vec<_>>().join(" "));
        }
    }
    rows
}

/// The rows that a table of a page has and the sources do not, and those that the sources have and the table does not.
fn differences(page: &str, heading: &str, text: &str, found: &BTreeSet<String>) -> Vec<String> {
    // Names of two words, such as the name of a crate and of its feature, are two cells.
    let cells = found.first().map_or(1, |name| name.split(' ').count());
    let listed = rows(text, heading, cells);
    let missing = found.difference(&listed).map(|name| format!("{page}, {heading}: `{name}` is missing"));
    let stale = listed.difference(found).map(|name| format!("{page}, {heading}: `{name}` does not exist any more"));
    missing.chain(stale).collect()
}

/// The environment variables of kiln that sources name.
fn variables(sources: &[Source]) -> BTreeSet<String> {
    // In two parts, so that this file does not name it.
    let prefix = concat!("KILN", "_");
    let mut names = BTreeSet::new();
    for file in sources.iter().filter(|file| !file.is("md")) {
        for part in file.text.split(prefix).skip(1) {
            let end = part.find(|c: char| !c.is_ascii_uppercase() && c != '_').unwrap_or(part.len());
            if !part[..end].is_empty() {
                names.insert(format!("{prefix}{}", &part[..end]));
            }
        }
    }
    names
}

/// The features of every crate, as `CRATE FEATURE`.
fn features(root: &Path, sources: &[Source]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in sources.iter().filter(|file| file.path.ends_with("Cargo.toml") && is_a_crate(root, &file.path)) {
        let package = file.text.lines().find_map(|line| line.strip_prefix("name = \"")?.strip_suffix('"'));
        let own = file.text.lines().skip_while(|line| *line != "[features]").skip(1);
        for line in own.take_while(|line| !line.starts_with('[')) {
            let feature = line.split_once(" = ").map(|(name, _)| name).filter(|name| !name.starts_with(['#', ' ']));
            names.extend(package.zip(feature).map(|(package, feature)| format!("{package} {feature}")));
        }
    }
    names
}

/// Whether this is the manifest of a crate of `crates/`, or of one that only tests.
fn is_a_crate(root: &Path, manifest: &Path) -> bool {
    let folder = manifest.parent().unwrap_or(root);
    folder.parent() == Some(&root.join("crates")) || ["fuzz", "loom"].iter().any(|name| folder == root.join(name))
}

/// The commands of `cargo xtask`.
fn commands() -> BTreeSet<String> {
    crate::Arguments::command().get_subcommands().map(|command| command.get_name().to_owned()).collect()
}

/// The examples of every crate, as `CRATE EXAMPLE`.
fn examples(root: &Path, sources: &[Source]) -> BTreeSet<String> {
    let mut names = BTreeSet::new();
    for file in sources.iter().filter(|file| file.is("rs")) {
        let path = file.path.strip_prefix(root.join("crates")).unwrap_or(Path::new(""));
        let parts: Vec<_> = path.iter().filter_map(|part| part.to_str()).collect();
        match parts.as_slice() {
            [package, "examples", file] => names.insert(format!("{package} {}", file.trim_end_matches(".rs"))),
            [package, "examples", name, "main.rs"] => names.insert(format!("{package} {name}")),
            _ => false,
        };
    }
    names
}

/// Links of a page to files or headings that do not exist.
fn dead_links(root: &Path, page: &Source, sources: &[Source]) -> Vec<String> {
    let mut dead = Vec::new();
    let folder = page.path.parent().unwrap_or(root);
    for part in prose(&page.text).split("](").skip(1) {
        let Some((target, _)) = part.split_once(')') else { continue };
        if target.contains("://") || target.contains(' ') || target.starts_with("mailto:") {
            continue;
        }
        let (file, heading) = target.split_once('#').map_or((target, None), |(file, heading)| (file, Some(heading)));
        let path = if file.is_empty() { page.path.clone() } else { folder.join(file) };
        let found = match (path.canonicalize(), heading) {
            (Err(_), _) => false,
            (Ok(_), None) => true,
            (Ok(path), Some(heading)) => sources
                .iter()
                .find(|source| source.path.canonicalize().is_ok_and(|other| other == path))
                .is_some_and(|source| prose(&source.text).lines().any(|line| anchor(line).as_deref() == Some(heading))),
        };
        if !found {
            let name = page.path.strip_prefix(root).unwrap_or(&page.path).display();
            dead.push(format!("{name}: the link to {target} leads nowhere"));
        }
    }
    dead
}

/// The source files that a page names between backticks, by the ends of their paths, and that do not exist.
fn missing_sources(page: &str, text: &str, sources: &[Source]) -> Vec<String> {
    let mut missing = Vec::new();
    for name in prose(text).lines().flat_map(|line| line.split('`').skip(1).step_by(2)) {
        let is_a_source = name.rsplit_once('.').is_some_and(|(_, kind)| ["rs", "wgsl", "js", "mjs"].contains(&kind));
        let is_a_path = name.chars().all(|c| c.is_ascii_alphanumeric() || "_-./".contains(c));
        if is_a_source && is_a_path && !sources.iter().any(|source| source.path.ends_with(name)) {
            missing.push(format!("{page}: `{name}` does not exist"));
        }
    }
    missing
}

/// The anchor of a heading.
fn anchor(line: &str) -> Option<String> {
    let title = line.strip_prefix('#')?.trim_start_matches('#').strip_prefix(' ')?;
    let kept = title.chars().filter(|c| c.is_alphanumeric() || [' ', '-', '_'].contains(c));
    Some(kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect())
}

/// A page without its blocks of code, whose lines become empty.
fn prose(page: &str) -> String {
    let mut code = false;
    let lines = page.lines().map(|line| {
        let fence = line.trim_start().starts_with("```");
        code ^= fence;
        if code || fence { "\n".to_owned() } else { format!("{line}\n") }
    });
    lines.collect()
}

/// Wordings that readers have to read twice, with what to write instead. Lower case; words are whole.
const UNCLEAR: &[(&str, &str)] = &[
    ("of which", "begin a sentence of its own"),
    ("there is none", "name what is missing, or what happens without it"),
    ("there are none", "name what is missing, or what happens without it"),
    ("told", "say who reports what to whom"),
    ("stand for", "use `mean` or `are`"),
    ("stands", "use `is`, `means` or `replaces`"),
    ("as it lies", "write `in place` or `as it is stored`"),
    ("does without", "write `lacks` or `works without`"),
    ("the way there", "name the transfer"),
    ("is none", "say what it is, or what happens to it"),
    ("are none", "say what they are, or what happens to them"),
    ("picture", "write `image`"),
    ("pictures", "write `images`"),
    ("so many", "name the number"),
    ("held against", "write `compared with`"),
    ("tells apart", "write `distinguishes`"),
    ("somebody", "name who does it"),
    ("whoever", "name who does it"),
    ("there and back", "name both directions"),
];

/// More such wordings, which are rejected in what users read: pages, and the files of the page in browsers.
const UNCLEAR_TO_USERS: &[(&str, &str)] = &[
    ("a person", "say `you`, `the user` or who it is"),
    ("anew", "write `again`"),
    ("as they come", "write `as they arrive` or `in parts`"),
    ("come to", "write `reach`, or name the number"),
    ("comes to", "write `reaches`, or name the number"),
    ("for good", "write `permanently`"),
    ("goes the way", "say what it does"),
    ("has none", "name what it lacks"),
    ("have none", "name what they lack"),
    ("in vain", "say what is wasted"),
    ("is no", "write `is not a`"),
    ("nothing of", "name what is missing"),
    ("on the way in", "name the operands"),
    ("plays one", "write `emulates`"),
    ("take this crate", "write `use this crate`"),
    ("there is nothing", "say what is missing"),
    ("vouches", "write `is responsible for`"),
    ("what is here", "name it"),
    ("what it has", "name it"),
    ("what there is", "name it"),
];

/// A line that people read.
struct Line {
    number: usize,
    text: String,
    /// Whether users of kiln read it, not only those who change it.
    for_users: bool,
}

/// The lines of a file that people read: prose of pages, comments, messages, and the texts of the page in browsers.
fn texts(file: &Source) -> Vec<Line> {
    if file.is("rs") {
        return texts_of_rust(file);
    }
    let comment = |line: &str| {
        let line = line.trim_start();
        let is_one = line.starts_with("//") || line.starts_with(['*', '/']);
        is_one.then(|| line.trim_start_matches(['/', '!', '*']).trim_end_matches("*/").trim().to_owned())
    };
    let is_script = file.is("js") || file.is("mjs") || file.is("ts");
    let text = |line: &str| match () {
        () if file.is("md") => Some(line.to_owned()),
        () if file.is("html") => Some(visible(line)),
        () if file.is("wgsl") => comment(line),
        () if is_script => comment(line).or_else(|| file.is("js").then(|| sentences(line))),
        () if file.is("toml") || file.is("yml") || file.is("py") => Some(line.split_once("# ")?.1.to_owned()),
        () => None,
    };
    let for_users = !(file.is("wgsl") || file.is("mjs"));
    let page = if file.is("md") { prose(&file.text) } else { file.text.clone() };
    let lines = page.lines().enumerate();
    lines.filter_map(|(index, line)| Some(Line { number: index + 1, text: text(line)?, for_users })).collect()
}

/// The comments of a file of Rust, and its strings with spaces, which names do not have. Users do not read tests.
fn texts_of_rust(file: &Source) -> Vec<Line> {
    let mut texts = Vec::new();
    let tests = file.path.iter().any(|part| part == "tests" || part == "benches");
    let unit_tests = file.text.find("\nmod tests {").map_or(usize::MAX, |at| file.text[..=at].lines().count());
    let is_tested = |number: usize| tests || number > unit_tests;
    for (index, line) in file.text.lines().enumerate() {
        let Some(comment) = line.trim_start().strip_prefix("//") else { continue };
        let for_users = comment.starts_with(['/', '!']) && !is_tested(index + 1);
        let text = comment.trim_start_matches(['/', '!']).trim().to_owned();
        texts.push(Line { number: index + 1, text, for_users });
    }
    let strings = literals(&file.text).into_iter().filter(|(number, text)| !is_tested(*number) && text.contains(' '));
    texts.extend(strings.map(|(number, text)| Line { number, text: without(&text, "{", '}'), for_users: true }));
    texts
}

/// The lines of the string literals of Rust, with their numbers.
fn literals(source: &str) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    let (mut rest, mut number) = (source, 1);
    while let Some(at) = rest.find(['"', '/', '\'']) {
        number += rest[..at].matches('\n').count();
        let before = rest[..at].trim_end_matches('#');
        let is_raw = before.ends_with('r') && rest[at..].starts_with('"');
        let hashes = "#".repeat(at - before.len());
        rest = &rest[at..];
        let (skipped, text) = match &rest[..1] {
            "/" if rest.starts_with("//") => (rest.find('\n').unwrap_or(rest.len()), None),
            "/" if rest.starts_with("/*") => (rest.find("*/").map_or(rest.len(), |end| end + 2), None),
            "/" => (1, None),
            // A character; the quotation mark of a lifetime has no partner.
            "'" => {
                let end = if rest[1..].starts_with('\\') { rest[3..].find('\'').map(|end| end + 4) } else { None };
                let plain = || rest[1..].chars().next().map_or(1, |c| c.len_utf8() + 1);
                let is_one = rest[plain()..].starts_with('\'');
                (end.unwrap_or(if is_one { plain() + 1 } else { 1 }), None)
            }
            _ if is_raw => {
                let end = rest[1..].find(&format!("\"{hashes}")).unwrap_or(rest.len() - 1);
                ((end + 2 + hashes.len()).min(rest.len()), Some(&rest[1..=end]))
            }
            _ => {
                let mut escaped = false;
                let end = rest[1..].find(|c| {
                    let ends = c == '"' && !escaped;
                    escaped = c == '\\' && !escaped;
                    ends
                });
                let end = end.unwrap_or(rest.len() - 1);
                ((end + 2).min(rest.len()), Some(&rest[1..=end]))
            }
        };
        let lines = text.iter().flat_map(|text| text.lines()).enumerate();
        found.extend(lines.map(|(line, text)| (number + line, text.trim().to_owned())));
        number += rest[..skipped].matches('\n').count();
        rest = &rest[skipped..];
    }
    found
}

/// Beginnings of a text that says only that it is like another one.
const ALIKE: &[&str] = &["As [`", "As `", "As there.", "As the ", "The same."];

/// The unclear lines of a file: their numbers, their texts and what to write instead.
fn unclear(file: &Source) -> Vec<(usize, String, &'static str)> {
    let mut found = Vec::new();
    for Line { number, text, for_users } in texts(file) {
        let lower = text.to_lowercase();
        // This file lists them.
        let is_listed =
            || ALIKE.contains(&&*text) || UNCLEAR.iter().chain(UNCLEAR_TO_USERS).any(|(pattern, _)| lower == *pattern);
        if file.path.ends_with("xtask/src/pages.rs") && is_listed() {
            continue;
        }
        let patterns = UNCLEAR.iter().chain(UNCLEAR_TO_USERS.iter().filter(|_| for_users));
        let is_a_word = |at: usize, pattern: &str| {
            let letter = |c: Option<char>| c.is_some_and(char::is_alphanumeric);
            !letter(lower[..at].chars().next_back()) && !letter(lower[at + pattern.len()..].chars().next())
        };
        for (pattern, why) in patterns {
            let is_usual = |at: usize| *pattern == "is no" && lower[..at].ends_with("there ");
            if lower.match_indices(pattern).any(|(at, _)| is_a_word(at, pattern) && !is_usual(at)) {
                found.push((number, text.clone(), *why));
            }
        }
        if ALIKE.iter().any(|start| text.starts_with(start)) {
            found.push((number, text, "say what it does, or link to `the errors of`"));
        }
    }
    found
}

/// The texts of a line of JavaScript: its strings with spaces, which names do not have, without the code in them.
fn sentences(line: &str) -> String {
    let mut texts = Vec::new();
    let mut rest = line;
    while let Some(at) = rest.find(['"', '`']) {
        let (quote, inside) = rest[at..].split_at(1);
        let Some((text, after)) = inside.split_once(quote) else { break };
        if text.contains(' ') {
            texts.push(without(text, "${", '}'));
        }
        rest = after;
    }
    texts.join(" ")
}

/// What a visitor sees, or a screen reader reads, of a line of HTML.
fn visible(line: &str) -> String {
    let attributes = ["aria-label=\"", "content=\"", "placeholder=\"", "alt=\""];
    let values = attributes.iter().flat_map(|name| line.split(name).skip(1)).filter_map(|rest| rest.split('"').next());
    [without(line, "<", '>')].into_iter().chain(values.map(str::to_owned)).collect::<Vec<_>>().join(" ")
}

/// A text without the parts from one mark to another.
fn without(text: &str, from: &str, to: char) -> String {
    let mut parts = text.split(from);
    let first = parts.next().unwrap_or_default();
    std::iter::once(first).chain(parts.filter_map(|part| Some(part.split_once(to)?.1))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn source(path: &str, text: &str) -> Source {
        Source { path: path.into(), text: text.to_owned() }
    }

    #[test]
    fn pages_agree_with_the_sources() {
        check(Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap()).unwrap();
    }

    #[test]
    fn tables_are_compared_with_what_is_found() {
        let page = "## A\n| name | what |\n|---|---|\n| `x` | `code` first |\n| `y` | text |\n## B\n| `z` | no |\n";
        assert_eq!(rows(page, "A", 1), ["x", "y"].map(str::to_owned).into());
        assert_eq!(rows(page, "A", 2), ["x code", "y text"].map(str::to_owned).into());
        let found = ["y", "new"].map(str::to_owned).into();
        assert_eq!(differences("page", "A", page, &found).len(), 2);
    }

    #[test]
    fn headings_get_the_anchors_that_links_name() {
        assert_eq!(anchor("### An operation of a program").as_deref(), Some("an-operation-of-a-program"));
        assert_eq!(anchor("## gemm, 1 thread").as_deref(), Some("gemm-1-thread"));
        assert_eq!(anchor("#no heading"), None);
    }

    #[test]
    fn links_that_lead_nowhere_are_found() {
        let root = Path::new(env!("CARGO_MANIFEST_DIR"));
        let text = "# A title\n[a](src/main.rs) [b](#a-title) [c](https://example.com) [d](none.md) [e](#none)\n```\n[f](g)\n```\n";
        let page = Source { path: root.join("Cargo.toml"), text: text.to_owned() };
        assert_eq!(dead_links(root, &page, std::slice::from_ref(&page)).len(), 2);
    }

    #[test]
    fn names_of_sources_that_do_not_exist_are_found() {
        let sources = [source("/a/src/b.rs", ""), source("/a/page/c.js", "")];
        let text = "`b.rs` `src/b.rs` `c.js` `page/` `x.y` `f(d.rs)`\n`d.rs` and `rc/b.rs`\n```\n`e.rs`\n```\n";
        let found = missing_sources("page", text, &sources);
        assert_eq!(found, ["page: `d.rs` does not exist", "page: `rc/b.rs` does not exist"]);
    }

    #[test]
    fn literals_are_found_in_every_form() {
        let source = "let a = \"one \\\" two\"; // \"no\"\nlet b = ('\"', '\\'', \"x\"); /* \"no' */\nfn f<'a>(_: &'a str) {}\n\
                      let c = r#\"raw \"in\" it\"#;\nlet d = \"over \\\n    lines\";\n";
        let found = literals(source);
        let expected = [(1, "one \\\" two"), (2, "x"), (4, "raw \"in\" it"), (5, "over \\"), (6, "lines")];
        assert_eq!(found, expected.map(|(line, text)| (line, text.to_owned())));
    }

    #[test]
    fn unclear_words_are_found_in_comments_and_messages_alone() {
        let found = |text| unclear(&source("a.rs", text)).len();
        assert_eq!(found("/// Elements of so many rows, one of which is\n    //! retold\nlet a = told(); // told"), 2);
        assert_eq!(found("/// As [`x`].\n/// As there.\n/// The same as [`x`]."), 2);
        assert_eq!(found("    // It was told.\nlet told = 1;"), 1);
        assert_eq!(found(concat!("#[er", "ror(\"{0} is none\")]\nEr", "r(format!(\"{0} is missing\", told))")), 1);
        assert_eq!(unclear(&source("a.wgsl", "// told\nlet told = 1;")).len(), 1);
        assert_eq!(unclear(&source("a.md", "told\n```\ntold\n```\n")).len(), 1);
    }

    #[test]
    fn unclear_words_are_found_in_the_texts_of_the_page() {
        let found = |path, text| unclear(&source(path, text)).into_iter().map(|(line, ..)| line).collect::<Vec<_>>();
        let html = "<p id=\"told\">plain</p>\n<b>it was told</b>\n<i aria-label=\"A picture\"></i>\n";
        assert_eq!(found("a.html", html), [2, 3]);
        let script =
            "/** It was told. */\n * told\n$(\"told\").textContent = `told ${none}`;\nlet told = `as ${is none}`;\n";
        assert_eq!(found("a.js", script), [1, 2, 3]);
        assert_eq!(found("a.ts", "/** It is measured anew. */\nlet anew: told;"), [1]);
        assert_eq!(found("a.mjs", "// Measured anew.\nlet a = \"it was told\"; // told\n// told"), [3]);
    }
}
