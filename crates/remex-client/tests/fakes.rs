//! The fakes behave as a real server does, and say how they are misused.

#![allow(clippy::unwrap_used, reason = "in a test it is the assertion")]

use std::time::Duration;

use remex_client::{
    Client, Command, Error, ErrorKind, Process,
    process::{
        Event, ExecProcess, Executor, Exit, ExitCause, ProcessFuture, SignalName, Stdio, TerminalSize,
    },
    testing::{FakeProcess, FakeServer, Script},
};
use remex_proto::process::{self as wire, WriteStatus};
use serde_json::json;
use tokio::time::{Instant, sleep, timeout};

/// Nothing here takes as long.
const OVERDUE: Duration = Duration::from_secs(30);

/// A command that runs until it is killed, on a real server and on a fake one.
const NAP: &str = "sleep 1000";

fn nap() -> Command {
    Command::new("sleep").arg("1000")
}

/// Returns clients of a real server and of a fake one, which behave in the same way.
async fn both() -> [Client; 2] {
    let real = Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
    [real, connect(&FakeServer::new().on(NAP, Script::new())).await]
}

async fn connect(server: &FakeServer) -> Client {
    Client::connect(server.target()).await.unwrap()
}

async fn exit_of(process: &Process) -> (i32, Option<String>, Option<ExitCause>) {
    let Exit { code, signal, cause, .. } = timeout(OVERDUE, process.wait()).await.expect("it ends").unwrap();
    (code, signal, cause)
}

fn ended_by(code: i32, signal: &str, cause: ExitCause) -> (i32, Option<String>, Option<ExitCause>) {
    (code, Some(signal.to_owned()), Some(cause))
}

fn refusal(error: Error) -> (ErrorKind, String) {
    let Error::Refused(refusal) = error else { panic!("{error:?} is no refusal") };
    (refusal.kind, refusal.message)
}

#[tokio::test]
async fn kill_sends_sigkill_and_graceful_termination_sigterm() {
    for client in both().await {
        let process = nap().start(&client).await.unwrap();
        process.kill().await.unwrap();
        assert_eq!(exit_of(&process).await, ended_by(137, "SIGKILL", ExitCause::Terminated));

        let process = nap().start(&client).await.unwrap();
        process.terminate(OVERDUE).await.unwrap();
        assert_eq!(exit_of(&process).await, ended_by(143, "SIGTERM", ExitCause::Terminated));
    }
}

#[tokio::test]
async fn terminate_returns_whether_the_process_was_running() {
    for client in both().await {
        let process = nap().id("p").start(&client).await.unwrap();
        let kill: wire::Terminate = serde_json::from_value(json!({"processId": "p"})).unwrap();
        assert!(client.call(kill.clone()).await.unwrap().running);
        exit_of(&process).await;
        assert!(!client.call(kill).await.unwrap().running);
    }
}

#[tokio::test]
async fn poll_returns_why_a_process_ended() {
    for client in both().await {
        let process = nap().start(&client).await.unwrap();
        process.kill().await.unwrap();
        let mut after = 0;
        let exit = loop {
            let batch = process.read(after, 1024, OVERDUE).await.unwrap();
            if let Some(exit) = batch.exit {
                break exit;
            }
            after = batch.last_seq;
        };
        assert_eq!((exit.code, exit.cause), (137, Some(ExitCause::Terminated)));
    }
}

#[tokio::test]
async fn a_signal_that_ends_processes_ends_a_fake() {
    let signals =
        [(SignalName::Term, 143), (SignalName::Kill, 137), (SignalName::Usr1, 138), (SignalName::Alrm, 142)];
    for client in both().await {
        for (signal, code) in signals {
            let process = nap().start(&client).await.unwrap();
            process.signal(signal).await.unwrap();
            assert_eq!(exit_of(&process).await, ended_by(code, signal.name(), ExitCause::Signal));
        }
    }
}

#[tokio::test]
async fn a_fake_survives_signals_that_end_no_process() {
    let survived = [
        SignalName::Chld,
        SignalName::Cont,
        SignalName::Stop,
        SignalName::Tstp,
        SignalName::Ttin,
        SignalName::Ttou,
        SignalName::Urg,
        SignalName::Winch,
    ];
    for signal in SignalName::ALL {
        let process = FakeProcess::new("p", Script::new());
        process.signal(*signal).await.unwrap();
        assert_eq!(process.signals(), [*signal]);
        let has_ended = timeout(Duration::ZERO, process.wait()).await.is_ok();
        assert_eq!(has_ended, !survived.contains(signal), "{signal}");
    }
}

