//! Stories that need what only our servers can do.

use std::{collections::BTreeMap, time::Duration};

use remex_client::{
    Command, ConnectionState, Error, SessionLost,
    process::{
        Event, ExitCause, Match, OnDrop, Overflow, Retain, SignalName, Stdio, Stream, TerminalSize, Until,
        WaitOutcome,
    },
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

pub(crate) use super::files::{
    a_change_is_reported, a_file_is_replaced_only_if_it_matches_the_expected_hash,
    a_tree_is_unchanged_by_upload_and_download, http_requests_are_sent_from_the_host,
};
use super::{Place, base::assert_arrives};

pub(crate) async fn megabytes_arrive_complete_and_in_order(place: Place) {
    assert_arrives(&place, 1_000_000, 100_000).await;
}

pub(crate) async fn closing_the_input_ends_a_filter(place: Place) {
    let client = place.client().await;
    let process = Command::new("wc").arg("-c").stdin(Stdio::Piped).start(&client).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    for _ in 0..100 {
        stdin.write_all(&[7; 10_000]).await.unwrap();
    }
    stdin.shutdown().await.unwrap();
    assert!(stdin.write_all(b"x").await.is_err(), "a closed input takes nothing");
    let mut count = String::new();
    process.stdout().read_to_string(&mut count).await.unwrap();
    assert_eq!(count.trim(), "1000000");
}

pub(crate) async fn dropping_the_input_closes_it(place: Place) {
    let client = place.client().await;
    let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let mut stdin = process.stdin().unwrap();
    stdin.write_all(&vec![b'x'; 300_000]).await.unwrap();
    drop(stdin);
    let mut said = Vec::new();
    process.stdout().read_to_end(&mut said).await.unwrap();
    assert_eq!(said.len(), 300_000);
    assert!(process.wait().await.unwrap().success());
}

pub(crate) async fn communicate_writes_and_reads_at_the_same_time(place: Place) {
    let client = place.client().await;
    let input: Vec<u8> = (0..3_000_000_u32).map(|byte| (byte % 251) as u8).collect();
    let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let output = process.communicate(&input).await.unwrap();
    assert!(output.stdout == input, "{} of {} bytes", output.stdout.len(), input.len());
    // One that does not read to the end is no failure.
    let process = Command::new("true").stdin(Stdio::Piped).start(&client).await.unwrap();
    assert!(process.communicate(&input).await.unwrap().exit.success());
}

pub(crate) async fn a_stalled_consumer_blocks_only_its_own_process(place: Place) {
    let client = place.client().await;
    let bytes = 20_000_000;
    let flood = Command::shell(format!("head -c {bytes} /dev/zero")).start(&client).await.unwrap();
    let mut stalled = flood.stdout();
    let first = stalled.chunk().await.unwrap().unwrap().len();
    for _ in 0..3 {
        let other = Command::shell(format!("head -c {bytes} /dev/zero")).output(&client).await.unwrap();
        assert_eq!(other.stdout.len(), bytes);
    }
    let mut rest = Vec::new();
    stalled.read_to_end(&mut rest).await.unwrap();
    assert_eq!(first + rest.len(), bytes, "nothing is lost meanwhile");
}

pub(crate) async fn a_terminal_can_be_resized(place: Place) {
    let client = place.client().await;
    let size = |rows, cols| TerminalSize::new(rows, cols).unwrap();
    let command = "stty size; read -r _; stty size; exec sleep 1000";
    let process = Command::shell(command)
        .terminal(size(30, 100))
        .on_drop(OnDrop::Terminate)
        .start(&client)
        .await
        .unwrap();
    process.wait_for(&Until::Output("30 100".to_owned())).await.unwrap();
    process.resize(size(40, 120)).await.unwrap();
    process.stdin().unwrap().write_all(b"\n").await.unwrap();
    process.wait_for(&Until::Output("40 120".to_owned())).await.unwrap();
}

pub(crate) async fn a_signal_reaches_the_process(place: Place) {
    let client = place.client().await;
    let command = "trap 'echo got it; exit 7' USR1; echo ready; while :; do sleep 0.01; done";
    let process = Command::shell(command).start(&client).await.unwrap();
    process.wait_for(&Until::Output("ready".to_owned())).await.unwrap();
    process.signal(SignalName::Usr1).await.unwrap();
    assert_eq!(process.wait().await.unwrap().code, 7);
}

pub(crate) async fn terminate_is_graceful_first(place: Place) {
    let client = place.client().await;
    let command = "trap 'echo bye; exit 5' TERM; echo ready; while :; do sleep 0.01; done";
    let process = Command::shell(command).start(&client).await.unwrap();
    process.wait_for(&Until::Output("ready".to_owned())).await.unwrap();
    process.terminate(Duration::from_secs(30)).await.unwrap();
    assert_eq!(process.wait().await.unwrap().code, 5);
    assert_eq!(process.communicate(&[]).await.unwrap().stdout, b"ready\nbye\n");
}

pub(crate) async fn silence_can_be_waited_for(place: Place) {
    let client = place.client().await;
    let process =
        Command::shell("seq 1 100; exec sleep 1000").on_drop(OnDrop::Terminate).start(&client).await.unwrap();
    let waited = process.wait_for(&Until::Idle(Duration::from_millis(50))).await.unwrap();
    assert_eq!(waited, WaitOutcome::Idle);
    process.kill().await.unwrap();
    let waited = process.wait_for(&Until::Idle(Duration::from_secs(1000))).await.unwrap();
    assert!(matches!(waited, WaitOutcome::Exited(_)), "{waited:?}");
}

pub(crate) async fn a_snapshot_has_the_head_and_the_tail(place: Place) {
    let client = place.client().await;
    let process = Command::shell("seq 1 100000").start(&client).await.unwrap();
    process.wait().await.unwrap();
    let snapshot = process.snapshot(1000).await.unwrap();
    assert!(snapshot.stdout.starts_with(b"1\n2\n") && snapshot.stdout.ends_with(b"99999\n100000\n"));
    assert!(snapshot.truncated && snapshot.stdout.len() <= 1000);
}

pub(crate) async fn a_process_can_have_a_time_limit(place: Place) {
    let client = place.client().await;
    let output =
        Command::new("sleep").arg("1000").timeout(Duration::from_millis(50)).output(&client).await.unwrap();
    assert_eq!(output.exit.cause, Some(ExitCause::Timeout));
}

pub(crate) async fn the_ledger_is_exact(place: Place) {
    let client = place.client().await;
    let process =
        Command::shell("head -c 700000 /dev/zero; head -c 30 /dev/zero >&2").start(&client).await.unwrap();
    let mut events = process.events();
    let mut bytes = 0;
    loop {
        match events.next().await.unwrap() {
            Some(Event::Output(chunk)) => bytes += chunk.bytes.len() as u64,
            Some(Event::Closed(closed)) => {
                let produced = closed.produced.unwrap();
                assert_eq!((produced.stdout, produced.stderr, produced.pty), (700_000, 30, 0));
                assert_eq!(closed.evicted_bytes, Some(0));
                break;
            }
            Some(Event::Exited { exit, .. }) => assert!(exit.usage.is_some()),
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(bytes, 700_030);
    assert_eq!(events.next().await, Ok(None), "nothing follows the close");
}

pub(crate) async fn the_end_of_a_session_ends_its_processes(place: Place) {
    let client = place.client().await;
    let process = Command::shell("echo here; exec sleep 1000").start(&client).await.unwrap();
    process.wait_for(&Until::Output("here".to_owned())).await.unwrap();
    let other = client.clone();
    client.end().await.unwrap();
    assert_eq!(other.connection_state(), ConnectionState::Lost(SessionLost::Closed));
    let error = Command::new("true").output(&other).await.unwrap_err();
    assert_eq!(error, Error::Lost(SessionLost::Closed));
    let alive = std::path::Path::new("/proc").join(process.pid().unwrap().to_string());
    assert!(!alive.exists(), "the process is gone with its session");
}

pub(crate) async fn evicted_output_is_reported(place: Place) {
    let client = place.client().await;
    let retain = Retain::default().bytes(65_536).overflow(Overflow::Evict);
    let process = Command::shell("head -c 5000000 /dev/zero").retain(retain).start(&client).await.unwrap();
    // Nothing is consumed until it has ended.
    let mut events = process.events();
    let first = events.next().await.unwrap();
    Command::shell("exit 0").output(&client).await.unwrap();
    while client.call(remex_proto::process::List::default()).await.unwrap().processes[0].exit_code.is_none() {
    }
    let (mut got, mut lost) = (0, 0);
    let mut next = first;
    while let Some(event) = next {
        match event {
            Event::Output(chunk) => got += chunk.bytes.len() as u64,
            Event::Gap(gap) => lost += gap.bytes.unwrap(),
            _ => {}
        }
        next = events.next().await.unwrap();
    }
    assert_eq!(got + lost, 5_000_000, "every byte is there or accounted for");
    assert!(lost > 0);
}

pub(crate) async fn a_consumer_can_be_cancelled_at_any_moment(place: Place) {
    let client = place.client().await;
    let process = Command::shell("seq 1 200000").start(&client).await.unwrap();
    let mut stdout = process.stdout();
    let mut said = Vec::new();
    loop {
        let chunk = tokio::select! {
            biased;
            () = tokio::task::yield_now() => continue,
            chunk = stdout.chunk() => chunk.unwrap(),
        };
        match chunk {
            Some(bytes) => said.extend_from_slice(&bytes),
            None => break,
        }
    }
    let expected: String = (1..=200_000).map(|number| format!("{number}\n")).collect();
    assert!(said == expected.as_bytes());
}

pub(crate) async fn a_large_directory_is_listed_in_few_pages(place: Place) {
    const ENTRIES: usize = 10_000;
    let fs = place.client().await.fs();
    std::fs::create_dir(place.path("large")).unwrap();
    for number in 0..ENTRIES {
        std::fs::File::create(place.path(&format!("large/{number:05}"))).unwrap();
    }
    let (mut pages, mut names, mut lengths) =
        (fs.read_dir_pages(place.path("large")).unwrap(), Vec::new(), Vec::new());
    while let Some(page) = pages.next().await.unwrap() {
        lengths.push(page.len());
        names.extend(page.into_iter().map(|entry| entry.file_name));
    }
    // Each page costs the server a look at the whole directory.
    assert_eq!(lengths, [1000, 2000, 4000, 3000]);
    assert_eq!(names.len(), ENTRIES);
    assert!(names.is_sorted(), "{names:?}");
}

pub(crate) async fn lines_are_complete_labelled_and_in_order(place: Place) {
    let client = place.client().await;
    let line =
        "seq 1 20000; printf 'caf\\351\\r\\n'; head -c 200000 /dev/zero | tr '\\0' x; echo; printf end";
    let process = Command::shell(line).start(&client).await.unwrap();
    let mut lines = process.lines();
    for number in 1..=20_000 {
        let line = lines.next().await.unwrap().unwrap();
        assert_eq!((line.stream, line.text), (Stream::Stdout, number.to_string()));
    }
    assert_eq!(lines.next().await.unwrap().unwrap().text, "caf\u{fffd}");
    let mut long = 0;
    loop {
        let piece = lines.next().await.unwrap().unwrap();
        assert!(piece.text.len() <= 64 << 10 && piece.text.bytes().all(|byte| byte == b'x'));
        long += piece.text.len();
        if !piece.is_continued {
            break;
        }
    }
    assert_eq!(long, 200_000);
    assert_eq!(lines.next().await.unwrap().unwrap().text, "end");
    assert_eq!(lines.next().await.unwrap(), None);
}

pub(crate) async fn polling_consumes_what_it_returns(place: Place) {
    let client = place.client().await;
    // Eight times what the server retains: it goes on only because the polled output is consumed.
    let process = Command::shell("head -c 8000000 /dev/zero; exit 3").start(&client).await.unwrap();
    let (mut after, mut bytes) = (0, 0);
    let exit = loop {
        let batch = process.read(after, 100_000, Duration::from_secs(60)).await.unwrap();
        assert_eq!(batch.gap, None);
        assert!(batch.last_seq > after || batch.is_closed, "a wait ends with something");
        bytes += batch.chunks.iter().map(|chunk| chunk.bytes.len()).sum::<usize>();
        after = batch.last_seq;
        if batch.is_closed {
            break batch.exit.unwrap();
        }
    };
    assert_eq!((bytes, exit.code), (8_000_000, 3));
}

pub(crate) async fn any_handle_continues_writing_where_another_stopped(place: Place) {
    let client = place.client().await;
    let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let other = client.process(process.id()).await.unwrap();
    process.write(b"one\n").await.unwrap();
    let WaitOutcome::Matched(Match { seq, .. }) =
        process.wait_for(&Until::Output("one\n".to_owned())).await.unwrap()
    else {
        panic!("it answers")
    };
    let large = vec![b'x'; 300_000];
    other.write(&large).await.unwrap();
    other.close_stdin().await.unwrap();
    let mut rest = Vec::new();
    let mut events = other.events_after(seq);
    while let Some(event) = events.next().await.unwrap() {
        assert!(event.seq() > seq);
        if let Event::Output(chunk) = event {
            rest.extend_from_slice(&chunk.bytes);
        }
    }
    assert!(rest == large, "{} bytes", rest.len());
    let error = process.write(b"more").await.unwrap_err();
    assert!(!error.is_retryable() && !error.may_have_happened(), "{error}");
}

pub(crate) async fn relative_paths_are_resolved_on_the_host(place: Place) {
    let client = place.client().await;
    let (fs, info) = (client.fs(), client.info().await.unwrap());
    let (cwd, home) = (info.cwd.unwrap(), info.user_home_dir.unwrap());
    assert_eq!(fs.canonicalize(".").await, fs.canonicalize(&cwd).await);
    assert_eq!(fs.canonicalize("~").await, fs.canonicalize(&home).await);
    assert!(matches!(fs.metadata("~nobody").await, Err(Error::Usage { .. })));
    let home = fs.canonicalize(&home).await.unwrap();
    let pwd = Command::new("pwd").arg("-P").cwd("~").output(&client).await.unwrap();
    assert_eq!(String::from_utf8(pwd.stdout).unwrap().trim_end(), home.native().unwrap().to_str().unwrap());

    let directory = tempfile::tempdir().unwrap();
    let to_root = "../".repeat(cwd.native().unwrap().components().count() - 1);
    let relative = |name: &str| format!("{to_root}.{}", directory.path().join(name).display());
    fs.upload(&b"one"[..], relative("a")).await.unwrap();
    fs.rename(relative("a"), relative("b")).await.unwrap();
    assert_eq!(fs.read(relative("b")).await.unwrap(), "one");
    let here = tempfile::tempdir().unwrap();
    assert_eq!(fs.download_tree(relative(""), here.path()).await.unwrap().files, 1);
    assert_eq!(fs.upload_tree(here.path(), relative("tree")).await.unwrap().files, 1);
    assert_eq!(std::fs::read(directory.path().join("tree/b")).unwrap(), b"one");
}

pub(crate) async fn a_command_is_attached_to_or_started(place: Place) {
    let client = place.client().await;
    let command = Command::shell("echo $$; exec cat").id("cat").stdin(Stdio::Piped);
    let first = command.attach_or_start(&client).await.unwrap();
    let again = command.attach_or_start(&client).await.unwrap();
    again.write(b"hello\n").await.unwrap();
    first.close_stdin().await.unwrap();
    let (first, again) = (first.wait_with_output().await.unwrap(), again.wait_with_output().await.unwrap());
    assert_eq!(first, again);
    let unnamed = Command::new("true").attach_or_start(&client).await.unwrap_err();
    assert!(matches!(unnamed, Error::Usage { .. }), "{unnamed}");
}

pub(crate) async fn input_on_a_terminal_ends(place: Place) {
    let client = place.client().await;
    let count = Command::new("wc").arg("-c").terminal(TerminalSize::default());
    let long = [&[b'x'; 10_000][..], b"\n", &[b'y'; 4095]].concat();
    for input in [&b""[..], b"line\n", b"no line end", &long] {
        let process = count.start(&client).await.unwrap();
        // Another handle does not know that it runs on a terminal.
        let handle = if input.is_empty() { client.process(process.id()).await.unwrap() } else { process };
        let ended = tokio::time::timeout(Duration::from_secs(20), handle.communicate(input)).await;
        let screen = ended.expect("the end of the input on a terminal").unwrap().terminal;
        let (screen, expected) = (String::from_utf8(screen).unwrap(), format!("{}\r\n", input.len()));
        assert!(screen.ends_with(&expected), "{} bytes: {screen}", input.len());
    }
}

pub(crate) async fn a_wait_after_a_match_does_not_find_it_again(place: Place) {
    let client = place.client().await;
    let command = Command::shell("echo ready; read -r _; echo ready").stdin(Stdio::Piped);
    let process = command.start(&client).await.unwrap();
    let matched = |outcome| match outcome {
        WaitOutcome::Matched(found) => found,
        other => panic!("{other:?}"),
    };
    let first = matched(process.wait_for(&Until::Output("ready".to_owned())).await.unwrap());
    let seq = first.seq;
    let again = Until::OutputAfter { after: first, pattern: "ready".to_owned() };
    let early = tokio::time::timeout(Duration::from_millis(50), process.wait_for(&again)).await;
    assert!(early.is_err(), "{early:?}");
    process.write(b"\n").await.unwrap();
    assert!(matched(process.wait_for(&again).await.unwrap()).seq > seq);
}

pub(crate) async fn a_wait_after_a_match_finds_what_came_with_it(place: Place) {
    let client = place.client().await;
    // One write is one chunk.
    let command = Command::shell("printf 'one ready two ready three\\n'; read -r _; echo ready");
    let process = command.stdin(Stdio::Piped).start(&client).await.unwrap();
    let matched = |outcome| match outcome {
        WaitOutcome::Matched(found) => found,
        other => panic!("{other:?}"),
    };
    let after = |after: &Match| Until::OutputAfter { after: after.clone(), pattern: "ready".to_owned() };
    let first = matched(process.wait_for(&Until::Output("ready".to_owned())).await.unwrap());
    let again = after(&first);
    let second = tokio::time::timeout(Duration::from_secs(10), process.wait_for(&again)).await;
    let second = matched(second.expect("a second match in the chunk").unwrap());
    assert_eq!((&first.before[..], &second.before[..]), (&b"one "[..], &b" two "[..]));
    assert_eq!((first.seq, first.stream), (second.seq, Stream::Stdout));
    process.write(b"\n").await.unwrap();
    let third = matched(process.wait_for(&after(&second)).await.unwrap());
    assert!(third.seq > second.seq && third.before == " three\n", "{third:?}");
}

pub(crate) async fn every_process_of_a_session_is_followed(place: Place) {
    let client = place.client().await;
    let before = Command::shell("echo before").id("before").start(&client).await.unwrap();
    before.wait().await.unwrap();
    let mut events = client.events().await.unwrap();
    for number in 0..10 {
        let line = format!("seq 1 20000; exit {number}");
        Command::shell(line).id(format!("p{number}")).start(&client).await.unwrap();
    }
    let mut said: BTreeMap<String, (Vec<u8>, Option<i32>, u64)> = BTreeMap::new();
    let mut open = 11;
    while open > 0 {
        let event = events.next().await.unwrap();
        let known = said.entry(event.process_id).or_default();
        let event = event.event.unwrap();
        assert_eq!(event.seq(), known.2 + 1, "in order and without a gap");
        known.2 = event.seq();
        match event {
            Event::Output(chunk) => known.0.extend_from_slice(&chunk.bytes),
            Event::Exited { exit, .. } => known.1 = Some(exit.code),
            Event::Closed(_) => open -= 1,
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(said.remove("before").unwrap().0, b"before\n");
    let expected: String = (1..=20_000).map(|number| format!("{number}\n")).collect();
    for number in 0..10 {
        let (bytes, code, _) = &said[&format!("p{number}")];
        assert!(*bytes == expected.as_bytes(), "{} bytes", bytes.len());
        assert_eq!(*code, Some(number));
    }
    client.close().await;
    assert!(matches!(events.next().await, Err(Error::Lost(_))));
}
