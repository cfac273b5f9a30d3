//! `remex run`: here, elsewhere, across cuts.

use std::{
    fs,
    io::{BufReader, Read as _, Write as _},
    net::TcpListener,
    process::{Child, Stdio},
    thread,
    time::Instant,
};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process, waitid};

use crate::{
    home::{Home, Said, said},
    support::{DisconnectingProxy, InTime as _, PATIENCE, Patient, Server, Watched},
};

/// Starts the program with pipes.
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
fn output_and_exit_code_are_like_those_of_a_local_command() {
    let home = Home::new();
    let server = Server::start();
    home.add_environment("build", server.address());
    for place in [&[][..], &["--on", "build"], &["--on", server.address()]] {
        let run = |command: &[&str]| home.say(&[&["run"], place, &["--"], command].concat());
        let said = run(&["sh", "-c", "echo out; echo err >&2; exit 3"]);
        assert_eq!(said, Said { code: Some(3), out: "out\n".to_owned(), err: "err\n".to_owned() });
        assert_eq!(run(&["sh", "-c", "kill -9 $$"]).code, Some(137));
        assert_eq!(run(&["sh", "-c", "kill -TERM $$"]).code, Some(143));
        assert_eq!(run(&["no-such-program"]).code, Some(127));
        assert_eq!(run(&["/etc/passwd"]).code, Some(126));
    }
}

