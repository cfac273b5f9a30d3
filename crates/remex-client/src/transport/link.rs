//! One connection, independent of its transport.
//!
//! Start at [`Link`].

use std::{any::Any, fmt};

use remex_rpc::{FrameReader, Framing, ReadHalf, WriteHalf, memory::ClientEnd};

use crate::transport::program::Child;

/// The longest message accepted from a server, in bytes.
pub(crate) const MAX_MESSAGE_LEN: usize = 1 << 30;

/// One connection to a server.
///
/// Dropping it closes the connection, and then drops the value passed to [`Link::with`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Client, Link, Target};
///
/// let local = remex::Local::here()?;
/// let target = Target::custom("here", move || {
///     let link = Link::memory(local.connect());
///     async { Ok(link) }
/// });
/// assert!(Client::connect(target).await.is_ok());
/// # Ok(()) }
/// ```
pub struct Link {
    pub(crate) transport: Transport,
    /// The program at the other end. Declared after `transport`, because its input must be closed before it is ended.
    pub(crate) child: Option<Child>,
    /// Dropped after the connection is closed.
    pub(crate) guard: Option<Box<dyn Any + Send>>,
}

pub(crate) enum Transport {
    Wire { reader: FrameReader, writer: WriteHalf, framing: Framing },
    Memory(ClientEnd),
}

impl Link {
    /// Returns a connection to a server in this process that passes values without encoding them.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = remex::Local::here()?;
    /// let link = remex_client::Link::memory(local.connect());
    /// assert_eq!(format!("{link:?}"), "Link { transport: \"Memory\", .. }");
    /// # Ok(()) }
    /// ```
    pub fn memory(end: ClientEnd) -> Self {
        Self { transport: Transport::Memory(end), child: None, guard: None }
    }

    /// Returns a connection that sends one message per line.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::Link;
    ///
    /// let (near, _far) = tokio::io::duplex(4096);
    /// let (reader, writer) = tokio::io::split(near);
    /// let link = Link::lines(Box::new(reader), Box::new(writer));
    /// assert_eq!(format!("{link:?}"), "Link { transport: \"Lines\", .. }");
    /// # Ok(()) }
    /// ```
    pub fn lines(reader: ReadHalf, writer: WriteHalf) -> Self {
        let reader = FrameReader::new(reader, Framing::Lines, MAX_MESSAGE_LEN);
        Self {
            transport: Transport::Wire { reader, writer, framing: Framing::Lines },
            child: None,
            guard: None,
        }
    }

    /// Returns a WebSocket connection after its handshake.
    pub(crate) fn upgraded(reader: FrameReader, writer: WriteHalf) -> Self {
        let framing = Framing::WebSocket(remex_rpc::Role::Client);
        Self { transport: Transport::Wire { reader, writer, framing }, child: None, guard: None }
    }

    /// Keeps the program at the other end alive as long as the connection.
    #[cfg(feature = "program")]
    pub(crate) fn with_child(mut self, child: Child) -> Self {
        self.child = Some(child);
        self
    }

    /// Keeps `guard` alive as long as the connection.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::Link;
    ///
    /// // The directory is removed when the connection is closed.
    /// let local = remex::Local::here()?;
    /// let link = Link::memory(local.connect()).with(tempfile::tempdir()?);
    /// # Ok(()) }
    /// ```
    pub fn with(mut self, guard: impl Any + Send) -> Self {
        self.guard = Some(Box::new(guard));
        self
    }
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let transport = match &self.transport {
            Transport::Wire { framing, .. } => format!("{framing:?}"),
            Transport::Memory(_) => "Memory".to_owned(),
        };
        f.debug_struct("Link").field("transport", &transport).finish_non_exhaustive()
    }
}
