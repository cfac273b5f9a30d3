//! The file system as far as policies need it: what is at a path, and where links lead.
//!
//! [`Host`] is implemented by the file system of this machine and by trees in memory.

use std::{
    collections::VecDeque,
    ffi::{OsStr, OsString},
    fs,
    io::{self, Read as _},
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

use crate::base::error::Reason;

/// As many links as Linux follows.
const MAX_LINKS: usize = 40;

/// What is at a path.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// Nothing.
    Missing,
    /// A file, or anything else that is neither a directory nor a link.
    File,
    /// A directory.
    Directory,
    /// A symbolic link with its target as written.
    Link(PathBuf),
}

/// What a rule found at its path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
pub enum Kind {
    /// Nothing; it may be created later in the directory above, which exists.
    Missing = 1,
    /// A symbolic link, and not what it leads to.
    Link,
    /// A file, or anything else that is neither a directory nor a link.
    File,
    /// A directory.
    Directory,
    /// Nothing, and no directory above it either.
    Unreachable = 0,
}

impl Kind {
    /// Returns whether nothing is there.
    pub fn is_missing(self) -> bool {
        matches!(self, Self::Missing | Self::Unreachable)
    }
}

/// A view of the file system.
pub trait Host {
    /// Returns what is at an absolute path, without following a link in its last component.
    ///
    /// The directories above contain no links.
    fn node(&self, path: &Path) -> io::Result<Node>;

    /// Returns whether a link belongs to the system, so that no program of the user can have made it.
    fn is_system_link(&self, link: &Path) -> bool;

    /// Returns the first bytes of a small file, or `None` if it cannot be read.
    fn head(&self, path: &Path) -> Option<Vec<u8>>;
}

/// Directories in which the system has links and users have no workspaces.
const SYSTEM_DIRECTORIES: [&str; 5] = ["/", "/home", "/run", "/usr", "/var"];

/// Returns whether this process runs as root.
fn is_root() -> bool {
    // The owner of its own directory there is the user it runs as.
    fs::metadata("/proc/self").map_or(true, |own| own.uid() == 0)
}

/// As much as is read of a file that names a directory.
const MAX_HEAD_LEN: u64 = 8 * 1024;

/// The file system of this machine; blocks as its calls do.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemHost;

impl Host for SystemHost {
    fn node(&self, path: &Path) -> io::Result<Node> {
        match fs::symlink_metadata(path) {
            Ok(found) if found.is_symlink() => fs::read_link(path).map(Node::Link),
            Ok(found) if found.is_dir() => Ok(Node::Directory),
            Ok(_) => Ok(Node::File),
            Err(error) => match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => Ok(Node::Missing),
                _ => Err(error),
            },
        }
    }

    fn is_system_link(&self, link: &Path) -> bool {
        let Some(parent) = link.parent() else { return false };
        let (Ok(found), Ok(above)) = (fs::symlink_metadata(link), fs::symlink_metadata(parent)) else {
            return false;
        };
        let is_of_root = found.uid() == 0 && above.uid() == 0 && above.mode() & 0o022 == 0;
        // If this process is root, a confined program of root may have made the link; trust only system directories.
        is_of_root
            && (!is_root() || SYSTEM_DIRECTORIES.iter().any(|directory| parent == Path::new(directory)))
    }

    fn head(&self, path: &Path) -> Option<Vec<u8>> {
        // Opening a FIFO would block.
        fs::symlink_metadata(path).ok().filter(fs::Metadata::is_file)?;
        let mut head = Vec::new();
        fs::File::open(path).ok()?.take(MAX_HEAD_LEN).read_to_end(&mut head).ok()?;
        Some(head)
    }
}

/// Where a path leads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Located {
    /// Without links, `.` and `..`; what does not exist is appended as written.
    pub(crate) path: PathBuf,
    /// What is there; never a link.
    pub(crate) kind: Kind,
    /// The links on the way: where each is, and its target as written.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
}

