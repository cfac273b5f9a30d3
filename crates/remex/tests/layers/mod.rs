//! The rooms of our crates and the modules in them: the one list of their order.

/// The modules of the base from the bottom to the top, some of them in rooms: each uses only those before it.
const BASE_LAYERS: [&str; 17] = [
    "lock",
    "certificate",
    "quote",
    "clock",
    "reports/log_limit",
    "reports/trace",
    "reports/metrics",
    "limits",
    "tasks/supervise",
    "tasks/threads",
    "tasks/compute",
    "tasks/deadlines",
    "available_memory",
    "files/io_error",
    "files/nofollow",
    "files/regular_file",
    "files/writers",
];

/// The modules of the access crate from the bottom to the top: each uses only those before it.
const ACCESS_LAYERS: [&str; 11] = [
    "scope",
    "confinement",
    "audit",
    "token",
    "grants",
    "identity",
    "auth",
    "admission",
    "rate",
    "account",
    "budget",
];

/// The modules of the files crate from the bottom to the top: each uses only those before it.
const FILES_LAYERS: [&str; 8] =
    ["watcher", "paths", "path_lock", "jobs", "requests", "handles", "discovery", "watch"];

/// The rooms of the engine from the bottom to the top, and the modules within: each uses only those before it.
const ENGINE_LAYERS: [&str; 12] = [
    "state/state_dir",
    "state/keeper_link",
    "state/durable",
    "shared/unix_peer",
    "shared/user_account",
    "shared/resource_limits",
    "shared/proxy",
    "shared/host",
    "process",
    "keeper",
    "collect",
    "testing",
];

/// The rooms of the server from the bottom to the top, and the modules within: each uses only those before it.
const SERVER_LAYERS: [&str; 18] = [
    "config",
    "peers/socket_owner",
    "peers/ssh_login",
    "shared/jail_support",
    "shared/web",
    "shared/host",
    "outbox",
    "areas/context",
    "areas/fs",
    "areas/http",
    "areas/watch",
    "areas/environment",
    "sessions/process",
    "sessions/session",
    "calls",
    "edge/tls",
    "edge/connection",
    "edge/server",
];

/// The rooms of the client from the bottom to the top, and the modules within: each uses only those before it.
const CLIENT_LAYERS: [&str; 25] = [
    "base/platform",
    "base/url",
    "base/trace",
    "base/refusal",
    "base/error",
    "base/options",
    "base/connection_state",
    "base/event",
    "transport/program",
    "transport/link",
    "transport/tls",
    "transport/target",
    "transport/dial",
    "core/event_queue",
    "core/shared",
    "core/driver",
    "api/client",
    "api/fs",
    "api/http",
    "api/process",
    "api/session",
    "api/stream",
    "api/testing",
    "api/agent",
    "api/environment",
];

/// The rooms of the protocol crate from the bottom to the top, and the modules within: each uses only those before it.
const PROTO_LAYERS: [&str; 24] = [
    "base/words",
    "base/lenient",
    "base/trace",
    "base/attachment",
    "base/blob",
    "base/path",
    "base/flow",
    "base/method",
    "base/error",
    "areas/session",
    "areas/environment",
    "areas/sandbox",
    "areas/network",
    "areas/discovery",
    "areas/process",
    "areas/fs",
    "areas/http",
    "areas/initialize",
    "envelope/message",
    "envelope/binary",
    "envelope/request",
    "envelope/call",
    "state",
    "schema",
];

/// The rooms of the process crate from the bottom to the top, and the modules within: each uses only those before it.
const PROCESS_LAYERS: [&str; 42] = [
    "base/memory",
    "base/pid",
    "base/signal",
    "base/tag",
    "base/user",
    "base/serde_numbers",
    "base/sys",
    "base/shared_table",
    "base/slots",
    "base/tag_limit",
    "base/proc",
    "base/rlimits",
    "own/early_signals",
    "own/exit_by_signal",
    "own/terminal_state",
    "own/handover",
    "request/jail",
    "request/error",
    "request/cgroup",
    "request/start",
    "request/spec",
    "kin/adoption",
    "kin/reaper",
    "kin/leader",
    "kin/hidden",
    "kin/run_with_timeout",
    "kin/tree",
    "launch/proxy",
    "launch/image",
    "launch/descriptors",
    "launch/attempt",
    "launch/clone",
    "launch/supervised",
    "launch/resources",
    "launch/init",
    "launch/janitor",
    "launch/prepared",
    "launch/create",
    "launch/support",
    "launch/exit",
    "launch/spawner",
    "launch/watchdog",
];

/// The rooms of the sandbox crate from the bottom to the top, and the modules within: each uses only those before it.
const SANDBOX_LAYERS: [&str; 10] = [
    "base/os_bytes",
    "base/access",
    "base/hosts",
    "base/error",
    "base/host",
    "base/pattern",
    "policy",
    "protect",
    "resolve",
    "testing",
];

/// The rooms of the transport crate from the bottom to the top, and the modules within: each uses only those before it.
const RPC_LAYERS: [&str; 16] = [
    "base/halves",
    "base/memory",
    "frames/framing",
    "frames/websocket",
    "frames/frame_reader",
    "frames/send_buffer",
    "frames/http",
    "links/stream",
    "links/tls",
    "links/unix",
    "links/stdio",
    "links/address",
    "links/listener",
    "links/peer_process",
    "links/connect",
    "links/handshake",
];

/// The rooms of the log crate from the bottom to the top, and the modules within: each uses only those before it.
const LOG_LAYERS: [&str; 11] = [
    "base/event",
    "base/siphash",
    "base/names",
    "base/format",
    "base/disk",
    "base/space",
    "base/scanner",
    "discard_output",
    "scan",
    "reader",
    "writer",
];

/// The folders of the program from the bottom to the top: each uses only those before it.
const PROGRAM_LAYERS: [&str; 5] = ["render", "remote", "console", "args", "commands"];

/// The layers of each crate that has them.
pub(crate) const LAYERS: [(&str, &[&str]); 12] = [
    ("remex-base", &BASE_LAYERS),
    ("remex-access", &ACCESS_LAYERS),
    ("remex-files", &FILES_LAYERS),
    ("remex-engine", &ENGINE_LAYERS),
    ("remex-server", &SERVER_LAYERS),
    ("remex-client", &CLIENT_LAYERS),
    ("remex-proto", &PROTO_LAYERS),
    ("remex-process", &PROCESS_LAYERS),
    ("remex-sandbox", &SANDBOX_LAYERS),
    ("remex-rpc", &RPC_LAYERS),
    ("remex-log", &LOG_LAYERS),
    ("remex-cli", &PROGRAM_LAYERS),
];
