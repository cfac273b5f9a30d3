//! Refuses security-relevant files that other users could change.

use std::{
    fmt, fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use crate::quote::shell_word;

/// The error for a file that other users can change or replace.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OthersCanWrite {
    file: PathBuf,
    /// The path that they can write to: the file, or a directory on its path.
    writable: PathBuf,
    /// The other user that it belongs to, if that is why.
    owner: Option<u32>,
}

impl OthersCanWrite {
    /// Returns the file that is refused.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns why it is refused, in words that follow its name.
    pub fn reason(&self) -> String {
        let directory = self.writable.display();
        match (self.writable == self.file, self.owner) {
            (true, None) => "other users can write to it".to_owned(),
            (true, Some(uid)) => format!("it belongs to user {uid}"),
            (false, None) => format!("other users can write to the directory `{directory}` and replace it"),
            (false, Some(uid)) => {
                format!("the directory `{directory}` belongs to user {uid}, who can replace it")
            }
        }
    }

    /// Returns the command that fixes it.
    pub fn hint(&self) -> String {
        let shown = self.writable.display().to_string();
        let path = shell_word(&shown);
        match self.owner {
            None => format!("run `chmod go-w {path}`"),
            Some(_) => format!("run `chown {} {path}`, or put the file elsewhere", own_uid()),
        }
    }
}

impl fmt::Display for OthersCanWrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot use `{}`: {}", self.file.display(), self.reason())
    }
}

impl std::error::Error for OthersCanWrite {}

/// Checks that only this user and root can change or replace a file: the file and the directories above it belong to
/// them.
///
/// A link is judged by where it is and by where it leads. What is missing is not judged.
///
/// # Errors
///
/// [`OthersCanWrite`] with the command that fixes it.
pub fn check_writers(path: &Path) -> Result<(), OthersCanWrite> {
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    let refused = |writable: &Path, owner| {
        Err(OthersCanWrite { file: path.to_owned(), writable: writable.to_owned(), owner })
    };
    // Devices have no contents that another user could write in advance.
    if metadata.is_file() || metadata.file_type().is_fifo() {
        if is_foreign(metadata.uid()) {
            return refused(path, Some(metadata.uid()));
        }
        if metadata.mode() & 0o022 != 0 {
            return refused(path, None);
        }
    }
    let places = [std::path::absolute(path), path.canonicalize()];
    let directories = places.iter().flatten().flat_map(|place| place.ancestors().skip(1));
    for directory in directories {
        let Ok(metadata) = directory.metadata() else { continue };
        if is_foreign(metadata.uid()) {
            return refused(directory, Some(metadata.uid()));
        }
        if can_replace_entries(&metadata) {
            return refused(directory, None);
        }
    }
    Ok(())
}

/// Returns whether the kernel shows this id for every user that has none in this user namespace.
pub fn is_unmapped(uid: u32) -> bool {
    let overflow = fs::read_to_string("/proc/sys/kernel/overflowuid").ok();
    if overflow.and_then(|text| text.trim().parse().ok()).unwrap_or(65_534) != uid {
        return false;
    }
    let map = fs::read_to_string("/proc/self/uid_map").unwrap_or_default();
    map.split_ascii_whitespace().collect::<Vec<_>>() != ["0", "0", "4294967295"]
}

/// Returns whether a file belongs to a user other than this one and root.
fn is_foreign(owner: u32) -> bool {
    // Where root is not mapped, as in an unprivileged container, files of root on shared volumes have the overflow id.
    owner != own_uid() && owner != 0 && !is_unmapped(owner)
}

fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Returns whether users other than the owner of a directory can rename files of others in it.
fn can_replace_entries(directory: &fs::Metadata) -> bool {
    let (mode, is_sticky) = (directory.mode(), directory.mode() & 0o1000 != 0);
    // Many systems give each user a group of its own with the same number, and a umask that lets it write.
    let has_own_group = directory.gid() == directory.uid();
    let is_writable = mode & 0o002 != 0 || (mode & 0o020 != 0 && !has_own_group);
    is_writable && !is_sticky
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, chown, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_refused_if_others_can_change_or_replace_it() {
        let root = tempfile::tempdir().unwrap();
        let [outer, inner] = ["outer", "outer/in ner"].map(|name| root.path().join(name));
        fs::create_dir_all(&inner).unwrap();
        let file = inner.join("file");
        fs::write(&file, "").unwrap();
        let link = root.path().join("link");
        symlink(&file, &link).unwrap();
        for (mode, is_accepted) in
            [(0o600, true), (0o644, true), (0o666, false), (0o660, false), (0o602, false)]
        {
            set_mode(&file, mode);
            assert_eq!(check_writers(&file).is_ok(), is_accepted, "{mode:o}");
            assert_eq!(check_writers(&link).is_ok(), is_accepted, "{mode:o}");
        }
        set_mode(&file, 0o600);
        for directory in [&outer, &inner] {
            for (mode, is_accepted) in [(0o777, false), (0o1777, true), (0o702, false), (0o755, true)] {
                set_mode(directory, mode);
                for path in [&file, &link] {
                    let checked = check_writers(path);
                    assert_eq!(checked.is_ok(), is_accepted, "{mode:o}: {checked:?}");
                }
            }
        }
        set_mode(&inner, 0o777);
        let refused = check_writers(&file).unwrap_err();
        assert_eq!(refused.hint(), format!("run `chmod go-w '{}'`", inner.display()));
        assert!(refused.reason().contains("replace it"), "{refused}");
        assert_eq!(check_writers(&inner.join("missing")), Ok(()), "whoever opens it says so");
    }

    #[test]
    fn a_file_that_belongs_to_another_user_is_refused() {
        // Only root can give files away.
        if own_uid() != 0 {
            assert!(is_foreign(own_uid() + 1) && !is_foreign(own_uid()) && !is_foreign(0));
            return;
        }
        let root = tempfile::tempdir().unwrap();
        let (directory, file) = (root.path().join("directory"), root.path().join("directory/file"));
        fs::create_dir(&directory).unwrap();
        fs::write(&file, "").unwrap();
        set_mode(&file, 0o600);
        assert_eq!(check_writers(&file), Ok(()));
        for (given_away, hint) in [(&file, "directory/file`"), (&directory, "directory`")] {
            chown(given_away, Some(4711), None).unwrap();
            let refused = check_writers(&file).unwrap_err();
            assert!(refused.reason().contains("belongs to user 4711"), "{refused}");
            assert!(
                refused.hint().contains("chown 0 ") && refused.hint().contains(hint),
                "{}",
                refused.hint()
            );
            chown(given_away, Some(0), None).unwrap();
        }
    }
}
