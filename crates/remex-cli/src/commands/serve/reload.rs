//! SIGHUP: reads the configuration file again and applies what can change while the server runs.
//!
//! A configuration with a mistake changes nothing. A file that it names and that was in use before is no part of it: if it
//! cannot be read now, it stays as it was, and everything else counts. Start at [`Reloader`].

use std::sync::{Arc, Mutex};

use remex::server_config::ServerConfig;
use remex_base::lock;
use remex_rpc::{ListenAddress, tls::ServerTls};
use remex_server::{Limits, Reload, SandboxFloor, Server, token::CredentialFiles};
use tracing_subscriber::EnvFilter;

use super::{bearer::Load, exposure, log, private, settings};
use crate::{args::serve::Flags, render::failure::Failure};

/// Replaces the log filter of a running program.
pub(super) type SetLog = Box<dyn Fn(EnvFilter) + Send>;

/// The state that a reload needs.
pub(super) struct Reloader {
    pub(super) flags: Flags,
    pub(super) server: Arc<Server>,
    pub(super) tls: Option<Arc<ServerTls>>,
    /// Where the server listens, which a reload does not change.
    pub(super) addresses: Vec<ListenAddress>,
    pub(super) set_log: SetLog,
    /// The least confinement of what clients do, which a reload does not change.
    pub(super) floor: SandboxFloor,
    /// The settings in effect.
    pub(super) config: ServerConfig,
    /// The credential files in use.
    pub(super) files: Option<Arc<CredentialFiles>>,
}

/// Reloads on another thread: files and the user database may hang, and signals must not wait for them.
pub(super) async fn reload(server: &Server, reloader: &Arc<Mutex<Reloader>>) {
    let reloader = Arc::clone(reloader);
    let reload = move || lock(&reloader).reload();
    // A panic has been reported.
    let _ = server.run_blocking(reload).await;
}

impl Reloader {
    /// Applies the file, or logs why it is not applied.
    fn reload(&mut self) {
        if let Err(failure) = self.apply() {
            tracing::error!(
                error = failure.message(),
                "the configuration was not reloaded; the previous one stays in effect"
            );
        }
    }

    fn apply(&mut self) -> Result<(), Failure> {
        // Everything that can fail comes first.
        let config = settings::effective(&self.flags)?;
        let file = settings::file(&self.flags)?;
        private::check(&config, file, &self.floor)?;
        let auth = settings::auth(&config, Load::Again(self.files.as_deref()))?;
        let filter = log::filter(&config.log)?;
        // Certificates of listeners stay those of the start, so they are judged with them.
        let judged = ServerConfig { tls: self.config.tls.clone(), ..config.clone() };
        exposure::check(&judged, &self.addresses)?;
        self.reload_certificates();
        self.share_sockets(&config);
        for key in self.config.needs_restart(&config) {
            tracing::warn!(key, "a changed setting takes effect when the server starts again");
        }
        (self.set_log)(filter);
        self.server.set_limits(keep_fixed(&self.config.limits, &config.limits));
        self.files.clone_from(&auth.files);
        // Before the new credentials can be used.
        self.server.set_credentials(private::files(&config, file));
        self.server.set_auth(auth);
        self.server.reopen_audit();
        tracing::info!("configuration reloaded");
        // What needs a restart is compared with what is in effect, again and again.
        self.config = keep_restart(&self.config, config);
        Ok(())
    }

    fn reload_certificates(&self) {
        let reloaded = self.tls.as_ref().map(|tls| tls.reload()).unwrap_or_default();
        for error in reloaded.rejected {
            tracing::error!(%error, "cannot load the TLS certificates again; the previous ones stay in use");
        }
    }

    /// Makes unix sockets accessible to the permitted users. The server authenticates every connection, so a failure
    /// here admits no one else.
    fn share_sockets(&self, config: &ServerConfig) {
        for address in &self.addresses {
            if let ListenAddress::Unix(path) = address
                && let Err(failure) = settings::share_socket(config, path)
            {
                tracing::error!(error = failure.message(), path = %path.display(), "cannot change who can reach a socket");
            }
        }
    }
}

/// Returns the new limits, apart from those that need a restart.
fn keep_fixed(old: &Limits, new: &Limits) -> Limits {
    let mut limits = new.clone();
    for limit in Limits::TABLE.iter().filter(|limit| limit.reload == Reload::Restart) {
        if let Some(value) = old.get(limit.name) {
            let _ = limits.set(limit.name, value);
        }
    }
    limits
}

/// Returns the new settings with the old values of those that need a restart.
fn keep_restart(old: &ServerConfig, new: ServerConfig) -> ServerConfig {
    ServerConfig {
        listen: old.listen.clone(),
        exit_when_idle: old.exit_when_idle,
        tls: old.tls.clone(),
        metrics: old.metrics.clone(),
        audit: old.audit.clone(),
        cgroup: old.cgroup.clone(),
        sandbox: old.sandbox.clone(),
        workspace: old.workspace.clone(),
        starts: old.starts,
        state: old.state.clone(),
        limits: keep_fixed(&old.limits, &new.limits),
        ..new
    }
}
