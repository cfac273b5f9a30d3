//! Creating directories and listing them, at once or page by page.

use std::{
    ffi::{OsStr, OsString},
    fmt::Write as _,
    io,
    os::{fd::OwnedFd, unix::ffi::OsStringExt as _},
    path::{Component, Path},
};

use remex_access::scope::FileAccess;
use remex_proto::{ErrorKind, HostPath, RpcError, call::Empty, fs as wire};
use remex_sandbox::Action;
use rustix::{
    fs::{CWD, FileType, Mode, OFlags, mkdirat, openat},
    io::Errno,
};

use super::{
    AnswerSize, FileWork, LISTING, PathAccess, PathGuard, create_error, descent,
    guard::{Located, TreeGuard},
    io_error, metadata,
    names::{self, Smallest},
    native,
    open::Links,
};

/// The most entries in one answer.
const MAX_ENTRIES: usize = 50_000;

/// A page ends early at this size, in bytes.
const MAX_PAGE: usize = 4 * 1024 * 1024;

/// The size of an entry besides its name, path and metadata.
const ENTRY: usize = 64;

/// The size of an entry's metadata besides the target of a link.
const DETAILS: usize = 192;

impl FileWork for wire::CreateDirectory {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::creates(&self.path)
    }

    fn run(&self, guard: &PathGuard, _wanted: &super::CancelCheck) -> Result<Empty, RpcError> {
        let (path, links) = (native(&self.path)?, Links::from(self.follow_symlinks));
        if self.recursive.unwrap_or(true) {
            create_all(guard, path, links)?;
        } else {
            let at = guard.entry(path, links, FileAccess::Write)?;
            at.check_creation()?;
            create(&at).map_err(|error| create_error(&error.into(), path))?;
        }
        Ok(Empty {})
    }
}

fn create(at: &Located<'_>) -> Result<(), Errno> {
    mkdirat(at.directory(), at.name(), Mode::from_raw_mode(0o777))
}

/// Creates a directory and its missing parents.
pub(super) fn create_all(guard: &PathGuard, path: &Path, links: Links) -> Result<(), RpcError> {
    if guard.is_limited() {
        return create_all_judged(guard, path, links);
    }
    let created = match links {
        Links::Follow => std::fs::create_dir_all(path),
        Links::Refuse => create_all_without_links(path),
    };
    created.map_err(|error| io_error(&error, path))
}

/// Creates a directory and its missing parents, each only if the guard allows it.
fn create_all_judged(guard: &PathGuard, path: &Path, links: Links) -> Result<(), RpcError> {
    let mut missing = vec![path];
    // Each component fails at most once and succeeds at most once, unless others remove directories meanwhile.
    let mut attempts = 2 * path.components().count() + 1;
    while let Some(&path) = missing.last() {
        attempts = attempts.checked_sub(1).ok_or_else(|| io_error(&Errno::NOENT.into(), path))?;
        match (create_judged(guard, path, links), path.parent()) {
            (Ok(()), _) => drop(missing.pop()),
            (Err(error), Some(parent)) if error.kind == ErrorKind::NotFound => missing.push(parent),
            (Err(error), _) => return Err(error),
        }
    }
    Ok(())
}

/// Creates a directory, unless it exists.
fn create_judged(guard: &PathGuard, path: &Path, links: Links) -> Result<(), RpcError> {
    let at = guard.entry(path, links, FileAccess::Write);
    let created = at.and_then(|at| at.check_creation().map(|()| create(&at)));
    let error = match created {
        Ok(Ok(())) => return Ok(()),
        Ok(Err(Errno::EXIST)) => io_error(&Errno::EXIST.into(), path),
        Ok(Err(error)) => return Err(io_error(&error.into(), path)),
        // Perhaps a link outside that leads inside.
        Err(error) if error.kind == ErrorKind::PermissionDenied => error,
        Err(error) => return Err(error),
    };
    // To leave an existing directory as it is, it suffices to know that it exists.
    let found = guard
        .target(path, links, FileAccess::Write)
        .or_else(|_| guard.target(path, links, FileAccess::Read))?;
    match found.kind() {
        Ok(FileType::Directory) => Ok(()),
        _ => Err(error),
    }
}

