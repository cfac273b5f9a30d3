//! Copies a file from a remote host to this one.

use std::path::Path;

use tokio::io::AsyncWriteExt as _;

use super::{
    CopyPath, SMALL, TRIES, is_same,
    local::{self, Temporary, blocking, unwritable},
    modified,
};
use crate::{Error, api::fs::Metadata};

/// Copies a file that was listed with `metadata`, and returns its size; calls `note` with the number of bytes that are
/// at the destination.
pub(super) async fn download(
    from: &CopyPath,
    metadata: &Metadata,
    to: &Path,
    mut note: impl FnMut(u64),
) -> Result<u64, Error> {
    if metadata.size <= SMALL as u64 {
        return small_file(from, metadata.clone(), to).await;
    }
    let (own, listed) = (to.to_owned(), metadata.clone());
    let failed = unwritable(to);
    // Created in one step with what removes it, so that a cancelled copy leaves nothing behind.
    let made = blocking(move || Temporary::file(&own, &listed)).await;
    let (temporary, file) = made.map_err(&failed)?;
    let mut file = tokio::fs::File::from_std(file);
    let bytes = from.fs.receive(from.path.clone().into(), &mut file, |progress| note(progress.bytes)).await?;
    file.flush().await.map_err(&failed)?;
    // If the file changed after it was listed, its time tells the next copy that it is outdated.
    let (own, listed, file) = (to.to_owned(), metadata.clone(), file.into_std().await);
    blocking(move || temporary.complete(&file, &listed, &own)).await.map_err(&failed)?;
    Ok(bytes)
}

/// Copies a file in one message; reads it again if it changes meanwhile.
async fn small_file(from: &CopyPath, mut metadata: Metadata, to: &Path) -> Result<u64, Error> {
    let CopyPath { fs, path, .. } = from;
    for _ in 0..=TRIES {
        // The server handles requests for one path in order.
        let (content, now) = tokio::try_join!(fs.read(path), fs.metadata(path))?;
        // Files of the kernel, as in `/proc`, have content although their size is 0, and their time is meaningless.
        let is_unchanged = metadata.size == 0
            || modified(&metadata).is_none()
            || is_same(&now, &metadata) && content.len() as u64 == now.size;
        if is_unchanged {
            let len = content.len() as u64;
            local::write(to, content, &metadata).await?;
            return Ok(len);
        }
        metadata = now;
    }
    Err(Error::Changed { path: path.display().to_string() })
}
