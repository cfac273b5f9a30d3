//! A program to be confined: the test program itself, with a test that does what an environment variable says.
#![allow(dead_code, clippy::unwrap_used, reason = "a part of every test program, which uses a part of it")]

use std::{
    collections::BTreeSet,
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_process::{Jail, JailSupport, Start};
use remex_sandbox::{
    Policy, Preset, Request, SystemHost, resolve,
    testing::{Scenario, context},
};

use crate::harness::{NULL, TAGS, start};

/// The variable that says what to do.
const ORDERS: &str = "REMEX_TEST_ORDERS";

/// Precedes what the program reports, among what the test library prints.
const MARK: &str = "@ ";

/// Returns what the confined program has to do, if this is it.
pub(crate) fn orders() -> Option<String> {
    std::env::var(ORDERS).ok()
}

/// Reports something to the test that has started this program.
#[expect(clippy::print_stdout, reason = "the report is what the program writes")]
pub(crate) fn report(text: &str) {
    println!("\n{MARK}{text}");
}

/// Returns what the confined program has reported.
pub(crate) fn reports(output: &str) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(MARK)).map(str::trim_end).collect()
}

/// Everything that this program consists of: its file, its libraries, and what loads them.
pub(crate) fn own_files() -> BTreeSet<PathBuf> {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().filter_map(|line| line.find('/').map(|at| PathBuf::from(&line[at..]))).collect()
}

/// A start of the test `name` of this program in a jail.
pub(crate) fn confined(jail: Jail, name: &str, orders: &str) -> Start {
    let exe = fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
    let files = own_files();
    let is_loader =
        |path: &&PathBuf| path.file_name().is_some_and(|name| name.as_encoded_bytes().starts_with(b"ld-"));
    let exe = exe.to_str().unwrap();
    let mut args = vec!["--exact", name, "--nocapture", "--test-threads=1"];
    // Started by its full path, because the usual one may lead through links that are not granted.
    let program = match files.iter().find(is_loader) {
        Some(loader) => {
            args.insert(0, exe);
            loader.to_str().unwrap()
        }
        None => exe,
    };
    let libraries: BTreeSet<_> = files.iter().filter_map(|file| file.parent()).collect();
    let libraries = std::env::join_paths(libraries).unwrap();
    Start {
        env: vec![
            (OsString::from(ORDERS), OsString::from(orders)),
            ("LD_LIBRARY_PATH".into(), libraries),
            ("RUST_BACKTRACE".into(), "0".into()),
        ],
        jail: Some(jail),
        ..start(NULL, TAGS.tag(1, 1), program, &args)
    }
}

pub(crate) fn jail(policy: Policy) -> Jail {
    Jail::new(Arc::new(policy), Arc::new([]))
}

/// Returns the policy of one of the named profiles.
pub(crate) fn preset(preset: Preset, root: &Path) -> Policy {
    let mut context = context(Vec::new(), Some(vec![root.to_owned().into()]));
    context.permissions = preset.permissions();
    resolve(&Request { context: &context, cwd: None, tmpdir: None }, &SystemHost).unwrap()
}

/// Resolves the profile of a scenario.
pub(crate) fn resolved(scenario: &Scenario) -> Policy {
    scenario.resolve(&SystemHost).unwrap_or_else(|error| panic!("{}: {error}", scenario.name))
}

/// Returns whether this kernel has Landlock with scopes, which confines processes without namespaces.
pub(crate) fn has_landlock() -> bool {
    JailSupport::probe().landlock.is_some_and(|abi| abi >= 6)
}

/// Makes the calling process unable to create user namespaces, and everything that it starts.
///
/// Allocates nothing.
#[allow(unsafe_code)]
pub(crate) fn forbid_namespaces() -> std::io::Result<()> {
    const fn step(code: u32, jt: u8, jf: u8, k: u32) -> libc::sock_filter {
        libc::sock_filter { code: code as u16, jt, jf, k }
    }
    const LOAD: u32 = libc::BPF_LD | libc::BPF_W | libc::BPF_ABS;
    const EQUAL: u32 = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    const HAS: u32 = libc::BPF_JMP | libc::BPF_JSET | libc::BPF_K;
    const RETURN: u32 = libc::BPF_RET | libc::BPF_K;
    let program = [
        step(LOAD, 0, 0, 0),
        step(EQUAL, 4, 0, libc::SYS_clone3 as u32),
        step(EQUAL, 1, 0, libc::SYS_clone as u32),
        step(EQUAL, 0, 3, libc::SYS_unshare as u32),
        step(LOAD, 0, 0, 16),
        step(HAS, 2, 1, libc::CLONE_NEWUSER.cast_unsigned()),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::ENOSYS as u32),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ALLOW),
        step(RETURN, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_ptr().cast_mut() };
    // SAFETY: the kernel reads the program, whose length is right.
    let installed = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1_u64, 0_u64, 0_u64, 0_u64);
        libc::syscall(libc::SYS_seccomp, libc::SECCOMP_SET_MODE_FILTER, 0, &raw const filter)
    };
    if installed < 0 { Err(std::io::Error::last_os_error()) } else { Ok(()) }
}
