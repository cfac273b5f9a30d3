//! The JSON of steps, which others store and show: members may be added, but not changed.

use std::time::Duration;

use remex_client::agent::{Limits, RetainedOutput, TruncatedText, Window, Write};
use serde_json::{Value, from_value, json, to_value};

use super::{SECOND, Stage, truncated};

#[tokio::test]
async fn steps_and_lists_are_written_as_documented() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.server.say(&mut process, "so far\n").await;
    stage.unseen(7).await;
    stage.clock.advance(SECOND);
    let step = step.await.unwrap().unwrap();
    let expected = json!({
        "handle": 1,
        "output": {"text": "so far\n", "omittedBytes": 0, "totalBytes": 7, "count": "exact"},
        "progress": {"state": "running"},
        "acceptedBytes": 0,
        "waitedMs": 1000,
    });
    assert_eq!(to_value(&step).unwrap(), expected);

    stage.server.say(&mut process, "more").await;
    stage.unseen(4).await;
    stage.clock.advance(2 * SECOND);
    let expected = json!([{
        "handle": 1,
        "command": "prog",
        "progress": {"state": "running"},
        "idleForMs": 2000,
        "unseenBytes": 4,
    }]);
    assert_eq!(to_value(stage.agent.list()).unwrap(), expected);

    stage.server.exit(&mut process, 3).await;
    while to_value(stage.agent.list()).unwrap()[0]["progress"] != json!({"state": "exited", "code": 3}) {
        tokio::task::yield_now().await;
    }
    stage.server.close(&mut process).await;
    let step = stage.step_to_end(step.handle).await;
    assert_eq!(to_value(&step).unwrap()["progress"], json!({"state": "ended", "code": 3}));
}

#[tokio::test]
async fn exits_and_losses_are_serialized_completely() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    let usage = json!({"userMs": 1, "systemMs": 2, "maxRssBytes": null, "wallMs": 3});
    let denied = json!([{"host": "example.com", "port": 443, "count": 2}]);
    let exited = json!({"exitCode": 137, "signal": "SIGKILL", "cause": "outOfMemory", "usage": usage,
        "networkDenied": denied});
    stage.server.exit_with(&mut process, exited).await;
    stage.server.close(&mut process).await;
    let step = step.await.unwrap().unwrap();
    let expected = json!({"state": "ended", "code": 137, "signal": "SIGKILL", "cause": "outOfMemory",
        "usage": usage, "networkDenied": denied});
    assert_eq!(to_value(&step.progress).unwrap(), expected);

    let (handle, _process) = stage.exec_and_yield(stage.command()).await;
    drop(stage.server);
    let step = stage.agent.write_stdin(handle, Write::Nothing, Window::default()).await.unwrap();
    let lost = to_value(&step.progress).unwrap();
    assert_eq!(lost["state"], "lost");
    assert!(lost["message"].as_str().unwrap().contains("could not be re-established"), "{lost}");
    assert!(lost["hint"].is_string() || lost["hint"].is_null(), "{lost}");
}

#[test]
fn serialized_values_round_trip() {
    let output = truncated("…", 4, 14);
    let json = json!({"text": "…", "omittedBytes": 4, "totalBytes": 14, "count": "exact"});
    assert_eq!(to_value(&output).unwrap(), json);
    assert_eq!(from_value::<TruncatedText>(json).unwrap(), output);
    let mut retained = RetainedOutput::default();
    (retained.output, retained.evicted_bytes) = (output, 3);
    let json = to_value(&retained).unwrap();
    assert_eq!(json["evictedBytes"], 3);
    assert_eq!(from_value::<RetainedOutput>(json).unwrap(), retained);
}

#[test]
fn a_model_can_set_the_output_window() {
    let window = Window::default().yield_after(Duration::from_millis(1500)).max_output_bytes(100);
    for (json, expected) in [
        (json!({"yieldAfterMs": 1500, "maxOutputBytes": 100}), window),
        (json!({}), Window::default()),
        (json!({"yieldAfterMs": null, "unknown": 1}), Window::default()),
    ] {
        assert_eq!(from_value::<Window>(json).unwrap(), expected);
    }
    assert_eq!(to_value(window).unwrap(), json!({"yieldAfterMs": 1500, "maxOutputBytes": 100}));
    assert_eq!(to_value(Window::default()).unwrap(), Value::Object(serde_json::Map::new()));
}
