//! The arrows between our crates, and where `unsafe` may stand: what the compiler does not guard by itself.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    collections::BTreeSet,
    env, fs,
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// Who may use whom, complete; the crates at the edge that nothing depends on are free in what they use.
const ARROWS: [(&str, &str); 10] = [
    ("remex-rpc", "remex-proto"),
    ("remex-server", "remex-proto"),
    ("remex-server", "remex-rpc"),
    ("remex-server", "remex-process"),
    ("remex-client", "remex-proto"),
    ("remex-client", "remex-rpc"),
    ("remex", "remex-server"),
    ("remex", "remex-client"),
    // The program tells what the host is.
    ("remex", "remex-proto"),
    // The program chooses where to listen.
    ("remex", "remex-rpc"),
];

/// Nothing depends on these.
const EDGE: [&str; 2] = ["remex-bench", "remex-fuzz"];

/// The only crate that may use `unsafe`.
const UNSAFE: &str = "remex-process";

#[test]
fn the_arrows_between_our_crates_are_those_of_the_architecture() {
    let packages = packages();
    let names: BTreeSet<_> = packages.iter().map(name).collect();
    let found: BTreeSet<_> = packages
        .iter()
        .filter(|package| !EDGE.contains(&name(package)))
        .flat_map(|package| uses(package).map(move |dependency| (name(package), dependency)))
        .filter(|(_, dependency)| dependency["kind"].is_null())
        .map(|(from, dependency)| (from, name(dependency)))
        .filter(|(_, to)| names.contains(to))
        .collect();
    for (from, to) in &found {
        assert!(
            ARROWS.contains(&(from, to)),
            "`{from}` depends on `{to}`, an arrow that the architecture does not have"
        );
    }
    for (from, to) in ARROWS.iter().filter(|(from, to)| names.contains(from) && names.contains(to)) {
        assert!(
            found.contains(&(from, to)),
            "the architecture has an arrow from `{from}` to `{to}`, but `{from}` does not use `{to}`"
        );
    }
}

#[test]
fn nothing_depends_on_the_benchmarks_and_the_fuzz_targets() {
    for package in &packages() {
        for dependency in uses(package) {
            let (from, to) = (name(package), name(dependency));
            assert!(!EDGE.contains(&to), "`{from}` depends on `{to}`, which nothing may depend on");
        }
    }
}

#[test]
fn unsafe_code_stands_in_one_crate() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let denial = lines_of(&manifest, "[workspace.lints.rust]").find(|line| line.starts_with("unsafe_code"));
    assert_eq!(denial, Some("unsafe_code = \"deny\""), "the workspace does not deny unsafe code");
    for crate_dir in entries(&root().join("crates")) {
        let manifest = fs::read_to_string(crate_dir.join("Cargo.toml")).unwrap();
        let inherits = lines_of(&manifest, "[lints]").any(|line| line == "workspace = true");
        assert!(inherits, "`{}` does not inherit the lints of the workspace", crate_dir.display());
        if !crate_dir.ends_with(UNSAFE) {
            check_safe(&crate_dir.join("src"));
        }
    }
}

#[test]
fn every_dependency_has_its_reason() {
    let manifest = fs::read_to_string(root().join("Cargo.toml")).unwrap();
    let mut has_reason = false;
    for line in lines_of(&manifest, "[workspace.dependencies]") {
        let is_entry = line.starts_with(|first: char| first.is_ascii_alphanumeric());
        let is_ours = line.contains("path = \"crates/");
        assert!(!is_entry || is_ours || has_reason, "no comment says why we need `{line}`");
        has_reason = line.starts_with("# ");
    }
}

/// Fails where a source file below `path` uses `unsafe` or asks to be allowed to.
fn check_safe(path: &Path) {
    if path.is_dir() {
        entries(path).iter().for_each(|entry| check_safe(entry));
        return;
    }
    let text = fs::read_to_string(path).unwrap();
    for (at, line) in text.lines().enumerate() {
        let code = line.split("//").next().unwrap_or_default();
        let mut words = code.split(|c: char| !(c.is_alphanumeric() || c == '_'));
        let is_safe = !words.any(|word| matches!(word, "unsafe" | "unsafe_code"));
        assert!(is_safe, "{}:{} has unsafe code, which belongs in `{UNSAFE}`", path.display(), at + 1);
    }
}

fn packages() -> Vec<Value> {
    let output = Command::new(env::var_os("CARGO").unwrap_or_else(|| "cargo".into()))
        .args(["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"])
        .current_dir(root())
        .output()
        .unwrap();
    assert!(output.status.success(), "cargo metadata: {}", String::from_utf8_lossy(&output.stderr));
    let mut metadata: Value = serde_json::from_slice(&output.stdout).unwrap();
    serde_json::from_value(metadata["packages"].take()).unwrap()
}

fn name(package_or_dependency: &Value) -> &str {
    package_or_dependency["name"].as_str().unwrap()
}

fn uses(package: &Value) -> impl Iterator<Item = &Value> {
    package["dependencies"].as_array().unwrap().iter()
}

/// Returns the lines of one table of a manifest.
fn lines_of<'a>(manifest: &'a str, table: &str) -> impl Iterator<Item = &'a str> {
    manifest.lines().skip_while(move |line| *line != table).skip(1).take_while(|line| !line.starts_with('['))
}

fn entries(directory: &Path) -> Vec<PathBuf> {
    fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().path()).collect()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}
