//! What is open, what makes room, and what is left.

use std::time::Duration;

use remex_client::{
    Command, Error,
    agent::{Limits, ListedProcess, Progress, Refusal, Write},
    process::Event,
};
use remex_proto::Blob;
use serde_json::json;

use super::{SECOND, Stage, ended, truncated, whole, window};

#[tokio::test]
async fn the_list_has_the_state_of_each_process() {
    let mut stage = Stage::new(Limits::default()).await;
    let done = stage.exec_and_end().await;
    let (running, mut process) = stage.exec_and_yield(stage.command().args(["-v", "it's here"])).await;
    stage.server.say(&mut process, "new").await;
    stage.unseen(3).await;
    let listed = stage.agent.list();
    let listed: Vec<_> = listed.iter().map(|listed| (listed.handle, listed.command.as_str())).collect();
    assert_eq!(listed, [(done, "prog"), (running, r"prog -v 'it'\''s here'")]);
    let listed: Vec<_> = stage
        .agent
        .list()
        .into_iter()
        .map(|ListedProcess { progress, idle_for, unseen_bytes, .. }| (progress, idle_for, unseen_bytes))
        .collect();
    assert_eq!(listed, [(ended(0), SECOND, 0), (Progress::Running, Duration::ZERO, 3)]);
}

#[tokio::test]
async fn the_least_recently_used_finished_process_is_evicted() {
    let mut stage = Stage::new(Limits::default().open(3)).await;
    let (oldest, _process) = stage.exec_and_yield(stage.command()).await;
    let (first, second) = (stage.exec_and_end().await, stage.exec_and_end().await);
    stage.step_to_end(first).await;
    let third = stage.exec_and_end().await;
    let gone = stage.agent.write_stdin(second, Write::Nothing, window(SECOND)).await.unwrap_err();
    assert_eq!(gone, Refusal::Unknown { handle: second, open: vec![oldest, first, third] }.into());
    assert_eq!(gone.to_string(), "process 3 does not exist, or no longer; open: 1, 2, 4");
    stage.step_to_end(first).await;
}

#[tokio::test]
async fn running_processes_are_not_evicted() {
    let mut stage = Stage::new(Limits::default().open(2)).await;
    let (_, mut process) = stage.exec_and_yield(stage.command()).await;
    let (other, _process) = stage.exec_and_yield(stage.command()).await;
    let full = stage.agent.exec_command(&stage.client, &stage.command(), window(SECOND)).await.unwrap_err();
    assert_eq!(full, Error::Agent(Refusal::Full { open: 2 }));
    assert_eq!(
        full.to_string(),
        "2 processes are running, which is the maximum; terminate one, or wait until one ends"
    );
    stage.server.end(&mut process, 0).await;
    stage.running(1).await;
    let new = stage.exec_and_end().await;
    let open: Vec<_> = stage.agent.list().iter().map(|listed| listed.handle).collect();
    assert_eq!(open, [other, new]);
}

#[tokio::test]
async fn a_failed_start_occupies_no_slot() {
    let mut stage = Stage::new(Limits::default().open(1)).await;
    for _ in 0..2 {
        let fail = async {
            let (id, _) = stage.server.expect("process/start").await;
            stage.server.refuse(&id, "no such program").await;
        };
        let command = Command::new("prog");
        let (failed, ()) =
            tokio::join!(stage.agent.exec_command(&stage.client, &command, window(SECOND)), fail);
        assert_eq!(failed.unwrap_err().to_string(), "no such program");
    }
    assert_eq!(stage.agent.list(), []);
}

#[tokio::test]
async fn retained_output_can_be_reread_and_dropped_output_is_counted() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    assert_eq!(process.start["output"]["retainBytes"], json!(8 << 20));
    for line in ["one\n", "two\n", "three\n"] {
        stage.server.say(&mut process, line).await;
    }
    stage.server.end(&mut process, 0).await;
    let step = stage.step_to_end(handle).await;
    assert_eq!(step.output, whole("one\ntwo\nthree\n"));
    let read = async {
        let (id, read) = stage.server.expect("process/read").await;
        assert_eq!(read["afterSeq"], json!(0));
        let chunks: Vec<_> = [(2, "two\n"), (3, "three\n")]
            .map(|(seq, text)| json!({"seq": seq, "stream": "stdout", "chunk": Blob(text.into())}))
            .into();
        let reply = json!({"chunks": chunks, "nextSeq": 6, "exited": true, "exitCode": 0, "closed": true,
            "failure": null});
        stage.server.answer(&id, reply).await;
    };
    let (retained, ()) = tokio::join!(stage.agent.output(handle, 1000), read);
    let retained = retained.unwrap();
    assert_eq!(retained.output, truncated("[… 4 bytes omitted …]\ntwo\nthree\n", 4, 14));
    assert_eq!(retained.evicted_bytes, 4);
}

