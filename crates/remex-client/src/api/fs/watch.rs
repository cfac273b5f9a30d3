//! Watching files for changes on the remote host.

use std::sync::Arc;

use remex_proto::{HostPath, fs as wire, sandbox::Sandbox};

use super::{AsHostPath, Change, Fs};
use crate::{
    Client, Error,
    core::shared::{Route, RouteEvent, RouteKey},
};

/// How deep a watch goes.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::Depth;
///
/// fs.create_dir(directory.path().join("below")).await?;
/// let mut watch = fs.watch(directory.path(), Depth::Everything).await?;
/// fs.write(directory.path().join("below/greeting"), "hello\n").await?;
/// assert!(!watch.next().await?.changes.is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Depth {
    /// The whole tree, including directories created later; links are not followed.
    #[default]
    Everything,
    /// The directory and its entries.
    Directory,
}

/// The changes since the previous batch.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::Depth;
///
/// let mut watch = fs.watch(directory.path(), Depth::Directory).await?;
/// fs.write(directory.path().join("greeting"), "hello\n").await?;
/// let news = watch.next().await?;
/// assert!(news.overflow || !news.changes.is_empty());
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Changes {
    /// Each path once, however often it changed.
    pub changes: Vec<Change>,
    /// Changes may be missing: rescan everything.
    pub overflow: bool,
}

impl Fs {
    /// Watches an existing file or directory; reports every change after this function returns.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when it does not exist or the host cannot watch more, and those of [`Client::call`].
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::Depth;
    ///
    /// let mut watch = fs.watch(directory.path(), Depth::Everything).await?;
    /// fs.write(directory.path().join("greeting"), "hello\n").await?;
    /// for change in watch.next().await?.changes {
    ///     println!("{:?} {}", change.kind, change.path);
    /// }
    /// # Ok(()) }
    /// ```
    pub async fn watch(&self, path: impl AsHostPath, depth: Depth) -> Result<Watch, Error> {
        let path = path.as_host_path()?;
        let mut watch =
            Watch { client: self.client.clone(), path, depth, id: 0, route: Arc::default(), is_set: false };
        watch.set().await?;
        Ok(watch)
    }
}

/// The changes below one path.
///
/// After a disconnect the watch is set up again and reports an overflow, because changes may have been missed. Up to a
/// thousand unread notifications are buffered; beyond that they collapse into one overflow.
/// Dropping it ends the watch.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// use remex_client::fs::{ChangeKind, Depth};
///
/// let path = directory.path().join("greeting");
/// let mut watch = fs.watch(directory.path(), Depth::Directory).await?;
/// fs.write(&path, "hello\n").await?;
/// let change = watch.next().await?.changes.remove(0);
/// assert_eq!((change.kind, change.path.native()?), (ChangeKind::Created, path.as_path()));
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Watch {
    client: Client,
    path: HostPath,
    depth: Depth,
    /// The id of the watch on the server; a new one after each disconnect.
    id: u64,
    route: Arc<Route>,
    is_set: bool,
}

impl Watch {
    /// Waits for changes. Cancel-safe.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the path cannot be watched again after a disconnect, and [`Error::Protocol`] when the
    /// server sends an invalid notification; a later call tries again. [`Error::Lost`] when the session is lost.
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::Depth;
    /// use tokio::time::{Duration, timeout};
    ///
    /// // Nothing happens, so nothing is reported.
    /// let mut watch = fs.watch(directory.path(), Depth::Directory).await?;
    /// assert!(timeout(Duration::from_millis(10), watch.next()).await.is_err());
    /// # Ok(()) }
    /// ```
    pub async fn next(&mut self) -> Result<Changes, Error> {
        if self.is_set {
            match self.route.next().await {
                RouteEvent::Changed(wire::Changed { changes, overflow, .. }) => {
                    return Ok(Changes { changes, overflow });
                }
                RouteEvent::Broken(error) => {
                    self.unset();
                    return Err(error);
                }
                RouteEvent::Lost(loss) => return Err(loss.into()),
                RouteEvent::Disconnected
                | RouteEvent::Body(_)
                | RouteEvent::Process { .. }
                | RouteEvent::SessionEnded
                | RouteEvent::Overrun { .. } => self.unset(),
            }
        }
        self.set().await?;
        Ok(Changes { changes: Vec::new(), overflow: true })
    }

    async fn set(&mut self) -> Result<(), Error> {
        loop {
            // Removes the watch of an earlier attempt that was cancelled.
            self.unset();
            self.id = self.client.core().number();
            self.route = Arc::default();
            self.client.core().add_route(RouteKey::Watch(self.id), &self.route);
            let request = wire::Watch {
                watch_id: self.id,
                path: self.path.clone(),
                recursive: Some(self.depth == Depth::Everything),
                sandbox: Sandbox::default(),
            };
            match self.client.call_without_limit(request).await {
                Ok(_) => {
                    self.is_set = true;
                    return Ok(());
                }
                // A watch ends with its connection; the next attempt waits for a new one.
                Err(Error::Interrupted { .. }) => {}
                Err(error) => {
                    self.client.core().remove_route(&RouteKey::Watch(self.id));
                    self.id = 0;
                    return Err(error);
                }
            }
        }
    }

    fn unset(&mut self) {
        self.is_set = false;
        let watch_id = std::mem::take(&mut self.id);
        if watch_id != 0 {
            self.client.core().remove_route(&RouteKey::Watch(watch_id));
            self.client.core().enqueue_unbounded(wire::Unwatch { watch_id }.into());
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.unset();
    }
}
