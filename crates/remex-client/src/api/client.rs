//! A client: one session with one server, over one connection at a time.
//!
//! Start at [`Client`].

use std::{
    fmt,
    sync::{Arc, Mutex, Weak},
};

use remex_base::lock;
use remex_proto::{
    Call,
    call::Request,
    environment::{Confinement, Info, State},
    initialize::Reply as Welcome,
    session as wire_session,
};
use tokio::{sync::watch, task::JoinHandle, time::timeout};

use crate::{
    ConnectionState, Error, Options, SessionLost, Target,
    core::{driver, shared::Core},
};

/// One session with one server.
///
/// Clones share the session. After a disconnect the client reconnects and resumes the session: calls and consumers
/// notice only a pause, unless a call cannot be repeated ([`Error::Interrupted`]) or the session is lost
/// ([`Error::Lost`]).
///
/// Dropping the last clone and the last handle made with it closes the connection; the session survives for its time to
/// live. [`Client::end`] ends the session and its processes, [`Client::close`] waits until the connection is closed.
/// A program that was started for the connection always ends with it.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Client, Command};
///
/// let client = Client::connect(remex::Local::here()?.target()).await?;
/// let process = Command::shell("echo hello").start(&client).await?;
/// assert_eq!(process.communicate(b"").await?.stdout, b"hello\n");
/// client.end().await?;
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Client {
    owner: Arc<Owner>,
}

/// Follows the starts of a session.
pub(crate) trait Follower: fmt::Debug + Send + Sync {
    /// Called when a process was started, while it has a handle.
    fn on_started(&self, client: &Client, process_id: &str);
}

/// Ends the connection when the last clone is gone.
#[derive(Debug)]
struct Owner {
    core: Arc<Core>,
    closing: watch::Sender<bool>,
    /// Notified of every start, which locks this only briefly.
    followers: Mutex<Vec<Weak<dyn Follower>>>,
    /// Taken by [`Client::close`], which waits for it; otherwise it ends by itself soon after the drop.
    task: tokio::sync::Mutex<Option<JoinHandle<()>>>,
}

impl Drop for Owner {
    fn drop(&mut self) {
        self.closing.send_replace(true);
    }
}

impl Client {
    /// Connects with the default options.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect_with`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Error, Target};
    ///
    /// let here = Client::connect(remex::Local::here()?.target()).await?;
    /// assert_eq!(here.welcome().server.name, "remex");
    ///
    /// let nowhere = Client::connect(Target::parse("ws://127.0.0.1:1")?).await;
    /// assert!(matches!(nowhere, Err(Error::Unreachable { .. })));
    /// # Ok(()) }
    /// ```
    pub async fn connect(target: Target) -> Result<Self, Error> {
        Self::connect_with(target, Options::default()).await
    }

    /// Connects and performs the handshake.
    ///
    /// # Errors
    ///
    /// [`Error::Unreachable`], [`Error::Unauthorized`], [`Error::ProgramEnded`] or [`Error::TimedOut`] when the
    /// server cannot be reached, and [`Error::Refused`] when it rejects the client or has no such session.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Client, Options, Session};
    ///
    /// let options = Options::default().session(Session::Named("nightly".to_owned()));
    /// let client = Client::connect_with(remex::Local::here()?.target(), options).await?;
    /// assert!(!client.session_id().is_empty());
    /// # Ok(()) }
    /// ```
    pub async fn connect_with(target: Target, options: Options) -> Result<Self, Error> {
        let core = Core::new(target, options);
        let (closing, closed) = watch::channel(false);
        let task = driver::start(&core, closed).await?;
        let task = tokio::sync::Mutex::new(Some(task));
        Ok(Self { owner: Arc::new(Owner { core, closing, followers: Mutex::default(), task }) })
    }

