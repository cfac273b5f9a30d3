//! Child processes: starts them on pipes or a PTY, signals them, waits for them, and kills their process trees.
//!
//! It returns plain descriptors and an exit future. It never reads output, and knows nothing of sessions or messages.
//! Needs Linux 5.9 or newer. Start at [`Spawner`].

mod base;
mod kin;
mod launch;
mod own;
mod request;

pub use base::memory::{return_large_blocks, spare_address_space, trim_heap};
pub use base::pid::Pid;
pub use base::rlimits::{Rlimit, Rlimits};
pub use base::signal::Signal;
pub use base::sys::{favour_latency, peer_pidfd, raise_file_limit, register_fd};
pub use base::tag::{Tag, Tags};
pub use base::user::{CannotSwitchUser, UserIds, can_switch_user};
pub use kin::adoption::{adopt_orphans, reap_orphans, resume_start, spawn_own};
pub use kin::hidden::{HiddenChildren, HiddenScan};
pub use kin::leader::Leader;
pub use kin::reaper::reap_unknown_children;
pub use kin::run_with_timeout::run_with_timeout;
pub use kin::tree;
pub use kin::tree::Scope;
pub use launch::attempt::Attempt;
pub use launch::descriptors::{ChildIo, read, resize};
pub use launch::exit::{Exit, ExitRecord, ExitStatus, Usage};
pub use launch::proxy::ProxySocket;
pub use launch::spawner::{Child, Spawner};
pub use launch::supervised::{Supervised, ignore_faults};
pub use launch::support::{JailMechanism, JailSupport};
pub use launch::watchdog::Watchdog;
pub use own::early_signals::{defer_signals, replay_deferred_signals};
pub use own::exit_by_signal::exit_by_signal;
pub use own::handover::{
    exec_command_with_fds, exec_with_fds, take_inherited_fd, unblock_signals_after_exec,
};
pub use own::terminal_state::TerminalState;
pub use request::cgroup::{Cgroup, CgroupError, CgroupLimits, Cgroups};
pub use request::error::{DenialReason, ExecDenial, Stage, StartError, StartErrorKind};
pub use request::jail::{Jail, JailError, PROXY_PORT, Step};
#[cfg(feature = "serde")]
pub use request::spec::{NoCgroups, StartSpec};
pub use request::start::{OwnCgroup, Size, Start, Stdin, Stdio};
