//! Whole files: read, written, hashed.

use std::{
    fs::File,
    io::{self, Read, Seek, SeekFrom, Write},
    path::Path,
    sync::Arc,
};

use remex_proto::{
    Blob, ErrorKind, RequestId, RpcError,
    fs::{self as wire, ContentHash, IfMatch},
};
use rustix::fs::OFlags;
use sha2::{Digest as _, Sha256};
use tokio::sync::oneshot;

use super::{
    Claims, FileWork, Held, io_error, native,
    open::{self, Links},
    replace::Replacement,
};
use crate::{connection::Connection, outbox::Responder};

/// The largest file that is read whole.
const MAX_FILE_LEN: u64 = 512 << 20;

/// Up to here a file is read and answered in one go.
const SMALL_FILE_LEN: u64 = 64 << 10;

/// From here on only a few files are read at once.
const LARGE_FILE_LEN: u64 = 1 << 20;

/// What is hashed at a time.
const HASH_LEN: usize = 256 << 10;

impl Connection {
    pub(crate) fn read_file(&mut self, id: RequestId, request: wire::ReadFile, responder: Responder) {
        let turn = match self.file_turn(&request.sandbox, Claims::reads(&request.path)) {
            Ok(turn) => turn,
            Err(error) => return responder.error(&error),
        };
        let (sender, large) = oneshot::channel();
        self.file_job(id.clone(), turn, move |held| {
            if let Some(rest) = (ReadFile { request, responder, held }).begin() {
                let _ = sender.send(rest);
            }
        });
        let (server, large_files) = (Arc::clone(&self.server), Arc::clone(&self.large_files));
        self.run_beside(id, async move {
            let Ok(rest) = large.await else { return };
            let permit =
                if rest.size > LARGE_FILE_LEN { large_files.acquire_owned().await.ok() } else { None };
            let read = server.files().run(move || rest.read());
            let Ok((responder, result)) = read.await else { return };
            server.files().answer_large(responder, |responder| answer(responder, result)).await;
            drop(permit);
        });
    }
}

struct ReadFile {
    request: wire::ReadFile,
    responder: Responder,
    held: Held,
}

/// A file that is too large to be read on the way.
struct Rest {
    reading: ReadFile,
    file: File,
    size: u64,
}

impl ReadFile {
    /// Reads and answers what is small.
    fn begin(self) -> Option<Rest> {
        match self.open() {
            Ok((file, size)) if size > SMALL_FILE_LEN => Some(Rest { reading: self, file, size }),
            Ok((file, size)) => {
                let result = native(&self.request.path).and_then(|path| read_all(&file, size, path));
                drop(self.held);
                answer(self.responder, result);
                None
            }
            Err(error) => {
                self.responder.error(&error);
                None
            }
        }
    }

    fn open(&self) -> Result<(File, u64), RpcError> {
        let (file, size) =
            open::for_reading(native(&self.request.path)?, self.request.follow_symlinks.into())?;
        if size > MAX_FILE_LEN { Err(too_large()) } else { Ok((file, size)) }
    }
}

impl Rest {
    fn read(self) -> (Responder, Result<Vec<u8>, RpcError>) {
        let ReadFile { request, responder, .. } = self.reading;
        let result = native(&request.path).and_then(|path| read_all(&self.file, self.size, path));
        (responder, result)
    }
}

fn answer(responder: Responder, result: Result<Vec<u8>, RpcError>) {
    match result {
        Ok(bytes) => {
            let reply = wire::ReadFileReply { data_base64: Blob::from(bytes) };
            responder.ok_with(|out| reply.write(out));
        }
        Err(error) => responder.error(&error),
    }
}

/// Reads to the end: the size is what it was a moment ago, and files of the kernel say 0.
fn read_all(file: &File, size: u64, path: &Path) -> Result<Vec<u8>, RpcError> {
    let mut bytes = Vec::new();
    let read = usize::try_from(size)
        .map_err(io::Error::other)
        .and_then(|size| bytes.try_reserve_exact(size + 1).map_err(io::Error::other))
        .and_then(|()| file.take(MAX_FILE_LEN + 1).read_to_end(&mut bytes));
    match read {
        Ok(len) if len as u64 > MAX_FILE_LEN => Err(too_large()),
        Ok(_) => Ok(bytes),
        Err(error) => Err(io_error(&error, path)),
    }
}

