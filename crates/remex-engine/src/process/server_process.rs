//! A process in a server, whichever program runs its child: what sessions, followers, reads, waits and seeks use.
//!
//! Start at [`ServerProcess`].

use std::{
    ops::{Deref, DerefMut},
    sync::{Arc, Weak},
    time::Instant,
};

use remex_base::deadlines::Expire;
use remex_proto::{RpcError, process::ExitCause};

use super::{
    Audience, Core, Engine, Kind, Local, LocalProcess, ProcessState, Remote, RemoteProcess, Request, Served,
    ServedKind, ServedState, Spec, StateGuard,
};
use crate::state::keeper_link::{KeeperLink, message::Key};

/// Readers of processes in a server.
pub trait ServerAudience: Audience<State = dyn ServedState, Handle = ServerProcess<Self>> {
    /// Called when the time of a closed process is over.
    fn on_expired(process: &ServerProcess<Self>);

    /// Called when a closed process should make room for others; returns `false` if it must stay.
    fn expire_early(process: &ServerProcess<Self>) -> bool;
}

impl<A: ServerAudience, K: ServedKind<A>> Expire for Engine<A, K> {
    fn expire(self: Arc<Self>) {
        A::on_expired(&K::handle(&self));
    }

    fn expire_early(self: Arc<Self>) -> bool {
        A::expire_early(&K::handle(&self))
    }
}

/// A process in a server.
#[derive(Debug)]
pub enum ServerProcess<A: ServerAudience> {
    /// The child runs in the server.
    Local(Arc<LocalProcess<A>>),
    /// The child runs in the keeper.
    Remote(Arc<RemoteProcess<A>>),
}

/// A process that may have been forgotten.
#[derive(Debug)]
pub enum WeakServerProcess<A: ServerAudience> {
    /// A process whose child runs in the server.
    Local(Weak<LocalProcess<A>>),
    /// A process whose child runs in the keeper.
    Remote(Weak<RemoteProcess<A>>),
}

/// Which program runs a child.
#[derive(Clone, Debug)]
pub enum Runner {
    /// The server itself.
    Local,
    /// The keeper.
    Keeper {
        /// The link to it.
        link: Arc<KeeperLink>,
        /// The key of the process in the keeper.
        key: Key,
    },
}

/// Evaluates an expression for the process of either kind.
macro_rules! either {
    ($process:expr, $name:ident => $result:expr) => {
        match $process {
            ServerProcess::Local($name) => $result,
            ServerProcess::Remote($name) => $result,
        }
    };
}

impl<A: ServerAudience> ServerProcess<A> {
    pub(super) fn served(&self) -> &Served {
        match self {
            Self::Local(process) => &process.kind.0,
            Self::Remote(process) => &process.kind.served,
        }
    }

    /// Returns what was asked for.
    pub fn spec(&self) -> &Spec {
        &self.served().spec
    }

