//! Open files of one connection, read and written in blocks.
//!
//! A handle exists as soon as its `fs/open` arrives, so that a client may request blocks before the answer.
//! Writes through handles take the same path locks as all other requests.

use std::{
    collections::HashMap,
    fs::File,
    io,
    os::unix::fs::FileExt as _,
    path::Path,
    sync::{Arc, Mutex, MutexGuard, OnceLock},
};

use remex_access::{
    account::{self, Account, Charge, Kind},
    scope::FileAccess,
};
use remex_base::{io_error::io_error, lock};
use remex_proto::{
    Blob, ErrorKind, HostPath, RpcError,
    fs::{self as wire, OpenMode},
};
use rustix::{
    buffer::spare_capacity,
    fs::OFlags,
    io::{Errno, pread},
};

use crate::{
    path_lock::PathAccess,
    paths::{
        guard::PathGuard,
        native,
        open::{self, Links},
        replace::Replacement,
    },
};

/// The longest id of a handle, in bytes.
const MAX_ID_LEN: usize = 32;

/// The longest block, in bytes.
const MAX_BLOCK_LEN: usize = 1 << 20;

/// About what a handle needs besides its path.
const HANDLE_BYTES: usize = 1 << 10;

/// The handles of one connection.
#[derive(Debug, Clone, Default)]
pub struct Handles {
    /// Shared with the file threads, because a failure closes a handle; held briefly.
    open: Arc<Mutex<HashMap<String, Arc<Handle>>>>,
}

/// One open file, or one that is being opened.
#[derive(Debug)]
pub struct Handle {
    path: HostPath,
    mode: OpenMode,
    /// Set when the file is opened; path locks make every use of the handle wait for that.
    opened: OnceLock<OpenFile>,
    #[expect(dead_code, reason = "releases a resource when dropped")]
    charge: Charge,
}

#[derive(Debug)]
enum OpenFile {
    Reading(File),
    Writing {
        file: File,
        /// Whether a write clears set-user-ID and set-group-ID, which may have been set since the file was opened.
        strips_set_id: bool,
    },
    /// Taken when the handle is closed.
    Replacing(Mutex<Option<Replacement>>),
}

impl Handles {
    /// Enters a handle, which opens its file once the access is granted.
    ///
    /// # Errors
    ///
    /// If the request means nothing, or there are `limit` handles already, or no memory for another one.
    pub fn begin(
        &self,
        request: &wire::Open,
        connection: u64,
        limit: usize,
        account: &Arc<Account>,
    ) -> Result<(Opening, PathAccess), RpcError> {
        let handle = self.insert(request, limit, account)?;
        let opening = Opening { handles: self.clone(), id: request.handle_id.clone(), handle };
        Ok((opening, open_access(connection, request)?))
    }

    /// Reads a block of a handle that may just be closed. Blocks, and may hang.
    ///
    /// # Errors
    ///
    /// If the file cannot be read; that may close the handle.
    pub fn read(
        &self,
        handle: &Arc<Handle>,
        request: &wire::ReadBlock,
        len: usize,
    ) -> Result<wire::Block, RpcError> {
        let result = handle.read(request, len);
        self.after(handle, &request.handle_id, result)
    }

    /// Writes a block to a handle that may just be closed. Blocks, and may hang.
    ///
    /// # Errors
    ///
    /// If the file cannot be written; that may close the handle.
    pub fn write(&self, handle: &Arc<Handle>, request: &wire::WriteBlock) -> Result<(), RpcError> {
        let result = handle.write(request);
        self.after(handle, &request.handle_id, result)
    }

    fn after<T>(&self, handle: &Arc<Handle>, id: &str, result: Result<T, BlockError>) -> Result<T, RpcError> {
        if result.as_ref().is_err_and(|failure| failure.is_final) {
            self.remove(id, handle);
        }
        result.map_err(|failure| failure.error)
    }

    /// Removes a handle to close it; `None` if there is no such handle.
    ///
    /// # Errors
    ///
    /// If there can be none with this id.
    pub fn take(&self, id: &str) -> Result<Option<Arc<Handle>>, RpcError> {
        check_id(id)?;
        Ok(self.open().remove(id))
    }

    /// Removes all handles, which must be dropped where closing a file may hang; files that were to be replaced stay unchanged.
    pub fn take_all(&self) -> Vec<Arc<Handle>> {
        std::mem::take(&mut *self.open()).into_values().collect()
    }

