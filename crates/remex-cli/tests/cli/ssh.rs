//! Environments that ssh leads to: what it asks, and what goes wrong on the way.

use std::{fs, os::unix::fs::PermissionsExt as _, process::Command};

use rustix::{
    process::{Pid, Signal, kill_process},
    termios::LocalModes,
};

use crate::{
    home::{Home, Said, said},
    screen::Screen,
    ssh_host::SshHost,
};

const PASSPHRASE: &str = "open-sesame";

/// Returns a command that runs on `far`.
fn run_on_far<'a>(argv: &[&'a str]) -> Vec<&'a str> {
    [&["run", "--on", "far", "--"], argv].concat()
}

/// Runs the program to its end, in a session that has no terminal.
fn say_without_terminal(home: &Home, args: &[&str]) -> Said {
    let mut command = Command::new("setsid");
    command.args(["--wait", env!("CARGO_BIN_EXE_remex")]).args(args);
    home.dress(&mut command);
    said(&command.stdin(std::process::Stdio::null()).output().unwrap())
}

fn echoes(screen: &Screen) -> bool {
    screen.settings().local_modes.contains(LocalModes::ECHO)
}

#[test]
fn an_unknown_host_is_confirmed_at_the_terminal() {
    let Some(far) = SshHost::start() else { return };
    far.forget_host();
    let mut screen = Screen::remex(
        &far.near,
        &["run", "--on", "far", "-t", "--", "sh", "-c", "echo ready; read x; echo got-$x"],
    );
    screen.wait_for("Are you sure you want to continue connecting");
    screen.keys("yes\r");
    screen.wait_for("ready");
    screen.keys("input\r");
    screen.wait_for("got-input");
    assert_eq!(screen.end(), Some(0));
    assert!(echoes(&screen));
    assert!(fs::read_to_string(far.near.path("known_hosts")).unwrap().contains("ssh-ed25519"));
}

#[test]
fn a_passphrase_is_prompted_for_and_not_echoed() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let mut screen = Screen::remex(&far.near, &run_on_far(&["echo", "arrived"]));
    screen.wait_for("Enter passphrase for key");
    assert!(!echoes(&screen));
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_for("arrived");
    assert_eq!(screen.end(), Some(0));
    assert!(echoes(&screen));
    assert!(!screen.raw().contains(PASSPHRASE));
}

#[test]
fn env_test_permits_ssh_prompts() {
    let Some(far) = SshHost::start() else { return };
    far.forget_host();
    let mut screen = Screen::remex(&far.near, &["env", "test", "far"]);
    screen.wait_for("Are you sure you want to continue connecting");
    screen.keys("yes\r");
    screen.wait_for("resume");
    assert_eq!(screen.end(), Some(0), "{}", screen.raw());
}

#[test]
fn concurrent_ssh_prompts_are_serialized() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let environments = fs::read_to_string(far.near.environments()).unwrap();
    let twin = environments.replace("id = \"far\"", "id = \"twin\"");
    fs::write(far.near.environments(), format!("{environments}{twin}")).unwrap();
    let mut screen = Screen::remex(&far.near, &["env", "test", "--json", "far", "twin"]);
    // Each of them connects and reconnects.
    for count in 1..=4 {
        screen.wait_until("a question", |screen| screen.matches("Enter passphrase for key").count() == count);
        screen.keys(&format!("{PASSPHRASE}\r"));
    }
    assert_eq!(screen.end(), Some(0), "{}", screen.raw());
    assert!(echoes(&screen) && !screen.raw().contains(PASSPHRASE));
}

#[test]
fn ctrl_c_at_an_ssh_prompt_ends_the_command() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    for args in [run_on_far(&["true"]), vec!["env", "test", "far"], vec!["ls", "far:"], vec!["watch", "far:"]]
    {
        let mut screen = Screen::remex(&far.near, &args);
        let before = screen.settings().local_modes;
        screen.wait_for("Enter passphrase for key");
        assert_eq!(screen.end_by("\u{3}"), Some(130), "{args:?}: {}", screen.raw());
        assert_eq!(screen.settings().local_modes, before, "{args:?}");
        assert!(!screen.raw().contains("remex:"), "{}", screen.raw());
    }
}

#[test]
fn a_signal_at_an_ssh_prompt_restores_the_terminal() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let mut screen = Screen::remex(&far.near, &run_on_far(&["true"]));
    let before = screen.settings().local_modes;
    screen.wait_for("Enter passphrase for key");
    kill_process(Pid::from_raw(screen.pid().cast_signed()).unwrap(), Signal::TERM).unwrap();
    assert_eq!(screen.end(), Some(143), "{}", screen.raw());
    assert_eq!(screen.settings().local_modes, before);
}

