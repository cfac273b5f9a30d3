//! The user's local server and programs with another runtime directory, such as those that cron or `su` starts.

use std::{
    fs::{self, DirBuilder},
    os::unix::{fs::DirBuilderExt as _, fs::chown},
    path::PathBuf,
};

use serde_json::Value;

use crate::{
    home::{Home, Said, said},
    support::{InTime as _, Need, has},
};

/// Runs a command as a program that was started without the runtime directory of the user's login.
fn as_cron(home: &Home, args: &[&str]) -> Said {
    said(&home.remex(args).env_remove("XDG_RUNTIME_DIR").finished())
}

fn status(said: &Said) -> Value {
    serde_json::from_str(&said.out).unwrap_or_else(|error| panic!("{error}: {said:?}"))
}

#[test]
fn the_server_is_found_without_the_login_runtime_directory() {
    let home = Home::new();
    assert_eq!(home.say(&["run", "--detach", "--name", "night", "--", "sleep", "1000"]).code, Some(0));
    let listed = as_cron(&home, &["ps", "-q"]);
    assert_eq!((listed.code, listed.out.as_str()), (Some(0), "night\n"), "{listed:?}");
    let (here, there) = (
        status(&home.say(&["server", "status", "--json"])),
        status(&as_cron(&home, &["server", "status", "--json"])),
    );
    assert_eq!(here, there, "it is the same server");
    // A second process does not start a second server.
    assert_eq!(as_cron(&home, &["run", "--detach", "--name", "day", "--", "sleep", "1000"]).code, Some(0));
    let listed = home.say(&["ps", "-q"]);
    assert!(listed.out.contains("night\n") && listed.out.contains("day\n"), "{listed:?}");
    assert_eq!(home.own_states().iter().filter(|path| path.is_dir()).count(), 1);
    assert_eq!(as_cron(&home, &["server", "stop", "--all"]).code, Some(0));
    assert_eq!(status(&home.say(&["server", "status", "--json"]))["state"], "stopped");
}

#[test]
fn a_killed_server_of_another_runtime_directory_is_found() {
    let home = Home::new();
    let other = home.path("runtime");
    DirBuilder::new().mode(0o700).create(&other).unwrap();
    let elsewhere = |args: &[&str]| said(&home.remex(args).env("XDG_RUNTIME_DIR", &other).finished());
    assert_eq!(elsewhere(&["run", "--detach", "--name", "work", "--", "sleep", "1000"]).code, Some(0));
    let running = home.say(&["ps", "-q"]);
    assert_eq!(running.out, "work\n", "{running:?}");
    let pid = status(&home.say(&["server", "status", "--json"]))["pid"].as_i64().unwrap();
    let server = crate::support::Watched::printed(&pid.to_string());
    server.signal(rustix::process::Signal::KILL);
    server.assert_ends();
    // What it has left is continued by a server of this runtime directory, where the other one finds it.
    let continued = home.say(&["ps", "-q"]);
    assert_eq!((continued.code, continued.out.as_str()), (Some(0), "work\n"), "{continued:?}");
    let socket: PathBuf = home.own_socket();
    assert_eq!(elsewhere(&["ps", "-q"]).out, "work\n");
    assert!(socket.exists());
    assert_eq!(elsewhere(&["server", "stop", "--all"]).code, Some(0));
}

#[test]
fn a_runtime_directory_of_another_user_is_reported_with_a_hint() {
    if !has(Need::Root, rustix::process::geteuid().is_root()) {
        return;
    }
    let home = Home::new();
    let foreign = home.path("runtime");
    DirBuilder::new().mode(0o700).create(&foreign).unwrap();
    chown(&foreign, Some(54_321), Some(54_321)).unwrap();
    let su = |args: &[&str]| said(&home.remex(args).env("XDG_RUNTIME_DIR", &foreign).finished());
    for args in [&["ps"][..], &["server", "status"], &["run", "--detach", "--", "true"]] {
        let refused = su(args);
        assert_ne!(refused.code, Some(0), "{refused:?}");
        let why = format!("XDG_RUNTIME_DIR is `{}`, which belongs to user 54321", foreign.display());
        assert!(refused.err.contains(&why), "{refused:?}");
        assert!(refused.err.contains("hint: `unset XDG_RUNTIME_DIR`"), "{refused:?}");
    }
    assert_eq!(fs::read_dir(&foreign).unwrap().count(), 0, "nothing was put there");
}
