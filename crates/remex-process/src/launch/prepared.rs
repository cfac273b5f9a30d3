//! What confines a child, ready before the child is created.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use crate::{
    Attempt, Jail, JailError, Step, Tag,
    launch::{
        clone::{Entrance, Failure, Stack, Walls},
        init::{NewInit, SpareInits},
        janitor,
        resources::ChildResources,
    },
    request::jail::{Alone, Filter, Mount, Plan, Ruleset},
};

/// What confines a child.
pub(crate) struct PreparedJail {
    /// `None` where no namespaces may be created.
    pub(crate) space: Option<Space>,
    pub(crate) filter: Filter,
    pub(crate) ruleset: Option<Ruleset>,
}

/// Namespaces that a child can enter, and what it mounts there.
pub(crate) struct Space {
    pub(crate) init: NewInit,
    /// Becomes readable when the placeholders of the jail are gone, if it has any.
    pub(crate) janitor: Option<OwnedFd>,
    namespaces: libc::c_int,
    plan: Plan,
    has_proxy: bool,
}

/// What a jail is prepared with.
pub(crate) struct Means<'a> {
    pub(crate) resources: &'a mut ChildResources,
    pub(crate) spares: &'a SpareInits,
    pub(crate) tag: Tag,
    pub(crate) attempt: &'a Attempt,
}

impl PreparedJail {
    /// Prepares namespaces, or what replaces them where none may be created. May block.
    pub(crate) fn new(jail: &Jail, means: Means<'_>) -> Result<Self, JailError> {
        match Self::in_namespaces(jail, means) {
            Err(error) if error.forbids_namespaces() => {
                let Alone { ruleset, filter } = jail.alone(error)?;
                Ok(Self { space: None, filter, ruleset: Some(ruleset) })
            }
            prepared => prepared,
        }
    }

    /// Prepares namespaces. May block.
    pub(crate) fn in_namespaces(jail: &Jail, means: Means<'_>) -> Result<Self, JailError> {
        let Means { resources, spares, tag, attempt } = means;
        let mut plan = jail.plan()?;
        if resources.between.is_none() {
            let out_of_memory = |error: io::Error| JailError::Step {
                step: Step::Enter,
                path: None,
                errno: error.raw_os_error().unwrap_or(libc::ENOMEM),
            };
            resources.between = Some(Stack::new().map_err(out_of_memory)?);
        }
        let init = spares.take(resources, jail, tag, &attempt.progress.init)?;
        let placeholders = std::mem::take(&mut plan.placeholders);
        let janitor = janitor::start(&mut resources.stack, init.pidfd(), placeholders)?;
        // The child makes the one of its mounts itself.
        let namespaces = jail.namespaces() & !libc::CLONE_NEWNS;
        let space = Space { init, janitor, namespaces, plan, has_proxy: jail.has_proxy() };
        Ok(Self { space: Some(space), filter: jail.filter(), ruleset: jail.ruleset() })
    }

    pub(crate) fn entrance<'a>(&'a self, stack: &'a mut Option<Stack>) -> Option<Entrance<'a>> {
        self.space.as_ref().zip(stack.as_mut()).map(|(space, stack)| Entrance {
            init: space.init.pidfd().as_raw_fd(),
            namespaces: space.namespaces,
            plan: &space.plan,
            has_proxy: space.has_proxy,
            stack,
        })
    }

    pub(crate) fn walls(&self) -> Walls<'_> {
        Walls { ruleset: self.ruleset.as_ref(), filter: self.filter.program() }
    }

    /// Returns why a child could not confine itself, if that was why it failed.
    pub(crate) fn error(&self, failure: &Failure) -> Option<JailError> {
        let mounts = self.space.as_ref().map(|space| &space.plan.mounts);
        let mount = mounts.zip(failure.mount).and_then(|(mounts, index)| mounts.get(index));
        let path = mount.and_then(Mount::subject);
        failure.step.map(|step| JailError::Step { step, path, errno: failure.errno })
    }
}
