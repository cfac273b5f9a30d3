//! Refuses files that decide who may do what, and that other users could change.

use std::{
    fmt, fs,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

/// Other users can change a file, or replace it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OthersCanWrite {
    file: PathBuf,
    /// What they can write to: the file, or a directory on its path.
    writable: PathBuf,
}

impl OthersCanWrite {
    /// Returns the file that is refused.
    pub fn file(&self) -> &Path {
        &self.file
    }

    /// Returns why it is refused, in words that follow its name.
    pub fn reason(&self) -> String {
        if self.writable == self.file {
            return "other users can write to it".to_owned();
        }
        format!("other users can write to the directory `{}` and replace it", self.writable.display())
    }

    /// Returns the command that mends it.
    pub fn hint(&self) -> String {
        format!("run `chmod go-w {}`", shell_word(&self.writable.display().to_string()))
    }
}

impl fmt::Display for OthersCanWrite {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "cannot use `{}`: {}", self.file.display(), self.reason())
    }
}

impl std::error::Error for OthersCanWrite {}

/// Checks that only its owner, and whoever owns the directories above it, can change or replace a file.
///
/// A link is judged by where it is and by where it leads. What is missing is not judged.
///
/// # Errors
///
/// [`OthersCanWrite`] with the command that mends it.
pub fn check_writers(path: &Path) -> Result<(), OthersCanWrite> {
    let Ok(metadata) = path.metadata() else { return Ok(()) };
    let refused =
        |writable: &Path| Err(OthersCanWrite { file: path.to_owned(), writable: writable.to_owned() });
    // Devices have no contents that somebody could write in advance.
    let has_contents = metadata.is_file() || metadata.file_type().is_fifo();
    if has_contents && metadata.mode() & 0o022 != 0 {
        return refused(path);
    }
    let places = [std::path::absolute(path), path.canonicalize()];
    let directories = places.iter().flatten().flat_map(|place| place.ancestors().skip(1));
    for directory in directories {
        if directory.metadata().is_ok_and(|metadata| can_replace_entries(&metadata)) {
            return refused(directory);
        }
    }
    Ok(())
}

/// Returns whether others than the owner of a directory can rename what others have in it.
fn can_replace_entries(directory: &fs::Metadata) -> bool {
    let (mode, is_sticky) = (directory.mode(), directory.mode() & 0o1000 != 0);
    // Many systems give each user a group of its own with the same number, and a umask that lets it write.
    let has_own_group = directory.gid() == directory.uid();
    let is_writable = mode & 0o002 != 0 || (mode & 0o020 != 0 && !has_own_group);
    is_writable && !is_sticky
}

/// Quotes a word for a shell if it needs that.
fn shell_word(text: &str) -> String {
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "/._-+:@%".contains(c);
    if !text.is_empty() && text.chars().all(is_plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', "'\\''"))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt as _, symlink};

    use super::*;

    fn set_mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_file_is_refused_if_others_can_change_it_or_put_another_in_its_place() {
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
}
