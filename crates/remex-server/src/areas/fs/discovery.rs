//! Finds plugins and skills: in directories that the client names, and those that the host's user has installed.
//!
//! Everything is read through the [`PathGuard`] of the connection, and within the limits of a [`Budget`]: a tree
//! may be huge, link to itself or hang. Start at [`FileCalls::discover_roots`].

mod installed;
mod scan;
mod skill;
mod yaml;

use std::{path::PathBuf, sync::Arc};

use remex_proto::{ErrorKind, HostPath, RequestId, RpcError, discovery as wire, sandbox::Sandbox};

use super::{CancelCheck, FileCalls, JobGuards, MIB, PathAccess, PathGuard, native};
use crate::{
    areas::context::CallContext,
    config::HostInfo,
    outbox::{Reply, Responder},
};
use scan::{Budget, Scan};

/// The most directories in one request.
const MAX_ROOTS: usize = 128;

/// What an answer counts for while it is built; its text is limited to this.
const ANSWER: u64 = 8 * MIB;

impl FileCalls {
    /// Answers `capabilityRoots/discoverV1`.
    pub(crate) fn discover_roots(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::DiscoverRoots,
        responder: Responder,
    ) {
        if request.roots.len() > MAX_ROOTS {
            let message = format!("capability root discovery accepts at most {MAX_ROOTS} roots");
            let error = RpcError::new(ErrorKind::InvalidInput, message).with_hint("send several requests");
            return responder.error(&error);
        }
        // A path that is not valid here is an error of its root.
        let access = request.roots.iter().try_fold(PathAccess::default(), |access, root| {
            if root.path.native().is_ok() { access.and_looks(&root.path) } else { Ok(access) }
        });
        self.search(context, id, access, responder, move |confine, wanted| {
            let mut budget = Budget::default();
            let roots =
                request.roots.into_iter().map(|root| discover_root(root, confine, &mut budget, wanted));
            Ok(wire::DiscoverRootsReply { roots: roots.collect() })
        });
    }

    /// Answers `capabilities/discoverV2`.
    pub(crate) fn discover(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: &wire::Discover,
        responder: Responder,
    ) {
        if let Err(error) = native(&request.cwd) {
            return responder.error(&error);
        }
        let places = Places::of(context.host().info());
        let access = places
            .all()
            .try_fold(PathAccess::default(), |access, path| access.and_looks(&HostPath::from(path.clone())));
        self.search(context, id, access, responder, move |confine, wanted| {
            Ok(installed::discover(&places, &confine(&Sandbox::Disabled)?, wanted))
        });
    }

    /// Runs a search on a file thread, once there is room for its answer.
    fn search<T: Reply>(
        &self,
        context: &mut CallContext,
        id: RequestId,
        access: Result<PathAccess, RpcError>,
        responder: Responder,
        run: impl FnOnce(&Confine<'_>, &CancelCheck) -> Result<T, RpcError> + Send + 'static,
    ) {
        let lock = match access.and_then(|access| self.lock(access)) {
            Ok(lock) => lock,
            Err(error) => return responder.error(&error),
        };
        let (guard, host) = (self.guard.clone(), Arc::clone(context.host()));
        let job = move |guards: JobGuards, responder: Responder| {
            let confine = |sandbox: &Sandbox| guard.confined(host.confinement(), sandbox);
            let result = run(&confine, &responder.cancel_check());
            drop(guards);
            responder.answer(result);
        };
        let large = self.large(context);
        context.spawn_call(id, large.answer(ANSWER, lock, responder, job));
    }
}

/// Returns the guard of the connection, confined as a sandbox says; fails if that cannot be enforced.
type Confine<'a> = dyn Fn(&Sandbox) -> Result<PathGuard, RpcError> + 'a;

/// Where the host's user installs plugins and skills.
struct Places {
    codex_home: Option<PathBuf>,
    user_skills: Option<PathBuf>,
}

impl Places {
    fn of(host: &HostInfo) -> Self {
        let home = host.info.user_home_dir.as_ref().and_then(|home| home.native().ok());
        Places {
            codex_home: host.codex_home.clone().or_else(|| home.map(|home| home.join(".codex"))),
            user_skills: home.map(|home| home.join(".agents/skills")),
        }
    }

    fn all(&self) -> impl Iterator<Item = &PathBuf> {
        self.codex_home.iter().chain(&self.user_skills)
    }
}

fn discover_root(
    root: wire::Root,
    confine: &Confine<'_>,
    budget: &mut Budget,
    wanted: &CancelCheck,
) -> wire::FoundRoot {
    let scanned = confine(&root.sandbox).and_then(|guard| {
        let failed = |mut error: RpcError| {
            error.message = format!("failed to inspect capability root {}: {}", root.path, error.message);
            error
        };
        let path = native(&root.path).map_err(failed)?;
        Scan::run(&root.path, path, &guard, budget, wanted).map_err(|error| match error.kind {
            // It says all itself.
            ErrorKind::InvalidInput => error,
            _ => failed(error),
        })
    });
    let (scan, error) = match scanned {
        Ok(scan) => (scan, None),
        Err(error) => (Scan::default(), Some(error.message)),
    };
    wire::FoundRoot {
        id: root.id,
        path: root.path,
        plugin: scan.plugin,
        skills: scan.skills,
        namespace_manifests: scan.manifests,
        warnings: scan.warnings,
        error,
    }
}