#[test]
fn an_ssh_prompt_can_be_suspended_with_ctrl_z() {
    let Some(far) = SshHost::start() else { return };
    far.set_passphrase(PASSPHRASE);
    let mut screen = Screen::open(&far.near, "bash", &["--norc", "--noediting", "-i"]);
    screen.keys("PS1='ready> '; remex run --on far -- echo arrived\r");
    screen.wait_for("Enter passphrase for key");
    screen.keys_until("\u{1a}", "Stopped");
    assert!(echoes(&screen));
    screen.keys("fg\r");
    screen.wait_until("the question once more", |screen| {
        screen.matches("Enter passphrase for key").count() == 2
    });
    assert!(!echoes(&screen));
    screen.keys(&format!("{PASSPHRASE}\r"));
    screen.wait_until("the output", |screen| screen.contains("\narrived\nready>"));
    screen.keys("exit\r");
    screen.end();
    assert!(!screen.raw().contains(PASSPHRASE));
}

#[test]
fn a_background_ssh_prompt_fails_with_a_hint() {
    let Some(far) = SshHost::start() else { return };
    far.forget_host();
    let script = "set -m; remex run --on far -- true & wait $!; echo code $?";
    let mut screen = Screen::open(&far.near, "sh", &["-c", script]);
    let shown = screen.wait_for("code 125").replace('\n', "");
    assert!(shown.contains("it prompts on the terminal, and this process is in the background"), "{shown}");
    assert!(shown.contains("hint: run `ssh far true` once at a terminal and answer"), "{shown}");
    assert!(!shown.contains("Are you sure"), "{shown}");
    screen.end();
}

#[test]
fn an_ssh_prompt_without_a_terminal_fails_with_a_hint() {
    let Some(far) = SshHost::start() else { return };
    far.forget_host();
    let said = say_without_terminal(&far.near, &run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("Host key verification failed"), "{said:?}");
    let hint = "hint: run `ssh far true` at a terminal; when that works without a prompt, try again";
    assert!(said.err.contains(hint), "{said:?}");
}

#[test]
fn a_rejected_key_and_a_changed_host_key_are_reported() {
    let Some(far) = SshHost::start() else { return };
    fs::write(far.home.path("authorized_keys"), "").unwrap();
    let said = far.near.say(&run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("Permission denied (publickey)"), "{said:?}");
    far.mistake_host();
    let said = far.near.say(&run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("REMOTE HOST IDENTIFICATION HAS CHANGED"), "{said:?}");
    assert!(said.err.contains("hint: run `ssh far true` at a terminal"), "{said:?}");
}

#[test]
fn an_unreachable_host_is_reported() {
    let Some(mut far) = SshHost::start() else { return };
    far.stop();
    let said = far.near.say(&run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("Connection refused"), "{said:?}");
}

