//! The client that all requests of a server share, made when it is first needed.
//!
//! It reads neither the environment nor files by itself: proxies and roots come from the [`Config`](crate::Config).

use std::{
    net::ToSocketAddrs as _,
    sync::{Arc, Weak},
    time::Duration,
};

use remex_proto::{ErrorKind, RpcError};
use reqwest::{
    Client, NoProxy, Proxy,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::sync::{OnceCell, Semaphore};

use super::{causes, failed};
use crate::{
    config::{Proxies, Trust},
    server::Server,
};

/// How long a connection to a web server is kept for the next request.
const IDLE: Duration = Duration::from_secs(30);

/// Connections that are kept for one web server.
const IDLE_PER_HOST: usize = 8;

/// Names that are looked up at once; a dead name server holds a thread for each.
const LOOKUPS: usize = 64;

/// The way to the web.
#[derive(Debug, Default)]
pub(crate) struct Web {
    client: OnceCell<Client>,
}

impl Web {
    /// Returns the client; the first caller makes it.
    pub(super) async fn client(&self, server: &Arc<Server>) -> Result<&Client, RpcError> {
        self.client.get_or_try_init(|| make(server)).await
    }
}

async fn make(server: &Arc<Server>) -> Result<Client, RpcError> {
    let trust = server.trust().clone();
    let tls = server.files().run(move || tls(&trust)).await??;
    let lookup = Lookup { server: Arc::downgrade(server), slots: Arc::new(Semaphore::new(LOOKUPS)) };
    let mut builder = Client::builder()
        .tls_backend_preconfigured(tls)
        .redirect(redirect::Policy::none())
        .dns_resolver(Arc::new(lookup))
        .pool_idle_timeout(IDLE)
        .pool_max_idle_per_host(IDLE_PER_HOST)
        .no_proxy();
    for proxy in proxies(server.proxies())? {
        builder = builder.proxy(proxy);
    }
    builder.build().map_err(|error| failed(&causes(error)))
}

fn proxies(proxies: &Proxies) -> Result<Vec<Proxy>, RpcError> {
    let Proxies { http, https, all, none } = proxies;
    if none.as_deref().is_some_and(|none| none.split(',').any(|host| host.trim() == "*")) {
        // The client takes it for any name, but not for addresses.
        return Ok(Vec::new());
    }
    let none = none.as_deref().and_then(NoProxy::from_string);
    let for_http = http.as_deref().or(all.as_deref()).map(Proxy::http);
    let for_https = https.as_deref().or(all.as_deref()).map(Proxy::https);
    let both = [("http", for_http), ("https", for_https)];
    both.into_iter()
        .filter_map(|(scheme, proxy)| Some((scheme, proxy?)))
        .map(|(scheme, proxy)| match proxy {
            Ok(proxy) => Ok(proxy.no_proxy(none.clone())),
            Err(error) => Err(failed(&format!(
                "the proxy for {scheme} URLs that the server was started with cannot be used: {}",
                causes(error)
            ))),
        })
        .collect()
}

/// Reads the roots, which is work with files, and makes the terms of TLS.
fn tls(trust: &Trust) -> Result<ClientConfig, RpcError> {
    let mut roots = RootCertStore::empty();
    let certificates = match trust {
        Trust::System => rustls_native_certs::load_native_certs().certs,
        Trust::Only { file, directories } => {
            let mut found = rustls_native_certs::load_certs_from_paths(file.as_deref(), None).certs;
            for directory in directories {
                found.extend(rustls_native_certs::load_certs_from_paths(None, Some(directory)).certs);
            }
            found
        }
    };
    let (added, ignored) = roots.add_parsable_certificates(certificates);
    if added == 0 {
        tracing::warn!("no root certificates were found: https requests will fail");
    }
    tracing::debug!(added, ignored, "root certificates were read");
    let mut config = ClientConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .map_err(|error| RpcError::new(ErrorKind::Internal, format!("cannot set up TLS: {error}")))?
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(config)
}

/// Looks up names on the threads for blocking work.
struct Lookup {
    /// The server owns the client that owns this.
    server: Weak<Server>,
    slots: Arc<Semaphore>,
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let (server, slots) = (self.server.clone(), Arc::clone(&self.slots));
        Box::pin(async move {
            let slot = slots.acquire_owned().await?;
            let server = server.upgrade().ok_or("the server is shutting down")?;
            let lookup = server.files().run(move || {
                let found = (name.as_str(), 0).to_socket_addrs();
                // Kept until now also when nobody waits any more.
                drop(slot);
                found
            });
            drop(server);
            Ok(Box::new(lookup.await??) as Addrs)
        })
    }
}
