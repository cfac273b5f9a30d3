//! The connection of one client to a fake server.

use std::{future::pending, sync::Arc, time::Duration};

use remex_base::quote::shell_word;
use remex_proto::{
    Call, RequestId, RpcError, ServerNote,
    call::Empty,
    initialize,
    process::{self as wire, WriteStatus},
};
use remex_rpc::memory::{Reply, ServerEnd, ToClient, ToServer};
use tokio::{sync::mpsc, time::sleep};

use super::{super::fake_process::InputState, FakeProcess, FakeServer, KnownProcess};
use crate::{
    ErrorKind,
    api::process::{ExecProcess as _, ExitCause, OutputBatch, TerminalSize},
};

/// A client that is connected, and its session.
#[derive(Debug, Clone)]
pub(super) struct Connection {
    server: FakeServer,
    session_id: String,
    sender: mpsc::Sender<ToClient>,
}

impl Connection {
    /// Answers one client, in the order of its calls; only waits are answered later.
    pub(super) async fn serve(server: FakeServer, ServerEnd { sender, mut receiver }: ServerEnd) {
        let mut connection = Self { server, session_id: String::new(), sender };
        while let Some(message) = receiver.recv().await {
            let ToServer::Call { id, call, .. } = message else { continue };
            match call {
                Call::Initialize(request) => {
                    let reply = connection.initialize(&request);
                    connection.send(id, Ok(Reply::new(reply))).await;
                }
                Call::ProcessRead(_) | Call::ProcessWait(_) => {
                    let connection = connection.clone();
                    tokio::spawn(async move {
                        let outcome = connection.wait(call).await;
                        connection.send(id, outcome).await;
                    });
                }
                Call::ProcessStart(start) => connection.start(id, start).await,
                call => {
                    let outcome = connection.answer(call).await;
                    connection.send(id, outcome).await;
                }
            }
        }
    }

    async fn send(&self, id: RequestId, outcome: Result<Reply, RpcError>) {
        // A client that is gone needs no answer.
        let _ = self.sender.send(ToClient::Answer { id, outcome }).await;
    }

    fn initialize(&mut self, request: &initialize::Initialize) -> initialize::Reply {
        let resumed = request.resume_session_id.session().map(str::to_owned);
        self.session_id = resumed.unwrap_or_else(|| self.server.new_session());
        let mut reply = initialize::Reply::new(self.session_id.clone());
        reply.server = initialize::Server::new("fake", "");
        reply
    }

    async fn start(&self, id: RequestId, start: wire::Start) {
        let limits = TimeLimits {
            timeout: start.timeout_ms.map(Duration::from_millis),
            idle_timeout: start.idle_timeout_ms.map(Duration::from_millis),
        };
        let process_id = start.process_id.clone();
        let started = |replayed| wire::Started {
            process_id,
            sandbox_type: wire::SandboxType::None,
            pid: None,
            started_at_ms: None,
            incarnation: None,
            replayed,
        };
        match self.create(start) {
            Ok(Created::New(process)) => {
                self.send(id, Ok(Reply::new(started(false)))).await;
                let sender = self.sender.clone();
                tokio::spawn(async move {
                    tokio::join!(stream(&process, &sender), limits.enforce(&process));
                });
            }
            Ok(Created::Earlier) => self.send(id, Ok(Reply::new(started(true)))).await,
            Err(refusal) => self.send(id, Err(refusal)).await,
        }
    }

