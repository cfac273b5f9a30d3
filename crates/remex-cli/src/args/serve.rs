//! The arguments of `remex serve`.

mod base;

use std::{
    net::SocketAddr,
    num::NonZeroUsize,
    path::{Path, PathBuf},
    time::Duration,
};

use clap::{Args, ValueEnum};

use tracing_subscriber::EnvFilter;

use crate::{
    args::shared::absolute,
    render::{failure::InvalidArg, text::duration},
};

/// What to do about an invalid log filter.
pub(crate) const FILTER_HINT: &str =
    "use a level such as `info`, or add levels of modules as in `info,remex_server=debug`";

// The headings of the flags in the help.
const SETTINGS: &str = "Settings";
const LISTENING: &str = "Listening";
const LIFETIME: &str = "Lifetime";
const CLIENTS: &str = "Clients";
const TLS: &str = "TLS";
const PROCESSES: &str = "Processes";
const RECORDS: &str = "Records";

/// Flags of `remex serve`, in the order of the help.
///
/// `-h` shows those that most servers need, each on one line.
#[derive(Clone, Debug, Args)]
#[command(after_help = SHORT_EXAMPLES, after_long_help = EXAMPLES)]
pub(crate) struct Flags {
    /// Read settings from this TOML file; flags override them
    #[arg(short, long, value_name = "FILE", help_heading = SETTINGS,
        long_help = "Read settings from this TOML file; flags override them. SIGHUP reloads it. For compatibility, \
            `KEY=VALUE` is accepted and ignored")]
    pub(crate) config: Vec<String>,

    /// Print the settings in effect as a configuration file, with every key and its documentation, and exit
    #[arg(long, help_heading = SETTINGS, hide_short_help = true)]
    pub(crate) print_config: bool,

    /// What to log on stderr, such as `info` [default: warn]
    #[arg(long, value_name = "FILTER", env = "REMEX_LOG", value_parser = log_filter, help_heading = SETTINGS,
        long_help = "What to log on stderr: a level (`error` … `trace`) or a filter such as `remex_server=debug` \
            [default: warn]")]
    pub(crate) log: Option<String>,

    /// `stdio`, `ws://IP:PORT`, `wss://IP:PORT`, `unix:///path` or `systemd`; repeatable
    #[arg(long, value_name = "URL", help_heading = LISTENING,
        long_help = "Where to listen: `stdio`, `ws://IP:PORT` (port 0 picks a free one), `wss://IP:PORT`, \
            `unix:///path`, or `systemd` for the sockets that it passes; repeatable [default: \
            ws://127.0.0.1:0]")]
    pub(crate) listen: Vec<String>,

    /// Exit when standard input closes, for servers started by a parent program
    #[arg(long, help_heading = LIFETIME, hide_short_help = true)]
    pub(crate) exit_on_stdin_close: bool,

    /// Exit after this time without connections and processes
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = LIFETIME,
        long_help = "Exit after this time without connections and processes, such as `10m`; exited processes count \
            until their output is removed, a day after they exited")]
    pub(crate) exit_when_idle: Option<Duration>,

    /// The time between TERM and KILL for processes when the server exits, such as `500ms` or `5s` [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = duration, help_heading = LIFETIME, hide_short_help = true)]
    pub(crate) shutdown_grace: Option<Duration>,

    /// Another user of this host that may connect
    #[arg(long, value_name = "USER", help_heading = CLIENTS,
        long_help = "Another user of this host that may connect over loopback or a unix socket; repeatable")]
    pub(crate) allow_user: Vec<String>,

    /// A browser origin that may connect, such as `https://app.example.com`; repeatable
    #[arg(long, value_name = "ORIGIN", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) allow_origin: Vec<String>,

    /// A name that clients may use for this host, besides its host name and those in the certificate; repeatable
    #[arg(long, value_name = "NAME", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) allow_host: Vec<String>,

    /// How WebSocket clients authenticate
    #[arg(long, value_name = "METHOD", help_heading = CLIENTS,
        long_help = "How WebSocket clients authenticate; required on every address that is not loopback, unless \
            `--tls-client-ca` identifies the clients")]
    pub(crate) ws_auth: Option<AuthMethod>,

    /// SHA-256 of the capability token, 64 hexadecimal digits
    #[arg(long, value_name = "HEX", conflicts_with = "ws_token_file", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_token_sha256: Option<String>,

    /// File with the tokens that clients present, see `remex token new`
    #[arg(long, value_name = "PATH", value_parser = absolute(), help_heading = CLIENTS,
        long_help = "File with one capability token or `sha256:HEX` per line, each optionally followed by \
            `name=NAME`, `scope=SCOPES` and `expires=TIME`; read again when it changes. `remex token new` \
            prints a line")]
    pub(crate) ws_token_file: Option<PathBuf>,

    /// File with the secret of JWTs signed with HS256, at least 32 bytes; read again when it changes
    #[arg(long, value_name = "PATH", value_parser = absolute(), help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_shared_secret_file: Option<PathBuf>,

    /// JWKS file with the public keys of JWTs signed with EdDSA, ES256 or RS256; read again when it changes
    #[arg(long, value_name = "PATH", value_parser = absolute(), help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_jwks_file: Option<PathBuf>,

    /// The issuer (`iss`) that JWTs must have
    #[arg(long, value_name = "ISSUER", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_issuer: Option<String>,

    /// The audience (`aud`) that JWTs must have; without it, JWTs that have one are refused
    #[arg(long, value_name = "AUDIENCE", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_audience: Option<String>,

    /// How far the clock of the issuer may differ from that of this host [default: 30]
    #[arg(long, value_name = "SECONDS", help_heading = CLIENTS, hide_short_help = true)]
    pub(crate) ws_max_clock_skew_seconds: Option<u64>,

    /// The certificate of `wss://`, in PEM format
    #[arg(long, value_name = "PATH", requires = "tls_key", value_parser = absolute(), help_heading = TLS,
        long_help = "The certificate of `wss://` listeners, in PEM format, followed by its intermediate certificates")]
    pub(crate) tls_cert: Option<PathBuf>,

    /// The private key of that certificate
    #[arg(long, value_name = "PATH", requires = "tls_cert", value_parser = absolute(), help_heading = TLS)]
    pub(crate) tls_key: Option<PathBuf>,

    /// CAs that sign the certificates of clients
    #[arg(long, value_name = "PATH", requires = "tls_cert", value_parser = absolute(), help_heading = TLS,
        long_help = "CAs that sign client certificates; with them, every `wss://` client must present one")]
    pub(crate) tls_client_ca: Option<PathBuf>,

    /// Know a client certificate that has neither a SPIFFE URI nor a DNS name by its common name, which name
    /// constraints of CAs do not cover; without this flag it is refused
    #[arg(long, requires = "tls_client_ca", help_heading = TLS, hide_short_help = true)]
    pub(crate) tls_client_common_names: bool,

    /// Keep processes and their output here, so that they survive the server
    #[arg(long, value_name = "DIR", value_parser = absolute(), help_heading = PROCESSES,
        long_help = "Keep processes, their output and sessions in this directory, so that they survive the server: \
            its upgrade, its end and its death")]
    pub(crate) state: Option<PathBuf>,

    /// The longest life of a session without a connection [default: 24h]
    #[arg(long, value_name = "TIME", value_parser = lifetime, help_heading = PROCESSES,
        long_help = "The longest time a session may live without a connection, such as `24h`, or `forever` [default: \
            24h]")]
    pub(crate) max_detach_ttl: Option<Lifetime>,

    /// The least confinement of what clients do: `read-only`, `workspace-write` or a file
    #[arg(long, value_name = "PROFILE|FILE", help_heading = PROCESSES,
        long_help = "The least confinement of what clients do, whatever they ask for: `read-only`, `workspace-write`, \
            or a file with a profile; files and processes are confined")]
    pub(crate) sandbox: Option<String>,

    /// A directory that `workspace-write` allows to be written, here and in scopes; may be repeated
    #[arg(long, value_name = "DIR", value_parser = absolute(), help_heading = PROCESSES, hide_short_help = true)]
    pub(crate) workspace: Vec<PathBuf>,

    /// Which processes clients may start [default: any]
    #[arg(long, value_name = "WHICH", help_heading = PROCESSES)]
    pub(crate) starts: Option<Starts>,

    /// The cgroup in which processes with limits on memory or processes get cgroups of their own: `auto` uses that of
    /// the server if it is delegated, `none` uses none [default: auto]
    #[arg(long, value_name = "DIR|auto|none", help_heading = PROCESSES, hide_short_help = true)]
    pub(crate) cgroup: Option<String>,

    /// How many starts, lists, file and HTTP requests of one connection run concurrently; the others wait
    /// [default: 256]
    #[arg(long, value_name = "N", help_heading = PROCESSES, hide_short_help = true)]
    pub(crate) concurrent_requests: Option<NonZeroUsize>,

    /// Record what clients do in this file
    #[arg(long, value_name = "PATH", value_parser = absolute(), help_heading = RECORDS,
        long_help = "Record what clients do in this file, one JSON object per line; SIGHUP reopens it")]
    pub(crate) audit: Option<PathBuf>,

    /// Refuse what cannot be recorded in the audit file
    #[arg(long, requires = "audit", help_heading = RECORDS, hide_short_help = true)]
    pub(crate) audit_required: bool,

    /// Serve `/metrics` on a port of its own too, such as `http://127.0.0.1:9464`
    #[arg(long, value_name = "URL", value_parser = metrics_address, help_heading = RECORDS, hide_short_help = true)]
    pub(crate) metrics_listen: Option<SocketAddr>,

    /// Serve `/metrics` without authentication, on every port
    #[arg(long, help_heading = RECORDS, hide_short_help = true)]
    pub(crate) metrics_open: bool,

    /// How long a client may read nothing while responses are waiting
    #[arg(long, value_name = "TIME", value_parser = duration, hide = true)]
    pub(crate) stall_timeout: Option<Duration>,

    /// Detach from the process that started it and from its terminal
    #[arg(long, hide = true)]
    pub(crate) background: Option<Background>,

    #[command(flatten)]
    pub(crate) base: base::BaseFlags,
}

