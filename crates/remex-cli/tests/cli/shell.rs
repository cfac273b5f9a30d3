//! `remex shell` without a terminal, and which shell it opens.

use std::{
    fs,
    io::Write as _,
    process::{Child, Stdio},
};

use crate::{
    home::{Home, Said, said},
    support::{InTime as _, Server},
};

fn fed(mut child: Child, input: &str) -> Said {
    child.stdin.take().unwrap().write_all(input.as_bytes()).unwrap();
    said(&child.finished())
}

#[test]
fn a_shell_without_a_terminal_runs_commands_from_stdin() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let ended = home.say(&[&["shell"], place].concat());
        assert_eq!((ended.code, ended.out.as_str()), (Some(0), ""), "{ended:?}");
        let ended = home.say_with(&[&["shell"], place].concat(), b"test -t 0 || echo none\nexit 3\n");
        assert_eq!((ended.code, ended.out.as_str()), (Some(3), "none\n"), "{ended:?}");
        let left = home.say(&[&["ps", "--quiet"], place].concat());
        assert_eq!((left.code, left.out.as_str()), (Some(0), ""), "{left:?}");
    }
}

#[test]
fn without_the_shell_variable_the_login_shell_is_used() {
    let home = Home::new();
    let users = fs::read_to_string("/etc/passwd").unwrap();
    let uid = rustix::process::getuid().as_raw().to_string();
    let own = users.lines().map(|line| line.split(':').collect::<Vec<_>>()).find(|fields| fields[2] == uid);
    let login = fs::canonicalize(own.unwrap()[6]).unwrap();
    let mut command = home.remex(&["shell"]);
    command.env_remove("SHELL").stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let opened = fed(command.spawn().unwrap(), "readlink /proc/$$/exe\n");
    assert_eq!((opened.code, opened.out.trim_end()), (Some(0), login.to_str().unwrap()), "{opened:?}");
}
