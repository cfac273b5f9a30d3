//! Resolves the paths that no confined process may see.

use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::error::JailError;

/// Returns the paths without links. A path that does not exist need not be hidden.
///
/// A path that cannot be resolved for another reason might exist, and so must not be ignored.
pub(super) fn resolve(hidden: &[PathBuf]) -> Result<BTreeSet<PathBuf>, JailError> {
    let resolve = |path: &PathBuf| match fs::canonicalize(path) {
        Ok(path) => Some(Ok(path)),
        Err(error) if error.kind() == io::ErrorKind::NotFound => None,
        Err(error) => Some(Err(unresolved(path, &error))),
    };
    hidden.iter().filter_map(resolve).collect()
}

fn unresolved(path: &Path, error: &io::Error) -> JailError {
    JailError::Hidden { path: path.to_owned(), errno: error.raw_os_error().unwrap_or(libc::EIO) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_missing_paths_are_not_hidden() {
        let directory = tempfile::tempdir().unwrap();
        let base = fs::canonicalize(directory.path()).unwrap();
        fs::write(base.join("file"), "").unwrap();
        std::os::unix::fs::symlink(base.join("file"), base.join("link")).unwrap();
        std::os::unix::fs::symlink("loop", base.join("loop")).unwrap();
        let found = resolve(&[base.join("missing"), base.join("link")]);
        assert_eq!(found, Ok(BTreeSet::from([base.join("file")])));
        for (name, errno) in [("loop", libc::ELOOP), ("file/below", libc::ENOTDIR)] {
            let path = base.join(name);
            assert_eq!(resolve(std::slice::from_ref(&path)), Err(JailError::Hidden { path, errno }));
        }
    }
}
