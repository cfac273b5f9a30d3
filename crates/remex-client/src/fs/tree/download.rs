//! Downloads a directory tree from the remote host.

use std::{
    io,
    os::unix::{
        ffi::OsStringExt as _,
        fs::{OpenOptionsExt as _, PermissionsExt as _, symlink},
    },
    path::{Path, PathBuf},
    sync::Arc,
    vec,
};

use remex_proto::fs::MetadataKind;
use tokio::{fs as local, io::AsyncWriteExt as _};

use super::{Counters, Jobs, OWNER, Progress, SMALL, Summary};
use crate::{
    Error,
    core::random_word,
    error::usage,
    fs::{
        AsHostPath, DirectoryEntry, Fs, Metadata, Pages,
        path::{entry_name, native, sibling},
    },
};

/// Set-user-id, set-group-id and sticky bits are not copied from another host.
const PERMISSIONS: u32 = 0o777;

impl Fs {
    /// Copies the contents of a remote directory into a local one, which is created if missing.
    ///
    /// Permissions are preserved except set-user-id, set-group-id and sticky; links are copied as links, whatever their
    /// target. Nothing is ever written outside `to`, even if the server is malicious: links below `to` are replaced, not
    /// followed. Each file is replaced atomically. Other existing files stay. Pipes, sockets and devices are skipped and
    /// counted.
    ///
    /// # Errors
    ///
    /// [`Error::Local`] when something cannot be written, [`Error::Protocol`] for an invalid name, and those of
    /// [`Fs::download`]. The download stops at the first failure; files copied before that stay.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// # let (there, here) = (directory.path().join("project"), tempfile::tempdir()?);
    /// fs.create_dir(&there).await?;
    /// fs.write(there.join("main.c"), "int main(void) {}\n").await?;
    /// let summary = fs.download_tree(&there, here.path(), |progress| println!("{}", progress.current)).await?;
    /// assert_eq!(summary.files, 1);
    /// assert!(here.path().join("main.c").exists());
    /// # Ok(()) }
    /// ```
    pub async fn download_tree(
        &self,
        from: impl AsHostPath,
        to: impl AsRef<Path>,
        progress: impl FnMut(&Progress),
    ) -> Result<Summary, Error> {
        let from = native(&from.as_host_path()?)?.to_owned();
        let counters = Arc::new(Counters::default());
        let download = Download { fs: self.clone(), counters: Arc::clone(&counters) };
        counters.follow(Box::pin(download.tree(from, to.as_ref().to_owned())), progress).await
    }
}

#[derive(Clone)]
struct Download {
    fs: Fs,
    counters: Arc<Counters>,
}

/// A directory that is being read.
struct Frame {
    from: PathBuf,
    to: PathBuf,
    pages: Pages,
    page: vec::IntoIter<DirectoryEntry>,
    /// The permissions to set once all its entries are copied.
    at_last: Option<u32>,
}

impl Download {
    async fn tree(self, from: PathBuf, to: PathBuf) -> Result<(), Error> {
        let mut jobs = Jobs::default();
        let mut frames = vec![self.top(from, to).await?];
        while let Some(frame) = frames.last_mut() {
            let Some(entry) = frame.page.next() else {
                if let Some(page) = frame.pages.next().await? {
                    frame.page = page.into_iter();
                } else if let Some(Frame { to, at_last: Some(mode), .. }) = frames.pop() {
                    jobs.finish().await?;
                    set_mode(&to, mode).await?;
                }
                continue;
            };
            let name = entry_name(&frame.from, &entry)?;
            let (from, to) = (frame.from.join(&name), frame.to.join(&name));
            let metadata = match entry.metadata {
                Some(metadata) => *metadata,
                None => self.fs.metadata(&from).await?,
            };
            let download = self.clone();
            match kind(&metadata) {
                Some(MetadataKind::Directory) => {
                    frames.push(self.enter(from, to, metadata.mode).await?);
                    self.counters.count(&self.counters.directories, 1);
                }
                Some(MetadataKind::File) => {
                    jobs.begin(async move { download.file(&from, &to, &metadata).await }).await?;
                }
                Some(MetadataKind::Symlink) if !self.fs.is_base() => {
                    jobs.begin(async move { download.link(&from, &to).await }).await?;
                }
                _ => self.counters.count(&self.counters.skipped, 1),
            }
        }
        jobs.finish().await
    }

    /// Creates the root directory; the path given by the caller may be a link.
    async fn top(&self, from: PathBuf, to: PathBuf) -> Result<Frame, Error> {
        let metadata = self.fs.metadata(&from).await?;
        if !metadata.is_directory {
            let message = format!("`{}` is not a directory", from.display());
            return Err(usage(message, "download it as a file"));
        }
        if local::metadata(&to).await.is_ok_and(|there| there.is_dir()) {
            return self.frame(from, to, None);
        }
        if let Some(parent) = to.parent() {
            local::create_dir_all(parent).await.map_err(unwritable(parent))?;
        }
        self.enter(from, to, metadata.mode).await
    }

