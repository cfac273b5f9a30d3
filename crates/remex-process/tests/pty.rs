//! Children on a terminal.

mod harness;

use std::os::fd::AsFd;

use harness::{PTY, TAGS, finish, run, shell, spawner, start, terminal, within};
use remex_process::{Signal, Size, resize};

#[tokio::test]
async fn the_child_starts_on_a_controlling_terminal_of_the_requested_size() {
    // Only a controlling terminal can be opened by that name.
    let (output, status) =
        run(shell(PTY, TAGS.tag(2, 1), "stty size < /dev/tty; test -t 0 && test -t 1 && test -t 2")).await;
    assert_eq!((output.as_str(), status.code), ("31 97\r\n", 0));
}

#[tokio::test]
async fn a_resize_changes_the_size_and_sends_sigwinch() {
    let script = "trap 'stty size; kill $!; exit 0' WINCH; sleep 1000 & echo ready; wait";
    let mut child = spawner().start(shell(PTY, TAGS.tag(2, 2), script)).await.unwrap();
    let (mut reader, master) = terminal(child.io);
    reader.until("ready").await;
    resize(master.as_fd(), Size { rows: 50, cols: 132 }).unwrap();
    reader.until("50 132").await;
    assert_eq!(within(child.exit.wait()).await.code, 0);
}

#[tokio::test]
async fn ctrl_c_reaches_the_foreground_process() {
    let mut child = spawner().start(shell(PTY, TAGS.tag(2, 3), "echo ready; exec sleep 1000")).await.unwrap();
    let (mut reader, master) = terminal(child.io);
    reader.until("ready").await;
    rustix::io::write(&master, b"\x03").unwrap();
    assert_eq!(within(child.exit.wait()).await.signal, Some(Signal::INT));
}

#[tokio::test]
async fn a_hangup_ends_the_child() {
    let mut child = spawner().start(start(PTY, TAGS.tag(2, 4), "sleep", &["1000"])).await.unwrap();
    drop(child.io);
    assert_eq!(within(child.exit.wait()).await.signal, Some(Signal::HUP));
}

#[tokio::test]
async fn the_last_bytes_before_the_exit_are_read() {
    let spawner = spawner();
    let expected: String = (1..=700).map(|number| format!("{number}\r\n")).collect();
    for round in 0..500 {
        let child = spawner.start(start(PTY, TAGS.tag(2, 5), "seq", &["700"])).await.unwrap();
        assert_eq!(finish(child).await.0, expected, "round {round}");
    }
}
