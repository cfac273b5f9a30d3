//! `remex doctor`: what is wrong, why, and what to do.

use std::{
    fs,
    os::unix::fs::PermissionsExt as _,
    process::{Command, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{
    home::{Home, said},
    support::{InTime as _, Server},
};

#[test]
fn doctor_can_check_this_host_despite_the_variable() {
    let home = Home::new();
    let looked = |flags: &[&str]| {
        let mut command = home.remex(&["doctor"]);
        command.args(flags).env("REMEX_ON", "nowhere");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        said(&command.spawn().unwrap().finished())
    };
    assert_eq!(looked(&[]).code, Some(3));
    let here = looked(&["--here"]);
    assert!(here.out.contains("runtime directory"), "{here:?}");
    assert_eq!(here.code, Some(0), "{here:?}");
}

#[test]
fn a_healthy_host_has_no_problems() {
    let home = Home::new();
    let said = home.say(&["doctor"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    for name in [
        "version",
        "kernel",
        "open files",
        "processes",
        "memory",
        "temporary files",
        "sandbox",
        "cgroups",
        "process limits",
        "inotify watches",
        "terminals",
        "loopback ports",
        "runtime directory",
        "local server",
        "durable processes",
        "environments",
        "local clock",
    ] {
        assert!(said.out.contains(&format!("  {name} ")), "nothing about {name}: {said:?}");
    }
    assert!(!said.out.contains("problem  "), "{said:?}");
    let listing: Value = serde_json::from_str(&home.say(&["doctor", "--json"]).out).unwrap();
    assert_eq!((&listing["version"], &listing["ok"]), (&1.into(), &true.into()));
    assert_eq!(listing["checks"][0]["name"], "version");
}

#[test]
fn problems_are_reported_with_hints() {
    let home = Home::new();
    let runtime = home.own_socket().parent().unwrap().to_owned();
    fs::create_dir(&runtime).unwrap();
    fs::set_permissions(&runtime, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(home.environments(), "default = 'nobody'\n").unwrap();
    fs::set_permissions(home.environments(), fs::Permissions::from_mode(0o600)).unwrap();
    let said = home.say(&["doctor"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.out.contains("problem  runtime directory") && said.out.contains("mode 777"), "{said:?}");
    assert!(said.out.contains("`chmod 700`"), "{said:?}");
    assert!(
        said.out.contains("environments.toml:1: the default environment `nobody` is not defined"),
        "{said:?}"
    );
}

#[test]
fn scarce_resources_are_warnings_and_not_problems() {
    let home = Home::new();
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 256; exec prlimit --locks=1000:1000 remex doctor"]);
    home.dress(&mut command);
    let said = said(&command.finished());
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains("warning  open files") && said.out.contains("ulimit -n"), "{said:?}");
    assert!(said.out.contains("warning  process tags") && said.out.contains("LimitLOCKS="), "{said:?}");
    assert!(said.out.ends_with("problems: 0, warnings: 2\n"), "{said:?}");
}

#[test]
fn doctor_finds_the_local_server_where_it_runs() {
    let home = Home::new();
    fs::create_dir(home.own_socket().parent().unwrap()).unwrap();
    fs::set_permissions(home.own_socket().parent().unwrap(), fs::Permissions::from_mode(0o700)).unwrap();
    let address = format!("unix://{}", home.own_socket().display());
    let _server = Server::serve(&["--listen", &address]);
    let said = home.say(&["doctor"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.out.contains(&format!("running at {address}")), "{said:?}");
    for name in ["handshake", "round trip", "clock offset", "resume"] {
        assert!(said.out.contains(&format!("  ok       {name} ")), "{name}: {said:?}");
    }
}

#[test]
fn doctor_checks_a_server_together_with_its_host() {
    let (home, server) = (Home::new(), Server::start());
    home.add_environment("dev", server.address());
    let said = home.say(&["doctor", "--on", "dev"]);
    assert_eq!((said.code, said.err.as_str()), (Some(0), ""), "{said:?}");
    for name in ["round trip", "resume", "kernel", "open files", "memory", "temporary files"] {
        assert!(said.out.contains(&format!("  ok       {name} ")), "{name}: {said:?}");
    }
    let said = home.say(&["doctor", "--on", "ws://127.0.0.1:1"]);
    assert!(said.code == Some(1) && said.out.contains("problem  reachable"), "{said:?}");
    assert_eq!(home.say(&["doctor", "--on", "nobody"]).code, Some(3));
}

#[test]
fn doctor_shows_the_state_of_the_local_server_and_whether_its_keeper_responds() {
    let home = Home::new();
    let started = home.say(&["run", "--detach", "--", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let state = &home.own_states()[0];
    let keeper = fs::read_to_string(state.join("keeper.lock")).unwrap();
    let keeper = Pid::from_raw(keeper.trim().parse().unwrap()).unwrap();
    let pid = keeper.as_raw_nonzero();
    let looked = home.say(&["doctor"]);
    assert_eq!(looked.code, Some(0), "{looked:?}");
    assert!(looked.out.contains("  1 running, ") && looked.out.contains(" of 64GiB (0 %)"), "{looked:?}");
    assert!(looked.out.contains(&format!("used in `{}`", state.display())), "{looked:?}");
    assert!(looked.out.contains(&format!("responds (pid {pid}, remex ")), "{looked:?}");
    let listed = home.say(&["ps"]).out;
    assert!(listed.contains(" DURABLE ") && listed.contains(" yes "), "{listed}");

    kill_process(keeper, Signal::STOP).unwrap();
    let looked = home.say(&["doctor", "--timeout", "4s"]);
    assert_eq!(looked.code, Some(1), "{looked:?}");
    assert!(looked.out.contains(&format!("it does not respond (pid {pid})")), "{looked:?}");
    assert!(looked.out.contains(&format!("`kill -CONT {pid}`")), "{looked:?}");
    kill_process(keeper, Signal::CONT).unwrap();
}

#[test]
fn durable_processes_are_counted_without_those_of_doctor_itself() {
    let home = Home::new();
    assert_eq!(home.say(&["run", "--detach", "--name", "one", "--", "sleep", "1000"]).code, Some(0));
    for _ in 0..2 {
        let looked = home.say(&["doctor"]);
        assert!(looked.out.contains("1 running, 0 ended"), "{looked:?}");
    }
    let socket = format!("unix://{}", home.own_socket().display());
    let looked = home.say(&["doctor", "--on", &socket]);
    assert!(looked.out.contains("1 running, 0 ended"), "{looked:?}");
}
