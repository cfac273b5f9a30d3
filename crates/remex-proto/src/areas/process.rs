//! Processes: start, input, output, waiting and termination.
//!
//! Every request except [`Start`] may name another session of the same identity in `sessionId`;
//! the default is the connection's own session. In a notification, `sessionId` names the observed
//! session. Numbers are milliseconds or bytes, as the member's name says.

mod collect;
mod end;
mod event;
mod limits;
mod restart;
mod seek;
mod start;
mod stream;
mod watch;

pub use collect::{COLLECTED_NAMES, Collect, Collected, CollectedProcess};
pub use end::{
    Signal, SignalName, StartAgain, Terminate, TerminateMode, TerminateScope, Terminated, UnknownSignal,
};
pub use event::{
    Closed, DeniedHost, ExitCause, Exited, Failed, Gap, GapCause, GapRange, Output, Produced, StartedNote,
    Stream, Usage,
};
pub use limits::ResourceLimits;
pub use restart::{Restart, RestartPolicy};
pub use seek::{Seek, SeekTo, Sought};
pub use start::{
    DomainAccess, NetworkMode, NetworkProxy, NetworkProxyConfig, OutputOptions, Overflow, SandboxType,
    ShellSnapshot, Start, Started,
};
pub use stream::{
    Chunk, CloseStdin, Forget, Read, ReadReply, Release, Resize, Write, WriteReply, WriteStatus,
};
pub use watch::{
    Entry, LIVING_PIDS, List, Listing, Scope, Snapshot, SnapshotReply, State, Until, Wait, WaitReason, Waited,
};
