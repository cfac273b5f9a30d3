//! Processes: how to start, feed, watch and end them, and what they say.
//!
//! Every request but [`Start`] may name another session of the same identity in `sessionId`;
//! absent, it is the connection's own. The same member of a notification tells which observed
//! session it comes from. Numbers are milliseconds and bytes, as the member's name says.

mod end;
mod event;
mod start;
mod stream;
mod watch;

pub use end::{Signal, SignalName, Terminate, TerminateMode, TerminateScope, Terminated, UnknownSignal};
pub use event::{
    Closed, ExitCause, Exited, Failed, Gap, GapRange, Output, Produced, StartedNote, Stream, Usage,
};
pub use start::{OutputOptions, Overflow, SandboxType, Start, Started};
pub use stream::{
    Chunk, CloseStdin, Forget, Read, ReadReply, Release, Resize, Write, WriteReply, WriteStatus,
};
pub use watch::{
    Entry, LIVING_PIDS, List, Listing, Scope, Snapshot, SnapshotReply, State, Until, Wait, WaitReason, Waited,
};
