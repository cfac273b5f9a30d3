//! Every crate that is published can be packaged, with its licences and what a registry shows of it.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use serde_json::Value;

/// The crates that nobody else needs.
const PRIVATE: [&str; 2] = ["remex-bench", "remex-fuzz"];

#[test]
fn every_crate_is_packaged_with_licences_and_metadata() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    // A target directory of its own: the one of the tests may be locked.
    let directory = Path::new(env!("CARGO_TARGET_TMPDIR")).join("packages");
    let script = root.join("scripts/publish");
    run(Command::new(script).arg("--package").env("CARGO_TARGET_DIR", &directory));

    let list = ["metadata", "--format-version", "1", "--no-deps", "--locked", "--offline"];
    let metadata = run(Command::new(env!("CARGO")).args(list).current_dir(&root));
    let metadata: Value = serde_json::from_str(&metadata).unwrap();
    for package in metadata["packages"].as_array().unwrap() {
        let name = package["name"].as_str().unwrap();
        let is_public = package["publish"].is_null();
        assert_eq!(is_public, !PRIVATE.contains(&name), "`publish` of {name}");
        if is_public {
            check_metadata(name, package);
            let version = package["version"].as_str().unwrap();
            check_files(name, &directory.join(format!("package/{name}-{version}.crate")));
        }
    }
}

fn check_metadata(name: &str, package: &Value) {
    for key in ["description", "license", "readme", "rust_version"] {
        assert!(package[key].is_string(), "{name} has no `{key}`");
    }
    for key in ["keywords", "categories"] {
        let count = package[key].as_array().unwrap().len();
        assert!((1..=5).contains(&count), "{name} has {count} `{key}`, and a registry takes up to 5");
    }
    for dependency in package["dependencies"].as_array().unwrap() {
        // A development dependency without a version is left out of the package.
        let has_version = dependency["req"] != "*" || dependency["kind"] == "dev";
        assert!(has_version, "{name} depends on {} without a version", dependency["name"]);
    }
}

fn check_files(name: &str, archive: &PathBuf) {
    let files = run(Command::new("tar").arg("-tzf").arg(archive));
    for file in ["LICENSE-MIT", "LICENSE-APACHE", "README.md", "Cargo.toml"] {
        assert!(
            files.lines().any(|path| path.ends_with(&format!("/{file}"))),
            "the package of {name} has no `{file}`:\n{files}"
        );
    }
    for (file, beginning) in [("LICENSE-MIT", "MIT License"), ("LICENSE-APACHE", "Apache License")] {
        let text =
            run(Command::new("tar").arg("-xzOf").arg(archive).args(["--wildcards", &format!("*/{file}")]));
        assert!(
            text.trim_start().starts_with(beginning),
            "`{file}` of {name} is not the license: {text:.40}"
        );
    }
}

fn run(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?} failed:\n{errors}");
    String::from_utf8(output.stdout).unwrap()
}