/// Follows an absolute path to where it leads, as the kernel would.
pub(crate) fn locate(host: &impl Host, path: &Path) -> Result<Located, Reason> {
    let mut located = Located { path: PathBuf::from("/"), kind: Kind::Directory, links: Vec::new() };
    let mut rest: VecDeque<OsString> = names(path).map(OsStr::to_owned).collect();
    while let Some(name) = rest.pop_front() {
        if name == ".." {
            if located.kind != Kind::Directory {
                return Err(Reason::unresolved(path, "`..` follows something that is not a directory"));
            }
            located.path.pop();
            continue;
        }
        let parent = located.kind;
        located.path.push(name);
        located.kind = match parent {
            Kind::Directory => {
                match host.node(&located.path).map_err(|error| Reason::unresolved(&located.path, &error))? {
                    Node::Missing => Kind::Missing,
                    Node::File => Kind::File,
                    Node::Directory => Kind::Directory,
                    Node::Link(target) => {
                        follow(&mut located, target, &mut rest, path)?;
                        Kind::Directory
                    }
                }
            }
            _ => Kind::Unreachable,
        };
    }
    Ok(located)
}

/// Continues at the target of the link at the end of `located`.
fn follow(
    located: &mut Located,
    target: PathBuf,
    rest: &mut VecDeque<OsString>,
    path: &Path,
) -> Result<(), Reason> {
    if located.links.len() == MAX_LINKS {
        return Err(Reason::unresolved(path, "too many symbolic links"));
    }
    let link = located.path.clone();
    if target.is_absolute() {
        located.path = PathBuf::from("/");
    } else {
        located.path.pop();
    }
    let target_names: Vec<_> = names(&target).collect();
    for name in target_names.into_iter().rev() {
        rest.push_front(name.to_owned());
    }
    located.links.push((link, target));
    Ok(())
}

/// Returns the names in a path, `..` among them.
fn names(path: &Path) -> impl Iterator<Item = &OsStr> {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name),
        Component::ParentDir => Some(OsStr::new("..")),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Tree;

    fn located(tree: &Tree, path: &str) -> (PathBuf, Kind, usize) {
        let located = locate(tree, Path::new(path)).unwrap();
        (located.path, located.kind, located.links.len())
    }

    #[test]
    fn a_path_resolves_as_in_the_kernel() {
        let tree = Tree::new(["/a/b/", "/a/file", "/up -> a/b", "/abs -> /a", "/a/b/chain -> ../../up"]);
        for (path, leads_to, kind, links) in [
            ("/", "/", Kind::Directory, 0),
            ("/../..//a/./b/", "/a/b", Kind::Directory, 0),
            ("/up/..", "/a", Kind::Directory, 1),
            ("/abs/b/chain", "/a/b", Kind::Directory, 3),
            ("/abs/file", "/a/file", Kind::File, 1),
            ("/abs/file/x", "/a/file/x", Kind::Unreachable, 1),
            ("/up/new", "/a/b/new", Kind::Missing, 1),
            ("/up/new/deep", "/a/b/new/deep", Kind::Unreachable, 1),
        ] {
            assert_eq!(located(&tree, path), (leads_to.into(), kind, links), "{path}");
        }
    }

    #[test]
    fn a_path_that_the_kernel_would_not_follow_is_an_error() {
        let tree = Tree::new(["/loop -> loop", "/ping -> pong", "/pong -> ping", "/file"]);
        for path in ["/loop", "/ping/x", "/missing/..", "/file/../x"] {
            assert!(matches!(locate(&tree, Path::new(path)), Err(Reason::Unresolved { .. })), "{path}");
        }
    }

    #[test]
    fn a_link_that_a_program_may_have_made_is_not_a_system_link() {
        let directory = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink("/etc", directory.path().join("link")).unwrap();
        assert!(!SystemHost.is_system_link(&directory.path().join("link")));
        assert!(!SystemHost.is_system_link(Path::new("/missing")));
        // Present on nearly every host.
        let is_link = |path: &&&str| fs::symlink_metadata(path).is_ok_and(|found| found.is_symlink());
        for link in ["/bin", "/lib", "/var/run"].iter().filter(is_link) {
            assert!(SystemHost.is_system_link(Path::new(link)), "{link}");
        }
    }

    #[test]
    fn nodes_are_read_from_the_file_system() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        fs::write(at("file"), "").unwrap();
        std::os::unix::fs::symlink("file", at("link")).unwrap();
        assert_eq!(SystemHost.node(directory.path()).unwrap(), Node::Directory);
        assert_eq!(SystemHost.node(&at("file")).unwrap(), Node::File);
        assert_eq!(SystemHost.node(&at("link")).unwrap(), Node::Link("file".into()));
        assert_eq!(SystemHost.node(&at("none")).unwrap(), Node::Missing);
        assert_eq!(SystemHost.node(&at("file/x")).unwrap(), Node::Missing);
        assert!(SystemHost.node(&at(&"x".repeat(300))).is_err());
    }
}
