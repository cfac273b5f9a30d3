//! The documentation of settings and limits is generated from their tables: `UPDATE_SNAPSHOTS=1` writes it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{env, fs, path::Path};

use remex::server_config::ServerConfig;

/// Checks the part of a document between two lines, or replaces it.
fn check(document: &str, begin: &str, end: &str, expected: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(document);
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(begin).unwrap_or_else(|| panic!("`{document}` has no `{begin}`"));
    let (found, after) = rest.split_once(end).unwrap_or_else(|| panic!("`{document}` has no `{end}`"));
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&path, [before, begin, expected, end, after].concat()).unwrap();
    } else {
        assert_eq!(found, expected, "`{document}` is outdated: run this test with UPDATE_SNAPSHOTS=1");
    }
}

#[test]
fn the_documentation_shows_every_setting() {
    let expected = format!("\n{}", ServerConfig::default().to_toml());
    check("docs/server-config.md", "```toml all", "```", &expected);
}
