//! What clients do while their connections go wrong.

use std::time::Duration;

use remex_client::{
    Error,
    process::{OnDrop, SignalName, Stdio, TerminalSize, Until, WaitOutcome},
};
use remex_proto::process::List;
use tokio::io::AsyncWriteExt as _;

use super::{
    exact::{Exact, follow_both, lines},
    scene::Scene,
};

/// How many stories there are.
pub(crate) const STORIES: u64 = 12;

/// Tells one story.
pub(crate) async fn tell(story: u64, scene: Scene) {
    match story % STORIES {
        0 => a_flood_is_read(scene).await,
        1 => a_flood_is_followed(scene).await,
        2 => a_slow_process_is_followed(scene).await,
        3 => both_pipes_are_followed(scene).await,
        4 => thousands_of_writes_come_back(scene).await,
        5 => every_line_is_answered(scene).await,
        6 => a_terminal_echoes(scene).await,
        7 => a_text_is_waited_for(scene).await,
        8 => an_observer_arrives_late(scene).await,
        9 => a_consumer_stalls(scene).await,
        10 => handles_are_dropped(scene).await,
        _ => much_is_written_and_read(scene).await,
    }
}

async fn a_flood_is_read(mut scene: Scene) {
    let last = scene.chance.within(1000, 250_000);
    let code = scene.chance.within(0, 100);
    let process = scene.shell(&format!("seq 1 {last}; exit {code}")).start(&scene.client).await.unwrap();
    let mut stdout = Exact::new(lines(last));
    let piece = scene.chance.magnitude(100_000);
    stdout.read(process.stdout(), usize::try_from(piece.max(100)).unwrap()).await;
    stdout.finish(&scene);
    assert_eq!(process.wait().await.unwrap().code, i32::try_from(code).unwrap());
}

async fn a_flood_is_followed(mut scene: Scene) {
    let last = scene.chance.within(1000, 250_000);
    let process = scene.shell(&format!("seq 1 {last}; exit 3")).start(&scene.client).await.unwrap();
    let mut stdout = Exact::new(lines(last));
    assert_eq!(stdout.follow(process.events()).await.code, 3);
    stdout.finish(&scene);
}

async fn a_slow_process_is_followed(mut scene: Scene) {
    let last = scene.chance.within(5, 60);
    let line = format!("for i in $(seq 1 {last}); do echo $i; sleep 0.01; done; kill -USR1 $$");
    let process = scene.shell(&line).start(&scene.client).await.unwrap();
    let mut stdout = Exact::new(lines(last));
    let exit = stdout.follow(process.events()).await;
    assert_eq!(exit.signal.as_deref(), Some("SIGUSR1"));
    stdout.finish(&scene);
}

async fn both_pipes_are_followed(mut scene: Scene) {
    let (out, err) = (scene.chance.within(1, 10_000), scene.chance.within(1, 10_000));
    let line = format!("seq 1 {err} >&2 & seq 1 {out}; wait; exit 9");
    let process = scene.shell(&line).start(&scene.client).await.unwrap();
    let (mut stdout, mut stderr) = (Exact::new(lines(out)), Exact::new(lines(err)));
    let exit = follow_both(&process, &mut stdout, &mut stderr).await;
    stdout.finish(&scene);
    stderr.finish(&scene);
    assert_eq!(exit.code, 9);
    // Those who come now find it all retained.
    let (mut stdout, mut stderr) = (Exact::new(lines(out)), Exact::new(lines(err)));
    tokio::join!(stdout.read(process.stdout(), 1000), stderr.read(process.stderr(), 1000));
    stdout.finish(&scene);
    stderr.finish(&scene);
}

async fn thousands_of_writes_come_back(mut scene: Scene) {
    let last = scene.chance.within(100, 3000);
    let process = scene.shell("exec cat").stdin(Stdio::Piped).start(&scene.client).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let write = async {
        for number in 1..=last {
            stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
        }
        stdin.shutdown().await.unwrap();
    };
    let mut stdout = Exact::new(lines(last));
    let (exit, ()) = tokio::join!(stdout.follow(process.events()), write);
    assert!(exit.success(), "{exit:?}");
    stdout.finish(&scene);
}

async fn every_line_is_answered(mut scene: Scene) {
    let last = scene.chance.within(5, 60);
    let line = "n=0; while read -r word; do n=$((n + 1)); echo $n:$word; done";
    let process = scene.shell(line).stdin(Stdio::Piped).start(&scene.client).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let mut stdout = process.stdout();
    for number in 1..=last {
        stdin.write_all(format!("{number}\n").as_bytes()).await.unwrap();
        stdin.flush().await.unwrap();
        let mut answer = Exact::new(format!("{number}:{number}\n").into_bytes());
        while !answer.is_over() {
            answer.take(&stdout.chunk().await.unwrap().unwrap());
        }
    }
    drop(stdin);
    assert_eq!(stdout.chunk().await, Ok(None));
    assert!(process.wait().await.unwrap().success());
}

