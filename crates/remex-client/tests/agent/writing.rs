//! What a step gives a process.

use remex_client::{
    Error, ErrorKind,
    agent::{Limits, Progress, Refusal, Write},
    process::Stdio,
};
use serde_json::json;

use super::{SECOND, Stage, ended, server::written, whole, window};

#[tokio::test]
async fn input_is_written_and_the_step_waits_for_the_response() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::Bytes(b"1+1\n")).await;
    assert_eq!(stage.server.take_write().await, "1+1\n");
    stage.server.say(&mut process, "2\n").await;
    stage.unseen(2).await;
    stage.clock.advance(SECOND);
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.output, step.progress, step.accepted_bytes), (whole("2\n"), Progress::Running, 4));
}

#[tokio::test]
async fn end_of_input_follows_all_input_and_is_final() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::BytesAndEnd(b"all")).await;
    assert_eq!(stage.server.take_write().await, "all");
    let (id, _) = stage.server.expect("process/closeStdin").await;
    stage.server.answer(&id, json!({})).await;
    stage.clock.advance(SECOND);
    assert_eq!(step.await.unwrap().unwrap().accepted_bytes, 3);
    let refused = stage.agent.write_stdin(handle, Write::Bytes(b"more"), window(SECOND)).await;
    assert_eq!(refused, Err(Refusal::InputEnded { handle }.into()));
    stage.server.end(&mut process, 0).await;
    let step = stage.step_to_end(handle).await;
    assert_eq!(step.progress, ended(0));
}

#[tokio::test]
async fn end_of_input_arrives_after_its_step_has_ended() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, _process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::BytesAndEnd(b"all")).await;
    let (id, write) = stage.server.expect("process/write").await;
    stage.clock.advance(SECOND);
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.accepted_bytes, step.progress), (3, Progress::Running));
    assert_eq!(written(&write), "all");
    stage.server.answer(&id, json!({"status": "accepted", "accepted": true})).await;
    stage.server.expect("process/closeStdin").await;
}

#[tokio::test]
async fn a_process_that_does_not_read_blocks_no_step() {
    static INPUT: [u8; 4 << 20] = [b'x'; 4 << 20];
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, _process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::Bytes(&INPUT)).await;
    let mut writes = 0;
    while writes < 8 {
        stage.server.expect("process/write").await;
        writes += 1;
    }
    stage.clock.advance(SECOND);
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.accepted_bytes, step.progress), (1 << 19, Progress::Running));
}

#[tokio::test]
async fn writing_to_a_process_without_stdin_is_an_error() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    stage.server.say(&mut process, "kept").await;
    stage.unseen(4).await;
    for write in [Write::Bytes(b"hello"), Write::BytesAndEnd(b"")] {
        let refused = stage.agent.write_stdin(handle, write, window(SECOND)).await.unwrap_err();
        assert_eq!(refused, Refusal::NoInput { handle }.into());
        assert_eq!(
            refused.to_string(),
            "process 1 accepts no input, and nothing was written; start it with piped input or a terminal"
        );
    }
    assert_eq!(stage.step_and_yield(handle).await.output, whole("kept"));
}

#[tokio::test]
async fn writing_to_a_closed_stdin_fails_and_keeps_the_output() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    stage.server.say(&mut process, "kept").await;
    let step = stage.step(handle, Write::Bytes(b"hello")).await;
    let (id, _) = stage.server.expect("process/write").await;
    stage.server.answer(&id, json!({"status": "stdinClosed", "accepted": false})).await;
    assert_eq!(step.await.unwrap().unwrap_err().kind(), Some(ErrorKind::StdinClosed));
    stage.unseen(4).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("kept"));
}

#[tokio::test]
async fn writing_to_an_exited_process_fails_and_keeps_its_remaining_output() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    stage.server.say(&mut process, "goodbye\n").await;
    stage.server.end(&mut process, 1).await;
    stage.running(0).await;
    let refused =
        stage.agent.write_stdin(handle, Write::Bytes(b"hello?\n"), window(SECOND)).await.unwrap_err();
    assert_eq!(refused, Error::Agent(Refusal::Ended { handle }));
    assert_eq!(
        refused.to_string(),
        "process 1 has already ended; write nothing to it to get the rest of its output"
    );
    let step = stage.step_to_end(handle).await;
    assert_eq!((step.output, step.progress), (whole("goodbye\n"), ended(1)));
}

#[tokio::test]
async fn an_exit_while_input_is_written_ends_the_step() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::Bytes(b"exit\n")).await;
    stage.server.expect("process/write").await;
    stage.server.end(&mut process, 0).await;
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.progress, step.accepted_bytes), (ended(0), 5));
}

#[tokio::test]
async fn an_interrupt_is_a_key_on_a_terminal_and_a_signal_without() {
    let mut stage = Stage::new(Limits::default()).await;
    let (terminal, _process) = stage.exec_and_yield(stage.terminal()).await;
    let (pipes, _process) = stage.exec_and_yield(stage.command()).await;
    let (pressed, key) = tokio::join!(stage.agent.interrupt(terminal), stage.server.take_write());
    assert_eq!((pressed, key.as_str()), (Ok(()), "\u{3}"));
    let signal = async {
        let (id, signal) = stage.server.expect("process/signal").await;
        stage.server.answer(&id, json!({})).await;
        signal["signal"].clone()
    };
    let (sent, signal) = tokio::join!(stage.agent.interrupt(pipes), signal);
    assert_eq!((sent, signal), (Ok(()), json!("interrupt")));
}
