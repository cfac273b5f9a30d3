//! The environment in which a program starts, and how its exit is reported.

mod harness;

use std::{
    fs,
    io::Write as _,
    os::unix::fs::PermissionsExt,
    path::Path,
    thread,
    time::{Duration, Instant},
};

use harness::{NULL, PIPED, PTY, TAGS, eventually, finish, pids, pipes, run, shell, spawner, start, within};
use remex_process::{Attempt, ExecDenial, Scope, Signal, Stage, Start, StartError, StartErrorKind, tree};
use rustix::process::{Resource, getrlimit};

#[tokio::test]
async fn the_exit_code_is_reported() {
    for code in [0, 1, 7, 255] {
        let (_, status) = run(shell(NULL, TAGS.tag(1, 1), &format!("exit {code}"))).await;
        assert_eq!((status.code, status.signal), (code, None));
    }
}

#[tokio::test]
async fn death_by_signal_is_reported_as_128_plus_its_number() {
    for stdio in [NULL, PTY] {
        for (signal, code) in [(Signal::KILL, 137), (Signal::TERM, 143), (Signal::INT, 130)] {
            let mut child = spawner().start(start(stdio, TAGS.tag(1, 1), "sleep", &["1000"])).await.unwrap();
            child.exit.signal(signal).unwrap();
            let status = within(child.exit.wait()).await;
            assert_eq!((status.code, status.signal), (code, Some(signal)));
            child.exit.signal(signal).expect("a signal to an ended process is no error");
        }
    }
}

#[tokio::test]
async fn the_exit_status_can_be_read_again_and_survives_a_cancelled_wait() {
    let mut child = spawner().start(start(PIPED, TAGS.tag(1, 1), "cat", &[])).await.unwrap();
    assert_eq!(child.exit.try_wait(), None);
    tokio::select! {
        biased;
        _ = child.exit.wait() => panic!("cat ended by itself"),
        () = tokio::task::yield_now() => {}
    }
    drop(child.io);
    let status = within(child.exit.wait()).await;
    assert_eq!(status.code, 0);
    assert_eq!(child.exit.try_wait(), Some(status));
    assert_eq!(child.exit.wait().await, status);
}

#[tokio::test]
async fn the_environment_is_exactly_the_given_one() {
    for stdio in [NULL, PTY] {
        let mut start = start(stdio, TAGS.tag(1, 1), "/usr/bin/env", &[]);
        assert_eq!(run(start.clone()).await.0, "");
        start.env = vec![("B".into(), "2=2".into()), ("A".into(), "".into())];
        assert_eq!(run(start).await.0.replace('\r', ""), "B=2=2\nA=\n");
    }
}

#[tokio::test]
async fn no_descriptor_leaks_into_the_child() {
    // Neither one that closes on exec nor one that does not, as the server may have inherited.
    let inherited = rustix::io::dup(std::io::stderr()).unwrap();
    for stdio in [NULL, PIPED, PTY] {
        let (listed, _) = run(start(stdio, TAGS.tag(1, 1), "ls", &["/proc/self/fd"])).await;
        // The last one is the directory that `ls` itself reads.
        assert_eq!(listed.split_whitespace().collect::<Vec<_>>(), ["0", "1", "2", "3"]);
    }
    drop(inherited);
}

#[tokio::test]
async fn a_start_takes_no_longer_with_many_open_descriptors() {
    const MANY: usize = 50_000;
    remex_process::raise_file_limit();
    let spawner = spawner();
    let fastest = async || {
        let mut fastest = Duration::MAX;
        for _ in 0..100 {
            let begun = Instant::now();
            let mut child = spawner.start(start(NULL, TAGS.tag(1, 1), "/bin/true", &[])).await.unwrap();
            fastest = fastest.min(begun.elapsed());
            within(child.exit.wait()).await;
        }
        fastest
    };
    let before = fastest().await;
    // Those of thousands of processes, as far as the host allows.
    let limit = getrlimit(Resource::Nofile).current.and_then(|limit| usize::try_from(limit).ok());
    let count = limit.map_or(MANY, |limit| MANY.min(limit / 2));
    let open: Vec<_> = (0..count).map(|_| rustix::io::dup(std::io::stderr()).unwrap()).collect();
    let after = fastest().await;
    assert!(after < 4 * before, "{before:?}, and with {} descriptors {after:?}", open.len());
}

