//! Forgotten processes whose starts could not be saved with their sessions, because the disk was full.
//!
//! The directory of such a process has another name and no output, so that it frees its space and is not taken for a
//! process; its start is still in it. Start at [`set_aside`] and [`read`].

use std::{
    fs, io,
    path::{Path, PathBuf},
};

use remex_base::trace::LOG_TARGET;

use super::{DESCRIPTION, START_NOTE, StartNote};
use crate::state::state_dir;

/// The extension of the directory of such a process.
const FORGOTTEN: &str = "forgotten";

/// The start of a forgotten process.
#[derive(Debug)]
pub struct Forgotten {
    /// The description of the process.
    pub description: Vec<u8>,
    /// The start, as far as it is known.
    pub start: StartNote,
    /// Where it is.
    pub dir: PathBuf,
}

/// Deletes a log, but keeps the start that is noted in it. Needs no disk space.
pub(super) fn set_aside(log: &Path) -> io::Result<()> {
    let aside = log.with_extension(FORGOTTEN);
    if !aside.exists() {
        fs::rename(log, &aside)?;
    }
    remex_log::discard_output(&aside).or_else(|error| {
        tracing::warn!(target: LOG_TARGET, %error, path = %aside.display(), "cannot free the space of a forgotten process");
        Ok(())
    })
}

/// Deletes what [`set_aside`] has left of a log.
pub(super) fn remove(log: &Path) -> io::Result<()> {
    match fs::remove_dir_all(log.with_extension(FORGOTTEN)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Returns all of them in a directory of processes.
pub(super) fn read(processes: &Path) -> io::Result<Vec<Forgotten>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(processes)? {
        let dir = entry?.path();
        if dir.extension().is_some_and(|kind| kind == FORGOTTEN) {
            match Forgotten::read(dir.clone()) {
                Ok(forgotten) => found.push(forgotten),
                Err(error) => {
                    tracing::warn!(target: LOG_TARGET, %error, path = %dir.display(), "cannot read the start of a forgotten process");
                }
            }
        }
    }
    Ok(found)
}

impl Forgotten {
    fn read(dir: PathBuf) -> io::Result<Self> {
        let description = state_dir::read(&dir.join(DESCRIPTION))?;
        let summary = remex_log::inspect(&dir)?;
        let note = summary.notes.get(&START_NOTE).ok_or(io::ErrorKind::InvalidData)?;
        Ok(Forgotten { description, start: serde_json::from_slice(note)?, dir })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use remex_log::{Hold, Options, Room, Stream, Unlimited, Writer};

    use super::*;
    use crate::state::durable::{SavedOutcome, SavedSessions, SavedStart};

    /// Creates the log of a process that has closed.
    fn create_log(dir: &Path) {
        fs::create_dir(dir).unwrap();
        fs::write(dir.join(DESCRIPTION), "description").unwrap();
        let options = Options { retain_bytes: 1 << 20, segment_bytes: Some(64 << 10) };
        let mut writer = Writer::create(dir, options, Arc::new(Unlimited)).unwrap();
        writer.note(START_NOTE, &serde_json::to_vec(&StartNote { pid: 7, at_ms: 8 }).unwrap()).unwrap();
        for _ in 0..100 {
            let Room::Bytes(room) = writer.room(Hold::Nothing) else { panic!("it is full") };
            writer.append(Stream::Stdout, 1, room, |spare| io::Result::Ok(spare.len().min(10_000))).unwrap();
        }
        writer.closed(2, &[]).unwrap();
    }

    fn size_of(dir: &Path) -> u64 {
        fs::read_dir(dir).unwrap().map(|file| file.unwrap().metadata().unwrap().len()).sum()
    }

    #[test]
    fn a_start_that_cannot_be_saved_stays_in_the_remaining_log() {
        let state = tempfile::tempdir().unwrap();
        let [sessions, processes] = ["sessions", "processes"].map(|name| state.path().join(name));
        fs::create_dir(&sessions).unwrap();
        fs::create_dir(&processes).unwrap();
        let log = processes.join("0000000000000001");
        create_log(&log);
        let outcome = SavedOutcome::Begun;
        let start = SavedStart {
            start_id: "start".to_owned(),
            process_id: "p".to_owned(),
            restarted: false,
            outcome,
        };
        // Nothing can be appended to that.
        fs::create_dir(sessions.join("s.starts")).unwrap();
        let saved = SavedSessions::in_dir(sessions.clone());
        saved.forget("s", &start, &log).unwrap();
        assert!(!log.exists());
        let [forgotten] = read(&processes).unwrap().try_into().unwrap();
        assert!(size_of(&forgotten.dir) < 4096, "its output is gone");
        assert_eq!((&*forgotten.description, forgotten.start.pid), (&b"description"[..], 7));

        fs::remove_dir(sessions.join("s.starts")).unwrap();
        saved.forget("s", &start, &forgotten.dir).unwrap();
        assert!(fs::read_to_string(sessions.join("s.starts")).unwrap().contains("\"start\""));
        assert_eq!(fs::read_dir(&processes).unwrap().count(), 0, "it is deleted once its start is saved");
    }
}
