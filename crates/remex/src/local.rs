//! A server in this process, and the way to it.
//!
//! Start at [`Local`].

use std::sync::Arc;

use remex_client::{Link, Target};
use remex_rpc::memory::{self, ClientEnd};
use remex_server::{Config, ListenError, Server};

/// This machine, served in this process: values cross as they are, there is no socket and no other program.
///
/// Clones are the same place. It lives until the last clone, the last [`Target`] and the last connection are gone; then
/// everything that was started in it is killed, at once and with all its descendants. [`Local::shut_down`] is the
/// gentle way.
///
/// Should this program die before that, a process that is forked with the place does the same: `remex-watchdog`. It keeps
/// what memory the program has at that moment and changes later, so a large program makes its place early.
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// use remex_client::Client;
///
/// let local = remex::Local::here().unwrap();
/// let client = Client::connect(local.target()).await.unwrap();
/// assert_eq!(client.command("/bin/echo").arg("hi").output().await.unwrap().stdout, b"hi\n");
/// local.shut_down().await;
/// # });
/// ```
#[derive(Clone, Debug)]
pub struct Local {
    server: Arc<OwnedServer>,
}

/// The server of all clones; dropped with the last of them.
#[derive(Debug)]
struct OwnedServer {
    server: Arc<Server>,
}

impl Local {
    /// Makes a place as the environment of this process describes it, see [`config_from_env`](crate::config_from_env).
    ///
    /// Must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the host has no room for the threads that start processes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = remex::Local::here()?;
    /// assert_eq!(local.target().to_string(), "this machine");
    /// # Ok(()) }
    /// ```
    pub fn here() -> Result<Self, ListenError> {
        Self::new(crate::config_from_env())
    }

    /// Makes a place; must be called within a tokio runtime.
    ///
    /// # Errors
    ///
    /// When the host has no room for the threads that start processes.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// // Started there, nothing sees more of the environment than this.
    /// let mut config = remex::config_from_env();
    /// config.host_env.retain(|(name, _)| name == "PATH");
    /// let client = remex_client::Client::connect(remex::Local::new(config)?.target()).await?;
    /// let output = client.shell("echo \"${HOME-no home}\"").output().await?;
    /// assert_eq!(output.stdout, b"no home\n");
    /// # Ok(()) }
    /// ```
    pub fn new(config: Config) -> Result<Self, ListenError> {
        Ok(Self { server: Arc::new(OwnedServer { server: Server::new(config)? }) })
    }

    /// Returns the way here for a client.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = remex::Local::here()?;
    /// let target = local.target();
    /// let client = remex_client::Client::connect(target).await?;
    /// assert!(client.command("true").output().await?.exit.is_success());
    /// # Ok(()) }
    /// ```
    pub fn target(&self) -> Target {
        let local = self.clone();
        Target::custom("this machine", move || {
            let link = Link::memory(local.connect()).with(local.clone());
            async move { Ok(link) }
        })
    }

    /// Opens a connection for whoever drives it by hand; must be called within a tokio runtime.
    ///
    /// Its session ends with it. Once the place is shut down, it is at its end from the beginning.
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

    /// Ends the place in order: processes get a grace, and clients are told.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let local = remex::Local::here()?;
    /// let client = remex_client::Client::connect(local.target()).await?;
    /// let process = client.command("sleep").arg("1000").start().await?;
    /// local.shut_down().await;
    /// assert!(!process.wait().await.is_ok_and(|exit| exit.is_success()));
    /// # Ok(()) }
    /// ```
    pub async fn shut_down(&self) {
        self.server.server.shut_down().await;
    }
}

impl Drop for OwnedServer {
    fn drop(&mut self) {
        // There may be no runtime any more, so nothing here may wait for one.
        self.server.kill();
    }
}