#[tokio::test]
async fn our_descriptor_numbers_are_free_in_the_child() {
    let _open: Vec<_> = (0..500).map(|_| rustix::io::dup(std::io::stderr()).unwrap()).collect();
    // The shell begins at 10.
    let script = "for i in {1..100}; do exec {number}</dev/null; done; echo $number";
    for stdio in [NULL, PIPED] {
        let (last, _) = run(start(stdio, TAGS.tag(1, 1), "bash", &["-c", script])).await;
        assert_eq!(last, "109\n");
    }
}

#[tokio::test]
async fn signals_have_their_default_action_and_none_is_blocked() {
    // The Rust runtime ignores SIGPIPE, and this makes it handle another one.
    let _handler = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::hangup()).unwrap();
    for stdio in [NULL, PTY] {
        let (status, _) = run(start(stdio, TAGS.tag(1, 1), "cat", &["/proc/self/status"])).await;
        for field in ["SigPnd", "ShdPnd", "SigBlk", "SigIgn", "SigCgt"] {
            let line = status.lines().find(|line| line.starts_with(field)).unwrap();
            assert_eq!(line, format!("{field}:\t0000000000000000"));
        }
    }
}

#[tokio::test]
async fn the_child_leads_a_session_and_a_group() {
    let child = spawner().start(start(NULL, TAGS.tag(1, 1), "cat", &["/proc/self/stat"])).await.unwrap();
    let pid = child.pid.to_string();
    let (stat, _) = finish(child).await;
    let fields: Vec<_> = stat.split_whitespace().collect();
    assert_eq!([fields[0], fields[4], fields[5]], [pid.as_str(); 3]);
}

#[tokio::test]
async fn the_child_is_scheduled_like_any_other_program() {
    // Its own, not that of the thread that made it; kernels without this figure print none.
    let slice = |sched: &str| sched.lines().find(|line| line.starts_with("se.slice")).map(str::to_owned);
    let (childs, _) = run(start(NULL, TAGS.tag(1, 1), "cat", &["/proc/self/sched"])).await;
    let ours = fs::read_to_string("/proc/thread-self/sched").unwrap_or_default();
    assert_eq!(slice(&childs), slice(&ours));
}

#[tokio::test]
async fn stdin_is_empty_or_a_pipe() {
    assert_eq!(run(start(NULL, TAGS.tag(1, 1), "readlink", &["/proc/self/fd/0"])).await.0, "/dev/null\n");
    let child = spawner().start(start(PIPED, TAGS.tag(1, 1), "cat", &[])).await.unwrap();
    let (stdin, output) = pipes(child.io);
    let mut stdin = fs::File::from(stdin.unwrap());
    stdin.write_all(b"over and out").unwrap();
    drop(stdin);
    assert_eq!(output.rest().await, b"over and out");
}

#[tokio::test]
async fn our_pipe_ends_are_non_blocking_and_the_childs_are_blocking() {
    let (flags, _) = run(shell(PIPED, TAGS.tag(1, 1), "grep -h flags /proc/self/fdinfo/[012]")).await;
    let flags: Vec<_> = flags.lines().map(|line| u32::from_str_radix(&line[7..], 8).unwrap()).collect();
    assert_eq!(flags.len(), 3);
    assert!(flags.iter().all(|flags| flags & rustix::fs::OFlags::NONBLOCK.bits() == 0), "{flags:?}");
    let child = spawner().start(start(PIPED, TAGS.tag(1, 1), "cat", &[])).await.unwrap();
    let remex_process::ChildIo::Pipes { stdin, stdout, stderr } = &child.io else { panic!("not on pipes") };
    for fd in [stdin.as_ref().unwrap(), stdout, stderr] {
        assert!(rustix::fs::fcntl_getfl(fd).unwrap().contains(rustix::fs::OFlags::NONBLOCK));
    }
}

#[tokio::test]
async fn arg0_does_not_change_which_file_is_executed() {
    for stdio in [NULL, PTY] {
        let mut start = shell(stdio, TAGS.tag(1, 1), "echo $0");
        start.arg0 = Some("/bin/false".into());
        let (output, status) = run(start).await;
        assert_eq!((output.trim_end(), status.code), ("/bin/false", 0));
    }
}

