//! Reading whole files.

use std::{
    fs::File,
    io::{self, Read as _},
    path::Path,
    sync::Arc,
};

use bytes::Bytes;
use remex_access::budget;
use remex_base::io_error::io_error;
use remex_files::{
    HANG_THRESHOLD, JobGuards, PathAccess, PathGuard, PathLock, end_of, native, open_for_reading,
};
use remex_proto::{Blob, ErrorKind, RequestId, RpcError, fs as wire};
use tokio::sync::oneshot;

use super::{
    FileCalls, LargeAnswers,
    answer_memory::{AbandonOnDrop, AnswerMemory},
    answer_slot::{AnswerSlot, AnswerSlotWatch},
};
use crate::{areas::context::CallContext, outbox::Responder};

/// The largest file that can be read whole.
const MAX_FILE_LEN: u64 = 512 << 20;

/// Files up to this length are answered at once, whatever else waits for the client.
const SMALL_FILE_LEN: u64 = 64 << 10;

/// Bytes per read of a whole file; even a slow file system must return this much in 10 s.
const READ_LEN: usize = 256 << 10;

impl FileCalls {
    /// Reads a whole file while holding its lock: a small one, or a large one if there is room for the answer.
    ///
    /// Otherwise, it is read later without blocking other requests, once the client has made room.
    pub(crate) fn read_file(
        &self,
        context: &mut CallContext,
        id: RequestId,
        request: wire::ReadFile,
        responder: Responder,
    ) {
        let lock = match PathAccess::reads(&request.path).and_then(|access| self.lock(access)) {
            Ok(lock) => lock,
            Err(error) => return responder.error(&error),
        };
        let large = self.large(context);
        let (slot, room) = (Arc::new(AnswerSlot::default()), Arc::new(large.room()));
        let watched = AbandonOnDrop(Arc::clone(&room));
        let watch = AnswerSlotWatch::new(context.host(), &slot);
        let guard = self.guard.clone();
        let reading = Reading { request, responder, guard, large: large.clone(), slot, room };
        let (sender, receiver) = oneshot::channel();
        self.run_job(context, id.clone(), lock, move |guards| {
            if let Some(deferred) = reading.read_now(guards) {
                let _ = sender.send(deferred);
            }
        });
        context.spawn_call(id, async move {
            let room = Arc::clone(&watched.0);
            let answering = async {
                let Some(DeferredRead { reading, size, lock }) = deferred(&watch, receiver).await else {
                    return;
                };
                lock.acquired().await;
                if let Err(error) = room.take(size, &large.outbox).await {
                    return reading.responder.error(&error);
                }
                let job = move |guards| {
                    let result = reading.read();
                    drop(guards);
                    answer(reading.responder, result);
                };
                large.make(size, lock, job).await;
            };
            tokio::select! {
                () = answering => {}
                () = room.watch() => {}
            }
        });
    }
}

/// Waits for the first attempt to read, and releases its slot if that hangs.
async fn deferred(
    watch: &AnswerSlotWatch,
    mut deferred: oneshot::Receiver<DeferredRead>,
) -> Option<DeferredRead> {
    loop {
        tokio::select! {
            deferred = &mut deferred => return deferred.ok(),
            () = tokio::time::sleep(HANG_THRESHOLD) => watch.give_back(),
        }
    }
}

struct Reading {
    request: wire::ReadFile,
    responder: Responder,
    guard: PathGuard,
    large: LargeAnswers,
    slot: Arc<AnswerSlot>,
    room: Arc<AnswerMemory>,
}

/// A read that was deferred because there was no room for its answer.
struct DeferredRead {
    reading: Reading,
    size: u64,
    lock: PathLock,
}

impl Reading {
    /// Reads and answers, unless there is no room for the answer.
    fn read_now(self, guards: JobGuards) -> Option<DeferredRead> {
        let result = match self.begin() {
            Ok(FirstRead::Done(bytes)) => Ok(bytes),
            Ok(FirstRead::TooLarge(size)) => match self.large.look_again(&self.request.path) {
                Ok(lock) => return Some(DeferredRead { reading: self, size, lock }),
                Err(error) => Err(error),
            },
            Err(error) => Err(error),
        };
        drop(guards);
        answer(self.responder, result);
        self.slot.put(None);
        None
    }

    fn begin(&self) -> Result<FirstRead, RpcError> {
        let (file, size, path) = self.open()?;
        let mut bytes = read_up_to(&file, SMALL_FILE_LEN + 1, size, path)?;
        if bytes.len() as u64 <= SMALL_FILE_LEN {
            return Ok(FirstRead::Done(Bytes::from(bytes)));
        }
        let size = size.max(bytes.len() as u64);
        let Some(permit) = self.large.permit_for(size) else { return Ok(FirstRead::TooLarge(size)) };
        if !self.room.try_take(size) {
            return Ok(FirstRead::TooLarge(size));
        }
        self.slot.put(Some(permit));
        read_rest(&file, &mut bytes, size, path, &self.room)?;
        Ok(FirstRead::Done(self.room.fill(bytes)))
    }