#[tokio::test]
async fn a_command_without_input_accepts_none() {
    let write = |members| serde_json::from_value::<wire::Write>(members).unwrap();
    for client in both().await {
        let process = nap().id("p").start(&client).await.unwrap();
        let error = process.write(b"hello").await.unwrap_err();
        assert_eq!(error.kind(), Some(ErrorKind::StdinClosed));

        let with_id = write(json!({"processId": "p", "chunk": "aGk=", "writeId": "w"}));
        assert_eq!(client.call(with_id).await.unwrap().status, WriteStatus::StdinClosed);

        let without_id = write(json!({"processId": "p", "chunk": "aGk="}));
        let expected = (ErrorKind::StdinClosed, "stdin is closed for process p".to_owned());
        assert_eq!(refusal(client.call(without_id).await.unwrap_err()), expected);
    }
}

#[tokio::test]
async fn pipes_and_terminals_accept_input() {
    for client in both().await {
        for command in [nap().stdin(Stdio::Piped), nap().terminal(TerminalSize::default())] {
            command.start(&client).await.unwrap().write(b"hello").await.unwrap();
        }
    }
}

#[tokio::test]
async fn end_of_input_is_refused_on_a_terminal() {
    for client in both().await {
        let process = nap().terminal(TerminalSize::default()).start(&client).await.unwrap();
        assert_eq!(process.close_stdin().await.unwrap_err().kind(), Some(ErrorKind::NotSupported));
        process.write(b"hello").await.unwrap();
    }
}

#[tokio::test]
async fn the_id_of_a_known_process_is_refused() {
    for client in both().await {
        // The client itself refuses an id as long as it has a handle.
        drop(nap().id("p").start(&client).await.unwrap());
        let expected = (ErrorKind::StartIdMismatch, "process p already exists".to_owned());
        assert_eq!(refusal(nap().id("p").start(&client).await.unwrap_err()), expected);

        let start = json!({"processId": "p", "argv": ["sleep", "1000"], "cwd": "/", "env": {}, "tty": false});
        let start: wire::Start = serde_json::from_value(start).unwrap();
        let expected = (ErrorKind::ProcessExists, "process p already exists".to_owned());
        assert_eq!(refusal(client.call(start).await.unwrap_err()), expected);

        let first = client.process("p").await.unwrap();
        first.kill().await.unwrap();
        assert_eq!(exit_of(&first).await.0, 137);
    }
}

#[tokio::test]
async fn a_refused_start_is_not_counted() {
    let server = FakeServer::new().on(NAP, Script::new());
    let client = connect(&server).await;
    drop(nap().id("p").start(&client).await.unwrap());
    nap().id("p").start(&client).await.unwrap_err();
    assert_eq!(server.started(), [NAP]);
}

#[tokio::test]
async fn process_ids_are_per_client() {
    let server = FakeServer::new().on("login", Script::new().expect_input("ada\n").exit(0));
    let login = Command::new("login").id("p").stdin(Stdio::Piped);
    let (one, other) = (connect(&server).await, connect(&server).await);
    let [one, other] = [login.start(&one).await.unwrap(), login.start(&other).await.unwrap()];
    one.write(b"ada\n").await.unwrap();
    assert_eq!(exit_of(&one).await.0, 0);
    assert!(timeout(Duration::ZERO, other.wait()).await.is_err());
    other.write(b"bob\n").await.unwrap();
    assert_eq!(exit_of(&other).await.0, 0);
    assert_eq!(server.written("p"), b"bob\n");
}

#[tokio::test]
async fn undeliverable_input_ends_the_script() {
    let server = FakeServer::new().on("login", Script::new().stdout("name? ").expect_input("ada\n").exit(0));
    let client = connect(&server).await;
    let piped = Command::new("login").stdin(Stdio::Piped);
    let cases = [
        (&piped, &b""[..], "the input was closed"),
        (&piped, b"ad", "the input was closed after `ad`"),
        (
            &Command::new("login"),
            b"",
            "the command was started without input; start it with `Stdio::Piped` or on a terminal",
        ),
    ];
    for (command, input, reason) in cases {
        let process = command.start(&client).await.unwrap();
        let output = timeout(OVERDUE, process.communicate(input)).await.expect("it ends").unwrap();
        assert_eq!((output.exit.code, &output.stdout[..]), (1, &b"name? "[..]));
        let expected = format!("the script expected input `ada\\n`, but {reason}\n");
        assert_eq!(String::from_utf8(output.stderr).unwrap(), expected);
    }
}

#[tokio::test]
async fn input_can_be_closed_after_it_arrived() {
    let process = FakeProcess::new("p", Script::new().expect_input("ada\n"));
    process.write(b"ada\n").await.unwrap();
    process.close_stdin().await.unwrap();
    assert!(timeout(Duration::ZERO, process.wait()).await.is_err());
}

#[tokio::test]
async fn event_numbers_match_those_of_a_server() {
    let server = FakeServer::new().on("build", Script::new().stdout("one").stdout("two"));
    let client = connect(&server).await;
    let process = Command::new("build").start(&client).await.unwrap();
    assert_eq!(process.reference().cursor_before_newest(0).await.unwrap(), 2);
    assert_eq!(process.reference().cursor_before_newest(1).await.unwrap(), 1);
    process.kill().await.unwrap();
    // The exit and the close follow.
    assert_eq!(process.reference().cursor_before_newest(0).await.unwrap(), 4);
}

