//! What a host is.

use serde::{Deserialize, Serialize};

use super::State;
use crate::{
    HostPath,
    base::lenient::{default_unless_decodable, null_as_default},
};

/// `environment/info`: facts about the host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentGetInfo"))]
pub struct GetInfo {}

/// The answer to [`GetInfo`], also in the answer to `initialize`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentInfo"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Info {
    /// The user's login shell.
    pub shell: Shell,
    /// The version of the server.
    #[serde(default, deserialize_with = "null_as_default")]
    pub executor_version: String,
    /// An opaque id: the same for the same installation on the same host.
    #[serde(default, deserialize_with = "null_as_default")]
    pub provider_id: String,
    /// The server's working directory.
    #[serde(default)]
    pub cwd: Option<HostPath>,
    /// The user's home directory.
    #[serde(default)]
    pub user_home_dir: Option<HostPath>,
    /// `linux`.
    #[serde(default, deserialize_with = "null_as_default")]
    pub platform_os: String,
    /// Directories to prepend to the `PATH` of commands.
    #[serde(default, deserialize_with = "null_as_default")]
    pub prepend_path_dirs: Vec<HostPath>,
    /// The directory in `TMPDIR`, if it is set.
    #[serde(default, deserialize_with = "null_as_default")]
    pub temporary_directories: Vec<HostPath>,
    /// Where programs put temporary files.
    #[serde(default)]
    pub temp_dir: Option<HostPath>,
    /// What the server implements; absent is false.
    #[serde(default, deserialize_with = "default_unless_decodable")]
    pub capabilities: Features,
    /// How the server enforces `limits` of `process/start`; absent: it ignores them.
    #[serde(default, deserialize_with = "default_unless_decodable", skip_serializing_if = "Option::is_none")]
    pub process_limits: Option<ProcessLimits>,
    /// Which processes the server starts; absent: any.
    #[serde(default, deserialize_with = "default_unless_decodable", skip_serializing_if = "Option::is_none")]
    pub starts: Option<Starts>,
    /// What the host can enforce; only in the answer to [`GetInfo`], because it takes time to find out.
    #[serde(default, deserialize_with = "default_unless_decodable", skip_serializing_if = "Option::is_none")]
    pub confinement: Option<Confinement>,
    /// What the server keeps for processes that outlive it; absent: all processes end with it. Only in the answer to
    /// [`GetInfo`], because it changes.
    #[serde(default, deserialize_with = "default_unless_decodable", skip_serializing_if = "Option::is_none")]
    pub state: Option<State>,
}

impl Info {
    /// Creates the description of a host of which only the login shell is known.
    #[must_use]
    pub fn new(shell: Shell) -> Self {
        Self {
            shell,
            executor_version: String::new(),
            provider_id: String::new(),
            cwd: None,
            user_home_dir: None,
            platform_os: String::new(),
            prepend_path_dirs: Vec::new(),
            temporary_directories: Vec::new(),
            temp_dir: None,
            capabilities: Features::default(),
            process_limits: None,
            starts: None,
            confinement: None,
            state: None,
        }
    }
}

/// Which processes a server starts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum Starts {
    /// Those that a sandbox confines; others are refused.
    Confined,
    /// None: every start is refused.
    None,
    /// Some that this version does not know.
    #[serde(other)]
    Unknown,
}

/// What a host can enforce for processes with a `sandbox`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentConfinement"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct Confinement {
    /// What confines processes.
    pub processes: ProcessConfinement,
    /// The version of the kernel's Landlock; null if there is none.
    #[serde(default)]
    pub landlock_abi: Option<u32>,
    /// Why not every profile can be enforced; null if all can.
    #[serde(default)]
    pub reason: Option<String>,
    /// How to enable what is missing; null if nothing is.
    #[serde(default)]
    pub hint: Option<String>,
}

impl Confinement {
    /// Creates the description of a host where nothing is missing.
    #[must_use]
    pub fn new(processes: ProcessConfinement) -> Self {
        Self { processes, landlock_abi: None, reason: None, hint: None }
    }
}