#[test]
fn hosts_refused_by_the_sandbox_are_listed_at_the_end() {
    let home = Home::new();
    let web = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = web.local_addr().unwrap().to_string();
    let answering = thread::spawn(move || {
        let (mut stream, _) = web.accept().unwrap();
        let mut heard = Vec::new();
        while !heard.ends_with(b"\r\n\r\n") {
            let mut byte = [0];
            stream.read_exact(&mut byte).unwrap();
            heard.push(byte[0]);
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\nreached").unwrap();
    });
    let script = format!(
        "ask() {{ exec 3<>/dev/tcp/127.0.0.1/28282; printf \"GET http://$1/ HTTP/1.1\\r\\n\\r\\n\" >&3; cat <&3; }}; \
         ask {address}; ask other.example; ask other.example >/dev/null; exit 4"
    );
    let allowed = format!("allow=*.example.org,{address}");
    let args = [
        "run",
        "--sandbox",
        "read-only",
        "--net",
        &allowed,
        "--net",
        "allow=a.org",
        "--",
        "bash",
        "-c",
        &script,
    ];
    let said = home.say(&args);
    answering.join().unwrap();
    assert!(said.out.contains("reached") && said.out.contains("403 Forbidden"), "{said:?}");
    let notices = "remex: the sandbox refused other.example:80 (2 times)\n\
                   remex: hint: `--net allow=other.example:80` allows it; private and local addresses need an entry of their own\n";
    assert_eq!((said.code, &*said.err), (Some(4), notices));

    let said = home.say(&["run", "--net", "allow=a.org", "--net", "on", "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(said.err.contains("the flags `--net` contradict each other"), "{said:?}");
    let said = home.say(&["run", "--net", "allow=a.org,0x7f000001", "--", "true"]);
    assert_ne!(said.code, Some(0), "{said:?}");
    assert!(said.err.contains("`0x7f000001` is not a host"), "{said:?}");
    for wrong in ["some", "allow=", "allow=a.org,,b.org"] {
        let said = home.say(&["run", "--net", wrong, "--", "true"]);
        assert_eq!(said.code, Some(2), "{said:?}");
    }
}

#[test]
fn sandbox_refusals_are_printed_on_separate_lines_after_all_output() {
    let home = Home::new();
    let ask = "exec 3<>/dev/tcp/127.0.0.1/28282; printf 'GET http://other.example/ HTTP/1.1\\r\\n\\r\\n' >&3; cat <&3 >/dev/null";
    let script = format!("{ask}; seq 100000 >&2; printf 'no end' >&2; exit 4");
    let said = home.say(&["run", "--net", "allow=a.org", "--", "bash", "-c", &script]);
    assert_eq!(said.code, Some(4), "{said:?}");
    let (output, notices) = said.err.split_once("no end\n").unwrap();
    assert!(output.ends_with("\n99999\n100000\n") && !output.contains("remex: "), "{notices}");
    assert!(notices.starts_with("remex: the sandbox refused other.example:80\nremex: hint: "), "{notices}");
}

#[test]
fn flags_after_the_command_belong_to_it_without_a_double_dash() {
    assert_eq!(Home::new().say(&["run", "sh", "-c", "echo $0 $1", "--on", "-t"]).out, "--on -t\n");
}

#[test]
fn a_mistyped_option_is_refused_instead_of_run() {
    let home = Home::new();
    let refused = |args: &[&str], what: &str, todo: &str| {
        let said = home.say(args);
        assert_eq!(
            (said.code, said.err),
            (Some(2), format!("remex: {what}\n  hint: see `{todo}\n")),
            "{args:?}"
        );
    };
    let run = "remex run --help`";
    refused(
        &["run", "--detatch", "--", "true"],
        "unexpected option `--detatch`; did you mean `--detach`?",
        run,
    );
    refused(&["run", "--detatch", "true"], "unexpected option `--detatch`; did you mean `--detach`?", run);
    let after =
        "remex run --help`; options of the command itself go after it: `remex run -- COMMAND --OPTION`";
    refused(&["run", "-x", "true"], "unexpected option `-x`", after);
    refused(
        &["shell", "--nmae", "work"],
        "unexpected option `--nmae`; did you mean `--name`?",
        "remex shell --help`",
    );
    refused(
        &["env", "add", "far", "--defualt", "--", "true"],
        "unexpected option `--defualt`; did you mean `--default`?",
        "remex env add --help`",
    );
}

#[test]
fn a_command_that_exceeded_its_cpu_time_is_reported() {
    let said = Home::new().say(&["run", "--limit", "cpu=1s", "--", "sh", "-c", "while :; do :; done"]);
    assert_eq!(said.code, Some(152));
    assert_eq!(said.err, "remex: ended `sh`: it used its CPU time (`--limit cpu`)\n");
    let said = Home::new().say(&["run", "--", "sh", "-c", "kill -XCPU $$"]);
    assert_eq!((said.code, said.err.as_str()), (Some(152), ""));
}

#[test]
fn a_time_limit_exits_with_124() {
    let said = Home::new().say(&["run", "--timeout", "100ms", "--", "sh", "-c", "echo begun; sleep 1000"]);
    assert_eq!((said.code, said.out.as_str()), (Some(124), "begun\n"));
    assert_eq!(said.err, "remex: ended `sh` after 100ms (`--timeout`)\n");
}

#[test]
fn standard_input_arrives_completely_with_its_end() {
    let home = Home::new();
    let server = Server::start();
    let input: Vec<u8> = (0..3_000_000_u32).flat_map(u32::to_le_bytes).collect();
    for place in [&[][..], &["--on", server.address()]] {
        let said = home.say_with(&[&["run"], place, &["--", "sha256sum"]].concat(), &input);
        let local = home.say_with(&["run", "--", "true"], b"");
        assert_eq!((said.code, local.code), (Some(0), Some(0)));
        fs::write(home.path("input"), &input).unwrap();
        let expected = home.say(&["run", "--", "sh", "-c", "sha256sum < input"]);
        assert_eq!(said.out, expected.out);
    }
    assert_eq!(home.say(&["run", "--", "cat"]).out, "");
}

#[test]
fn unread_input_does_not_delay_a_command() {
    let home = Home::new();
    let said = home.say_with(&["run", "--", "sh", "-c", "exec <&-; echo done"], &vec![0; 8 << 20]);
    assert_eq!((said.code, said.out.as_str()), (Some(0), "done\n"));
}

#[test]
fn a_local_command_has_the_environment_and_directory_of_the_caller() {
    let home = Home::new();
    fs::create_dir(home.path("sub")).unwrap();
    let mut command = home.remex(&["run", "--env", "B=2", "--env", "C", "--cwd", "sub", "--", "sh", "-c"]);
    command.arg("echo $API_TOKEN $B $C; basename $(pwd)").env("API_TOKEN", "t").env("C", "3").env("B", "1");
    let said = said(&command.stdin(Stdio::null()).finished());
    assert_eq!(said.out, "t 2 3\nsub\n");
    assert_eq!(home.say(&["run", "--cwd", "~/sub", "--", "sh", "-c", "basename $PWD"]).out, "sub\n");
    assert_eq!(home.say(&["run", "--env", "UNSET", "--", "true"]).code, Some(2));
}

#[test]
fn a_remote_directory_is_relative_to_the_server_and_tilde_is_the_remote_home() {
    let home = Home::new();
    fs::create_dir(home.path("sub")).unwrap();
    let mut command = home.remex(&["serve"]);
    command.stdin(Stdio::null());
    let server = Server::launch(command, 1);
    let there = |cwd: &str| {
        home.say(&["run", "--on", server.address(), "--cwd", cwd, "--", "sh", "-c", "basename $PWD"]).out
    };
    assert_eq!((there("sub"), there("~/sub"), there("~")), ("sub\n".into(), "sub\n".into(), "home\n".into()));
    let said = home.say(&["run", "--on", server.address(), "--cwd", "nowhere", "--", "true"]);
    assert_eq!(said.code, Some(125), "{said:?}");
    assert!(said.err.contains("nowhere"), "{said:?}");
}

#[test]
fn ctrl_c_reaches_the_command() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let script = "trap 'echo caught; exit 7' INT; echo ready; while :; do sleep 0.05; done";
        let mut child = start(&home, &[&["run"], place, &["--", "sh", "-c", script]].concat());
        let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
        assert_eq!(line(&mut out), "ready");
        signal(&child, Signal::INT);
        assert_eq!(line(&mut out), "caught");
        assert_eq!(child.ended().code(), Some(7));
    }
}

#[test]
fn a_second_ctrl_c_kills_the_command_with_everything_it_started() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        let script = "trap '' INT; setsid sh -c 'echo $$; exec sleep 1000' & trap 'echo no' INT; \
                      while :; do sleep 0.05; done";
        let mut child = start(&home, &[&["run"], place, &["--", "sh", "-c", script]].concat());
        let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
        let grandchild = Watched::printed(&line(&mut out));
        signal(&child, Signal::INT);
        assert_eq!(line(&mut out), "no");
        signal(&child, Signal::INT);
        assert_eq!(child.ended().code(), Some(137));
        grandchild.assert_ends();
    }
}

