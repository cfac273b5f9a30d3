//! `process/start`.

use std::{collections::BTreeMap, num::NonZeroU16};

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{ResourceLimits, Restart};
use crate::{
    Blob, HostPath,
    areas::{
        environment::{EnvPolicy, Shell},
        sandbox::Sandbox,
    },
    base::lenient::null_as_default,
};

/// `process/start`: runs a program.
///
/// A member of the base dialect that changes nothing here is accepted and ignored: `metadata`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Start {
    /// The client's handle on the process, any string; unique within the session.
    pub process_id: String,
    /// The program and its arguments; a program without a slash is searched in the `PATH` of `env`.
    pub argv: Vec<String>,
    /// The same as bytes, for words that are not UTF-8; if present, it replaces `argv`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub argv_base64: Option<Vec<Blob>>,
    /// The working directory; may be absent only with `user`, and is then the home of that account.
    #[serde(default, skip_serializing_if = "HostPath::is_empty")]
    pub cwd: HostPath,
    /// The whole environment, or overrides of `envPolicy`.
    pub env: BTreeMap<String, String>,
    /// A terminal instead of pipes.
    pub tty: bool,
    /// Keeps stdin of a pipe process writable; otherwise it is `/dev/null`.
    #[serde(default)]
    pub pipe_stdin: bool,
    /// What the program sees as its own name instead of `argv[0]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg0: Option<String>,
    /// What the child inherits of the server's environment; absent: nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env_policy: Option<EnvPolicy>,
    /// Restores what the profile files of a login shell set up, instead of running them again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shell_snapshot: Option<Box<ShellSnapshot>>,
    /// The confinement asked for.
    #[serde(default, skip_serializing_if = "Sandbox::is_disabled")]
    pub sandbox: Sandbox,
    /// The user of the host as whom it runs, by the name of the account or its uid in decimal digits; only where
    /// `processUser` is among the `capabilities` of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Gives the process and its descendants a pid namespace of their own, so that ending it leaves none of them behind.
    /// With a sandbox that confines anything it has one anyway.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub isolate_pids: bool,
    /// Whether the process outlives the server, with its output and exit; null means if the server can keep it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub durable: Option<bool>,
    /// Whether its output, of a durable process, is on the disk before clients see it, so that it survives a power failure.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub sync: bool,
    /// Asks to reach the network only as `networkProxy` says, if the sandbox leaves the network open.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub enforce_managed_network: bool,
    /// A proxy that runs on the client's side; this server cannot use it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub managed_network: Option<Box<Value>>,
    /// What `enforceManagedNetwork` is about; decoded only then.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub network_proxy: Option<Box<Value>>,
    /// Height of the terminal, 24 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rows: Option<NonZeroU16>,
    /// Width of the terminal, 80 unless given.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cols: Option<NonZeroU16>,
    /// Wall-clock time after which the process is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
    /// Time without output after which the process is ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub idle_timeout_ms: Option<u64>,
    /// How long the tree may take to end after SIGTERM when one of these times has passed; absent: it is killed at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_grace_ms: Option<u64>,
    /// How its output is kept.
    #[serde(
        default,
        deserialize_with = "null_as_default",
        skip_serializing_if = "OutputOptions::is_default"
    )]
    pub output: OutputOptions,
    /// Makes the start idempotent: repeating it with the same id returns the first outcome and
    /// starts nothing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub start_id: Option<String>,
    /// Words for people and tools; `process/list` shows them.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// After exit, how long to wait for a background child that holds the output open; absent:
    /// until end of file.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub linger_ms: Option<u64>,
    /// Resource limits; what cannot be enforced is refused.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "ResourceLimits::is_empty")]
    pub limits: ResourceLimits,
    /// Runs the program again when it ends; only where `processRestart` is among the `capabilities` of the environment.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub restart: Option<Restart>,
    /// Keeps this request in memory for `process/restart`; only where `processRestartRequest` is among the `capabilities` of
    /// the environment.
    #[serde(default, deserialize_with = "null_as_default", skip_serializing_if = "std::ops::Not::not")]
    pub restartable: bool,
}

impl Start {
    /// Returns the program and its arguments: those of `argvBase64` if it is present.
    pub fn words(&self) -> impl Iterator<Item = &[u8]> {
        let text = if self.argv_base64.is_none() { self.argv.as_slice() } else { &[] };
        text.iter().map(String::as_bytes).chain(self.argv_base64.iter().flatten().map(|word| &**word))
    }
}

