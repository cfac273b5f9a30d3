//! Child processes: starts them on pipes or a PTY, signals them, waits for them, and kills their process trees.
//!
//! It returns plain descriptors and an exit future. It never reads output, and knows nothing of sessions or messages.
//! Needs Linux 5.9 or newer. Start at [`Spawner`].

mod pid;
mod signal;
mod start;

mod adoption;
mod attempt;
mod brief;
mod cgroup;
mod early_signals;
mod error;
mod exit;
mod foreground;
mod handover;
mod hidden;
mod jail;
mod leader;
mod own_end;
#[cfg(feature = "serde")]
mod plain;
mod proxy;
mod rlimits;
mod spawner;
#[cfg(feature = "serde")]
mod spec;
mod supervised;
mod support;
mod tag;
mod tag_limit;
pub mod tree;
mod user;
mod watchdog;

mod clone;
mod descriptors;
mod image;
mod init;
mod janitor;
mod memory;
mod newborn;
mod prepared;
mod proc;
mod reaper;
mod resources;
mod shared_table;
mod slots;
mod sys;

pub use adoption::{adopt_orphans, reap_orphans, resume_start, spawn_own};
pub use attempt::Attempt;
pub use brief::run_briefly;
pub use cgroup::{Cgroup, CgroupError, CgroupLimits, Cgroups};
pub use descriptors::{ChildIo, read, resize};
pub use early_signals::{deliver_noted, note_signals};
pub use error::{DenialReason, ExecDenial, Stage, StartError, StartErrorKind};
pub use exit::{Exit, ExitRecord, ExitStatus, Usage};
pub use foreground::Foreground;
pub use handover::{exec_command_keeping, exec_keeping, take_kept, take_signals};
pub use hidden::{HiddenChildren, Look};
pub use jail::{Jail, JailError, PROXY_PORT, Step};
pub use leader::Leader;
pub use memory::{return_large_blocks, spare_address_space, trim_heap};
pub use own_end::end_by;
pub use pid::Pid;
pub use proxy::ProxySocket;
pub use reaper::adopt_all_but;
pub use rlimits::{Rlimit, Rlimits};
pub use signal::Signal;
pub use spawner::{Child, Spawner};
#[cfg(feature = "serde")]
pub use spec::{NoCgroups, StartSpec};
pub use start::{OwnCgroup, Size, Start, Stdin, Stdio};
pub use supervised::{Supervised, ignore_faults};
pub use support::{JailSupport, Wall};
pub use sys::{favour_latency, peer_pidfd, raise_file_limit, watch};
pub use tag::{Tag, Tags};
pub use tree::Scope;
pub use user::{CannotSwitchUser, UserIds, can_switch_user};
pub use watchdog::Watchdog;
