//! Confinement where no namespaces may be created: only Landlock and a filter of system calls.
//!
//! Only policies that they can enforce exactly are accepted: read everything, write nothing, no network. Landlock only
//! grants, so nothing can be denied in a readable directory; it does not hide names and attributes; and it does not
//! restrict changes of attributes, which the filter can only refuse everywhere.
//!
//! What the server hides is left out by granting everything beside it, one by one. `/dev` is left out in the same way
//! except for the harmless devices, and what `/proc` has about processes. Start at [`LandlockOnly`].

use std::{
    collections::BTreeSet,
    fs, io,
    ops::Bound,
    path::{Path, PathBuf},
};

use remex_sandbox::{Access, Network, Policy};

use super::{
    error::JailError,
    filter::Filter,
    hidden,
    landlock::{DEVICE, READ_DIRECTORIES, READ_FILES, Ruleset, Tcp, version},
    plan::{DEVICES, KERNEL_SECRETS, mounts_of},
};

/// The first version with scopes for signals; without them, a confined process could signal the server.
const LEAST_VERSION: u32 = 6;

/// File systems that are not readable, wherever they are mounted.
const PRIVATE_FILE_SYSTEMS: [&str; 3] = ["devpts", "devtmpfs", "proc"];

/// The most rules of one process: each is a file or directory beside a hidden path that every start has to open.
const MAX_RULES: usize = 16 * 1024;

/// The restrictions of a process without namespaces.
#[derive(Debug)]
pub(crate) struct LandlockOnly {
    pub(crate) ruleset: Ruleset,
    pub(crate) filter: Filter,
}

/// A part of a policy that cannot be enforced without namespaces.
#[derive(Debug, PartialEq, Eq)]
struct Inexpressible {
    what: String,
    why: &'static str,
}

/// Returns whether this kernel's Landlock can confine a process without namespaces.
pub(crate) fn is_possible() -> bool {
    version().is_some_and(|version| version >= LEAST_VERSION)
}

impl LandlockOnly {
    /// Plans the confinement for a policy; `namespaces` is the error with which creating namespaces failed. May block.
    pub(crate) fn new(policy: &Policy, hidden: &[PathBuf], namespaces: JailError) -> Result<Self, JailError> {
        let version = version().filter(|version| *version >= LEAST_VERSION);
        let ruleset = version.and_then(|version| Ruleset::new(version.try_into().ok()?, Tcp::Denied));
        let Some(mut ruleset) = ruleset else { return Err(namespaces) };
        let refused = |Inexpressible { what, why }| JailError::Inexpressible {
            what,
            why: why.into(),
            namespaces: Box::new(namespaces.clone()),
        };
        check(policy).map_err(refused)?;
        let mut closed = hidden::resolve(hidden)?;
        closed.insert("/dev".into());
        closed.extend(KERNEL_SECRETS.map(PathBuf::from));
        closed.extend(mounts_of(&PRIVATE_FILE_SYSTEMS)?.into_iter().filter(|path| path != PROC));
        ruleset.grant(Path::new("/"), READ_DIRECTORIES);
        grant_except(&mut ruleset, Path::new("/"), &closed).map_err(refused)?;
        for device in DEVICES {
            ruleset.grant(&Path::new("/dev").join(device), DEVICE);
        }
        Ok(Self { ruleset, filter: Filter::landlock_only() })
    }
}

