//! Where the body of a response goes: to stdout, or into a file that is replaced once the body is complete.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use crate::render::{failure::Failure, print, text};

/// Where a body goes.
#[derive(Debug)]
pub(super) enum Destination {
    Stdout,
    /// A device or a pipe.
    Special(File),
    File(PartialFile),
}

/// A file that is being written beside the one that it replaces; removed unless that happens.
#[derive(Debug)]
pub(super) struct PartialFile {
    file: File,
    part: PathBuf,
    path: PathBuf,
    is_finished: bool,
}

impl Destination {
    /// Opens the destination; `None` and `-` are stdout.
    pub(super) fn new(path: Option<&Path>) -> Result<Self, Failure> {
        let Some(path) = path.filter(|path| *path != Path::new("-")) else { return Ok(Self::Stdout) };
        let failed = |error: io::Error| failed(path, &error).named_by_flag();
        match fs::metadata(path) {
            Ok(there) if there.is_dir() => {
                let what = format!("cannot write to `{}`", text::plain(&path.display().to_string()));
                Err(Failure::usage(what, "name a file in it").because("it is a directory"))
            }
            Ok(there) if !there.is_file() => {
                Ok(Self::Special(OpenOptions::new().write(true).open(path).map_err(failed)?))
            }
            Ok(there) => {
                // A link stays a link, and the file keeps its permissions.
                let partial = PartialFile::new(fs::canonicalize(path).map_err(failed)?).map_err(failed)?;
                partial.file.set_permissions(there.permissions()).map_err(failed)?;
                Ok(Self::File(partial))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                Ok(Self::File(PartialFile::new(path.to_owned()).map_err(failed)?))
            }
            Err(error) => Err(failed(error)),
        }
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), Failure> {
        match self {
            Self::Stdout => print::out(bytes),
            Self::Special(file) => {
                file.write_all(bytes).map_err(|error| Failure::io("write the body", &error))
            }
            Self::File(partial) => {
                partial.file.write_all(bytes).map_err(|error| failed(&partial.path, &error))
            }
        }
    }

    /// Puts the file into its place.
    pub(super) fn finish(self) -> Result<(), Failure> {
        let Self::File(mut partial) = self else { return Ok(()) };
        fs::rename(&partial.part, &partial.path).map_err(|error| failed(&partial.path, &error))?;
        partial.is_finished = true;
        Ok(())
    }
}

impl PartialFile {
    fn new(path: PathBuf) -> io::Result<Self> {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let part = path.with_file_name(format!(".{name}.remex-{:08x}", std::process::id()));
        let file = OpenOptions::new().write(true).create_new(true).open(&part)?;
        Ok(Self { file, part, path, is_finished: false })
    }
}

impl Drop for PartialFile {
    fn drop(&mut self) {
        if !self.is_finished {
            let _ = fs::remove_file(&self.part);
        }
    }
}

fn failed(path: &Path, error: &io::Error) -> Failure {
    Failure::io(&format!("write `{}`", text::plain(&path.display().to_string())), error)
}
