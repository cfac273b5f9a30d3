//! The keeper's end of the link to a server.
//!
//! Answers are sent in order. Announcements are made only when the socket has room for them, so that a server that does
//! not read costs no memory. Start at [`ServerLink`].

use std::{
    collections::VecDeque,
    ffi::OsString,
    io,
    os::unix::ffi::OsStringExt as _,
    path::PathBuf,
    sync::{
        Arc, Mutex, MutexGuard, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use bytes::{Buf as _, BytesMut};
use remex_base::{lock, trace::LOG_TARGET};
use remex_process::StartError;
use remex_proto::{
    RpcError,
    process::{self as wire, WriteStatus},
};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::UnixStream,
    sync::Notify,
};

use super::{Keeper, Process, progress_of};
use crate::{
    process::{Caller, Outcome, Request, StdinWrite},
    state::keeper_link::{
        message::{
            self, FromKeeper, Greeting, KeeperAnswer, KeeperRequest, Key, Purpose, Quotas, RequestNumber,
            StartFailure, Subject, ToKeeper, Unreadable,
        },
        peer::Peer,
        stream::{LinkStream, Received},
    },
};

/// Announcements wait while this much is unsent.
const MAX_UNSENT: usize = 256 << 10;

/// The longest path of a program that replaces this one.
const MAX_PATH: u64 = 4096;

/// How long a server may take for its greeting.
const GREETING_PATIENCE: Duration = Duration::from_secs(10);

/// A link to a server.
#[derive(Debug)]
pub(super) struct ServerLink {
    stream: LinkStream,
    received: Mutex<Received>,
    outgoing: Mutex<Outgoing>,
    has_outgoing: Notify,
    is_closed: AtomicBool,
    /// The process of the server.
    server: Peer,
}

#[derive(Debug, Default)]
struct Outgoing {
    unsent: BytesMut,
    /// Processes with something to announce.
    queued: VecDeque<(Key, Weak<Process>)>,
}

/// Who has connected.
pub(super) enum Greeted {
    /// A server, and its first message.
    Server(Arc<ServerLink>, Greeting, Quotas),
    /// A server that wants the keeper to be replaced by this program first.
    Replacement(UnixStream, PathBuf),
}

impl ServerLink {
    /// Exchanges greetings, and receives the first message; in time, or not at all.
    pub(super) async fn greet(stream: UnixStream, own: Greeting) -> io::Result<Greeted> {
        tokio::time::timeout(GREETING_PATIENCE, Self::exchange(stream, own)).await?
    }

    async fn exchange(mut stream: UnixStream, own: Greeting) -> io::Result<Greeted> {
        let mut bytes = [0; Greeting::LEN];
        stream.read_exact(&mut bytes).await?;
        let greeting = Greeting::decode(&bytes)
            .ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "it is not a server"))?;
        if greeting.purpose == Purpose::Replace {
            let mut program = Vec::new();
            (&mut stream).take(MAX_PATH).read_to_end(&mut program).await?;
            return Ok(Greeted::Replacement(stream, OsString::from_vec(program).into()));
        }
        stream.write_all(&own.encode()).await?;
        if greeting.version != message::VERSION {
            let message =
                format!("the server speaks version {}, this keeper {}", greeting.version, message::VERSION);
            return Err(io::Error::new(io::ErrorKind::Unsupported, message));
        }
        let pid = stream.peer_cred().ok().and_then(|peer| u32::try_from(peer.pid()?).ok());
        let link = ServerLink {
            server: Peer::new(pid.unwrap_or(greeting.pid)),
            stream: LinkStream::new(stream.into_std()?)?,
            received: Mutex::default(),
            outgoing: Mutex::default(),
            has_outgoing: Notify::new(),
            is_closed: AtomicBool::new(false),
        };
        match link.receive().await? {
            Some(Ok(ToKeeper::Quotas(quotas))) => Ok(Greeted::Server(Arc::new(link), greeting, quotas)),
            // It is of another version, and asks for a replacement next.
            None => Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it went away after the greeting")),
            _ => Err(io::Error::new(io::ErrorKind::InvalidData, "it is not a server")),
        }
    }

    /// Returns the next message, or why it cannot be read, or `None` at the end.
    pub(super) async fn receive(&self) -> io::Result<Option<Result<ToKeeper, Unreadable>>> {
        loop {
            if let Some(message) = lock(&self.received).next() {
                return Ok(Some(message));
            }
            self.stream.readable().await?;
            match self.stream.try_read(&mut lock(&self.received)) {
                Ok(0) => return Ok(None),
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Waits until the server has ended.
    pub(super) async fn server_ended(&self) {
        self.server.ended().await;
    }

    /// Answers a message that cannot be read, so that its sender knows that it was not carried out.
    pub(super) fn refuse(&self, unreadable: &Unreadable) {
        tracing::error!(target: LOG_TARGET, error = %unreadable, subject = ?unreadable.subject, "cannot read a message of the server");
        let message = format!("the keeper, which runs durable processes, cannot read this: {unreadable}");
        let error = RpcError::new(remex_proto::ErrorKind::Internal, message)
            .with_hint("server and keeper do not match; see `keeper.log` in the state directory");
        match unreadable.subject {
            Subject::Nothing => {}
            Subject::Start(key) => {
                self.send(&FromKeeper::NotStarted { key, failure: StartFailure::Other((&error).into()) });
            }
            Subject::Request(key, number) => {
                self.send(&FromKeeper::Answer { key, number, answer: KeeperAnswer::Failed((&error).into()) });
            }
        }
    }

    /// Sends what could not be sent at once, until an error.
    pub(super) async fn run(&self) {
        loop {
            self.has_outgoing.notified().await;
            loop {
                let is_done = self.flush();
                match is_done {
                    Ok(true) => break,
                    Ok(false) => {
                        if self.stream.writable().await.is_err() {
                            return;
                        }
                    }
                    // The other direction ends, too.
                    Err(_) => return,
                }
            }
        }
    }

    /// Sends as much as possible; returns whether that is everything.
    fn flush(&self) -> io::Result<bool> {
        loop {
            let mut outgoing = self.outgoing();
            while !outgoing.unsent.is_empty() {
                match self.stream.try_write(&outgoing.unsent) {
                    Ok(len) => outgoing.unsent.advance(len),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                    Err(error) => return Err(error),
                }
            }
            if outgoing.unsent.len() >= MAX_UNSENT {
                return Ok(false);
            }
            let Some((key, process)) = outgoing.queued.pop_front() else {
                return Ok(outgoing.unsent.is_empty());
            };
            // A process is locked before a link.
            drop(outgoing);
            if let Some(process) = process.upgrade() {
                process.with_audience(|announcer| announcer.is_queued = false);
                let message = FromKeeper::Progress { key, progress: progress_of(&process) };
                self.push(&message);
            }
        }
    }

    fn push(&self, message: &FromKeeper) {
        match message::encode(message) {
            Ok(bytes) => self.outgoing().unsent.extend_from_slice(&bytes),
            Err(error) => tracing::error!(target: LOG_TARGET, %error, "cannot send to the server"),
        }
    }

    pub(super) fn send(&self, message: &FromKeeper) {
        if !self.is_closed() {
            self.push(message);
            self.has_outgoing.notify_one();
        }
    }

    /// Announces a process when there is room.
    pub(super) fn queue(&self, key: Key, process: &Arc<Process>) {
        self.outgoing().queued.push_back((key, Arc::downgrade(process)));
        self.has_outgoing.notify_one();
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
        let queued = std::mem::take(&mut self.outgoing().queued);
        for process in queued.into_iter().filter_map(|(_, process)| process.upgrade()) {
            process.with_audience(|announcer| announcer.is_queued = false);
        }
    }

    fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }

    fn outgoing(&self) -> MutexGuard<'_, Outgoing> {
        lock(&self.outgoing)
    }
}