    /// Creates a process, unless its id is in use or its command line has no script.
    fn create(&self, start: wire::Start) -> Result<Created, RpcError> {
        let mut state = self.server.lock();
        if let Some(known) = state.find(&self.session_id, &start.process_id) {
            return match (&known.start_id, &start.start_id) {
                (Some(known), Some(start_id)) if known == start_id => Ok(Created::Earlier),
                (Some(_), Some(_)) => Err(process_exists(ErrorKind::StartIdMismatch, &start.process_id)),
                _ => Err(process_exists(ErrorKind::ProcessExists, &start.process_id)),
            };
        }
        let line = start.argv.iter().map(|word| shell_word(word).into_owned()).collect::<Vec<_>>().join(" ");
        let Some((_, script)) = state.scripts.iter().find(|(known, _)| *known == line) else {
            let message = format!("the fake server has no script for `{line}`");
            return Err(RpcError::new(ErrorKind::ProgramNotFound, message));
        };
        let input = match (start.tty, start.pipe_stdin) {
            (true, _) => InputState::Terminal,
            (false, true) => InputState::Piped,
            (false, false) => InputState::Missing,
        };
        let process = Arc::new(FakeProcess::with_input(start.process_id.clone(), script.clone(), input));
        state.started.push(line);
        state.processes.push(KnownProcess {
            session_id: self.session_id.clone(),
            process_id: start.process_id,
            start_id: start.start_id,
            process: Arc::clone(&process),
        });
        Ok(Created::New(process))
    }

