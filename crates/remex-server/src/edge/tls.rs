//! The connections of a TLS listener, whose certificates follow their files without a restart.
//!
//! Start at [`TlsListener`].

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use remex_base::{certificate::PeerCertificate, lock, threads::ServerWork};
use remex_rpc::{
    Stream,
    tls::{NotEncrypted, ServerTls},
};
use tokio::{net::TcpStream, time::Instant};

use crate::shared::host::Host;

/// How often the files are checked at most.
const CHECK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a connection waits for the check; on a file system that hangs, the certificates in use stay in use.
const CHECK_TIMEOUT: Duration = Duration::from_millis(500);

/// Encrypts the connections of one listener.
#[derive(Debug)]
pub(crate) struct TlsListener {
    tls: Arc<ServerTls>,
    /// Held briefly; decides which connection checks the files.
    check: Mutex<Check>,
}

#[derive(Debug)]
enum Check {
    /// It may run from this moment.
    Due(Instant),
    /// It occupies a thread; there is never more than one.
    Running,
}

/// Why a connection is not encrypted.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotSecured {
    #[error("the TLS handshake took too long")]
    TimedOut,
    #[error(transparent)]
    Failed(#[from] NotEncrypted),
}

impl TlsListener {
    pub(crate) fn new(tls: Arc<ServerTls>) -> Arc<Self> {
        Arc::new(TlsListener { tls, check: Mutex::new(Check::Due(Instant::now())) })
    }

    /// Returns the DNS names of the certificate.
    pub(crate) fn names(&self) -> Arc<[String]> {
        self.tls.names()
    }

    /// Encrypts a fresh connection within `limit`, with the newest certificates.
    pub(crate) async fn accept(
        self: &Arc<Self>,
        host: &Host,
        stream: TcpStream,
        limit: Duration,
    ) -> Result<(Stream, Option<PeerCertificate>), NotSecured> {
        self.refresh(host).await;
        match tokio::time::timeout(limit, self.tls.accept(stream)).await {
            Ok(accepted) => accepted.map_err(NotSecured::from),
            Err(_) => Err(NotSecured::TimedOut),
        }
    }

    /// Loads the files if they have changed.
    async fn refresh(self: &Arc<Self>, host: &Host) {
        {
            let mut check = self.check();
            match *check {
                Check::Due(due) if due <= Instant::now() => *check = Check::Running,
                _ => return,
            }
        }
        let running = Running(Arc::clone(self));
        let checking = host.own_threads().run(ServerWork::Certificates, move || {
            let reloaded = running.0.tls.refresh();
            if reloaded.is_changed {
                tracing::info!("the TLS certificates have changed and were loaded");
            }
            for error in reloaded.rejected {
                tracing::error!(%error, "cannot load the changed TLS certificates; the previous ones stay in use");
            }
        });
        if tokio::time::timeout(CHECK_TIMEOUT, checking).await.is_err() {
            tracing::warn!("checking the TLS certificates takes long; the previous ones stay in use");
        }
    }

    fn check(&self) -> MutexGuard<'_, Check> {
        lock(&self.check)
    }
}

/// A running check; the next one may run a while after it is dropped.
struct Running(Arc<TlsListener>);

impl Drop for Running {
    fn drop(&mut self) {
        *self.0.check() = Check::Due(Instant::now() + CHECK_INTERVAL);
    }
}
