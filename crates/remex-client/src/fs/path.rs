//! Paths on the remote host.

use std::{
    ffi::{OsStr, OsString},
    os::unix::ffi::OsStrExt as _,
    path::{Component, Path, PathBuf},
};

use remex_proto::HostPath;
use sha2::{Digest as _, Sha256};

use super::DirectoryEntry;
use crate::{Error, error::usage};

/// A path on the remote host: a string, a [`Path`], or a [`HostPath`].
///
/// A string is an absolute path or a `file:` URI. Names that are not UTF-8 need a [`Path`] or a URI with escapes.
///
/// ```
/// use std::path::Path;
/// use remex_client::fs::AsHostPath;
///
/// assert_eq!("file:///a%20b".as_host_path()?.native().unwrap(), Path::new("/a b"));
/// assert!(Path::new("relative").as_host_path().is_err());
/// # Ok::<(), remex_client::Error>(())
/// ```
pub trait AsHostPath {
    /// Returns the path.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when it is relative or invalid.
    fn as_host_path(&self) -> Result<HostPath, Error>;
}

impl AsHostPath for str {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        HostPath::parse(self).map_err(|error| {
            usage(format!("cannot use `{self}` as a path: {error}"), "give an absolute path or a `file:` URI")
        })
    }
}

impl AsHostPath for String {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        self.as_str().as_host_path()
    }
}

impl AsHostPath for Path {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        let has_nul = self.as_os_str().as_encoded_bytes().contains(&0);
        if !self.has_root() || has_nul {
            let reason = if has_nul { "contains a NUL byte" } else { "is relative" };
            let message = format!("cannot use `{}` as a path: it {reason}", self.display());
            return Err(usage(message, "give an absolute path"));
        }
        Ok(HostPath::from(self.to_owned()))
    }
}

impl AsHostPath for PathBuf {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        self.as_path().as_host_path()
    }
}

impl AsHostPath for HostPath {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        Ok(self.clone())
    }
}

impl<P: AsHostPath + ?Sized> AsHostPath for &P {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        (**self).as_host_path()
    }
}

/// Returns the path in the native form of this host.
pub(super) fn native(path: &HostPath) -> Result<&Path, Error> {
    path.native()
        .map_err(|error| usage(format!("cannot use `{path}`: {error}"), "trees and uploads need Unix paths"))
}

/// Returns the target of a link as a path.
pub(super) fn from_bytes(path: &[u8]) -> &Path {
    Path::new::<OsStr>(std::os::unix::ffi::OsStrExt::from_bytes(path))
}

/// Returns the name of a temporary file beside `path`.
pub(super) fn sibling(path: &Path, random: &str) -> Option<PathBuf> {
    /// With the dots, the word and the random part, a name has at most 255 bytes.
    const KEPT: usize = 200;
    let name = path.file_name()?.as_encoded_bytes();
    let mut sibling = b".".to_vec();
    sibling.extend_from_slice(&name[..name.len().min(KEPT)]);
    sibling.extend_from_slice(b".remex-");
    sibling.extend_from_slice(random.as_bytes());
    Some(path.with_file_name(std::os::unix::ffi::OsStrExt::from_bytes(&sibling[..]) as &OsStr))
}

/// Returns the partial file of `path`: always the same name, so that another attempt can resume it.
pub(super) fn part(path: &Path) -> Option<PathBuf> {
    /// With the dots, the digits and the suffix, a name has at most 255 bytes.
    const KEPT: usize = 200;
    let name = path.file_name()?.as_encoded_bytes();
    let mut part = b".".to_vec();
    part.extend_from_slice(&name[..name.len().min(KEPT)]);
    if name.len() > KEPT {
        // Two long names may have the same prefix.
        let digest = Sha256::digest(name);
        part.extend(digest[..8].iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
    }
    part.extend_from_slice(b".remex-part");
    Some(path.with_file_name(OsStr::from_bytes(&part)))
}

/// Returns the exact name of a directory entry; rejects names that would lead outside of the directory when joined.
///
/// # Errors
///
/// [`Error::Protocol`] for a name that is not a single path component, such as `..` or `a/b`.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::entry_name;
///
/// fs.write(directory.path().join("a"), "").await?;
/// let entries = fs.read_dir(directory.path()).await?;
/// assert_eq!(entry_name(directory.path(), &entries[0])?, "a");
/// # Ok(()) }
/// ```
pub fn entry_name(directory: &Path, entry: &DirectoryEntry) -> Result<OsString, Error> {
    let name = match &entry.path {
        Some(path) => {
            let path = native(path)?;
            path.file_name().filter(|name| directory.join(name) == path)
        }
        None => Some(OsStr::from_bytes(entry.file_name.as_bytes())),
    };
    match name {
        Some(name) if is_plain_name(name) => Ok(name.to_owned()),
        _ => Err(Error::Protocol {
            what: format!(
                "the server listed the invalid name `{}` in `{}`",
                entry.path.as_ref().map_or_else(|| entry.file_name.clone(), ToString::to_string),
                directory.display()
            ),
        }),
    }
}

/// Returns whether a name is a single path component.
pub(super) fn is_plain_name(name: &OsStr) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    // `components` ignores a trailing slash, so the text is compared.
    matches!(first, Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_refused_with_the_remedy() {
        for error in [
            "a/b".as_host_path().unwrap_err(),
            Path::new("a/b").as_host_path().unwrap_err(),
            "".as_host_path().unwrap_err(),
        ] {
            assert!(
                matches!(&error, Error::Usage { hint, .. } if hint.starts_with("give an absolute path")),
                "{error}"
            );
        }
        assert_eq!("file:///a%20b".as_host_path().unwrap().native().unwrap(), Path::new("/a b"));
    }

    #[test]
    fn only_one_step_down_is_a_plain_name() {
        for name in ["a", "a\nb", "...", " ", "-"] {
            assert!(is_plain_name(OsStr::new(name)), "{name:?}");
        }
        for name in ["", ".", "..", "/", "a/", "/a", "a/b", "../a", "a/..", "./a", "a\0"] {
            assert!(!is_plain_name(OsStr::new(name)), "{name:?}");
        }
    }

    #[test]
    fn a_sibling_of_the_longest_name_is_a_name() {
        let sibling = sibling(&Path::new("/d").join("x".repeat(255)), "0123456789abcdef").unwrap();
        assert_eq!(sibling.parent(), Some(Path::new("/d")));
        assert!(sibling.file_name().unwrap().len() <= 255);
    }

    #[test]
    fn the_parts_of_long_names_that_begin_alike_differ() {
        let part_of = |last| part(Path::new(&format!("/d/{}{last}", "x".repeat(254)))).unwrap();
        assert_ne!(part_of('a'), part_of('b'));
        assert!(part_of('a').file_name().unwrap().len() <= 255);
        assert_eq!(part(Path::new("/d/a b")).unwrap(), Path::new("/d/.a b.remex-part"));
    }
}
