//! Open files on the remote host.

use remex_proto::{
    ErrorKind, HostPath,
    error::NOT_FOUND,
    fs::{Close, Open, OpenMode},
    sandbox::Sandbox,
};

use crate::{Client, Error, core::shared::PendingReply};

/// The length of a block.
pub(super) const BLOCK: usize = 256 << 10;

/// The length of a block on connections that do not last for longer ones.
const MIN_BLOCK: usize = 8 << 10;

/// How many blocks are in flight, to hide the latency of the connection.
const WINDOW: usize = 4;

/// How many disconnects in a row a transfer survives without progress.
const MAX_RETRIES: u32 = 16;

/// How a file is opened.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Access {
    pub(super) mode: OpenMode,
    pub(super) create_mode: Option<u32>,
    pub(super) exclusive: bool,
}

/// One open file; closed when dropped.
#[derive(Debug)]
pub(super) struct Handle {
    client: Client,
    pub(super) id: String,
}

impl Handle {
    /// Requests to open a file; the pending reply says whether that succeeded.
    pub(super) async fn open(
        client: &Client,
        path: HostPath,
        access: Access,
    ) -> Result<(Self, PendingReply), Error> {
        let handle = Self { client: client.clone(), id: client.core().name("f") };
        let (handle_id, sandbox) = (handle.id.clone(), Sandbox::default());
        let Access { mode, create_mode, exclusive } = access;
        let open = Open { handle_id, path, mode, atomic: false, create_mode, exclusive, sandbox };
        let reply = client.core().enqueue(open.into()).await?;
        Ok((handle, reply))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        let close = Close { handle_id: std::mem::take(&mut self.id), discard: false };
        self.client.core().enqueue_unbounded(close.into());
    }
}

/// Counts disconnects since the last progress, and limits requests on connections that do not last.
#[derive(Debug)]
pub(super) struct RetryBudget {
    disconnects: u32,
    /// How many blocks this connection has carried.
    carried: usize,
    window: usize,
    block_len: usize,
}

impl Default for RetryBudget {
    fn default() -> Self {
        Self { disconnects: 0, carried: 0, window: WINDOW, block_len: BLOCK }
    }
}

impl RetryBudget {
    /// Records an error; returns it unless it is a disconnect after which a retry may succeed.
    pub(super) fn note(&mut self, error: Error) -> Result<(), Error> {
        if !is_disconnect(&error) || self.disconnects >= MAX_RETRIES {
            return Err(error);
        }
        if self.carried == 0 {
            self.block_len = (self.block_len / 2).max(MIN_BLOCK);
        }
        self.disconnects += 1;
        self.carried = 0;
        // A connection that lasts for one block is enough to get on.
        self.window = 1;
        Ok(())
    }

    /// Records that a block has arrived.
    pub(super) fn progress(&mut self) {
        self.disconnects = 0;
        self.carried += 1;
        self.window = (self.window + 1).min(WINDOW);
        if self.carried.is_multiple_of(WINDOW) {
            self.block_len = (2 * self.block_len).min(BLOCK);
        }
    }

    /// Returns how many blocks may be in flight.
    pub(super) fn window(&self) -> usize {
        self.window
    }

    /// Returns the length of the next block.
    pub(super) fn block_len(&self) -> usize {
        self.block_len
    }
}

/// Returns whether a disconnect is the cause: handles are closed with their connection.
fn is_disconnect(error: &Error) -> bool {
    match error {
        Error::Interrupted { .. } => true,
        Error::Refused(refusal) => {
            refusal.kind == ErrorKind::UnknownHandle
                || refusal.code == NOT_FOUND && refusal.message.starts_with("unknown file handle")
        }
        _ => false,
    }
}
