//! The directories of remex itself: sockets, logs and state of every server and keeper of this user.
//!
//! They are hidden as directories, because their files come and go: the socket of a server that starts again is another
//! file, which nothing would cover in a jail that runs. For the same reason a missing one is created before a jail is made.

use std::{
    fs::{self, DirBuilder},
    io,
    os::unix::fs::{DirBuilderExt as _, MetadataExt as _},
    path::{Path, PathBuf},
};

use remex_base::trace::LOG_TARGET;

/// Returns those that are this user's or missing. What others have put there, no server of this user trusts.
pub(super) fn usable(paths: &[PathBuf]) -> impl Iterator<Item = &Path> {
    paths.iter().map(PathBuf::as_path).filter(|path| match find(path) {
        Found::Own | Found::Missing => true,
        Found::Unusable => false,
    })
}

/// Creates those that are missing, and returns all that are this user's.
///
/// One that cannot be created is left out: no server of this user could create it either.
pub(super) fn create(paths: &[PathBuf]) -> impl Iterator<Item = &Path> {
    paths.iter().map(PathBuf::as_path).filter(|path| match find(path) {
        Found::Own => true,
        Found::Missing => match DirBuilder::new().recursive(true).mode(0o700).create(path) {
            Ok(()) => true,
            Err(error) => {
                tracing::debug!(target: LOG_TARGET, path = %path.display(), %error, "cannot create a directory to hide it");
                false
            }
        },
        Found::Unusable => false,
    })
}

enum Found {
    Own,
    Missing,
    Unusable,
}

fn find(path: &Path) -> Found {
    match fs::symlink_metadata(path) {
        // A link of another user could lead anywhere, and everything there would be hidden.
        Ok(found) if found.uid() == rustix::process::geteuid().as_raw() => Found::Own,
        Err(error) if error.kind() == io::ErrorKind::NotFound => Found::Missing,
        Ok(_) | Err(_) => Found::Unusable,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;

    use super::*;

    #[test]
    fn a_missing_directory_is_created_for_its_user_alone() {
        let directory = tempfile::tempdir().unwrap();
        let (missing, odd) = (directory.path().join("state/remex"), directory.path().join("file"));
        fs::write(&odd, "").unwrap();
        let paths = [missing.clone(), odd.join("below")];
        assert_eq!(usable(&paths).collect::<Vec<_>>(), [&missing]);
        assert!(!missing.exists());
        assert_eq!(create(&paths).collect::<Vec<_>>(), [&missing]);
        assert_eq!(fs::metadata(&missing).unwrap().permissions().mode() & 0o777, 0o700);
    }

    #[test]
    fn what_belongs_to_another_user_hides_nothing() {
        // Root's, or that of nobody in a user namespace.
        let paths = [PathBuf::from("/proc/1")];
        let is_own = fs::metadata("/proc/1").unwrap().uid() == rustix::process::geteuid().as_raw();
        assert_eq!(usable(&paths).count(), usize::from(is_own));
    }
}
