//! Every key of the configuration file: its place, meaning, parser and display.
//!
//! Start at [`keys`].

use std::{net::SocketAddr, path::PathBuf, time::Duration};

use remex_server::{
    CertificateGrant, CgroupUse, InvalidLimit, LimitValue, Limits, Reload, Scopes, StartPolicy,
};

use super::{
    ServerConfig, User, hex,
    print::{text, texts},
};
use crate::units::{show_duration, show_size};

/// A key of the configuration file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Key {
    /// The table that it is in; empty at the top.
    pub table: &'static str,
    /// Its name within the table.
    pub name: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// A value that it can have, as TOML.
    pub example: &'static str,
    /// What it means, as lines.
    pub doc: &'static [&'static str],
    /// What happens at the limit, for limits.
    pub effect: Option<&'static str>,
    /// When a changed value takes effect.
    pub reload: Reload,
}

/// The type of a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A text.
    Text,
    /// A path.
    Path,
    /// `true` or `false`.
    Flag,
    /// An IP address and a port.
    Socket,
    /// A number of things.
    Count,
    /// A number of things, or `"unlimited"`.
    OptionalCount,
    /// A number of bytes.
    Size,
    /// A time.
    Time,
    /// A time, or `"forever"`.
    OptionalTime,
    /// What a credential allows.
    Scopes,
    /// A cgroup.
    Cgroup,
    /// Which processes may be started.
    Starts,
    /// A list of texts.
    Texts,
    /// A list of addresses to listen on.
    Addresses,
    /// A list of SHA-256 digests.
    Digests,
    /// A list of users.
    Users,
    /// A list of client certificates.
    Certificates,
}

/// The value of a key.
#[derive(Clone, Debug)]
pub(super) enum Value {
    Text(String),
    Path(PathBuf),
    Flag(bool),
    Socket(SocketAddr),
    Count(usize),
    OptionalCount(Option<usize>),
    Size(u64),
    Time(Duration),
    OptionalTime(Option<Duration>),
    Scopes(Scopes),
    Cgroup(CgroupUse),
    Starts(StartPolicy),
    Texts(Vec<String>),
    Digests(Vec<[u8; 32]>),
    Users(Vec<User>),
    Certificates(Vec<CertificateGrant>),
}

/// The tables in the order of the file, each with its documentation.
pub(super) const TABLES: [(&str, &str); 7] = [
    ("", ""),
    (
        "tls",
        "Encryption of `wss://` listeners. On a reload, the files are read again; other paths need a restart.",
    ),
    ("auth", "Who may connect, and what each may do."),
    ("auth.jwt", "Signed tokens (JWT); accepted with `secret_file` or `jwks_file`."),
    ("limits", "Limits and timeouts. A reload changes them for everything that begins afterwards."),
    ("audit", "A record of who did what."),
    ("metrics", "Figures for Prometheus."),
];

const fn key(
    table: &'static str,
    name: &'static str,
    kind: Kind,
    example: &'static str,
    doc: &'static [&'static str],
) -> Key {
    Key { table, name, kind, example, doc, effect: None, reload: Reload::New }
}

const fn fixed(
    table: &'static str,
    name: &'static str,
    kind: Kind,
    example: &'static str,
    doc: &'static [&'static str],
) -> Key {
    Key { table, name, kind, example, doc, effect: None, reload: Reload::Restart }
}

