//! Forgotten processes whose starts could not be saved with their sessions, because the disk was full.
//!
//! The directory of such a process has another name and no output, so that it frees its space and is not taken for a
//! process; its start is still in it. Start at [`set_aside`] and [`read`].

use std::{
    collections::HashSet,
    fs, io,
    path::{Path, PathBuf},
};

use super::{DESCRIPTION, START_NOTE, SavedSession, SavedStart, SessionFiles, StartNote};
use crate::engine::Description;

/// The extension of the directory of such a process.
const FORGOTTEN: &str = "forgotten";

/// The start of a forgotten process, and where it is.
#[derive(Debug)]
pub(super) struct Forgotten {
    session: String,
    start: SavedStart,
    dir: PathBuf,
}

/// Deletes a log, but keeps the start that is noted in it. Needs no disk space.
pub(super) fn set_aside(log: &Path) -> io::Result<()> {
    let aside = log.with_extension(FORGOTTEN);
    if !aside.exists() {
        fs::rename(log, &aside)?;
    }
    remex_log::strip(&aside).or_else(|error| {
        tracing::warn!(%error, path = %aside.display(), "cannot free the space of a forgotten process");
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
            match start_in(&dir) {
                Ok((session, start)) => found.push(Forgotten { session, start, dir }),
                Err(error) => {
                    tracing::warn!(%error, path = %dir.display(), "cannot read the start of a forgotten process");
                }
            }
        }
    }
    Ok(found)
}

fn start_in(dir: &Path) -> io::Result<(String, SavedStart)> {
    let description: Description = serde_json::from_slice(&fs::read(dir.join(DESCRIPTION))?)?;
    let summary = remex_log::inspect(dir)?;
    let note = summary.notes.get(&START_NOTE).ok_or(io::ErrorKind::InvalidData)?;
    let StartNote { pid, at_ms } = serde_json::from_slice(note)?;
    let start = description.saved_start(pid, at_ms).ok_or(io::ErrorKind::InvalidData)?;
    Ok((description.session, start))
}

impl Forgotten {
    /// Adds the start to its session, and saves it there; deletes it if the session has ended.
    pub(super) fn restore(
        self,
        sessions: &mut [(SavedSession, Vec<SavedStart>)],
        unreadable: &HashSet<String>,
        files: &SessionFiles,
    ) {
        let Forgotten { session, start, dir } = self;
        if let Some((_, starts)) = sessions.iter_mut().find(|(saved, _)| saved.id == session) {
            drop(files.forget(&session, &start, dir));
            starts.push(start);
        } else if !unreadable.contains(&session) {
            let _ = remove(&dir);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use remex_log::{Hold, Options, Room, Stream, Unlimited, Writer};
    use serde_json::json;

    use super::*;
    use crate::durable::{SavedIdentity, SavedSessions};

    /// Creates the log of a process that has closed.
    fn create_log(dir: &Path) {
        fs::create_dir(dir).unwrap();
        let description = json!({
            "session": "s", "id": "p", "argv": ["true"], "cwd": "file:///", "tty": false, "labels": {},
            "askedAtMs": 1, "overflow": "evict", "closedTtlMs": 1, "retainBytes": 1, "startId": "start",
            "number": 1, "confined": "no",
        });
        fs::write(dir.join(DESCRIPTION), description.to_string()).unwrap();
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

    #[tokio::test]
    async fn a_start_that_cannot_be_saved_stays_in_what_is_left_of_the_log() {
        let state = tempfile::tempdir().unwrap();
        let [sessions, processes] = ["sessions", "processes"].map(|name| state.path().join(name));
        fs::create_dir(&sessions).unwrap();
        fs::create_dir(&processes).unwrap();
        let log = processes.join("0000000000000001");
        create_log(&log);
        let (_, start) = start_in(&log).unwrap();
        // Nothing can be appended to that.
        fs::create_dir(sessions.join("s.starts")).unwrap();
        SavedSessions::in_dir(sessions.clone()).forget("s", &start, log.clone()).unwrap();
        assert!(!log.exists());
        let [forgotten] = read(&processes).unwrap().try_into().unwrap();
        assert!(size_of(&forgotten.dir) < 4096, "its output is gone");
        assert_eq!((&*forgotten.session, &*forgotten.start.start_id), ("s", "start"));

        fs::remove_dir(sessions.join("s.starts")).unwrap();
        let files = SessionFiles::start(sessions.clone()).unwrap();
        let identity = SavedIdentity::Owner;
        let saved = SavedSession {
            id: "s".to_owned(),
            identity,
            name: None,
            client_name: String::new(),
            detach_ttl_ms: None,
            detached_at_ms: None,
            number: 1,
        };
        files.put(&saved).await.unwrap().unwrap();
        let mut found = [(saved, Vec::new())];
        forgotten.restore(&mut found, &HashSet::new(), &files);
        assert_eq!(found[0].1[0].start_id, "start");
        // Changes are made in their order.
        files.sync("s").await.unwrap().unwrap();
        assert!(fs::read_to_string(sessions.join("s.starts")).unwrap().contains("\"start\""));
        assert_eq!(fs::read_dir(&processes).unwrap().count(), 0, "it is deleted once its start is saved");
    }
}