#[test]
fn a_later_ctrl_c_interrupts_again() {
    let home = Home::new();
    // It says when more than the two seconds have passed in which a second one kills.
    let script = "n=0; trap 'n=$((n+1)); echo caught $n; test $n = 2 && exit 8; sleep 2.2; echo later' INT; \
                  echo ready; while :; do sleep 0.05; done";
    let mut child = start(&home, &["run", "--", "sh", "-c", script]);
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    for round in ["caught 1", "caught 2"] {
        signal(&child, Signal::INT);
        assert_eq!(line(&mut out), round);
        if round == "caught 1" {
            assert_eq!(line(&mut out), "later");
        }
    }
    assert_eq!(child.ended().code(), Some(8));
    let mut err = String::new();
    Patient::new(child.stderr.take().unwrap()).read_to_string(&mut err).unwrap();
    let told = "remex: interrupted; press Ctrl-C again within 2 s to kill it and everything it started\n";
    assert_eq!(err, told.repeat(2));
}

#[test]
fn killing_remex_leaves_nothing_of_a_local_command_behind() {
    let home = Home::new();
    // The command, a child that ignores signals, and one in a session of its own, whose parent is gone.
    let script = "trap '' TERM HUP; sh -c 'echo $$; exec sleep 1000' & \
                  (setsid sh -c 'echo $$; exec sleep 1000' &); echo $$; while :; do sleep 0.05; done";
    let mut child = start(&home, &["run", "--", "sh", "-c", script]);
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    let tree = [(); 3].map(|()| Watched::printed(&line(&mut out)));
    signal(&child, Signal::KILL);
    assert_eq!(child.ended().code(), None);
    for process in tree {
        process.assert_ends();
    }
}

#[test]
fn terminating_remex_ends_the_command() {
    let home = Home::new();
    let server = Server::start();
    for place in [&[][..], &["--on", server.address()]] {
        for (sent, code) in [(Signal::TERM, 143), (Signal::HUP, 129)] {
            let args = [&["run"], place, &["--", "sh", "-c", "echo $$; exec sleep 1000"]].concat();
            let mut child = start(&home, &args);
            let command =
                Watched::printed(&line(&mut BufReader::new(Patient::new(child.stdout.take().unwrap()))));
            signal(&child, sent);
            assert_eq!(child.ended().code(), Some(code));
            command.assert_ends();
        }
    }
}

#[test]
fn an_inherited_ignored_signal_stays_ignored() {
    let home = Home::new();
    let mut command = std::process::Command::new("sh");
    command.args(["-c", "trap '' HUP; exec remex run -- sh -c 'echo ready; read x; echo got $x'"]);
    home.dress(&mut command);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    signal(&child, Signal::HUP);
    child.stdin.take().unwrap().write_all(b"it\n").unwrap();
    assert_eq!(line(&mut out), "got it");
    assert_eq!(child.ended().code(), Some(0));
}

