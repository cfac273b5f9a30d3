//! A server in this process, and a target to connect to it.
//!
//! Start at [`Local`].

use std::sync::Arc;

use remex_client::{Link, Target};
use remex_rpc::memory::{self, ClientEnd};
use remex_server::{Config, CreateError, Server};

/// A server in this process: messages are passed as values, without a socket or another program.
///
/// Clones share the server. It lives until the last clone, the last [`Target`] and the last connection are dropped; then
/// all its processes are killed at once, with all their descendants. [`Local::shut_down`] gives them a grace period.
///
/// All its clients have the same identity: they can list, observe and end each other's sessions.
///
/// If this program dies before that, `remex-watchdog`, a process forked with the server, kills them. It shares the memory
/// of the program at the time of the fork, and pages that change later are duplicated, so create the server early in a
/// program that uses much memory.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use remex_client::{Client, Command};
///
/// let local = remex::Local::here().unwrap();
/// let client = Client::connect(local.target()).await.unwrap();
/// assert_eq!(Command::new("/bin/echo").arg("hi").output(&client).await.unwrap().stdout, b"hi\n");
/// local.shut_down().await;
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Local {
    server: Arc<OwnedServer>,
}

/// The server shared by all clones.
#[derive(Debug)]
struct OwnedServer {
    server: Arc<Server>,
}

impl Local {
    /// Creates a server configured by [`config_from_env`](crate::config_from_env).
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the system cannot create the threads that start processes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = remex::Local::here()?;
    /// assert_eq!(local.target().to_string(), "this machine");
    /// # Ok(()) }
    /// ```
    pub fn here() -> Result<Self, CreateError> {
        Self::new(crate::config_from_env())
    }

    /// Creates a server; must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the system cannot create the threads that start processes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::Command;
    ///
    /// // Processes inherit only this environment.
    /// let mut config = remex::config_from_env();
    /// config.host_env.retain(|(name, _)| name == "PATH");
    /// let client = remex_client::Client::connect(remex::Local::new(config)?.target()).await?;
    /// let output = Command::shell("echo \"${HOME-no home}\"").output(&client).await?;
    /// assert_eq!(output.stdout, b"no home\n");
    /// # Ok(()) }
    /// ```
    pub fn new(config: Config) -> Result<Self, CreateError> {
        Ok(Self { server: Arc::new(OwnedServer { server: Server::new(config)? }) })
    }

    /// Returns the target to connect a client to.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::Command;
    ///
    /// let local = remex::Local::here()?;
    /// let target = local.target();
    /// let client = remex_client::Client::connect(target).await?;
    /// assert!(Command::new("true").output(&client).await?.exit.success());
    /// # Ok(()) }
    /// ```
    pub fn target(&self) -> Target {
        let local = self.clone();
        Target::custom("this machine", move || {
            let link = Link::memory(local.connect()).with(local.clone());
            async move { Ok(link) }
        })
    }

    /// Opens a low-level connection; must be called within a tokio runtime.
    ///
    /// Its session ends with the connection, unless the client asks for a time to detach
    /// ([`Options::detach_ttl`](remex_client::Options::detach_ttl)). After [`Local::shut_down`] it returns a closed connection.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let link = remex_client::Link::memory(remex::Local::here()?.connect());
    /// assert_eq!(format!("{link:?}"), "Link { transport: \"Memory\", .. }");
    /// # Ok(()) }
    /// ```
    pub fn connect(&self) -> ClientEnd {
        let (client, server) = memory::link();
        self.server.server.serve_memory(server);
        client
    }

    /// Shuts down the server: processes get a grace period, and clients are notified.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::Command;
    ///
    /// let local = remex::Local::here()?;
    /// let client = remex_client::Client::connect(local.target()).await?;
    /// let process = Command::new("sleep").arg("1000").start(&client).await?;
    /// local.shut_down().await;
    /// assert!(!process.wait().await.is_ok_and(|exit| exit.success()));
    /// # Ok(()) }
    /// ```
    pub async fn shut_down(&self) {
        self.server.server.shut_down().await;
    }
}

impl Drop for OwnedServer {
    fn drop(&mut self) {
        // The runtime may already be gone, so nothing here may wait for it.
        self.server.kill();
    }
}
