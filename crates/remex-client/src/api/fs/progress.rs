//! How far a transfer of a file or tree is.

/// The progress of a transfer.
///
/// ```
/// # #[tokio::main] async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let client = remex_client::Client::connect(remex::Local::here()?.target()).await?;
/// # let (fs, directory) = (client.fs(), tempfile::tempdir()?);
/// let (mut last, path) = (0, directory.path().join("image"));
/// fs.upload(&[0; 1 << 20][..], &path).progress(|progress| last = progress.bytes).await?;
/// assert_eq!(last, 1 << 20);
/// # Ok(()) }
/// ```
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Progress {
    /// Files that are complete at the destination, including unchanged ones.
    pub files: u64,
    /// Bytes that are at the destination, including those of unchanged files.
    pub bytes: u64,
    /// The number of files, once it is known.
    pub total_files: Option<u64>,
    /// The size of all files, once it is known; they may grow meanwhile.
    pub total_bytes: Option<u64>,
    /// The file that was started last.
    pub current: String,
}

impl Progress {
    /// Returns the progress of a single file.
    pub(super) fn of_file(current: String, total_bytes: Option<u64>) -> Self {
        Self { total_files: Some(1), total_bytes, current, ..Self::default() }
    }
}
