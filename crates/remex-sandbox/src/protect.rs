//! Names that stay read-only in every writable directory, whether the profile says so or not.
//!
//! Git and other programs run what they find under a few names, so a process that may write a directory may not change
//! these names in it. A protection only restricts: it never grants access to the target of a link or of a git file.
//! Start at [`Protection::apply`].

use std::{
    collections::BTreeSet,
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use remex_proto::sandbox::PROTECTED_NAMES;

use crate::{
    base::{
        access::Access,
        error::{PolicyError, Reason},
        host::{Host, Kind, Located, Node, locate},
    },
    policy::{GIT, Rule, RuleMap},
};

/// How many names in writable directories are examined.
const MAX_PROTECTED: usize = 4096;

/// Directories in which all programs and users of a host keep temporary files.
const SHARED: [&str; 3] = ["/tmp", "/var/tmp", "/dev/shm"];

/// The names that are protected in the writable directories of a profile.
pub(crate) struct Protection {
    names: BTreeSet<OsString>,
    /// What the profile lets be written by an entry of its own, missing or not.
    granted: BTreeSet<PathBuf>,
}

impl Default for Protection {
    fn default() -> Self {
        Self { names: PROTECTED_NAMES.map(OsString::from).into(), granted: BTreeSet::new() }
    }
}

impl Protection {
    /// Adds a path that a profile makes read-only in a workspace root, if it is a single name like those of programs.
    pub(crate) fn add_name(&mut self, subpath: &Path) {
        let mut components = subpath.components().filter(|part| *part != Component::CurDir);
        if let (Some(Component::Normal(name)), None) = (components.next(), components.next())
            && name.as_bytes().starts_with(b".")
        {
            self.names.insert(name.to_owned());
        }
    }

    /// Leaves a path unprotected, because an entry of the profile lets it be written.
    pub(crate) fn except(&mut self, path: &Path) {
        self.granted.insert(path.to_owned());
    }

    /// Adds the rules that protect the names in writable directories.
    ///
    /// A missing name is not protected in directories for `temporary` files: they are shared, and all their users would
    /// see the placeholder.
    pub(crate) fn apply<'a>(
        &self,
        rules: &mut RuleMap,
        roots: impl Iterator<Item = &'a Path>,
        temporary: &[PathBuf],
        host: &impl Host,
    ) -> Result<(), PolicyError> {
        let roots: BTreeSet<&Path> =
            roots.filter(|root| !is_granted_with_all(rules, root) && !self.is_in_protected(root)).collect();
        if roots.len() * self.names.len() > MAX_PROTECTED {
            let why = Reason::TooLarge { what: "protected names".into(), limit: MAX_PROTECTED };
            return Err(PolicyError::new("the protected names of its writable directories", why));
        }
        for root in roots {
            let is_shared = SHARED.iter().any(|shared| root == Path::new(shared));
            let holds_missing = !is_shared && !temporary.iter().any(|directory| directory == root);
            for path in self.names.iter().map(|name| root.join(name)) {
                if self.granted.contains(&path) || rules.access(&path) < Access::Write {
                    continue;
                }
                let found = protected(host, &path).map_err(|why| {
                    PolicyError::new(format!("the protection of `{}`", path.display()), why)
                })?;
                for (found, kind) in found {
                    let is_left = found == path && kind.is_missing() && !holds_missing;
                    if !is_left && rules.access(&found) == Access::Write {
                        rules.insert(Rule { path: found, access: Access::Read, kind });
                    }
                }
            }
        }
        Ok(())
    }

    /// Returns whether a directory is protected itself, or in a git directory: then it was granted on purpose.
    fn is_in_protected(&self, root: &Path) -> bool {
        let is_protected = root.file_name().is_some_and(|name| self.names.contains(name));
        is_protected || root.components().any(|part| part.as_os_str() == GIT)
    }
}

/// Returns whether a directory can be written only because everything can.
fn is_granted_with_all(rules: &RuleMap, root: &Path) -> bool {
    let mut above = root.ancestors().skip(1);
    root == Path::new("/") || above.all(|path| rules.access(path) == Access::Write)
}

/// Returns the paths that must not change so that a name keeps its meaning: the name itself, and the target of a link.
fn protected(host: &impl Host, path: &Path) -> Result<Vec<(PathBuf, Kind)>, Reason> {
    let node = host.node(path).map_err(|error| Reason::unresolved(path, &error))?;
    let own = |kind| (path.to_owned(), kind);
    Ok(match node {
        Node::Missing => vec![own(Kind::Missing)],
        Node::Directory => vec![own(Kind::Directory)],
        Node::File => {
            let named = if path.ends_with(GIT) { git_directories(host, path)? } else { Vec::new() };
            let named = named.into_iter().flat_map(|located| {
                let links = located.links.into_iter().map(|(link, _)| (link, Kind::Link));
                [(located.path, located.kind)].into_iter().chain(links)
            });
            [own(Kind::File)].into_iter().chain(named).collect()
        }
        Node::Link(_) => {
            // A broken link protects only itself.
            let target = locate(host, path).ok().map(|located| (located.path, located.kind));
            [own(Kind::Link)].into_iter().chain(target).collect()
        }
    })
}

/// Returns what a `.git` file names: the git directory of a worktree or a submodule, and what that shares.
pub(crate) fn git_directories(host: &impl Host, file: &Path) -> Result<Vec<Located>, Reason> {
    let Some(named) = named_in(host, file, b"gitdir:") else { return Ok(Vec::new()) };
    let directory = locate(host, &named)?;
    let common = named_in(host, &directory.path.join("commondir"), b"");
    let common = common.map(|common| locate(host, &common)).transpose()?;
    Ok([directory].into_iter().chain(common).collect())
}

/// Returns the path in the first line of a file of git, relative to the directory of the file.
fn named_in(host: &impl Host, file: &Path, word: &[u8]) -> Option<PathBuf> {
    let head = host.head(file)?;
    let line = head.split(|byte| *byte == b'\n').next()?.strip_prefix(word)?.trim_ascii();
    let is_path = !line.is_empty() && !line.contains(&0);
    is_path.then(|| file.parent().unwrap_or(file).join(OsStr::from_bytes(line)))
}