    /// Answers a call that may have to wait for a process.
    async fn wait(&self, call: Call) -> Result<Reply, RpcError> {
        match call {
            Call::ProcessRead(read) => {
                let process = self.known(read.session_id.as_deref(), &read.process_id)?;
                let wait = Duration::from_millis(read.wait_ms.unwrap_or(0));
                let after = read.after_seq.unwrap_or(0);
                let batch = process.read_log(after, read.max_bytes.unwrap_or(u64::MAX), wait).await;
                Ok(Reply::new(read_reply(batch)))
            }
            Call::ProcessWait(wait) if wait.until == wire::Until::Exit => {
                let process = self.known(wait.session_id.as_deref(), &wait.process_id)?;
                let exit = process.wait().await.map_err(refusal)?;
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
        match call {
            Call::ProcessWrite(write) => self.write(write).await,
            Call::ProcessCloseStdin(close) => {
                let process = self.known(close.session_id.as_deref(), &close.process_id)?;
                process.close_stdin().await.map_err(refusal)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessResize(resize) => {
                let process = self.known(resize.session_id.as_deref(), &resize.process_id)?;
                let size = TerminalSize { rows: resize.rows, cols: resize.cols };
                process.resize(size).await.map_err(refusal)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessSignal(signal) => {
                let process = self.known(signal.session_id.as_deref(), &signal.process_id)?;
                process.signal(signal.signal).await.map_err(refusal)?;
                Ok(Reply::new(Empty {}))
            }
            Call::ProcessTerminate(terminate) => self.terminate(terminate).await,
            Call::SessionEnd(_) => Ok(Reply::new(Empty {})),
            call => Err(unsupported(call.method())),
        }
    }

    async fn write(&self, write: wire::Write) -> Result<Reply, RpcError> {
        let status = match self.process(write.session_id.as_deref(), &write.process_id) {
            None => WriteStatus::UnknownProcess,
            Some(process) => match process.write(&write.chunk.0).await {
                Ok(()) => WriteStatus::Accepted,
                Err(_) => WriteStatus::StdinClosed,
            },
        };
        match (&write.write_id, status) {
            (None, WriteStatus::UnknownProcess) => Err(unknown_process(&write.process_id)),
            (None, WriteStatus::StdinClosed) => Err(stdin_closed(&write.process_id)),
            _ => Ok(Reply::new(wire::WriteReply::from(status))),
        }
    }

    async fn terminate(&self, terminate: wire::Terminate) -> Result<Reply, RpcError> {
        let process = self.process(terminate.session_id.as_deref(), &terminate.process_id);
        let Some(process) = process.filter(|process| process.is_running()) else {
            return Ok(Reply::new(wire::Terminated { running: false }));
        };
        match terminate.mode {
            wire::TerminateMode::Force => process.kill(ExitCause::Terminated),
            wire::TerminateMode::Graceful { timeout_ms } => {
                process.terminate(Duration::from_millis(timeout_ms)).await.map_err(refusal)?;
            }
        }
        Ok(Reply::new(wire::Terminated { running: true }))
    }

    fn known(&self, session_id: Option<&str>, process_id: &str) -> Result<Arc<FakeProcess>, RpcError> {
        self.process(session_id, process_id).ok_or_else(|| unknown_process(process_id))
    }

    /// Returns a process of this session, or of the one that a request names.
    fn process(&self, session_id: Option<&str>, process_id: &str) -> Option<Arc<FakeProcess>> {
        let state = self.server.lock();
        let known = state.find(session_id.unwrap_or(&self.session_id), process_id);
        known.map(|known| Arc::clone(&known.process))
    }
}

/// The outcome of a start.
enum Created {
    New(Arc<FakeProcess>),
    /// An earlier start with the same start id.
    Earlier,
}

/// How long a process may run.
#[derive(Debug, Clone, Copy)]
struct TimeLimits {
    timeout: Option<Duration>,
    /// The longest time without output.
    idle_timeout: Option<Duration>,
}

impl TimeLimits {
    /// Kills a process that runs for too long.
    async fn enforce(self, process: &FakeProcess) {
        let timeout = sleep_if(self.timeout);
        tokio::pin!(timeout);
        loop {
            let chunk_count = process.chunk_count();
            tokio::select! {
                biased;
                _ = process.wait() => return,
                () = process.output_after(chunk_count) => {}
                () = &mut timeout => return process.kill(ExitCause::Timeout),
                () = sleep_if(self.idle_timeout) => return process.kill(ExitCause::IdleTimeout),
            }
        }
    }
}

/// Waits for a time; forever if there is none.
async fn sleep_if(time: Option<Duration>) {
    match time {
        Some(time) => sleep(time).await,
        None => pending().await,
    }
}

/// Sends the events of a process to a client.
async fn stream(process: &FakeProcess, sender: &mpsc::Sender<ToClient>) {
    let mut after = 0;
    let mut closed = false;
    while !closed {
        let batch = process.read_log(after, u64::MAX, Duration::MAX).await;
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
            incarnation: None,
            seq: chunk.seq,
            stream: chunk.stream,
            chunk: remex_proto::Blob(chunk.bytes),
        })
    });
    let ends = batch.exit.into_iter().flat_map(|exit| {
        let exited = wire::Exited {
            process_id: process_id(),
            session_id: None,
            incarnation: None,
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
            incarnation: None,
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
        incarnation: None,
        exited: batch.exit.is_some(),
        exit_code: batch.exit.as_ref().map(|exit| exit.code),
        closed: batch.is_closed,
        failure: None,
        sandbox_denied: false,
        gap: None,
        cause: batch.exit.as_ref().and_then(|exit| exit.cause),
        signal: batch.exit.and_then(|exit| exit.signal),
        usage: None,
        network_denied: Vec::new(),
        produced: None,
        evicted_bytes: None,
    }
}

fn unsupported(method: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownMethod, format!("the fake server does not support `{method}`"))
}

fn unknown_process(process_id: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownProcess, format!("the fake server has no process `{process_id}`"))
}

fn process_exists(kind: ErrorKind, process_id: &str) -> RpcError {
    RpcError::new(kind, format!("process {process_id} already exists"))
        .with_hint("choose another `processId`; a fake server never forgets a process")
}

fn stdin_closed(process_id: &str) -> RpcError {
    RpcError::new(ErrorKind::StdinClosed, format!("stdin is closed for process {process_id}"))
        .with_hint("start it with `pipeStdin` to write to it; an ended process accepts no input")
}

/// Returns an error of a fake process as a server reports it.
fn refusal(error: crate::Error) -> RpcError {
    match error {
        crate::Error::Refused(error) => error,
        error => RpcError::new(ErrorKind::Internal, error.to_string()),
    }
}
