//! The HTTP clients that all requests of a server share, created on first use.
//!
//! They read neither the environment nor files themselves: proxies and root certificates come from the
//! [`Config`](crate::Config).

use std::{fs, net::ToSocketAddrs as _, path::Path, sync::Arc, time::Duration};

use remex_proto::{ErrorKind, RpcError};
use reqwest::{
    Client, ClientBuilder, NoProxy, Proxy, Url,
    dns::{Addrs, Name, Resolve, Resolving},
    redirect,
};
use rustls::{ClientConfig, RootCertStore, crypto::ring};
use tokio::sync::OnceCell;

use crate::{
    config::{Proxies, Trust},
    socket_owner,
    threads::{FileThreads, Threads},
};

/// How long an idle connection to a web server is kept.
///
/// Less than the 5 s after which many web servers close idle connections: a request sent just as its connection
/// closes may fail.
const IDLE: Duration = Duration::from_secs(4);

/// Idle connections kept per web server.
const IDLE_PER_HOST: usize = 8;

/// Threads for name lookups; one that waits for a dead name server is blocked until the system gives up.
///
/// Twice what the requests of one connection can block.
const LOOKUPS: usize = 512;

/// Supported proxy schemes.
const PROXY_SCHEMES: [&str; 6] = ["http", "https", "socks4", "socks4a", "socks5", "socks5h"];

/// The HTTP clients of a server.
#[derive(Debug)]
pub(crate) struct WebClient {
    proxies: Proxies,
    trust: Trust,
    built: OnceCell<BuiltClients>,
}

#[derive(Debug)]
struct BuiltClients {
    clients: Clients,
    /// Why no URL with this scheme can be requested.
    no_http: Option<RpcError>,
    no_https: Option<RpcError>,
}

/// Two clients that differ in which connections they use.
#[derive(Debug)]
pub(crate) struct Clients {
    /// Uses an idle connection if there is one.
    pub(crate) pooled: Client,
    /// Opens a new connection for every request.
    pub(crate) fresh: Client,
}

impl WebClient {
    pub(crate) fn new(proxies: Proxies, trust: Trust) -> Self {
        WebClient { proxies, trust, built: OnceCell::new() }
    }

    /// Returns the clients for a URL; the first call creates them, reading certificates on `files`.
    ///
    /// Must be called for every URL before a request is sent to it, also after a redirect.
    pub(crate) async fn clients(&self, files: &FileThreads, url: &Url) -> Result<&Clients, RpcError> {
        if let Some(port) = url.port_or_known_default() {
            socket_owner::will_connect_to(port);
        }
        let made = self.built.get_or_try_init(|| make(&self.proxies, &self.trust, files)).await?;
        let obstacle = if url.scheme() == "https" { &made.no_https } else { &made.no_http };
        match obstacle {
            Some(error) => Err(error.clone()),
            None => Ok(&made.clients),
        }
    }
}

async fn make(
    proxy_settings: &Proxies,
    trust: &Trust,
    files: &FileThreads,
) -> Result<BuiltClients, RpcError> {
    let trust = trust.clone();
    let (tls, no_trust) = files.run(move || tls(&trust)).await??;
    let lookup = Arc::new(Lookup::new()?);
    let mut obstacles = [None, no_trust];
    let mut usable = Vec::new();
    for (proxy, obstacle) in proxies(proxy_settings).into_iter().zip(&mut obstacles) {
        match proxy {
            Ok(proxy) => usable.extend(proxy),
            Err(error) => *obstacle = Some(error),
        }
    }
    let client = |idle_per_host| {
        let builder = Client::builder()
            .tls_backend_preconfigured(tls.clone())
            .redirect(redirect::Policy::none())
            .dns_resolver(Arc::clone(&lookup))
            .pool_idle_timeout(IDLE)
            .pool_max_idle_per_host(idle_per_host)
            .no_proxy();
        let builder = usable.iter().cloned().fold(builder, ClientBuilder::proxy);
        builder.build().map_err(|error| failed(&causes(error)))
    };
    let clients = Clients { pooled: client(IDLE_PER_HOST)?, fresh: client(0)? };
    let [no_http, no_https] = obstacles;
    Ok(BuiltClients { clients, no_http, no_https })
}

