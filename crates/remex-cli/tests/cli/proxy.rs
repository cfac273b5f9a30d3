//! `remex proxy`: an environment's program that can be cut without losing anything.

use std::{
    fs,
    io::{BufRead as _, BufReader, Read as _},
    os::unix::fs::PermissionsExt as _,
    process::Stdio,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    home::Home,
    support::{InTime as _, Patient},
};

/// Makes an environment `far` whose program notes its own id, as an ssh that can be killed.
fn far(home: &Home) {
    let program = home.path("far");
    fs::write(&program, "#!/bin/sh\necho $$ >> connections\nexec remex proxy\n").unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    let text = format!("[[environments]]\nid = \"far\"\nprogram = \"{}\"\n", program.display());
    fs::write(home.environments(), text).unwrap();
}

fn connections(home: &Home) -> Vec<Pid> {
    let text = fs::read_to_string(home.path("connections")).unwrap_or_default();
    text.lines().map(|line| Pid::from_raw(line.parse().unwrap()).unwrap()).collect()
}

#[test]
fn killing_the_proxy_loses_nothing() {
    let home = Home::new();
    far(&home);
    let script = "seq 1 200000; read x; seq 200001 400000; read x; seq 400001 500000";
    let mut child = home
        .remex(&["run", "--on", "far", "--", "sh", "-c", script])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    let mut all = String::new();
    for last in ["100000\n", "300000\n"] {
        while !all.ends_with(&format!("\n{last}")) {
            assert!(out.read_line(&mut all).unwrap() > 0);
        }
        let connection = *connections(&home).last().unwrap();
        kill_process(connection, Signal::KILL).unwrap();
        std::io::Write::write_all(&mut stdin, b"\n").unwrap();
    }
    out.read_to_string(&mut all).unwrap();
    assert_eq!(child.ended().code(), Some(0));
    let expected: String = (1..=500_000).map(|number| format!("{number}\n")).collect();
    assert!(all == expected, "{} instead of {} bytes", all.len(), expected.len());
    assert_eq!(connections(&home).len(), 3);
}

#[test]
fn a_background_process_started_through_a_proxy_is_on_the_local_server() {
    let home = Home::new();
    far(&home);
    let said = home.say(&[
        "run",
        "--on",
        "far",
        "--detach",
        "--name",
        "build",
        "--",
        "sh",
        "-c",
        "echo hi; sleep 1000",
    ]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "build\n"), "{said:?}");
    for place in [&[][..], &["--on", "far"]] {
        let listed = home.say(&[&["ps"], place].concat());
        assert!(listed.out.contains("build"), "{listed:?}");
    }
}
