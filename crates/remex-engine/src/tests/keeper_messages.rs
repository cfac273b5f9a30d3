//! A keeper whose server sends what it cannot read.

use std::{
    io::{Read as _, Write as _},
    os::unix::net::UnixStream,
    path::Path,
};

use remex_process::{Rlimits, Start, Stdin, Stdio, Tags};
use tokio::sync::oneshot;

use super::{PATIENCE, config};
use crate::{
    run_keeper,
    state::{
        keeper_link::message::{
            self, FromKeeper, Greeting, KeeperAnswer, KeeperRequest, Key, NewProcess, Purpose, Quotas, Rules,
            ToKeeper,
        },
        state_dir::StateDir,
    },
};

/// A server that sends whatever a test wants.
struct RawServer {
    stream: UnixStream,
    tags: Tags,
}

impl RawServer {
    fn connect(state: &Path) -> Self {
        let mut stream = UnixStream::connect(state.join("keeper.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        let own = Greeting::new(Purpose::Link, Tags::new().number(), None);
        stream.write_all(&own.encode()).unwrap();
        stream.read_exact(&mut [0; Greeting::LEN]).unwrap();
        let tags = StateDir::open(state).unwrap().tags().clone();
        let mut server = RawServer { stream, tags };
        server.send(&ToKeeper::Quotas(Quotas::from(&remex_base::limits::Limits::default())));
        assert!(matches!(server.receive(), FromKeeper::Processes(kept) if kept.is_empty()));
        server
    }

    fn send(&mut self, message: &ToKeeper) {
        self.stream.write_all(&message::encode(message).unwrap()).unwrap();
    }

    fn receive(&mut self) -> FromKeeper {
        let mut bytes = vec![0; 4];
        self.stream.read_exact(&mut bytes).unwrap();
        bytes.resize(4 + u32::from_le_bytes(bytes[..].try_into().unwrap()) as usize, 0);
        self.stream.read_exact(&mut bytes[4..]).unwrap();
        message::decode(&bytes).unwrap().0.unwrap()
    }

    /// Returns why a process was not started.
    fn refusal(&mut self, wanted: Key) -> String {
        loop {
            match self.receive() {
                FromKeeper::NotStarted { key, failure } if key == wanted => return format!("{failure:?}"),
                FromKeeper::Progress { .. } => {}
                other => panic!("{other:?}"),
            }
        }
    }

    fn cat(&self, key: Key) -> NewProcess {
        let start = Start {
            program: "cat".into(),
            arg0: None,
            args: Vec::new(),
            cwd: "/".into(),
            env: vec![("PATH".into(), "/usr/bin:/bin".into())],
            stdio: Stdio::Pipes { stdin: Stdin::Piped },
            tag: self.tags.tag(1, u32::try_from(key.0).unwrap()),
            parent_death: None,
            rlimits: Rlimits::default(),
            cgroup: None,
            jail: None,
            user: None,
        };
        let rules = Rules {
            id: format!("p{}", key.0),
            tty: false,
            retain_bytes: 1 << 20,
            evicts: false,
            timeout_ms: None,
            idle_timeout_ms: None,
            timeout_grace_ms: None,
            linger_ms: None,
            write_ids: 10,
            stdin_bytes: 1 << 20,
            sync: false,
        };
        NewProcess {
            key,
            session: "s".to_owned(),
            description: b"{}".to_vec(),
            request: b"opaque".to_vec(),
            start: start.to_spec(),
            rules,
        }
    }
}

#[test]
fn a_message_that_the_keeper_cannot_read_fails_one_start_and_nothing_else() {
    let directory = tempfile::tempdir().unwrap();
    let state = directory.path().join("state");
    let (ready, is_ready) = oneshot::channel();
    let (end, shutdown) = oneshot::channel::<()>();
    let place = state.clone();
    let keeper = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let shutdown = async { drop(shutdown.await) };
        let ready = || ready.send(()).unwrap();
        runtime.block_on(run_keeper(config(), &place, None, ready, shutdown)).unwrap();
    });
    is_ready.blocking_recv().unwrap();
    let mut server = RawServer::connect(&state);
    server.send(&ToKeeper::Start(Box::new(server.cat(Key(1)))));
    assert!(matches!(server.receive(), FromKeeper::Started { key: Key(1), .. }));

    // A start that ends too early, as one of another version would.
    let mut torn = message::encode(&ToKeeper::Start(Box::new(server.cat(Key(2))))).unwrap();
    torn.truncate(torn.len() - 5);
    let len = u32::try_from(torn.len() - 4).unwrap();
    torn[..4].copy_from_slice(&len.to_le_bytes());
    server.stream.write_all(&torn).unwrap();
    let refusal = server.refusal(Key(2));
    assert!(refusal.contains("cannot read this"), "{refusal}");

    let mut long = message::encode(&ToKeeper::Start(Box::new(server.cat(Key(3))))).unwrap();
    long.resize(4 + message::MAX_BYTES + 1, 0);
    long[..4].copy_from_slice(&u32::try_from(message::MAX_BYTES + 1).unwrap().to_le_bytes());
    server.stream.write_all(&long).unwrap();
    let refusal = server.refusal(Key(3));
    assert!(refusal.contains("too long"), "{refusal}");

    // Not even a subject.
    server.stream.write_all(&[3, 0, 0, 0, 0xff, 0xff, 0xff]).unwrap();

    let request = KeeperRequest::Write { chunk: "alive\n".into(), write_id: None };
    server.send(&ToKeeper::Request { key: Key(1), number: 1, request });
    let (mut is_written, mut echoed) = (false, Vec::new());
    while !is_written || echoed != b"alive\n" {
        match server.receive() {
            FromKeeper::Answer { key: Key(1), number: 1, answer: KeeperAnswer::Written(_) } => {
                is_written = true;
            }
            FromKeeper::Progress { key: Key(1), progress } => {
                echoed.extend(progress.inline.into_iter().flat_map(|chunk| chunk.bytes));
            }
            other => panic!("{other:?}"),
        }
    }
    drop((server, end));
    keeper.join().unwrap();
}