/// Returns the proxies for http and for https.
fn proxies(proxies: &Proxies) -> [Result<Option<Proxy>, RpcError>; 2] {
    let Proxies { http, https, all, none } = proxies;
    if none.as_deref().is_some_and(|none| none.split(',').any(|host| host.trim() == "*")) {
        // The client accepts `*` for any name, but not for addresses.
        return [Ok(None), Ok(None)];
    }
    let none = none.as_deref().and_then(NoProxy::from_string);
    let named = |variable, url: &Option<String>, make: fn(&str) -> reqwest::Result<Proxy>| {
        let (variable, url) = match (url, all) {
            (Some(url), _) => (variable, url),
            (None, Some(url)) => ("all_proxy", url),
            (None, None) => return Ok(None),
        };
        let made = check_scheme(url).and_then(|()| make(url).map_err(causes));
        let cannot = "with which the server was started, cannot be used";
        made.map(|proxy| Some(proxy.no_proxy(none.clone()))).map_err(|why| {
            let schemes = PROXY_SCHEMES.join(", ");
            failed(&format!("the proxy in `{variable}`, {cannot}: {why}")).with_hint(format!(
                "set `{variable}` to a URL with one of the schemes {schemes}, and restart the server"
            ))
        })
    };
    [named("http_proxy", http, |url| Proxy::http(url)), named("https_proxy", https, |url| Proxy::https(url))]
}

/// Rejects a scheme that the client would mistake for a host.
fn check_scheme(proxy: &str) -> Result<(), String> {
    match proxy.split_once("://") {
        Some((scheme, _)) if !PROXY_SCHEMES.iter().any(|known| known.eq_ignore_ascii_case(scheme)) => {
            Err(format!("its scheme is `{scheme}`"))
        }
        _ => Ok(()),
    }
}

/// Reads the root certificates, which is file work, and creates the TLS configuration; also returns why they
/// are unusable, if they are.
fn tls(trust: &Trust) -> Result<(ClientConfig, Option<RpcError>), RpcError> {
    let (mut roots, mut no_trust) = (RootCertStore::empty(), None);
    let certificates = match trust {
        Trust::System => rustls_native_certs::load_native_certs().certs,
        Trust::Only { file, directories } => {
            no_trust = file.as_deref().and_then(obstacle);
            let file = file.as_deref().filter(|_| no_trust.is_none());
            let mut found = rustls_native_certs::load_certs_from_paths(file, None).certs;
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
    Ok((config, no_trust))
}

/// Returns why a file with root certificates cannot be read, if reading it might never end.
fn obstacle(file: &Path) -> Option<RpcError> {
    let is_other = fs::metadata(file).is_ok_and(|found| !found.is_file());
    is_other
        .then(|| failed(&format!("`SSL_CERT_FILE` names `{}`, which is not a regular file", file.display())))
}

/// Looks up names on its own threads, because each lookup may hang.
struct Lookup {
    threads: Threads,
}

impl Lookup {
    fn new() -> Result<Self, RpcError> {
        let threads = Threads::new("remex-lookup", LOOKUPS)
            .map_err(|error| failed(&format!("cannot look up names: {error}")))?;
        Ok(Lookup { threads })
    }
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let work = move || (name.as_str(), 0).to_socket_addrs();
        let lookup = self.threads.run_if_wanted(work);
        Box::pin(async move { Ok(Box::new(lookup.await??) as Addrs) })
    }
}

pub(crate) fn failed(why: &str) -> RpcError {
    RpcError::new(ErrorKind::HttpFailed, format!("http/request failed: {why}"))
}

/// Describes an error with all its causes, without the URL, which may contain a secret.
pub(crate) fn causes(error: reqwest::Error) -> String {
    let error = error.without_url();
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(&error);
    while let Some(error) = cause {
        let line = error.to_string();
        if !text.ends_with(&line) {
            text.push_str(": ");
            text.push_str(&line);
        }
        cause = error.source();
    }
    text
}
