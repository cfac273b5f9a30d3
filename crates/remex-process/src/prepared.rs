//! What confines a child, ready before the child is created.

use std::io;

use crate::{
    Attempt, Jail, JailError, Step, Tag,
    clone::Stack,
    init::{NewInit, SpareInits},
    jail::{Alone, Filter, Plan, Ruleset},
};

/// The stacks for the children of one thread.
pub(crate) struct Stacks {
    pub(crate) child: Stack,
    /// For the process between us and a confined child.
    pub(crate) between: Option<Stack>,
}

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
    pub(crate) namespaces: libc::c_int,
    pub(crate) plan: Plan,
    pub(crate) has_proxy: bool,
}

impl PreparedJail {
    /// Prepares the namespaces, or what replaces them where none may be created. May block.
    pub(crate) fn new(
        jail: &Jail,
        stacks: &mut Stacks,
        spares: &SpareInits,
        tag: Tag,
        attempt: &Attempt,
    ) -> Result<Self, JailError> {
        match Space::new(jail, stacks, spares, tag, attempt) {
            Ok(space) => Ok(Self { space: Some(space), filter: jail.filter(), ruleset: jail.ruleset() }),
            Err(error) if error.forbids_namespaces() => {
                let Alone { ruleset, filter } = jail.alone(error)?;
                Ok(Self { space: None, filter, ruleset: Some(ruleset) })
            }
            Err(error) => Err(error),
        }
    }
}

impl Space {
    fn new(
        jail: &Jail,
        stacks: &mut Stacks,
        spares: &SpareInits,
        tag: Tag,
        attempt: &Attempt,
    ) -> Result<Self, JailError> {
        let plan = jail.plan()?;
        if stacks.between.is_none() {
            let out_of_memory = |error: io::Error| JailError::Step {
                step: Step::Enter,
                path: None,
                errno: error.raw_os_error().unwrap_or(libc::ENOMEM),
            };
            stacks.between = Some(Stack::new().map_err(out_of_memory)?);
        }
        let init = spares.take(&mut stacks.child, jail, tag, &attempt.progress.init)?;
        Ok(Self { init, namespaces: jail.namespaces(), plan, has_proxy: jail.has_proxy() })
    }
}