#[test]
fn ctrl_c_while_connecting_leaves_no_program_behind() {
    let home = Home::new();
    let text = "[[environments]]\nid = \"far\"\nprogram = \"sh\"\nargs = [\"-c\", \"echo $$ > pid; exec sleep 1000\"]\n";
    fs::write(home.environments(), text).unwrap();
    let pid = home.pipe("pid");
    let child = start(&home, &["run", "--on", "far", "--", "true"]);
    let program = Watched::printed(&fs::read_to_string(pid).unwrap());
    signal(&child, Signal::INT);
    let said = said(&child.finished());
    assert_eq!((said.code, said.err.as_str()), (Some(130), ""));
    program.assert_ends();
}

#[test]
fn leftovers_of_a_command_end_with_it() {
    let home = Home::new();
    let said = home.say(&["run", "--", "sh", "-c", "sleep 1000 & echo $!"]);
    assert_eq!(said.code, Some(0));
    if let Some(left) = Pid::from_raw(said.out.trim().parse().unwrap()).and_then(Watched::find) {
        left.assert_ends();
    }
}

#[test]
fn a_broken_pipe_ends_the_command() {
    let home = Home::new();
    let mut child = start(&home, &["run", "--", "yes"]);
    let mut out = Patient::new(child.stdout.take().unwrap());
    out.read_exact(&mut [0; 2]).unwrap();
    drop(out);
    assert_eq!(child.ended().code(), Some(141));
    let mut child = start(&home, &["run", "--", "sh", "-c", "yes >&2"]);
    let mut err = Patient::new(child.stderr.take().unwrap());
    err.read_exact(&mut [0; 2]).unwrap();
    drop(err);
    assert_eq!(child.ended().code(), Some(141));
}

#[test]
fn a_disconnect_loses_and_duplicates_nothing_and_is_reported_with_its_end() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[300_000, 900_000, 200_000]);
    let said = home.say(&["run", "--on", proxy.address(), "--", "seq", "1", "400000"]);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let expected: String = (1..=400_000).map(|number| format!("{number}\n")).collect();
    assert!(said.out == expected, "{} instead of {} bytes", said.out.len(), expected.len());
    assert_eq!(proxy.disconnects_left(), 0);
    // Disconnects in quick succession are reported as one, at its end.
    let lines: Vec<_> = said.err.lines().collect();
    assert!((2..=6).contains(&lines.len()) && lines.len().is_multiple_of(2), "{}", said.err);
    for pair in lines.chunks(2) {
        assert!(pair[0].starts_with("remex: connection lost; reconnecting"), "{}", said.err);
        assert!(pair[1].starts_with("remex: reconnected after ") && pair[1].ends_with(" s"), "{}", said.err);
    }
}

#[test]
fn input_across_disconnects_is_written_once() {
    let home = Home::new();
    let server = Server::start();
    let proxy = DisconnectingProxy::start(server.address(), &[200_000, 500_000]);
    let input: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    let said = home.say_with(&["run", "--on", proxy.address(), "--", "cat"], input.as_bytes());
    assert_eq!(said.code, Some(0), "{}", said.err);
    assert!(said.out == input, "{} instead of {} bytes", said.out.len(), input.len());
    assert_eq!(proxy.disconnects_left(), 0);
}

#[test]
fn buffered_input_stays_in_order_across_disconnects() {
    let home = Home::new();
    let server = Server::start();
    let input: Vec<u8> = (0..4_000_000_u32).flat_map(u32::to_le_bytes).collect();
    // Each cut comes while writes wait for the reader.
    let proxy = DisconnectingProxy::start(server.address(), &[1_700_000; 8]);
    let script = "i=0; while [ $i -lt 40 ]; do head -c 400000; sleep 0.01; i=$((i+1)); done | cksum";
    let said = home.say_with(&["run", "--on", proxy.address(), "--", "sh", "-c", script], &input);
    assert_eq!(said.code, Some(0), "{}", said.err);
    let here = home.say_with(&["run", "--", "cksum"], &input);
    assert_eq!((said.out, proxy.disconnects_left()), (here.out, 0));
}