#[tokio::test]
async fn the_program_is_looked_up_in_path_of_the_given_environment() {
    let directory = tempfile::tempdir().unwrap();
    let script = |name: &str, mode: u32| {
        let place = directory.path().join(name);
        fs::create_dir(&place).unwrap();
        fs::write(place.join("remex-test-tool"), format!("#!/bin/sh\necho {name}\n")).unwrap();
        fs::set_permissions(place.join("remex-test-tool"), fs::Permissions::from_mode(mode)).unwrap();
        place.to_str().unwrap().to_owned()
    };
    let (locked, first, second) = (script("locked", 0o644), script("first", 0o755), script("second", 0o755));
    let mut tool = start(NULL, TAGS.tag(1, 1), "remex-test-tool", &[]);
    tool.cwd = directory.path().into();
    let with_path = |path: String| Start { env: vec![("PATH".into(), path.into())], ..tool.clone() };
    let found = async |path| run(with_path(path)).await.0;
    assert_eq!(found(format!("/nowhere:/etc/passwd:{locked}:{first}:{second}")).await, "first\n");
    assert_eq!(found(format!("{second}:{first}")).await, "second\n");
    assert_eq!(found("second".to_owned()).await, "second\n");

    let refused = spawner().start(with_path(format!("{locked}:/etc/passwd:/nowhere"))).await.unwrap_err();
    assert_eq!((refused.errno, refused.kind()), (libc::EACCES, StartErrorKind::NotExecutable));
    let missing = spawner().start(with_path("/nowhere:/etc/passwd".into())).await.unwrap_err();
    assert_eq!((missing.errno, missing.kind()), (libc::ENOENT, StartErrorKind::ProgramNotFound));
    assert_eq!(spawner().start(tool.clone()).await.unwrap_err().kind(), StartErrorKind::ProgramNotFound);
}

#[tokio::test]
async fn without_path_the_standard_directories_are_searched() {
    assert_eq!(run(start(NULL, TAGS.tag(1, 1), "true", &[])).await.1.code, 0);
}

#[tokio::test]
async fn a_failed_start_says_why() {
    let directory = tempfile::tempdir().unwrap();
    let garbage = directory.path().join("garbage");
    fs::write(&garbage, "no program").unwrap();
    fs::set_permissions(&garbage, fs::Permissions::from_mode(0o755)).unwrap();
    let garbage = garbage.to_str().unwrap();
    let too_long = "x".repeat(4 << 20);
    for stdio in [NULL, PTY] {
        let program = |name: &str| start(stdio, TAGS.tag(1, 1), name, &[]);
        let here = |cwd: &str| Start { cwd: Path::new(cwd).into(), ..program("true") };
        let input = |args: &[&str]| start(stdio, TAGS.tag(1, 1), "true", args);
        let variable = Start { env: vec![("A".into(), "\0".into())], ..program("true") };
        use StartErrorKind::*;
        let cases = [
            (program("/no/such/program"), Stage::Exec, libc::ENOENT, ProgramNotFound),
            (program("/etc/passwd/true"), Stage::Exec, libc::ENOTDIR, ProgramNotFound),
            (program(""), Stage::Exec, libc::ENOENT, ProgramNotFound),
            (program("/etc/passwd"), Stage::Exec, libc::EACCES, NotExecutable),
            (program("/etc"), Stage::Exec, libc::EACCES, NotExecutable),
            (program(garbage), Stage::Exec, libc::ENOEXEC, NotExecutable),
            (here("/no/such/directory"), Stage::Cwd, libc::ENOENT, BadCwd),
            (here("/etc/passwd"), Stage::Cwd, libc::ENOTDIR, BadCwd),
            (here("/\0"), Stage::Input, libc::EINVAL, InvalidInput),
            (program("tr\0ue"), Stage::Input, libc::EINVAL, InvalidInput),
            (input(&["a\0b"]), Stage::Input, libc::EINVAL, InvalidInput),
            (input(&[&too_long]), Stage::Exec, libc::E2BIG, InvalidInput),
            (variable, Stage::Input, libc::EINVAL, InvalidInput),
        ];
        for (start, stage, errno, kind) in cases {
            let Start { program, cwd, .. } = start.clone();
            let error = spawner().start(start).await.unwrap_err();
            assert_eq!(error.kind(), kind, "{error}");
            let denial = error.denial.clone();
            assert_eq!(denial.is_some(), errno == libc::EACCES, "{error}");
            assert_eq!(error, StartError { stage, errno, program, cwd, denial, jail: None, user: None });
        }
    }
}

