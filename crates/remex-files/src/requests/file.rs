//! Writing and hashing whole files.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
};

use remex_access::scope::FileAccess;
use remex_proto::{
    ErrorKind, RpcError,
    blob::DecodeError,
    fs::{self as wire, ContentHash, IfMatch},
};
use rustix::fs::{Mode, OFlags};
use sha2::{Digest as _, Sha256};

use super::{
    CancelCheck, FileWork, PathAccess,
    entry_lock::DirectoryEntry,
    guard::{Located, PathGuard},
    io_error, native,
    open::{self, Links},
    replace::Replacement,
};

/// Bytes hashed at a time.
const HASH_LEN: usize = 256 << 10;

impl FileWork for wire::WriteFile {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::writes(&self.path)
    }

    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<wire::WriteFileReply, RpcError> {
        let bytes = self.data_base64.decode().map_err(|error| match error {
            DecodeError::Invalid(error) => {
                let message = format!("fs/writeFile requires valid base64 dataBase64: {error}");
                RpcError::new(ErrorKind::InvalidInput, message)
            }
            DecodeError::NoMemory { .. } => RpcError::new(ErrorKind::LimitExceeded, error.to_string())
                .with_hint("write the file in blocks with `fs/open` and `fs/writeBlock`"),
        })?;
        let (path, links) = (native(&self.path)?, Links::from(self.follow_symlinks));
        let mode = open::create_mode(self.create_mode)?;
        let expected = Expected::of(self.if_match);
        let at = &find(guard, path, links, expected)?;
        let entry = DirectoryEntry::at_end(at);
        let compare = || {
            // Taken before the comparison, so that a concurrent write invalidates it.
            let writes = *entry.lock();
            match expected {
                Expected::Content(hash) => check_content(at, hash, wanted).map(|()| writes),
                Expected::Anything | Expected::Nothing => Ok(writes),
            }
        };
        let mut compared = compare()?;
        let prepared = if self.atomic { Some(prepare(at, mode, expected, &bytes)?) } else { None };
        let mut writes = loop {
            let writes = entry.lock();
            if *writes == compared || !matches!(expected, Expected::Content(_)) {
                break writes;
            }
            drop(writes);
            compared = compare()?;
        };
        *writes += 1;
        match prepared {
            Some(replacement) if expected == Expected::Nothing => {
                replacement.commit_new().map_err(|error| not_absent(path, io_error(&error, path)))?;
            }
            Some(replacement) => replacement.commit().map_err(|error| io_error(&error, path))?,
            None => write_in_place(at, mode, expected, &bytes)?,
        }
        drop(writes);
        let hash = self.if_match.map(|_| ContentHash(Sha256::digest(&bytes[..]).into()));
        Ok(wire::WriteFileReply { hash })
    }
}

/// The precondition of a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Expected {
    Anything,
    Nothing,
    Content(ContentHash),
}

impl Expected {
    fn of(if_match: Option<IfMatch>) -> Self {
        match if_match {
            None => Expected::Anything,
            Some(IfMatch::Absent) => Expected::Nothing,
            Some(IfMatch::Content(hash)) => Expected::Content(hash),
        }
    }
}

/// Finds what is to be written. To compare it, the client must also be allowed to read it.
fn find<'a>(
    guard: &PathGuard,
    path: &'a Path,
    links: Links,
    expected: Expected,
) -> Result<Located<'a>, RpcError> {
    let at = guard.target(path, links, FileAccess::Write);
    if !matches!(expected, Expected::Content(_)) {
        return at;
    }
    at.and_then(|at| guard.target(path, links, FileAccess::Read).map(|_| at)).map_err(|error| {
        match error.kind {
            ErrorKind::NotFound => changed(path, "the file does not exist"),
            _ => error,
        }
    })
}

fn write_in_place(at: &Located<'_>, mode: Mode, expected: Expected, bytes: &[u8]) -> Result<(), RpcError> {
    let path = at.path();
    let mut file = if expected == Expected::Nothing {
        open::create(at, OFlags::WRONLY | OFlags::EXCL, mode).map_err(|error| not_absent(path, error))?
    } else {
        open::for_writing(at, OFlags::WRONLY, mode)?
    };
    file.set_len(0).and_then(|()| file.write_all(bytes)).map_err(|error| io_error(&error, path))
}

/// Writes the new contents beside the old ones.
fn prepare(at: &Located<'_>, mode: Mode, expected: Expected, bytes: &[u8]) -> Result<Replacement, RpcError> {
    let path = at.path();
    let replacement = Replacement::begin(at, mode)?;
    if expected == Expected::Nothing && replacement.has_predecessor() {
        return Err(changed(path, "the file exists"));
    }
    replacement
        .file()
        .write_all(bytes)
        .and_then(|()| replacement.flush())
        .map_err(|error| io_error(&error, path))?;
    Ok(replacement)
}

/// Converts a failure to create a file that must not exist.
fn not_absent(path: &Path, error: RpcError) -> RpcError {
    match error.kind {
        ErrorKind::AlreadyExists => changed(path, "the file exists"),
        _ => error,
    }
}

/// Compares the current contents with what the writer expects.
fn check_content(at: &Located<'_>, expected: ContentHash, wanted: &CancelCheck) -> Result<(), RpcError> {
    let path = at.path();
    let (mut file, _) = open::for_reading(at).map_err(|error| match error.kind {
        ErrorKind::NotFound => changed(path, "the file does not exist"),
        _ => error,
    })?;
    let (found, _) = hash(&mut file, u64::MAX, wanted).map_err(|error| io_error(&error, path))?;
    if found == expected { Ok(()) } else { Err(changed(path, &format!("its hash is {found}"))) }
}

fn changed(path: &Path, how: &str) -> RpcError {
    let message = format!("`{}` does not match `ifMatch`: {how}; nothing was written", path.display());
    RpcError::new(ErrorKind::ContentChanged, message)
        .with_hint("read the file again, apply the change, and write with the new hash")
}

impl FileWork for wire::HashFile {
    fn access(&self) -> Result<PathAccess, RpcError> {
        PathAccess::reads(&self.path)
    }

    fn run(&self, guard: &PathGuard, wanted: &CancelCheck) -> Result<wire::FileHash, RpcError> {
        let path = native(&self.path)?;
        let at = guard.target(path, self.follow_symlinks.into(), FileAccess::Read)?;
        let (mut file, size) = open::for_reading(&at)?;
        let hashed = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| hash(&mut file, self.len.unwrap_or(u64::MAX), wanted))
            .map_err(|error| io_error(&error, path))?;
        Ok(wire::FileHash::new(hashed.0, hashed.1, size))
    }
}

/// Hashes up to `len` bytes; returns how many there were.
fn hash(file: &mut File, len: u64, wanted: &CancelCheck) -> io::Result<(ContentHash, u64)> {
    let mut buffer = vec![0; HASH_LEN];
    let (mut hasher, mut file, mut hashed) = (Sha256::new(), file.take(len), 0);
    loop {
        wanted.check()?;
        match open::end_of(file.read(&mut buffer), hashed) {
            Ok(0) => return Ok((ContentHash(hasher.finalize().into()), hashed)),
            Ok(read) => {
                hasher.update(&buffer[..read]);
                hashed += read as u64;
            }
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
}