    /// Makes any call of the protocol; the typed handles of this crate are usually more convenient.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the server refuses the call, [`Error::TimedOut`] when it takes longer than
    /// [`Options::request_timeout`], [`Error::Interrupted`] and [`Error::Lost`] when there is no connection.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use remex_proto::process::List;
    ///
    /// let process = Command::new("sleep").arg("1000").start(&client).await?;
    /// let listing = client.call(List::default()).await?;
    /// assert_eq!(listing.processes[0].process_id, process.id());
    /// # Ok(()) }
    /// ```
    pub async fn call<R>(&self, request: R) -> Result<R::Reply, Error>
    where
        R: Request + Into<Call>,
        R::Reply: 'static,
    {
        self.within_limit(R::METHOD, self.call_without_limit(request)).await
    }

    /// Applies [`Options::request_timeout`] to a call of this method.
    pub(crate) async fn within_limit<T>(
        &self,
        what: &'static str,
        call: impl Future<Output = Result<T, Error>>,
    ) -> Result<T, Error> {
        match self.core().options.request_timeout {
            Some(limit) => timeout(limit, call).await.unwrap_or(Err(Error::TimedOut { what, after: limit })),
            None => call.await,
        }
    }

    /// Makes a call without a timeout.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`], except [`Error::TimedOut`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    /// use remex_proto::process::{Until, Wait};
    ///
    /// let process = Command::shell("exit 3").start(&client).await?;
    /// let process_id = process.id().to_owned();
    /// let (session_id, incarnation) = (None, None);
    /// let wait = Wait { process_id, session_id, incarnation, wait_ms: Some(60_000), until: Until::Exit };
    /// assert_eq!(client.call_without_limit(wait).await?.exit_code, Some(3));
    /// # Ok(()) }
    /// ```
    pub async fn call_without_limit<R>(&self, request: R) -> Result<R::Reply, Error>
    where
        R: Request + Into<Call>,
        R::Reply: 'static,
    {
        self.core().call(request.into()).await?.decode(R::METHOD)
    }

    /// Returns the id of the session; another client resumes it with [`Session::Resume`](crate::Session::Resume).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{Client, Options, Session};
    ///
    /// // What another client needs to go on with the same processes.
    /// let again = Options::default().session(Session::Resume { id: client.session_id().to_owned(), takeover: false });
    /// assert!(matches!(again.session, Session::Resume { .. }));
    /// # Ok(()) }
    /// ```
    pub fn session_id(&self) -> &str {
        &self.welcome().session_id
    }

    /// Returns the server's handshake reply: its name, version, capabilities and limits.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let welcome = client.welcome();
    /// assert_eq!(welcome.server.name, "remex");
    /// assert!(welcome.limits.processes > 0);
    /// # Ok(()) }
    /// ```
    pub fn welcome(&self) -> &Welcome {
        self.core().welcome()
    }

    /// Returns information about the remote host; asks the server if the handshake did not include it.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let info = client.info().await?;
    /// assert_eq!((info.platform_os.as_str(), info.cwd.is_some()), ("linux", true));
    /// # Ok(()) }
    /// ```
    pub async fn info(&self) -> Result<Info, Error> {
        match &self.welcome().environment_info {
            Some(info) => Ok(info.clone()),
            None => self.call(remex_proto::environment::GetInfo {}).await,
        }
    }

    /// Returns what the host can enforce for processes with a [`Sandbox`](crate::api::process::Sandbox), or `None` if the
    /// server does not say.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// let confinement = client.confinement().await?.expect("this server says it");
    /// println!("{:?}: {:?}", confinement.processes, confinement.hint);
    /// # Ok(()) }
    /// ```
    pub async fn confinement(&self) -> Result<Option<Confinement>, Error> {
        Ok(self.call(remex_proto::environment::GetInfo {}).await?.confinement)
    }

    /// Returns what the server keeps for processes that outlive it, or `None` if all processes end with it.
    ///
    /// Without the scope `metrics`, the state has no details.
    ///
    /// # Errors
    ///
    /// Those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// match client.durable_state().await? {
    ///     Some(state) => println!("{:?} of {:?} bytes are used", state.used_bytes, state.quota_bytes),
    ///     None => println!("processes end with the server"),
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn durable_state(&self) -> Result<Option<State>, Error> {
        Ok(self.call(remex_proto::environment::GetInfo {}).await?.state)
    }

