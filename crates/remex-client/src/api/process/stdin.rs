//! Writing to the standard input of a process.

use std::{
    collections::VecDeque,
    fmt, io,
    pin::Pin,
    task::{Context, Poll, ready},
};

use bytes::Bytes;
use remex_proto::{
    Blob,
    process::{self as wire, WriteReply, WriteStatus},
};
use tokio::io::AsyncWrite;

use crate::{
    Client, Error,
    core::{
        event_queue::{EventQueue, Incarnation},
        shared::{CallClass, Core, PendingReply},
    },
};

/// How many writes may be in flight.
const WRITES: usize = 8;

/// The longest single write, in bytes.
pub(super) const WRITE_BYTES: usize = 64 << 10;

/// A writer to the standard input of a process.
///
/// Bytes arrive in order and exactly once, even across disconnects. A write returns when it is queued, and waits while
/// the process does not read (backpressure); `flush` returns when the server has accepted everything. `shutdown`, or
/// dropping the writer, closes the input after all written data.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::{Stdio, Until}};
/// use tokio::io::AsyncWriteExt as _;
///
/// let process = Command::new("cat").stdin(Stdio::Piped).start(&client).await?;
/// let mut stdin = process.stdin().expect("it is piped");
/// stdin.write_all(b"hello\n").await?;
/// process.wait_for(&Until::Output("hello".to_owned())).await?;
/// stdin.shutdown().await?;
/// assert!(process.wait().await?.success());
/// # Ok(()) }
/// ```
pub struct Stdin {
    client: Client,
    process_id: String,
    incarnation: Incarnation,
    state: StdinState,
    /// Writes in flight, in order.
    unanswered: VecDeque<PendingReply>,
}

type Ordering = Pin<Box<dyn Future<Output = Result<PendingReply, Error>> + Send + Sync>>;

enum StdinState {
    Open,
    /// A write waits for a free call slot.
    Ordering(Ordering, wire::Write),
    /// End of file was sent.
    Closing(Pin<Box<dyn Future<Output = Result<(), Error>> + Send + Sync>>),
    Closed,
}

impl Stdin {
    pub(super) fn new(client: Client, queue: &EventQueue) -> Self {
        let (process_id, incarnation) = (queue.id.clone(), queue.shared_incarnation());
        Self { client, process_id, incarnation, state: StdinState::Open, unanswered: VecDeque::new() }
    }

    /// Drops the writer without closing the input.
    pub(super) fn forget(mut self) {
        self.state = StdinState::Closed;
    }

    fn write(&self, bytes: &[u8]) -> StdinState {
        let core = std::sync::Arc::clone(self.client.core());
        let request = request(&core, &self.process_id, self.incarnation.get().copied(), bytes);
        let call = request.clone().into();
        // The first write of each process never waits for those of other processes, which may be blocked.
        let lane = if self.unanswered.is_empty() { CallClass::Control } else { CallClass::Parked };
        StdinState::Ordering(Box::pin(async move { core.enqueue_as(lane, call).await }), request)
    }

    fn close(&self) -> wire::CloseStdin {
        let incarnation = self.incarnation.get().copied();
        wire::CloseStdin { process_id: self.process_id.clone(), session_id: None, incarnation }
    }

    /// Waits until the waiting write is sent.
    fn poll_ordered(&mut self, context: &mut Context<'_>) -> Poll<Result<(), Error>> {
        if let StdinState::Ordering(ordering, _) = &mut self.state {
            let reply = ready!(ordering.as_mut().poll(context));
            self.state = StdinState::Open;
            self.unanswered.push_back(reply?);
        }
        Poll::Ready(Ok(()))
    }

    /// Takes replies until at most `left` are outstanding.
    fn poll_answers(&mut self, context: &mut Context<'_>, left: usize) -> Poll<Result<(), Error>> {
        while let Some(reply) = self.unanswered.front_mut() {
            let answer = match Pin::new(reply).poll(context) {
                Poll::Ready(answer) => answer,
                Poll::Pending if self.unanswered.len() > left => return Poll::Pending,
                Poll::Pending => break,
            };
            self.unanswered.pop_front();
            accepted(answer?.decode("process/write")?, &self.process_id)?;
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stdin {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        if matches!(self.state, StdinState::Closing(_) | StdinState::Closed) {
            return Poll::Ready(Err(io::ErrorKind::BrokenPipe.into()));
        }
        ready!(self.poll_ordered(context))?;
        ready!(self.poll_answers(context, WRITES - 1))?;
        let len = bytes.len().min(WRITE_BYTES);
        if len > 0 {
            self.state = self.write(&bytes[..len]);
            // Usually a slot is free; otherwise the write is sent before the next one.
            let _ = self.poll_ordered(context)?;
        }
        Poll::Ready(Ok(len))
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_ordered(context))?;
        ready!(self.poll_answers(context, 0))?;
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            match &mut self.state {
                StdinState::Closed => return Poll::Ready(Ok(())),
                StdinState::Closing(closing) => {
                    let closed = ready!(closing.as_mut().poll(context));
                    self.state = StdinState::Closed;
                    return Poll::Ready(closed.map_err(Into::into));
                }
                StdinState::Open | StdinState::Ordering(..) => {
                    ready!(self.as_mut().poll_flush(context))?;
                    let (client, request) = (self.client.clone(), self.close());
                    self.state =
                        StdinState::Closing(Box::pin(async move { client.call(request).await.map(drop) }));
                }
            }
        }
    }
}

impl Drop for Stdin {
    fn drop(&mut self) {
        // Written data arrives even if no caller waits for the replies.
        for reply in self.unanswered.drain(..) {
            reply.detach();
        }
        let core = self.client.core();
        match std::mem::replace(&mut self.state, StdinState::Closed) {
            StdinState::Open => {}
            StdinState::Ordering(_, write) => core.enqueue_unbounded(write.into()),
            StdinState::Closing(_) | StdinState::Closed => return,
        }
        core.enqueue_unbounded(self.close().into());
    }
}

impl fmt::Debug for Stdin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Stdin").field("process", &self.process_id).finish_non_exhaustive()
    }
}

pub(super) fn request(core: &Core, process_id: &str, incarnation: Option<u64>, bytes: &[u8]) -> wire::Write {
    wire::Write {
        process_id: process_id.to_owned(),
        session_id: None,
        incarnation,
        chunk: Blob(Bytes::copy_from_slice(bytes)),
        write_id: Some(core.name("w")),
    }
}

pub(super) fn accepted(reply: WriteReply, process_id: &str) -> Result<(), Error> {
    match reply.status {
        WriteStatus::Accepted => Ok(()),
        // A newer server has another word for it.
        WriteStatus::Unknown if reply.accepted => Ok(()),
        status => Err(refused(status, process_id)),
    }
}

fn refused(status: WriteStatus, process_id: &str) -> Error {
    use remex_proto::{ErrorKind, RpcError};

    let (kind, message) = match status {
        WriteStatus::StdinClosed => {
            (ErrorKind::StdinClosed, format!("the input of process `{process_id}` is closed"))
        }
        WriteStatus::UnknownProcess => {
            (ErrorKind::UnknownProcess, format!("the server does not know process `{process_id}`"))
        }
        WriteStatus::Starting => {
            (ErrorKind::ProcessStarting, format!("process `{process_id}` is still starting"))
        }
        _ => {
            let message = format!("process `{process_id}` did not accept a write, for an unknown reason");
            (ErrorKind::Other, message)
        }
    };
    Error::Refused(RpcError::new(kind, message))
}