/// Accepts only a policy that allows everything to be read and nothing else.
fn check(policy: &Policy) -> Result<(), Inexpressible> {
    let refused = |what: String, why| Err(Inexpressible { what, why });
    if policy.network() != Network::Restricted {
        return refused(
            "network `enabled`".to_owned(),
            "nothing keeps the process from unix sockets, the server's own among them",
        );
    }
    if policy.hosts().is_some() {
        return refused(
            "a list of hosts".to_owned(),
            "the process would need a network of its own to reach the proxy of the server",
        );
    }
    if let Some(pattern) = policy.patterns().first() {
        return refused(
            format!("`deny` to `{}`", pattern.base.join(&pattern.rest).display()),
            "it cannot deny anything in a directory that may be read",
        );
    }
    for rule in policy.rules() {
        let why = match rule.access {
            Access::Write => "it does not confine changes of modes, owners and times",
            Access::Deny => "it cannot deny anything in a directory that may be read",
            Access::Read if rule.path == Path::new("/") => continue,
            Access::Read => "it cannot hide the names and attributes of everything else",
        };
        return refused(format!("`{}` to `{}`", rule.access, rule.path.display()), why);
    }
    if policy.rules().is_empty() {
        return refused("a profile that grants nothing".to_owned(), "it cannot hide names and attributes");
    }
    Ok(())
}

const PROC: &str = "/proc";

/// Grants reading below a directory, except for `closed` paths and the directories of processes in `/proc`.
fn grant_except(
    ruleset: &mut Ruleset,
    directory: &Path,
    closed: &BTreeSet<PathBuf>,
) -> Result<(), Inexpressible> {
    if closed.contains(directory) {
        return Ok(());
    }
    let is_proc = directory == Path::new(PROC);
    let is_above = |path: &Path| Path::new(PROC).starts_with(path) || is_next(closed, path);
    if !is_above(directory) {
        ruleset.grant(directory, READ_FILES);
        return if ruleset.len() <= MAX_RULES {
            Ok(())
        } else {
            Err(unlisted(directory, "there are too many files beside what the server hides"))
        };
    }
    let failed = |_: io::Error| unlisted(directory, "its files cannot be listed");
    let entries = match fs::read_dir(directory) {
        // It has gone since its parent was listed.
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries.map_err(failed)?,
    };
    for entry in entries {
        let entry = entry.map_err(failed)?;
        let is_process = is_proc && entry.file_name().as_encoded_bytes().iter().all(u8::is_ascii_digit);
        // Following a link needs a right to its target only.
        if !is_process && !entry.file_type().map_err(failed)?.is_symlink() {
            grant_except(ruleset, &entry.path(), closed)?;
        }
    }
    Ok(())
}

/// Returns whether a closed path is below this path.
fn is_next(closed: &BTreeSet<PathBuf>, path: &Path) -> bool {
    // In the order of components, what is below a path follows it.
    closed
        .range::<Path, _>((Bound::Included(path), Bound::Unbounded))
        .next()
        .is_some_and(|next| next.starts_with(path))
}

fn unlisted(directory: &Path, why: &'static str) -> Inexpressible {
    Inexpressible { what: format!("`read` to `{}`", directory.display()), why }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn everything_except_hidden_paths_is_readable() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        for name in ["a/b/closed", "a/b/open", "a/b-c", "d"] {
            fs::create_dir_all(base.join(name)).unwrap();
        }
        std::os::unix::fs::symlink("d", base.join("link")).unwrap();
        let mut ruleset = Ruleset::new(6, Tcp::Denied).unwrap();
        let closed = BTreeSet::from([base.join("a/b/closed")]);
        grant_except(&mut ruleset, &base, &closed).unwrap();
        let mut granted: Vec<_> =
            ruleset.paths().map(|path| path.strip_prefix(&base).unwrap().to_owned()).collect();
        granted.sort();
        assert_eq!(granted, ["a/b/open", "a/b-c", "d"].map(PathBuf::from));
    }

    #[test]
    fn other_processes_are_left_out_of_proc() {
        let mut ruleset = Ruleset::new(6, Tcp::Denied).unwrap();
        grant_except(&mut ruleset, Path::new(PROC), &BTreeSet::new()).unwrap();
        let granted: Vec<_> = ruleset.paths().collect();
        assert!(granted.contains(&Path::new("/proc/meminfo")), "{granted:?}");
        let is_process =
            |path: &&&Path| path.to_str().unwrap()["/proc/".len()..].starts_with(char::is_numeric);
        assert_eq!(granted.iter().find(is_process), None);
        assert!(!granted.contains(&Path::new("/proc")));
    }
}
