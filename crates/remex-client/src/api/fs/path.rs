//! Paths on the remote host.
//!
//! Slashes separate their components wherever the client runs: [`join`] and [`split`] replace the methods of [`Path`],
//! which follow the rules of the local platform.

use std::{
    ffi::{OsStr, OsString},
    path::{Component, Path, PathBuf},
};

use remex_proto::{
    HostPath,
    path::{PathError, from_bytes},
};
use sha2::{Digest as _, Sha256};

use super::DirectoryEntry;
use crate::{Error, base::error::usage, core::shared::is_absolute};

/// A path on the remote host: a string, a [`Path`], or a [`HostPath`].
///
/// A string is a path or a `file:` URI. Names that are not UTF-8 need a [`Path`] or a URI with escapes.
///
/// A relative path begins in the working directory of the server, where commands run unless
/// [`Command::cwd`](crate::Command::cwd) says otherwise, and `~` or `~/…` in the home of its user; calls ask the server
/// for both. [`Transfer`](super::Transfer) and [`CopyPath`](super::CopyPath) need absolute paths.
///
/// Slashes separate the components, also in a client on Windows; there, a [`Path`] with a backslash is refused.
///
/// ```
/// use std::path::Path;
/// use remex_client::fs::AsHostPath;
///
/// assert_eq!("file:///a%20b".as_host_path()?.native().unwrap(), Path::new("/a b"));
/// assert_eq!("notes/today".as_host_path()?.to_string(), "notes/today");
/// # Ok::<(), remex_client::Error>(())
/// ```
pub trait AsHostPath: sealed::Sealed {
    /// Returns the path.
    ///
    /// # Errors
    ///
    /// [`Error::Usage`] when it is empty or invalid.
    fn as_host_path(&self) -> Result<HostPath, Error>;
}

mod sealed {
    use std::path::{Path, PathBuf};

    use remex_proto::HostPath;

    pub trait Sealed {}

    impl Sealed for str {}
    impl Sealed for String {}
    impl Sealed for Path {}
    impl Sealed for PathBuf {}
    impl Sealed for HostPath {}
    impl<P: Sealed + ?Sized> Sealed for &P {}
}

impl AsHostPath for str {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        match HostPath::parse(self) {
            Err(PathError::Relative) if !self.starts_with("file:") => Path::new(self).as_host_path(),
            parsed => parsed.map_err(|error| {
                let hint = "give a path or a `file:` URI; write `./` before a relative path with a colon";
                usage(format!("cannot use `{self}` as a path: {error}"), hint)
            }),
        }
    }
}

impl AsHostPath for String {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        self.as_str().as_host_path()
    }
}

