//! Why a process cannot be confined.

use std::{borrow::Cow, io, path::PathBuf};

use remex_sandbox::PolicyError;

/// Why a jail cannot be built on this host, or not for this policy. Nothing runs then.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum JailError {
    /// A rule that mounts cannot enforce.
    #[error("{0}")]
    Policy(#[from] PolicyError),
    /// A pattern that matches too much, or must look at too many files.
    #[error("the patterns of the profile concern more than {limit} {what}")]
    TooMany {
        /// What exceeds the limit.
        what: Cow<'static, str>,
        /// How many are accepted.
        limit: usize,
    },
    /// A directory that the search for a pattern could not read.
    #[error("cannot look for files that match the patterns of the profile in `{}`: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Search {
        /// The directory.
        #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
        path: PathBuf,
        /// The error number of the operating system.
        errno: i32,
    },
    /// A path that must be hidden, but cannot be found.
    #[error("cannot hide `{}`: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Hidden {
        /// The path.
        #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
        path: PathBuf,
        /// The error number of the operating system.
        errno: i32,
    },
    /// There are no namespaces, and Landlock cannot enforce the policy without them.
    #[error("{namespaces}; and Landlock alone cannot enforce {what}: {why}")]
    Inexpressible {
        /// The part of the policy.
        what: String,
        /// The reason.
        why: Cow<'static, str>,
        /// Why there are no namespaces: the step that failed.
        #[cfg_attr(feature = "serde", serde(with = "super::serde_with::failed_step"))]
        namespaces: Box<JailError>,
    },
    /// A step failed.
    #[error("cannot {}: {}", what(*step, path.as_ref()), io::Error::from_raw_os_error(*errno))]
    Step {
        /// The step.
        step: Step,
        /// The path of the host that it is about, if any.
        #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes::option"))]
        path: Option<PathBuf>,
        /// The error number of the operating system.
        errno: i32,
    },
    /// A protected path that does not exist, and cannot be kept from being created.
    #[error("cannot keep `{}` from being created: {}", path.display(), io::Error::from_raw_os_error(*errno))]
    Unprotected {
        /// The path.
        #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
        path: PathBuf,
        /// The error number of the operating system.
        errno: i32,
    },
}

/// The steps of building a jail, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Step {
    /// Creating the namespaces.
    Namespaces = 1,
    /// Mapping the user and the group of the server.
    Ids,
    /// Mounting a `/proc` for the new pid namespace.
    Proc,
    /// Mounting an empty file system to build on.
    Base,
    /// One of the mounts.
    Mount,
    /// Bringing up the loopback device.
    Loopback,
    /// Leaving the file system of the host.
    Root,
    /// Giving up all capabilities.
    Privileges,
    /// Confining files by Landlock.
    Landlock,
    /// Installing the filter of system calls.
    Filter,
    /// Starting the first process.
    Init,
    /// Entering the jail.
    Enter,
    /// Listening where the processes of the jail find the proxy.
    Proxy,
    /// Starting the process that removes placeholders.
    Janitor,
}

impl Step {
    /// Returns the step with a number.
    pub(crate) fn from_number(number: i32) -> Option<Self> {
        use Step::*;
        [
            Namespaces, Ids, Proc, Base, Mount, Loopback, Root, Privileges, Landlock, Filter, Init, Enter,
            Proxy, Janitor,
        ]
        .into_iter()
        .find(|&step| step as i32 == number)
    }
}

fn what(step: Step, path: Option<&PathBuf>) -> String {
    let plain = match step {
        Step::Namespaces => "create namespaces",
        Step::Ids => "map the server's user in a new user namespace",
        Step::Proc => "mount `/proc` for a new pid namespace",
        Step::Base => "mount a file system in a new mount namespace",
        Step::Mount => match path {
            Some(path) => return format!("mount `{}` as the profile says", path.display()),
            None => "mount what the profile says",
        },
        Step::Loopback => "bring up the loopback device of a new network namespace",
        Step::Root => "leave the file system of the host",
        Step::Privileges => "give up capabilities",
        Step::Landlock => "confine files by Landlock",
        Step::Filter => "install a filter of system calls",
        Step::Init => "start the first process of a new pid namespace",
        Step::Enter => "enter the new namespaces",
        Step::Proxy => "listen for the proxy in a new network namespace",
        Step::Janitor => "start the process that removes what stands for missing protected files",
    };
    plain.to_owned()
}

impl JailError {
    /// Returns whether this host does not let the server create jails of namespaces at all.
    pub(crate) fn forbids_namespaces(&self) -> bool {
        let Self::Step { step, errno, .. } = self else { return false };
        match (step, *errno) {
            (Step::Namespaces | Step::Ids | Step::Base, libc::EPERM | libc::EACCES) => true,
            (Step::Namespaces, libc::EINVAL | libc::ENOSYS) => true,
            // Otherwise the limit on namespaces is exhausted for now.
            (Step::Namespaces, libc::ENOSPC | libc::EUSERS) => has_setting(MAX_USER_NAMESPACES, "0"),
            // Parts of `/proc` are covered, as usual in containers.
            (Step::Proc, libc::EPERM) => true,
            _ => false,
        }
    }

