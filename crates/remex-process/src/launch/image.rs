//! A start in the form that the kernel expects, prepared before the fork because the child may not allocate.

use std::{
    ffi::{CString, OsStr, c_char},
    os::unix::ffi::OsStrExt,
    ptr,
};

use crate::{ExecDenial, JailError, Stage, Start, StartError};

/// The search path if the environment has no `PATH`.
const DEFAULT_PATH: &[u8] = b"/usr/local/bin:/usr/bin:/bin:/usr/local/sbin:/usr/sbin:/sbin";

/// A [`Start`] with its strings as the kernel expects them.
#[derive(Debug)]
pub(crate) struct Image {
    pub(crate) start: Start,
    /// Paths to try to execute, in order.
    pub(crate) candidates: Strings,
    pub(crate) argv: Strings,
    pub(crate) env: Strings,
    pub(crate) cwd: CString,
}

impl Image {
    pub(crate) fn new(start: Start) -> Result<Self, StartError> {
        let arg0 = start.arg0.as_ref().unwrap_or(&start.program);
        let argv = [arg0].into_iter().chain(&start.args).map(|arg| [arg.as_bytes()]);
        let env = start.env.iter().map(|(name, value)| [name.as_bytes(), b"=", value.as_bytes()]);
        let laid_out = (|| {
            let argv = Strings::new(argv)?;
            let env = Strings::new(env)?;
            let cwd = CString::new(start.cwd.as_os_str().as_bytes()).map_err(|_| NulByte)?;
            let path = start.env.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.as_os_str());
            Ok((candidates(&start.program, path)?, argv, env, cwd))
        })();
        match laid_out {
            Ok((candidates, argv, env, cwd)) => Ok(Self { start, candidates, argv, env, cwd }),
            Err(NulByte) => Err(StartError {
                stage: Stage::Input,
                errno: libc::EINVAL,
                program: start.program,
                cwd: start.cwd,
                denial: None,
                jail: None,
                user: start.user.map(|user| user.uid()),
            }),
        }
    }

    /// Returns the error of a failed start.
    ///
    /// After a denied execution this inspects the program, so it may block on the same file system.
    pub(crate) fn error(self, stage: Stage, errno: i32) -> StartError {
        let denial = match (stage, errno) {
            // In a jail, or as another user, access differs from what this process sees.
            (Stage::Exec, libc::EACCES) if self.start.jail.is_none() && self.start.user.is_none() => self
                .candidates
                .iter()
                .find_map(|candidate| ExecDenial::find(self.start.cwd.join(OsStr::from_bytes(candidate)))),
            _ => None,
        };
        let user = self.start.user.map(|user| user.uid());
        StartError {
            stage,
            errno,
            program: self.start.program,
            cwd: self.start.cwd,
            denial,
            jail: None,
            user,
        }
    }

    /// Returns the error of a start that could not be confined.
    pub(crate) fn unconfined(self, error: JailError) -> StartError {
        StartError { jail: Some(Box::new(error)), ..self.error(Stage::Jail, 0) }
    }
}

/// Returns the paths to try to execute, given the `PATH` of the environment.
pub(crate) fn candidates(program: &OsStr, path: Option<&OsStr>) -> Result<Strings, NulByte> {
    let program = program.as_bytes();
    // An empty name is executed as it is: the kernel returns the right error.
    if program.contains(&b'/') || program.is_empty() {
        return Strings::new([[program]]);
    }
    let path = path.map_or(DEFAULT_PATH, OsStr::as_bytes);
    // By convention, an empty entry means the working directory.
    let directories =
        path.split(|&byte| byte == b':').map(|entry| if entry.is_empty() { b"." } else { entry });
    Strings::new(directories.map(|directory| [directory, b"/", program]))
}

/// NUL-terminated strings in one allocation.
#[derive(Debug)]
pub(crate) struct Strings {
    bytes: Vec<u8>,
    starts: Vec<usize>,
}

#[derive(Debug)]
pub(crate) struct NulByte;

impl Strings {
    /// Concatenates the parts of each string.
    pub(crate) fn new<'a, const N: usize>(
        strings: impl IntoIterator<Item = [&'a [u8]; N]>,
    ) -> Result<Self, NulByte> {
        let mut new = Self { bytes: Vec::new(), starts: Vec::new() };
        for parts in strings {
            new.starts.push(new.bytes.len());
            for part in parts {
                if part.contains(&0) {
                    return Err(NulByte);
                }
                new.bytes.extend_from_slice(part);
            }
            new.bytes.push(0);
        }
        Ok(new)
    }

    /// Returns each string, without its NUL.
    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        let ends = self.starts.iter().skip(1).chain([&self.bytes.len()]).copied().collect::<Vec<_>>();
        self.starts.iter().zip(ends).map(|(&start, end)| &self.bytes[start..end - 1])
    }

    /// Returns the address of each string, then a null pointer. Valid as long as `self` is not moved or dropped.
    pub(crate) fn pointers(&self) -> Vec<*const c_char> {
        let address = |&start: &usize| self.bytes[start..].as_ptr().cast();
        self.starts.iter().map(address).chain([ptr::null()]).collect()
    }
}