fn too_large() -> RpcError {
    let message = format!("file is too large to read: limit is {MAX_FILE_LEN} bytes");
    RpcError::new(ErrorKind::LimitExceeded, message)
        .with_hint("read it in blocks with `fs/open` and `fs/readBlock`")
}

impl FileWork for wire::WriteFile {
    fn claims(&self) -> Result<Claims, RpcError> {
        Claims::writes(&self.path)
    }

    fn run(&self) -> Result<wire::WriteFileReply, RpcError> {
        let bytes = self.data_base64.decode().map_err(|error| {
            let message = format!("fs/writeFile requires valid base64 dataBase64: {error}");
            RpcError::new(ErrorKind::InvalidInput, message)
        })?;
        let (path, links) = (native(&self.path)?, Links::from(self.follow_symlinks));
        if self.atomic {
            write_atomically(path, links, self.if_match, &bytes)?;
        } else {
            write_in_place(path, links, self.if_match, &bytes)?;
        }
        let hash = self.if_match.map(|_| ContentHash(Sha256::digest(&bytes[..]).into()));
        Ok(wire::WriteFileReply { hash })
    }
}

fn write_in_place(
    path: &Path,
    links: Links,
    if_match: Option<IfMatch>,
    bytes: &[u8],
) -> Result<(), RpcError> {
    let mut file = match if_match {
        None => open::for_writing(path, links, OFlags::WRONLY)?,
        Some(IfMatch::Absent) => {
            open::create(path, links, OFlags::WRONLY | OFlags::EXCL).map_err(|error| match error.kind {
                ErrorKind::AlreadyExists => changed(path, "something is there"),
                _ => error,
            })?
        }
        Some(IfMatch::Content(expected)) => {
            check_content(path, links, expected)?;
            open::for_writing(path, links, OFlags::WRONLY)?
        }
    };
    file.set_len(0).and_then(|()| file.write_all(bytes)).map_err(|error| io_error(&error, path))
}

fn write_atomically(
    path: &Path,
    links: Links,
    if_match: Option<IfMatch>,
    bytes: &[u8],
) -> Result<(), RpcError> {
    if let Some(IfMatch::Content(expected)) = if_match {
        check_content(path, links, expected)?;
    }
    let replacement = Replacement::begin(path, links)?;
    if if_match == Some(IfMatch::Absent) && replacement.has_predecessor() {
        return Err(changed(path, "something is there"));
    }
    replacement.file().write_all(bytes).map_err(|error| io_error(&error, path))?;
    replacement.commit(path)
}

/// Compares what is there with what the writer believes; other writers of this server wait meanwhile.
fn check_content(path: &Path, links: Links, expected: ContentHash) -> Result<(), RpcError> {
    let (mut file, _) = open::for_reading(path, links).map_err(|error| match error.kind {
        ErrorKind::NotFound => changed(path, "nothing is there"),
        _ => error,
    })?;
    let (found, _) = hash(&mut file, u64::MAX).map_err(|error| io_error(&error, path))?;
    if found == expected { Ok(()) } else { Err(changed(path, &format!("it is {found} now"))) }
}

fn changed(path: &Path, how: &str) -> RpcError {
    let message = format!("`{}` is not what `ifMatch` says: {how}; nothing was written", path.display());
    RpcError::new(ErrorKind::ContentChanged, message)
        .with_hint("read it again, apply the change to what is there, and write with its hash")
}

impl FileWork for wire::HashFile {
    fn claims(&self) -> Result<Claims, RpcError> {
        Claims::reads(&self.path)
    }

    fn run(&self) -> Result<wire::FileHash, RpcError> {
        let path = native(&self.path)?;
        let (mut file, size) = open::for_reading(path, self.follow_symlinks.into())?;
        let hashed = file
            .seek(SeekFrom::Start(self.offset))
            .and_then(|_| hash(&mut file, self.len.unwrap_or(u64::MAX)))
            .map_err(|error| io_error(&error, path))?;
        Ok(wire::FileHash { hash: hashed.0, bytes: hashed.1, size })
    }
}

/// Hashes up to `len` bytes; returns how many there were.
fn hash(file: &mut File, len: u64) -> io::Result<(ContentHash, u64)> {
    let mut buffer = vec![0; HASH_LEN];
    let (mut hasher, mut file, mut hashed) = (Sha256::new(), file.take(len), 0);
    loop {
        match file.read(&mut buffer) {
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
