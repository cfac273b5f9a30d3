//! Sessions: listing and ending them, and following everything in one.
//!
//! Start at [`Client::events`](crate::Client::events) for this client's own session, and at
//! [`Client::observe`](crate::Client::observe) for others.

mod info;
mod observed;
mod own;

use remex_proto::{process as wire, session as wire_session};

pub use info::SessionInfo;

use self::{observed::Observed, own::Own};
use crate::{Client, Error, api::process::Event};

/// The events of all processes of a session.
///
/// Those of one process arrive in order and exactly once, even across disconnects, or a gap reports what is missing; those of
/// several processes are interleaved. A process appears with its first event.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// use remex_client::{Command, process::Event};
///
/// let mut events = client.events().await?;
/// Command::shell("echo one").id("a").start(&client).await?;
/// Command::shell("echo two").id("b").start(&client).await?;
/// let mut closed = Vec::new();
/// while closed.len() < 2 {
///     let event = events.next().await?;
///     if let Ok(Event::Closed(_)) = event.event {
///         closed.push(event.process_id);
///     }
/// }
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct SessionEvents {
    source: Source,
}

#[derive(Debug)]
enum Source {
    Own(Own),
    Observed(Box<Observed>),
}

/// An event of a process of a session.
///
/// See [`SessionEvents`] for an example.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct SessionEvent {
    /// The process.
    pub process_id: String,
    /// What happened, or why this process can no longer be followed; the others continue.
    pub event: Result<Event, Error>,
}

/// Where an observer begins with processes that exist already.
///
/// See [`Client::observe`] for an example.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ObserveFrom {
    /// With their oldest retained output.
    Start,
    /// With their next event.
    Now,
}

impl SessionEvents {
    /// Waits for the next event of any process. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] when the session of this client is lost. For an observed session also [`Error::Refused`] when that
    /// has ended (the kind is [`ErrorKind::UnknownSession`](crate::ErrorKind::UnknownSession)), or cannot be observed again
    /// after a disconnect; a later call tries again.
    ///
    /// See [`SessionEvents`] for an example.
    pub async fn next(&mut self) -> Result<SessionEvent, Error> {
        match &mut self.source {
            Source::Own(own) => own.next().await,
            Source::Observed(observed) => observed.next().await,
        }
    }
}

impl Client {
    /// Returns the events of all processes of this session: those that exist, from the beginning as far as their output is
    /// retained, and those that this client starts from now on.
    ///
    /// It is a consumer of each process, so one that is stalled blocks them, as [`Process::events`] does; until it has
    /// returned the last event of a process, the id of that process cannot be used again.
    ///
    /// [`Process::events`]: crate::Process::events
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// See [`SessionEvents`] for an example.
    pub async fn events(&self) -> Result<SessionEvents, Error> {
        Ok(SessionEvents { source: Source::Own(Own::follow(self).await?) })
    }

    /// Returns the events of all processes of another session of the same identity, by id or name, without taking it over.
    ///
    /// Observing never blocks a process: output that the server evicts before it is received is a gap. A client observes
    /// a session once at a time.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when this client observes the session already, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Command, Options, Session, process::Event, session::ObserveFrom};
    ///
    /// let local = remex::Local::here()?;
    /// let builder = Client::connect_with(local.target(), Options::default().session(Session::Named("build".to_owned()))).await?;
    /// Command::shell("echo compiling").start(&builder).await?;
    ///
    /// let viewer = Client::connect(local.target()).await?;
    /// let mut events = viewer.observe("build", ObserveFrom::Start).await?;
    /// let first = events.next().await?.event?;
    /// assert!(matches!(first, Event::Output(chunk) if chunk.bytes == "compiling\n"));
    /// # Ok(()) }
    /// ```
    pub async fn observe(&self, session: &str, from: ObserveFrom) -> Result<SessionEvents, Error> {
        let observed = Observed::start(self, session, from).await?;
        Ok(SessionEvents { source: Source::Observed(Box::new(observed)) })
    }

    /// Lists the sessions of the same identity, the oldest first.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let sessions = client.sessions().await?;
    /// assert_eq!(sessions[0].session_id, client.session_id());
    /// # Ok(()) }
    /// ```
    pub async fn sessions(&self) -> Result<Vec<SessionInfo>, Error> {
        let listed = self.call(wire_session::List::default()).await?.sessions;
        Ok(listed.into_iter().map(SessionInfo::from).collect())
    }

    /// Ends a session of the same identity, by id or name, with all its processes.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Options, Session};
    ///
    /// let local = remex::Local::here()?;
    /// let _old = Client::connect_with(local.target(), Options::default().session(Session::Named("old".to_owned()))).await?;
    /// let client = Client::connect(local.target()).await?;
    /// client.end_session("old").await?;
    /// assert_eq!(client.sessions().await?.len(), 1);
    /// # Ok(()) }
    /// ```
    pub async fn end_session(&self, session: impl Into<String>) -> Result<(), Error> {
        self.call(wire_session::End { session_id: session.into() }).await.map(drop)
    }

    /// Returns the processes of a session; `None` is this one.
    async fn entries(&self, session_id: Option<String>) -> Result<Vec<wire::Entry>, Error> {
        let list = wire::List { session_id, scope: wire::Scope::Session };
        Ok(self.call(list).await?.processes)
    }
}
