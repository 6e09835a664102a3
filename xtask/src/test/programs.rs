//! The programs of the tests and examples, built once for all steps. `cargo test -p` with other packages would select other
//! features of their dependencies and build them again.

use std::path::{Path, PathBuf};

use serde_json::Value;

use crate::Result;

/// A built test or example.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Program {
    /// The folder of its package, where it runs.
    pub(super) folder: PathBuf,
    /// The name of the test or example, or of the library or program whose unit tests these are.
    pub(super) name: String,
    /// Whether it is an example.
    pub(super) example: bool,
    /// The file.
    pub(super) file: PathBuf,
}

impl Program {
    /// Parses a message of cargo about an artifact; `None` unless it is a test or an example.
    fn parse(line: &str) -> Option<Self> {
        let message: Value = serde_json::from_str(line).ok()?;
        let file = message["executable"].as_str()?.into();
        let example = message["target"]["kind"][0] == "example";
        if !example && message["profile"]["test"] != true {
            return None;
        }
        let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_owned();
        Some(Self { folder, name: message["target"]["name"].as_str()?.to_owned(), example, file })
    }

    /// The programs in the messages of cargo.
    pub(super) fn all(messages: &str) -> Result<Vec<Self>> {
        let all: Vec<_> = messages.lines().filter_map(Self::parse).collect();
        if all.is_empty() { Err("cargo has built no test".into()) } else { Ok(all) }
    }

    /// The name of its folder.
    pub(super) fn package(&self) -> &str {
        self.folder.file_name().and_then(|name| name.to_str()).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn artifacts_that_run_are_found_in_the_messages_of_cargo() {
        let message = |kind: &str, test: bool, file: &str| {
            format!(
                r#"{{"reason":"compiler-artifact","manifest_path":"/kiln/crates/a/Cargo.toml","target":{{"kind":["{kind}"],"name":"n"}},"profile":{{"test":{test}}},"executable":{file}}}"#
            )
        };
        let lines = [
            message("test", true, "\"/t/n-1\""),
            message("example", false, "\"/t/n\""),
            // A program built for tests of the whole, and a library: neither has tests.
            message("bin", false, "\"/t/b\""),
            message("lib", false, "null"),
            r#"{"reason":"build-finished","success":true}"#.to_owned(),
        ];
        let all = Program::all(&lines.join("\n")).unwrap();
        assert_eq!(all.len(), 2);
        assert_eq!((all[0].package(), all[0].example, all[0].file.as_path()), ("a", false, Path::new("/t/n-1")));
        assert!(all[1].example);
        assert!(Program::all("").is_err());
    }
}
