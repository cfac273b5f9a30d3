//! Errors from starting a program.

use std::{
    borrow::Cow,
    ffi::OsString,
    fmt, io,
    path::{Path, PathBuf},
};

use rustix::{
    fs::{Access, AtFlags, CWD, FileType, StatVfsMountFlags},
    io::Errno,
};

use crate::JailError;

/// Why a start failed: the step, and the error of the operating system.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct StartError {
    /// The step that failed.
    pub stage: Stage,
    /// The error number of the operating system.
    pub errno: i32,
    /// The program as requested.
    #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
    pub program: OsString,
    /// The working directory as requested.
    #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
    pub cwd: PathBuf,
    /// Why the execution was denied (`EACCES`), if that could be found out.
    pub denial: Option<ExecDenial>,
    /// Why the process cannot be confined, if that failed.
    pub jail: Option<Box<JailError>>,
    /// The user as whom it was to run, if not that of the server.
    pub user: Option<u32>,
}

/// Why a file may not be executed.
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub struct ExecDenial {
    /// The file that was to be executed.
    #[cfg_attr(feature = "serde", serde(with = "remex_sandbox::os_bytes"))]
    pub path: PathBuf,
    /// The obstacle.
    pub reason: DenialReason,
}

/// What denies the execution of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum DenialReason {
    /// It is a directory.
    Directory,
    /// It is neither a file nor a directory, such as a device.
    Special,
    /// A directory on the way to it may not be searched.
    UnsearchableParent,
    /// Its file system is mounted with `noexec`.
    NoexecMount,
    /// It is not marked as executable for this user.
    NoPermission,
    /// It is executable itself, so it must be its interpreter.
    Interpreter,
}

impl ExecDenial {
    /// Inspects a file whose execution was denied; returns `None` if it does not exist.
    pub(crate) fn find(path: PathBuf) -> Option<Self> {
        let reason = match rustix::fs::stat(&path) {
            Err(Errno::ACCESS) => DenialReason::UnsearchableParent,
            Err(_) => return None,
            Ok(stat) if FileType::from_raw_mode(stat.st_mode).is_dir() => DenialReason::Directory,
            Ok(stat) if !FileType::from_raw_mode(stat.st_mode).is_file() => DenialReason::Special,
            Ok(_) => {
                let is_noexec = rustix::fs::statvfs(&path)
                    .is_ok_and(|system| system.f_flag.contains(StatVfsMountFlags::NOEXEC));
                if is_noexec {
                    DenialReason::NoexecMount
                } else if rustix::fs::accessat(CWD, &path, Access::EXEC_OK, AtFlags::EACCESS).is_err() {
                    DenialReason::NoPermission
                } else {
                    DenialReason::Interpreter
                }
            }
        };
        Some(Self { path, reason })
    }

    fn hint(&self) -> String {
        let path = self.path.display();
        match self.reason {
            DenialReason::Directory => format!("`{path}` is a directory; name a program"),
            DenialReason::Special => format!("`{path}` is not a regular file; name a program"),
            DenialReason::UnsearchableParent => {
                format!(
                    "the server's user may not enter a directory of `{path}`; allow it with `chmod +x` on that directory"
                )
            }
            DenialReason::NoexecMount => {
                format!(
                    "the file system of `{path}` is mounted with `noexec`; copy the program to another one"
                )
            }
            DenialReason::NoPermission => {
                format!("run `chmod +x {path}`, or pass the file to its interpreter, as in `sh {path}`")
            }
            DenialReason::Interpreter => {
                format!(
                    "check the first line (`#!`) of `{path}`: the program that it names must be executable"
                )
            }
        }
    }
}

/// The steps of a start, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Stage {
    /// The request itself: a NUL byte in an argument, a variable or a path.
    Input,
    /// Waiting for a thread that spawns processes.
    Queue,
    /// Creating the pipes or the terminal, or watching the new process.
    Descriptors,
    /// Creating the cgroup of the process, or entering it.
    Cgroup,
    /// Confining the process.
    Jail,
    /// Creating the process.
    Fork,
    /// Setting up its session, terminal and descriptors.
    Setup,
    /// Setting its resource limits.
    Limits,
    /// Becoming the user as whom it is to run.
    User,
    /// Entering the working directory.
    Cwd,
    /// Executing the program.
    Exec,
}

