//! What a process was to say, compared with what arrives.

use remex_client::{
    Error,
    process::{Chunk, Event, Events, Exit, Process, Reader, Stream},
};
use tokio::io::AsyncReadExt as _;

use super::scene::Scene;

/// The lines from 1 to `last`, as `seq` says them.
pub(crate) fn lines(last: u64) -> Vec<u8> {
    (1..=last).flat_map(|number| format!("{number}\n").into_bytes()).collect()
}

/// What one stream was to say.
pub(crate) struct Exact {
    expected: Vec<u8>,
    at: usize,
    next_seq: u64,
    lacking: u64,
}

impl Exact {
    pub(crate) fn new(expected: Vec<u8>) -> Self {
        Self { expected, at: 0, next_seq: 1, lacking: 0 }
    }

    /// Takes what came next.
    pub(crate) fn take(&mut self, bytes: &[u8]) {
        let rest = &self.expected[self.at..];
        assert!(
            rest.starts_with(bytes),
            "{} bytes at {} of {} are not the right ones: `{}` instead of `{}`",
            bytes.len(),
            self.at,
            self.expected.len(),
            beginning(bytes),
            beginning(rest)
        );
        self.at += bytes.len();
    }

    /// Passes over what the server has given up.
    pub(crate) fn pass(&mut self, bytes: Option<u64>) {
        let bytes = bytes.expect("our server knows how much it has given up");
        self.lacking += bytes;
        self.at += usize::try_from(bytes).unwrap();
    }

    /// Checks that this was all.
    pub(crate) fn finish(&self, scene: &Scene) {
        assert_eq!(self.at, self.expected.len(), "everything arrives, or is accounted for");
        if self.lacking > 0 {
            scene.lack(self.expected.len());
        }
    }

    /// Tells whether everything has come.
    pub(crate) fn is_over(&self) -> bool {
        self.at == self.expected.len()
    }

    pub(crate) fn lacking(&self) -> u64 {
        self.lacking
    }

    /// Reads a stream to its end in pieces of this length.
    pub(crate) async fn read(&mut self, mut reader: Reader, piece: usize) {
        let mut buffer = vec![0; piece];
        loop {
            match reader.read(&mut buffer).await {
                Ok(0) => return,
                Ok(len) => self.take(&buffer[..len]),
                Err(error) => match error.get_ref().and_then(|error| error.downcast_ref()) {
                    Some(Error::Gap { bytes }) => self.pass(*bytes),
                    _ => panic!("{error}"),
                },
            }
        }
    }

    /// Reads the next piece of a stream that has one.
    pub(crate) async fn read_one(&mut self, reader: &mut Reader) {
        match reader.chunk().await {
            Ok(Some(bytes)) => self.take(&bytes),
            Err(Error::Gap { bytes }) => self.pass(bytes),
            other => panic!("{other:?}"),
        }
    }

    /// Takes the first event of a process, which is output.
    pub(crate) async fn begin(&mut self, events: &mut Events) {
        match events.next().await.unwrap() {
            Some(Event::Output(chunk)) => self.take_chunk(&chunk),
            other => panic!("{other:?}"),
        }
    }

    fn take_chunk(&mut self, chunk: &Chunk) {
        assert_eq!(chunk.seq, self.next_seq, "events come in order");
        self.next_seq += 1;
        self.take(&chunk.bytes);
    }

    /// Takes the events of a process that speaks on one stream only, and returns how it ended.
    pub(crate) async fn follow(&mut self, mut events: Events) -> Exit {
        let mut exit = None;
        loop {
            match events.next().await.unwrap() {
                Some(Event::Output(chunk)) => {
                    self.take_chunk(&chunk);
                }
                Some(Event::Gap(gap)) => {
                    assert_eq!(gap.from_seq, self.next_seq, "a gap begins where something is missing");
                    self.next_seq = gap.to_seq + 1;
                    self.pass(gap.bytes);
                }
                Some(Event::Exited { exit: how, .. }) => {
                    assert_eq!(exit.replace(how), None, "a process exits once");
                    self.next_seq += 1;
                }
                Some(Event::Closed(closed)) => {
                    let produced = closed.produced.unwrap();
                    let said = produced.stdout + produced.stderr + produced.pty;
                    assert_eq!(said, self.expected.len() as u64, "the ledger is exact");
                    assert_eq!(events.next().await, Ok(None), "nothing follows the close");
                    return exit.expect("a process exits before it is closed");
                }
                other => panic!("a process is closed before its events end, but {other:?}"),
            }
        }
    }
}

/// Reads both pipes of a process at the same time from its events, and returns how it ended.
pub(crate) async fn follow_both(process: &Process, stdout: &mut Exact, stderr: &mut Exact) -> Exit {
    let mut events = process.events();
    let mut exit = None;
    loop {
        match events.next().await.unwrap().expect("a process is closed before its events end") {
            Event::Output(chunk) if chunk.stream == Stream::Stderr => stderr.take(&chunk.bytes),
            Event::Output(chunk) => stdout.take(&chunk.bytes),
            Event::Exited { exit: how, .. } => exit = Some(how),
            Event::Closed(_) => return exit.expect("a process exits before it is closed"),
            other => panic!("nothing of so little is given up: {other:?}"),
        }
    }
}

fn beginning(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(40)]).escape_debug().to_string()
}
