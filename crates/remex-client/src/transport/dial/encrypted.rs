//! Connections to `wss://` addresses.

use std::io;

use remex_rpc::{Stream, tls::TlsFailure};

use crate::{
    Error, WebSocket,
    base::{error::unreachable, url::Scheme},
};

impl WebSocket {
    /// Refuses options that the address does not use.
    pub(super) fn check_encryption(&self, scheme: Scheme) -> Result<(), Error> {
        if scheme == Scheme::Plain && !self.tls.is_default() {
            return Err(self.invalid(
                "TLS options are valid only with a `wss://` address",
                "write `wss://host:port`, or remove the options",
            ));
        }
        Ok(())
    }

    /// Encrypts a connection to `host`.
    pub(super) async fn encrypt(&self, stream: Stream, host: &str) -> Result<Stream, Error> {
        // Not an invalid address: a file that is being renewed may be back for the next connection.
        let loaded = self.tls.load().await;
        let tls = loaded.map_err(|error| unreachable(&self.url, error.message(), error.hint()))?;
        tls.connect(stream, host).await.map_err(|failure| self.tls_error(&failure))
    }

    pub(super) fn tls_error(&self, failure: &TlsFailure) -> Error {
        let hint = match failure {
            TlsFailure::UnknownIssuer if self.tls.ca.is_some() => "check the CA and the address",
            TlsFailure::CertificateRefused { .. } if self.tls.identity.is_some() => {
                "check that it is valid, and that the server trusts its CA"
            }
            _ => failure.hint(),
        };
        unreachable(&self.url, failure.message(), hint).with_cause(io::Error::other(failure.clone()))
    }
}
