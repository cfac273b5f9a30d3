//! Stories that every server of the dialect can tell.

use remex_client::{
    Command, ErrorKind,
    process::{Event, OnDrop, Stdio, Stream, TerminalSize, Until, WaitOutcome},
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) use super::files::{
    a_file_is_read_as_it_was_written, a_large_file_is_uploaded_and_downloaded_completely,
    directories_are_created_listed_copied_and_removed, missing_files_are_reported_as_not_found,
};
use super::{Place, files::from_working_directory};

pub(crate) async fn a_command_reports_its_output_and_exit(place: Place) {
    let client = place.client().await;
    let output = Command::shell("echo out; echo err >&2; exit 3").output(&client).await.unwrap();
    assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
    assert_eq!((output.exit.code, output.exit.success()), (3, false));
    assert!(Command::new("true").output(&client).await.unwrap().exit.success());
}

pub(crate) async fn a_signal_exit_is_reported_like_a_shell_does(place: Place) {
    let client = place.client().await;
    let exit = Command::shell("kill -9 $$").output(&client).await.unwrap().exit;
    assert_eq!((exit.code, exit.success()), (137, false));
}

pub(crate) async fn input_is_echoed_once_and_in_order(place: Place) {
    let client = place.client().await;
    let process = Command::shell("head -n 2000").stdin(Stdio::Piped).start(&client).await.unwrap();
    let (mut stdin, mut stdout) = (process.stdin().unwrap(), process.stdout());
    assert!(process.stdin().is_none(), "there is one input, and somebody has it");
    let expected: String = (0..2000).map(|line| format!("line {line}\n")).collect();
    let write = async {
        for line in expected.split_inclusive('\n') {
            stdin.write_all(line.as_bytes()).await.unwrap();
        }
        stdin.flush().await.unwrap();
    };
    let mut read = String::new();
    let (_, ()) = tokio::join!(stdout.read_to_string(&mut read), write);
    assert!(read == expected, "{} of {} bytes", read.len(), expected.len());
}

/// A server of the base dialect keeps a mebibyte for a consumer that falls behind, so this is less.
pub(crate) async fn output_within_any_retention_arrives_complete_and_in_order(place: Place) {
    assert_arrives(&place, 100_000, 10_000).await;
}

/// Runs a process that writes numbers up to these to stdout and stderr.
pub(super) async fn assert_arrives(place: &Place, stdout: u32, stderr: u32) {
    let client = place.client().await;
    let process = Command::shell(format!("seq 1 {stdout}; seq 1 {stderr} >&2")).start(&client).await.unwrap();
    let output = process.communicate(&[]).await.unwrap();
    let numbers = |up_to: u32| (1..=up_to).map(|number| format!("{number}\n")).collect::<String>();
    assert!(output.stdout == numbers(stdout).as_bytes(), "{} bytes", output.stdout.len());
    assert!(output.stderr == numbers(stderr).as_bytes(), "{} bytes", output.stderr.len());
}

pub(crate) async fn a_terminal_has_one_output_stream(place: Place) {
    let client = place.client().await;
    let command = "test -t 0 && test -t 1 && test -t 2 && echo yes; read -r name; echo hello $name";
    let process = Command::shell(command).terminal(TerminalSize::default()).start(&client).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    process.wait_for(&Until::Output("yes".to_owned())).await.unwrap();
    stdin.write_all(b"world\n").await.unwrap();
    let mut said = Vec::new();
    process.terminal().read_to_end(&mut said).await.unwrap();
    assert_eq!(String::from_utf8(said).unwrap(), "yes\r\nworld\r\nhello world\r\n");
}

pub(crate) async fn a_missing_program_is_named(place: Place) {
    let client = place.client().await;
    let error = Command::new("/nowhere/at-all").start(&client).await.unwrap_err();
    assert!(error.kind().is_some(), "{error:?}");
    let output = Command::new("true").output(&client).await.unwrap();
    assert!(output.exit.success(), "the session goes on");
}

pub(crate) async fn a_wait_finds_a_text_that_arrives_in_pieces(place: Place) {
    let client = place.client().await;
    let command = "printf 'not re'; read -r _; printf 'ady\\n'; exec sleep 1000";
    let process =
        Command::shell(command).stdin(Stdio::Piped).on_drop(OnDrop::Terminate).start(&client).await.unwrap();
    process.wait_for(&Until::Output("not re$".to_owned())).await.unwrap();
    process.stdin().unwrap().write_all(b"\n").await.unwrap();
    match process.wait_for(&Until::Output("re+ady".to_owned())).await.unwrap() {
        WaitOutcome::Matched(found) => assert_eq!(found.bytes, "ready"),
        other => panic!("{other:?}"),
    }
    let WaitOutcome::Matched(after) = process.wait_for(&Until::Output("re".to_owned())).await.unwrap() else {
        panic!("it has been said")
    };
    let later = Until::OutputAfter { after, pattern: "[a-z]+".to_owned() };
    assert!(
        matches!(process.wait_for(&later).await.unwrap(), WaitOutcome::Matched(found) if found.bytes == "ady")
    );
    let error = process.wait_for(&Until::Output("(".to_owned())).await.unwrap_err();
    assert_eq!(error.kind(), Some(ErrorKind::InvalidParams));
}