#[test]
fn output_of_a_shell_startup_file_is_quoted_and_suspected() {
    let Some(far) = SshHost::start() else { return };
    fs::write(far.home.path(".startup"), "echo Welcome to far, friend\n").unwrap();
    // A busy machine logs in slowly.
    assert_eq!(far.near.say(&["env", "set", "far", "--connect-timeout", "60s"]).code, Some(0));
    let said = far.near.say(&run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    let quote = "it printed `Welcome to far, friend` instead of a JSON response\n  hint: make shell start-up files there";
    assert!(said.err.contains(quote) && said.err.contains("`.bashrc`"), "{said:?}");
    let said = far.near.say(&["env", "test", "far"]);
    assert_eq!(said.code, Some(4), "{said:?}");
    assert!(said.out.contains("`Welcome to far, friend`") && said.out.contains(".bashrc"), "{said:?}");
}

#[test]
fn a_missing_remex_is_reported_with_a_working_install_command() {
    let Some(far) = SshHost::start() else { return };
    far.uninstall();
    let said = far.near.say(&run_on_far(&["true"]));
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("(exit code 127)"), "{said:?}");
    assert!(said.err.contains("hint: install remex there with `remex env set far --install`"), "{said:?}");
    let said = far.near.say(&["env", "set", "far", "--install"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let said = far.near.say(&run_on_far(&["echo", "arrived"]));
    assert_eq!((said.code, said.out.as_str()), (Some(0), "arrived\n"), "{said:?}");
}

#[test]
fn env_add_from_an_ssh_address_installs_the_program_there() {
    let Some(far) = SshHost::start() else { return };
    far.uninstall();
    fs::write(far.home.path(".startup"), "echo Welcome\n").unwrap();
    let said = far.near.say(&["env", "add", "box", &far.url(), "--install"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let version = env!("CARGO_PKG_VERSION");
    assert!(said.err.contains(&format!("remex: installed remex {version} (")), "{said:?}");
    assert!(
        said.out.starts_with("added `box`: `ssh -p ") && said.out.ends_with(" .local/bin/remex proxy`\n"),
        "{said:?}"
    );
    let installed = far.home.path(".local/bin/remex");
    let ours = fs::read(env!("CARGO_BIN_EXE_remex")).unwrap();
    assert!(fs::read(&installed).unwrap() == ours);
    assert_eq!(fs::metadata(&installed).unwrap().permissions().mode() & 0o777, 0o755);
    fs::remove_file(far.home.path(".startup")).unwrap();
    let said = far.near.say(&["run", "--on", "box", "--", "echo", "arrived"]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "arrived\n"), "{said:?}");

    let before = fs::read_to_string(far.near.environments()).unwrap();
    let said = far.near.say(&["env", "set", "box", "--install"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("is already installed at `.local/bin/remex`"), "{said:?}");
    assert_eq!(fs::read_to_string(far.near.environments()).unwrap(), before);

    // The one that runs stays as it is, so the new one has to be another file.
    fs::rename(&installed, far.home.path(".local/bin/old")).unwrap();
    fs::write(&installed, "damaged").unwrap();
    let said = far.near.say(&["env", "set", "far", "--install"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    assert_eq!(said.out, "changed `far`: `ssh far .local/bin/remex proxy`\n");
    assert!(fs::read(&installed).unwrap() == ours);
    assert_eq!(fs::read_dir(installed.parent().unwrap()).unwrap().count(), 2, "something was left behind");
}

#[test]
fn an_outdated_running_server_is_reported_and_can_be_upgraded_remotely() {
    let Some(far) = SshHost::start() else { return };
    let installed = far.home.path(".local/bin/remex");
    assert_eq!(far.near.say(&["env", "set", "far", "--install"]).code, Some(0));
    let started = far.near.say(&["run", "--detach", "--name", "night", "--on", "far", "--", "sleep", "1000"]);
    assert_eq!(started.code, Some(0), "{started:?}");
    let server = far.home.own_server().unwrap().as_raw_nonzero();

    // The one that runs stays as it is, so the new one has to be another file.
    fs::rename(&installed, far.home.path(".local/bin/old")).unwrap();
    fs::write(&installed, "damaged").unwrap();
    let said = far.near.say(&["env", "set", "far", "--install"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let version = env!("CARGO_PKG_VERSION");
    let told = format!(
        "remex: the server on `far` (remex {version}, pid {server}) still runs the program from before; `remex upgrade \
         --on far` replaces it"
    );
    assert!(said.err.contains(&told), "{said:?}");

    let said = far.near.say(&["upgrade", "--on", "far"]);
    assert_eq!(said.code, Some(0), "{said:?}");
    let done =
        format!("far: your local remex server (pid {server}) now runs remex {version}; 1 process runs on\n");
    assert_eq!(said.out, done, "{said:?}");
    assert_eq!(far.near.say(&["ps", "-q", "--on", "far"]).out, "night\n");
    let refused = far.near.say(&["upgrade", "--on", "ws://127.0.0.1:1"]);
    assert_eq!(refused.code, Some(2), "{refused:?}");

    let stopped = far.near.say(&["server", "stop", "--on", "far", "--all"]);
    assert_eq!(stopped.code, Some(0), "{stopped:?}");
    assert!(stopped.out.contains("far: ended `night`"), "{stopped:?}");
}

#[test]
fn a_host_of_another_platform_is_left_alone() {
    let Some(far) = SshHost::start() else { return };
    far.home.program("uname", "#!/bin/sh\necho Linux riscv64\n");
    let before = fs::read_to_string(far.near.environments()).unwrap();
    let said = far.near.say(&["env", "add", "box", &far.url(), "--install"]);
    assert_eq!(said.code, Some(1), "{said:?}");
    assert!(said.err.contains("cannot install remex: this program is for Linux "), "{said:?}");
    assert!(
        said.err.contains(
            "but the host is Linux riscv64; `box` was not added\n  hint: build remex for that host"
        ),
        "{said:?}"
    );
    assert!(!far.home.path(".local").exists());
    assert_eq!(fs::read_to_string(far.near.environments()).unwrap(), before);
}

#[test]
fn a_slow_login_suggests_connection_sharing_and_that_works() {
    let Some(far) = SshHost::start() else { return };
    fs::write(far.home.path(".startup"), "sleep 2\n").unwrap();
    let said = far.near.say(&run_on_far(&["echo", "arrived"]));
    assert_eq!((said.out.as_str(), said.err.as_str()), ("arrived\n", ""), "no terminal, no advice");
    let mut screen = Screen::remex(&far.near, &run_on_far(&["echo", "arrived"]));
    screen.wait_for("arrived");
    assert_eq!(screen.end(), Some(0));
    let raw = screen.raw();
    assert!(raw.contains("remex: connecting took ") && raw.contains("`ControlMaster auto`"), "{raw}");

    let before = far.logins();
    let socket = far.near.path("%C");
    far.configure_ssh(&format!("ControlMaster auto\nControlPersist 10m\nControlPath {}", socket.display()));
    for _ in 0..2 {
        let mut screen = Screen::remex(&far.near, &run_on_far(&["echo", "arrived"]));
        screen.wait_for("arrived");
        assert_eq!(screen.end(), Some(0));
        assert!(!screen.raw().contains("ControlMaster"), "{}", screen.raw());
    }
    assert_eq!(far.logins(), before + 1);
}
