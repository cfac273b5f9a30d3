//! Reading the names in a directory, and keeping only the smallest of very many.

use std::{
    cmp::Ordering,
    ffi::{CStr, OsStr, OsString},
    os::{fd::AsFd, unix::ffi::OsStrExt as _},
};

use rustix::{
    fs::{AtFlags, FileType, RawDir, statat},
    io::Errno,
};

/// The buffer for one system call, as large as the one of the C library.
const BATCH: usize = 32 * 1024;

/// Calls `visit` with the name and kind of each entry except `.` and `..`, in no particular order.
///
/// File systems that do not report the kind cost one extra system call per entry.
pub(crate) fn for_each<E: From<Errno>>(
    directory: impl AsFd,
    mut visit: impl FnMut(&CStr, FileType) -> Result<(), E>,
) -> Result<(), E> {
    let mut batch = Vec::with_capacity(BATCH);
    let mut entries = RawDir::new(directory.as_fd(), batch.spare_capacity_mut());
    while let Some(entry) = entries.next() {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        let kind = match entry.file_type() {
            FileType::Unknown => match statat(directory.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(stat) => FileType::from_raw_mode(stat.st_mode),
                Err(Errno::NOENT) => continue,
                Err(error) => return Err(error.into()),
            },
            kind => kind,
        };
        visit(name, kind)?;
    }
    Ok(())
}

/// Converts a name for use in paths.
pub(crate) fn os_str(name: &CStr) -> &OsStr {
    OsStr::from_bytes(name.to_bytes())
}

/// Keeps the smallest names pushed; its memory does not grow with their number.
#[derive(Debug)]
pub(crate) struct Smallest<T> {
    /// At most twice the limit.
    items: Vec<(OsString, T)>,
    limit: usize,
    /// Number of names pushed.
    pushed: usize,
}

impl<T> Smallest<T> {
    pub(crate) fn new(limit: usize) -> Self {
        Self { items: Vec::new(), limit, pushed: 0 }
    }

    /// Adds a name and its item.
    pub(crate) fn push(&mut self, name: &OsStr, item: T) {
        self.pushed += 1;
        self.items.push((name.to_owned(), item));
        if self.items.len() > 2 * self.limit {
            self.shrink();
        }
    }

    /// Returns the names in byte order, and whether there were more.
    pub(crate) fn into_sorted(mut self) -> (Vec<(OsString, T)>, bool) {
        self.shrink();
        self.items.sort_unstable_by(by_name);
        (self.items, self.pushed > self.limit)
    }

    fn shrink(&mut self) {
        if self.items.len() > self.limit {
            self.items.select_nth_unstable_by(self.limit, by_name);
            self.items.truncate(self.limit);
        }
    }
}

fn by_name<T>(one: &(OsString, T), other: &(OsString, T)) -> Ordering {
    one.0.cmp(&other.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn smallest(limit: usize, names: impl IntoIterator<Item = u32>) -> (Vec<u32>, bool) {
        let mut smallest = Smallest::new(limit);
        for name in names {
            smallest.push(OsStr::new(&format!("{name:04}")), name);
            assert!(smallest.items.len() <= 2 * limit);
        }
        let (items, more) = smallest.into_sorted();
        (items.into_iter().map(|(_, name)| name).collect(), more)
    }

    #[test]
    fn the_smallest_are_kept_whatever_the_order() {
        assert_eq!(smallest(3, []), (vec![], false));
        assert_eq!(smallest(3, [3, 1, 2]), (vec![1, 2, 3], false));
        assert_eq!(smallest(3, [4, 3, 1, 2]), (vec![1, 2, 3], true));
        assert_eq!(smallest(1, (0..100).rev()), (vec![0], true));
        // 7 and 1000 are coprime, so this yields every number once, well mixed.
        assert_eq!(smallest(5, (0..1000).map(|n| n * 7 % 1000)), (vec![0, 1, 2, 3, 4], true));
    }

    #[test]
    fn entries_are_those_of_the_directory() {
        let directory = std::fs::File::open("/proc/self").unwrap();
        let mut seen = Vec::new();
        for_each(&directory, |name, kind| {
            seen.push((os_str(name).to_owned(), kind));
            Ok::<_, Errno>(())
        })
        .unwrap();
        assert!(seen.contains(&("exe".into(), FileType::Symlink)));
        assert!(seen.contains(&("fd".into(), FileType::Directory)));
        assert!(!seen.iter().any(|(name, _)| name == "." || name == ".."));
    }
}