pub(crate) async fn a_wait_ends_with_the_process(place: Place) {
    let client = place.client().await;
    let process = Command::shell("echo something else; exit 4").start(&client).await.unwrap();
    match process.wait_for(&Until::Output("never said".to_owned())).await.unwrap() {
        WaitOutcome::Exited(exit) => assert_eq!(exit.code, 4),
        other => panic!("{other:?}"),
    }
    assert_eq!(process.wait().await.unwrap().code, 4);
    assert_eq!(process.wait().await.unwrap().code, 4, "the exit can be asked for again");
}

pub(crate) async fn a_late_consumer_sees_what_is_retained(place: Place) {
    let client = place.client().await;
    let process = Command::shell("echo first; echo second >&2; echo third").start(&client).await.unwrap();
    assert!(process.wait().await.unwrap().success());
    for _ in 0..2 {
        let mut events = process.events();
        let (mut said, mut ends) = (Vec::new(), Vec::new());
        while let Some(event) = events.next().await.unwrap() {
            match event {
                Event::Output(chunk) => said.push((chunk.stream, chunk.bytes)),
                Event::Exited { exit, .. } => ends.push(format!("exited {}", exit.code)),
                Event::Closed(_) => ends.push("closed".to_owned()),
                other => panic!("{other:?}"),
            }
        }
        let text = |wanted| -> Vec<u8> {
            said.iter()
                .filter(|(stream, _)| *stream == wanted)
                .flat_map(|(_, bytes)| bytes.to_vec())
                .collect()
        };
        assert_eq!(text(Stream::Stdout), b"first\nthird\n");
        assert_eq!(text(Stream::Stderr), b"second\n");
        assert_eq!(ends, ["exited 0", "closed"]);
    }
}

pub(crate) async fn two_consumers_see_the_same(place: Place) {
    let client = place.client().await;
    let process = Command::shell("seq 1 50000; seq 1 10 >&2").start(&client).await.unwrap();
    let (mut one, mut other, mut errors) = (process.stdout(), process.stdout(), process.stderr());
    let (mut first, mut second, mut third) = (Vec::new(), Vec::new(), Vec::new());
    let read = tokio::join!(
        one.read_to_end(&mut first),
        other.read_to_end(&mut second),
        errors.read_to_end(&mut third)
    );
    assert!(read.0.is_ok() && read.1.is_ok() && read.2.is_ok(), "{read:?}");
    assert_eq!(first.len(), (1..=50_000).map(|number: u32| number.to_string().len() + 1).sum::<usize>());
    assert!(first == second);
    assert_eq!(third, b"1\n2\n3\n4\n5\n6\n7\n8\n9\n10\n");
}

pub(crate) async fn a_kill_ends_the_process(place: Place) {
    let client = place.client().await;
    let process = Command::shell("echo here; exec sleep 1000").start(&client).await.unwrap();
    process.wait_for(&Until::Output("here".to_owned())).await.unwrap();
    process.kill().await.unwrap();
    assert_eq!(process.wait().await.unwrap().code, 137);
    process.kill().await.unwrap();
}

pub(crate) async fn a_dropped_handle_can_end_its_process(place: Place) {
    let client = place.client().await;
    let fifo = place.name("fifo");
    assert!(Command::new("mkfifo").arg(&fifo).output(&client).await.unwrap().exit.success());
    let command = format!("exec > '{fifo}'; echo here; exec sleep 1000");
    let process = Command::shell(command).on_drop(OnDrop::Terminate).start(&client).await.unwrap();
    let reader = Command::new("cat").arg(&fifo).start(&client).await.unwrap();
    reader.wait_for(&Until::Output("here".to_owned())).await.unwrap();
    drop(process);
    assert!(reader.wait().await.unwrap().success(), "the pipe is at its end when nobody holds it open");
}

pub(crate) async fn a_process_survives_its_dropped_handle(place: Place) {
    let client = place.client().await;
    let done = place.name("done");
    drop(Command::shell(format!("head -c 4000000 /dev/zero; mkfifo '{done}'")).start(&client).await.unwrap());
    let waiter = Command::shell(format!("until test -p '{done}'; do sleep 0.01; done; echo gone on"));
    assert_eq!(waiter.output(&client).await.unwrap().stdout, b"gone on\n");
}

pub(crate) async fn many_processes_run_at_once(place: Place) {
    let client = place.client().await;
    let runs: Vec<_> = (0..40)
        .map(|number| {
            let client = client.clone();
            tokio::spawn(async move {
                let output =
                    Command::shell(format!("seq 1 2000; echo {number}")).output(&client).await.unwrap();
                assert!(output.stdout.ends_with(format!("\n2000\n{number}\n").as_bytes()));
                output.stdout.len()
            })
        })
        .collect();
    for run in runs {
        assert!(run.await.unwrap() > 8000);
    }
}

pub(crate) async fn the_requested_environment_and_directory_are_used(place: Place) {
    let client = place.client().await;
    let directory = place.name("");
    let command =
        Command::shell("pwd -P; echo $GIVEN").cwd(directory.trim_end_matches('/')).env("GIVEN", "a b");
    let output = command.output(&client).await.unwrap();
    let real = place.path("").canonicalize().unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\na b\n", real.display()));
    let relative = from_working_directory(&client, &real).await;
    let output = Command::shell("pwd -P").cwd(relative).output(&client).await.unwrap();
    assert_eq!(String::from_utf8(output.stdout).unwrap(), format!("{}\n", real.display()));
}

pub(crate) async fn the_host_describes_itself(place: Place) {
    let client = place.client().await;
    let info = client.info().await.unwrap();
    assert!(info.shell.path.starts_with('/'), "{info:?}");
    assert!(!client.session_id().is_empty());
}
