//! A command that is to end: it gets the signal, has time to clean up, and all it says is shown.

use std::{
    fs,
    io::{BufReader, Read as _},
    process::{Child, Stdio},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{
    home::{Home, said},
    support::{InTime as _, Patient, Server, Watched},
};

/// Says in two lines that it cleans up, and takes a moment in between.
const TIDY: &str = "trap 'echo cleaning; sleep 0.3; echo cleaned; exit 5' TERM HUP; echo ready; while :; do sleep 0.05; done";

/// Ends for no signal but SIGKILL.
const STUBBORN: &str = "trap '' TERM HUP INT; echo $$; while :; do sleep 0.05; done";

fn start(home: &Home, args: &[&str]) -> Child {
    home.remex(args).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

fn signal(child: &Child, signal: Signal) {
    kill_process(Pid::from_child(child), signal).unwrap();
}

/// Returns the next line of a child's output.
fn line(from: &mut impl std::io::BufRead) -> String {
    let mut line = String::new();
    from.read_line(&mut line).unwrap();
    line.trim_end().to_owned()
}

#[test]
fn a_command_may_clean_up_when_remex_is_terminated_and_its_output_is_shown() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        for sent in [Signal::TERM, Signal::HUP] {
            let mut child = start(&home, &[&["run"], place, &["--", "sh", "-c", TIDY]].concat());
            let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
            assert_eq!(line(&mut out), "ready");
            signal(&child, sent);
            let mut rest = String::new();
            out.read_to_string(&mut rest).unwrap();
            assert_eq!((rest.as_str(), child.ended().code()), ("cleaning\ncleaned\n", Some(5)), "{place:?}");
        }
    }
}

#[test]
fn the_program_timeout_lets_a_command_clean_up() {
    let home = Home::new();
    let mut command = std::process::Command::new("timeout");
    command.args(["1", "remex", "run", "--", "sh", "-c", TIDY]);
    home.dress(&mut command);
    let said = said(&command.finished());
    assert_eq!((said.code, said.out.as_str()), (Some(124), "ready\ncleaning\ncleaned\n"), "{said:?}");
}

#[test]
fn a_command_may_clean_up_after_its_timeout() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let said = home.say(&[&["run"], place, &["--timeout", "500ms", "--", "sh", "-c", TIDY]].concat());
        assert_eq!((said.code, said.out.as_str()), (Some(124), "ready\ncleaning\ncleaned\n"), "{said:?}");
        // The shell may say that what it waited for was terminated.
        assert!(said.err.ends_with("remex: ended `sh` after 500ms (`--timeout`)\n"), "{said:?}");
    }
    // Without a client, too.
    let args = ["run", "--detach", "--name", "tidy", "--timeout", "500ms", "--", "sh", "-c", TIDY];
    assert_eq!(home.say(&args).code, Some(0));
    assert_eq!(home.say(&["wait", "tidy"]).code, Some(124));
    assert_eq!(home.say(&["logs", "tidy"]).out, "ready\ncleaning\ncleaned\n");
}

#[test]
fn a_command_that_does_not_end_is_killed_after_the_grace_period() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let args = [&["run"], place, &["--grace", "300ms", "--", "sh", "-c", STUBBORN]].concat();
        for sent in [Signal::TERM, Signal::HUP] {
            let mut child = start(&home, &args);
            let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
            let command = Watched::printed(&line(&mut out));
            signal(&child, sent);
            let said = said(&child.finished());
            assert_eq!(said.code, Some(137), "{said:?}");
            assert!(said.err.contains("did not end within 0.3 s of SIG"), "{said:?}");
            command.assert_ends();
        }
    }
    let said = home.say(&["run", "--timeout", "200ms", "--grace", "200ms", "--", "sh", "-c", STUBBORN]);
    assert_eq!(said.code, Some(124), "{said:?}");
}

#[test]
fn ctrl_c_cuts_the_grace_period_short() {
    let home = Home::new();
    let mut child = start(&home, &["run", "--grace", "1h", "--", "sh", "-c", STUBBORN]);
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    let command = Watched::printed(&line(&mut out));
    signal(&child, Signal::TERM);
    let mut err = BufReader::new(Patient::new(child.stderr.take().unwrap()));
    let told = "remex: passed SIGTERM on; the command has 1 h to end, Ctrl-C ends it at once";
    assert_eq!(line(&mut err), told);
    signal(&child, Signal::INT);
    assert_eq!(child.ended().code(), Some(137));
    command.assert_ends();
}

#[test]
fn without_a_grace_period_remex_and_the_command_exit_at_once() {
    let home = Home::new();
    let mut child = start(&home, &["run", "--grace", "0", "--", "sh", "-c", STUBBORN]);
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    let command = Watched::printed(&line(&mut out));
    signal(&child, Signal::TERM);
    assert_eq!(child.ended().code(), Some(143));
    command.assert_ends();
}

#[test]
fn descendants_may_clean_up_after_the_command_exits() {
    let home = Home::new();
    let server = Server::start();
    // The second one writes elsewhere, so that nothing holds the output open.
    for script in [
        format!("({TIDY}) & wait"),
        "(trap 'sleep 0.3; echo cleaned > file; exit' TERM; echo ready; exec > /dev/null 2>&1; \
         while :; do sleep 0.05; done) & wait"
            .to_owned(),
    ] {
        for place in [&[][..], &["--on", server.address()]] {
            let script = script.replace("file", home.path("file").to_str().unwrap());
            let mut child = start(&home, &[&["run"], place, &["--", "sh", "-c", &script]].concat());
            let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
            assert_eq!(line(&mut out), "ready");
            signal(&child, Signal::TERM);
            let mut rest = String::new();
            out.read_to_string(&mut rest).unwrap();
            assert_eq!(child.ended().code(), Some(143), "{script}");
            if script.contains("file") {
                rest = fs::read_to_string(home.path("file")).unwrap_or_default();
                let _ = fs::remove_file(home.path("file"));
            }
            assert!(rest.ends_with("cleaned\n"), "{script}: {rest}");
        }
    }
}