async fn a_terminal_echoes(mut scene: Scene) {
    let input = lines(scene.chance.within(10, 3000));
    let line = format!("stty raw -echo; printf ready; exec head -c {}", input.len());
    let size = |rows, cols| TerminalSize::new(rows, cols).unwrap();
    let process = scene.shell(&line).terminal(size(30, 100)).start(&scene.client).await.unwrap();
    process.wait_for(&Until::Output("ready".to_owned())).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    let write = async {
        for piece in input.chunks(97) {
            stdin.write_all(piece).await.unwrap();
        }
        stdin.flush().await.unwrap();
        process.resize(size(100, 30)).await.unwrap();
    };
    let mut terminal = Exact::new([b"ready", &*input].concat());
    tokio::join!(terminal.read(process.terminal(), 1 << 16), write);
    terminal.finish(&scene);
    assert!(process.wait().await.unwrap().success());
}

async fn a_text_is_waited_for(mut scene: Scene) {
    let line = "for i in $(seq 1 20); do echo step $i; sleep 0.01; done; exec sleep 1000";
    let process = scene.shell(line).start(&scene.client).await.unwrap();
    let waited = process.wait_for(&Until::Output("step 20\n".to_owned())).await.unwrap();
    let WaitOutcome::Matched(found) = waited else { panic!("{waited:?}") };
    assert_eq!(&*found.bytes, b"step 20\n");
    let signal = scene.chance.pick(&[SignalName::Term, SignalName::Int, SignalName::Kill]);
    // A signal that may have been sent is not repeated automatically.
    while let Err(error) = process.signal(signal).await {
        if !matches!(error, Error::Interrupted { .. }) {
            break;
        }
    }
    let exit = process.wait().await.unwrap();
    assert!(exit.signal.is_some(), "{exit:?}");
}

async fn an_observer_arrives_late(mut scene: Scene) {
    let last = scene.chance.within(1, 50_000);
    let process = scene.shell(&format!("seq 1 {last}; exit 4")).start(&scene.client).await.unwrap();
    assert_eq!(process.wait().await.unwrap().code, 4);
    let mut stdout = Exact::new(lines(last));
    assert_eq!(stdout.follow(process.events()).await.code, 4);
    stdout.finish(&scene);
}

async fn a_consumer_stalls(mut scene: Scene) {
    let last = scene.chance.within(200_000, 400_000);
    let process = scene.shell(&format!("seq 1 {last}")).start(&scene.client).await.unwrap();
    let mut reader = process.stdout();
    let mut stdout = Exact::new(lines(last));
    stdout.read_one(&mut reader).await;
    let content = lines(scene.chance.within(1, 50_000));
    let file = scene.file();
    scene.write(&file, &content);
    for _ in 0..scene.chance.within(1, 10) {
        let read = scene.client.fs().read(scene.path(&file)).await.unwrap();
        assert!(read == content, "a file is read as it is");
        scene.client.call(List::default()).await.unwrap();
    }
    stdout.read(reader, 100_000).await;
    stdout.finish(&scene);
}

async fn handles_are_dropped(mut scene: Scene) {
    let last = scene.chance.within(1000, 300_000);
    let over = scene.file();
    let line = format!("seq 1 {last}; echo over > {over}");
    let left = scene.shell(&line).start(&scene.client).await.unwrap();
    let ended = scene
        .shell("echo here; exec sleep 1000")
        .on_drop(OnDrop::Terminate)
        .start(&scene.client)
        .await
        .unwrap();
    ended.wait_for(&Until::Output("here".to_owned())).await.unwrap();
    drop(ended);
    let mut events = left.events();
    for _ in 0..scene.chance.within(0, 5) {
        events.next().await.unwrap();
    }
    drop(left);
    drop(events);
    let until = format!("until [ -s {over} ]; do sleep 0.01; done; cat {over}");
    let output = scene.shell(&until).output(&scene.client).await.unwrap();
    assert_eq!(output.stdout, b"over\n", "{output:?}");
}

async fn much_is_written_and_read(mut scene: Scene) {
    let input = lines(scene.chance.within(1, 100_000));
    let process = scene.shell("exec cat").stdin(Stdio::Piped).start(&scene.client).await.unwrap();
    let output = process.communicate(&input).await.unwrap();
    assert!(output.stdout == input, "{} of {} bytes come back", output.stdout.len(), input.len());
    assert!(output.exit.success() && output.stderr.is_empty());
    let waited = process.wait_for(&Until::Idle(Duration::from_secs(1000))).await.unwrap();
    assert!(matches!(waited, WaitOutcome::Exited(_)), "{waited:?}");
}
