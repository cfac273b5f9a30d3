//! Searching the files of a tree.

use remex_proto::{fs as wire, sandbox::Sandbox};

use super::{AsHostPath, Fs, SearchOptions, SearchReply};
use crate::Error;

impl Fs {
    /// Searches a file, or all files below a directory, on the remote host, which needs no program for that.
    ///
    /// As ripgrep does, it follows no links, and leaves out binary files and what `.gitignore` files exclude; hidden files
    /// are searched. A limit ends it with what it has found.
    ///
    /// # Errors
    ///
    /// [`Error::Refused`] when the pattern or the path is wrong, with
    /// [`ErrorKind::UnknownMethod`](crate::ErrorKind::UnknownMethod) by a server that is too old for it, and those of
    /// [`Client::call`](crate::Client::call).
    ///
    /// ```
    /// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
    /// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
    /// use remex_client::fs::SearchOptions;
    ///
    /// fs.write(directory.path().join("list"), "one\ntwo\n").await?;
    /// let found = fs.search(directory.path(), SearchOptions::pattern(r"^t\w+").glob("l*")).await?;
    /// assert_eq!((found.files[0].lines[0].number, found.files[0].lines[0].text.as_str()), (2, "two"));
    /// # Ok(()) }
    /// ```
    pub async fn search(&self, path: impl AsHostPath, options: SearchOptions) -> Result<SearchReply, Error> {
        let path = path.as_host_path()?;
        self.client.call(wire::SearchFiles { path, options, sandbox: Sandbox::default() }).await
    }
}
