//! Uploads a directory tree to the remote host.

use std::{
    io,
    os::unix::fs::PermissionsExt as _,
    path::{Path, PathBuf},
    sync::Arc,
};

use remex_proto::HostPath;
use tokio::{
    fs::{self as local, ReadDir},
    io::AsyncReadExt as _,
};

use super::{Counters, Jobs, OWNER, Progress, SMALL, Summary};
use crate::{
    Error,
    error::usage,
    fs::{AsHostPath, Fs, path::native},
};

impl Fs {
    /// Copies the contents of a local directory into a remote one, which is created if missing.
    ///
    /// Permissions are preserved, and links are copied as links. Each file is replaced atomically; links below `to` are
    /// replaced, not followed. Other existing files stay. Pipes, sockets and devices are skipped and counted. A server of
    /// the base dialect writes in place and follows links.
    ///
    /// # Errors
    ///
    /// [`Error::Local`] when something cannot be read, [`Error::Usage`] when a link exists at the path of a directory, and
    /// those of [`Fs::upload`]. The upload stops at the first failure; files copied before that stay.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (here, there) = (tempfile::tempdir()?, directory.path().join("project"));
    /// std::fs::write(here.path().join("main.c"), "int main(void) {}\n")?;
    /// let summary = fs.upload_tree(here.path(), &there, |progress| println!("{}", progress.current)).await?;
    /// assert_eq!(summary.files, 1);
    /// assert!(fs.exists(there.join("main.c")).await?);
    /// # Ok(()) }
    /// ```
    pub async fn upload_tree(
        &self,
        from: impl AsRef<Path>,
        to: impl AsHostPath,
        progress: impl FnMut(&Progress),
    ) -> Result<Summary, Error> {
        let to = native(&to.as_host_path()?)?.to_owned();
        let counters = Arc::new(Counters::default());
        let upload = Upload { fs: self.clone(), counters: Arc::clone(&counters) };
        counters.follow(Box::pin(upload.tree(from.as_ref().to_owned(), to)), progress).await
    }
}

#[derive(Clone)]
struct Upload {
    fs: Fs,
    counters: Arc<Counters>,
}

/// A directory that is being read.
struct Frame {
    from: PathBuf,
    to: PathBuf,
    entries: ReadDir,
    /// The permissions to set once all its entries are copied.
    at_last: Option<u32>,
}

impl Upload {
    async fn tree(self, from: PathBuf, to: PathBuf) -> Result<(), Error> {
        let mut jobs = Jobs::default();
        let mut frames = vec![self.top(from, to).await?];
        while let Some(frame) = frames.last_mut() {
            let entry = frame.entries.next_entry().await.map_err(unreadable(&frame.from))?;
            let Some(entry) = entry else {
                if let Some(Frame { to, at_last: Some(mode), .. }) = frames.pop() {
                    jobs.finish().await?;
                    self.fs.set_permissions(&to, mode).await?;
                }
                continue;
            };
            let (from, to) = (entry.path(), frame.to.join(entry.file_name()));
            let kind = entry.file_type().await.map_err(unreadable(&from))?;
            if kind.is_dir() {
                frames.push(self.enter(from, to).await?);
                self.counters.count(&self.counters.directories, 1);
            } else if kind.is_file() {
                let upload = self.clone();
                jobs.begin(async move { upload.file(&from, to.into()).await }).await?;
            } else if kind.is_symlink() && !self.fs.is_base() {
                let upload = self.clone();
                jobs.begin(async move { upload.link(&from, to.into()).await }).await?;
            } else {
                self.counters.count(&self.counters.skipped, 1);
            }
        }
        jobs.finish().await
    }

    /// Creates the root directory; the path given by the caller may be a link.
    async fn top(&self, from: PathBuf, to: PathBuf) -> Result<Frame, Error> {
        match self.fs.metadata(&to).await {
            Ok(there) if there.is_directory => {
                let entries = local::read_dir(&from).await.map_err(unreadable(&from))?;
                Ok(Frame { from, to, entries, at_last: None })
            }
            _ => self.enter(from, to).await,
        }
    }

    /// Creates a directory, and starts to read its source.
    async fn enter(&self, from: PathBuf, to: PathBuf) -> Result<Frame, Error> {
        let entries = local::read_dir(&from).await.map_err(unreadable(&from))?;
        self.fs.create_dir_all(&to).await?;
        let mut at_last = None;
        if !self.fs.is_base() {
            if self.fs.metadata(&to).await?.is_symlink {
                return Err(usage(
                    format!(
                        "cannot upload into `{}`: it is a symbolic link, which could point outside of the tree",
                        to.display()
                    ),
                    "remove it",
                ));
            }
            let metadata = local::metadata(&from).await.map_err(unreadable(&from))?;
            let mode = metadata.permissions().mode() & 0o7777;
            self.fs.set_permissions(&to, mode | OWNER).await?;
            at_last = Some(mode).filter(|mode| mode & OWNER != OWNER);
        }
        Ok(Frame { from, to, entries, at_last })
    }

    async fn file(&self, from: &Path, to: HostPath) -> Result<(), Error> {
        self.counters.begin(from);
        let mut file = local::File::open(from).await.map_err(unreadable(from))?;
        let metadata = file.metadata().await.map_err(unreadable(from))?;
        let mode = metadata.permissions().mode() & 0o7777;
        let mut start = Vec::new();
        (&mut file).take(SMALL as u64 + 1).read_to_end(&mut start).await.map_err(unreadable(from))?;
        let destination = self.fs.destination_in_tree(to, mode).await?;
        if start.len() > SMALL {
            let whole = start.as_slice().chain(file);
            self.fs.send(whole, destination, self.counters.bytes_of_file()).await?;
        } else {
            let len = start.len() as u64;
            self.fs.send_small(start.into(), destination).await?;
            self.counters.count(&self.counters.bytes, len);
        }
        self.counters.count(&self.counters.files, 1);
        Ok(())
    }

    async fn link(&self, from: &Path, to: HostPath) -> Result<(), Error> {
        self.counters.begin(from);
        let target = local::read_link(from).await.map_err(unreadable(from))?;
        self.fs.replace_with_symlink(target, to).await?;
        self.counters.count(&self.counters.links, 1);
        Ok(())
    }
}

fn unreadable(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::local(format!("read `{}`", path.display()), &error)
}
