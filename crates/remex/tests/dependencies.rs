//! What the client depends on without its features, compared with a committed list: `UPDATE_SNAPSHOTS=1` writes it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{collections::BTreeSet, env, fmt::Write as _, fs, path::Path, process::Command};

const HEAD: &str = "\
# What `remex-client` depends on without default features, on Linux, with the features of tokio.
# `UPDATE_SNAPSHOTS=1 cargo test -p remex --test dependencies` writes this file.
";

#[test]
fn the_client_without_features_has_the_stated_dependencies() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let output = Command::new(env!("CARGO"))
        .args(["tree", "--package", "remex-client", "--no-default-features", "--edges", "normal"])
        .args(["--target", "x86_64-unknown-linux-gnu", "--prefix", "none", "--format", "{p}|{f}"])
        .args(["--locked", "--offline"])
        .current_dir(&root)
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo tree: {}", String::from_utf8_lossy(&output.stderr));
    let listed: BTreeSet<_> = str::from_utf8(&output.stdout).unwrap().lines().map(shown).collect();
    let listed = listed.iter().fold(HEAD.to_owned(), |mut text, line| {
        writeln!(text, "{line}").unwrap();
        text
    });

    let file = root.join("crates/remex-client/dependencies.txt");
    if env::var_os("UPDATE_SNAPSHOTS").is_some() {
        fs::write(&file, listed).unwrap();
    } else {
        let stated = fs::read_to_string(&file).unwrap_or_default();
        assert_eq!(
            listed, stated,
            "`crates/remex-client/dependencies.txt` is outdated: if the change is intended, run this test with UPDATE_SNAPSHOTS=1"
        );
    }
}

/// Returns the name of a package, and what of tokio is used.
fn shown(line: &str) -> String {
    let (package, features) = line.split_once('|').unwrap();
    let name = package.split(' ').next().unwrap();
    let features = features.trim_end_matches(" (*)");
    if name == "tokio" { format!("{name}: {}", features.replace(',', ", ")) } else { name.to_owned() }
}