    /// Returns the current connection state.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// assert_eq!(client.connection_state(), remex_client::ConnectionState::Connected);
    /// # Ok(()) }
    /// ```
    pub fn connection_state(&self) -> ConnectionState {
        self.core().connection_state.borrow().clone()
    }

    /// Returns a receiver that is notified of every change of the connection state.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::ConnectionState;
    ///
    /// let mut states = client.connection_states();
    /// client.close().await;
    /// states.wait_for(|state| matches!(state, ConnectionState::Lost(_))).await?;
    /// # Ok(()) }
    /// ```
    pub fn connection_states(&self) -> watch::Receiver<ConnectionState> {
        self.core().connection_state.subscribe()
    }

    /// Lets the next attempt to reconnect prompt the user, and makes it at once.
    ///
    /// Attempts to reconnect never prompt by themselves, because by then the terminal has other uses: a program that would
    /// is given up with [`Error::PromptRefused`], the `cause` of [`ConnectionState::Reconnecting`]. Stop reading from the
    /// terminal before you call this; [`Prompts::Allow`](crate::Prompts::Allow) says what else happens to it. It has no
    /// effect while the client is connected.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::{ConnectionState, Error};
    ///
    /// if let ConnectionState::Reconnecting { cause, .. } = client.connection_state()
    ///     && matches!(*cause, Error::PromptRefused { .. })
    /// {
    ///     client.permit_prompt();
    /// }
    /// # Ok(()) }
    /// ```
    pub fn permit_prompt(&self) {
        self.core().prompt_permit.send_replace(true);
    }

    /// Returns how often the connection was lost so far, including disconnects too short to be seen in
    /// [`Client::connection_states`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// assert_eq!(client.disconnects(), 0);
    /// # Ok(()) }
    /// ```
    pub fn disconnects(&self) -> u64 {
        self.core().disconnects()
    }

    /// Ends the session and all its processes, and closes the connection.
    ///
    /// A server of the base dialect cannot end a session on request; there it expires some time after the disconnect.
    ///
    /// # Errors
    ///
    /// When the server did not end the session; the connection is closed regardless.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let witness = client.clone();
    /// Command::new("sleep").arg("1000").start(&client).await?;
    /// client.end().await?;
    /// assert!(Command::new("true").start(&witness).await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn end(self) -> Result<(), Error> {
        let session_id = self.session_id().to_owned();
        self.core().request_end();
        let ended = self.call(wire_session::End { session_id }).await;
        self.close().await;
        match ended {
            // The connection was lost after the server had ended the session, so there is nothing to resume.
            Ok(_) | Err(Error::Lost(SessionLost::Forgotten { .. })) => Ok(()),
            // The request was resent after a disconnect, and the first one had already taken effect.
            Err(error) if error.kind() == Some(remex_proto::ErrorKind::UnknownSession) => Ok(()),
            Err(error) if error.kind() == Some(remex_proto::ErrorKind::UnknownMethod) => Ok(()),
            Err(Error::Refused(refusal)) if refusal.code == remex_proto::error::METHOD_NOT_FOUND => Ok(()),
            Err(error) => Err(error),
        }
    }

    /// Closes the connection for all clones, and waits until it is closed; the session survives for its time to live.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// use remex_client::Command;
    ///
    /// let other = client.clone();
    /// client.close().await;
    /// assert!(Command::new("true").output(&other).await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn close(self) {
        self.owner.closing.send_replace(true);
        // The task sets this state last, even when it is dropped.
        let _ = self.connection_states().wait_for(|state| matches!(state, ConnectionState::Lost(_))).await;
        let task = self.owner.task.lock().await.take();
        if let Some(task) = task {
            let _ = task.await;
        }
    }

    /// Adds a follower, until it is dropped.
    pub(crate) fn add_follower(&self, follower: Weak<dyn Follower>) {
        lock(&self.owner.followers).push(follower);
    }

    /// Notifies all followers of a started process.
    pub(crate) fn announce(&self, process_id: &str) {
        let mut followers = lock(&self.owner.followers);
        followers.retain(|follower| follower.strong_count() > 0);
        for follower in followers.iter().filter_map(Weak::upgrade) {
            follower.on_started(self, process_id);
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.owner.core
    }
}
