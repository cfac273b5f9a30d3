//! One process, wherever it runs: its start, log, input, exit and end, and what can be asked of it meanwhile.
//!
//! A process is a child of the server, or of the keeper, which outlives the server; the state directory and the link
//! between them are here as well. Nothing here knows a session, a connection or an outbox. Start at [`Engine`], and at
//! [`ServerProcess`] for what sessions use.

// From bottom to top: each room uses only those above it in this list.
mod state;

mod shared;

mod process;

mod keeper;

mod collect;

#[cfg(any(test, feature = "testing"))]
pub mod testing;
#[cfg(test)]
mod tests;

pub use collect::{CollectError, collect_state};
pub use keeper::{KeeperError, run_keeper, supports_handover};
pub use process::{
    Audience, Backoff, Block, Caller, ChildRules, Command, Description, Engine, EngineContext, Exit,
    HANG_THRESHOLD, Holding, Outcome, Owner, PendingDecision, ProcessState, Read, ReadError, ReadExtent,
    RemoteProcess, Request, Runner, ServedKind, ServedState, ServerAudience, ServerLog, ServerProcess,
    Snapshots, StartFloor, StartRequest, Starting, StdinWrite, StoredRead, Waiter, WeakServerProcess, broken,
    unknown_process, unreadable,
};
pub use shared::{
    host::{EngineConfig, Host, Phase},
    proxy::{Denials, Proxy},
    resource_limits::{CgroupUse, LimitEnforcer},
    unix_peer,
};
pub use state::{
    durable::{
        ClosedLog, Durable, DurableError, Forgotten, Found, Rule, SavedIdentity, SavedOutcome, SavedSession,
        SavedStart, Saving, StartNote, StateConfig, disk_space, not_synced,
    },
    keeper_link::message::{Quotas, ReportedProcess},
};
