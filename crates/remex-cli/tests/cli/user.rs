//! `--user`: commands as another user of the host. Without root there are none, and the tests return at once.

use serde_json::Value;

use crate::{
    background_processes::out,
    home::Home,
    support::{Need, Server, has, program},
};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

#[test]
fn a_command_runs_as_the_user_locally_and_remotely() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let home = Home::new();
    let server = Server::start();
    home.add_environment("build", server.address());
    for place in [&["--cwd", "/"][..], &["--on", "build", "--cwd", "/"], &["--on", "build"]] {
        let run =
            |command: &[&str]| home.say(&[&["run", "--user", "daemon"], place, &["--"], command].concat());
        assert_eq!(
            out(run(&["sh", "-c", "id -un; echo $HOME $USER"])),
            "daemon\n/usr/sbin daemon\n",
            "{place:?}"
        );
    }
    // Its home, and not the directory of the server.
    assert_eq!(out(home.say(&["run", "--on", "build", "--user", "daemon", "--", "pwd"])), "/usr/sbin\n");
    let missing = home.say(&["run", "--on", "build", "--user", "no-such-user", "--", "id"]);
    assert_eq!(missing.code, Some(125), "{missing:?}");
    assert!(missing.err.contains("there is no user `no-such-user` on this host"), "{missing:?}");
}

#[test]
fn variables_of_the_caller_are_not_passed_to_another_user() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let home = Home::new();
    let run = |more: &[&str]| {
        let args =
            [&["run", "--cwd", "/", "--user", "daemon"], more, &["--", "sh", "-c", "echo ${API_TOKEN-none}"]];
        let mut command = home.remex(&args.concat());
        let output = crate::support::InTime::finished(command.env("API_TOKEN", "s3cret"));
        String::from_utf8(output.stdout).unwrap()
    };
    assert_eq!(run(&[]), "none\n");
    assert_eq!(run(&["--env", "API_TOKEN=given"]), "given\n");
}

#[test]
fn a_background_process_is_listed_with_its_user_and_restarted_as_that_user() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let home = Home::new();
    let run = [
        "run",
        "-d",
        "--name",
        "web",
        "--cwd",
        "/",
        "--user",
        "daemon",
        "--",
        "sh",
        "-c",
        "id -un; exec sleep 1000",
    ];
    assert_eq!(home.say(&run).code, Some(0));
    for _ in 0..2 {
        let inspected = out(home.say(&["inspect", "web"]));
        assert!(inspected.lines().any(|line| line == "user        daemon"), "{inspected}");
        let listed: Value = serde_json::from_str(&out(home.say(&["ps", "--all", "--json"]))).unwrap();
        assert_eq!(listed["processes"][0]["user"], "daemon", "{listed}");
        let pid = listed["processes"][0]["pid"].as_u64().unwrap();
        let owner = std::os::unix::fs::MetadataExt::uid(&std::fs::metadata(format!("/proc/{pid}")).unwrap());
        assert_eq!(owner, 1);
        assert_eq!(out(home.say(&["restart", "web"])), "web\n");
    }
    assert_eq!(home.say(&["kill", "--tree", "web"]).code, Some(0));
}

#[test]
fn a_shell_is_the_accounts_own_in_its_home_directory() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let home = Home::new();
    let server = Server::start();
    home.add_environment("build", server.address());
    for place in [&[][..], &["--on", "build"]] {
        let said = home
            .say_with(&[&["shell", "--user", "root"], place].concat(), b"id -un; pwd; echo $HOME; exit 3\n");
        assert_eq!((said.code, &*said.out), (Some(3), "root\n/root\n/root\n"), "{said:?}");
        let closed = home.say_with(&[&["shell", "--user", "daemon"], place].concat(), b"");
        assert!(closed.code == Some(1) && closed.out.contains("not available"), "{closed:?}");
    }
}

#[test]
fn a_supervisor_that_the_user_may_not_execute_is_named() {
    if !has(Need::Root, is_root()) {
        return;
    }
    let home = Home::new();
    let run = [
        "run",
        "--cwd",
        "/",
        "--user",
        "daemon",
        "--restart",
        "on-failure:1",
        "--",
        "sh",
        "-c",
        "id -un; exit 3",
    ];
    let said = home.say(&run);
    let program = std::path::PathBuf::from(program(&[]).get_program());
    let is_open = |path: &std::path::Path| {
        std::os::unix::fs::PermissionsExt::mode(&std::fs::metadata(path).unwrap().permissions()) & 0o001 != 0
    };
    if program.ancestors().all(is_open) {
        assert_eq!((said.code, said.out.lines().count()), (Some(3), 2), "{said:?}");
        assert!(said.out.lines().all(|line| line == "daemon"), "{said:?}");
    } else {
        assert_eq!(said.code, Some(126), "{said:?}");
        assert!(said.err.contains("uid 1") && said.err.contains(program.to_str().unwrap()), "{said:?}");
    }
}
