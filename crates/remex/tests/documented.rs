//! The documentation of settings and limits is generated from their tables: `UPDATE_SNAPSHOTS=1` writes it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{env, fmt::Write as _, fs, path::Path};

use remex::{
    server_config::ServerConfig,
    units::{show_duration, show_size},
};
use remex_server::{LimitValue, Limits};

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
fn the_architecture_lists_every_limit_with_its_default() {
    let defaults = Limits::default();
    let mut table = "\n\n| name | default | what | at the limit |\n| --- | --- | --- | --- |\n".to_owned();
    for limit in Limits::TABLE {
        let default = match defaults.get(limit.name).unwrap() {
            LimitValue::Bytes(bytes) => show_size(bytes as u64),
            LimitValue::Count(count) | LimitValue::OptionalCount(Some(count)) => count.to_string(),
            LimitValue::OptionalCount(None) => "unlimited".to_owned(),
            LimitValue::Time(time) | LimitValue::OptionalTime(Some(time)) => show_duration(time),
            LimitValue::OptionalTime(None) => "forever".to_owned(),
        };
        let doc: Vec<_> = limit.doc.iter().map(|line| line.trim()).collect();
        let doc = doc.join(" ");
        let doc = doc.trim_end_matches('.');
        writeln!(table, "| `{}` | {default} | {doc} | {} |", limit.name, limit.effect).unwrap();
    }
    table.push('\n');
    check("ARCHITECTURE.md", "<!-- limits: begin -->", "<!-- limits: end -->", &table);
}

#[test]
fn the_documentation_shows_every_setting() {
    let expected = format!("\n{}", ServerConfig::default().to_toml());
    check("docs/server-config.md", "```toml all", "```", &expected);
}