#[tokio::test]
async fn a_denied_execution_names_its_cause() {
    use remex_process::DenialReason::*;
    let directory = tempfile::tempdir().unwrap();
    let at = |name: &str| directory.path().join(name);
    let with_mode = |name: &str, text: &str, mode| {
        fs::write(at(name), text).unwrap();
        fs::set_permissions(at(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    with_mode("plain", "echo", 0o644);
    with_mode("script", &format!("#!{}\n", at("plain").display()), 0o755);
    fs::create_dir(at("folder")).unwrap();
    for (name, reason, hint) in [
        ("plain", NoPermission, "run `chmod +x PATH`, or pass the file to its interpreter, as in `sh PATH`"),
        ("folder", Directory, "`PATH` is a directory; name a program"),
        (
            "script",
            Interpreter,
            "check the first line (`#!`) of `PATH`: the program that it names must be executable",
        ),
    ] {
        let path = at(name);
        let hint = hint.replace("PATH", &path.display().to_string());
        // By its path, relative to the working directory, and found in PATH.
        let mut by_path = start(NULL, TAGS.tag(1, 1), path.to_str().unwrap(), &[]);
        let mut relative = start(NULL, TAGS.tag(1, 1), &format!("./{name}"), &[]);
        relative.cwd = directory.path().to_owned();
        let mut found = start(NULL, TAGS.tag(1, 1), name, &[]);
        found.env = vec![("PATH".into(), format!("/no/such:{}", directory.path().display()).into())];
        by_path.cwd = "/".into();
        for start in [by_path, found] {
            let error = spawner().start(start).await.unwrap_err();
            assert_eq!(error.denial, Some(ExecDenial { path: path.clone(), reason }), "{error}");
            assert_eq!(error.hint(), hint);
        }
        let error = spawner().start(relative).await.unwrap_err();
        assert_eq!(error.denial.map(|denial| denial.reason), Some(reason));
    }
    let error = spawner().start(start(NULL, TAGS.tag(1, 1), "/dev/null", &[])).await.unwrap_err();
    assert_eq!(error.hint(), "`/dev/null` is not a regular file; name a program");
}

#[tokio::test]
async fn peak_memory_is_reported_only_if_it_is_the_childs_own() {
    let (_, status) = run(start(NULL, TAGS.tag(1, 1), "true", &[])).await;
    assert_eq!(status.usage.max_rss_bytes, None);
    let hungry = ["if=/dev/zero", "of=/dev/null", "bs=256M", "count=1"];
    let (_, status) = run(start(NULL, TAGS.tag(1, 1), "dd", &hungry)).await;
    assert!(status.usage.max_rss_bytes.unwrap() >= 256 << 20, "{status:?}");
    assert!(status.usage.user + status.usage.system > Duration::ZERO, "{status:?}");
}

#[tokio::test]
async fn many_concurrent_starts_all_succeed() {
    let spawner = spawner();
    let starts = (0..300).map(|number: u32| {
        let spawner = spawner.clone();
        tokio::spawn(async move {
            let child = spawner
                .start(start(NULL, TAGS.tag(1, number), "echo", &[&number.to_string()]))
                .await
                .unwrap();
            assert_eq!(finish(child).await.0, format!("{number}\n"));
        })
    });
    for start in starts.collect::<Vec<_>>() {
        within(start).await.unwrap();
    }
}

#[tokio::test]
async fn the_child_runs_in_the_requested_directory() {
    for stdio in [NULL, PTY] {
        let start = Start { cwd: "/usr/bin/..".into(), ..start(stdio, TAGS.tag(1, 1), "pwd", &["-P"]) };
        assert_eq!(run(start).await.0.trim_end(), "/usr");
    }
}

#[tokio::test]
async fn an_attempt_that_is_aborted_before_it_begins_starts_nothing() {
    let attempt = Attempt::default();
    attempt.abort();
    within(attempt.aborted()).await;
    let error = spawner().attempt(shell(NULL, TAGS.tag(2, 1), "exit 0"), &attempt).await.unwrap_err();
    assert_eq!(error.kind(), StartErrorKind::Aborted);
}

#[tokio::test]
async fn an_attempt_aborted_at_any_moment_leaves_nothing_behind() {
    let (spawner, tag) = (spawner(), TAGS.tag(3, 1));
    for n in 0..150 {
        let attempt = Attempt::default();
        let (aborted, begun) = (attempt.clone(), Instant::now());
        let aborting = thread::spawn(move || {
            // A start takes about this long at most.
            while begun.elapsed() < Duration::from_micros(20 * n) {}
            aborted.abort();
        });
        // It may have been faster, and then it is a process as any other.
        let started = within(spawner.attempt(shell(NULL, tag, "sleep 1000 & sleep 1000"), &attempt)).await;
        aborting.join().unwrap();
        if let Ok(child) = started {
            tree::kill(&Scope::Process(tag, child.exit.leader().clone())).await.unwrap();
        }
        eventually("nothing is left", || pids(&Scope::Session(tag)).is_empty()).await;
    }
}