/// What confines processes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum ProcessConfinement {
    /// Namespaces, with Landlock and a filter of system calls behind them; every profile can be enforced.
    Namespaces,
    /// Landlock and a filter of system calls alone: only profiles that let everything be read, nothing be written, and
    /// have no network.
    Landlock,
    /// Nothing: starts with a `sandbox` are refused.
    None,
    /// Something that this version does not know.
    #[serde(other)]
    Unknown,
}

/// How a server enforces each of the limits of a process.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub struct ProcessLimits {
    /// CPU time.
    pub cpu_seconds: LimitMethod,
    /// Memory.
    pub memory_bytes: LimitMethod,
    /// Open files.
    pub open_files: LimitMethod,
    /// Processes and threads.
    pub processes: LimitMethod,
    /// The size of files.
    pub file_bytes: LimitMethod,
    /// Why the server uses no cgroup for memory or processes; null if it uses one for both.
    #[serde(default)]
    pub without_cgroup: Option<String>,
}

impl ProcessLimits {
    /// Creates the description of a server that enforces every limit by the same method.
    #[must_use]
    pub fn new(method: LimitMethod) -> Self {
        Self {
            cpu_seconds: method,
            memory_bytes: method,
            open_files: method,
            processes: method,
            file_bytes: method,
            without_cgroup: None,
        }
    }
}

/// How a limit is enforced.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum LimitMethod {
    /// For each process by itself, or for the whole user.
    Rlimit,
    /// For the process and its descendants together.
    Cgroup,
    /// Not at all: a start that asks for it is refused.
    Unavailable,
    /// In a way that this version does not know.
    #[serde(other)]
    Unknown,
}

/// A shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[non_exhaustive]
pub struct Shell {
    /// Such as `bash`.
    pub name: String,
    /// A native path.
    pub path: String,
}

impl Shell {
    /// Creates a shell with a name and a native path.
    pub fn new(name: impl Into<String>, path: impl Into<String>) -> Self {
        Self { name: name.into(), path: path.into() }
    }
}

/// What a server implements beyond the plain methods: only what is listed here can be true.
///
/// The base dialect knows more words; a client takes an absent one as false.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentFeatures"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase", default)]
pub struct Features {
    /// `networkProxy` of `process/start`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub network_proxy_launch: bool,
    /// `capabilityRoots/discoverV1` and `capabilities/discoverV2`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub capability_discovery_v2: bool,
    /// `sandbox` of the roots of `capabilityRoots/discoverV1`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub capability_discovery_sandbox: bool,
    /// `fs/watchMissing`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub fs_watch_missing: bool,
    /// `environmentConfig/read`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub environment_config_read: bool,
    /// `valueEnvVar` in the headers of `http/request`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub http_header_env_vars: bool,
    /// `sandbox` of `fs/open`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub sandboxed_file_streaming: bool,
    /// `fs/open` with `mode: "replace"`, and `fs/writeBlock`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub file_write_streaming: bool,
    /// `shellSnapshot` of `process/start`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub shell_snapshot_v2: bool,
    /// `restart` of `process/start`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub process_restart: bool,
    /// `process/restart`, and `restartable` of `process/start`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub process_restart_request: bool,
    /// `user` of `process/start`.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub process_user: bool,
    /// `incarnation` in answers and requests about processes.
    #[serde(deserialize_with = "default_unless_decodable")]
    pub process_incarnation: bool,
}

/// `environment/status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentGetStatus"))]
pub struct GetStatus {}

/// The answer to [`GetStatus`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(rename = "EnvironmentStatusReply"))]
pub struct StatusReply {
    /// Whether it can be used.
    pub status: Status,
}

/// Whether an environment can be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema), schemars(transform = crate::base::words::open_words, rename = "EnvironmentStatus"))]
#[non_exhaustive]
#[serde(rename_all = "camelCase")]
pub enum Status {
    /// It can.
    Ready,
    /// A status that this version does not know.
    #[serde(other)]
    Unknown,
}