/// The kind of a start error, by its remedy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum StartErrorKind {
    /// No such program, neither at that path nor in `PATH`.
    ProgramNotFound,
    /// The program exists, but it may not or cannot be executed.
    NotExecutable,
    /// The working directory cannot be entered.
    BadCwd,
    /// The host allows no more processes.
    TooManyProcesses,
    /// The server or the host has no descriptor or terminal left.
    TooManyDescriptors,
    /// The maximum number of starts hang on unresponsive file systems.
    TooManyHungStarts,
    /// The host cannot confine the process as the request demands.
    CannotConfine,
    /// The request is invalid on any host.
    InvalidInput,
    /// The attempt was aborted.
    Aborted,
    /// Anything else; see the error number.
    Other,
}

impl StartError {
    /// Sorts the error by what can be done about it.
    #[must_use]
    pub fn kind(&self) -> StartErrorKind {
        use StartErrorKind::*;
        match (self.stage, self.errno) {
            (Stage::Input, _) | (Stage::Exec, libc::E2BIG | libc::ENAMETOOLONG) => InvalidInput,
            (Stage::Setup, libc::ECANCELED) => Aborted,
            (Stage::Queue, _) => TooManyHungStarts,
            (Stage::Jail, _) => CannotConfine,
            (Stage::Cwd, _) => BadCwd,
            (Stage::Exec, libc::ENOENT | libc::ENOTDIR) => ProgramNotFound,
            (Stage::Exec, libc::EACCES | libc::EPERM | libc::ENOEXEC | libc::ELOOP | libc::ETXTBSY) => {
                NotExecutable
            }
            // For another user, the limit on processes is checked at the `exec`.
            (Stage::Fork | Stage::User | Stage::Exec, libc::EAGAIN) => TooManyProcesses,
            // A terminal beyond the limit of the host is `ENOSPC`.
            (Stage::Descriptors | Stage::Fork, libc::EMFILE | libc::ENFILE | libc::ENOSPC) => {
                TooManyDescriptors
            }
            _ => Other,
        }
    }

    /// Returns what failed and why, without what to do about it.
    #[must_use]
    pub fn message(&self) -> String {
        let program = Path::new(&self.program).display();
        let reason = io::Error::from_raw_os_error(self.errno);
        match self.stage {
            Stage::Cwd => format!("cannot start `{program}` in `{}`: {reason}", self.cwd.display()),
            Stage::Queue => format!(
                "cannot start `{program}`: too many starts hang on file systems that do not respond ({reason})"
            ),
            Stage::Jail => {
                let why = self.jail.as_ref().map_or_else(|| reason.to_string(), ToString::to_string);
                format!("cannot confine `{program}`: {why}")
            }
            Stage::Cgroup => format!("cannot start `{program}` in a cgroup of its own: {reason}"),
            Stage::Limits => format!("cannot start `{program}`: cannot set its resource limits: {reason}"),
            Stage::User => {
                let user = self.user.unwrap_or_default();
                format!("cannot start `{program}`: cannot become the user with uid {user}: {reason}")
            }
            _ => format!("cannot start `{program}`: {reason}"),
        }
    }

    /// Returns the text of the operating system, if the failure is the system's and names nothing but the program
    /// and its directory.
    #[must_use]
    pub fn system_text(&self) -> Option<String> {
        let stages = [Stage::Queue, Stage::Jail, Stage::Cgroup, Stage::Limits, Stage::User];
        let is_plain = !stages.contains(&self.stage);
        is_plain.then(|| io::Error::from_raw_os_error(self.errno).to_string())
    }

