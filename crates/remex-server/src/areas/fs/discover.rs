//! Finding plugins and skills.

use std::sync::Arc;

use remex_files::{
    CancelCheck, JobGuards, PathAccess,
    discovery::{self, ANSWER_BYTES, Confine, InstallDirs, MAX_ROOTS},
    native,
};
use remex_proto::{ErrorKind, HostPath, RequestId, RpcError, discovery as wire, sandbox::Sandbox};

use super::FileCalls;
use crate::{
    areas::context::CallContext,
    config::HostInfo,
    outbox::{Reply, Responder},
};

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
            Ok(discovery::discover_roots(request, confine, wanted))
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
        let places = installed_at(context.host().info());
        let access = places
            .all()
            .try_fold(PathAccess::default(), |access, path| access.and_looks(&HostPath::from(path.clone())));
        self.search(context, id, access, responder, move |confine, wanted| {
            Ok(discovery::discover_installed(&places, &confine(&Sandbox::Disabled)?, wanted))
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
        context.spawn_call(id, large.answer(ANSWER_BYTES, lock, responder, job));
    }
}

/// Returns where the host's user installs plugins and skills.
fn installed_at(host: &HostInfo) -> InstallDirs {
    let home = host.info.user_home_dir.as_ref().and_then(|home| home.native().ok());
    InstallDirs::new(host.codex_home.clone(), home)
}