    fn read(&self) -> Result<Bytes, RpcError> {
        let (file, size, path) = self.open()?;
        let mut bytes = Vec::new();
        read_rest(&file, &mut bytes, size, path, &self.room)?;
        Ok(self.room.fill(bytes))
    }

    fn open(&self) -> Result<(File, u64, &Path), RpcError> {
        let path = native(&self.request.path)?;
        let guard = self.guard.confined(self.large.host.confinement(), &self.request.sandbox)?;
        let (file, size) = open_for_reading(&guard, path, self.request.follow_symlinks)?;
        if size > MAX_FILE_LEN { Err(too_large()) } else { Ok((file, size, path)) }
    }
}

/// The result of starting to read.
enum FirstRead {
    Done(Bytes),
    /// There is no room for a file of this size.
    TooLarge(u64),
}

fn answer(responder: Responder, result: Result<Bytes, RpcError>) {
    match result {
        Ok(bytes) => {
            let reply = wire::ReadFileReply { data_base64: Blob(bytes) };
            responder.ok_blob(reply, wire::ReadFileReply::AROUND, |reply| reply.data_base64);
        }
        Err(error) => responder.error(&error),
    }
}

/// Reads the beginning. The size may have changed in the meantime, and kernel files report 0.
fn read_up_to(file: &File, len: u64, size: u64, path: &Path) -> Result<Vec<u8>, RpcError> {
    let mut bytes = Vec::with_capacity(usize::try_from(len.min(size + 1)).unwrap_or(0));
    read_some(file, len, &mut bytes).map_err(|error| io_error(&error, path))?;
    Ok(bytes)
}

/// Reads from the end of `bytes` to the end of the file.
fn read_rest(
    mut file: &File,
    bytes: &mut Vec<u8>,
    size: u64,
    path: &Path,
    room: &AnswerMemory,
) -> Result<(), RpcError> {
    let rest = usize::try_from(size).unwrap_or(usize::MAX).saturating_sub(bytes.len());
    // One more byte, to detect the end where it is expected.
    bytes.try_reserve_exact(rest.saturating_add(1)).map_err(|_| no_memory())?;
    loop {
        let before = bytes.len();
        room.cover(before as u64, path)?;
        if before as u64 > MAX_FILE_LEN {
            return Err(too_large());
        }
        if before == bytes.capacity() {
            bytes.try_reserve(READ_LEN).map_err(|_| no_memory())?;
        }
        bytes.resize(bytes.capacity().min(before + READ_LEN), 0);
        // One system call at a time, so that any data counts as progress.
        let read = end_of(file.read(&mut bytes[before..]), before as u64);
        bytes.truncate(before + *read.as_ref().unwrap_or(&0));
        match read {
            Ok(0) => return Ok(()),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(io_error(&error, path)),
        }
    }
}

/// Reads up to `len` more bytes; fewer mean the end of the file.
fn read_some(file: &File, len: u64, bytes: &mut Vec<u8>) -> io::Result<usize> {
    let before = bytes.len();
    let read = file.take(len).read_to_end(bytes);
    end_of(read, bytes.len() as u64).map(|_| bytes.len() - before)
}

fn no_memory() -> RpcError {
    budget::no_memory("read the file in blocks with `fs/open` and `fs/readBlock`")
}

fn too_large() -> RpcError {
    let message = format!("file is too large to read: limit is {MAX_FILE_LEN} bytes");
    RpcError::new(ErrorKind::LimitExceeded, message)
        .with_hint("read it in blocks with `fs/open` and `fs/readBlock`")
}

#[cfg(test)]
mod tests {
    use std::{
        io::Write as _,
        os::fd::OwnedFd,
        thread,
        time::{Duration, Instant},
    };

    use tokio::sync::Semaphore;

    use super::*;
    use remex_access::{account::Kind, budget::Budget};

    #[test]
    fn a_slow_file_shows_progress() {
        let budget = Arc::new(Budget::new(Kind::Answers, 1 << 20));
        let room = Arc::new(AnswerMemory::new(1 << 20, Arc::new(Semaphore::new(1)), budget, Arc::default()));
        let (reader, mut writer) = io::pipe().unwrap();
        let reading = thread::spawn({
            let room = Arc::clone(&room);
            move || {
                let (file, mut bytes) = (File::from(OwnedFd::from(reader)), b"beginning".to_vec());
                read_rest(&file, &mut bytes, 20, Path::new("/f"), &room).map(|()| bytes)
            }
        });
        let deadline = Instant::now() + Duration::from_secs(30);
        for read in [b"beginning".len() as u64, 10, 11] {
            while room.read_len() != Some(read) {
                assert!(Instant::now() < deadline, "{read} bytes were read without being counted");
                thread::yield_now();
            }
            writer.write_all(b".").unwrap();
        }
        writer.write_all(&[b'!'; 100]).unwrap();
        drop(writer);
        let expected = [&b"beginning..."[..], &[b'!'; 100]].concat();
        assert_eq!(reading.join().unwrap().unwrap(), expected);
    }
}