    /// Returns what to do about it.
    #[must_use]
    pub fn hint(&self) -> Cow<'static, str> {
        if let Some(denial) = &self.denial {
            return denial.hint().into();
        }
        if let Some(error) = &self.jail {
            return error.hint().into();
        }
        if let (Some(user), libc::EACCES) = (self.user, self.errno) {
            match self.kind() {
                StartErrorKind::BadCwd => {
                    return format!(
                        "choose a working directory that uid {user}, as whom it is to run, may enter"
                    )
                    .into();
                }
                StartErrorKind::NotExecutable => {
                    let program = Path::new(&self.program).display();
                    return format!(
                        "check that uid {user}, as whom it is to run, may execute `{program}` and enter every directory on \
                         the way to it"
                    )
                    .into();
                }
                _ => {}
            }
        }
        let hint = match self.kind() {
            StartErrorKind::ProgramNotFound if self.program.is_empty() => {
                "the program name is empty; name a program"
            }
            StartErrorKind::ProgramNotFound => {
                "check the spelling and the variable PATH; if it is a script, check its first line (`#!`)"
            }
            StartErrorKind::NotExecutable if self.errno == libc::ENOEXEC => {
                "pass the file to its interpreter, such as `sh`, or check that it is built for this machine"
            }
            StartErrorKind::NotExecutable if self.errno == libc::ETXTBSY => {
                "try again when nothing writes to the file"
            }
            StartErrorKind::NotExecutable if self.errno == libc::ELOOP => {
                "check the symbolic links in its path"
            }
            StartErrorKind::NotExecutable => {
                "check that it is a file that the server's user may execute, on a file system that is not mounted with \
                 `noexec`"
            }
            StartErrorKind::BadCwd => "give a directory that exists and may be entered",
            StartErrorKind::TooManyProcesses => "end some processes, or raise the host's limit on them",
            StartErrorKind::TooManyDescriptors => {
                "end some processes, or raise the limit on open files or terminals"
            }
            StartErrorKind::TooManyHungStarts => "terminate the starts that hang, or repair the file systems",
            StartErrorKind::CannotConfine => "start it without a sandbox, or on another host",
            StartErrorKind::InvalidInput if self.stage == Stage::Input => {
                "remove the NUL byte from the arguments, the environment or the paths"
            }
            StartErrorKind::InvalidInput => "pass fewer or shorter arguments and variables",
            StartErrorKind::Aborted => "start it again",
            StartErrorKind::Other if self.stage == Stage::Cgroup => {
                "check that the server may write to its cgroup and move processes into it"
            }
            StartErrorKind::Other if self.stage == Stage::Limits => {
                "ask for limits below those of the server itself"
            }
            StartErrorKind::Other if self.stage == Stage::User => {
                "check that the server is root, may change to every user and group, and is in no container without that one"
            }
            StartErrorKind::Other => "check the host's limits and logs",
        };
        hint.into()
    }
}

impl fmt::Display for StartError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", self.message(), self.hint())
    }
}

impl std::error::Error for StartError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_message_says_what_failed_why_and_what_to_do() {
        let mut error = StartError {
            stage: Stage::Exec,
            errno: libc::ENOENT,
            program: "frobnicate".into(),
            cwd: "/nowhere".into(),
            denial: None,
            jail: None,
            user: None,
        };
        assert_eq!(
            error.to_string(),
            "cannot start `frobnicate`: No such file or directory (os error 2); \
             check the spelling and the variable PATH; if it is a script, check its first line (`#!`)"
        );
        let nameless = StartError { program: "".into(), ..error.clone() };
        assert_eq!(nameless.hint(), "the program name is empty; name a program");
        error.stage = Stage::Cwd;
        assert_eq!(
            error.to_string(),
            "cannot start `frobnicate` in `/nowhere`: No such file or directory (os error 2); \
             give a directory that exists and may be entered"
        );
    }

    #[test]
    fn limits_of_the_host_have_kinds_of_their_own() {
        let kind = |stage, errno| {
            StartError {
                stage,
                errno,
                program: "x".into(),
                cwd: "/".into(),
                denial: None,
                jail: None,
                user: None,
            }
            .kind()
        };
        assert_eq!(kind(Stage::Queue, libc::EAGAIN), StartErrorKind::TooManyHungStarts);
        assert_eq!(kind(Stage::Fork, libc::EAGAIN), StartErrorKind::TooManyProcesses);
        assert_eq!(kind(Stage::Fork, libc::EMFILE), StartErrorKind::TooManyDescriptors);
        assert_eq!(kind(Stage::Descriptors, libc::EMFILE), StartErrorKind::TooManyDescriptors);
        assert_eq!(kind(Stage::Descriptors, libc::ENOSPC), StartErrorKind::TooManyDescriptors);
        assert_eq!(kind(Stage::Exec, libc::E2BIG), StartErrorKind::InvalidInput);
        assert_eq!(kind(Stage::Setup, libc::EPERM), StartErrorKind::Other);
    }
}
