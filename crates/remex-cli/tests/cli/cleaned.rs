//! The runtime directory is deleted by a cleanup while the local server runs.

use std::{fs, process::Command};

use crate::home::{Home, Said};

/// Runs a command that must succeed, and returns what it printed.
fn done(home: &Home, args: &[&str]) -> String {
    let Said { code, out, err } = home.say(args);
    assert_eq!(code, Some(0), "{args:?}: {out}{err}");
    out
}

fn delete_runtime_directory(home: &Home) {
    fs::remove_dir_all(home.own_socket().parent().unwrap()).unwrap();
}

#[test]
fn a_local_server_whose_runtime_directory_was_deleted_is_found_again() {
    let home = Home::new();
    done(&home, &["run", "--detach", "--name", "first", "--", "sleep", "1000"]);
    let server = home.own_server().expect("it was started");
    let listed = |name: &str| {
        delete_runtime_directory(&home);
        let listed = done(&home, &["ps"]);
        assert!(listed.contains(name), "{listed}");
        assert_eq!(home.own_server(), Some(server), "it is the same server");
    };
    listed("first");
    delete_runtime_directory(&home);
    done(&home, &["run", "--detach", "--name", "second", "--", "sleep", "1000"]);
    listed("second");
    delete_runtime_directory(&home);
    let upgraded = done(&home, &["upgrade"]);
    assert!(upgraded.contains("2 processes run on"), "{upgraded}");
    listed("first");
    delete_runtime_directory(&home);
    done(&home, &["server", "stop", "--force"]);
    assert_eq!(home.own_server(), None);
    let left = Command::new("ls").arg(home.own_socket()).output().unwrap();
    assert!(!left.status.success(), "the new socket is removed as well");
}
