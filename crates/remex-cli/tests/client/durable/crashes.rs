//! The server is killed with SIGKILL, or server and keeper are upgraded at random moments, while processes of all kinds
//! run.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use remex_client::{
    Client, Command, Options, Process,
    process::{Event, ExitCause, Stdio, TerminalSize},
};
use tokio::task::JoinSet;

use super::{host::DurableHost, in_time, until};
use crate::faults::chance::Chance;

/// How often the server is killed; `scripts/crashes` asks for more.
const KILLS: u64 = 100;

/// How often it is upgraded.
const UPGRADES: u64 = 40;

/// How often its link to the keeper is cut.
const CUTS: u64 = 100;

/// Counts up until the file `stop` exists, and tells at the end how far; `step` prints the numbers from `$i` on.
fn counting(step: &str, code: i32) -> String {
    format!("i=0; while [ ! -e stop ]; do {step}; done; echo end $i; exit {code}")
}

/// Numbers that must arrive one after the other, whatever happens.
struct Count {
    next: u64,
    partial: Vec<u8>,
    end: Option<u64>,
}

impl Count {
    fn new() -> Self {
        Count { next: 0, partial: Vec::new(), end: None }
    }

    fn take(&mut self, bytes: &[u8]) {
        self.partial.extend_from_slice(bytes);
        let Some(last) = self.partial.iter().rposition(|byte| *byte == b'\n') else { return };
        let lines: Vec<u8> = self.partial.drain(..=last).collect();
        for line in String::from_utf8(lines).unwrap().lines() {
            let line = line.trim_end_matches('\r');
            assert_eq!(self.end, None, "nothing follows the end: {line}");
            match line.strip_prefix("end ") {
                Some(end) => self.end = Some(end.parse().unwrap()),
                None => {
                    assert_eq!(line.parse(), Ok(self.next), "no number is missing or doubled");
                    self.next += 1;
                }
            }
        }
    }
}

/// Follows a counting process to its end.
async fn follow(process: Process, code: i32) {
    let (mut events, mut count, mut seq) = (process.events(), Count::new(), 0);
    loop {
        let event = in_time("an event", events.next()).await.unwrap().expect("a close comes before the end");
        assert_eq!(event.seq(), seq + 1, "{}: in order and without a gap", process.id());
        seq = event.seq();
        match event {
            Event::Output(chunk) => count.take(&chunk.bytes),
            Event::Exited { exit, .. } => {
                assert_eq!((exit.code, exit.cause), (code, Some(ExitCause::Exit)), "{}", process.id());
            }
            Event::Closed(_) => break,
            other => panic!("{}: {other:?}", process.id()),
        }
    }
    assert_eq!(count.end, Some(count.next), "{}: all of it", process.id());
    assert!(count.next > 0);
}

/// Writes numbers to `cat` until `stop`, and expects each once.
async fn echo(client: Client, stop: Arc<AtomicBool>) {
    let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await.unwrap();
    let writing = async {
        let mut number = 0_u64;
        while !stop.load(Ordering::Relaxed) {
            let line = format!("{number}\n");
            in_time("a write", process.write(line.as_bytes())).await.unwrap();
            number += 1;
        }
        in_time("a write", process.write(format!("end {number}\n").as_bytes())).await.unwrap();
        in_time("the end of input", process.close_stdin()).await.unwrap();
    };
    let ((), ()) = tokio::join!(writing, follow(process.clone(), 0));
    client.end().await.unwrap();
}

/// Starts processes one after the other until `stop`; each leaves a line, and a child that only a kill ends.
async fn starts(client: Client, directory: std::path::PathBuf, stop: Arc<AtomicBool>) {
    let mut count = 0_u64;
    while !stop.load(Ordering::Relaxed) {
        let line =
            format!("echo {count} >> started; setsid sleep 1000 > /dev/null 2>&1 < /dev/null & echo {count}");
        let command = Command::shell(line).cwd(&directory);
        let process = in_time("a start", command.start(&client)).await.unwrap();
        let output = in_time("output", process.wait_with_output()).await.unwrap();
        assert_eq!(output.stdout, format!("{count}\n").as_bytes());
        in_time("a kill", process.reference().terminate_tree(remex_client::process::Termination::Kill))
            .await
            .unwrap();
        count += 1;
    }
    let started = fs::read_to_string(directory.join("started")).unwrap();
    let expected: String = (0..count).map(|number| format!("{number}\n")).collect();
    assert_eq!(started, expected, "each was started once");
    client.end().await.unwrap();
}

/// Returns how many processes work in a directory.
fn working_in(directory: &Path) -> usize {
    let processes = fs::read_dir("/proc").unwrap().flatten();
    processes
        .filter(|entry| fs::read_link(entry.path().join("cwd")).is_ok_and(|cwd| cwd == directory))
        .count()
}

/// What happens to the server again and again.
#[derive(Clone, Copy)]
enum Fate {
    Killed,
    Upgraded,
    /// It and its keeper live, but the connection between them ends.
    CutOff,
}

