//! The confinement of a child, prepared before the child is created.

use std::{
    io,
    os::fd::{AsRawFd as _, OwnedFd},
};

use crate::{
    Attempt, Jail, JailError, Step, Tag,
    launch::{
        clone::{Failure, JailEntry, Restrictions, Stack},
        init::{NewInit, SpareInits},
        janitor,
        resources::ChildResources,
    },
    request::jail::{Filter, LandlockOnly, Mount, Plan, Ruleset},
};

/// The confinement of a child.
pub(crate) struct PreparedJail {
    /// `None` where no namespaces may be created.
    pub(crate) namespaces: Option<JailNamespaces>,
    pub(crate) filter: Filter,
    pub(crate) ruleset: Option<Ruleset>,
}

/// Namespaces that a child enters, and the plan of what it mounts there.
pub(crate) struct JailNamespaces {
    pub(crate) init: NewInit,
    /// Becomes readable when the placeholders of the jail are gone, if it has any.
    pub(crate) janitor: Option<OwnedFd>,
    clone_flags: libc::c_int,
    plan: Plan,
    has_proxy: bool,
}

/// The resources that a jail is prepared with.
pub(crate) struct JailResources<'a> {
    pub(crate) resources: &'a mut ChildResources,
    pub(crate) spares: &'a SpareInits,
    pub(crate) tag: Tag,
    pub(crate) attempt: &'a Attempt,
}

impl PreparedJail {
    /// Prepares namespaces, or what replaces them where none may be created. May block.
    pub(crate) fn new(jail: &Jail, resources: JailResources<'_>) -> Result<Self, JailError> {
        match Self::in_namespaces(jail, resources) {
            Err(error) if error.forbids_namespaces() => {
                let LandlockOnly { ruleset, filter } = jail.landlock_only(error)?;
                Ok(Self { namespaces: None, filter, ruleset: Some(ruleset) })
            }
            prepared => prepared,
        }
    }

    /// Prepares namespaces. May block.
    pub(crate) fn in_namespaces(jail: &Jail, resources: JailResources<'_>) -> Result<Self, JailError> {
        let JailResources { resources, spares, tag, attempt } = resources;
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
        // The child creates its mount namespace itself.
        let clone_flags = jail.namespaces() & !libc::CLONE_NEWNS;
        let namespaces = JailNamespaces { init, janitor, clone_flags, plan, has_proxy: jail.has_proxy() };
        Ok(Self { namespaces: Some(namespaces), filter: jail.filter(), ruleset: jail.ruleset() })
    }

    pub(crate) fn entry<'a>(&'a self, stack: &'a mut Option<Stack>) -> Option<JailEntry<'a>> {
        self.namespaces.as_ref().zip(stack.as_mut()).map(|(namespaces, stack)| JailEntry {
            init: namespaces.init.pidfd().as_raw_fd(),
            namespaces: namespaces.clone_flags,
            plan: &namespaces.plan,
            has_proxy: namespaces.has_proxy,
            stack,
        })
    }

    pub(crate) fn restrictions(&self) -> Restrictions<'_> {
        Restrictions { ruleset: self.ruleset.as_ref(), filter: self.filter.program() }
    }

    /// Returns why a child could not confine itself, if that was the failure.
    pub(crate) fn error(&self, failure: &Failure) -> Option<JailError> {
        let mounts = self.namespaces.as_ref().map(|namespaces| &namespaces.plan.mounts);
        let mount = mounts.zip(failure.mount).and_then(|(mounts, index)| mounts.get(index));
        let path = mount.and_then(Mount::subject);
        failure.step.map(|step| JailError::Step { step, path, errno: failure.errno })
    }
}