/// A network that is limited to some hosts, as the base dialect asks for it.
///
/// Strict: what is not understood could be a restriction.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkProxy {
    /// What the proxy does.
    pub proxy: NetworkProxyConfig,
    /// Words for the client's own logs; of no meaning here.
    #[serde(default)]
    pub audit_metadata: Value,
    /// The name of this host at the client; of no meaning here.
    #[serde(default)]
    pub environment_id: Value,
    /// The client's name for this start; of no meaning here.
    #[serde(default)]
    pub execution_id: Value,
    /// How long the client may take to decide about a host that is neither allowed nor denied; absent: it is denied.
    #[serde(default)]
    pub policy_decision_timeout_ms: Option<u64>,
}

/// What the proxy of a [`NetworkProxy`] does.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NetworkProxyConfig {
    /// Whether there is one.
    pub enabled: bool,
    /// Which requests pass; all, if absent.
    #[serde(default)]
    pub mode: Option<NetworkMode>,
    /// What may be reached.
    #[serde(default)]
    pub domains: Option<BTreeMap<String, DomainAccess>>,
    /// Whether SOCKS5 is offered; it is, if absent.
    #[serde(default)]
    pub enable_socks5: Option<bool>,
    /// Whether SOCKS5 carries datagrams; it never does.
    #[serde(default)]
    pub enable_socks5_udp: Value,
    /// Whether a further proxy may be used; none is.
    #[serde(default)]
    pub allow_upstream_proxy: Value,
    /// Whether unix sockets can be reached; none can.
    #[serde(default)]
    pub dangerously_allow_all_unix_sockets: Value,
    /// Unix sockets that can be reached; none can.
    #[serde(default)]
    pub unix_sockets: Value,
    /// Whether processes may listen; they may, in a network of their own.
    #[serde(default)]
    pub allow_local_binding: Value,
}

/// Which requests pass a proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum NetworkMode {
    /// All.
    #[default]
    Full,
    /// GET, HEAD and OPTIONS of plain HTTP.
    Limited,
}

/// Whether a domain may be reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum DomainAccess {
    /// Yes.
    Allow,
    /// No, whatever else is allowed.
    Deny,
}

impl NetworkProxy {
    /// Decodes the member `networkProxy`.
    ///
    /// # Errors
    /// If anything in it is unknown.
    pub fn decode(value: &Value) -> Result<Self, serde_json::Error> {
        Self::deserialize(value)
    }
}

/// What the profile files of a login shell set up; captured once, for a command `[shell.path, "-lc", COMMAND, …]`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct ShellSnapshot {
    /// Starts with the same scope share a snapshot, 1 to 256 bytes.
    pub scope_id: String,
    /// The shell: `bash`, `zsh` or `sh`.
    pub shell: Shell,
}

/// How the output of one process is kept; absent members mean the base's 1 MiB, 80 s and pause.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct OutputOptions {
    /// How much stays readable, up to the server's cap.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_bytes: Option<u64>,
    /// How long it stays readable after `closed`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retain_ms: Option<u64>,
    /// What a full log does while a client is attached.
    #[serde(default, deserialize_with = "null_as_default")]
    pub overflow: Overflow,
}

impl OutputOptions {
    fn is_default(&self) -> bool {
        *self == Self::default()
    }
}

/// What happens when output arrives that an attached client has not made room for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub enum Overflow {
    /// The child waits, as it would at a full pipe.
    #[default]
    Pause,
    /// The oldest output is evicted, and the gap is reported.
    Evict,
    /// The child waits, even while the client is disconnected, until the session ends or the output is released.
    Hold,
}

/// The answer to [`Start`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct Started {
    /// As in the request.
    pub process_id: String,
    /// How the process is confined.
    #[serde(default, deserialize_with = "null_as_default")]
    pub sandbox_type: SandboxType,
    /// The process id of the operating system.
    #[serde(default)]
    pub pid: Option<u32>,
    /// In milliseconds since the Unix epoch.
    #[serde(default)]
    pub started_at_ms: Option<u64>,
    /// Tells this start of the process from all others under its id, before and after a restart; absent from servers that
    /// cannot tell, and for a process that one of them has started.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub incarnation: Option<u64>,
    /// Whether this is the outcome of an earlier start with the same `startId`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub replayed: bool,
}

/// How a started process is confined.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum SandboxType {
    /// Not at all.
    #[default]
    None,
    /// Namespaces, mounts and seccomp.
    LinuxSeccomp,
    /// Seatbelt.
    MacosSeatbelt,
    /// A restricted token.
    WindowsRestrictedToken,
    /// In a way that this version does not know.
    #[serde(other)]
    Unknown,
}