/// Creates a directory and its missing parents, without following links.
fn create_all_without_links(path: &Path) -> io::Result<()> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let mut directory = openat(CWD, "/", flags, Mode::empty())?;
    for component in path.components() {
        if !matches!(component, Component::Normal(_) | Component::ParentDir) {
            continue;
        }
        let name = component.as_os_str();
        directory = match openat(&directory, name, flags, Mode::empty()) {
            Err(Errno::NOENT) => {
                match mkdirat(&directory, name, Mode::from_raw_mode(0o777)) {
                    // Another process may have created it in the meantime.
                    Ok(()) | Err(Errno::EXIST) => openat(&directory, name, flags, Mode::empty())?,
                    Err(error) => return Err(error.into()),
                }
            }
            opened => opened?,
        };
    }
    Ok(())
}

impl FileWork for wire::ReadDirectory {
    const ANSWER: AnswerSize = AnswerSize::Large(LISTING);

    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::looks(&self.path)
    }

    fn run(
        &self,
        guard: &PathGuard,
        _wanted: &super::CancelCheck,
    ) -> Result<wire::DirectoryListing, RpcError> {
        let path = native(&self.path)?;
        let page = Page::parse(self)?;
        let failed = |error: io::Error| io_error(&error, path);
        let at = guard.target(path, Links::Follow, FileAccess::Read)?;
        let opened = descent::open(at.directory(), at.name(), at.links_from_here()).map_err(failed)?;
        let directory = OpenDirectory { tree: TreeGuard::new(&at), at, opened, guard };
        match page {
            Some(page) => page.read(&directory).map_err(failed),
            None => read_all(&directory).map_err(failed)?,
        }
    }
}

/// A directory that is being listed.
struct OpenDirectory<'a> {
    at: Located<'a>,
    opened: OwnedFd,
    guard: &'a PathGuard,
    tree: TreeGuard,
}

impl OpenDirectory<'_> {
    /// Returns the kind of what a link leads to, unless it is broken.
    fn kind_of_target(&self, name: &OsStr) -> Option<FileType> {
        self.guard.kind_of_target(&self.at, &self.opened, name).map(|(kind, _)| kind)
    }
}

/// Lists a whole directory, unless it has too many entries.
fn read_all(directory: &OpenDirectory<'_>) -> io::Result<Result<wire::DirectoryListing, RpcError>> {
    let mut entries = Vec::new();
    let mut count = 0_usize;
    names::for_each(&directory.opened, |name, kind| {
        let kind = match kind {
            FileType::Symlink => match directory.kind_of_target(names::os_str(name)) {
                Some(kind) => kind,
                // Broken links are treated as absent.
                None => return Ok(()),
            },
            kind => kind,
        };
        count += 1;
        if count <= MAX_ENTRIES {
            let mut entry = wire::DirectoryEntry::new(name.to_string_lossy());
            entry.is_directory = kind == FileType::Directory;
            entry.is_file = kind == FileType::RegularFile;
            entries.push(entry);
        }
        Ok::<_, Errno>(())
    })?;
    if count > MAX_ENTRIES {
        let text = format!("fs/readDirectory returned {count} entries; limit is {MAX_ENTRIES}");
        return Ok(Err(RpcError::new(ErrorKind::LimitExceeded, text)
            .with_code(ErrorKind::Io.code())
            .with_hint("request pages with `limit`, then pass the `nextCursor` of each page as `cursor`")));
    }
    Ok(Ok(wire::DirectoryListing { entries, next_cursor: None }))
}

/// The page that is asked for.
struct Page {
    limit: usize,
    /// Only names after this one.
    after: Option<OsString>,
    details: bool,
}

impl Page {
    /// Returns the page asked for; `None` means the whole directory.
    fn parse(request: &wire::ReadDirectory) -> Result<Option<Self>, RpcError> {
        let invalid = |text: String| Err(RpcError::new(ErrorKind::InvalidInput, text));
        let Some(limit) = request.limit else {
            if request.cursor.is_some() || request.details {
                return invalid("`cursor` and `details` require `limit`".to_owned());
            }
            return Ok(None);
        };
        let limit = match usize::try_from(limit) {
            Ok(limit) if (1..=MAX_ENTRIES).contains(&limit) => limit,
            _ => {
                return invalid(format!(
                    "limit {limit} is out of range: a page has 1 to {MAX_ENTRIES} entries"
                ));
            }
        };
        let after = match request.cursor.as_deref().map(parse_cursor) {
            Some(None) => {
                return invalid("invalid `cursor`: use the `nextCursor` of the previous page".to_owned());
            }
            after => after.flatten(),
        };
        Ok(Some(Self { limit, after, details: request.details }))
    }