impl Flags {
    /// Names the configuration file from the root, so that a reload finds it from wherever.
    pub(crate) fn with_absolute_config(mut self) -> Self {
        for value in &mut self.config {
            let is_file = !value.contains('=') || Path::new(value).exists();
            if is_file
                && let Ok(path) = std::path::absolute(&*value)
                && let Some(path) = path.to_str()
            {
                path.clone_into(value);
            }
        }
        self
    }
}

/// Checks a log filter.
fn log_filter(text: &str) -> Result<String, InvalidArg> {
    match EnvFilter::try_new(text) {
        Ok(_) => Ok(text.to_owned()),
        Err(error) => Err(InvalidArg::new(error.to_string(), FILTER_HINT)),
    }
}

const SHORT_EXAMPLES: &str = "\
Examples:
  remex serve --listen unix://$HOME/remex.sock
  remex serve --listen ws://0.0.0.0:0 --ws-auth capability-token --ws-token-file token.txt

`remex help serve` describes all flags.";

const EXAMPLES: &str = "\
Examples:
  On a free port of loopback; the first line printed is its URL:
    remex serve
  For programs of the same user:
    remex serve --listen unix://$HOME/remex.sock
  For one client on stdin and stdout, such as ssh:
    remex serve --listen stdio
  For other machines, with TLS and client certificates (see `remex cert new`):
    remex serve --listen wss://0.0.0.0:7070 --tls-cert certs/build.pem --tls-key certs/build.key --tls-client-ca certs/ca.pem
  For other machines, with a token:
    remex serve --listen ws://0.0.0.0:0 --ws-auth capability-token --ws-token-file token.txt
  With JWTs of an identity provider:
    remex serve --listen ws://0.0.0.0:0 --ws-auth signed-bearer-token --ws-jwks-file jwks.json --ws-audience remex
  With a configuration file, starting from the defaults:
    remex serve --print-config > server.toml
    remex serve --config server.toml

