//! The memory that a process needs besides its output and input.

use std::{collections::BTreeMap, time::Instant};

use remex_proto::{HostPath, state::output_log::Hold};

use super::{Holding, ServerAudience, ServerProcess};

/// About what a process needs without the texts that its client has chosen.
const ENGINE_BYTES: usize = 8 << 10;

/// About what a text needs besides its bytes, and a label, which has two.
const TEXT_BYTES: usize = 56;
const LABEL_BYTES: usize = 160;

/// The texts that a client has chosen for a process.
pub(super) struct Texts<'a> {
    pub(super) id: &'a str,
    pub(super) start_id: Option<&'a str>,
    pub(super) argv: &'a [String],
    pub(super) cwd: &'a HostPath,
    pub(super) user: Option<&'a str>,
    pub(super) labels: &'a BTreeMap<String, String>,
}

impl Texts<'_> {
    /// Returns about how many bytes they need.
    pub(super) fn weight(&self) -> usize {
        let cwd = self.cwd.native().map_or(0, |path| path.as_os_str().len());
        let argv = self.argv.iter().map(|word| word.len() + TEXT_BYTES);
        let labels = self.labels.iter().map(|(name, value)| name.len() + value.len() + LABEL_BYTES);
        let rest =
            2 * self.id.len() + self.start_id.map_or(0, str::len) + self.user.map_or(0, str::len) + 2 * cwd;
        argv.chain(labels).sum::<usize>() + rest
    }
}

impl<A: ServerAudience> ServerProcess<A> {
    /// Charges what an open process keeps, if there is room for it besides what the process that it replaces hands over.
    pub fn try_keep_open(&self, replaced: Option<&Self>) -> bool {
        /// By so much the ids of the two may differ.
        const IDS: usize = 16 << 10;

        let Some(replaced) = replaced else { return self.served().kept.try_grow(self.open_bytes()) };
        let handed_over = replaced.served().kept.bytes();
        replaced.served().kept.set(0);
        self.served().kept.set(handed_over.min(self.open_bytes()));
        let lacking = self.open_bytes() - self.served().kept.bytes();
        if lacking <= IDS {
            self.keep_open();
        } else if !self.served().kept.try_grow(lacking) {
            self.served().kept.set(0);
            replaced.served().kept.set(handed_over);
            return false;
        }
        true
    }

    /// Charges what an open process keeps, whether or not there is room for it.
    pub fn keep_open(&self) {
        self.served().kept.set(self.open_bytes());
    }

    /// Charges what a closed process keeps.
    pub fn keep_closed(&self) {
        self.served().kept.set(self.spec().weight + ENGINE_BYTES);
    }

    /// Charges what a closed process keeps that has handed over its charge, if there is room for it.
    pub fn try_keep_closed(&self) -> bool {
        self.served()
            .kept
            .try_grow((self.spec().weight + ENGINE_BYTES).saturating_sub(self.served().kept.bytes()))
    }

    /// Returns how many bytes an open process keeps, with one chunk of output, which its log may always have.
    pub fn open_bytes(&self) -> usize {
        self.spec().weight + ENGINE_BYTES + self.host().limits().chunk_bytes
    }

    /// Returns when its child exited, or 0 if it has not.
    pub fn ended_at_ms(&self) -> u64 {
        self.state().ended_at_ms.unwrap_or(0)
    }

    /// Returns whether output waits for room in the log.
    pub fn waits_for_room(&self) -> bool {
        self.state().full
    }

    /// Returns whether its log holds output that a client has not received and will come for.
    pub fn is_held(&self) -> bool {
        let mut state = self.state();
        let hold = state.hold(&self.spec().rules, &self.host().limits(), Holding::Least, Instant::now());
        matches!(hold, Hold::After(seq) if seq.saturating_add(1) < state.kind.log().next_seq())
    }
}