/// An unanswered request of the server. Dropped without an answer, it reports that to the server.
#[derive(Debug)]
pub(super) struct LinkCaller {
    from: From,
    key: Key,
    is_answered: bool,
}

/// Who is answered.
#[derive(Debug)]
enum From {
    /// The server that has sent this request.
    Request(Arc<ServerLink>, RequestNumber),
    /// A start, reported to the server that is linked when the outcome is known.
    Start(Weak<Keeper>),
}

impl LinkCaller {
    pub(super) fn new(link: &Arc<ServerLink>, key: Key, number: RequestNumber) -> Self {
        LinkCaller { from: From::Request(Arc::clone(link), number), key, is_answered: false }
    }

    pub(super) fn starting(keeper: &Arc<Keeper>, key: Key) -> Self {
        LinkCaller { from: From::Start(Arc::downgrade(keeper)), key, is_answered: false }
    }

    pub(super) fn is_of(&self, link: &Arc<ServerLink>) -> bool {
        matches!(&self.from, From::Request(own, _) if Arc::ptr_eq(own, link))
    }

    pub(super) fn key(&self) -> Key {
        self.key
    }

    pub(super) fn number(&self) -> RequestNumber {
        match self.from {
            From::Request(_, number) => number,
            From::Start(_) => 0,
        }
    }