    /// Returns whether files were created or removed since the mounts were planned, so that another plan may succeed.
    pub(crate) fn is_outdated(&self) -> bool {
        matches!(
            self,
            Self::Step { step: Step::Mount, errno: libc::ENOENT | libc::ENOTDIR | libc::ELOOP, .. }
        )
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> String {
        match self {
            Self::Policy(error) => error.hint.to_owned(),
            Self::TooMany { .. } => {
                "use patterns that start in a smaller directory, or without `**`".to_owned()
            }
            Self::Search { .. } => {
                "let the server's user read the directory, or exclude it from the pattern".to_owned()
            }
            Self::Hidden { .. } => {
                "let the server's user search the directories above it, or move it elsewhere".to_owned()
            }
            Self::Unprotected { errno, .. } => unprotected_hint(*errno).to_owned(),
            Self::Inexpressible { namespaces, .. } => namespaces.hint(),
            Self::Step { step, errno, .. } => step_hint(*step, *errno).to_owned(),
        }
    }
}

fn unprotected_hint(errno: i32) -> &'static str {
    match errno {
        libc::EWOULDBLOCK => {
            "another program holds a lock on the directory that stands for it; end that program"
        }
        _ => {
            "let the server's user create it (an empty directory stands for it while the process runs), or create it first"
        }
    }
}

fn step_hint(step: Step, errno: i32) -> &'static str {
    match (step, errno) {
        (_, libc::ENOSYS) => "use Linux 5.12 or newer",
        (Step::Namespaces, libc::ENOSPC | libc::EUSERS) if has_setting(MAX_USER_NAMESPACES, "0") => {
            restriction()
        }
        (Step::Namespaces, libc::ENOSPC | libc::EUSERS) => {
            "raise the sysctls `user.max_*_namespaces`, or end some confined processes"
        }
        (Step::Namespaces | Step::Ids | Step::Base, libc::EPERM | libc::EACCES) => restriction(),
        (Step::Namespaces, libc::EINVAL) => "use a kernel with user, pid, network, ipc and uts namespaces",
        (Step::Namespaces | Step::Enter, libc::EAGAIN) => {
            "end some processes, or raise the host's limit on them"
        }
        (Step::Enter, libc::ESRCH) => "the first process of the jail was killed; try again",
        (Step::Proc | Step::Mount, libc::EPERM) => {
            "if the server runs in a container, let it see all of `/proc` (as `--security-opt systempaths=unconfined` does)"
        }
        (Step::Mount, libc::EACCES) => {
            "only directories that the server's user itself may search can be confined; check their permissions"
        }
        (Step::Mount, libc::ENOENT | libc::ENOTDIR | libc::ELOOP) => {
            "it has changed in the meantime; try again"
        }
        (Step::Landlock, libc::E2BIG) => "start the server in fewer nested Landlock domains",
        (Step::Janitor, libc::EACCES) => "set the sysctl `vm.memfd_noexec` to 0 or 1",
        (Step::Filter, libc::EINVAL) => "use a kernel with `CONFIG_SECCOMP_FILTER`",
        _ => "check the host's limits and logs",
    }
}

/// Returns how to allow user namespaces, depending on what forbids them on this host.
fn restriction() -> &'static str {
    if has_setting("/proc/sys/kernel/unprivileged_userns_clone", "0") {
        "allow user namespaces with `sysctl kernel.unprivileged_userns_clone=1`"
    } else if has_setting("/proc/sys/kernel/apparmor_restrict_unprivileged_userns", "1") {
        "allow user namespaces with `sysctl kernel.apparmor_restrict_unprivileged_userns=0`, or with an AppArmor \
         profile for the server that has `userns,`"
    } else if has_setting(MAX_USER_NAMESPACES, "0") {
        "allow user namespaces with `sysctl user.max_user_namespaces=10000`"
    } else {
        "allow user namespaces; in a container, its seccomp or AppArmor profile usually forbids them"
    }
}

const MAX_USER_NAMESPACES: &str = "/proc/sys/user/max_user_namespaces";

fn has_setting(path: &str, value: &str) -> bool {
    std::fs::read_to_string(path).is_ok_and(|found| found.trim() == value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_says_what_failed_why_and_what_to_do() {
        let error = |step, path: Option<&str>, errno| {
            let error = JailError::Step { step, path: path.map(PathBuf::from), errno };
            format!("{error}; {}", error.hint())
        };
        assert_eq!(
            error(Step::Namespaces, None, libc::ENOSPC),
            "cannot create namespaces: No space left on device (os error 28); raise the sysctls \
             `user.max_*_namespaces`, or end some confined processes"
        );
        assert_eq!(
            error(Step::Mount, Some("/proc"), libc::EPERM),
            "cannot mount `/proc` as the profile says: Operation not permitted (os error 1); if the server runs in a \
             container, let it see all of `/proc` (as `--security-opt systempaths=unconfined` does)"
        );
        assert_eq!(
            error(Step::Enter, None, libc::ESRCH),
            "cannot enter the new namespaces: No such process (os error 3); the first process of the jail was killed; \
             try again"
        );
        let forbidden = error(Step::Namespaces, None, libc::EPERM);
        assert!(forbidden.contains("allow user namespaces"), "{forbidden}");
    }

    #[test]
    fn every_step_has_a_number_of_its_own() {
        let steps = (1..).map_while(Step::from_number).collect::<Vec<_>>();
        assert_eq!((steps.len(), steps.last()), (14, Some(&Step::Janitor)));
        assert_eq!(Step::from_number(0), None);
    }
}
