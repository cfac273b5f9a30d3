//! Finds the processes that a word means.
//!
//! Pure. Start at [`find_by_name`].

use std::borrow::Cow;

use super::ProcessInfo;

/// A process of a list in which [`find_by_name`] looks.
pub trait NamedProcess {
    /// Returns its description by the server.
    fn info(&self) -> &ProcessInfo;

    /// Returns its own name as people see it; its id by default.
    fn short_name(&self) -> Cow<'_, str> {
        self.info().process_id.as_str().into()
    }

    /// Returns its name with that of its session, as people see it; with the id of its session by default.
    fn long_name(&self) -> String {
        format!("{}/{}", self.info().session_id, self.short_name())
    }

    /// Returns the name of its session, if that is known; it is not by default.
    fn session_name(&self) -> Option<&str> {
        None
    }

    /// Returns how well a word names it, if it does.
    fn name_rank(&self, word: &str) -> Option<NameRank> {
        let (name, long_name, session_id) = (self.short_name(), self.long_name(), &self.info().session_id);
        let with_id = format!("{session_id}/{name}");
        let own = [&*name, &long_name].map(|name| (name, NameRank::Name, NameRank::NamePrefix));
        let with_id = (&*with_id, NameRank::Name, NameRank::SessionPrefix);
        let session = [Some(&**session_id), self.session_name()].into_iter().flatten();
        let session = session.map(|name| (name, NameRank::Session, NameRank::SessionPrefix));
        own.into_iter()
            .chain([with_id])
            .chain(session)
            .filter_map(|(name, whole, begins)| match name.strip_prefix(word) {
                Some("") => Some(whole),
                Some(_) => Some(begins),
                None => None,
            })
            .min()
    }
}

impl NamedProcess for ProcessInfo {
    fn info(&self) -> &ProcessInfo {
        self
    }
}

/// How a word names a process, best first: its own name counts more than that of its session.
///
/// See [`find_by_name`] for an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[non_exhaustive]
pub enum NameRank {
    /// The word is the name of the process, or `SESSION/NAME` with the id or the name of its session.
    Name,
    /// The word is the id or the name of its session.
    Session,
    /// The word begins the name of the process.
    NamePrefix,
    /// The word begins the id or the name of its session.
    SessionPrefix,
}

impl NameRank {
    /// Returns whether the word is a full name, not only a prefix.
    ///
    /// ```
    /// use remex_client::process::NameRank;
    ///
    /// assert!(NameRank::Name.is_full() && !NameRank::NamePrefix.is_full());
    /// ```
    pub fn is_full(self) -> bool {
        matches!(self, Self::Name | Self::Session)
    }
}

/// Returns the processes that a word means, in the order of the list: those that it names best; of these, those that
/// run, or else those that have descendants alive, or else all.
///
/// An empty word, which would begin every name, means none.
///
/// ```
/// use remex_client::process::{NameRank, NamedProcess as _, ProcessInfo, State, find_by_name};
///
/// let [mut old, build, lint] = ["build", "build", "lint"].map(|name| ProcessInfo::new("s", name));
/// old.state = State::Closed;
/// let processes = [old, build, lint];
/// assert_eq!(find_by_name(&processes, "build"), [&processes[1]]);
/// assert_eq!(find_by_name(&processes, "li"), [&processes[2]]);
/// assert_eq!(processes[2].name_rank("li"), Some(NameRank::NamePrefix));
/// assert_eq!(find_by_name(&processes, "x"), [] as [&ProcessInfo; 0]);
/// ```
pub fn find_by_name<'a, T: NamedProcess>(processes: &'a [T], word: &str) -> Vec<&'a T> {
    if word.is_empty() {
        return Vec::new();
    }
    let rank = |process: &&T| process.name_rank(word);
    let Some(best) = processes.iter().filter_map(|process| rank(&process)).min() else { return Vec::new() };
    let mut found: Vec<_> = processes.iter().filter(|process| rank(process) == Some(best)).collect();
    if found.iter().any(|process| process.info().is_running()) {
        found.retain(|process| process.info().is_running());
    } else if found.iter().any(|process| process.info().is_alive()) {
        found.retain(|process| process.info().is_alive());
    }
    found
}