    /// Tells the server of now about a start; a later one finds it in the list of processes.
    fn tell(&mut self, message: &FromKeeper) {
        self.is_answered = true;
        if let From::Start(keeper) = &self.from
            && let Some(link) = keeper.upgrade().and_then(|keeper| keeper.link())
        {
            link.send(message);
        }
    }

    /// Answers a start.
    pub(super) fn started(mut self, (pid, started_at_ms): (u32, u64)) {
        self.tell(&FromKeeper::Started { key: self.key, pid, started_at_ms });
    }

    /// Answers a start that failed.
    pub(super) fn refuse(mut self, error: StartError) {
        self.tell(&FromKeeper::NotStarted { key: self.key, failure: StartFailure::Refused(error) });
    }

    /// Answers a request to a process that the keeper does not have: it ended long ago.
    pub(super) fn answer_unknown(mut self, request: &KeeperRequest) {
        self.send(match request {
            KeeperRequest::Write { .. } => KeeperAnswer::Written(WriteStatus::StdinClosed),
            KeeperRequest::Terminate { .. } => KeeperAnswer::Terminated { running: false },
            KeeperRequest::CloseStdin | KeeperRequest::Resize(_) | KeeperRequest::Signal(_) => {
                KeeperAnswer::Done
            }
        });
    }

    fn send(&mut self, answer: KeeperAnswer) {
        self.is_answered = true;
        let key = self.key;
        match (&self.from, answer) {
            (From::Request(link, number), answer) => {
                link.send(&FromKeeper::Answer { key, number: *number, answer });
            }
            (From::Start(_), KeeperAnswer::Failed(failure)) => {
                self.tell(&FromKeeper::NotStarted { key, failure: StartFailure::Other(failure) });
            }
            (From::Start(_), _) => {
                let error = RpcError::new(remex_proto::ErrorKind::ShuttingDown, "the start was aborted");
                let failure = StartFailure::Other((&error).into());
                self.tell(&FromKeeper::NotStarted { key, failure });
            }
        }
    }
}

impl Caller for LinkCaller {
    fn is_disconnected(&self) -> bool {
        matches!(&self.from, From::Request(link, _) if link.is_closed())
    }

    fn answer(mut self, outcome: Result<Outcome, RpcError>) {
        self.send(match outcome {
            Ok(Outcome::Done(_)) => KeeperAnswer::Done,
            Ok(Outcome::Written(reply)) => KeeperAnswer::Written(reply.status),
            Ok(Outcome::Terminated(reply)) => KeeperAnswer::Terminated { running: reply.running },
            Err(error) => KeeperAnswer::Failed((&error).into()),
        });
    }
}

impl Drop for LinkCaller {
    fn drop(&mut self) {
        if !self.is_answered {
            self.send(KeeperAnswer::Cancelled);
        }
    }
}

/// Returns a request as the engine knows it.
pub(super) fn to_request(request: KeeperRequest, caller: LinkCaller, id: &str) -> Request<LinkCaller> {
    let process_id: Box<str> = id.into();
    match request {
        KeeperRequest::Write { chunk, write_id } => {
            // With an id the answer says what became of it; without one it may be an error for the client.
            Request::Write(StdinWrite { chunk, write_id, process_id, caller })
        }
        KeeperRequest::CloseStdin => Request::CloseStdin(caller, process_id),
        KeeperRequest::Resize(size) => Request::Resize(size, caller, process_id),
        KeeperRequest::Signal(signal) => Request::Signal(signal, caller),
        KeeperRequest::Terminate { grace_ms, whole_tree } => {
            let mode = grace_ms.map_or(wire::TerminateMode::Force, |timeout_ms| {
                wire::TerminateMode::Graceful { timeout_ms }
            });
            let scope = if whole_tree { wire::TerminateScope::Tree } else { wire::TerminateScope::Usual };
            Request::Terminate(mode, scope, caller)
        }
    }
}
