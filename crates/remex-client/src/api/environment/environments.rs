//! Environments that connect on first use.

use std::sync::Arc;

use remex_proto::environment::Info;
use tokio::sync::Mutex;

use super::{Definition, Definitions, Id, LocalInclusion};
use crate::{
    Client, ConnectionState, Error, Options, Target,
    api::{fs::Fs, http::Http},
};

/// A named environment: this host or a remote one.
///
/// Clones share one connection, which is made on first use. When the session is lost, pending calls fail, and the next
/// use starts a new session. Dropping the last clone closes the connection, unless a client or a handle made with it
/// still exists: see [`Client`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::{Command, Options, environment::{Environment, Id}};
///
/// let here = Environment::new(Id::local(), remex::Local::here()?.target(), Options::default());
/// let output = Command::new("echo").arg("hello").output(&here.client().await?).await?;
/// assert_eq!(output.stdout, b"hello\n");
/// # Ok(()) }
/// ```
#[derive(Debug, Clone)]
pub struct Environment {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    id: Id,
    target: Target,
    options: Options,
    /// Held while connecting, so that concurrent callers share the outcome.
    connection: Mutex<Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    client: Option<Client>,
    /// The error of the last attempt, for callers that waited for it.
    failed: Option<Error>,
}

/// Whether a caller of [`Environment::client`] connects itself.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Caller {
    /// It connects.
    Connects,
    /// Another caller was connecting, and this one shares the outcome.
    Waited,
}

impl Environment {
    /// Creates an environment without connecting.
    ///
    /// ```
    /// use remex_client::{Options, Target, environment::{Environment, Id}};
    ///
    /// let target = Target::parse("ws://build.example:4000")?;
    /// let build = Environment::new(Id::new("build")?, target, Options::default());
    /// assert_eq!((build.id().as_str(), build.target().to_string().as_str()), ("build", "ws://build.example:4000"));
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(id: Id, target: Target, options: Options) -> Self {
        let connection = Mutex::new(Connection::default());
        Self { shared: Arc::new(Shared { id, target, options, connection }) }
    }

    /// Returns its name.
    pub fn id(&self) -> &Id {
        &self.shared.id
    }

    /// Returns the address of its server.
    pub fn target(&self) -> &Target {
        &self.shared.target
    }

    /// Returns the shared client, and connects if necessary.
    ///
    /// # Errors
    ///
    /// Those of [`Client::connect_with`]. The next use tries again.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use remex_client::{Options, environment::{Environment, Id}};
    /// # let place = Environment::new(Id::local(), remex::Local::here()?.target(), Options::default());
    /// let (one, two) = (place.client().await?, place.client().await?);
    /// assert_eq!(one.session_id(), two.session_id());
    /// # Ok(()) }
    /// ```
    pub async fn client(&self) -> Result<Client, Error> {
        let (mut connection, caller) = match self.shared.connection.try_lock() {
            Ok(connection) => (connection, Caller::Connects),
            Err(_) => (self.shared.connection.lock().await, Caller::Waited),
        };
        if let Some(client) = &connection.client
            && !matches!(client.connection_state(), ConnectionState::Lost(_))
        {
            return Ok(client.clone());
        }
        if caller == Caller::Waited
            && let Some(error) = &connection.failed
        {
            return Err(error.clone());
        }
        *connection = Connection::default();
        match Client::connect_with(self.shared.target.clone(), self.shared.options.clone()).await {
            Ok(client) => {
                connection.failed = None;
                connection.client = Some(client.clone());
                Ok(client)
            }
            Err(error) => {
                connection.failed = Some(error.clone());
                Err(error)
            }
        }
    }

    /// Returns access to its files.
    ///
    /// # Errors
    ///
    /// Those of [`Environment::client`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use remex_client::{Options, environment::{Environment, Id}};
    /// # let place = Environment::new(Id::local(), remex::Local::here()?.target(), Options::default());
    /// assert!(place.fs().await?.metadata("/").await?.is_directory);
    /// # Ok(()) }
    /// ```
    pub async fn fs(&self) -> Result<Fs, Error> {
        Ok(self.client().await?.fs())
    }

