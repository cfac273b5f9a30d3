//! The archives of a release, the script that installs them, and the units in them.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{
    home::{Home, Said, said},
    support::{InTime as _, Need, Server, skip},
};

fn project(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// Runs a script in the environment of the tests, which has the toolchain.
fn script(command: &mut Command) -> Said {
    said(&command.stdin(Stdio::null()).finished())
}

/// Makes the archive of this machine's own kind from the program that is tested.
fn release(directory: &Path) -> PathBuf {
    let archives = directory.join("archives");
    let mut command = Command::new(project("scripts/release"));
    command.arg(&archives).env("CARGO_TARGET_DIR", directory.join("target"));
    command.env("PROGRAM", env!("CARGO_BIN_EXE_remex")).env("LEVEL", "1");
    let said = script(&mut command);
    assert_eq!(said.code, Some(0), "{said:?}");
    archives
}

fn install(home: &Home, archives: &Path, arguments: &[&str]) -> Said {
    let mut command = Command::new(archives.join("install"));
    home.dress(&mut command);
    script(command.args(arguments))
}

fn sums(archives: &Path) -> String {
    fs::read_to_string(archives.join("SHA256SUMS")).unwrap()
}

#[test]
fn an_archive_can_be_built_verified_and_installed() {
    let home = Home::new();
    let archives = release(&home.path("made"));
    let sums = sums(&archives);
    let archive =
        sums.lines().find_map(|line| line.split_whitespace().find(|word| word.ends_with(".tar.gz"))).unwrap();

    let said = install(&home, &archives, &["--prefix", "prefix"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let prefix = home.path("prefix");
    assert!(said.out.contains(&format!("in {}", prefix.display())), "{}", said.out);
    let installed = prefix.join("bin/remex");
    let version = script(Command::new(&installed).arg("--version")).out;
    assert_eq!(version.trim(), concat!("remex ", env!("CARGO_PKG_VERSION")));
    for file in [
        "share/man/man1/remex.1",
        "share/man/man1/remex-env-add.1",
        "share/bash-completion/completions/remex",
        "share/zsh/site-functions/_remex",
        "share/fish/vendor_completions.d/remex.fish",
        "share/doc/remex/LICENSE-MIT",
        "lib/systemd/user/remex.socket",
        "lib/systemd/user/remex.service",
        "lib/systemd/system/remex-server.service",
        "lib/sysusers.d/remex.conf",
    ] {
        assert!(prefix.join(file).is_file(), "{archive} has no {file}");
    }
    for unit in ["user/remex.service", "system/remex-server.service"] {
        let text = fs::read_to_string(prefix.join("lib/systemd").join(unit)).unwrap();
        let runs = text.lines().find(|line| line.starts_with("ExecStart=")).unwrap();
        assert!(runs.starts_with(&format!("ExecStart={} serve ", installed.display())), "{unit}: {runs}");
    }
    verify(&prefix.join("lib/systemd/system/remex-server.service"));

    // Again, while it runs: a program that runs cannot be written to, only replaced.
    let running = Command::new(&installed).args(["run", "--", "sleep", "1000"]).stdin(Stdio::null()).spawn();
    let mut running = running.unwrap();
    let again = install(&home, &archives, &["--prefix", "prefix"]);
    running.kill().unwrap();
    running.ended();
    assert_eq!(again.code, Some(0), "{again:?}");

    // Where users without rights put things, systemd looks elsewhere for their units.
    let own = install(&home, &archives, &["--prefix", home.path(".local").to_str().unwrap()]);
    assert_eq!(own.code, Some(0), "{own:?}");
    assert!(home.path(".local/share/systemd/user/remex.service").is_file());
    assert!(!home.path(".local/lib").exists());

    // What is not what it should be is not installed.
    fs::write(archives.join(archive), "something else").unwrap();
    let refused = install(&home, &archives, &["--prefix", "elsewhere"]);
    assert_eq!(refused.code, Some(1), "{refused:?}");
    assert!(refused.err.contains("is not what SHA256SUMS says"), "{}", refused.err);
    assert!(!home.path("elsewhere/bin").exists());
    fs::write(archives.join("SHA256SUMS"), "").unwrap();
    let refused = install(&home, &archives, &["--prefix", "elsewhere"]);
    assert!(refused.err.contains("there is no archive for"), "{}", refused.err);
}

/// Lets systemd judge a unit, where it is.
fn verify(unit: &Path) {
    let verified = Command::new("systemd-analyze").args(["verify", "--man=no"]).arg(unit).output();
    let Ok(verified) = verified else {
        return skip(Need::Programs, "systemd-analyze is not installed");
    };
    let text = String::from_utf8_lossy(&verified.stderr);
    assert!(verified.status.success() && text.is_empty(), "{}: {text}", unit.display());
}

#[test]
fn targets_that_cannot_be_built_are_named_with_the_reason() {
    let mut command = Command::new(project("scripts/release"));
    let said = script(command.arg("--check"));
    assert_eq!(said.code, Some(0), "{said:?}");
    for target in [
        "x86_64-unknown-linux-musl",
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-musl",
        "aarch64-unknown-linux-gnu",
    ] {
        let line = said.out.lines().find(|line| line.starts_with(target)).unwrap_or_default();
        let ways = ["can be built, with", "run `rustup target add", "there is no C compiler for it"];
        assert!(ways.iter().any(|way| line.contains(way)), "{target}: {}", said.out);
    }
}

#[test]
fn the_system_unit_starts_a_server_on_wss() {
    let home = Home::new();
    let credentials = home.path("credentials");
    let made = home.say(&["cert", "new", "server", "build.example", "--dir", credentials.to_str().unwrap()]);
    assert_eq!(made.code, Some(0), "{}", made.err);
    fs::rename(credentials.join("build.example.pem"), credentials.join("server.pem")).unwrap();
    fs::rename(credentials.join("build.example.key"), credentials.join("server.key")).unwrap();
    // What stays on the server is the digest, as the unit says.
    let token = home.say(&["token", "new", "--name", "ann"]);
    let digest = token.err.lines().find(|line| line.trim().starts_with("sha256:")).unwrap();
    fs::write(credentials.join("tokens"), format!("{}\n", digest.trim())).unwrap();
    fs::set_permissions(credentials.join("tokens"), fs::Permissions::from_mode(0o600)).unwrap();
    for directory in ["state/remex/state", "log/remex"] {
        fs::create_dir_all(home.path(directory)).unwrap();
    }
    fs::set_permissions(home.path("state/remex/state"), fs::Permissions::from_mode(0o700)).unwrap();

    let unit = fs::read_to_string(project("packaging/systemd/system/remex-server.service")).unwrap();
    let loaded: Vec<_> = unit.lines().filter_map(|line| line.strip_prefix("LoadCredential=")).collect();
    assert_eq!(loaded.len(), 3, "{loaded:?}");
    let line = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/local/bin/remex ")).unwrap();
    let arguments: Vec<_> = line
        .split(' ')
        .map(|word| {
            word.replace("%d", credentials.to_str().unwrap())
                .replace("%S", home.path("state").to_str().unwrap())
                .replace("%L", home.path("log").to_str().unwrap())
                .replace("0.0.0.0:7070", "127.0.0.1:0")
        })
        .collect();
    let arguments: Vec<_> = arguments.iter().map(String::as_str).collect();
    let mut command = home.remex(&arguments);
    command.stdin(Stdio::null());
    let server = Server::launch(command, 1);
    assert!(server.address().starts_with("wss://127.0.0.1:"), "{}", server.address());
    // A client with the token and the CA of the certificate.
    let token_file = home.path("token");
    fs::write(&token_file, token.out).unwrap();
    fs::set_permissions(&token_file, fs::Permissions::from_mode(0o600)).unwrap();
    let url = server.address().replace("127.0.0.1", "localhost");
    let pin = made
        .out
        .split_whitespace()
        .chain(made.err.split_whitespace())
        .find(|word| word.starts_with("sha256:"));
    let added = home.say(&[
        "env",
        "add",
        "box",
        &url,
        "--token-file",
        token_file.to_str().unwrap(),
        "--pin",
        pin.unwrap(),
    ]);
    assert_eq!(added.code, Some(0), "{}", added.err);
    let ran = home.say(&["run", "--on", "box", "--", "echo", "served"]);
    assert_eq!((ran.code, ran.out.as_str()), (Some(0), "served\n"), "{}", ran.err);
    let audited = fs::read_to_string(home.path("log/remex/audit.jsonl")).unwrap();
    assert!(audited.contains("ann"), "{audited}");
}
