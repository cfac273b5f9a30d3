//! A file system that hangs, as a network file system does whose server has gone.

use std::{
    collections::{BTreeMap, BTreeSet},
    ffi::CString,
    fs::{File, OpenOptions},
    io::{PipeWriter, Read as _, Write as _, pipe},
    os::{fd::AsRawFd as _, unix::fs::OpenOptionsExt as _},
    path::{Path, PathBuf},
    sync::{Arc, Condvar, Mutex, PoisonError},
    thread::{self, JoinHandle},
};

use rustix::{
    event::{PollFd, PollFlags, poll},
    fs::OFlags,
    mount::{MountFlags, UnmountFlags, mount, unmount},
};
use tempfile::TempDir;

use super::{
    PATIENCE,
    skip::{Need, skip},
};

/// A mounted file system, served by the test itself until dropped; then whatever hangs fails.
///
/// It has a directory `empty`, a file `endless` of 60 GiB that can be opened and whose reads hang, and whatever name
/// starts with `hung` hangs when somebody looks for it. Directories `fickle-0`, `fickle-1` and so on are found that many
/// times and then hang. Nothing else exists.
pub(crate) struct HungFs {
    directory: TempDir,
    hanging: Arc<Hanging>,
    /// Closed when dropped, which ends the thread.
    stop: Option<PipeWriter>,
    thread: Option<JoinHandle<()>>,
}

/// What becomes of a call that hangs when the process that made it is killed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Interrupts {
    /// It ends, and so does the process.
    Obeyed,
    /// It hangs on, and the process cannot be killed.
    Ignored,
}

#[derive(Default)]
struct Hanging {
    requests: Mutex<BTreeSet<u64>>,
    /// How often each fickle directory was looked for.
    looks: Mutex<BTreeMap<u64, u64>>,
    changed: Condvar,
}

