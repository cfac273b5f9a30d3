//! Creates a child in its jail.

use std::os::fd::{AsRawFd as _, OwnedFd};

use crate::{
    Attempt, Jail, JailError, Rlimit, Stage, Start, Stdio,
    base::{sys, tag_limit::TagLimit, user::DumpableGuard},
    kin::adoption::Creation,
    launch::{
        clone::{self, ChildSetup, Spawned, Terminal},
        descriptors::StdioEnds,
        image::Image,
        init::SpareInits,
        prepared::{JailResources, PreparedJail},
        resources::ChildResources,
    },
};

/// How often a jail is planned again because files in its plan were created or removed.
const MAX_PLANS: u32 = 8;

/// The descriptors that a child gets from its parent.
pub(crate) struct ChildDescriptors<'a> {
    pub(crate) stdio: &'a StdioEnds<'a>,
    /// The file through which it enters its cgroup.
    pub(crate) cgroup: Option<&'a OwnedFd>,
}

/// A child that runs its program, and the jail that it runs in.
pub(crate) struct CreatedChild {
    pub(crate) spawned: Spawned,
    pub(crate) jail: Option<PreparedJail>,
    pub(crate) creation: Creation,
}

/// Why a child could not be created.
pub(crate) enum CreateError {
    Failed(Stage, i32),
    Unconfined(JailError),
}

/// Creates a child; plans its jail again if files were created or removed between the plan and the mounts.
pub(crate) fn create(
    spares: &SpareInits,
    resources: &mut ChildResources,
    image: &Image,
    descriptors: &ChildDescriptors<'_>,
    attempt: &Attempt,
) -> Result<CreatedChild, CreateError> {
    let mut plans = 1;
    loop {
        match create_once(spares, resources, image, descriptors, attempt) {
            Err(CreateError::Unconfined(error)) if error.is_outdated() && plans < MAX_PLANS => {
                plans += 1;
                attempt.begin_again();
            }
            outcome => return outcome,
        }
    }
}

fn create_once(
    spares: &SpareInits,
    resources: &mut ChildResources,
    image: &Image,
    descriptors: &ChildDescriptors<'_>,
    attempt: &Attempt,
) -> Result<CreatedChild, CreateError> {
    let Start { stdio, tag, parent_death, rlimits, .. } = image.start;
    if let Some(user) = &image.start.user {
        // A jail maps only the user of the server, and ids that change nothing would let the process run as root.
        if image.start.jail.is_some() || !user.are_valid() {
            return Err(CreateError::Failed(Stage::User, libc::EINVAL));
        }
        let given = descriptors.stdio.give_to(user);
        given.map_err(|errno| CreateError::Failed(Stage::User, errno.raw_os_error()))?;
    }
    let prepare = |jail: &Jail| {
        PreparedJail::new(jail, JailResources { resources: &mut *resources, spares, tag, attempt })
    };
    let jail = image.start.jail.as_ref().map(prepare).transpose().map_err(CreateError::Unconfined)?;
    if attempt.is_aborted() {
        return Err(CreateError::Failed(Stage::Setup, libc::ECANCELED));
    }
    let ChildResources { stack, between, slots } = resources;
    let filled = slots
        .fill(descriptors.stdio.targets())
        .map_err(|errno| CreateError::Failed(Stage::Descriptors, errno.raw_os_error()))?;
    let dumpable = image.start.user.as_ref().map(|_| DumpableGuard::new());
    let creation = Creation::begin();
    let spawned = clone::start(
        stack,
        &mut ChildSetup {
            candidates: &image.candidates.pointers(),
            argv: &image.argv.pointers(),
            env: &image.env.pointers(),
            cwd: &image.cwd,
            targets: filled.numbers(),
            descriptors_end: filled.end(),
            terminal: match stdio {
                Stdio::Pipes { .. } => Terminal::Absent,
                Stdio::Pty { .. } => Terminal::Controlling,
            },
            mark: TagLimit::chosen().map(|limit| (limit.resource, limit.limit(tag))),
            file_limit: sys::file_limit_of_children().filter(|_| !rlimits.has(Rlimit::OpenFiles)),
            limits: &rlimits.raw(),
            cgroup: descriptors.cgroup.map(OwnedFd::as_raw_fd),
            parent_death,
            entry: jail.as_ref().and_then(|jail| jail.entry(between)),
            restrictions: jail.as_ref().map(PreparedJail::restrictions),
            user: image.start.user.as_ref(),
        },
        &attempt.progress.command,
    );
    drop(dumpable);
    match spawned {
        Ok(spawned) => Ok(CreatedChild { spawned, jail, creation }),
        Err(failure) => Err(match jail.as_ref().and_then(|jail| jail.error(&failure)) {
            Some(error) => CreateError::Unconfined(error),
            None => CreateError::Failed(failure.stage, failure.errno),
        }),
    }
}