#[test]
fn ctrl_z_suspends_the_command_too_and_both_can_be_resumed() {
    let home = Home::new();
    let server = Server::start();
    home.add_environment("build", server.address());
    for place in [&[][..], &["--on", "build"]] {
        let script = ["--", "sh", "-c", "echo $$; read go; exit 7"];
        let mut command = home.remex(&[&["run"], place, &script].concat());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let pid = line(&mut BufReader::new(Patient::new(child.stdout.take().unwrap())));
        signal(&child, Signal::TSTP);
        let mut err = BufReader::new(Patient::new(child.stderr.take().unwrap()));
        assert_eq!(line(&mut err), "remex: suspended together with the command");
        let stopped = waitid(WaitId::Pid(Pid::from_child(&child)), WaitIdOptions::STOPPED).unwrap().unwrap();
        assert!(stopped.stopped(), "{place:?}");
        // The kernel stops it in a moment; it is no child of ours whose stop could be waited for.
        let deadline = Instant::now() + PATIENCE;
        let state = || fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        while !state().contains("State:\tT (stopped)") {
            assert!(Instant::now() < deadline, "waited for the command to stop: {}", state());
            thread::yield_now();
        }
        signal(&child, Signal::CONT);
        child.stdin.as_mut().unwrap().write_all(b"go\n").unwrap();
        assert_eq!(child.ended().code(), Some(7), "{place:?}");
    }
}

#[test]
fn failed_writes_of_output_are_reported() {
    let home = Home::new();
    for script in ["echo hi", "echo hi >&2"] {
        let full = || Stdio::from(fs::File::options().write(true).open("/dev/full").unwrap());
        let mut command = home.remex(&["run", "--", "sh", "-c", script]);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        if script.ends_with('2') {
            command.stderr(full())
        } else {
            command.stdout(full())
        };
        let said = said(&command.spawn().unwrap().finished());
        assert_eq!(said.code, Some(125), "{said:?}");
        if said.err.is_empty() {
            continue; // That is where it was said.
        }
        assert_eq!(
            said.err,
            "remex: cannot write the output of the command: No space left on device (os error 28)\n  hint: free some space, or \
             redirect the output elsewhere\n"
        );
    }
}

#[test]
fn generated_names_are_easy_to_type() {
    let home = Home::new();
    for name in ["", "two words", "-x", "a/b", "a\u{1b}[31m"] {
        let name = format!("--name={name}");
        assert_eq!(home.say(&["run", &name, "--", "true"]).code, Some(2), "{name}");
    }
}

#[test]
fn a_name_is_refused_for_in_process_commands() {
    let home = Home::new();
    let said = home.say(&["run", "--name", "work", "--", "true"]);
    assert_eq!(said.code, Some(2), "{said:?}");
    assert!(
        said.err.starts_with("remex: `--name` has no effect on a command that runs in this process"),
        "{said:?}"
    );
    let server = Server::start();
    let said = home.say(&["run", "--on", server.address(), "--name", "work", "--", "true"]);
    assert_eq!(said, Said { code: Some(0), out: String::new(), err: String::new() });
}

#[test]
fn a_lost_server_is_reported_with_a_hint() {
    let home = Home::new();
    let said = home.say(&["run", "--on", "unix:///nowhere/remex.sock", "--", "true"]);
    assert_eq!(said.code, Some(125));
    assert_eq!(said.err.lines().count(), 2, "{}", said.err);
    let said = home.say(&["run", "--on", "nobody", "--", "true"]);
    assert_eq!(
        said.err,
        "remex: unknown environment `nobody`; known: local\n  hint: add it with `remex env add nobody \
         ssh://user@host` or `remex env add nobody ws://host:port`, or see `remex env list`\n"
    );
    let server = Server::start();
    let script = "echo ready; exec sleep 1000";
    let mut child = start(&home, &["run", "--on", server.address(), "--", "sh", "-c", script]);
    let mut out = BufReader::new(Patient::new(child.stdout.take().unwrap()));
    assert_eq!(line(&mut out), "ready");
    server.signal(Signal::KILL);
    let mut err = BufReader::new(Patient::new(child.stderr.take().unwrap()));
    let told = line(&mut err);
    assert!(told.starts_with("remex: connection lost; reconnecting for 1 h: "), "{told}");
    signal(&child, Signal::INT);
    let told = line(&mut err);
    assert!(told.starts_with("remex: not connected; Ctrl-C again leaves `sh-"), "{told}");
    signal(&child, Signal::INT);
    assert_eq!(child.ended().code(), Some(130));
    let told = line(&mut err);
    assert!(told.contains("without a connection; its server keeps it for another "), "{told}");
}

#[test]
fn output_buffered_for_a_slow_reader_is_complete() {
    let home = Home::new();
    let mut child = start(&home, &["run", "--", "seq", "1", "1000000"]);
    let mut out = Patient::new(child.stdout.take().unwrap());
    let mut first = [0; 4];
    out.read_exact(&mut first).unwrap();
    // It cannot end before its output is taken.
    assert!(child.try_wait().unwrap().is_none());
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(rest.ends_with("\n999999\n1000000\n"));
    assert_eq!(child.ended().code(), Some(0));
}