SIGHUP reloads the configuration file: tokens, users, scopes, certificates, limits and the log filter. The server closes connections whose credential is no longer valid. A file with an error changes nothing; the log says what is wrong.

SIGTERM and SIGINT shut the server down gracefully: it refuses new work, ends processes and notifies clients; a second signal skips the grace period.

HTTP requests for clients go through the proxies in http_proxy, https_proxy, all_proxy and no_proxy, and trust the certificate authorities of the host, or those in SSL_CERT_FILE and SSL_CERT_DIR.
CODEX_HOME is reported to clients as the directory of the user's Codex configuration.";

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum AuthMethod {
    /// `Authorization: Bearer TOKEN` on the upgrade, with a token that the server knows
    CapabilityToken,
    /// The same with a JWT that the server verifies
    SignedBearerToken,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Starts {
    /// Any
    Any,
    /// Those that a sandbox confines, also by `--sandbox`; others are refused
    Confined,
    /// None: files and HTTP requests only
    None,
}

/// The two steps of daemonizing the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Background {
    /// Starts a second server process and exits, so that the server is not a child of its starter.
    Fork,
    /// Runs as that second process, in its own session.
    Lead,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Lifetime {
    UpTo(Duration),
    Forever,
}

pub(crate) fn lifetime(text: &str) -> Result<Lifetime, InvalidArg> {
    if text == "forever" { Ok(Lifetime::Forever) } else { duration(text).map(Lifetime::UpTo) }
}

fn metrics_address(text: &str) -> Result<SocketAddr, InvalidArg> {
    let address = text.strip_prefix("http://").unwrap_or(text);
    address.parse().map_err(|_| InvalidArg::new("it is not an address with a port", "write `http://IP:PORT`"))
}
