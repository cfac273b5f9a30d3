//! The HTTP clients that all requests of a server share, created on first use.
//!
//! They read neither the environment nor files themselves: proxies and root certificates come from the
//! [`Config`](crate::Config).

use std::{fs, future::Future, net::ToSocketAddrs as _, path::Path, sync::Arc, time::Duration};

use remex_base::threads::{ServerThreads, ServerWork, Share, Threads};
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
    peers::socket_owner,
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
/// Of these, an identity may block as many as are left for others: twice what the requests of one connection can.
const LOOKUPS: usize = 1024;

tokio::task_local! {
    /// The identity that a request is sent for, as logs show it; whatever the HTTP client does for the request, it does in
    /// the same task.
    static REQUESTER: Arc<str>;
}

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

    /// Returns the clients for a URL; the first call creates them, reading certificates on `threads`.
    ///
    /// Must be called for every URL before a request is sent to it, also after a redirect.
    pub(crate) async fn clients(&self, threads: &ServerThreads, url: &Url) -> Result<&Clients, RpcError> {
        if let Some(port) = url.port_or_known_default() {
            socket_owner::will_connect_to(port);
        }
        let made = self.built.get_or_try_init(|| make(&self.proxies, &self.trust, threads)).await?;
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
    threads: &ServerThreads,
) -> Result<BuiltClients, RpcError> {
    let trust = trust.clone();
    let (tls, no_trust) = threads.run(ServerWork::Certificates, move || tls(&trust)).await??;
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
    threads: Threads<Arc<str>>,
}

impl Lookup {
    fn new() -> Result<Self, RpcError> {
        let threads = Threads::new("remex-lookup", LOOKUPS, Share::AsManyAsLeft)
            .map_err(|error| failed(&format!("cannot look up names: {error}")))?;
        Ok(Lookup { threads })
    }
}

impl Resolve for Lookup {
    fn resolve(&self, name: Name) -> Resolving {
        let work = move || (name.as_str(), 0).to_socket_addrs();
        let lookup = self.threads.run_if_wanted(requester(), work);
        Box::pin(async move { Ok(Box::new(lookup.await??) as Addrs) })
    }
}

/// Sends a request on behalf of an identity, given as logs show it: it waits only for its own lookups.
pub(crate) async fn send_for<F: Future>(identity: &Arc<str>, sending: F) -> F::Output {
    REQUESTER.scope(Arc::clone(identity), sending).await
}

/// Returns the identity that this task sends a request for; what is done for none in particular shares an empty one.
fn requester() -> Arc<str> {
    REQUESTER.try_with(Arc::clone).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use std::sync::{Mutex, mpsc};

    use super::*;
    use crate::tests::PATIENCE;

    /// Records for whom names are looked up, and finds none.
    #[derive(Default)]
    struct Recorder {
        requesters: Mutex<Vec<Arc<str>>>,
    }

    impl Resolve for Recorder {
        fn resolve(&self, _: Name) -> Resolving {
            self.requesters.lock().unwrap().push(requester());
            Box::pin(async { Err("it is unknown".into()) })
        }
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn the_http_library_looks_up_names_in_the_task_of_the_request() {
        let recorder = Arc::new(Recorder::default());
        let (tls, _) = tls(&Trust::Only { file: None, directories: Vec::new() }).unwrap();
        let builder = Client::builder().tls_backend_preconfigured(tls).no_proxy();
        let client = builder.dns_resolver(Arc::clone(&recorder)).build().unwrap();
        for (identity, url) in [("owner", "http://a.example/"), ("token:ann", "https://b.example/")] {
            let identity = Arc::from(identity);
            let sending = send_for(&identity, client.get(url).send());
            tokio::time::timeout(PATIENCE, sending).await.expect("the lookup fails").unwrap_err();
        }
        assert_eq!(*recorder.requesters.lock().unwrap(), ["owner", "token:ann"].map(Arc::from));
    }

    #[tokio::test(flavor = "multi_thread")]
    async fn names_that_hang_for_one_identity_do_not_delay_the_lookups_of_another() {
        let lookup = Lookup::new().unwrap();
        let (release, held) = mpsc::channel::<()>();
        let held = Arc::new(Mutex::new(held));
        for _ in 0..LOOKUPS {
            let held = Arc::clone(&held);
            drop(lookup.threads.run("hog".into(), move || drop(held.lock().map(|held| held.recv()))));
        }
        let identity = Arc::from("other");
        let resolving = send_for(&identity, async { lookup.resolve("localhost".parse().unwrap()).await });
        let found = tokio::time::timeout(PATIENCE, resolving).await.expect("a thread is left");
        assert!(found.is_ok_and(|mut found| found.all(|address| address.ip().is_loopback())));
        drop(release);
    }
}