fn number_from(variable: &str, otherwise: u64) -> u64 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(otherwise)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_duplicated_when_the_server_is_killed_at_any_moment() {
    survive(Fate::Killed, number_from("REMEX_TEST_KILLS", KILLS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_duplicated_when_server_and_keeper_are_upgraded_at_any_moment() {
    survive(Fate::Upgraded, number_from("REMEX_TEST_UPGRADES", UPGRADES)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_is_lost_or_duplicated_when_the_keeper_link_is_lost_at_any_moment() {
    survive(Fate::CutOff, number_from("REMEX_TEST_CUTS", CUTS)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn starts_outlast_many_lost_keeper_links() {
    let host = DurableHost::start();
    let client = host.connect(Options::default()).await;
    let mut starts = JoinSet::new();
    let (completed, mut completions) = tokio::sync::mpsc::channel(1);
    for number in 0..8 {
        let (client, completed) = (client.clone(), completed.clone());
        starts.spawn(async move {
            for count in 0..15 {
                let word = format!("{number} {count}");
                let process =
                    in_time("a start", Command::shell(format!("echo {word}")).start(&client)).await.unwrap();
                let output = in_time("output", process.wait_with_output()).await.unwrap();
                assert_eq!(output.stdout, format!("{word}\n").as_bytes());
                let _ = completed.send(()).await;
            }
        });
    }
    drop(completed);
    // Many links in a row, and then as much time as one start takes.
    while in_time("a completed start", completions.recv()).await.is_some() {
        for _ in 0..10 {
            host.cut_link();
            tokio::task::yield_now().await;
        }
    }
    while let Some(ended) = starts.join_next().await {
        ended.unwrap_or_else(|error| panic!("{error}\n{}", host.said()));
    }
    client.end().await.unwrap();
}

/// Runs processes of all kinds while something happens to their server again and again.
async fn survive(fate: Fate, times: u64) {
    let seed = number_from("REMEX_TEST_SEED", 17);
    let mut host = DurableHost::renewable(&["--max-detach-ttl", "forever"]);
    let work = tempfile::tempdir().unwrap();
    let directory = work.path().canonicalize().unwrap();
    let client = host.connect(Options::default().detach_ttl(Duration::from_secs(3600))).await;
    let stop = Arc::new(AtomicBool::new(false));
    let mut stories = JoinSet::new();
    let slow = "echo $i; i=$((i+1)); sleep 0.01";
    let size = TerminalSize::new(24, 80).unwrap();
    let commands = [
        (Command::shell(counting("seq $i $((i+9999)); i=$((i+10000))", 17)), 17),
        (Command::shell(counting("seq $i $((i+9999)); i=$((i+10000))", 18)).terminal(size), 18),
        (Command::shell(counting(slow, 19)), 19),
        (Command::shell(counting(slow, 20)).terminal(size), 20),
        (Command::shell(counting(slow, 21)).sandbox(remex_client::process::Sandbox::workspace_write()), 21),
    ];
    for (command, code) in commands {
        let process = command.cwd(&directory).start(&client).await.unwrap();
        stories.spawn(follow(process, code));
    }
    // Clients of their own reconnect at moments of their own.
    let options = || Options::default().detach_ttl(Duration::from_secs(3600));
    for _ in 0..3 {
        stories.spawn(echo(host.connect(options()).await, Arc::clone(&stop)));
    }
    for number in 0..3 {
        let directory = directory.join(number.to_string());
        fs::create_dir(&directory).unwrap();
        stories.spawn(starts(host.connect(options()).await, directory, Arc::clone(&stop)));
    }

    let mut chance = Chance::new(seed);
    for number in 0..times {
        // Some servers die before anybody could connect, others when everybody is busy again.
        let time = if chance.percent(30) { chance.millis(0, 30) } else { chance.millis(50, 400) };
        tokio::time::sleep(time).await;
        if let Some(ended) = stories.try_join_next() {
            ended.unwrap_or_else(|error| panic!("after {number} times: {error}\n{}", host.said()));
            panic!("a story ended by itself after {number} times\n{}", host.said());
        }
        match fate {
            Fate::Killed => {
                host.kill();
                host.launch();
            }
            Fate::CutOff => _ = host.cut_link(),
            Fate::Upgraded => {
                // With another program, the keeper is replaced, too.
                if chance.percent(70) {
                    host.renew();
                }
                host.upgrade();
                // Never refused, whatever the server does at this moment.
                drop(
                    tokio::net::UnixStream::connect(host.socket())
                        .await
                        .expect("the listener is always open"),
                );
            }
        }
    }
    stop.store(true, Ordering::Relaxed);
    fs::write(directory.join("stop"), "").unwrap();
    let ended = async {
        while let Some(ended) = stories.join_next().await {
            ended.unwrap_or_else(|error| panic!("{error}\n{}", host.said()));
        }
    };
    in_time("the end of all stories", ended).await;
    if matches!(fate, Fate::Upgraded) {
        // How often depends on the load: an upgrade that is asked for during another one is no further one.
        assert!(host.replaced_keepers() > 0, "the keeper was never replaced\n{}", host.said());
    }
    if matches!(fate, Fate::CutOff) {
        assert!(host.said().contains("there is another one"), "the link was never cut\n{}", host.said());
    }
    client.end().await.unwrap();
    until("the end of all processes", || working_in(&directory) == 0).await;
}
