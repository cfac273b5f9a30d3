//! Connects to an environment by its name.
//!
//! Start at [`connect`].

use std::ffi::OsString;

use remex_client::{
    Client, Options, Target,
    environment::{DefinitionError, Environments, Id, LocalInclusion},
};

use crate::environments::{self, configured};

/// Why connecting to an environment failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ConnectError {
    /// The environments cannot be read.
    #[error(transparent)]
    Configuration(#[from] environments::Error),
    /// The token of the environment cannot be read.
    #[error("{0}")]
    Token(DefinitionError),
    /// There is no environment with this name.
    #[error("unknown environment `{name}`; known: {}", known.join(", "))]
    Unknown {
        /// As given.
        name: String,
        /// The names that there are.
        known: Vec<String>,
    },
    /// The server in this process cannot be created.
    #[cfg(target_os = "linux")]
    #[error(transparent)]
    Local(#[from] remex_server::CreateError),
    /// Its server cannot be reached, or rejects the client.
    #[error(transparent)]
    Client(#[from] remex_client::Error),
}

/// Connects to the environment with this name, which the program `remex` knows from the same file and variables; see
/// [`configured`].
///
/// `local` is a server in this process.
///
/// # Errors
///
/// [`ConnectError`].
///
/// ```no_run
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex_client::Command;
///
/// let build = remex::connect("build").await?;
/// let output = Command::new("make").cwd("~/project").output(&build).await?;
/// assert!(output.exit.success());
/// # Ok(()) }
/// ```
pub async fn connect(name: &str) -> Result<Client, ConnectError> {
    connect_with(name, |variable| std::env::var_os(variable), &Options::default()).await
}

/// Connects as [`connect`], with options; `env` returns the value of a variable.
///
/// # Errors
///
/// [`ConnectError`].
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// use remex::{ConnectError, connect_with};
/// use remex_client::{Command, Options};
///
/// let nothing_is_configured = |_: &str| None;
/// let here = connect_with("local", nothing_is_configured, &Options::default()).await?;
/// assert!(Command::new("true").output(&here).await?.exit.success());
///
/// let nowhere = connect_with("build", nothing_is_configured, &Options::default()).await;
/// assert_eq!(nowhere.unwrap_err().to_string(), "unknown environment `build`; known: local");
/// # Ok(()) }
/// ```
pub async fn connect_with(
    name: &str,
    env: impl Fn(&str) -> Option<OsString>,
    options: &Options,
) -> Result<Client, ConnectError> {
    let found = configured(env)?;
    let id = Id::new(name).ok();
    if let Some(error) = id.as_ref().and_then(|id| found.token_error(id)) {
        return Err(ConnectError::Token(error.clone()));
    }
    let has_local = cfg!(target_os = "linux") && found.definitions.local == LocalInclusion::Included;
    let local = if has_local && name == Id::local().as_str() { here()? } else { None };
    let others = found.definitions.environments.iter().map(|definition| definition.id.to_string());
    let known = has_local.then(|| Id::local().to_string()).into_iter().chain(others).collect();
    let environments = Environments::new(found.definitions, local, options);
    match id.and_then(|id| environments.find(&id).cloned()) {
        Some(environment) => Ok(environment.client().await?),
        None => Err(ConnectError::Unknown { name: name.to_owned(), known }),
    }
}

/// Returns a server in this process.
#[cfg(target_os = "linux")]
fn here() -> Result<Option<Target>, remex_server::CreateError> {
    Ok(Some(crate::Local::here()?.target()))
}

#[cfg(not(target_os = "linux"))]
fn here() -> Result<Option<Target>, remex_client::Error> {
    Ok(None)
}