    fn insert(
        &self,
        request: &wire::Open,
        limit: usize,
        account: &Arc<Account>,
    ) -> Result<Arc<Handle>, RpcError> {
        let id = &request.handle_id;
        check_id(id)?;
        let mut open = self.open();
        if open.contains_key(id) {
            let message = format!("file handle `{id}` already exists");
            return Err(
                RpcError::new(ErrorKind::IdInUse, message).with_hint("close it, or choose another id")
            );
        }
        if open.len() >= limit {
            let message = format!("at most {limit} file handles may be open per connection");
            return Err(
                RpcError::new(ErrorKind::LimitExceeded, message).with_hint("close some with `fs/close`")
            );
        }
        let bytes = HANDLE_BYTES + 2 * request.path.native().map_or(0, |path| path.as_os_str().len());
        let charge = account.try_take(Kind::Handles, bytes).ok_or_else(|| {
            account::full(&format!("cannot open file handle `{id}`"), account, Kind::Handles, bytes)
        })?;
        let (path, mode) = (request.path.clone(), request.mode);
        let handle = Arc::new(Handle { path, mode, opened: OnceLock::new(), charge });
        open.insert(id.clone(), Arc::clone(&handle));
        Ok(handle)
    }

    /// Returns the handle with an id.
    ///
    /// # Errors
    ///
    /// If there is none.
    pub fn get(&self, id: &str) -> Result<Arc<Handle>, RpcError> {
        self.open().get(id).cloned().ok_or_else(|| unknown(id))
    }

    /// Removes `handle`, unless its id now names another one.
    fn remove(&self, id: &str, handle: &Arc<Handle>) {
        let mut open = self.open();
        if open.get(id).is_some_and(|known| Arc::ptr_eq(known, handle)) {
            open.remove(id);
        }
    }

    fn open(&self) -> MutexGuard<'_, HashMap<String, Arc<Handle>>> {
        lock(&self.open)
    }
}

/// A handle that is being opened; dropped before that succeeds, it removes the handle.
#[derive(Debug)]
pub struct Opening {
    handles: Handles,
    id: String,
    handle: Arc<Handle>,
}

impl Opening {
    /// Opens the file. Blocks, and may hang.
    ///
    /// # Errors
    ///
    /// If it cannot be opened.
    pub fn open(&self, request: &wire::Open, guard: &PathGuard) -> Result<(), RpcError> {
        let _ = self.handle.opened.set(open(request, guard)?);
        Ok(())
    }
}

impl Drop for Opening {
    fn drop(&mut self) {
        if self.handle.opened.get().is_none() {
            self.handles.remove(&self.id, &self.handle);
        }
    }
}

/// Why a block was not read or written.
struct BlockError {
    error: RpcError,
    /// The handle can no longer be used.
    is_final: bool,
}

impl From<RpcError> for BlockError {
    fn from(error: RpcError) -> Self {
        BlockError { error, is_final: false }
    }
}

impl Handle {
    /// Returns whether it only reads, so that nothing has to wait for its end.
    pub fn is_reader(&self) -> bool {
        self.mode == OpenMode::Read
    }

    /// Returns the locks for a use of the handle: its opening and, for writers, the path.
    ///
    /// # Errors
    ///
    /// If its path cannot be locked.
    pub fn access(&self, connection: u64, id: &str) -> Result<PathAccess, RpcError> {
        let access = match self.mode {
            OpenMode::Read => PathAccess::default(),
            OpenMode::Replace | OpenMode::Write => PathAccess::writes(&self.path)?,
        };
        Ok(access.and_reads_handle(connection, id))
    }

    fn read(&self, request: &wire::ReadBlock, len: usize) -> Result<wire::Block, BlockError> {
        let path = native(&self.path)?;
        let file = match self.opened.get() {
            Some(OpenFile::Reading(file)) => file,
            Some(OpenFile::Writing { .. } | OpenFile::Replacing(_)) => return Err(wrong_kind(path).into()),
            None => return Err(unknown(&request.handle_id).into()),
        };
        let failed = |error| BlockError { error: io_error(&error, path), is_final: true };
        let mut chunk = Vec::with_capacity(len);
        while chunk.len() < len {
            let offset =
                request.offset.checked_add(chunk.len() as u64).ok_or_else(|| failed(Errno::INVAL.into()))?;
            match pread(file, spare_capacity(&mut chunk), offset) {
                Ok(0) => break,
                Ok(_) | Err(Errno::INTR) => {}
                // A kernel file without end: nothing more is available now.
                Err(Errno::AGAIN) if !chunk.is_empty() => break,
                Err(Errno::AGAIN) => return Err(io_error(&Errno::AGAIN.into(), path).into()),
                Err(error) => return Err(failed(error.into())),
            }
        }
        let eof = chunk.len() < len;
        Ok(wire::Block { chunk: Blob::from(chunk), eof })
    }

    fn write(&self, request: &wire::WriteBlock) -> Result<(), BlockError> {
        let path = native(&self.path)?;
        let end = request.offset.checked_add(request.chunk.len() as u64);
        if end.is_none_or(|end| i64::try_from(end).is_err()) {
            let message = "file write range exceeds the signed 64-bit file offset limit";
            return Err(RpcError::new(ErrorKind::InvalidInput, message).into());
        }
        let failed = |error: io::Error| BlockError { error: io_error(&error, path), is_final: true };
        match self.opened.get() {
            Some(OpenFile::Writing { file, strips_set_id }) => {
                let written = file.write_all_at(&request.chunk, request.offset).map_err(failed);
                if *strips_set_id {
                    open::remove_set_id(file, path)?;
                }
                written
            }
            Some(OpenFile::Replacing(replacement)) => {
                let mut replacement = lock(replacement);
                let Some(new) = &*replacement else { return Err(unknown(&request.handle_id).into()) };
                let written = new.file().write_all_at(&request.chunk, request.offset);
                if written.is_err() {
                    // Contents with a missing block must not replace the old file.
                    *replacement = None;
                }
                written.map_err(failed)
            }
            Some(OpenFile::Reading(_)) => Err(wrong_kind(path).into()),
            None => Err(unknown(&request.handle_id).into()),
        }
    }