    /// Creates a directory, and starts to read its source.
    async fn enter(&self, from: PathBuf, to: PathBuf, mode: Option<u32>) -> Result<Frame, Error> {
        if let Err(error) = local::create_dir(&to).await {
            // A link could point outside of the tree.
            let is_directory = local::symlink_metadata(&to).await.is_ok_and(|there| there.is_dir());
            if error.kind() != io::ErrorKind::AlreadyExists || !is_directory {
                return Err(unwritable(&to)(error));
            }
        }
        let mut at_last = None;
        if let Some(mode) = mode {
            let mode = mode & PERMISSIONS;
            set_mode(&to, mode | OWNER).await?;
            at_last = Some(mode).filter(|mode| mode & OWNER != OWNER);
        }
        self.frame(from, to, at_last)
    }

    fn frame(&self, from: PathBuf, to: PathBuf, at_last: Option<u32>) -> Result<Frame, Error> {
        let pages = self.fs.read_dir_pages(&from)?;
        Ok(Frame { from, to, pages, page: Vec::new().into_iter(), at_last })
    }

    async fn file(&self, from: &Path, to: &Path, metadata: &Metadata) -> Result<(), Error> {
        self.counters.begin(from);
        let failed = unwritable(to);
        let mut options = std::fs::OpenOptions::new();
        // Replaces a link, never follows it.
        options.write(true).create_new(true).mode(if metadata.mode.is_some() { 0o600 } else { 0o666 });
        let made = Temporary::beside(to, move |path| options.open(path)).await;
        let (temporary, file) = made.map_err(&failed)?;
        let mut file = local::File::from_std(file);
        if metadata.size <= SMALL as u64 {
            let content = self.fs.read(from).await?;
            file.write_all(&content).await.map_err(&failed)?;
            self.counters.count(&self.counters.bytes, content.len() as u64);
        } else {
            self.fs.download(from, &mut file, self.counters.bytes_of_file()).await?;
        }
        file.flush().await.map_err(&failed)?;
        if let Some(mode) = metadata.mode {
            set_mode(&temporary.0, mode & PERMISSIONS).await?;
        }
        local::rename(&temporary.0, to).await.map_err(&failed)?;
        temporary.moved();
        self.counters.count(&self.counters.files, 1);
        Ok(())
    }

    async fn link(&self, from: &Path, to: &Path) -> Result<(), Error> {
        self.counters.begin(from);
        let link = self.fs.read_link(from).await?;
        let target = PathBuf::from(std::ffi::OsString::from_vec(link.target_base64.to_vec()));
        let failed = unwritable(to);
        let made = Temporary::beside(to, move |path| symlink(target, path)).await;
        let (temporary, ()) = made.map_err(&failed)?;
        local::rename(&temporary.0, to).await.map_err(&failed)?;
        temporary.moved();
        self.counters.count(&self.counters.links, 1);
        Ok(())
    }
}

/// A local temporary file, removed on drop unless it was renamed.
struct Temporary(PathBuf);

impl Temporary {
    /// Creates a file beside `path`; a cancelled call leaves no file behind.
    async fn beside<T: Send + 'static>(
        path: &Path,
        make: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> io::Result<(Self, T)> {
        let path = sibling(path, &random_word()).expect("entry names are single path components");
        let made = tokio::task::spawn_blocking(move || make(&path).map(|made| (Self(path), made))).await;
        made.map_err(io::Error::other)?
    }

    fn moved(mut self) {
        self.0 = PathBuf::new();
    }
}

impl Drop for Temporary {
    fn drop(&mut self) {
        if !self.0.as_os_str().is_empty() {
            // The caller already receives the error that caused this.
            let _ = std::fs::remove_file(&self.0);
        }
    }
}

/// Returns the kind of an entry; a link counts as a link even if the server does not report its target.
fn kind(metadata: &Metadata) -> Option<MetadataKind> {
    match metadata.kind {
        _ if metadata.is_symlink => Some(MetadataKind::Symlink),
        Some(kind) => Some(kind),
        None if metadata.is_directory => Some(MetadataKind::Directory),
        None if metadata.is_file => Some(MetadataKind::File),
        None => None,
    }
}

async fn set_mode(path: &Path, mode: u32) -> Result<(), Error> {
    local::set_permissions(path, std::fs::Permissions::from_mode(mode)).await.map_err(unwritable(path))
}

fn unwritable(path: &Path) -> impl Fn(io::Error) -> Error {
    move |error| Error::local(format!("write `{}`", path.display()), &error)
}
