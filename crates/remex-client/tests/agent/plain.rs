//! Output without control sequences.

use remex_client::agent::{ControlSequences, Limits};
use remex_proto::Blob;
use serde_json::json;

use super::{Stage, truncated, whole};

async fn stage() -> Stage {
    Stage::new(Limits::default().control_sequences(ControlSequences::Remove)).await
}

#[tokio::test]
async fn sequences_are_removed_across_chunks_and_steps() {
    let mut stage = stage().await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    for chunk in ["\x1b[1", ";31mred\x1b", "[0m\n\x1b]0;ti"] {
        stage.server.say(&mut process, chunk).await;
    }
    stage.unseen(4).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("red\n"));
    // The title goes on in the next step; the other stream is not part of it.
    stage.server.say_on("stderr", &mut process, "oh\n").await;
    stage.server.say(&mut process, "tle\x07done\r\n").await;
    stage.server.end(&mut process, 0).await;
    stage.running(0).await;
    assert_eq!(stage.step_to_end(handle).await.output, whole("oh\ndone\n"));
}

#[tokio::test]
async fn a_progress_bar_is_shown_as_it_is_at_the_end_of_the_step() {
    let mut stage = stage().await;
    let (handle, mut process) = stage.exec_and_yield(stage.terminal()).await;
    for percent in [10, 20, 30] {
        stage.server.say_on("pty", &mut process, format!("\r{percent}%")).await;
    }
    stage.unseen(3).await;
    stage.server.say_on("pty", &mut process, "\r\x1b[Khalf way").await;
    stage.unseen(8).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("half way"));
    stage.server.say_on("pty", &mut process, "\r90%\rdone\r\n$ ").await;
    stage.unseen(7).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("done\n$ "));
}

#[tokio::test]
async fn retained_output_is_plain_too_and_dropped_bytes_are_counted_raw() {
    let mut stage = stage().await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    for line in ["\x1b[1mone\x1b[m\n", "\x1b[1mtwo\x1b[m\n"] {
        stage.server.say(&mut process, line).await;
    }
    stage.server.end(&mut process, 0).await;
    assert_eq!(stage.step_to_end(handle).await.output, whole("one\ntwo\n"));
    let read = async {
        let (id, _) = stage.server.expect("process/read").await;
        let chunk = json!({"seq": 2, "stream": "stdout", "chunk": Blob("\x1b[1mtwo\x1b[m\n".into())});
        let reply = json!({"chunks": [chunk], "nextSeq": 5, "exited": true, "exitCode": 0, "closed": true,
            "failure": null});
        stage.server.answer(&id, reply).await;
    };
    let (retained, ()) = tokio::join!(stage.agent.output(handle, 1000), read);
    let retained = retained.unwrap();
    assert_eq!(retained.output, truncated("[… 11 bytes omitted …]\ntwo\n", 11, 15));
    assert_eq!(retained.evicted_bytes, 11);
}

#[tokio::test]
async fn a_gap_ends_a_sequence() {
    let mut stage = stage().await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    stage.server.say(&mut process, "before\x1b]0;title").await;
    stage.server.lose(&mut process, 5, 100).await;
    stage.server.say(&mut process, "after\n").await;
    stage.unseen(112).await;
    let expected = truncated("before\n[… 100 bytes omitted …]\nafter\n", 100, 112);
    assert_eq!(stage.step_and_yield(handle).await.output, expected);
}
