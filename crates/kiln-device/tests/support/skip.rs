//! Tests that are left out where the machine lacks something. Test programs of several crates include this file.

use std::fmt::Display;

/// Says why a test is left out. Fails instead if `KILN_REQUIRE` has this name: see docs/reference.md.
#[track_caller]
pub(crate) fn skip(name: &str, why: impl Display) {
    let required = std::env::var("KILN_REQUIRE").unwrap_or_default();
    assert!(!required.split(',').any(|required| required.trim() == name), "{why}");
    eprintln!("skipped: {why}");
}
