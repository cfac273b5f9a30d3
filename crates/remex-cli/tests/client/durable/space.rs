//! A disk that is too small, and quotas.

use std::{fs, process::Command as Program};

use remex_client::{
    Command, Options,
    process::{Event, GapCause, Overflow, Retain, Stdio},
};

use super::{PATIENCE, host::DurableHost, in_time};

/// The state directory is on a file system of this size.
const DISK: &str = "mount -t tmpfs -o size=64m,mode=700 none \"$STATE\" && exec \"$@\"";

/// Numbers from 1 to this have about 20 MB.
const LAST: u64 = 2_600_000;

fn numbers() -> Vec<u8> {
    (1..=LAST).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// Returns a server whose state directory is on a disk of 64 MiB.
pub(super) fn on_a_small_disk() -> DurableHost {
    DurableHost::launched(|command, state| {
        fs::create_dir(state).unwrap();
        let mut wrapped = Program::new("unshare");
        wrapped
            .args(["-r", "-m", "sh", "-c", DISK, "sh"])
            .arg(command.get_program())
            .args(command.get_args());
        wrapped.env("STATE", state).env("no_proxy", "*");
        wrapped
    })
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_floods_on_a_full_disk_pause_and_lose_nothing() {
    let host = on_a_small_disk();
    let client = host.connect(Options::default()).await;
    let mut floods = Vec::new();
    let work = tempfile::tempdir().unwrap();
    for _ in 0..10 {
        // A log has to be created while there is room for it.
        let command = Command::shell(format!("until [ -e go ]; do sleep 0.01; done; exec seq 1 {LAST}"));
        floods.push(command.cwd(work.path()).start(&client).await.unwrap());
    }
    let echo = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    fs::write(work.path().join("go"), "").unwrap();
    // The output is not read, so the disk fills, and all processes wait.
    let total = async |floods: &[remex_client::Process]| {
        let listed = client.processes().await.unwrap();
        let of_flood = |id: &str| floods.iter().any(|flood| flood.id() == id);
        let produced = listed.iter().filter(|process| of_flood(&process.process_id));
        produced.map(|process| process.produced.stdout).sum::<u64>()
    };
    let mut before = total(&floods).await;
    loop {
        tokio::time::sleep(std::time::Duration::from_millis(500)).await;
        let now = total(&floods).await;
        if now == before && now > 40 << 20 {
            break;
        }
        before = now;
    }
    // What needs no space is not harmed.
    let small = Command::shell("echo fine").durable(false).output(&client).await.unwrap();
    assert_eq!(small.stdout, b"fine\n");
    let expected = numbers();
    for (number, flood) in floods.iter().enumerate() {
        // A busy machine takes its time, but something always moves.
        let mut output = Box::pin(flood.wait_with_output());
        let mut moved = 0;
        let output = loop {
            match tokio::time::timeout(PATIENCE, &mut output).await {
                Ok(output) => break output.unwrap(),
                Err(_) => {
                    let before = std::mem::replace(&mut moved, total(&floods).await);
                    assert!(moved > before, "nothing moved for {PATIENCE:?} after {moved} bytes");
                }
            }
        };
        assert!(output.stdout == expected, "flood {number}: {} bytes", output.stdout.len());
        assert!(output.exit.success());
    }
    let output = in_time("an echo", echo.communicate(b"still here")).await.unwrap();
    assert_eq!(output.stdout, b"still here");
    client.end().await.unwrap();
}

#[tokio::test]
async fn logs_of_closed_processes_make_room_for_a_start_on_a_full_disk() {
    let host = on_a_small_disk();
    let client = host.connect(Options::default()).await;
    let retain = Retain::default().after_close(std::time::Duration::from_secs(3600));
    let command = Command::new("head").args(["-c", "1000000", "/dev/zero"]).retain(retain);
    let output = in_time("the output", command.output(&client)).await.unwrap();
    assert_eq!(output.stdout.len(), 1_000_000);
    // The rest of the disk is used up by others.
    let fill = Command::shell("cat /dev/zero > others").durable(false).cwd(host.state());
    assert!(!fill.output(&client).await.unwrap().exit.success());
    for number in 0..3 {
        let output = in_time("a start", Command::shell("echo fine").durable(true).output(&client)).await;
        assert_eq!(output.unwrap().stdout, b"fine\n", "start {number}");
    }
}

#[tokio::test]
async fn output_beyond_the_quota_is_a_gap_with_its_cause() {
    let host = DurableHost::with_config("[limits]\nsession_disk_bytes = \"4MiB\"\n");
    let client = host.connect(Options::default()).await;
    let retain = Retain::default().bytes(64 << 20).overflow(Overflow::Pause);
    let command = Command::new("seq").arg("1").arg(LAST.to_string()).retain(retain);
    let paused = command.start(&client).await.unwrap();
    let output = in_time("the output", paused.wait_with_output()).await.unwrap();
    assert!(output.stdout == numbers(), "who reads in time loses nothing");
    drop(output);

    let retain = Retain::default().bytes(64 << 20).overflow(Overflow::Evict);
    let evicting =
        Command::new("seq").arg("1").arg(LAST.to_string()).retain(retain).start(&client).await.unwrap();
    in_time("the end", evicting.reference().wait()).await.unwrap();
    let (mut events, mut received, mut missing, mut next) = (evicting.events_after(0), 0, 0, 1);
    loop {
        let event = in_time("an event", events.next()).await.unwrap();
        match event.unwrap() {
            Event::Output(chunk) => {
                assert_eq!(chunk.seq, next);
                (received, next) = (received + chunk.bytes.len() as u64, chunk.seq + 1);
            }
            Event::Gap(gap) => {
                assert_eq!(gap.from_seq, next);
                assert!(matches!(gap.cause, None | Some(GapCause::Quota)), "{gap:?}");
                let bytes = gap.bytes.unwrap_or_else(|| panic!("{gap:?} after {received} and {missing}"));
                (missing, next) = (missing + bytes, gap.to_seq + 1);
            }
            Event::Exited { .. } => next += 1,
            Event::Closed(_) => break,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(received + missing, numbers().len() as u64, "the gaps are exact");
    assert!(missing > 0 && received > 0);
}

#[tokio::test]
async fn logs_of_closed_processes_make_room_for_new_ones() {
    let host = DurableHost::with_config("[limits]\nsession_disk_bytes = \"16MiB\"\n");
    let client = host.connect(Options::default()).await;
    let retain = || Retain::default().after_close(std::time::Duration::from_secs(3600));
    for _ in 0..4 {
        let command = Command::new("head").arg("-c").arg("6000000").arg("/dev/zero").retain(retain());
        let output = in_time("the output", command.output(&client)).await.unwrap();
        assert_eq!(output.stdout.len(), 6_000_000);
    }
    let listed = client.processes().await.unwrap();
    assert!(listed.len() < 4, "the oldest logs were deleted: {}", listed.len());
    assert!(!listed.is_empty(), "not more than necessary");
}