#[rustfmt::skip]
const KEYS: [Key; 33] = [
    fixed("", "listen", Kind::Addresses, r#"["ws://127.0.0.1:7070"]"#, &["Where to listen: `stdio`, `ws://IP:PORT` (port 0 picks a free one), `wss://IP:PORT`, `unix:///path`, or `systemd`", "for the sockets that it passes."]),
    key("", "log", Kind::Text, r#""info""#, &["What to log on stderr: a level (`error` … `trace`) or a filter such as `remex_server=debug`."]),
    key("", "shutdown_grace", Kind::Time, r#""5s""#, &["The time between TERM and KILL for processes when the server exits."]),
    key("", "max_detach_ttl", Kind::OptionalTime, r#""24h""#, &["The longest time a session may live without a connection, or \"forever\"."]),
    fixed("", "exit_when_idle", Kind::Time, r#""10m""#, &["Exit after this time without connections and processes. Unset, the server never exits by itself."]),
    fixed("", "cgroup", Kind::Cgroup, r#""/sys/fs/cgroup/remex""#, &["The cgroup in which processes with limits on memory or processes get cgroups of their own: \"auto\" uses that of the", "server if it is delegated, \"none\" uses none."]),
    fixed("", "sandbox", Kind::Text, r#""workspace-write""#, &["The least confinement of what clients do, whatever they ask for: \"read-only\", \"workspace-write\", or the path of a", "profile. It concerns processes and file requests; what cannot be confined is refused."]),
    fixed("", "workspace", Kind::Texts, r#"["/srv/project"]"#, &["The directories that `workspace-write` allows to be written, here and in scopes."]),
    fixed("", "starts", Kind::Starts, r#""confined""#, &["Which processes clients may start: \"any\", \"confined\" (those that a sandbox confines; others are refused), or \"none\"", "(files and HTTP requests only)."]),
    fixed("", "state", Kind::Path, r#""/var/lib/remex""#, &["The directory in which processes, their output and sessions survive the server. Unset, everything ends with it."]),
    fixed("tls", "cert", Kind::Path, r#""cert.pem""#, &["The certificate in PEM format, followed by its intermediate certificates."]),
    fixed("tls", "key", Kind::Path, r#""key.pem""#, &["The private key of that certificate."]),
    fixed("tls", "client_ca", Kind::Path, r#""clients.pem""#, &["CAs that sign client certificates; with them, every `wss://` client must present one."]),
    key("auth", "owner_scope", Kind::Scopes, r#""all""#, &["What the user that the server runs as may do, over unix sockets and loopback."]),
    key("auth", "users", Kind::Users, r#"[{ name = "ann", scope = "processes files:read" }]"#, &["Other users of this host that may connect over loopback or a unix socket, each by name or number."]),
    key("auth", "origins", Kind::Texts, r#"["https://app.example.com"]"#, &["Browser origins that may connect."]),
    key("auth", "hosts", Kind::Texts, r#"["build.example.com"]"#, &["Names that clients may use for this host, besides its host name and those in the certificate."]),
    key("auth", "token_file", Kind::Path, r#""token.txt""#, &["The file with the token that clients on TCP ports must present."]),
    key("auth", "token_sha256", Kind::Digests, r#"["9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08"]"#, &["SHA-256 digests of further tokens, each 64 hexadecimal digits."]),
    key("auth", "certificate_scope", Kind::Scopes, r#""all""#, &["What clients with a certificate that `tls.client_ca` signed may do, unless `certificates` is set."]),
    key("auth", "certificates", Kind::Certificates, r#"[{ name = "uri:spiffe://example.com/ci", scope = "processes" }]"#, &["The only client certificates that may connect; an empty list admits none. `name` is the kind and the name that the", "certificate is known by: \"uri:spiffe://…\", else \"dns:…\", else \"cn:…\" (see `certificate_common_names`); `key_sha256`", "is the digest of the public key, if only that key may connect."]),
    key("auth", "certificate_common_names", Kind::Flag, "true", &["Whether a certificate without a SPIFFE URI and a DNS name is known by its common name; otherwise it is refused.", "Name constraints of CAs do not cover common names."]),
    key("auth.jwt", "secret_file", Kind::Path, r#""jwt-secret.txt""#, &["The file with the secret that the issuer signs with (HS256)."]),
    key("auth.jwt", "jwks_file", Kind::Path, r#""jwks.json""#, &["The file with the public keys of the issuer."]),
    key("auth.jwt", "issuer", Kind::Text, r#""https://login.example.com""#, &["The issuer that a token must have."]),
    key("auth.jwt", "audience", Kind::Text, r#""remex""#, &["The audience that a token must have."]),
    key("auth.jwt", "max_clock_skew", Kind::Time, r#""30s""#, &["By how much the clocks of issuer and server may differ."]),
    fixed("audit", "file", Kind::Path, r#""/var/log/remex/audit.jsonl""#, &["Where it is written. Unset, nothing is recorded."]),
    fixed("audit", "max_bytes", Kind::Size, r#""64MiB""#, &["The size at which a new file begins."]),
    fixed("audit", "keep", Kind::Count, "10", &["How many full files are kept."]),
    fixed("audit", "required", Kind::Flag, "true", &["Whether requests are refused while they cannot be recorded."]),
    fixed("metrics", "listen", Kind::Socket, r#""127.0.0.1:9464""#, &["An address of its own for `/metrics` and the health checks. `/metrics` is also on every WebSocket port."]),
    fixed("metrics", "open", Kind::Flag, "true", &["Whether everyone who can reach a port can read `/metrics`; otherwise it needs a credential with the scope `metrics`."]),
];

/// Limits that have a key of their own at the top of the file.
const TOP_LIMITS: [(&str, &str); 2] =
    [("shutdown_grace", "shutdown_grace"), ("detach_ttl_max", "max_detach_ttl")];

/// Returns all keys in the order of the file.
///
/// ```
/// let names: Vec<_> = remex::server_config::keys().iter().map(|key| key.path()).collect();
/// assert!(names.contains(&"auth.owner_scope".to_owned()) && names.contains(&"limits.sessions".to_owned()));
/// ```
pub fn keys() -> Vec<Key> {
    let (defaults, limits) = (Limits::default(), Limits::TABLE.iter());
    let limits = limits.filter(|limit| TOP_LIMITS.iter().all(|(name, _)| *name != limit.name)).map(|limit| {
        let (kind, example) = match defaults.get(limit.name) {
            Some(LimitValue::Bytes(_)) => (Kind::Size, "\"1MiB\""),
            Some(LimitValue::Time(_)) => (Kind::Time, "\"10s\""),
            Some(LimitValue::OptionalTime(_)) => (Kind::OptionalTime, "\"10s\""),
            Some(LimitValue::OptionalCount(_)) => (Kind::OptionalCount, "100"),
            Some(LimitValue::Count(_)) | None => (Kind::Count, "100"),
        };
        let (name, doc, effect) = (limit.name, limit.doc, Some(limit.effect));
        Key { table: "limits", name, kind, example, doc, effect, reload: limit.reload }
    });
    let limits: Vec<_> = limits.collect();
    TABLES
        .iter()
        .flat_map(|(table, _)| {
            let keys = if *table == "limits" { limits.as_slice() } else { KEYS.as_slice() };
            keys.iter().filter(move |key| key.table == *table).copied()
        })
        .collect()
}

impl Key {
    /// Returns the name with its table, such as `auth.origins`.
    pub fn path(&self) -> String {
        if self.table.is_empty() { self.name.to_owned() } else { format!("{}.{}", self.table, self.name) }
    }

    /// Sets the key.
    pub(super) fn set(&self, config: &mut ServerConfig, value: Value) -> Result<(), InvalidLimit> {
        let (tls, auth, audit, metrics) =
            (&mut config.tls, &mut config.auth, &mut config.audit, &mut config.metrics);
        match (self.table, self.name, value) {
            ("", "listen", Value::Texts(listen)) => config.listen = listen,
            ("", "log", Value::Text(log)) => config.log = log,
            ("", "exit_when_idle", Value::Time(time)) => config.exit_when_idle = Some(time),
            ("", "cgroup", Value::Cgroup(cgroup)) => config.cgroup = cgroup,
            ("", "sandbox", Value::Text(sandbox)) => config.sandbox = Some(sandbox),
            ("", "workspace", Value::Texts(workspace)) => config.workspace = workspace,
            ("", "starts", Value::Starts(starts)) => config.starts = starts,
            ("", "state", Value::Path(path)) => config.state = Some(path),
            ("tls", "cert", Value::Path(path)) => tls.cert = Some(path),
            ("tls", "key", Value::Path(path)) => tls.key = Some(path),
            ("tls", "client_ca", Value::Path(path)) => tls.client_ca = Some(path),
            ("auth", "owner_scope", Value::Scopes(scopes)) => auth.owner_scope = scopes,
            ("auth", "users", Value::Users(users)) => auth.users = users,
            ("auth", "origins", Value::Texts(origins)) => auth.origins = origins,
            ("auth", "hosts", Value::Texts(hosts)) => auth.hosts = hosts,
            ("auth", "token_file", Value::Path(path)) => auth.token_file = Some(path),
            ("auth", "token_sha256", Value::Digests(digests)) => auth.token_sha256 = digests,
            ("auth", "certificate_scope", Value::Scopes(scopes)) => auth.certificate_scope = scopes,
            ("auth", "certificates", Value::Certificates(listed)) => auth.certificates = Some(listed),
            ("auth", "certificate_common_names", Value::Flag(count)) => auth.certificate_common_names = count,
            ("auth.jwt", "secret_file", Value::Path(path)) => auth.jwt.secret_file = Some(path),
            ("auth.jwt", "jwks_file", Value::Path(path)) => auth.jwt.jwks_file = Some(path),
            ("auth.jwt", "issuer", Value::Text(issuer)) => auth.jwt.issuer = Some(issuer),
            ("auth.jwt", "audience", Value::Text(audience)) => auth.jwt.audience = Some(audience),
            ("auth.jwt", "max_clock_skew", Value::Time(time)) => auth.jwt.max_clock_skew = time,
            ("audit", "file", Value::Path(path)) => audit.file = Some(path),
            ("audit", "max_bytes", Value::Size(bytes)) => audit.max_bytes = bytes,
            ("audit", "keep", Value::Count(keep)) => audit.keep = keep,
            ("audit", "required", Value::Flag(required)) => audit.required = required,
            ("metrics", "listen", Value::Socket(address)) => metrics.listen = Some(address),
            ("metrics", "open", Value::Flag(open)) => metrics.open = open,
            (_, _, value) => return config.limits.set(self.limit(), value.into_limit()?),
        }
        Ok(())
    }

    /// Returns the value of the key as TOML, or `None` if it is unset.
    pub(super) fn show(&self, config: &ServerConfig) -> Option<String> {
        let path = |path: &Option<PathBuf>| path.as_ref().map(|path| text(&path.to_string_lossy()));
        let (tls, auth) = (&config.tls, &config.auth);
        match (self.table, self.name) {
            ("", "listen") => Some(texts(&config.listen)),
            ("", "log") => Some(text(&config.log)),
            ("", "exit_when_idle") => config.exit_when_idle.map(|time| text(&show_duration(time))),
            ("", "cgroup") => Some(match &config.cgroup {
                CgroupUse::Delegated => text("auto"),
                CgroupUse::None => text("none"),
                CgroupUse::At(path) => text(&path.to_string_lossy()),
            }),
            ("", "sandbox") => config.sandbox.as_deref().map(text),
            ("", "workspace") => Some(texts(&config.workspace)),
            ("", "starts") => Some(text(config.starts.word())),
            ("", "state") => path(&config.state),
            ("tls", "cert") => path(&tls.cert),
            ("tls", "key") => path(&tls.key),
            ("tls", "client_ca") => path(&tls.client_ca),
            ("auth", "owner_scope") => Some(scopes(&auth.owner_scope)),
            ("auth", "users") => {
                Some(list(auth.users.iter().map(|user| {
                    format!("{{ name = {}, scope = {} }}", text(&user.name), scopes(&user.scope))
                })))
            }
            ("auth", "origins") => Some(texts(&auth.origins)),
            ("auth", "hosts") => Some(texts(&auth.hosts)),
            ("auth", "token_file") => path(&auth.token_file),
            ("auth", "token_sha256") => Some(list(auth.token_sha256.iter().map(|digest| text(&hex(digest))))),
            ("auth", "certificate_scope") => Some(scopes(&auth.certificate_scope)),
            ("auth", "certificate_common_names") => Some(auth.certificate_common_names.to_string()),
            ("auth", "certificates") => {
                auth.certificates.as_ref().map(|listed| list(listed.iter().map(certificate)))
            }
            ("auth.jwt", "secret_file") => path(&auth.jwt.secret_file),
            ("auth.jwt", "jwks_file") => path(&auth.jwt.jwks_file),
            ("auth.jwt", "issuer") => auth.jwt.issuer.as_deref().map(text),
            ("auth.jwt", "audience") => auth.jwt.audience.as_deref().map(text),
            ("auth.jwt", "max_clock_skew") => Some(text(&show_duration(auth.jwt.max_clock_skew))),
            ("audit", "file") => path(&config.audit.file),
            ("audit", "max_bytes") => Some(text(&show_size(config.audit.max_bytes))),
            ("audit", "keep") => Some(config.audit.keep.to_string()),
            ("audit", "required") => Some(config.audit.required.to_string()),
            ("metrics", "listen") => config.metrics.listen.map(|address| text(&address.to_string())),
            ("metrics", "open") => Some(config.metrics.open.to_string()),
            _ => config.limits.get(self.limit()).map(limit),
        }
    }

    /// Returns the name of the limit that this key sets.
    fn limit(&self) -> &'static str {
        let top = TOP_LIMITS.iter().find(|(_, key)| self.table.is_empty() && *key == self.name);
        top.map_or(self.name, |(limit, _)| limit)
    }
}

impl Value {
    fn into_limit(self) -> Result<LimitValue, InvalidLimit> {
        match self {
            Value::Count(count) => Ok(LimitValue::Count(count)),
            Value::OptionalCount(count) => Ok(LimitValue::OptionalCount(count)),
            Value::Size(bytes) => {
                usize::try_from(bytes).map(LimitValue::Bytes).map_err(|_| InvalidLimit::TooLarge)
            }
            Value::Time(time) => Ok(LimitValue::Time(time)),
            Value::OptionalTime(time) => Ok(LimitValue::OptionalTime(time)),
            _ => Err(InvalidLimit::Type),
        }
    }
}

fn limit(value: LimitValue) -> String {
    match value {
        LimitValue::Bytes(bytes) => text(&show_size(bytes as u64)),
        LimitValue::Count(count) | LimitValue::OptionalCount(Some(count)) => count.to_string(),
        LimitValue::OptionalCount(None) => text("unlimited"),
        LimitValue::Time(time) | LimitValue::OptionalTime(Some(time)) => text(&show_duration(time)),
        LimitValue::OptionalTime(None) => text("forever"),
    }
}

fn scopes(scopes: &Scopes) -> String {
    if *scopes == Scopes::all() { text("all") } else { text(&scopes.to_string()) }
}

fn certificate(grant: &CertificateGrant) -> String {
    let key = grant.key_sha256.map(|digest| format!("key_sha256 = {}, ", text(&hex(&digest))));
    let key = key.unwrap_or_default();
    format!("{{ name = {}, {key}scope = {} }}", text(&grant.name.to_string()), scopes(&grant.scopes))
}

fn list(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(", "))
}
