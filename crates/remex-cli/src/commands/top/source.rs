//! The servers whose processes are shown.

use std::{ffi::OsString, path::Path};

use remex_client::{Client, ConnectionState};
use tokio::sync::watch;

use crate::{
    remote::{
        endpoint::{self, Endpoint, EndpointKind},
        user_server,
    },
    render::failure::Failure,
};

/// A server, and the connection to it.
pub(super) struct Source {
    pub(super) name: String,
    /// The error in its definition, if any.
    pub(super) endpoint: Result<Endpoint, Failure>,
    /// The options that select it for other commands.
    pub(super) selection: Vec<OsString>,
    /// `None` before the first connection, and when the client has given up reconnecting.
    pub(super) client: Option<Client>,
    states: Option<watch::Receiver<ConnectionState>>,
    pub(super) was_connected: bool,
    /// Whether a listing or a connection attempt is in progress.
    pub(super) is_busy: bool,
}

/// Returns the user's local server, if it is running, and all environments.
pub(super) async fn all() -> Result<Vec<Source>, Failure> {
    let mut sources = Vec::new();
    if let Some(socket) = user_server::running().await? {
        sources.push(Source::new("local".to_owned(), Ok(Endpoint::user_server(socket))));
    }
    for definition in &endpoint::environments()?.definitions.environments {
        let name = definition.id.to_string();
        let endpoint = Endpoint::named(&name);
        sources.push(Source::new(name, endpoint));
    }
    if sources.is_empty() {
        return Err(user_server::not_running().await);
    }
    Ok(sources)
}

impl Source {
    fn new(name: String, endpoint: Result<Endpoint, Failure>) -> Self {
        let is_remote = endpoint.as_ref().is_ok_and(|endpoint| endpoint.kind == EndpointKind::Remote);
        let selection =
            if is_remote { vec!["--on".into(), name.clone().into()] } else { vec!["--here".into()] };
        Self { name, endpoint, selection, client: None, states: None, was_connected: false, is_busy: false }
    }

    pub(super) fn connected(endpoint: Endpoint, client: Client, token_file: Option<&Path>) -> Self {
        let mut source = Self::new(endpoint.name.clone(), Ok(endpoint));
        if let Some(path) = token_file {
            source.selection.extend(["--token-file".into(), path.into()]);
        }
        source.set_client(client);
        source
    }

    pub(super) fn set_client(&mut self, client: Client) {
        self.states = Some(client.connection_states());
        self.client = Some(client);
        self.was_connected = true;
    }

    pub(super) fn disconnect(&mut self) {
        (self.client, self.states) = (None, None);
    }

    /// Waits for a change of the connection. Cancel-safe.
    pub(super) async fn changed(&mut self) {
        if let Some(states) = &mut self.states {
            if states.changed().await.is_ok() {
                return;
            }
            self.states = None;
        }
        std::future::pending::<()>().await;
    }
}
