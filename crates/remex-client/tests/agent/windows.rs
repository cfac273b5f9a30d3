//! When a step returns, and with how much.

use std::{
    future::{Future as _, poll_fn},
    pin::pin,
    task::Poll,
    time::Duration,
};

use remex_client::{
    agent::{Limits, Progress, Refusal, Step, Window, Write},
    process::Exit,
};
use serde_json::json;

use super::{SECOND, Stage, ended, truncated, whole, window};

#[tokio::test]
async fn a_long_command_returns_at_the_end_of_its_window() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.server.say(&mut process, "so far\n").await;
    stage.unseen(7).await;
    stage.clock.advance(SECOND - Duration::from_millis(1));
    tokio::task::yield_now().await;
    assert!(!step.is_finished());
    stage.clock.advance(Duration::from_millis(1));
    let step = step.await.unwrap().unwrap();
    assert_eq!(step.handle.to_string(), "1");
    let Step { output, progress, accepted_bytes, waited, .. } = step;
    assert_eq!((output, progress, accepted_bytes, waited), (whole("so far\n"), Progress::Running, 0, SECOND));
}

#[tokio::test]
async fn a_command_that_ends_returns_at_once_with_everything() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.clock.advance(SECOND / 2);
    stage.server.say_on("stderr", &mut process, "no such file\n").await;
    stage.server.end(&mut process, 3).await;
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.output, step.progress, step.waited), (whole("no such file\n"), ended(3), SECOND / 2));
}

#[tokio::test]
async fn a_step_continues_after_the_exit_while_output_is_open() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.server.exit(&mut process, 0).await;
    stage.server.say(&mut process, "from a child").await;
    stage.unseen(12).await;
    assert!(!step.is_finished());
    assert_eq!(stage.agent.list()[0].progress, Progress::Exited(Exit::new(0)));
    stage.server.close(&mut process).await;
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.output, step.progress), (whole("from a child"), ended(0)));
}

#[tokio::test]
async fn a_step_that_times_out_after_the_exit_reports_open_output() {
    let mut stage = Stage::new(Limits::default().open(1)).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.server.exit(&mut process, 3).await;
    stage.server.say(&mut process, "from a child\n").await;
    stage.unseen(13).await;
    stage.clock.advance(SECOND);
    let step = step.await.unwrap().unwrap();
    assert_eq!((step.output, step.progress), (whole("from a child\n"), Progress::Exited(Exit::new(3))));
    // It still takes its room, and can be killed: what is in the background goes on.
    let full = stage.agent.exec_command(&stage.client, &stage.command(), window(SECOND)).await;
    assert_eq!(full, Err(Refusal::Full { open: 1 }.into()));
    let kill = async {
        let (id, _) = stage.server.expect("process/terminate").await;
        stage.server.answer(&id, json!({"running": true})).await;
    };
    let (killed, ()) = tokio::join!(stage.agent.kill(step.handle), kill);
    assert_eq!(killed, Ok(()));
    stage.server.close(&mut process).await;
    assert_eq!(stage.step_to_end(step.handle).await.progress, ended(3));
}

#[tokio::test]
async fn an_exit_at_the_last_moment_is_reported() {
    for end_comes in ["before", "after"] {
        let mut stage = Stage::new(Limits::default()).await;
        let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
        let agent = stage.agent.clone();
        let mut step = pin!(agent.write_stdin(handle, Write::Nothing, window(SECOND)));
        let is_pending = poll_fn(|context| Poll::Ready(step.as_mut().poll(context).is_pending())).await;
        assert!(is_pending);
        // Nobody looks at the step until both have happened.
        if end_comes == "after" {
            stage.clock.advance(SECOND);
        }
        stage.server.say(&mut process, "last words").await;
        stage.server.end(&mut process, 0).await;
        stage.running(0).await;
        if end_comes == "before" {
            stage.clock.advance(SECOND);
        }
        let step = step.await.unwrap();
        assert_eq!((step.output, step.progress, step.waited), (whole("last words"), ended(0), SECOND));
    }
}

#[tokio::test]
async fn output_between_steps_is_returned_once_by_the_next_step() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    stage.server.say(&mut process, "one\n").await;
    stage.server.say_on("stderr", &mut process, "two\n").await;
    stage.unseen(8).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("one\ntwo\n"));
    assert_eq!(stage.step_and_yield(handle).await.output, whole(""));
    stage.server.say(&mut process, "three\n").await;
    stage.server.end(&mut process, 0).await;
    stage.running(0).await;
    for output in ["three\n", ""] {
        let step = stage.step_to_end(handle).await;
        assert_eq!((step.output, step.progress), (whole(output), ended(0)));
        assert_eq!(step.waited, Duration::ZERO);
    }
}

#[tokio::test]
async fn a_step_returns_the_requested_amount_and_reports_what_it_omits() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    let output: String = (0..1000).map(|line| format!("line {line:03}\n")).collect();
    stage.server.say(&mut process, &output).await;
    stage.server.end(&mut process, 0).await;
    stage.running(0).await;
    let window = Window::default().max_output_bytes(90);
    let step = stage.agent.write_stdin(handle, Write::Nothing, window).await.unwrap();
    let text = "line 000\nline 001\nline 002\n[… 8946 bytes omitted …]\nline 997\nline 998\nline 999\n";
    assert_eq!(step.output, truncated(text, 8946, 9000));
}

#[tokio::test]
async fn unseen_output_is_bounded() {
    let limits = Limits::default().collect_bytes(70).output_bytes(1 << 20);
    let mut stage = Stage::new(limits).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    for _ in 0..100 {
        stage.server.say(&mut process, "x".repeat(10)).await;
    }
    stage.unseen(1000).await;
    let text = format!("{}\n[… 960 bytes omitted …]\n{}", "x".repeat(20), "x".repeat(20));
    assert_eq!(stage.step_and_yield(handle).await.output.text, text);
}

#[tokio::test]
async fn a_server_side_gap_is_counted() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    stage.server.say(&mut process, "before").await;
    stage.server.lose(&mut process, 5, 100).await;
    stage.server.say(&mut process, "after").await;
    stage.unseen(111).await;
    let expected = truncated("before\n[… 100 bytes omitted …]\nafter", 100, 111);
    assert_eq!(stage.step_and_yield(handle).await.output, expected);
}

#[tokio::test]
async fn a_character_is_not_split_between_steps_or_streams() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    let crab = "🦀".as_bytes();
    stage.server.say(&mut process, [b"a", &crab[..3]].concat()).await;
    stage.server.say_on("stderr", &mut process, "b").await;
    stage.unseen(5).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("ab"));
    stage.server.say(&mut process, [&crab[3..], &crab[..2]].concat()).await;
    stage.unseen(6).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("🦀"));
    stage.server.end(&mut process, 0).await;
    let step = stage.step_to_end(handle).await;
    assert_eq!((step.output.text.as_str(), step.output.total_bytes), ("\u{fffd}", 2));
}

#[tokio::test]
async fn the_window_is_clamped_to_its_limits() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, _process) = stage.exec_and_yield(stage.command()).await;
    let asked = [window(Duration::ZERO), window(Duration::MAX), Window::default()];
    for (window, waited) in asked.into_iter().zip([SECOND / 4, 30 * SECOND, 10 * SECOND]) {
        let agent = stage.agent.clone();
        let step = tokio::spawn(async move { agent.write_stdin(handle, Write::Nothing, window).await });
        stage.clock.asleep().await;
        stage.clock.advance(waited);
        assert_eq!(step.await.unwrap().unwrap().waited, waited);
    }
}
