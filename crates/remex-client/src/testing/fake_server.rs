//! A server that follows scripts.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use remex_proto::{
    Call, RequestId, RpcError, ServerNote,
    call::Empty,
    initialize,
    process::{self as wire, WriteStatus},
};
use remex_rpc::memory::{self, Reply, ServerEnd, ToClient, ToServer};
use tokio::sync::mpsc;

use super::{FakeProcess, Script};
use crate::{
    ErrorKind, Link, Target,
    process::{ExecProcess as _, OutputBatch},
    shell_word::quoted,
};

/// A server for unit tests: it starts no process, but does what the scripts say.
///
/// A real [`Client`](crate::Client) connects to it, so all that a program does with processes can be tested. A command
/// without a script is refused as a program that does not exist. It knows no files, no HTTP and no other sessions.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
/// use remex_client::{Client, Command, testing::{FakeServer, Script}};
///
/// // The program under test.
/// async fn head(client: &Client) -> Result<String, remex_client::Error> {
///     let output = Command::new("git").args(["rev-parse", "HEAD"]).output(client).await?;
///     Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned())
/// }
///
/// let server = FakeServer::new().on("git rev-parse HEAD", Script::new().stdout("c0ffee\n").exit(0));
/// let client = Client::connect(server.target()).await?;
/// assert_eq!(head(&client).await?, "c0ffee");
/// assert_eq!(server.started(), ["git rev-parse HEAD"]);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Default)]
pub struct FakeServer {
    /// The test and the connections; locked only briefly.
    state: Arc<Mutex<State>>,
}

#[derive(Debug, Default)]
struct State {
    scripts: Vec<(String, Script)>,
    started: Vec<String>,
    processes: BTreeMap<String, Arc<FakeProcess>>,
}

impl FakeServer {
    /// Returns a server without scripts.
    ///
    /// See [`FakeServer`] for an example.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a script for a command line, quoted as by [`Command::line`](crate::Command::line).
    ///
    /// See [`FakeServer`] for an example.
    pub fn on(self, line: impl Into<String>, script: Script) -> Self {
        self.lock().scripts.push((line.into(), script));
        self
    }

    /// Returns its address.
    ///
    /// See [`FakeServer`] for an example.
    pub fn target(&self) -> Target {
        let server = self.clone();
        Target::custom("a fake server", move || {
            let (client_end, server_end) = memory::link();
            tokio::spawn(server.clone().serve(server_end));
            async { Ok(Link::memory(client_end)) }
        })
    }

    /// Returns the command lines that were started, in order.
    ///
    /// See [`FakeServer`] for an example.
    pub fn started(&self) -> Vec<String> {
        self.lock().started.clone()
    }

    /// Returns what was written to a process so far.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), remex_client::Error> {
    /// use remex_client::{Client, Command, process::Input, testing::{FakeServer, Script}};
    ///
    /// let server = FakeServer::new().on("bc", Script::new().expect_input("1+1\n").stdout("2\n").exit(0));
    /// let client = Client::connect(server.target()).await?;
    /// let process = Command::new("bc").id("sum").input(Input::Piped).start(&client).await?;
    /// assert_eq!(process.communicate(b"1+1\n").await?.stdout, b"2\n");
    /// assert_eq!(server.written("sum"), b"1+1\n");
    /// # Ok(()) }
    /// ```
    pub fn written(&self, process_id: &str) -> Vec<u8> {
        self.process(process_id).map(|process| process.written()).unwrap_or_default()
    }

    /// Answers one client, in the order of its calls; only waits are answered later.
    async fn serve(self, ServerEnd { sender, mut receiver }: ServerEnd) {
        while let Some(message) = receiver.recv().await {
            let ToServer::Call { id, call, .. } = message else { continue };
            let (server, sender) = (self.clone(), sender.clone());
            match call {
                Call::ProcessRead(_) | Call::ProcessWait(_) => {
                    tokio::spawn(async move {
                        let outcome = server.wait(call).await;
                        let _ = sender.send(ToClient::Answer { id, outcome }).await;
                    });
                }
                Call::ProcessStart(start) => server.start(id, start, &sender).await,
                call => {
                    let outcome = server.answer(call).await;
                    let _ = sender.send(ToClient::Answer { id, outcome }).await;
                }
            }
        }
    }

    async fn start(&self, id: RequestId, start: wire::Start, sender: &mpsc::Sender<ToClient>) {
        let line = start.argv.iter().map(|word| quoted(word).into_owned()).collect::<Vec<_>>().join(" ");
        let process = {
            let mut state = self.lock();
            let script =
                state.scripts.iter().find(|(known, _)| *known == line).map(|(_, script)| script.clone());
            script.map(|script| {
                let process = Arc::new(FakeProcess::new(start.process_id.clone(), script));
                state.started.push(line.clone());
                state.processes.insert(start.process_id.clone(), Arc::clone(&process));
                process
            })
        };
        let Some(process) = process else {
            let message = format!("the fake server has no script for `{line}`");
            let outcome = Err(RpcError::new(ErrorKind::ProgramNotFound, message));
            let _ = sender.send(ToClient::Answer { id, outcome }).await;
            return;
        };
        let started = wire::Started {
            process_id: start.process_id,
            sandbox_type: wire::SandboxType::None,
            pid: None,
            started_at_ms: None,
            replayed: false,
        };
        let _ = sender.send(ToClient::Answer { id, outcome: Ok(Reply::new(started)) }).await;
        tokio::spawn(stream(process, sender.clone()));
    }

