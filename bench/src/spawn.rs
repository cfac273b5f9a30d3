//! The only unsafe code here: `posix_spawn` itself, and a tie between our life and a server's.
//!
//! The standard library falls back to a slower `fork` as soon as a child needs a controlling terminal, and a
//! baseline must not be slower than the machine. Start at [`spawn`].
#![allow(unsafe_code)]

use std::{
    ffi::{CStr, CString},
    io, mem,
    os::{
        fd::{AsRawFd, BorrowedFd},
        unix::process::CommandExt,
    },
    process::Command,
    ptr,
};

use rustix::process::{Pid, Signal, set_parent_process_death_signal};

/// What a bare child gets as descriptors 0, 1 and 2.
pub(crate) enum Wiring<'a> {
    /// `/dev/null` and the writing ends of two pipes.
    Pipes { stdout: BorrowedFd<'a>, stderr: BorrowedFd<'a> },
    /// The terminal at this path, which becomes the controlling one of a new session.
    Terminal(&'a CStr),
}

/// Starts `argv` with nothing but `PATH` in its environment; a name without a slash is looked up.
pub(crate) fn spawn(argv: &[&str], wiring: &Wiring<'_>) -> io::Result<Pid> {
    let words = argv.iter().map(|word| CString::new(*word)).collect::<Result<Vec<_>, _>>()?;
    let path = CString::new(format!("PATH={}", crate::PATH))?;
    let mut argv: Vec<_> = words.iter().map(|word| word.as_ptr().cast_mut()).collect();
    argv.push(ptr::null_mut());
    let environment = [path.as_ptr().cast_mut(), ptr::null_mut()];
    let actions = Actions::new(wiring)?;
    let mut pid = 0;
    // SAFETY: every pointer refers to a live, initialised value, and both lists end with a null pointer.
    check(unsafe {
        libc::posix_spawnp(
            &mut pid,
            argv[0],
            &actions.files,
            &actions.attributes,
            argv.as_ptr(),
            environment.as_ptr(),
        )
    })?;
    Pid::from_raw(pid).ok_or_else(|| io::Error::other("posix_spawn returned no process id"))
}

/// Makes the kernel end a server when the bench dies, however it dies.
pub(crate) fn end_with_us(command: &mut Command) {
    // SAFETY: the closure makes one system call and neither allocates nor locks.
    unsafe { command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::TERM))?)) };
}

/// The two descriptions that `posix_spawn` takes, freed together.
struct Actions {
    files: libc::posix_spawn_file_actions_t,
    attributes: libc::posix_spawnattr_t,
}

impl Actions {
    fn new(wiring: &Wiring<'_>) -> io::Result<Self> {
        // SAFETY: both are plain C structures, and the init functions give them their meaning before any use.
        let mut actions = unsafe { mem::zeroed::<Self>() };
        let Self { files, attributes } = &mut actions;
        // SAFETY: `files` and `attributes` are valid, the paths are C strings that the calls copy.
        unsafe {
            check(libc::posix_spawn_file_actions_init(files))?;
            check(libc::posix_spawnattr_init(attributes))?;
            match wiring {
                Wiring::Pipes { stdout, stderr } => {
                    let null = c"/dev/null".as_ptr();
                    check(libc::posix_spawn_file_actions_addopen(files, 0, null, libc::O_RDONLY, 0))?;
                    check(libc::posix_spawn_file_actions_adddup2(files, stdout.as_raw_fd(), 1))?;
                    check(libc::posix_spawn_file_actions_adddup2(files, stderr.as_raw_fd(), 2))?;
                }
                Wiring::Terminal(path) => {
                    // The session comes first: the first terminal that its leader opens is its own.
                    check(libc::posix_spawnattr_setflags(attributes, libc::POSIX_SPAWN_SETSID))?;
                    check(libc::posix_spawn_file_actions_addopen(files, 0, path.as_ptr(), libc::O_RDWR, 0))?;
                    check(libc::posix_spawn_file_actions_adddup2(files, 0, 1))?;
                    check(libc::posix_spawn_file_actions_adddup2(files, 0, 2))?;
                }
            }
        }
        Ok(actions)
    }
}

impl Drop for Actions {
    fn drop(&mut self) {
        // SAFETY: `new` initialised both before it handed them out; on Linux zeroed ones may be destroyed too.
        unsafe {
            libc::posix_spawn_file_actions_destroy(&mut self.files);
            libc::posix_spawnattr_destroy(&mut self.attributes);
        }
    }
}

/// Turns the error number that these functions return into an error.
fn check(error: libc::c_int) -> io::Result<()> {
    if error == 0 { Ok(()) } else { Err(io::Error::from_raw_os_error(error)) }
}