    /// Commits the new contents. Blocks, and may hang.
    ///
    /// # Errors
    ///
    /// If the file could not be replaced.
    pub fn commit(&self) -> Result<(), RpcError> {
        let Some(OpenFile::Replacing(replacement)) = self.opened.get() else { return Ok(()) };
        let path = native(&self.path)?;
        let Some(replacement) = lock(replacement).take() else {
            let message = format!(
                "`{}` was not replaced, because a block could not be written; the old file is unchanged",
                path.display()
            );
            return Err(RpcError::new(ErrorKind::Io, message).with_hint("write it again from the beginning"));
        };
        let entry = replacement.entry();
        replacement
            .flush()
            .and_then(|()| entry.write(|| replacement.commit()))
            .map_err(|error| io_error(&error, path))
    }
}

/// Returns the locks for opening a handle, after checking the request.
fn open_access(connection: u64, request: &wire::Open) -> Result<PathAccess, RpcError> {
    if request.atomic && request.mode != OpenMode::Replace {
        let message = "`atomic` requires `mode: \"replace\"`";
        return Err(
            RpcError::new(ErrorKind::InvalidParams, message).with_hint("omit it, or replace the file")
        );
    }
    if request.exclusive && request.mode != OpenMode::Write {
        let message = "`exclusive` requires `mode: \"write\"`";
        return Err(RpcError::new(ErrorKind::InvalidParams, message)
            .with_hint("omit it, or open the file for writing"));
    }
    let access = match request.mode {
        OpenMode::Read => PathAccess::reads(&request.path),
        OpenMode::Replace | OpenMode::Write => PathAccess::writes(&request.path),
    };
    Ok(access?.and_writes_handle(connection, &request.handle_id))
}

fn open(request: &wire::Open, guard: &PathGuard) -> Result<OpenFile, RpcError> {
    let (path, mode) = (native(&request.path)?, open::create_mode(request.create_mode)?);
    let to_write = || guard.target(path, Links::Follow, FileAccess::Write);
    match request.mode {
        OpenMode::Read => {
            let at = guard.target(path, Links::Follow, FileAccess::Read)?;
            Ok(OpenFile::Reading(open::for_reading(&at)?.0))
        }
        OpenMode::Replace if request.atomic => {
            Ok(OpenFile::Replacing(Mutex::new(Some(Replacement::begin(&to_write()?, mode)?))))
        }
        OpenMode::Replace => {
            let at = to_write()?;
            let file = open::for_writing(&at, OFlags::WRONLY, mode)?;
            file.set_len(0).map_err(|error| io_error(&error, path))?;
            Ok(OpenFile::Writing { file, strips_set_id: at.strips_set_id() })
        }
        OpenMode::Write if request.exclusive => {
            let at = guard.entry(path, Links::Follow, FileAccess::Write)?;
            Ok(OpenFile::Writing { file: open::exclusively(&at, mode)?, strips_set_id: at.strips_set_id() })
        }
        OpenMode::Write => {
            let at = to_write()?;
            let file = open::for_writing(&at, OFlags::WRONLY, mode)?;
            Ok(OpenFile::Writing { file, strips_set_id: at.strips_set_id() })
        }
    }
}

fn check_id(id: &str) -> Result<(), RpcError> {
    if id.len() > MAX_ID_LEN {
        let message = format!("file handle ID must not exceed {MAX_ID_LEN} bytes");
        return Err(RpcError::new(ErrorKind::InvalidInput, message));
    }
    Ok(())
}

/// Returns the length of a block.
///
/// # Errors
///
/// If a block cannot be that long.
pub fn block_len(len: u64, what: &str) -> Result<usize, RpcError> {
    match usize::try_from(len) {
        Ok(len) if (1..=MAX_BLOCK_LEN).contains(&len) => Ok(len),
        _ => {
            let message = format!("file {what} block length must be between 1 and {MAX_BLOCK_LEN}");
            Err(RpcError::new(ErrorKind::InvalidInput, message))
        }
    }
}

fn unknown(id: &str) -> RpcError {
    RpcError::new(ErrorKind::UnknownHandle, format!("unknown file handle `{id}`"))
        .with_hint("it was never opened on this connection, or it was closed; a failed block closes it")
}

fn wrong_kind(path: &Path) -> RpcError {
    io_error(&Errno::BADF.into(), path)
        .with_hint("a handle is for reading or for writing, as its `mode` says")
}