    /// Answers a call that may have to wait for a process.
    async fn wait(&self, call: Call) -> Result<Reply, RpcError> {
        match call {
            Call::ProcessRead(read) => {
                let process = self.known(&read.process_id)?;
                let wait = Duration::from_millis(read.wait_ms.unwrap_or(0));
                let after = read.after_seq.unwrap_or(0);
                let batch = process.read(after, read.max_bytes.unwrap_or(u64::MAX), wait).await;
                batch.map(|batch| Reply::new(read_reply(batch))).map_err(|_| unsupported("process/read"))
            }
            Call::ProcessWait(wait) if wait.until == wire::Until::Exit => {
                let exit =
                    self.known(&wait.process_id)?.wait().await.map_err(|_| unsupported("process/wait"))?;
                Ok(Reply::new(wire::Waited {
                    reason: wire::WaitReason::Exit,
                    seq: None,
                    matched: None,
                    exit_code: Some(exit.code),
                    signal: exit.signal,
                    cause: exit.cause,
                }))
            }
            call => Err(unsupported(call.method())),
        }
    }

    async fn answer(&self, call: Call) -> Result<Reply, RpcError> {
        let failed = |error: crate::Error| match error {
            crate::Error::Refused(error) => error,
            error => RpcError::new(ErrorKind::Internal, error.to_string()),
        };
        match call {
            Call::Initialize(_) => {
                let mut reply = initialize::Reply::new("fake");
                reply.server = initialize::Server::new("fake", "");
                Ok(Reply::new(reply))
            }
            Call::ProcessWrite(write) => {
                let status = match self.process(&write.process_id) {
                    None => WriteStatus::UnknownProcess,
                    Some(process) => match process.write(&write.chunk.0).await {
                        Ok(()) => WriteStatus::Accepted,
                        Err(_) => WriteStatus::StdinClosed,
                    },
                };
                Ok(Reply::new(wire::WriteReply::from(status)))
            }
            Call::ProcessCloseStdin(close) => {
                self.known(&close.process_id)?.close_stdin().await.map_err(failed)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessResize(resize) => {
                let size = crate::process::TerminalSize { rows: resize.rows, cols: resize.cols };
                self.known(&resize.process_id)?.resize(size).await.map_err(failed)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessSignal(signal) => {
                self.known(&signal.process_id)?.signal(signal.signal).await.map_err(failed)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessTerminate(end) => {
                let running = self.process(&end.process_id).is_some();
                if let Some(process) = self.process(&end.process_id) {
                    process.terminate(Duration::ZERO).await.map_err(failed)?;
                }
                Ok(Reply::new(wire::Terminated { running }))
            }
            Call::SessionEnd(_) => Ok(Reply::new(Empty {})),
            call => Err(unsupported(call.method())),
        }
    }

    fn known(&self, process_id: &str) -> Result<Arc<FakeProcess>, RpcError> {
        self.process(process_id).ok_or_else(|| {
            let message = format!("the fake server has no process `{process_id}`");
            RpcError::new(ErrorKind::UnknownProcess, message)
        })
    }

    fn process(&self, process_id: &str) -> Option<Arc<FakeProcess>> {
        self.lock().processes.get(process_id).cloned()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Sends the events of a process to a client.
async fn stream(process: Arc<FakeProcess>, sender: mpsc::Sender<ToClient>) {
    let mut after = 0;
    let mut closed = false;
    while !closed {
        let Ok(batch) = process.read(after, u64::MAX, Duration::MAX).await else { return };
        after = batch.last_seq;
        closed = batch.is_closed;
        for note in notes(process.id(), batch) {
            if sender.send(ToClient::Note(note)).await.is_err() {
                return;
            }
        }
    }
}

fn notes(process_id: &str, batch: OutputBatch) -> Vec<ServerNote> {
    let process_id = || process_id.to_owned();
    let last = batch.last_seq;
    let output = batch.chunks.into_iter().map(|chunk| {
        ServerNote::ProcessOutput(wire::Output {
            process_id: process_id(),
            session_id: None,
            seq: chunk.seq,
            stream: chunk.stream,
            chunk: remex_proto::Blob(chunk.bytes),
        })
    });
    let ends = batch.exit.into_iter().flat_map(|exit| {
        let exited = wire::Exited {
            process_id: process_id(),
            session_id: None,
            seq: last - 1,
            exit_code: exit.code,
            signal: exit.signal,
            cause: exit.cause,
            usage: None,
            sandbox_denied: false,
            network_denied: Vec::new(),
        };
        let closed = wire::Closed {
            process_id: process_id(),
            session_id: None,
            seq: last,
            produced: None,
            evicted_bytes: None,
        };
        [ServerNote::ProcessExited(exited), ServerNote::ProcessClosed(closed)]
    });
    output.chain(ends).collect()
}

fn read_reply(batch: OutputBatch) -> wire::ReadReply {
    wire::ReadReply {
        chunks: batch
            .chunks
            .into_iter()
            .map(|chunk| wire::Chunk {
                seq: chunk.seq,
                stream: chunk.stream,
                chunk: remex_proto::Blob(chunk.bytes),
                at_ms: None,
            })
            .collect(),
        next_seq: batch.last_seq + 1,
        exited: batch.exit.is_some(),
        exit_code: batch.exit.as_ref().map(|exit| exit.code),
        closed: batch.is_closed,
        failure: None,
        sandbox_denied: false,
        gap: None,
        signal: batch.exit.and_then(|exit| exit.signal),
        cause: None,
        usage: None,
        network_denied: Vec::new(),
        produced: None,
        evicted_bytes: None,
    }
}

fn unsupported(method: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownMethod, format!("the fake server does not support `{method}`"))
}
