//! Which logs of closed processes are no longer needed. Pure, except for the size of a directory. Start at [`Rule`].

use std::{fs, os::unix::fs::MetadataExt as _, path::Path};

/// Which closed processes lose their logs; without any condition, all of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rule {
    /// Those that ended at least this long ago.
    pub older_than_ms: Option<u64>,
    /// As many as it takes until the others need at most this much disk space.
    pub keep_bytes: Option<u64>,
}

/// The log of a closed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ClosedLog {
    /// When the process ended, in milliseconds since 1970.
    pub ended_at_ms: u64,
    /// The space that its log uses.
    pub bytes: u64,
}

impl Rule {
    /// Returns how many of these logs, the ones that ended first, are to be deleted; `others` is the disk space of logs
    /// that must stay.
    pub fn select(&self, logs: &[ClosedLog], others: u64, now_ms: u64) -> usize {
        let Rule { older_than_ms, keep_bytes } = *self;
        if older_than_ms.is_none() && keep_bytes.is_none() {
            return logs.len();
        }
        let by_age = older_than_ms
            .map_or(0, |age| logs.partition_point(|log| log.ended_at_ms.saturating_add(age) <= now_ms));
        let by_size = keep_bytes.map_or(0, |keep| {
            let mut left = logs.iter().map(|log| log.bytes).fold(others, u64::saturating_add);
            logs.iter()
                .take_while(|log| {
                    let is_too_much = left > keep;
                    left = left.saturating_sub(log.bytes);
                    is_too_much
                })
                .count()
        });
        by_age.max(by_size)
    }
}

/// Returns the disk space of the files in a directory.
pub fn disk_space(dir: &Path) -> u64 {
    let files = fs::read_dir(dir).into_iter().flatten().flatten();
    files.filter_map(|file| file.metadata().ok()).map(|file| file.blocks() * 512).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_logs_go_first_and_no_more_than_asked() {
        let logs =
            [(10, 100), (20, 50), (30, 70)].map(|(ended_at_ms, bytes)| ClosedLog { ended_at_ms, bytes });
        let selected =
            |older_than_ms, keep_bytes, others| Rule { older_than_ms, keep_bytes }.select(&logs, others, 30);
        assert_eq!(selected(None, None, 0), 3, "all of them");
        assert_eq!(selected(Some(10), None, 0), 2, "an age that is reached counts");
        assert_eq!(selected(Some(21), None, 0), 0);
        assert_eq!(selected(Some(u64::MAX), None, 0), 0);
        assert_eq!(selected(None, Some(220), 0), 0, "it fits already");
        assert_eq!(selected(None, Some(219), 0), 1);
        assert_eq!(selected(None, Some(120), 0), 1);
        assert_eq!(selected(None, Some(119), 0), 2);
        assert_eq!(selected(None, Some(0), 0), 3);
        assert_eq!(selected(None, Some(130), 10), 1, "what must stay counts");
        assert_eq!(selected(Some(20), Some(119), 0), 2, "what either selects");
        assert_eq!(Rule::default().select(&[], 5, 0), 0);
    }
}
