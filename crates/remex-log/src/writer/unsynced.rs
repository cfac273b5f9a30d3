//! What a log has written that may not be on the medium. Start at [`Unsynced`].

use std::{fs::File, io, path::PathBuf};

use crate::names::SegmentName;

/// Files of a log that may not be on the medium; see [`crate::Writer::unsynced`].
#[derive(Debug)]
pub struct Unsynced {
    pub(super) dir: PathBuf,
    /// Segments that no longer grow.
    pub(super) sealed: Vec<SegmentName>,
    /// The newest segment when this was made, and its name.
    pub(super) tail: File,
    pub(super) name: SegmentName,
    pub(super) is_dir_synced: bool,
}

impl Unsynced {
    /// Waits until the files, and their names, are on the medium.
    ///
    /// # Errors
    ///
    /// The error of the file system.
    pub fn wait(&self) -> io::Result<()> {
        for name in &self.sealed {
            match File::open(self.dir.join(name.file_name())) {
                Ok(file) => file.sync_data()?,
                // It was evicted meanwhile.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        self.tail.sync_data()?;
        if !self.is_dir_synced {
            File::open(&self.dir)?.sync_all()?;
        }
        Ok(())
    }
}