    fn read(&self, directory: &OpenDirectory<'_>) -> io::Result<wire::DirectoryListing> {
        let mut smallest = Smallest::new(self.limit);
        names::for_each(&directory.opened, |name, kind| {
            let name = names::os_str(name);
            if self.after.as_deref().is_none_or(|after| name > after) {
                smallest.push(name, kind);
            }
            Ok::<_, Errno>(())
        })?;
        let (found, mut has_more) = smallest.into_sorted();
        let mut listing = wire::DirectoryListing::default();
        let (mut last, mut left) = (None, MAX_PAGE);
        for (name, kind) in found {
            if left == 0 {
                has_more = true;
                break;
            }
            if let Some(entry) = self.entry(directory, &name, kind)? {
                left = left.saturating_sub(cost(&entry));
                listing.entries.push(entry);
            }
            last = Some(name);
        }
        listing.next_cursor = if has_more { last.map(|name| cursor(&name)) } else { None };
        Ok(listing)
    }

    /// Returns an entry; `None` if it has been removed in the meantime.
    fn entry(
        &self,
        directory: &OpenDirectory<'_>,
        name: &OsString,
        kind: FileType,
    ) -> io::Result<Option<wire::DirectoryEntry>> {
        // The name of a denied entry is no secret, but nothing else about it is revealed.
        let metadata = if self.details && directory.tree.allows(name, Action::Read) {
            match metadata::of_entry(&directory.opened, name) {
                Ok(metadata) => Some(Box::new(metadata)),
                Err(Errno::NOENT) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        } else {
            None
        };
        let is_symlink = kind == FileType::Symlink;
        let target = if is_symlink { directory.kind_of_target(name) } else { Some(kind) };
        let mut entry = wire::DirectoryEntry::new(name.to_string_lossy());
        entry.is_directory = target == Some(FileType::Directory);
        entry.is_file = target == Some(FileType::RegularFile);
        entry.is_symlink = Some(is_symlink);
        entry.path = Some(HostPath::from(directory.at.path().join(name)));
        entry.metadata = metadata;
        Ok(Some(entry))
    }
}

/// Returns the approximate encoded size of an entry.
fn cost(entry: &wire::DirectoryEntry) -> usize {
    let path = entry.path.as_ref().map_or(0, |path| path.to_uri().len());
    let details = entry
        .metadata
        .as_ref()
        .map_or(0, |metadata| DETAILS + metadata.link_target.as_ref().map_or(0, String::len));
    entry.file_name.len() + path + details + ENTRY
}

/// Returns the cursor after a name: its bytes in hexadecimal, because a name may contain any bytes.
fn cursor(name: &OsString) -> String {
    name.as_encoded_bytes().iter().fold(String::new(), |mut text, byte| {
        write!(text, "{byte:02x}").expect("writing to a string never fails");
        text
    })
}

/// Returns the name in a cursor, if the cursor is valid.
fn parse_cursor(cursor: &str) -> Option<OsString> {
    let bytes = cursor.as_bytes();
    if bytes.is_empty() || !bytes.len().is_multiple_of(2) {
        return None;
    }
    let byte = |digits: &[u8]| {
        let digits = std::str::from_utf8(digits).ok().filter(|digits| !digits.starts_with('+'))?;
        u8::from_str_radix(digits, 16).ok()
    };
    bytes.chunks(2).map(byte).collect::<Option<Vec<u8>>>().map(OsString::from_vec)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_cursor_keeps_the_exact_bytes_of_a_name() {
        for name in [&b"a"[..], b"\xff\x00\x01", "é ".as_bytes(), &[7; 255]] {
            let name = OsString::from_vec(name.to_vec());
            assert_eq!(parse_cursor(&cursor(&name)), Some(name));
        }
        assert_eq!(cursor(&OsString::from("a/")), "612f");
    }

    #[test]
    fn invalid_cursors_are_rejected() {
        for text in ["", "6", "61f", "zz", "+1", "-1", "é", " 1"] {
            assert_eq!(parse_cursor(text), None, "{text}");
        }
    }
}