#[tokio::test]
async fn a_character_of_retained_output_is_not_split_by_the_other_stream() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut process) = stage.exec_and_yield(stage.command()).await;
    let crab = "🦀".as_bytes();
    stage.server.say(&mut process, &crab[..2]).await;
    stage.server.say_on("stderr", &mut process, "b").await;
    stage.server.say(&mut process, &crab[2..]).await;
    stage.server.end(&mut process, 0).await;
    stage.step_to_end(handle).await;
    let read = async {
        let (id, _) = stage.server.expect("process/read").await;
        let chunk = |seq, stream, bytes: &[u8]| json!({"seq": seq, "stream": stream, "chunk": Blob(bytes.to_vec().into())});
        let chunks =
            [chunk(1, "stdout", &crab[..2]), chunk(2, "stderr", b"b"), chunk(3, "stdout", &crab[2..])];
        let reply = json!({"chunks": chunks, "nextSeq": 6, "exited": true, "exitCode": 0, "closed": true,
            "failure": null});
        stage.server.answer(&id, reply).await;
    };
    let (retained, ()) = tokio::join!(stage.agent.output(handle, 1000), read);
    assert_eq!(retained.unwrap().output, whole("b🦀"));
}

#[tokio::test]
async fn a_lost_session_ends_the_step_with_its_output_and_the_cause() {
    let mut stage = Stage::new(Limits::default()).await;
    let (step, mut process) = stage.exec(stage.command()).await;
    stage.server.say(&mut process, "so far").await;
    drop(stage.server);
    let step = step.await.unwrap().unwrap();
    assert_eq!(step.output, whole("so far"));
    let Progress::Lost(cause @ Error::Lost(_)) = step.progress else { panic!("{:?}", step.progress) };
    let again = stage.agent.write_stdin(step.handle, Write::Bytes(b"there?"), window(SECOND)).await;
    assert_eq!(again, Err(cause));
    assert_eq!(stage.agent.kill(step.handle).await, Ok(()));
}

#[tokio::test]
async fn dropping_an_agent_ends_its_processes() {
    let mut stage = Stage::new(Limits::default()).await;
    let (_, process) = stage.exec_and_yield(stage.command()).await;
    drop(stage.agent);
    let (_, terminate) = stage.server.expect("process/terminate").await;
    assert_eq!(terminate["processId"], json!(process.id));
}

#[tokio::test]
async fn background_processes_keep_the_output_open_for_a_limited_time() {
    let mut stage = Stage::new(Limits::default()).await;
    let asked = [stage.command(), stage.command().linger(SECOND)];
    for (command, linger) in asked.into_iter().zip([5000, 1000]) {
        let (_, process) = stage.exec_and_yield(command).await;
        assert_eq!(process.start["lingerMs"], json!(linger));
    }
    let mut stage = Stage::new(Limits::default().unlimited_linger()).await;
    let (_, process) = stage.exec_and_yield(stage.command()).await;
    assert_eq!(process.start.get("lingerMs"), None);
}

#[tokio::test]
async fn a_process_handle_can_be_used_alongside_steps() {
    let mut stage = Stage::new(Limits::default()).await;
    let (handle, mut running) = stage.exec_and_yield(stage.command()).await;
    let process = stage.agent.process(handle).unwrap();
    assert_eq!(process.id(), running.id);
    let mut events = process.events();
    stage.server.say(&mut running, "raw").await;
    let Some(Event::Output(chunk)) = events.next().await.unwrap() else { panic!("no output") };
    assert_eq!(&chunk.bytes[..], b"raw");
    stage.unseen(3).await;
    assert_eq!(stage.step_and_yield(handle).await.output, whole("raw"));
    let unknown = "9".parse().unwrap();
    let refusal = Refusal::Unknown { handle: unknown, open: vec![handle] };
    assert_eq!(stage.agent.process(unknown).map(drop), Err(refusal.into()));
    // A handle that is held keeps the process.
    drop(events);
    drop(stage.agent);
    stage.server.end(&mut running, 0).await;
    assert!(process.wait().await.unwrap().success());
}

#[tokio::test]
async fn terminating_an_exited_process_succeeds_and_signalling_it_fails() {
    let mut stage = Stage::new(Limits::default()).await;
    let handle = stage.exec_and_end().await;
    assert_eq!(stage.agent.terminate(handle, SECOND).await, Ok(()));
    assert_eq!(stage.agent.interrupt(handle).await, Err(Refusal::Ended { handle }.into()));
}
