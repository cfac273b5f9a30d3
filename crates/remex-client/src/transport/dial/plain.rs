//! What a client without the feature `tls` does with `wss://` addresses: it refuses them.

use remex_rpc::Stream;

use crate::{Error, WebSocket, base::url::Scheme};

impl WebSocket {
    /// Refuses addresses that need encryption.
    pub(super) fn check_encryption(&self, scheme: Scheme) -> Result<(), Error> {
        match scheme {
            Scheme::Plain => Ok(()),
            Scheme::Tls => Err(self.without_encryption()),
        }
    }

    pub(super) async fn encrypt(&self, _: Stream, _: &str) -> Result<Stream, Error> {
        Err(self.without_encryption())
    }

    fn without_encryption(&self) -> Error {
        self.invalid(
            "this program was built without TLS",
            "enable the feature `tls` of `remex-client`, or use a `ws://` address",
        )
    }
}