impl AsHostPath for Path {
    fn as_host_path(&self) -> Result<HostPath, Error> {
        let bytes = self.as_os_str().as_encoded_bytes();
        let refused = |reason: &str, hint: &str| {
            Err(usage(format!("cannot use `{}` as a path: it {reason}", self.display()), hint))
        };
        if bytes.contains(&0) {
            refused("contains a NUL byte", "remove it")
        } else if cfg!(windows) && (self.to_str().is_none() || bytes.contains(&b'\\')) {
            // `Path::join` has put it there.
            refused("is a path of Windows", "write it as a string with slashes")
        } else if bytes.is_empty() {
            refused("is empty", "give a path, or `.` for the working directory")
        } else {
            Ok(HostPath::from(self.to_owned()))
        }
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

/// Checks that a path is absolute, where no server can resolve a relative one.
pub(crate) fn absolute(path: HostPath) -> Result<HostPath, Error> {
    if is_absolute(&path) {
        return Ok(path);
    }
    Err(usage(format!("cannot use `{path}` as a path: it is relative"), "give an absolute path"))
}

/// Returns the remote path of an entry of a remote directory; an absolute `name` replaces all.
pub(super) fn join(directory: &Path, name: impl AsRef<OsStr>) -> PathBuf {
    let (directory, name) = (directory.as_os_str(), name.as_ref());
    let mut joined = OsString::new();
    if !name.as_encoded_bytes().starts_with(b"/") {
        joined.push(directory);
        if !directory.as_encoded_bytes().ends_with(b"/") {
            joined.push("/");
        }
    }
    joined.push(name);
    joined.into()
}

/// Splits a remote path into its directory and its name; `None` if it has no name, as `/` and `/..`.
pub(super) fn split(path: &Path) -> Option<(&Path, &OsStr)> {
    let mut bytes = path.as_os_str().as_encoded_bytes();
    while let Some(shorter) = bytes.strip_suffix(b"/").or_else(|| bytes.strip_suffix(b"/.")) {
        bytes = shorter;
    }
    let at = bytes.iter().rposition(|byte| *byte == b'/')?;
    let (directory, name) = (&bytes[..at.max(1)], &bytes[at + 1..]);
    let is_name = !matches!(name, b"" | b"..");
    is_name.then(|| Some((from_bytes(directory)?, from_bytes(name)?.as_os_str())))?
}

/// Returns the name of a temporary file beside a file on the remote host.
pub(super) fn sibling(path: &Path, random: &str) -> Option<PathBuf> {
    let (directory, name) = split(path)?;
    Some(join(directory, hidden(name, format!(".remex-{random}").as_bytes())))
}

/// Returns the name of a temporary file beside a local file.
#[cfg(feature = "trees")]
pub(super) fn local_sibling(path: &Path, random: &str) -> Option<PathBuf> {
    Some(path.with_file_name(hidden(path.file_name()?, format!(".remex-{random}").as_bytes())))
}

/// Returns the partial file of `path`: always the same name, so that another attempt can resume it.
pub(super) fn part(path: &Path) -> Option<PathBuf> {
    let (directory, name) = split(path)?;
    let mut ending = Vec::new();
    if name.len() > KEPT {
        // Two long names may have the same prefix.
        let digest = Sha256::digest(name.as_encoded_bytes());
        ending.extend(digest[..8].iter().flat_map(|byte| format!("{byte:02x}").into_bytes()));
    }
    ending.extend_from_slice(b".remex-part");
    Some(join(directory, hidden(name, &ending)))
}

/// How many bytes of a name are kept: with the dots, the digits and the suffix, a name has at most 255 bytes.
const KEPT: usize = 200;

/// Returns the name with a dot before it, shortened if necessary, and an ending of ASCII letters.
pub(super) fn hidden(name: &OsStr, ending: &[u8]) -> OsString {
    let name = name.as_encoded_bytes();
    let mut kept = name.len().min(KEPT);
    loop {
        let hidden = [b".", &name[..kept], ending].concat();
        // Where names are Unicode, it must not end within a character.
        match from_bytes(&hidden) {
            Some(hidden) => return hidden.as_os_str().to_owned(),
            None => kept = kept.saturating_sub(1),
        }
    }
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
            split(path).map(|(_, name)| name).filter(|name| join(directory, name) == path)
        }
        None => Some(OsStr::new(&entry.file_name)),
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

/// Returns whether a name is a single path component, both on the remote host and on this one.
pub(super) fn is_plain_name(name: &OsStr) -> bool {
    let mut components = Path::new(name).components();
    let first = components.next();
    // `components` ignores a trailing slash, so the text is compared.
    matches!(first, Some(Component::Normal(only)) if only == name)
        && components.next().is_none()
        && !name.as_encoded_bytes().contains(&b'/')
        && !name.as_encoded_bytes().contains(&0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn relative_paths_are_accepted_and_empty_ones_are_not() {
        for relative in ["a/b", ".", "~", "~/a"] {
            assert_eq!(relative.as_host_path().unwrap(), Path::new(relative).as_host_path().unwrap());
            assert_eq!(relative.as_host_path().unwrap().to_string(), relative);
            let error = absolute(relative.as_host_path().unwrap()).unwrap_err();
            assert_eq!(error.hint(), Some("give an absolute path"), "{error}");
        }
        for invalid in ["", "file:a", "a:b", "a\0b"] {
            assert!(matches!(invalid.as_host_path(), Err(Error::Usage { .. })), "{invalid}");
        }
        assert_eq!("file:///a%20b".as_host_path().unwrap().native().unwrap(), Path::new("/a b"));
    }

    #[test]
    fn only_a_single_component_is_a_plain_name() {
        for name in ["a", "a\nb", "...", " ", "-"] {
            assert!(is_plain_name(OsStr::new(name)), "{name:?}");
        }
        for name in ["", ".", "..", "/", "a/", "/a", "a/b", "../a", "a/..", "./a", "a\0"] {
            assert!(!is_plain_name(OsStr::new(name)), "{name:?}");
        }
    }

    #[test]
    fn remote_paths_are_joined_and_split_at_slashes() {
        for (directory, name, joined) in [
            ("/", "a", "/a"),
            ("/a", "b", "/a/b"),
            ("/a/", "b", "/a/b"),
            ("/a", "/b", "/b"),
            ("/a", "b\\c", "/a/b\\c"),
        ] {
            assert_eq!(join(Path::new(directory), name).as_os_str(), joined);
        }
        for (path, directory, name) in [
            ("/a", "/", "a"),
            ("/a/b", "/a", "b"),
            ("/a/b/", "/a", "b"),
            ("/a/b/./", "/a", "b"),
            ("/a/b\\c", "/a", "b\\c"),
        ] {
            assert_eq!(split(Path::new(path)), Some((Path::new(directory), OsStr::new(name))), "{path}");
        }
        for path in ["/", "/..", "/a/..", "", "/."] {
            assert_eq!(split(Path::new(path)), None, "{path}");
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
