//! Reloads credential files: before each decision that depends on them, and every second for open connections.

use std::{
    sync::{Arc, Weak},
    time::Duration,
};

use remex_access::token::CredentialError;
use remex_base::threads::ServerWork;
use remex_engine::Phase;
use tokio::time::timeout;

use super::Server;

/// How long a decision waits for a file system that hangs; then the contents known so far count.
const READ_TIMEOUT: Duration = Duration::from_secs(1);

/// How soon a removed token disconnects its clients if nothing else happens.
const CHECK_PERIOD: Duration = Duration::from_secs(1);

impl Server {
    /// Loads changed credential files, if there are any.
    pub(super) async fn reload_credentials(self: &Arc<Self>) {
        let Some(files) = self.authenticator().files().cloned() else { return };
        // While a read hangs, nothing starts another; its thread keeps the permit.
        let Ok(Ok(permit)) = timeout(READ_TIMEOUT, Arc::clone(&self.credential_read).acquire_owned()).await
        else {
            return;
        };
        let server = Arc::downgrade(self);
        let reading = self.host.own_threads().run(ServerWork::Credentials, move || {
            let reloaded = files.reload();
            drop(permit);
            reloaded.rejected.iter().for_each(CredentialError::report);
            if let (true, Some(server)) = (reloaded.is_changed, Weak::upgrade(&server)) {
                tracing::info!("reloaded the credential files");
                // Open connections check whether they are still admitted.
                server.auth.send_modify(|_| {});
            }
        });
        if timeout(READ_TIMEOUT, reading).await.is_err() {
            tracing::error!(
                "reading the credential files takes longer than {READ_TIMEOUT:?}; the previous contents stay valid"
            );
        }
    }

    /// Reloads credential files from time to time until the server shuts down.
    pub(super) async fn watch_credentials(self: Arc<Self>) {
        let (mut phase, mut auth) = (self.host.phase().subscribe(), self.auth.subscribe());
        let watch = async {
            // The sender lives as long as the server.
            while auth.wait_for(|auth| auth.files().is_some()).await.is_ok() {
                self.reload_credentials().await;
                tokio::time::sleep(CHECK_PERIOD).await;
            }
        };
        tokio::select! {
            () = watch => {}
            _ = phase.wait_for(|phase| *phase > Phase::Serving) => {}
        }
    }
}
