//! Copies a file from this host to a remote one.

use std::path::Path;

use bytes::Bytes;
use remex_proto::{Call, HostPath};
use tokio::io::AsyncReadExt as _;

use super::{
    CopyPath, PERMISSIONS, TRIES, is_same,
    local::{self, Source},
    modified,
};
use crate::{
    Error,
    api::fs::{
        Fs,
        destination::{Destination, Temporary, hide},
        entry::{set_permissions, set_times},
        upload::PRIVATE,
        write_file,
    },
};

/// Copies a file, and returns its size; calls `note` with the number of bytes that are at the destination.
pub(super) async fn upload(from: &Path, to: &CopyPath, mut note: impl FnMut(u64)) -> Result<u64, Error> {
    let mut tries = TRIES;
    let Source { file, metadata, start } = loop {
        match Source::open(from).await {
            // Reading a small file again is cheap.
            Err(Error::Changed { .. }) if tries > 0 => tries -= 1,
            opened => break opened?,
        }
    };
    let path = HostPath::from(to.path.clone());
    let mode = metadata.mode.map(|mode| mode & PERMISSIONS);
    let modified_at_ms = modified(&metadata).filter(|_| !to.fs.is_base());
    let destination = Destination { asked: path.clone(), path, mode, modified_at_ms };
    let Some(file) = file else {
        let len = start.len() as u64;
        send_small(&to.fs, start.into(), &destination).await?;
        return Ok(len);
    };
    let check = async {
        match local::find(from).await? {
            Some(now) if is_same(&metadata, &now) => Ok(()),
            _ => Err(Error::Changed { path: from.display().to_string() }),
        }
    };
    let whole = start.as_slice().chain(tokio::fs::File::from_std(file));
    to.fs.send(whole, check, destination, |progress| note(progress.bytes)).await
}

/// Writes a file in one message.
async fn send_small(fs: &Fs, content: Bytes, destination: &Destination) -> Result<(), Error> {
    if fs.is_base() {
        let write = write_file(destination.path.clone(), content);
        fs.client.call_without_limit(write).await?;
        return Ok(());
    }
    let mut temporary = Temporary::beside(&fs.client, &destination.path)?;
    let sent = send_small_beside(fs, content, &mut temporary, destination).await;
    sent.map_err(|error| hide(&temporary.path, error, &destination.asked))
}

async fn send_small_beside(
    fs: &Fs,
    content: Bytes,
    temporary: &mut Temporary,
    destination: &Destination,
) -> Result<(), Error> {
    let (size, path) = (content.len() as u64, &temporary.path);
    let mut write = write_file(path.clone(), content);
    write.create_mode = destination.mode.map(|_| PRIVATE);
    let mut steps = vec![Call::from(write)];
    steps.extend(destination.mode.map(|mode| set_permissions(path.clone(), mode).into()));
    steps.extend(destination.modified_at_ms.map(|ms| set_times(path.clone(), ms).into()));
    let core = fs.client.core();
    let disconnects = core.disconnects();
    // The server handles requests for one path in order, so one round trip is enough.
    let mut replies = Vec::new();
    for step in steps {
        replies.push(core.enqueue(step).await?);
    }
    for reply in replies {
        reply.await?;
    }
    // Answers come in any order: a write whose answer alone was lost was repeated after the time was set.
    if core.disconnects() != disconnects
        && let Some(ms) = destination.modified_at_ms
    {
        fs.client.call(set_times(path.clone(), ms)).await?;
    }
    temporary.put_in_place(&destination.path, size).await
}
