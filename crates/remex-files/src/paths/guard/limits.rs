//! Where a credential may access files, by real path.
//!
//! Start at [`PathLimits`].

use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
};

use remex_access::scope::{FileAccess, Permission, Scopes};

use super::resolve::{Judge, Rules, Walk};
use crate::paths::open::Links;

/// Where files may be read and written, with all links resolved.
#[derive(Debug)]
pub(super) struct PathLimits {
    read: Area,
    write: Area,
}

/// How a path relates to where a credential may access files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Judgement {
    /// It may be accessed.
    Inside,
    /// It leads to where files may be accessed.
    Ancestor,
    Outside,
}

/// Where one kind of access is allowed.
#[derive(Debug)]
enum Area {
    Nowhere,
    Everywhere,
    Beneath {
        /// Real paths.
        prefixes: Vec<PathBuf>,
        /// Every directory and link that leads to them.
        ancestors: BTreeSet<PathBuf>,
    },
}

impl PathLimits {
    /// Resolves the prefixes of a credential; blocks, and may hang.
    ///
    /// A link that the credential itself may replace is not followed: otherwise it could choose its own prefix.
    pub(super) fn resolve(scopes: &Scopes) -> Self {
        let written = scopes.prefixes(FileAccess::Write);
        let mut changeable: Vec<PathBuf> = written.to_vec();
        changeable.extend(written.iter().map(|prefix| Prefix::resolve(prefix, &[]).path));
        if written.is_empty() && scopes.allow(Permission::FilesWrite) {
            changeable.push(PathBuf::from("/"));
        }
        let area = |access, permission| {
            let prefixes = scopes.prefixes(access);
            if !scopes.allow(permission) {
                return Area::Nowhere;
            }
            if prefixes.is_empty() {
                return Area::Everywhere;
            }
            let resolved = prefixes.iter().map(|prefix| Prefix::resolve(prefix, &changeable));
            let (mut prefixes, mut ancestors) = (Vec::new(), BTreeSet::new());
            for prefix in resolved {
                ancestors.extend(prefix.path.ancestors().skip(1).map(Path::to_owned));
                ancestors.extend(prefix.passed);
                prefixes.push(prefix.path);
            }
            Area::Beneath { prefixes, ancestors }
        };
        PathLimits {
            read: area(FileAccess::Read, Permission::FilesRead),
            write: area(FileAccess::Write, Permission::FilesWrite),
        }
    }

    /// Judges a real path: absolute, without links and `..`.
    pub(super) fn judge(&self, path: &Path, access: FileAccess) -> Judgement {
        match self.area(access) {
            Area::Nowhere => Judgement::Outside,
            Area::Everywhere => Judgement::Inside,
            Area::Beneath { prefixes, ancestors } => {
                if prefixes.iter().any(|prefix| path.starts_with(prefix)) {
                    Judgement::Inside
                } else if ancestors.contains(path) {
                    Judgement::Ancestor
                } else {
                    Judgement::Outside
                }
            }
        }
    }

    /// Returns whether a walk may look at what is at a real path.
    pub(super) fn may_pass(&self, path: &Path) -> bool {
        [FileAccess::Read, FileAccess::Write]
            .into_iter()
            .any(|access| self.judge(path, access) != Judgement::Outside)
    }

    /// Returns whether the entry at a real path may be removed or replaced by something of another kind.
    ///
    /// A prefix itself may not: a link in its place would lead elsewhere when the prefix is resolved next time.
    pub(super) fn may_replace(&self, path: &Path) -> bool {
        match &self.write {
            Area::Nowhere => false,
            Area::Everywhere => true,
            Area::Beneath { prefixes, .. } => is_beneath(path, prefixes),
        }
    }

    fn area(&self, access: FileAccess) -> &Area {
        match access {
            FileAccess::Read => &self.read,
            FileAccess::Write => &self.write,
        }
    }
}

fn is_beneath(path: &Path, prefixes: &[PathBuf]) -> bool {
    prefixes.iter().any(|prefix| path != prefix && path.starts_with(prefix))
}

/// A prefix of a scope with all links resolved.
struct Prefix {
    path: PathBuf,
    /// What the walk to it has passed.
    passed: Vec<PathBuf>,
}

impl Prefix {
    /// A path that does not exist, or cannot be inspected, is taken as written.
    fn resolve(written: &Path, changeable: &[PathBuf]) -> Self {
        let mut record = Record { changeable, passed: Vec::new() };
        let path = match Walk::new(written, Rules { parents: Links::Follow, last: Links::Follow }) {
            Ok(mut walk) => match walk.run(&mut record) {
                Ok(arrival) => arrival.real,
                Err(_) => walk.as_written(),
            },
            Err(_) => written.to_owned(),
        };
        record.passed.retain(|passed| !passed.starts_with(&path));
        Prefix { path, passed: record.passed }
    }
}

/// Records what a walk passes.
struct Record<'a> {
    /// Beneath these, the credential may replace links.
    changeable: &'a [PathBuf],
    passed: Vec<PathBuf>,
}

impl Judge for Record<'_> {
    fn may_pass(&mut self, path: &Path) -> bool {
        self.passed.push(path.to_owned());
        true
    }

    fn may_follow(&mut self, link: &Path) -> bool {
        !is_beneath(link, self.changeable)
    }
}
