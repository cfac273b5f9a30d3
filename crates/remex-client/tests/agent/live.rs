//! Steps that are watched while they wait.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use remex_client::{
    ErrorKind,
    agent::{ControlSequences, Count, Delta, Handle, Limits, LiveStep, Progress, Step, StepEvent, Write},
    process::{Stdio, Stream},
};
use serde_json::{json, to_value};
use tokio::time::timeout;

use super::{SECOND, Stage, ended, server::Process, whole, window};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

/// Executes a command, and returns its step after the first event.
async fn exec_live(stage: &mut Stage) -> (LiveStep, Process) {
    let (agent, client, command) = (stage.agent.clone(), stage.client.clone(), stage.command());
    let (live, process) =
        tokio::join!(agent.exec_command_live(&client, &command, window(SECOND)), stage.server.start());
    let mut live = live.unwrap();
    begin(&mut live).await;
    (live, process)
}

async fn begin(live: &mut LiveStep) -> Handle {
    match next(live).await {
        StepEvent::Begin { handle, command, .. } => {
            assert_eq!(command, "prog");
            handle
        }
        other => panic!("no begin: {other:?}"),
    }
}

async fn next(live: &mut LiveStep) -> StepEvent {
    let event = timeout(PATIENCE, live.next()).await.expect("no event of a live step");
    event.unwrap().expect("an event before the end")
}

async fn input(live: &mut LiveStep) -> String {
    match next(live).await {
        StepEvent::TerminalInteraction { input, .. } => input,
        other => panic!("no input: {other:?}"),
    }
}

async fn delta(live: &mut LiveStep) -> Delta {
    match next(live).await {
        StepEvent::Delta(delta) => delta,
        other => panic!("no delta: {other:?}"),
    }
}

async fn text(live: &mut LiveStep) -> (Stream, String) {
    let Delta { stream, text, omitted_bytes, .. } = delta(live).await;
    assert_eq!(omitted_bytes, 0);
    (stream, text)
}

async fn end(live: &mut LiveStep) -> Step {
    let step = match next(live).await {
        StepEvent::End(step) => step,
        other => panic!("no end: {other:?}"),
    };
    assert_eq!(live.next().await, Ok(None));
    step
}

#[tokio::test]
async fn output_is_streamed_during_the_step_and_complete_in_its_result() {
    let mut stage = Stage::new(Limits::default()).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    stage.server.say(&mut process, "one\n").await;
    assert_eq!(text(&mut live).await, (Stream::Stdout, "one\n".to_owned()));
    stage.server.say_on("stderr", &mut process, "two\n").await;
    assert_eq!(text(&mut live).await, (Stream::Stderr, "two\n".to_owned()));
    stage.clock.advance(SECOND / 2);
    stage.server.say(&mut process, "three\n").await;
    stage.server.end(&mut process, 3).await;
    assert_eq!(text(&mut live).await, (Stream::Stdout, "three\n".to_owned()));
    let step = end(&mut live).await;
    assert_eq!((step.output, step.progress, step.waited), (whole("one\ntwo\nthree\n"), ended(3), SECOND / 2));
}

#[tokio::test]
async fn an_unfinished_step_consumes_nothing() {
    let mut stage = Stage::new(Limits::default()).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    let handle = live.handle();
    stage.server.say(&mut process, "kept").await;
    assert_eq!(text(&mut live).await.1, "kept");
    drop(live);
    // Also when its time is over, and only its result was not fetched.
    let mut live = stage.agent.write_stdin_live(handle, Write::Nothing, window(SECOND)).unwrap();
    begin(&mut live).await;
    assert_eq!(text(&mut live).await.1, "kept");
    stage.server.say(&mut process, ", too").await;
    stage.unseen(9).await;
    stage.clock.advance(SECOND);
    assert_eq!(text(&mut live).await.1, ", too");
    drop(live);
    assert_eq!(stage.step_and_yield(handle).await.output, whole("kept, too"));
    assert_eq!(stage.step_and_yield(handle).await.output, whole(""));
}

#[tokio::test]
async fn deltas_start_with_output_since_the_last_step() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    stage.server.say(&mut process, "seen").await;
    stage.unseen(4).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("seen"));
    stage.server.say(&mut process, "between").await;
    stage.unseen(7).await;
    let mut live = stage.agent.write_stdin_live(handle, Write::Bytes(b"go on\n"), window(SECOND)).unwrap();
    begin(&mut live).await;
    assert_eq!(input(&mut live).await, "go on\n");
    assert_eq!(text(&mut live).await.1, "between");
    let written = async {
        assert_eq!(stage.server.take_write().await, "go on\n");
        stage.server.say(&mut process, "going").await;
    };
    let (going, ()) = tokio::join!(text(&mut live), written);
    assert_eq!(going.1, "going");
    stage.clock.advance(SECOND);
    let step = end(&mut live).await;
    assert_eq!((step.output, step.progress), (whole("betweengoing"), Progress::Running));
    assert_eq!(step.accepted_bytes, 6);
}