impl HungFs {
    /// Mounts one, or says on stderr why that cannot be done here, and returns `None`: the test is then skipped.
    pub(crate) fn mount(interrupts: Interrupts) -> Option<Self> {
        let device = match OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(OFlags::NONBLOCK.bits().cast_signed())
            .open("/dev/fuse")
        {
            Ok(device) => device,
            Err(error) => {
                skip(Need::Mounts, format!("no file system hangs without /dev/fuse: {error}"));
                return None;
            }
        };
        let directory = tempfile::tempdir().expect("a directory can be made");
        let options = format!("fd={},rootmode=40000,user_id=0,group_id=0,allow_other", device.as_raw_fd());
        let options = CString::new(options).expect("options contain no NUL");
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        if let Err(error) = mount("remex-test", directory.path(), "fuse", flags, Some(options.as_c_str())) {
            skip(Need::Mounts, format!("a file system that hangs cannot be mounted: {error}"));
            return None;
        }
        let hanging = Arc::new(Hanging::default());
        let (stopped, stop) = pipe().expect("a pipe can be made");
        let serving = Arc::clone(&hanging);
        let thread = thread::spawn(move || {
            loop {
                let mut ready = [PollFd::new(&device, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
                poll(&mut ready, None).expect("a device can be polled");
                if !ready[1].revents().is_empty() {
                    return;
                }
                serve(&device, &serving, interrupts);
            }
        });
        Some(Self { directory, hanging, stop: Some(stop), thread: Some(thread) })
    }

    pub(crate) fn root(&self) -> &Path {
        self.directory.path()
    }

    /// Returns a path on which lookups hang.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.root().join(format!("hung-{name}"))
    }

    /// Waits until at least so many calls hang.
    pub(crate) fn wait_until_hanging(&self, count: usize) {
        let requests = self.hanging.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let (requests, waited) = self
            .hanging
            .changed
            .wait_timeout_while(requests, PATIENCE, |requests| requests.len() < count)
            .unwrap_or_else(PoisonError::into_inner);
        assert!(!waited.timed_out(), "only {} calls hang, not {count}", requests.len());
    }
}

impl Drop for HungFs {
    fn drop(&mut self) {
        // The end of the device fails every call that hangs.
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
        let _ = unmount(self.directory.path(), UnmountFlags::DETACH);
    }
}

const LOOKUP: u32 = 1;
const FORGET: u32 = 2;
const GETATTR: u32 = 3;
const OPEN: u32 = 14;
const READ: u32 = 15;
const STATFS: u32 = 17;
const RELEASE: u32 = 18;
const FLUSH: u32 = 25;
const INIT: u32 = 26;
const OPENDIR: u32 = 27;
const READDIR: u32 = 28;
const RELEASEDIR: u32 = 29;
const ACCESS: u32 = 34;
const INTERRUPT: u32 = 36;
const BATCH_FORGET: u32 = 42;

const ENOENT: i32 = 2;
const EINTR: i32 = 4;
const ENOSYS: i32 = 38;

const ROOT: u64 = 1;
const EMPTY: u64 = 2;
const ENDLESS: u64 = 3;
const FICKLE: u64 = 100;
const HEADER_LEN: usize = 40;

/// Answers what the kernel asks, or lets it hang.
fn serve(mut device: &File, hanging: &Hanging, interrupts: Interrupts) {
    let mut buffer = vec![0; 256 * 1024];
    // None there after all, or interrupted in the making.
    let Ok(len) = device.read(&mut buffer) else { return };
    let (header, body) = buffer[..len].split_at(HEADER_LEN);
    let word = |at: usize| u32::from_ne_bytes(header[at..at + 4].try_into().expect("four bytes"));
    let long = |bytes: &[u8]| u64::from_ne_bytes(bytes[..8].try_into().expect("eight bytes"));
    let (opcode, unique, node) = (word(4), long(&header[8..]), long(&header[16..]));
    let hang = |unique| {
        hanging.requests.lock().unwrap_or_else(PoisonError::into_inner).insert(unique);
        hanging.changed.notify_all();
    };
    let mut answer = |unique: u64, error: i32, body: &[u8]| {
        let len = u32::try_from(16 + body.len()).expect("answers are short");
        let header = [&len.to_ne_bytes()[..], &(-error).to_ne_bytes(), &unique.to_ne_bytes()].concat();
        // The one who asked may be gone.
        let _ = device.write_all(&[&header, body].concat());
    };
    match opcode {
        INIT => {
            let mut init = [0; 64];
            init[..4].copy_from_slice(&7_u32.to_ne_bytes());
            init[4..8].copy_from_slice(&31_u32.to_ne_bytes());
            // The longest write.
            init[20..24].copy_from_slice(&4096_u32.to_ne_bytes());
            answer(unique, 0, &init);
        }
        LOOKUP => match body.split(|&byte| byte == 0).next() {
            Some(name) if name.starts_with(b"hung") => hang(unique),
            Some(name) if name.starts_with(b"fickle-") => {
                let patience = str::from_utf8(&name[7..]).ok().and_then(|number| number.parse().ok());
                let patience: u64 = patience.expect("a fickle directory has a number");
                let mut looks = hanging.looks.lock().unwrap_or_else(PoisonError::into_inner);
                let look = looks.entry(patience).or_default();
                *look += 1;
                if *look > patience { hang(unique) } else { answer(unique, 0, &entry(FICKLE + patience)) }
            }
            Some(b"empty") => answer(unique, 0, &entry(EMPTY)),
            Some(b"endless") => answer(unique, 0, &entry(ENDLESS)),
            _ => answer(unique, ENOENT, &[]),
        },
        GETATTR => answer(unique, 0, &[&[0; 16][..], &attributes(node)].concat()),
        OPEN | OPENDIR => answer(unique, 0, &[0; 16]),
        READ => hang(unique),
        READDIR | RELEASE | RELEASEDIR | FLUSH | ACCESS => answer(unique, 0, &[]),
        STATFS => answer(unique, 0, &[0; 80]),
        INTERRUPT if interrupts == Interrupts::Obeyed => {
            let interrupted = long(body);
            if hanging.requests.lock().unwrap_or_else(PoisonError::into_inner).remove(&interrupted) {
                answer(interrupted, EINTR, &[]);
            }
        }
        FORGET | BATCH_FORGET | INTERRUPT => {}
        _ => answer(unique, ENOSYS, &[]),
    }
}

/// What a look for a name finds; nothing is cached, so that every look asks again.
fn entry(node: u64) -> Vec<u8> {
    [&node.to_ne_bytes()[..], &[0; 32], &attributes(node)].concat()
}

fn attributes(node: u64) -> Vec<u8> {
    let (size, mode) = match node {
        ROOT | EMPTY | FICKLE.. => (0, 0o040_755_u32),
        _ => (60_u64 << 30, 0o100_644),
    };
    let links = 1_u32;
    [
        &node.to_ne_bytes()[..],
        &size.to_ne_bytes(),
        // Blocks, and three times with their fractions.
        &[0; 8 + 3 * 8 + 3 * 4],
        &mode.to_ne_bytes(),
        &links.to_ne_bytes(),
        // Owners and device.
        &[0; 3 * 4],
        &4096_u32.to_ne_bytes(),
        &[0; 4],
    ]
    .concat()
}
