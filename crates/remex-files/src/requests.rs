//! File requests that one function call carries out: contents, entries, directories, whole trees.

mod copy;
mod directory;
mod entry;
mod file;
mod metadata;
mod remove;
mod search;
#[cfg(test)]
mod tests;
mod walk;

use std::{fmt, io};

use remex_base::io_error::{create_error, io_error};
use remex_proto::{RpcError, call::Request, fs as wire, sandbox::Sandbox};

use crate::{
    path_lock::PathAccess,
    paths::{
        descent, entry_lock,
        guard::{self, PathGuard},
        names, native, open, replace,
    },
};

/// The size that a listing counts for.
const LISTING: u64 = 4 << 20;

/// A file request that one function call carries out.
pub trait FileWork: Request + Confinable + Send + 'static {
    /// How large its answer may be.
    const ANSWER: AnswerSize = AnswerSize::Small;

    /// Returns the paths that it accesses.
    ///
    /// # Errors
    ///
    /// If one of them is no path of this host.
    fn access(&self) -> Result<PathAccess, RpcError>;

    /// Carries out the request at the paths that the guard finds; the thread may hang. Long-running work checks from time to time whether it was
    /// cancelled.
    ///
    /// # Errors
    ///
    /// The answer to the client.
    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<Self::Reply, RpcError>;
}

/// A request that may ask for a sandbox.
pub trait Confinable {
    /// Returns the sandbox that was asked for.
    fn sandbox(&self) -> &Sandbox;
}

macro_rules! confinable {
    ($($request:ident)*) => {
        $(impl Confinable for wire::$request {
            fn sandbox(&self) -> &Sandbox {
                &self.sandbox
            }
        })*
    };
}

confinable! {
    WriteFile HashFile CreateDirectory GetMetadata Canonicalize ReadDirectory Walk Remove Copy Rename
    SetPermissions SetTimes Symlink ReadLink SearchFiles
}

/// How large an answer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AnswerSize {
    /// Queued at once.
    Small,
    /// About so many bytes; waits until the client has read what was queued before.
    Large(u64),
}

/// Checks whether a request is still open.
pub struct CancelCheck(Box<dyn Fn() -> bool + Send + Sync>);

impl CancelCheck {
    /// Creates a check from a function that returns whether the request is open.
    pub fn new(is_open: impl Fn() -> bool + Send + Sync + 'static) -> Self {
        CancelCheck(Box::new(is_open))
    }

    /// Fails if the request was cancelled or its connection has closed.
    pub(crate) fn check(&self) -> io::Result<()> {
        if (self.0)() { Ok(()) } else { Err(io::Error::other("the request was cancelled")) }
    }
}

impl fmt::Debug for CancelCheck {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("CancelCheck").finish_non_exhaustive()
    }
}