    /// Locks the state.
    pub fn state(&self) -> ServedGuard<'_, A> {
        match self {
            Self::Local(process) => ServedGuard::Local(process.state()),
            Self::Remote(process) => ServedGuard::Remote(process.state()),
        }
    }

    /// Returns whether both are the same process.
    pub fn is(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Local(one), Self::Local(other)) => Arc::ptr_eq(one, other),
            (Self::Remote(one), Self::Remote(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }

    /// Returns whether the process runs in the keeper and outlives the server.
    pub fn is_durable(&self) -> bool {
        matches!(self, Self::Remote(_))
    }

    /// Returns a reference that does not keep the process.
    pub fn downgrade(&self) -> WeakServerProcess<A> {
        match self {
            Self::Local(process) => WeakServerProcess::Local(Arc::downgrade(process)),
            Self::Remote(process) => WeakServerProcess::Remote(Arc::downgrade(process)),
        }
    }

    /// Notifies the audience, reads and waits of new events in the log.
    pub fn notify(&self, state: &mut ProcessState<A>) {
        either!(self, process => process.notify_of(self, state));
    }

    /// Carries out a request, or queues it until the process has started.
    pub fn request(&self, request: Request<A::Caller>) {
        either!(self, process => process.request(request));
    }

    /// Cancels all pending input that `is_cancelled` selects; returns whether there was any.
    pub fn cancel_input(&self, is_cancelled: impl Fn(&A::Caller) -> bool) -> bool {
        either!(self, process => process.cancel_input(is_cancelled))
    }

    /// Has what is left read into the log, whether or not there is room for it, as soon as nothing writes to it any more.
    pub fn read_rest(&self) {
        either!(self, process => process.read_rest());
    }

    /// Returns whether the log is closed: no further event follows.
    pub fn is_closed(&self) -> bool {
        either!(self, process => process.is_closed())
    }

    /// Waits until the start has succeeded or failed, or until `deadline`; returns `false` if it failed.
    pub async fn started(&self, deadline: Option<Instant>) -> bool {
        either!(self, process => process.started(deadline).await)
    }

    /// Waits until the direct child has exited.
    pub async fn exited(&self) {
        either!(self, process => process.exited().await);
    }

    /// Returns whether the direct child has exited.
    pub fn has_exited(&self) -> bool {
        self.state().exit.is_some()
    }

    /// Records why the process is about to end, unless a cause is already known.
    pub fn will_end_for(&self, cause: ExitCause) {
        either!(self, process => process.will_end_for(cause));
    }

    /// Kills the process after its session has ended; its output is no longer held for anyone.
    ///
    /// Returns whether the start is still in progress, so that a child may appear later.
    pub fn abandon(&self) -> bool {
        either!(self, process => process.abandon())
    }

    /// Aborts the start if it is still in progress, because the server is shutting down.
    pub fn abort_start(&self) {
        either!(self, process => process.abort_start());
    }

    /// Checks that there is space for the log of another start, if that is on disk.
    pub async fn check_space(&self) -> Result<(), RpcError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Remote(process) => process.check_space().await,
        }
    }

    /// Checks that the keeper of the process responds, if it has one; if that is gone, another one will.
    pub async fn check_keeper(&self) -> Result<(), RpcError> {
        match self {
            Self::Local(_) => Ok(()),
            Self::Remote(process) => process.check_keeper().await,
        }
    }
}

impl<A: ServerAudience> Clone for ServerProcess<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Local(process) => Self::Local(Arc::clone(process)),
            Self::Remote(process) => Self::Remote(Arc::clone(process)),
        }
    }
}

impl<A: ServerAudience> Deref for ServerProcess<A> {
    type Target = Core<A>;

    fn deref(&self) -> &Core<A> {
        either!(self, process => process)
    }
}

impl<A: ServerAudience> WeakServerProcess<A> {
    /// Returns the process if it is still there.
    pub fn upgrade(&self) -> Option<ServerProcess<A>> {
        Some(match self {
            Self::Local(process) => ServerProcess::Local(process.upgrade()?),
            Self::Remote(process) => ServerProcess::Remote(process.upgrade()?),
        })
    }
}

impl<A: ServerAudience> Clone for WeakServerProcess<A> {
    fn clone(&self) -> Self {
        match self {
            Self::Local(process) => Self::Local(Weak::clone(process)),
            Self::Remote(process) => Self::Remote(Weak::clone(process)),
        }
    }
}

/// The locked state of a process in a server.
#[derive(Debug)]
pub enum ServedGuard<'a, A: ServerAudience> {
    Local(StateGuard<'a, A, Local>),
    Remote(StateGuard<'a, A, Remote>),
}

impl<A: ServerAudience> Deref for ServedGuard<'_, A> {
    type Target = ProcessState<A>;

    fn deref(&self) -> &ProcessState<A> {
        match self {
            Self::Local(state) => &**state,
            Self::Remote(state) => &**state,
        }
    }
}

impl<A: ServerAudience> DerefMut for ServedGuard<'_, A> {
    fn deref_mut(&mut self) -> &mut ProcessState<A> {
        match self {
            Self::Local(state) => Local::view(state),
            Self::Remote(state) => Remote::view(state),
        }
    }
}