    /// Returns an HTTP client in this environment.
    ///
    /// # Errors
    ///
    /// Those of [`Environment::client`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use remex_client::{Options, environment::{Environment, Id}};
    /// # let place = Environment::new(Id::local(), remex::Local::here()?.target(), Options::default());
    /// let request = place.http().await?.get("http://127.0.0.1:1");
    /// assert!(request.send().await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn http(&self) -> Result<Http, Error> {
        Ok(self.client().await?.http())
    }

    /// Returns information about its host.
    ///
    /// # Errors
    ///
    /// Those of [`Environment::client`] and of [`Client::info`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # use remex_client::{Options, environment::{Environment, Id}};
    /// # let place = Environment::new(Id::local(), remex::Local::here()?.target(), Options::default());
    /// assert_eq!(place.info().await?.platform_os, "linux");
    /// # Ok(()) }
    /// ```
    pub async fn info(&self) -> Result<Info, Error> {
        self.client().await?.info().await
    }
}

/// All environments.
///
/// Dropping it drops the environments; clones of single environments stay usable.
///
/// ```
/// use remex_client::{Options, environment::{Definitions, Environments, Id}};
///
/// let definitions = Definitions::from_url(Some("ws://127.0.0.1:4000"), "REMEX_URL")?;
/// let environments = Environments::new(definitions, None, &Options::default());
/// let remote = environments.default_environment().expect("a URL makes a default");
/// assert_eq!(remote.id().as_str(), "remote");
/// assert_eq!(environments.find(&Id::new("remote")?).map(|environment| environment.id()), Some(remote.id()));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Environments {
    environments: Vec<Environment>,
    default: Option<Id>,
}

impl Environments {
    /// Creates the defined environments; `local` is the target for this host, if it is included.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// use remex_client::{Options, environment::{Definitions, Environments, Id}};
    ///
    /// let here = remex::Local::here()?.target();
    /// let places = Environments::new(Definitions::local(), Some(here), &Options::default());
    /// assert_eq!(places.default_environment().map(|environment| environment.id().as_str()), Some("local"));
    /// # Ok(()) }
    /// ```
    pub fn new(definitions: Definitions, local: Option<Target>, options: &Options) -> Self {
        let here = local.filter(|_| definitions.local == LocalInclusion::Included);
        let here = here.map(|target| Environment::new(Id::local(), target, options.clone()));
        let elsewhere =
            definitions.environments.into_iter().map(|definition| environment(definition, options));
        Self { environments: here.into_iter().chain(elsewhere).collect(), default: definitions.default }
    }

    /// Returns all environments, this host first.
    ///
    /// ```
    /// use remex_client::{Options, environment::{Definitions, Environments}};
    ///
    /// let definitions = Definitions::from_url(Some("ws://127.0.0.1:4000"), "REMEX_URL")?;
    /// let places = Environments::new(definitions, None, &Options::default());
    /// assert_eq!(places.all().iter().map(|environment| environment.id().as_str()).collect::<Vec<_>>(), ["remote"]);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn all(&self) -> &[Environment] {
        &self.environments
    }

    /// Returns the environment with this id.
    ///
    /// ```
    /// use remex_client::{Options, environment::{Definitions, Environments, Id}};
    ///
    /// let places = Environments::new(Definitions::nothing(), None, &Options::default());
    /// assert!(places.find(&Id::local()).is_none());
    /// ```
    pub fn find(&self, id: &Id) -> Option<&Environment> {
        self.environments.iter().find(|environment| environment.id() == id)
    }

    /// Returns the environment to use if none is specified.
    ///
    /// ```
    /// use remex_client::{Options, environment::{Definitions, Environments}};
    ///
    /// let places = Environments::new(Definitions::nothing(), None, &Options::default());
    /// assert!(places.default_environment().is_none());
    /// ```
    pub fn default_environment(&self) -> Option<&Environment> {
        self.find(self.default.as_ref()?)
    }
}

fn environment(definition: Definition, options: &Options) -> Environment {
    let Definition { id, target, connect_timeout, initialize_timeout, reconnect_timeout } = definition;
    let mut options = options
        .clone()
        .connect_timeout(connect_timeout.unwrap_or(options.connect_timeout))
        .handshake_timeout(initialize_timeout.unwrap_or(options.handshake_timeout));
    if let Some(timeout) = reconnect_timeout {
        options.reconnect_timeout = timeout;
        // The session has to be there for as long as the client may come back.
        options.detach_ttl = Some(options.detach_ttl.unwrap_or_default().max(timeout));
    }
    Environment::new(id, target, options)
}