#[tokio::test]
async fn a_flood_is_bounded_and_omitted_bytes_are_counted() {
    let mut stage = Stage::new(Limits::default().live_bytes(10_000)).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    for _ in 0..100 {
        stage.server.say(&mut process, "x".repeat(1000)).await;
    }
    stage.server.end(&mut process, 0).await;
    stage.running(0).await;
    // The step is over, yet what is left comes before its end.
    let (mut shown, mut missing) = (0, 0);
    let step = loop {
        match next(&mut live).await {
            StepEvent::Delta(delta) => {
                shown += delta.text.len() as u64;
                missing += delta.omitted_bytes;
            }
            StepEvent::End(step) => break step,
            other => panic!("{other:?}"),
        }
    };
    assert!(shown <= 10_000, "{shown}");
    assert_eq!((shown + missing, step.output.total_bytes), (100_000, 100_000));
}

#[tokio::test]
async fn a_server_side_gap_is_counted_with_the_text_after_it() {
    let mut stage = Stage::new(Limits::default()).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    stage.server.lose(&mut process, 5, 100).await;
    // The viewer looks, and there is nothing to show.
    let looks = poll_fn(|context| Poll::Ready(pin!(live.next()).poll(context).is_pending()));
    stage.unseen(100).await;
    assert!(looks.await);
    stage.server.say(&mut process, "after").await;
    let Delta { text, omitted_bytes, count, .. } = delta(&mut live).await;
    assert_eq!((text.as_str(), omitted_bytes, count), ("after", 100, Count::Exact));
}

#[tokio::test]
async fn a_step_ends_in_time_despite_continuous_output() {
    let mut stage = Stage::new(Limits::default()).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    let mut all = String::new();
    stage.server.say(&mut process, "first ").await;
    all += &text(&mut live).await.1;
    stage.clock.advance(SECOND);
    let mut said = 6;
    let step = loop {
        stage.server.say(&mut process, "more ").await;
        said += 5;
        stage.unseen(said).await;
        match next(&mut live).await {
            StepEvent::Delta(delta) => all += &delta.text,
            StepEvent::End(step) => break step,
            other => panic!("{other:?}"),
        }
    };
    assert!(all.len() < 30, "{all}");
    // What came after the time was over is in the step, and the next one shows it.
    let mut live = stage.agent.write_stdin_live(step.handle, Write::Nothing, window(SECOND)).unwrap();
    begin(&mut live).await;
    stage.server.say(&mut process, "last").await;
    stage.server.end(&mut process, 0).await;
    let step_after = loop {
        match next(&mut live).await {
            StepEvent::Delta(delta) => all += &delta.text,
            StepEvent::End(step) => break step,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(all, step.output.text + "last");
    assert_eq!(step_after.output, whole("last"));
}

#[tokio::test]
async fn a_character_is_whole_in_a_delta_and_control_sequences_are_removed_on_request() {
    let mut stage = Stage::new(Limits::default().control_sequences(ControlSequences::Remove)).await;
    let (mut live, mut process) = exec_live(&mut stage).await;
    let crab = "🦀".as_bytes();
    stage.server.say(&mut process, [b"\x1b[1ma", &crab[..2]].concat()).await;
    assert_eq!(text(&mut live).await.1, "a");
    stage.server.say(&mut process, [&crab[2..], b"\r10%\x1b[K"].concat()).await;
    let mut live_text = String::new();
    while live_text != "🦀\r10%" {
        live_text += &text(&mut live).await.1;
        assert!("🦀\r10%".starts_with(&live_text), "{live_text:?}");
    }
    stage.server.say(&mut process, [0xc3]).await;
    stage.server.end(&mut process, 0).await;
    assert_eq!(text(&mut live).await.1, "\u{fffd}");
    assert_eq!(end(&mut live).await.output.text, "10%\u{fffd}");
}

#[tokio::test]
async fn a_failed_step_reports_its_error_and_keeps_its_output() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    stage.server.say(&mut process, "kept").await;
    stage.unseen(4).await;
    let mut live = stage.agent.write_stdin_live(handle, Write::Bytes(b"hello"), window(SECOND)).unwrap();
    begin(&mut live).await;
    assert_eq!(input(&mut live).await, "hello");
    assert_eq!(text(&mut live).await.1, "kept");
    let refuse = async {
        let (id, _) = stage.server.expect("process/write").await;
        stage.server.answer(&id, json!({"status": "stdinClosed", "accepted": false})).await;
    };
    let (failed, ()) = tokio::join!(live.next(), refuse);
    assert_eq!(failed.unwrap_err().kind(), Some(ErrorKind::StdinClosed));
    assert_eq!(live.next().await, Ok(None));
    assert_eq!(stage.step_and_yield(handle).await.output, whole("kept"));
}

#[tokio::test]
async fn events_are_written_as_documented() {
    let mut stage = Stage::new(Limits::default()).await;
    let (agent, client, command) = (stage.agent.clone(), stage.client.clone(), stage.command());
    let (live, mut process) =
        tokio::join!(agent.exec_command_live(&client, &command, window(SECOND)), stage.server.start());
    let mut live = live.unwrap();
    stage.server.say(&mut process, "hello").await;
    stage.server.end(&mut process, 0).await;
    stage.running(0).await;
    for expected in [
        json!({"type": "begin", "handle": 1, "command": "prog"}),
        json!({"type": "delta", "stream": "stdout", "text": "hello", "omittedBytes": 0, "count": "exact"}),
        json!({
            "type": "end",
            "handle": 1,
            "output": {"text": "hello", "omittedBytes": 0, "totalBytes": 5, "count": "exact"},
            "progress": {"state": "ended", "code": 0},
            "acceptedBytes": 0,
            "waitedMs": 0,
        }),
    ] {
        assert_eq!(to_value(next(&mut live).await).unwrap(), expected);
    }
}
