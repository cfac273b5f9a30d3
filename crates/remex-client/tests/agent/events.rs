//! The events for subscribers of an agent, also between two steps.

use std::time::Duration;

use remex_client::{
    agent::{AgentEvent, AgentEvents, Limits, Progress, Write},
    process::Stdio,
};
use serde_json::{Value, json, to_value};
use tokio::time::timeout;

use super::{SECOND, Stage, ended, window};

/// Longer than anything here takes.
const PATIENCE: Duration = Duration::from_secs(30);

async fn next(events: &mut AgentEvents) -> Value {
    let event = timeout(PATIENCE, events.next()).await.expect("no event of the agent");
    to_value(event.expect("the agent is there")).unwrap()
}

/// Fails unless the next event is that the second process, which is started for it, has ended.
async fn nothing_else_was_reported(stage: &mut Stage, events: &mut AgentEvents) {
    let (handle, mut process) = stage.exec_and_yield(stage.command().arg("last")).await;
    stage.server.end(&mut process, 0).await;
    let event = next(events).await;
    assert_eq!((&event["handle"], &event["command"]), (&to_value(handle).unwrap(), &json!("prog last")));
}

#[tokio::test]
async fn an_exit_between_two_steps_is_reported_once() {
    let mut stage = Stage::new(Limits::default()).await;
    let mut events = stage.agent.events();
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    stage.server.say(&mut process, "the rest").await;
    stage.server.end(&mut process, 3).await;
    let event = timeout(PATIENCE, events.next()).await.expect("no event of the agent").unwrap();
    let AgentEvent::ExecCommandEnd { handle: ended_handle, command, progress, .. } = event else {
        panic!("{event:?}")
    };
    assert_eq!((ended_handle, command.as_str(), progress), (handle, "prog", ended(3)));
    // The output is left for the next step, which tells the end as well.
    let step = stage.step_to_end(handle).await;
    assert_eq!((step.output.text.as_str(), step.progress), ("the rest", ended(3)));
    nothing_else_was_reported(&mut stage, &mut events).await;
}

#[tokio::test]
async fn an_exit_reported_by_a_step_is_not_an_event() {
    let mut stage = Stage::new(Limits::default()).await;
    let mut events = stage.agent.events();
    stage.exec_and_end().await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    let step = stage.step(handle, Write::Nothing).await;
    stage.server.end(&mut process, 0).await;
    assert_eq!(step.await.unwrap().unwrap().progress, ended(0));
    nothing_else_was_reported(&mut stage, &mut events).await;
}

#[tokio::test]
async fn an_exit_during_a_dropped_step_is_reported() {
    let mut stage = Stage::new(Limits::default()).await;
    let mut events = stage.agent.events();
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    let live = stage.agent.write_stdin_live(handle, Write::Nothing, window(SECOND)).unwrap();
    stage.server.end(&mut process, 7).await;
    stage.running(0).await;
    drop(live);
    let event = next(&mut events).await;
    assert_eq!((&event["type"], &event["progress"]["code"]), (&json!("execCommandEnd"), &json!(7)));
    nothing_else_was_reported(&mut stage, &mut events).await;
}

#[tokio::test]
async fn accepted_input_is_reported_as_an_event() {
    let mut stage = Stage::new(Limits::default()).await;
    let mut events = stage.agent.events();
    let (handle, _process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    let step = stage.step(handle, Write::Bytes(b"yes\n")).await;
    assert_eq!(stage.server.take_write().await, "yes\n");
    let told = next(&mut events).await;
    assert_eq!(told, json!({"type": "terminalInteraction", "handle": handle, "input": "yes\n"}));
    stage.clock.advance(SECOND);
    assert_eq!(step.await.unwrap().unwrap().progress, Progress::Running);
    // A step without input tells nothing.
    stage.step_and_yield(handle).await;
    nothing_else_was_reported(&mut stage, &mut events).await;
}

#[tokio::test]
async fn a_slow_subscriber_learns_what_it_missed_and_a_dropped_agent_ends_the_stream() {
    let mut stage = Stage::new(Limits::default()).await;
    let mut events = stage.agent.events();
    let (handle, _process) = stage.exec_and_yield(stage.command().stdin(Stdio::Piped)).await;
    for _ in 0..1030 {
        let step = stage.step(handle, Write::Bytes(b"x")).await;
        stage.server.take_write().await;
        stage.clock.advance(SECOND);
        step.await.unwrap().unwrap();
    }
    assert_eq!(next(&mut events).await, json!({"type": "missed", "events": 6}));
    let Stage { agent, .. } = stage;
    drop(agent);
    let rest = timeout(PATIENCE, async {
        let mut rest = 0;
        while events.next().await.is_some() {
            rest += 1;
        }
        rest
    });
    assert_eq!(rest.await.expect("the events end with the agent"), 1024);
}