#[tokio::test]
async fn a_poll_cursor_never_moves_back() {
    let process = FakeProcess::new("p", Script::new().stdout("one"));
    let batch = process.read(7, 1024, Duration::ZERO).await.unwrap();
    assert_eq!((batch.chunks, batch.last_seq), (Vec::new(), 7));
}

#[tokio::test(start_paused = true)]
async fn a_timeout_kills_a_fake() {
    let client = connect(&FakeServer::new().on(NAP, Script::new())).await;
    let began = Instant::now();
    let process = nap().timeout(Duration::from_secs(20)).start(&client).await.unwrap();
    assert_eq!(exit_of(&process).await, ended_by(137, "SIGKILL", ExitCause::Timeout));
    assert_eq!(began.elapsed().as_secs(), 20);
}

#[tokio::test(start_paused = true)]
async fn output_resets_the_idle_timeout_of_a_fake() {
    let server = FakeServer::new().on(NAP, Script::new().expect_input("?").stdout("!"));
    let client = connect(&server).await;
    let began = Instant::now();
    let command = nap().stdin(Stdio::Piped).idle_timeout(Duration::from_secs(20));
    let process = command.start(&client).await.unwrap();
    sleep(Duration::from_secs(15)).await;
    process.write(b"?").await.unwrap();
    assert_eq!(exit_of(&process).await, ended_by(137, "SIGKILL", ExitCause::IdleTimeout));
    assert_eq!(began.elapsed().as_secs(), 35);
}

#[tokio::test(start_paused = true)]
async fn a_timeout_does_not_affect_an_exited_process() {
    let client = connect(&FakeServer::new().on("true", Script::new().exit(0))).await;
    let process = Command::new("true").timeout(Duration::from_secs(20)).start(&client).await.unwrap();
    sleep(Duration::from_secs(60)).await;
    assert_eq!(exit_of(&process).await, (0, None, Some(ExitCause::Exit)));
}

#[test]
#[should_panic(expected = "a script cannot go on after `exit(0)`; make `exit` its last step")]
fn a_step_after_the_exit_panics() {
    let _ = Script::new().exit(0).stdout("never");
}

#[test]
#[should_panic(expected = "a script cannot go on after `exit(0)`")]
fn a_second_exit_panics() {
    let _ = Script::new().exit(0).exit(1);
}

#[test]
#[should_panic(expected = "`make` already has a script")]
fn a_second_script_for_a_command_line_panics() {
    let _ = FakeServer::new().on("make", Script::new().exit(0)).on("make", Script::new().exit(1));
}

/// What a program does that knows only the traits: starts a command, types, follows it to its end.
async fn greet(host: &dyn Executor) -> Result<(String, i32), Error> {
    let process = host.start(&greeter()).await?;
    process.write(b"ada\n").await?;
    let (mut events, mut said, mut code) = (process.subscribe(0), String::new(), None);
    while let Some(event) = events.next().await? {
        match event {
            Event::Output(chunk) => said += &String::from_utf8_lossy(&chunk.bytes),
            Event::Exited { exit, .. } => code = Some(exit.code),
            _ => {}
        }
    }
    Ok((said, code.expect("it exits before it is closed")))
}

fn greeter() -> Command {
    Command::shell("printf 'name? '; read name; echo hello, $name; exit 3").stdin(Stdio::Piped)
}

fn greeter_script() -> Script {
    Script::new().stdout("name? ").expect_input("ada\n").stdout("hello, ada\n").exit(3)
}

/// A host of a test of its own: it starts nothing but what the test has written.
#[derive(Debug)]
struct Stub;

impl Executor for Stub {
    fn start<'a>(&'a self, command: &'a Command) -> ProcessFuture<'a, Box<dyn ExecProcess>> {
        Box::pin(async move {
            assert_eq!(command.line(), greeter().line());
            Ok(Box::new(FakeProcess::new("stub", greeter_script())) as Box<dyn ExecProcess>)
        })
    }
}

#[tokio::test]
async fn a_program_swaps_its_host_by_value() {
    let here = Client::connect(remex::Local::here().unwrap().target()).await.unwrap();
    let scripted = connect(&FakeServer::new().on(greeter().line(), greeter_script())).await;
    let hosts: [Box<dyn Executor>; 3] = [Box::new(here), Box::new(scripted), Box::new(Stub)];
    for host in hosts {
        let greeted = timeout(OVERDUE, greet(&*host)).await.expect("it ends").unwrap();
        assert_eq!(greeted, ("name? hello, ada\n".to_owned(), 3), "{host:?}");
    }
}
